"""Where a recording says that memory lies: regions that the device gave, and what is held in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from daydream.memory.allocator import LARGEST_SMALL, SMALL_SEGMENT
from daydream.memory.records import Record
from daydream.memory.segments import Part, Segment
from daydream.memory.settings import Settings


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
