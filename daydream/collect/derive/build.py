"""The memory events of a recording, as they go into its trace: of one rank, and judged by its rows.

Steps in which the program's compiler compiled: a new shape came, say.

Compiled code is kept and used from then on, so a run pays for it once. torch wraps what its compiler does in
ranges of their own.

From a `Recording` to a `Trace`: who encloses and launches whom, operators, steps, phases, layers.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from daydream.arrays import combinations, lookup
from daydream.collect.derive.device_work import (
    end_before_next,
    fill_collectives,
    fill_grids,
    fill_types,
    on_one_clock,
)
from daydream.collect.derive.layers import AUTOGRAD_THREADS, find_layers, link_forward
from daydream.collect.derive.nesting import link_launches, nearest, nest
from daydream.collect.derive.phases import find_phases, orphans
from daydream.collect.derive.quality import first_iterations, start_up_of_single_step
from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.derive.source_lines import LEAST_BLOCKED_NS
from daydream.collect.derive.steps import (
    Ranges,
    assign_steps,
    find_steps,
    finish_ranges,
    measure_steps,
    need_work,
)
from daydream.text import counted
from daydream.trace.memory_events import MemoryEvents, with_lost_allocations
from daydream.trace.schema import DEVICE_KINDS, FIELDS, HOST_KINDS, PHASES, UNKNOWN, clear_nonsense
from daydream.trace.trace import Trace


def memory_of(recording: Recording) -> MemoryEvents | None:
    """Return the recording's memory events with their rank, None if there are none.

    A note of the recording counts those that lie outside the time of its rows: nothing tells their cause.
    """
    memory = recording.memory
    if memory is None:
        return None
    if "rank" not in recording.columns:
        memory = memory.changed(rank=np.full(len(memory), int(recording.metadata.get("rank", 0))))
    memory, lost = with_lost_allocations(memory)
    if lost:
        recording.note(
            f"Allocations of memory that were not recorded and its totals tell of: {lost:,}."
        )
    start = np.asarray(recording["start_ns"], np.int64)
    first = int(start.min(initial=0))
    last = int((start + recording["duration_ns"]).max(initial=0))
    outside = int(((memory["time_ns"] < first) | (memory["time_ns"] > last)).sum())
    if outside:
        lie = "lies" if outside == 1 else "lie"
        recording.note(
            f"{counted(outside, 'memory event', 'memory events')} {lie} outside the time of all other rows."
        )
    return memory


COMPILES = re.compile(r"^\S.* \(dynamo_timed\)$", re.DOTALL)
FUNCTION = re.compile(r"^_compile\.compile_inner \(dynamo_timed\)$")
WORTH = 0.25
"""Of a step's time; less is not worth a step."""


def compilations(
    recording: Recording, step: np.ndarray, parent: np.ndarray, steps: list[dict[str, Any]]
) -> dict[int, str]:
    """Return why steps that were spent compiling are not like the others, by their number.

    Where half of the covered steps or more are so, compiling is what the program does, and they count.

    Args:
        recording: the rows.
        step: of each row its step, -1 for none; int, shape (rows,).
        parent: of each host row the row around it, -1 for none; int, shape (rows,).
        steps: the steps with their measured times.
    """
    rows = np.flatnonzero(recording.named(COMPILES) & (step >= 0))
    if not len(rows):
        return {}
    compiles = np.isin(np.arange(len(recording)), rows)
    around = parent[rows]
    outermost = rows[(around < 0) | (nearest(compiles, parent)[around] < 0)]
    spent = np.bincount(
        step[outermost], np.asarray(recording["duration_ns"])[outermost], len(steps)
    )
    functions = np.bincount(step[rows[recording.named(FUNCTION)[rows]]], minlength=len(steps))
    covered = [
        number for number, each in enumerate(steps) if each["covered"] and each["measured_ns"]
    ]
    found = [number for number in covered if spent[number] > WORTH * steps[number]["measured_ns"]]
    if 2 * len(found) >= len(covered):
        return {}
    return {
        number: f"the program compiled {counted(int(functions[number]), 'function')} anew in it, "
        f"{spent[number] / 1e6:,.0f} ms of {steps[number]['measured_ns'] / 1e6:,.0f} ms"
        for number in found
    }


