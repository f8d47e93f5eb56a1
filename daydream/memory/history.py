"""What a recording asked of the allocator, request by request, and which peaks it saw itself.

The events are those of an allocator's own history, as snapshots keep them; what cannot be is counted. A snapshot
also tells which regions the device gave at the end and what is held in them: with the events undone, that is what
the allocator held when the recording began.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

from daydream.memory.allocator import LARGEST_SMALL, SMALL_SEGMENT, Allocator
from daydream.memory.replay import ALLOCATE, DEFER, EMPTY_CACHE, FREE, Part, Request, Segment
from daydream.memory.settings import Settings
from daydream.text import counted

LARGEST = 1 << 48  # bytes of a request: more than any device has, by far
LAST_ADDRESS = 1 << 64
FREES = frozenset({"free", "free_requested", "free_completed"})
SEGMENTS = frozenset({"segment_alloc", "segment_free", "segment_map", "segment_unmap"})
WITHOUT_MEMORY = frozenset({"snapshot", "user_defined", "annotate"})


class Record(NamedTuple):
    """An event.

    Attributes:
        action: `alloc`, one of `FREES` or `SEGMENTS`, or `oom`.
        address: where; of `oom` the bytes that the device had left, -1 where that is unknown.
        size: bytes asked for; of segments, what the device gave or got back.
        stream: any number that names it.
        private: the private pool (of a CUDA graph, say), 0 for none.
        frames: the stack, as it was recorded, or None.

    """

    action: str
    address: int
    size: int
    stream: int = 0
    private: int = 0
    frames: object = None


class Records:
    """Events as they are read.

    Attributes:
        kept: those that can be, in order.
        doubts: how many events could not be read, by what was wrong with them.

    """

    def __init__(self) -> None:
        self.kept: list[Record] = []
        self.doubts: Counter[str] = Counter()
        self._pools: dict[tuple[object, object], int] = {(0, 0): 0}

    def add(
        self, action: object, address: object, size: object, stream: object, more: Mapping[str, Any]
    ) -> None:
        """Keep an event, or count why it cannot be kept."""
        if not isinstance(action, str):
            self.doubts["action"] += 1
        elif action in WITHOUT_MEMORY:
            return
        elif action not in FREES | SEGMENTS | {"alloc", "oom"}:
            self.doubts["action"] += 1
        elif not whole(size) or not whole(stream):
            self.doubts["fields"] += 1
        elif not 0 < size < LARGEST:
            self.doubts["size"] += 1
        elif action == "oom":
            free = more.get("device_free")
            self.kept.append(Record("oom", free if whole(free) else -1, size, stream))
        elif not whole(address) or not 0 <= address < LAST_ADDRESS:
            self.doubts["fields"] += 1
        else:
            private = self.private(more.get("pool_id"))
            self.kept.append(Record(action, address, size, stream, private, more.get("frames")))

    def private(self, pool: object) -> int:
        """Return a number for the private pool that an id of two numbers names, 0 for none."""
        if not isinstance(pool, list | tuple) or len(pool) != 2 or not all(map(whole, pool)):
            return 0
        return self._pools.setdefault((pool[0], pool[1]), len(self._pools))


def whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number; true and false are none."""
    return type(value) is int


def normal(records: Iterable[Record]) -> list[Record]:
    """Return events in which a free has one name: without `free_completed` there are only plain frees."""
    found = list(records)
    if any(record.action == "free_completed" for record in found):
        return found
    return [
        each._replace(action="free") if each.action == "free_requested" else each for each in found
    ]


