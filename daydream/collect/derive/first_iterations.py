"""First iterations: steps at the begin of a recording that do once what later steps do not repeat.

Modules are loaded, libraries make their handles, memory is taken from the driver, algorithms
are tried out, code is compiled, weights go to the device. A run pays for it once, however long it is.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from daydream.collect.derive.phases import launched
from daydream.collect.derive.recording import PORTION, Recording
from daydream.lazy import regex
from daydream.text import counted

LONGER = 0.25
"""Of a usual step by which a first one is longer; less is not worth a step."""
EXPLAINED = 0.5
"""Of what it is longer that work done once must explain."""
ONCE = 3
"""Times as much as in any later step."""
STANDS_NS = 50_000_000
"""A call may stand so long because other programs had the CPU, several time slices: that is no start-up.

What calls of a name take longer than usual counts above this only, if later steps have calls of that name.
"""
LATER = 2
"""Steps, at least, that tell what is usual."""
LOADS = 20
LOADS_NS = 1_000_000
"""Times as long as usual, and ns, that a launch takes which loads a module."""
WORTH_SAYING = 0.1
"""Of the only step."""
WAITS = regex(r"Synchronize|Memcpy|Wait|Query|DataLoader|data_?load|nccl|c10d", re.IGNORECASE)
"""Calls and operators that last as long as something else does: a loader, another rank, the device."""


def first_iterations(
    recording: Recording, step: np.ndarray, parent: np.ndarray, steps: list[dict[str, Any]]
) -> dict[int, str]:
    """Return why steps at the begin are not like those to come, by their number.

    Only a step that is longer than later ones counts, and only where time that calls,
    operators or kernels of one name take in it and not later is at least half of that.
    """
    times = [each["measured_ns"] for each in steps]
    found: dict[int, str] = {}
    if len(steps) < LATER + 2 or None in times[1:]:
        return found
    host, device = _by_name(recording, step, parent, len(steps))
    for number in range(1, len(steps) - LATER):
        usual = float(np.median(times[number + 1 :]))
        longer = times[number] - usual
        if longer <= LONGER * usual:
            break
        once = np.maximum(_started(host, number), _once(device, number))
        if once.sum() < EXPLAINED * longer:
            break
        found[number] = _reason(recording, once)
    return found


def start_up_of_single_step(
    recording: Recording, launch: np.ndarray, steps: list[dict[str, Any]]
) -> str | None:
    """Return a sentence where the only step is much longer because kernels' modules were loaded in it.

    CUDA loads a module when a kernel of it is launched first, inside that call (CUDA programming
    guide, lazy loading); a recording with other steps leaves such a step out.
    """
    if len(steps) != 1 or not steps[0]["measured_ns"]:
        return None
    calls, names = launched(recording, launch)
    if not len(calls):
        return None
    took = np.asarray(recording["duration_ns"])[calls].astype(np.int64)
    first = np.unique(names, return_index=True)[1]
    loads = first[took[first] >= max(LOADS_NS, LOADS * float(np.median(took)))]
    total = int(took[loads].sum())
    if total < WORTH_SAYING * steps[0]["measured_ns"]:
        return None
    kernels = counted(len(loads), "kernel")
    longest = took[loads].max() / 1e6
    return (
        f"The only step holds start-up: {total / 1e6:,.0f} ms in first launches of {kernels}, which load "
        f"their modules (the longest {longest:,.0f} ms). A later pass has none of it."
    )


def _by_name(
    recording: Recording, step: np.ndarray, parent: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of each name in each step, of the host without what lies inside, and of the device."""
    duration = np.asarray(recording["duration_ns"])
    own = duration.astype(np.int64)
    portions = range(0, len(own), PORTION)  # a recording has many rows, and what is made of them is wide
    for begin in portions:
        held = begin + np.flatnonzero(parent[begin : begin + PORTION] >= 0)
        np.subtract.at(own, parent[held], duration[held].astype(np.int64))
    np.maximum(own, 0, out=own)
    host = recording.is_kind("operator", "runtime") & ~recording.named(WAITS, "operator", "runtime")
    host_ns, device_ns = (np.zeros((count, len(recording.text("name")))) for _ in range(2))
    for table, rows in (
        (host_ns, host),
        (device_ns, recording.is_kind("kernel", "memcpy", "memset")),
    ):
        for begin in portions:
            part = slice(begin, begin + PORTION)
            used = begin + np.flatnonzero(rows[part] & (step[part] >= 0))
            np.add.at(table, (step[used], recording["name"][used]), own[used].astype(float))
    return host_ns, device_ns


def _once(table: np.ndarray, number: int) -> np.ndarray:
    """Return by how much each name takes longer in a step than usually later, where far longer than ever."""
    later = table[number + 1 :]
    much = table[number] > ONCE * later.max(axis=0)
    return np.where(much, table[number] - np.median(later, axis=0), 0.0)


def _started(table: np.ndarray, number: int) -> np.ndarray:
    """Return the same of calls, without what a thread may have stood still."""
    once = _once(table, number)
    again = (table[number + 1 :] > 0).any(axis=0)
    return np.where(again & (once < STANDS_NS), 0.0, once)


def _reason(recording: Recording, once: np.ndarray) -> str:
    largest = [int(name) for name in np.argsort(-once)[:2] if once[name] >= once.sum() / 4]
    named = " and ".join(_short(recording.text("name")[name]) for name in largest)
    ms = f"{once.sum() / 1e6:,.0f} ms"
    if not named:
        return f"a first iteration: {ms} of work that no later step repeats"
    return f"a first iteration: {ms} of work that no later step repeats, most of it in {named}"


def _short(name: str) -> str:
    short = re.sub(r"[<(].*", "", name).strip().removeprefix("void ")
    return short if len(short) <= 40 else short[:39] + "…"
