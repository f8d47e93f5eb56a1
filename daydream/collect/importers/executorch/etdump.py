"""ETDump (`.etdp`): what ExecuTorch's runtime logged, a FlatBuffers file of schema ED00."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from daydream.collect.importers.executorch.flatbuffer import Buffer, Table
from daydream.collect.importers.formats import ETDUMP_MAGIC, is_etdump
from daydream.errors import TraceError
from daydream.files.input_files import reading

SMALLEST_EVENT = 8  # bytes; where a file seems to hold more of them, its vectors overlap


@dataclass(frozen=True)
class ProfileEvent:
    """An interval as the runtime logged it; what is unset is -1 or empty."""

    name: str
    instruction: int
    delegate: int | str
    start: int
    end: int

    @property
    def delegated(self) -> bool:
        """Whether a delegate logged it."""
        return self.delegate not in (-1, "")


def read_events(path: Path) -> list[ProfileEvent]:
    """Return the profiling events of an ETDump, run by run. Raises `TraceError` if it is none, or damaged."""
    with reading(path):
        data = path.read_bytes()
    if not is_etdump(data[:12]):
        raise TraceError(
            f"{path} is no ETDump: it has no mark of the schema ED00. Give what write_etdump wrote."
        )
    if data[8:12] == ETDUMP_MAGIC:
        size = int.from_bytes(data[:4], "little")
        if size > len(data) - 4:
            raise TraceError(
                f"{path} is cut off: it has {len(data) - 4:,} of {size:,} bytes. Copy or record it again."
            )
        data = data[4 : 4 + size]
    buffer = Buffer(data, str(path))
    found: list[ProfileEvent] = []
    seen = 0
    for run in Table(buffer, buffer.number("I", 0)).tables(1):
        events = run.tables(3)
        seen += len(events)
        if seen > len(data) // SMALLEST_EVENT:
            raise buffer.damaged()
        found += [_event(profiled) for event in events if (profiled := event.table(0)) is not None]
    return found


def _event(table: Table) -> ProfileEvent:
    number = table.number(3, "i", -1)
    return ProfileEvent(
        name=table.text(0),
        instruction=table.number(2, "i", -1),
        delegate=number if number != -1 else table.text(4),
        start=table.number(6, "Q", 0),
        end=table.number(7, "Q", 0),
    )