@dataclass(slots=True)
class Region:
    """A segment, or a range of an expandable one that has memory."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool = False
    private: int = 0

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size


@dataclass(slots=True)
class Held:
    """A block in use; `frames` is the stack that allocated it, as it was recorded, or None."""

    address: int
    size: int
    requested: int
    pending: bool = False
    frames: object = None

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size


class Layout:
    """Regions and blocks in order of address."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        self.reserved = 0
        self._addresses: list[int] = []  # of what is held
        self._starts: list[int] = []  # of the regions
        self._regions: dict[int, Region] = {}

    # Regions -------------------------------------------------------------------------------------

    def regions(self) -> list[Region]:
        """Return the regions in order of address."""
        return [self._regions[start] for start in self._starts]

    def region_at(self, address: int) -> Region | None:
        """Return the region that an address lies in."""
        at = bisect_right(self._starts, address)
        region = self._regions[self._starts[at - 1]] if at else None
        return region if region is not None and address < region.end else None

    def add(self, region: Region) -> bool:
        """Enter a region, joined with those of its expandable segment next to it; False if it overlaps."""
        at = bisect_left(self._starts, region.address)
        before = self._regions[self._starts[at - 1]] if at else None
        after = self._regions[self._starts[at]] if at < len(self._starts) else None
        if (before is not None and before.end > region.address) or (
            after is not None and after.address < region.end
        ):
            return False
        self.reserved += region.size
        if after is not None and _continues(region, after):
            region.size += after.size
            del self._regions[self._starts.pop(at)]
        if before is not None and _continues(before, region):
            before.size += region.size
        else:
            self._starts.insert(at, region.address)
            self._regions[region.address] = region
        return True

    def remove(self, address: int, size: int) -> bool:
        """Take out a region or, of an expandable segment, a part of one; False if there is none such."""
        region = self.region_at(address)
        if region is None or address + size > region.end:
            return False
        whole = region.address == address and region.size == size
        if not (whole or region.expandable) or self.first_in(address, address + size) is not None:
            return False
        self.reserved -= size
        end = region.end
        if region.address < address:
            region.size = address - region.address
        else:
            del self._regions[region.address]
            del self._starts[bisect_left(self._starts, address)]
        if address + size < end:
            rest = Region(
                address + size,
                end - address - size,
                region.stream,
                region.small,
                True,
                region.private,
            )
            insort(self._starts, rest.address)
            self._regions[rest.address] = rest
        return True

    # What is held --------------------------------------------------------------------------------

    def first_in(self, address: int, end: int) -> Held | None:
        """Return the first block that lies, at least in part, between two addresses."""
        at = bisect_right(self._addresses, address)
        before = self.held[self._addresses[at - 1]] if at else None
        if before is not None and before.end > address:
            return before
        if at < len(self._addresses) and self._addresses[at] < end:
            return self.held[self._addresses[at]]
        return None

    def hold(self, block: Held) -> None:
        """Enter a block, where none is."""
        insort(self._addresses, block.address)
        self.held[block.address] = block

    def release(self, address: int) -> Held:
        """Take out the block at an address, which there must be."""
        del self._addresses[bisect_left(self._addresses, address)]
        return self.held.pop(address)

    def free_until(self, address: int, region: Region) -> int:
        """Return where the next block in use of a region begins after an address, or the region ends."""
        at = bisect_right(self._addresses, address)
        return min(self._addresses[at], region.end) if at < len(self._addresses) else region.end

    def neighbours(self, block: Held) -> tuple[Held | None, Held | None]:
        """Return the blocks in use before and after one."""
        at = bisect_left(self._addresses, block.address)
        before = self.held[self._addresses[at - 1]] if at else None
        after = self.held[self._addresses[at + 1]] if at + 1 < len(self._addresses) else None
        return before, after

    # A state -------------------------------------------------------------------------------------

    def segments(self) -> tuple[list[Segment], list[Held]]:
        """Return the state as segments, and the blocks in use in the order of their ids there."""
        found: list[Segment] = []
        blocks: list[Held] = []
        for region in self.regions():
            parts: list[Part] = []
            address = region.address
            for at in self._addresses[
                bisect_left(self._addresses, region.address) : bisect_left(
                    self._addresses, region.end
                )
            ]:
                block = self.held[at]
                if block.address > address:
                    parts.append(Part(block.address - address))
                parts.append(Part(block.size, block.requested, len(blocks), block.pending))
                blocks.append(block)
                address = block.end
            if address < region.end:
                parts.append(Part(region.end - address))
            found.append(
                Segment(
                    region.address,
                    region.stream,
                    region.small,
                    tuple(parts),
                    region.expandable,
                    region.private,
                )
            )
        return found, blocks


