"""What a recording asked of the allocator, request by request, and which peaks it saw itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from daydream.memory.allocator import Allocator
from daydream.memory.layout import Held, Layout, Region, region_of
from daydream.memory.records import Record
from daydream.memory.requests import ALLOCATE, DEFER, EMPTY_CACHE, FREE, Request
from daydream.memory.segments import Segment
from daydream.memory.settings import Settings
from daydream.text import counted

PRESSED = (
    -2
)  # the id of an EMPTY_CACHE that the allocator made by itself, because the device had no room
ALSO = -3  # of one that is part of the one before it


@dataclass
class History:
    """The requests of one device.

    Attributes:
        device: its number.
        settings: those of the recording.
        start: what the allocator held when it began; ids from 0.
        requests: what was asked of it; ids go on from those of the start.
        frames: for each id the stack that allocated it, as it was recorded, or None.
        recorded_allocated_bytes: most that was allocated at once.
        recorded_reserved_bytes: most that was reserved at once; None where segments are missing.
        doubts: sentences on what is missing or contradicts itself.

    """

    device: int
    settings: Settings
    start: list[Segment]
    requests: list[Request]
    frames: list[object]
    recorded_allocated_bytes: int
    recorded_reserved_bytes: int | None
    doubts: list[str] = field(default_factory=list)


def history(
    layout: Layout, records: Sequence[Record], settings: Settings, device: int = 0
) -> History:
    """Return the requests of a recording.

    Args:
        layout: the state at the beginning; it is changed.
        records: all events, in order.
        settings: those of the recording.
        device: its number.

    """
    start, blocks = layout.segments()
    return _Reading(layout, settings, blocks, _reserved_peak(layout.reserved, records)).read(
        records, start, device
    )


def _reserved_peak(reserved: int, records: Sequence[Record]) -> int:
    peak = reserved
    for record in records:
        if record.action in {"segment_alloc", "segment_map"}:
            reserved += record.size
            peak = max(peak, reserved)
        elif record.action in {"segment_free", "segment_unmap"}:
            reserved -= record.size
    return peak


class _Reading:
    """The state while events are read, first to last."""

    def __init__(self, layout: Layout, settings: Settings, blocks: list[Held], peak: int) -> None:
        self.layout, self.settings = layout, settings
        self.sizes = Allocator(settings)
        self.ids = {block.address: at for at, block in enumerate(blocks)}
        self.frames: list[object] = [block.frames for block in blocks]
        self.bytes = [block.size for block in blocks]  # of each id
        self.allocated = self.peak = sum(block.size for block in blocks if not block.pending)
        self.reserved_peak = peak
        self.returned: list[Request] = []  # what has just been returned to the device
        self.fresh = ""  # what has just been got from it
        self.by_program = False  # whether the program asked for that
        self.requests: list[Request] = []
        self.doubts: Counter[str] = Counter()
        self.asked_in_vain: set[int] = set()  # addresses of frees that nothing was found for

    def read(self, records: Sequence[Record], start: list[Segment], device: int) -> History:
        """Return the history of the events."""
        for record in records:
            if record.action == "alloc":
                self.end_return(0)
                self.allocate(record)
            elif record.action in {"free", "free_requested", "free_completed"}:
                self.end_return(0)
                self.free(record)
            else:
                self.move(record)
        self.end_return(0)
        complete = not self.doubts["outside"] and not self.doubts["segment"]
        doubts = [
            text.format(counted(self.doubts[key], one))
            for key, (one, text) in DOUBTS.items()
            if self.doubts[key]
        ]
        return History(
            device,
            self.settings,
            start,
            self.requests,
            self.frames,
            self.peak,
            self.reserved_peak if complete else None,
            doubts,
        )

    def allocate(self, record: Record) -> None:
        """Read an allocation; what else is held there was freed, and the event of that is missing."""
        end = record.address + record.size
        while (other := self.layout.first_in(record.address, end)) is not None:
            self.doubts["reused"] += 1
            self.forget(other, FREE)
        region = self.layout.region_at(record.address)
        if region is None or end > region.end:
            self.doubts["outside"] += 1
        private = record.private or (region.private if region is not None else 0)
        name = len(self.frames)
        self.frames.append(record.frames)
        self.requests.append(
            Request(ALLOCATE, name, record.size, record.stream, private, record.address, self.fresh)
        )
        self.fresh = ""
        self.ids[record.address] = name
        # Overlaps are judged by what was asked for: how large the block is, is not recorded.
        self.layout.hold(Held(record.address, record.size, record.size))
        self.bytes.append(self.size_of(record, region))
        self.allocated += self.bytes[name]
        self.peak = max(self.peak, self.allocated)

    def size_of(self, record: Record, region: Region | None) -> int:
        """Return the size of the block that serves a request: with the rest where that was not split off."""
        size = self.sizes.rounded(record.size)
        if region is None or record.address + size > region.end:
            return size
        rest = self.layout.free_until(record.address, region) - record.address - size
        pool = self.sizes.pool(0, small=region.small)
        grows = region.expandable or (self.sizes.expandable and not region.private)
        splits = self.sizes.splits(pool, size, rest, grows=grows)
        return size if splits else size + max(rest, 0)

    def free(self, record: Record) -> None:
        """Read a free, its beginning or its end."""
        block = self.layout.held.get(record.address)
        if block is None:
            again = record.action == "free_completed" and record.address in self.asked_in_vain
            self.doubts["unknown"] += not again
            self.asked_in_vain ^= {record.address} if again else set()
            if record.action == "free_requested":
                self.asked_in_vain.add(record.address)
            return
        self.doubts["resized"] += block.requested != record.size
        if record.action != "free_requested":
            self.forget(block, FREE)
        elif block.pending:
            self.doubts["unknown"] += 1
        else:
            self.forget(block, DEFER)

    def forget(self, block: Held, what: int) -> None:
        """Ask for the free of a block."""
        name = self.ids[block.address]
        if not block.pending:
            self.allocated -= self.bytes[name]
        block.pending = True
        self.requests.append(Request(what, name))
        if what == FREE:
            self.layout.release(block.address)
            del self.ids[block.address]

    def move(self, record: Record) -> None:
        """Read what happened between the allocator and the device."""
        if record.action in {"segment_free", "segment_unmap"}:
            region = self.layout.region_at(record.address)
            private = record.private or (region.private if region is not None else 0)
            if not self.layout.remove(record.address, record.size):
                self.doubts["segment"] += 1
            self.returned.append(
                Request(EMPTY_CACHE, ALSO, record.size, record.stream, private, record.address)
            )
            self.by_program = _asked_for(record.frames)
            return
        self.end_return(record.size)
        self.fresh = "" if record.action == "oom" else record.action
        if self.fresh and not record.private:
            self.sizes.expandable = self.fresh == "segment_map"
        if record.action == "oom":
            self.doubts["oom"] += 1
        elif not self.layout.add(region_of(self.layout, record, self.settings)):
            self.doubts["segment"] += 1

    def end_return(self, needed: int) -> None:
        """Tell who had unused memory returned: the program, or the allocator that needed `needed` bytes.

        The device was full only if what was reserved before, with what was needed, exceeds all that it is
        ever seen to give. Below that, `garbage_collection_threshold` returns memory.
        """
        before = self.layout.reserved + sum(each.size for each in self.returned)
        full = before + needed > self.reserved_peak
        collects = self.settings.garbage_collection_threshold > 0
        pressed = needed > 0 and not self.by_program and (full or collects)
        self.doubts["pressed"] += bool(self.returned) and pressed and full
        pools = {each.private for each in self.returned}
        for each in self.returned:  # the first of each pool stands for all of it
            first = each.private in pools
            pools.discard(each.private)
            self.requests.append(
                each._replace(id=ALSO if not first else PRESSED if pressed else -1)
            )
        self.returned = []


def _asked_for(frames: object) -> bool:
    """Tell whether a stack shows that the program asked for unused memory to be returned."""
    names = (
        (frame.get("name") for frame in frames if isinstance(frame, dict))
        if isinstance(frames, list)
        else ()
    )
    return "empty_cache" in names


UNKNOWN_RESERVED = "what was reserved is not known from the file"
DOUBTS = {  # what is counted -> its noun, and the sentence
    "unknown": (
        "free",
        "{} at addresses where nothing was allocated: passed over. Totals may be too small.",
    ),
    "reused": (
        "allocation",
        "{} at addresses in use: the frees between are missing and were assumed.",
    ),
    "resized": (
        "free",
        "{} of another size than the allocation at the address, whose size is used.",
    ),
    "outside": ("allocation", f"{{}} outside of all recorded segments: {UNKNOWN_RESERVED}."),
    "segment": ("event", f"{{}} of segments contradict those before them: {UNKNOWN_RESERVED}."),
    "pressed": ("time", "The device was full {}, and unused memory was returned to it."),
    "oom": ("time", "The recorded program ran out of memory {}."),
}
