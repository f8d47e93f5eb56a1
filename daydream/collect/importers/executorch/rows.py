"""Rows of an ExecuTorch recording, whichever file they come from, as a `Recording`.

Rows overlap: `Method::execute` holds `OPERATOR_CALL` and `DELEGATE_CALL`, these hold what the kernel or the
delegate logged. They stand in one another as rows of a thread do, so that each keeps the time that
no row within it has, and all together last as long as `Method::execute`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.importers.kineto.values import plain_text
from daydream.errors import TraceError
from daydream.text import counted
from daydream.trace.handle_map import DebugHandleMap, Handle, Identifier
from daydream.trace.schema import UNKNOWN
from daydream.trace.valid import LONGEST_NS

CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")
STAGES = ("Method::", "Program::")
"""What the runtime names its own stages by; no kernel has two colons in its name."""
KERNEL = "native_call_"  # stands before the kernel's name


@dataclass(frozen=True)
class Row:
    """One interval: what ran, and what the map of debug handles knows it by (empty: nothing)."""

    name: str
    start_ns: int
    end_ns: int
    delegated: bool = False
    identifier: str = ""


def kernel_of(name: str) -> str:
    """Return the operator in a kernel's name, without its overload: `addmm` of `native_call_addmm.out`."""
    return name.removeprefix(KERNEL).partition(".")[0]


def is_kernel(handle: Handle, kernel: str) -> bool:
    """Return whether a handle is of the operator that a kernel's name tells."""
    return handle.operator.rpartition("::")[2] == kernel


def of_kernel(handles: Sequence[Handle], name: str) -> list[Handle]:
    """Return of an event's operators the one whose kernel it is, all if it is none of theirs.

    An instruction stands for all operators of its debug handles, as Inspector says; a linear layer becomes a
    transposition and a product, of one debug handle.
    """
    return [one for one in handles if is_kernel(one, kernel_of(name))] or list(handles)


def recording_of(
    rows: Sequence[Row],
    entries: Mapping[str, Sequence[Handle]],
    path: Path,
    notes: list[str],
    *,
    rule: str = "equal",
) -> Recording:
    """Return a recording of the rows, on one thread, with the handles of those that have an entry.

    `rule` is how the time of a row is shared over its handles; `notes` gets sentences.

    Raises `TraceError` if there are none, or their times make no sense.
    """
    for row in rows:
        if row.end_ns < row.start_ns:
            raise TraceError(
                f"{path}: {row.name[:60]!r} ends before it starts ({row.end_ns:,} after {row.start_ns:,}); "
                "its clock wrapped around, or the file is damaged. Record it again."
            )
    rows = _on_one_clock(rows, notes)
    if not rows:
        raise TraceError(f"{path} holds no profiling event; run the program with enable_etdump=True.")
    rows = sorted(rows, key=lambda row: (row.start_ns, -row.end_ns, _depth(row)))
    origin = rows[0].start_ns
    if max(row.end_ns for row in rows) - origin > LONGEST_NS:
        raise TraceError(
            f"{path}: its times lie more than 13 days apart; they are not nanoseconds of one clock."
        )
    names: dict[str, int] = {}
    columns = {
        "start_ns": np.array([row.start_ns - origin for row in rows], np.int64),
        "duration_ns": narrow(np.array([row.end_ns - row.start_ns for row in rows], np.int64)),
        "name": np.array([names.setdefault(row.name, len(names)) for row in rows], np.int32),
        "kind": np.array([not row.name.startswith(STAGES) for row in rows], np.int8),
        "pid": np.zeros(len(rows), np.int64),
        "tid": np.zeros(len(rows), np.int64),
    }
    metadata: dict[str, Any] = {
        "source": plain_text(path.name), "vendor": "cpu", "origin_ns": min(origin, 2**62), "notes": notes,
    }  # fmt: skip
    recording = Recording(columns, {"name": list(names), "kind": ["annotation", "operator"]}, metadata)
    _add_handles(recording, rows, entries, rule)
    return recording


def _on_one_clock(rows: Sequence[Row], notes: list[str]) -> Sequence[Row]:
    """Return the rows without those of a delegate whose clock is another than the runtime's."""
    calls = sorted((row.start_ns, row.end_ns) for row in rows if row.name == "DELEGATE_CALL")
    if not calls:
        return rows
    starts, ends = np.array(calls, dtype=object).T  # up to 64 bits, as the file has them
    kept = []
    for row in rows:
        at = int(np.searchsorted(starts, row.start_ns, side="right")) - 1
        if not row.delegated or (at >= 0 and row.start_ns <= ends[at]):
            kept.append(row)
    if left_out := len(rows) - len(kept):
        notes.append(
            f"{counted(left_out, 'row')} of delegates outside every DELEGATE_CALL, as where a delegate "
            "counts cycles of its own: left out, and their time stays with the call."
        )
    return kept


def _add_handles(
    recording: Recording, rows: Sequence[Row], entries: Mapping[str, Sequence[Handle]], rule: str
) -> None:
    """Set the map of debug handles and each row's place in it, and note the rows of delegates without.

    A `DELEGATE_CALL` of several operators whose delegate says what it ran, but not of which operators, has no
    handles: its operators would be taken for those of each row in it.
    """
    unknown = [row for row in rows if row.delegated and row.identifier not in entries]
    starts = np.array([row.start_ns for row in unknown], dtype=object)
    used: dict[Identifier, Sequence[Handle]] = {}
    places: dict[str, int] = {}
    column = np.full(len(rows), UNKNOWN, np.int32)
    for index, row in enumerate(rows):
        if row.identifier not in entries:
            continue
        inside = np.searchsorted(starts, [row.start_ns, row.end_ns])
        if row.name in CALLS and inside[0] < inside[1]:
            continue
        column[index] = places.setdefault(row.identifier, len(places))
        used[row.identifier] = entries[row.identifier]
    if used:
        recording.columns["handle"] = column
        recording.handles = DebugHandleMap(used, rule=rule)
    if unknown:
        names = len({row.name for row in unknown})
        recording.note(
            f"{counted(len(unknown), 'row')} of delegates ({counted(names, 'name')}) without debug handles: "
            "their operators have the delegate's names, and their layers are unknown."
        )


def _depth(row: Row) -> int:
    """Return how deep a row stands among those that begin and end with it."""
    return 0 if row.name.startswith(STAGES) else 1 if row.name in CALLS else 2