def _continues(before: Region, after: Region) -> bool:
    same = (
        before.stream == after.stream
        and before.small == after.small
        and before.private == after.private
    )
    return before.expandable and after.expandable and same and before.end == after.address


def with_tail(layout: Layout, region: Region, block: Held) -> None:
    """Give a block, and the one before it, the rest that was too small to be split off.

    In the large pool a rest of 1 MiB or less stays with its block, and no block is as small as that: so a gap
    of that size belongs to the block before it.
    """
    if region.small or region.expandable:
        return
    before, after = layout.neighbours(block)
    end = region.end if after is None else min(after.address, region.end)
    if end - block.end <= LARGEST_SMALL:
        block.size = end - block.address
    if (
        before is not None
        and before.address >= region.address
        and block.address - before.end <= LARGEST_SMALL
    ):
        before.size = block.address - before.address


def region_of(layout: Layout, record: Record, settings: Settings) -> Region:
    """Return the region that an event of a segment is about.

    A segment of 2 MiB is of the small pool: the smallest of the large pool has 10 MiB. Pages of an expandable
    segment belong to the pool of those that they touch, else to the one whose pages they are.
    """
    small = record.size == SMALL_SEGMENT
    expandable = record.action in {"segment_map", "segment_unmap"}
    if expandable:
        sides = (
            layout.region_at(record.address - 1),
            layout.region_at(record.address + record.size),
        )
        touching = [
            side for side in sides if side and side.expandable and side.stream == record.stream
        ]
        small = touching[0].small if touching else record.size % settings.large_segment_bytes > 0
    return Region(record.address, record.size, record.stream, small, expandable, record.private)


def undo(layout: Layout, records: list[Record], settings: Settings) -> int:
    """Turn the state at the end of a recording into that at its beginning.

    The size of a block that was freed meanwhile is that of its request, rounded up, with the rest that was
    too small to be split off, where its neighbours show one; a request of `max_split_size_mb` or more has a
    whole segment.

    Args:
        layout: the state at the end; it is changed.
        records: all events, in order; those of segments get the private pool that the end tells.
        settings: those of the recording.

    Returns:
        How many events contradict the state after them, and were passed over.

    """
    sizes = Allocator(settings)
    contradictions = 0
    for at, record in reversed(list(enumerate(records))):
        action, held = record.action, layout.held.get(record.address)
        if action == "alloc":
            possible = held is not None
            if possible:
                layout.release(record.address)
        elif action in {"free", "free_completed"}:
            block = _held_again(layout, record, sizes)
            possible = block is not None
            if block is not None:
                block.pending = action == "free_completed"
        elif action == "free_requested":
            possible = held is not None and held.pending
            if held is not None:
                held.pending = False
        elif action in {"segment_alloc", "segment_map"}:
            if (region := layout.region_at(record.address)) is not None:
                records[at] = record._replace(private=record.private or region.private)
            possible = layout.remove(record.address, record.size)
        elif action in {"segment_free", "segment_unmap"}:
            possible = layout.add(region_of(layout, record, settings))
        else:
            continue
        contradictions += not possible
    return contradictions


def _held_again(layout: Layout, record: Record, sizes: Allocator) -> Held | None:
    """Enter a block as it was before it was freed, and return it; None where it cannot have been there."""
    region = layout.region_at(record.address)
    if region is None:
        return None
    size = sizes.rounded(record.size)
    most = sizes.settings.max_split_bytes
    if most is not None and size >= most and not region.expandable:
        size = max(size, region.size)
    end = record.address + size
    if end > region.end or layout.first_in(record.address, end) is not None:
        return None
    block = Held(record.address, size, record.size)
    layout.hold(block)
    with_tail(layout, region, block)
    return block


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
