"""What a recording asked of the allocator, request by request, and what it held when the recording began.

The events are those of an allocator's own history, as snapshots keep them, and are read forward; what cannot be is
counted. A snapshot also tells the segments at its end, and the blocks in them. The first event at an address tells
whether a block was there at the beginning: if it is a free there was one; without any event there was what is
there at the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, TypeGuard

from daydream.memory.allocator import LARGEST_SMALL, SMALL_SEGMENT, Allocator, Usage, usage
from daydream.memory.settings import (
    ALLOCATE,
    DEFER,
    EMPTY_CACHE,
    FREE,
    Part,
    Request,
    Segment,
    Settings,
)
from daydream.text import counted

LARGEST = 1 << 48  # bytes of a request: more than any device has, by far
LAST_ADDRESS = 1 << 64
BLOCKS = frozenset({"alloc", "free", "free_requested", "free_completed"})
GIVEN = frozenset({"segment_alloc", "segment_map"})
RETURNED = frozenset({"segment_free", "segment_unmap"})
WITHOUT_MEMORY = frozenset({"snapshot", "user_defined", "annotate"})


class Record(NamedTuple):
    """An event.

    Attributes:
        action: one of `BLOCKS`, `GIVEN` or `RETURNED`, or `oom`.
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


@dataclass
class Records:
    """Events as they are read.

    Attributes:
        kept: those that can be, in order.
        doubts: how many events could not be read, by what was wrong with them.
        pools: the number of each private pool by its id.

    """

    kept: list[Record] = field(default_factory=list)
    doubts: Counter[str] = field(default_factory=Counter)
    pools: dict[tuple[object, object], int] = field(default_factory=lambda: {(0, 0): 0})

    def add(
        self, action: object, address: object, size: object, stream: object, more: Mapping[str, Any]
    ) -> None:
        """Keep an event, or count why it cannot be kept."""
        if isinstance(action, str) and action in WITHOUT_MEMORY:
            return
        if not isinstance(action, str) or action not in BLOCKS | GIVEN | RETURNED | {"oom"}:
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
        return self.pools.setdefault((pool[0], pool[1]), len(self.pools))


def whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number; true and false are none."""
    return type(value) is int


@dataclass(slots=True)
class Place:
    """Bytes of a device."""

    address: int
    size: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size


@dataclass(slots=True)
class Region(Place):
    """A segment, or a range of an expandable one that has memory."""

    stream: int
    small: bool
    expandable: bool = False
    private: int = 0

    def goes_on(self, after: Region) -> bool:
        """Tell whether another one is of the same expandable segment and begins where this ends."""
        kinds = [(each.expandable, each.stream, each.small, each.private) for each in (self, after)]
        return self.expandable and kinds[0] == kinds[1] and self.end == after.address


@dataclass(slots=True)
class Held(Place):
    """A block in use; `frames` is the stack that allocated it, as it was recorded, or None."""

    requested: int
    pending: bool = False
    frames: object = None


def _address(region: Region) -> int:
    return region.address


class Layout:
    """Regions and blocks in use in order of address."""

    def __init__(
        self, regions: Iterable[Region] = (), held: Mapping[int, Held] | None = None
    ) -> None:
        self.regions = [replace(region) for region in regions]
        self.held = dict(held or {})
        self._addresses = sorted(self.held)

    def region_at(self, address: int) -> Region | None:
        """Return the region that an address lies in."""
        at = bisect_right(self.regions, address, key=_address)
        region = self.regions[at - 1] if at else None
        return region if region is not None and address < region.end else None

    def add(self, region: Region) -> bool:
        """Enter a region, joined with those of its expandable segment next to it; False if it overlaps."""
        at = bisect_left(self.regions, region.address, key=_address)
        near = self.regions[max(at - 1, 0) : at + 1]
        if any(each.address < region.end and region.address < each.end for each in near):
            return False
        self.regions.insert(at, region)
        for low in (at, at - 1):
            if (
                low >= 0
                and low + 1 < len(self.regions)
                and self.regions[low].goes_on(self.regions[low + 1])
            ):
                self.regions[low].size += self.regions.pop(low + 1).size
        return True

    def remove(self, address: int, size: int) -> Region | None:
        """Take out a region or, of an expandable segment, a part, and return what it was of; None if none."""
        region = self.region_at(address)
        end = address + size
        if region is None or end > region.end:
            return None
        if not region.expandable and (region.address, region.size) != (address, size):
            return None
        at = bisect_left(self.regions, region.address, key=_address)
        sides = ((region.address, address), (end, region.end))
        self.regions[at : at + 1] = [
            replace(region, address=low, size=high - low) for low, high in sides if high > low
        ]
        return region

    def first_in(self, address: int, end: int) -> Held | None:
        """Return the first block that lies, at least in part, between two addresses."""
        at = bisect_right(self._addresses, address)
        near = (self.held[each] for each in self._addresses[max(at - 1, 0) : at + 1])
        return next((block for block in near if block.address < end and block.end > address), None)

    def hold(self, block: Held) -> None:
        """Enter a block, where none is."""
        insort(self._addresses, block.address)
        self.held[block.address] = block

    def release(self, address: int) -> Held:
        """Take out the block at an address, which there must be."""
        del self._addresses[bisect_left(self._addresses, address)]
        return self.held.pop(address)

    def segments(self) -> list[Segment]:
        """Return it as segments; blocks in use are numbered in order of address."""
        found = []
        blocks = [self.held[address] for address in self._addresses]
        for region in self.regions:
            parts: list[Part] = []
            address = region.address
            low = bisect_left(self._addresses, region.address)
            for name in range(low, bisect_left(self._addresses, region.end)):
                block = blocks[name]
                if block.address > address:
                    parts.append(Part(block.address - address))
                parts.append(Part(block.size, block.requested, name, block.pending))
                address = block.end
            if address < region.end:
                parts.append(Part(region.end - address))
            how = region.expandable, region.private
            found.append(Segment(region.address, region.stream, region.small, tuple(parts), *how))
        return found


def region_of(layout: Layout, record: Record, settings: Settings) -> Region:
    """Return the region that an event of a segment is about.

    A segment of 2 MiB is of the small pool: the smallest of the large pool has 10 MiB. Pages of an expandable
    segment belong to the pool of those that they touch, else to the one whose pages they are.
    """
    small = record.size == SMALL_SEGMENT
    expandable = record.action in {"segment_map", "segment_unmap"}
    if expandable:
        sides = layout.region_at(record.address - 1), layout.region_at(record.address + record.size)
        touching = [
            side for side in sides if side and side.expandable and side.stream == record.stream
        ]
        small = touching[0].small if touching else record.size % settings.large_segment_bytes > 0
    return Region(record.address, record.size, record.stream, small, expandable, record.private)


def beginning(layout: Layout, records: list[Record], settings: Settings) -> tuple[Layout, int]:
    """Return what was held when a recording began, and how many of its events contradict the end.

    Args:
        layout: the state at the end.
        records: all events, in order; those of segments get the private pool that the end tells.
        settings: those of the recording, by which requests are rounded: the events tell no sizes of blocks.
    """
    start = Layout(layout.regions)
    odd = 0
    for at, record in reversed(list(enumerate(records))):
        if record.action in GIVEN:
            region = start.remove(record.address, record.size)
            odd += region is None
            if region is not None:
                records[at] = record._replace(private=record.private or region.private)
        elif record.action in RETURNED:
            odd += not start.add(region_of(start, record, settings))
    return start, odd + _hold_first(start, layout.held, records, Allocator(settings))


def _hold_first(
    start: Layout, held: Mapping[int, Held], records: Sequence[Record], sizes: Allocator
) -> int:
    """Enter what is held at the beginning, by what is held at the end; return how many events contradict that."""
    first: dict[int, Record] = {}
    last: dict[int, Record] = {}
    for record in records:
        if record.action in BLOCKS:
            first.setdefault(record.address, record)
            last[record.address] = record
    there = {"alloc", "free_requested"}
    odd = sum((record.action in there) != (address in held) for address, record in last.items())
    blocks = [block for address, block in held.items() if address not in first]
    most = sizes.settings.max_split_bytes or LARGEST
    for address, record in first.items():
        if record.action == "free_requested" and last[address] is record and address in held:
            blocks.append(replace(held[address], pending=False))
        elif record.action != "alloc":
            size = sizes.rounded(record.size)
            region = start.region_at(address)
            if region is not None and size >= most and not region.expandable:
                size = max(size, region.size)
            blocks.append(Held(address, size, record.size, record.action == "free_completed"))
    for block in blocks:
        region = start.region_at(block.address)
        fits = region is not None and block.end <= region.end
        if fits and start.first_in(block.address, block.end) is None:
            start.hold(block)
        else:
            odd += 1
    # In the large pool a rest of 1 MiB or less stays with its block, and no block is as small as that.
    ordered = [start.held[address] for address in sorted(start.held)]
    for block, after in zip(ordered, [*ordered[1:], None], strict=False):
        region = start.region_at(block.address)
        if region is not None and not (region.small or region.expandable):
            until = min(region.end, region.end if after is None else after.address)
            if until - block.end <= LARGEST_SMALL:
                block.size = until - block.address
    return odd


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
        recorded_reserved_bytes: most that was reserved at once; None where segments are missing.
        doubts: sentences on what is missing or contradicts itself.
        counted_bytes: most that was allocated at once, where PyTorch's own count of it is there.

    """

    device: int
    settings: Settings
    start: list[Segment]
    requests: list[Request]
    frames: list[object]
    recorded_reserved_bytes: int | None
    doubts: list[str] = field(default_factory=list)
    counted_bytes: int | None = None

    @cached_property
    def replayed(self) -> Usage:
        """What the requests need as they were recorded: with the settings, at the addresses."""
        return usage(self.requests, settings=self.settings, start=self.start)

    @property
    def recorded_allocated_bytes(self) -> int:
        """The most that was allocated at once."""
        return (
            self.replayed.peak_allocated_bytes if self.counted_bytes is None else self.counted_bytes
        )


