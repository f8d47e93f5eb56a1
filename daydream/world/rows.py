"""What a fake world adds to a recording: what its ranges are, its groups, and that it was one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from daydream.errors import DaydreamError
from daydream.lazy import regex

RANGE = regex(r"^fake:\w+ \d+$")
WAIT = "fake:wait"
NEVER_MADE = (
    "the script never called torch.distributed.init_process_group: it ran as one process of one.\n"
    "Leave --world out, or let it make its process group."
)


def emulated_rows(recording: Any, markers: list[Any]) -> list[Any]:
    """Give a `Recording` the times and the rows of an emulated GPU; return its markers. Nothing without one."""
    emulation = sys.modules.get("daydream.world.emulate")
    if emulation is None or not emulation.SCRIPT:
        return markers
    from daydream.world.emulate_rows import emulate

    return emulate(recording, markers, *emulation.SCRIPT)


def note_collectives(recording: Any) -> None:
    """Give a `Recording` what the process group noted of its collectives, and its groups.

    A collective and the wait for it have the number of the collective in common, in the column `correlation`.
    Does nothing outside a fake world. Raises `DaydreamError` where the script made no process group.
    """
    script = sys.modules.get("daydream.world.script")
    if script is None:
        return
    from daydream.world.process_group import ASKED, GROUPS

    if not GROUPS:
        raise DaydreamError(NEVER_MADE)
    rows = np.flatnonzero(recording.named(RANGE, "annotation"))
    parts = [str(name).split() for name in recording.texts_of("name", rows)]
    names = [name for name, _ in parts]
    numbers = np.array([number for _, number in parts], np.int64)
    recording.set_texts("name", rows, names)
    recording.set_numbers("correlation", rows, numbers)
    calls = np.array([name != WAIT for name in names], bool)
    asked = [ASKED[number] for number in numbers[calls]]
    for column, field in (("collective", "operation"), ("dtype", "dtype"), ("group", "group")):
        recording.set_texts(column, rows[calls], [getattr(one, field) or None for one in asked])
    for column in ("bytes", "elements", "peer", "asynchronous"):
        found = np.array([getattr(one, column) for one in asked], np.int64)
        recording.set_numbers(column, rows[calls], found)
    recording.metadata["groups"] = [
        {
            "name": name,
            "ranks": ranks,  # torch calls a group undefined that the script did not describe
            "description": description.replace("undefined", f"group_{name}_of_{len(ranks)}_ranks"),
        }
        for name, (ranks, description) in GROUPS.items()
    ]
    recording.metadata["fake_world"] = dict(script.WORLD)
    recording.note(
        f"Recorded as rank {script.WORLD['rank']} of {script.WORLD['world_size']:,} in a fake world: collectives "
        "took no time and gave this rank's own values; what other ranks do is not known, and nobody comes late."
    )
    used = {script.BACKENDS.get(one.group, script.BACKENDS["0"]) for one in asked}
    if len(used) > 1:
        recording.note(
            f"Collectives of {' and '.join(sorted(used))} are timed alike, on the network of the cluster."
        )
    if (busier := script.WORLD.get("imbalance", 1)) > 1:
        recording.note(f"This rank's experts get {busier:g} times the mean.")