def derive(
    recording: Recording,
    step_marker: str | None = None,
    steps: str | None = None,
    *,
    ranges: tuple[Ranges, str] | None = None,
) -> Trace:
    """Return the trace of one process: its rows with parent, op, layer, phase and step.

    `metadata["steps"]` holds the steps with their measured times, `step_source` where they
    come from. `ranges` gives the steps and their source where these are known already.
    The recording's columns become the trace's. Raises `TraceError` if
    `step_marker` matches nothing.
    """
    _put_in_order(recording)
    _once(recording)
    clear_nonsense(recording.columns, recording.texts)
    need_work(recording)
    finish_ranges(recording)
    nesting = nest(recording)
    launch = link_launches(recording)
    if on_one_clock(recording, launch):
        return derive(recording, step_marker, steps, ranges=ranges)
    if crossings := nesting.crossings:
        recording.note(
            f"{counted(crossings, 'host row')} reached beyond the end of the row around it and "
            f"{'was' if crossings == 1 else 'were'} cut there."
        )
    recording.columns["duration_ns"] = nesting.duration_ns
    doubts = end_before_next(recording, launch)
    device = recording.is_kind(*DEVICE_KINDS)
    parent = np.where(device, launch, nesting.parent)
    op_row = _operators(recording, parent)
    fill_collectives(recording, nesting.parent, op_row, launch)
    device = recording.is_kind(*DEVICE_KINDS)
    fill_types(recording, op_row, device)
    fill_grids(recording, launch)

    found, recording.metadata["step_source"] = ranges or find_steps(recording, step_marker, steps)
    step, found = assign_steps(recording, found, launch)
    steps_found = measure_steps(recording, found, step, launch, doubts)
    for reasons in (first_iterations, compilations):
        for number, reason in reasons(recording, step, nesting.parent, steps_found).items():
            steps_found[number].update(covered=False, why_not=reason)
    recording.metadata["steps"] = steps_found
    if start_up := start_up_of_single_step(recording, launch, steps_found):
        recording.note(start_up)

    forward_of = link_forward(recording)
    phase, assumed = find_phases(recording, nesting.parent, step, forward_of, launch)
    layer, layers = find_layers(recording, nesting, forward_of, phase)
    recording.metadata.pop(AUTOGRAD_THREADS, None)
    source = np.where(op_row >= 0, op_row, launch)[device]
    for column in (phase, layer):
        column[device] = np.where(source >= 0, column[source], UNKNOWN)
    alone = np.flatnonzero(device)[source < 0]
    phase[alone] = orphans(recording, alone)
    recording.metadata["phases_assumed"] = _share(
        recording, device, np.append(assumed, False)[source]
    )

    columns, texts = recording.columns, recording.texts
    memory = memory_of(recording)
    places = columns.pop("handle", None)
    if "rank" not in columns:
        columns["rank"] = narrow(
            np.full(len(recording), int(recording.metadata.get("rank", 0))), np.int8
        )
    columns |= {"parent": parent, "step": step}
    columns["phase"], texts["phase"] = phase, list(PHASES)
    columns["layer"], texts["layer"] = layer, layers
    columns["op"], texts["op"] = _op_names(recording, op_row)
    for name in [
        name for name, column in columns.items() if not (column != FIELDS[name].null).any()
    ]:
        del columns[name]
    _tell_vendor(recording)
    trace = Trace(columns, texts, recording.metadata, memory)
    if recording.handles is not None and places is not None:
        trace.set_handles(recording.handles, places, by="the recording itself")
    return trace


