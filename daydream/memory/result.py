"""How much memory each device needs, when, and who holds it: what `daydream memory` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import field

from daydream.results import Live, Record


@dataclass(frozen=True)
class Holder:
    """What holds memory at the peak.

    Attributes:
        name: what it is called: a source line, an operator, a layer.
        bytes: what it holds.
        count: how many allocations that is.
        kind: one of `KINDS` of `daydream.memory.allocations`.
        whatif: the optimization that would make it smaller, as it is typed, None if none is known.
        line: the line of the program that asked for it, None if it is not recorded.

    """

    name: str
    bytes: int
    count: int = 1
    kind: str = "unknown"
    whatif: str | None = None
    line: str | None = None


@dataclass(frozen=True)
class OutOfMemory:
    """Where a replay with a capacity found no room.

    Attributes:
        request: which request failed, from 1; 0 where what was held at the start does not fit.
        requests: how many there are.
        asked_bytes: what the program asked for.
        allocated_bytes: what it held then.
        reserved_bytes: what the device had given then, with all that was unused returned.

    """

    request: int
    requests: int
    asked_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class DeviceMemory(Record):
    """The memory of one device, by the process that used it.

    Attributes:
        rank: of the process.
        device: `cuda:0`, `cpu`.
        capacity_bytes: what it was asked to fit in.
        peak_allocated_bytes: most that was allocated at once, replayed.
        peak_reserved_bytes: most that the allocator had at once, replayed; of a trace as it was recorded.
        recorded_allocated_bytes: the same as it was recorded.
        recorded_reserved_bytes: the same as it was recorded.
        peak_step: the step of the allocated peak.
        peak_phase: its phase.
        peak_layer: the layer that ran then.
        by_kind: bytes held at the peak by kind, such as `parameter`.
        by_phase: the same by the phase that allocated them.
        by_layer: the same by the layer that allocated them.
    """

    rank: int
    device: str
    capacity_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    recorded_allocated_bytes: int | None = None
    recorded_reserved_bytes: int | None = None
    peak_step: str | None = None
    peak_phase: str | None = None
    peak_layer: str | None = None
    by_kind: Mapping[str, int] = field(default_factory=dict)
    by_phase: Mapping[str, int] = field(default_factory=dict)
    by_layer: Mapping[str, int] = field(default_factory=dict)

    holders = Live[tuple[Holder, ...]]()  # the largest holders at the peak, the largest first
    replayed_reserved_bytes = Live[int | None](
        None
    )  # the reserved peak of a replay where that does not count
    reserved_at_peak_bytes = Live[
        int | None
    ]()  # what was reserved when most was allocated, replayed
    retries = Live[int]()  # how often a replay had to return all unused memory for lack of room
    out_of_memory = Live[OutOfMemory | None]()  # where it found no room all the same

    def __post_init__(self) -> None:
        """Say nothing of an allocator yet."""
        self.having(reserved_at_peak_bytes=None, retries=0, out_of_memory=None)

    @property
    def fragmentation(self) -> float | None:
        """The share of the reserved memory that was not allocated when most was, 0 to 1."""
        if self.peak_allocated_bytes is None or not self.reserved_at_peak_bytes:
            return None
        return 1 - self.peak_allocated_bytes / self.reserved_at_peak_bytes

    @property
    def left_bytes(self) -> int | None:
        """What the capacity leaves for all that is outside the allocator; negative where it does not fit."""
        needed = (
            self.peak_allocated_bytes
            if self.peak_reserved_bytes is None
            else self.peak_reserved_bytes
        )
        return (
            None if self.capacity_bytes is None or needed is None else self.capacity_bytes - needed
        )


class MemoryReport(Record):
    """The memory of all devices.

    Attributes:
        devices: one for each rank and device.
        outside_bytes: what the context, NCCL and libraries take besides, None where it is unknown.
        notes: what is doubtful about it.

    """

    devices: tuple[DeviceMemory, ...]
    outside_bytes: int | None = None
    notes: tuple[str, ...] = ()
