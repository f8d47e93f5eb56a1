"""An ETDump, with its ETRecord or without, as a `Recording`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.executorch.etdump import ProfileEvent, read_events
from daydream.collect.importers.executorch.etrecord import read_etrecord
from daydream.collect.importers.executorch.rows import KERNEL, STAGES, Row, is_kernel, kernel_of, recording_of
from daydream.collect.importers.kineto.values import plain_text
from daydream.text import counted
from daydream.trace.handle_map import Handle

NO_RECORD = (
    "No ETRecord was given: operators have the runtime's names, and layers are unknown. Give the program's "
    "with --etrecord."
)
NANOSECONDS = (
    "The times of an ETDump have no unit; they were taken for nanoseconds, which is what ExecuTorch's clock "
    "on Linux, macOS and Android counts."
)


def read_executorch(path: Path, etrecord: Path | None, *, max_unpacked: int | None) -> Recording:
    """Return the recording of an ETDump. Raises `TraceError` if one of the two files is not usable."""
    events = read_events(path)
    notes = [NANOSECONDS]
    entries: dict[str, list[Handle]] = {}
    if etrecord is None:
        notes.append(NO_RECORD)
    else:
        record = read_etrecord(etrecord, max_unpacked=max_unpacked)
        # `OPERATOR_CALL` and the kernel within share an instruction; the kernel's name tells more.
        for event in sorted(events, key=lambda event: not event.name.startswith(KERNEL)):
            identifier = _identifier(event)
            if identifier and identifier not in entries:
                handles = record.handles(event.instruction, event.delegate, event.name)
                if handles:
                    entries[identifier] = handles
        notes += _doubts(events, entries, etrecord)
    rows = [
        Row(_name(event), event.start, event.end, event.delegated, _identifier(event)) for event in events
    ]
    return recording_of(rows, entries, path, notes, rule="bytes")


def _doubts(events: Sequence[ProfileEvent], entries: Mapping[str, list[Handle]], etrecord: Path) -> list[str]:
    """Say it if most kernels are none of the record's operators, as where it is another program's."""
    kernels = {_identifier(event): kernel_of(event.name) for event in events if event.name.startswith(KERNEL)}
    right = sum(
        any(is_kernel(handle, kernel) for handle in entries.get(identifier, ()))
        for identifier, kernel in kernels.items()
    )
    if entries and 2 * right >= len(kernels):
        return []
    are = "is" if len(kernels) == 1 else "are"
    said = (
        f"Only {right} of {counted(len(kernels), 'kernel')} {are} among the operators of their debug handles"
    )
    return [f"{said} in {plain_text(etrecord.name)}: give the ETRecord of this program."]


def _identifier(event: ProfileEvent) -> str:
    """Return what the map knows an event by: its instruction, and what the delegate calls its part."""
    if event.instruction < 0 or event.name.startswith(STAGES):  # which are logged with any instruction
        return ""
    return f"{event.instruction}:{event.delegate}" if event.delegated else str(event.instruction)


def _name(event: ProfileEvent) -> str:
    """Return the name of a row: what the delegate says, as Inspector does; else the event's."""
    return str(event.delegate) if event.delegated else event.name or "unnamed"