class Reading:
    """A recording while its events are read, first to last; `layout` is the state at its beginning."""

    def __init__(self, layout: Layout, records: Sequence[Record], settings: Settings) -> None:
        self.start = layout
        self.settings = settings
        self.layout = Layout(layout.regions, layout.held)
        self.blocks = {
            address: name for name, address in enumerate(sorted(layout.held))
        }  # ids, by address
        self.pending = {address for address, block in layout.held.items() if block.pending}
        self.frames = [layout.held[address].frames for address in self.blocks]
        self.reserved = sum(region.size for region in layout.regions)
        changes = (
            each.size * ((each.action in GIVEN) - (each.action in RETURNED)) for each in records
        )
        self.reserved_peak = max(accumulate(changes, initial=self.reserved))
        self.returned: list[Request] = []  # what has just been returned to the device
        self.fresh = ""  # what has just been got from it
        self.by_program = False  # whether the program asked for that
        self.requests: list[Request] = []
        self.doubts: Counter[str] = Counter()
        self.asked_in_vain: set[int] = set()  # addresses of frees that nothing was found for
        for record in records:
            if record.action in BLOCKS:
                self.end_return(0)
                (self.allocate if record.action == "alloc" else self.free)(record)
            else:
                self.move(record)
        self.end_return(0)

    def history(self, device: int) -> History:
        """Return what was read, of a device."""
        complete = not self.doubts["outside"] and not self.doubts["segment"]
        doubts = [
            text.format(counted(self.doubts[key], one))
            for key, (one, text) in DOUBTS.items()
            if self.doubts[key]
        ]
        return History(
            device,
            self.settings,
            self.start.segments(),
            self.requests,
            self.frames,
            self.reserved_peak if complete else None,
            doubts,
        )

    def allocate(self, record: Record) -> None:
        """Read an allocation; what else is held there was freed, and the event of that is missing."""
        end = record.address + record.size
        while (other := self.layout.first_in(record.address, end)) is not None:
            self.doubts["reused"] += 1
            self.forget(other.address, FREE)
        region = self.layout.region_at(record.address)
        if region is None or end > region.end:
            self.doubts["outside"] += 1
        private = record.private or (region.private if region is not None else 0)
        name = len(self.frames)
        self.requests.append(
            Request(
                ALLOCATE,
                name,
                record.size,
                record.stream,
                private,
                record.address,
                self.fresh,
            )
        )
        self.frames.append(record.frames)
        self.fresh = ""
        self.blocks[record.address] = name
        # Overlaps are judged by what was asked for: how large the block is, is not recorded.
        self.layout.hold(Held(record.address, record.size, record.size))

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
            self.forget(record.address, FREE)
        elif record.address in self.pending:
            self.doubts["unknown"] += 1
        else:
            self.forget(record.address, DEFER)

    def forget(self, address: int, what: int) -> None:
        """Ask for the free of a block."""
        self.requests.append(Request(what, self.blocks[address]))
        if what == FREE:
            self.layout.release(address)
            del self.blocks[address]
            self.pending.discard(address)
        else:
            self.pending.add(address)

    def move(self, record: Record) -> None:
        """Read what happened between the allocator and the device."""
        if record.action in RETURNED:
            region = self.layout.region_at(record.address)
            private = record.private or (region.private if region is not None else 0)
            held = self.layout.first_in(record.address, record.address + record.size)
            odd = held is not None or self.layout.remove(record.address, record.size) is None
            self.doubts["segment"] += odd
            self.reserved -= 0 if odd else record.size
            self.returned.append(
                Request(
                    EMPTY_CACHE,
                    ALSO,
                    record.size,
                    record.stream,
                    private,
                    record.address,
                )
            )
            frames = record.frames if isinstance(record.frames, list) else []
            names = [frame.get("name") for frame in frames if isinstance(frame, dict)]
            self.by_program = (
                "empty_cache" in names
            )  # the program asked for unused memory to be returned
            return
        self.end_return(record.size)
        self.fresh = "" if record.action == "oom" else record.action
        if record.action == "oom":
            self.doubts["oom"] += 1
        elif self.layout.add(region_of(self.layout, record, self.settings)):
            self.reserved += record.size
        else:
            self.doubts["segment"] += 1

    def end_return(self, needed: int) -> None:
        """Tell who had unused memory returned: the program, or the allocator that needed `needed` bytes.

        The device was full only if what was reserved before, with what was needed, exceeds all that it is
        ever seen to give. Below that, `garbage_collection_threshold` returns memory.
        """
        before = sum(each.size for each in self.returned) + self.reserved
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