def _put_in_order(recording: Recording) -> None:
    """Sort rows by start, where an importer has not, without short waits and those of other threads."""
    blocked = recording.is_kind("blocked")
    if blocked.any():
        thread, _ = combinations([recording["pid"], recording["tid"]])
        kept = np.isin(thread, thread[recording.is_kind(*HOST_KINDS)])
        kept = ~blocked | (kept & (recording["duration_ns"] >= LEAST_BLOCKED_NS))
        recording.keep(kept)
    start = recording["start_ns"]
    if (start[1:] < start[:-1]).any():
        recording.keep(np.lexsort((-recording["duration_ns"], start)))


def _once(recording: Recording) -> None:
    """Leave out rows that are there twice, as where files of one process were joined, and say how many.

    Two with the same id of a call or an operator, and the same of all else, are one: ids differ.
    """
    start = recording["start_ns"]
    tied = np.flatnonzero(start[1:] == start[:-1])
    rows = np.union1d(tied, tied + 1)
    known = (recording["correlation"][rows] >= 0) | (recording["external_id"][rows] >= 0)
    rows = rows[known & (recording["duration_ns"][rows] > 0)]
    if not len(rows):
        return
    alike, _ = combinations([column[rows] for column in recording.columns.values()])
    _, first = np.unique(alike, return_index=True)
    kept = np.ones(len(recording), bool)
    kept[rows] = False
    kept[rows[first]] = True
    if again := int((~kept).sum()):
        recording.keep(kept)
        recording.note(f"Rows that were recorded twice and are left out: {again:,}.")


def _share(recording: Recording, device: np.ndarray, flagged: np.ndarray) -> float:
    """Return the share of the device's time that flagged device rows take, 0 where there is none."""
    time = recording["duration_ns"][device].astype(float)
    return float(time[flagged].sum() / time.sum()) if time.sum() else 0.0


def _operators(recording: Recording, parent: np.ndarray) -> np.ndarray:
    """Return the row of the innermost operator each row belongs to.

    Device rows find it by External id; where that names none, by the launching call.
    Some profilers put the correlation id there when no operator ran: that names none.
    """
    operator = recording.is_kind("operator")
    op_row = nearest(operator, parent)
    op_row[recording.is_kind("module")] = UNKNOWN
    external = recording["external_id"]
    correlation = recording["correlation"]
    named = np.flatnonzero(operator & (external >= 0))
    work = np.flatnonzero(
        recording.is_kind(*DEVICE_KINDS) & (external >= 0) & (external != correlation)
    )
    found = lookup(external[named], external[work])
    op_row[work[found >= 0]] = named[found[found >= 0]]
    return op_row


def _op_names(recording: Recording, op_row: np.ndarray) -> tuple[np.ndarray, list[str]]:
    texts = recording.text("name")
    name = recording["name"]
    used = np.zeros(len(texts) + 1, bool)
    used[name[op_row[op_row >= 0]]] = True
    table = np.append(np.where(used[:-1], np.cumsum(used[:-1]) - 1, UNKNOWN), UNKNOWN)
    codes = narrow(table, np.int8)[np.where(op_row >= 0, name[op_row], UNKNOWN)]
    return codes, [text for text, is_used in zip(texts, used[:-1].tolist(), strict=True) if is_used]


def _tell_vendor(recording: Recording) -> None:
    if "vendor" in recording.metadata:
        return
    texts = recording.text("name")
    called = np.zeros(len(texts), bool)
    called[recording["name"][recording.is_kind("runtime")]] = True
    names = [texts[code] for code in np.flatnonzero(called).tolist()]
    versions: dict[str, Any] = recording.metadata.get("versions", {})
    if any(name.startswith("hip") for name in names) or any(
        key.startswith(("hip", "roc")) for key in versions
    ):
        recording.metadata["vendor"] = "rocm"
    elif (
        names
        or recording.is_kind(*DEVICE_KINDS).any()
        or any(key.startswith("cu") for key in versions)
    ):
        recording.metadata["vendor"] = "cuda"
    else:
        recording.metadata["vendor"] = "cpu"
