"""PyTorch's caching allocator, replayed: which requests share memory, and how much the device has to give.

The rules are those of `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.3, commit
eb42ad6; the settings are those of 2.13):

- A size is rounded up to 512 bytes, or as `roundup_power2_divisions` says. Up to 1 MiB it belongs to the
  small pool, whose segments have 2 MiB, else to the large pool: requests below 10 MiB are packed in segments
  of 20 MiB, others get a segment of their size, rounded up to 2 MiB.
- Of the free blocks of the pool and stream the smallest that fits is taken, of equal ones that at the lowest
  address (from 2026 on the oldest: pytorch#178362 by block, #183591 by segment; one that was made later lies
  higher here). It is split where the rest is 512 bytes or more (small pool, expandable segments) or more
  than 1 MiB. A block that is freed merges with free neighbours of its segment.
- An expandable segment is address space as large as the device; pages of 2 MiB (small pool) or 20 MiB are
  mapped into it where a request needs them, at the lowest address where it fits.
- Blocks of `max_split_size_mb` or more are not split, and serve only requests of that size, with a limited
  rest.
- Before a segment is made, unused ones that are old are returned above `garbage_collection_threshold`. Where
  the device has no room, blocks of `max_split_size_mb` are returned, then all that is unused; then it is out
  of memory.
- A private pool (of a CUDA graph, say) shares no block with others and returns none while it lives.

Where a recording tells which block served a request, or that none did, it counts and not the rule, as long as
there is room without end: `strays` are requests for which the two differ by more than the order of equals.
`usage` tells what requests need, after what was held at one moment; the context, NCCL's buffers, workspaces
of libraries are outside of it. Nothing here needs NumPy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from daydream.errors import DaydreamError
from daydream.memory.result import OutOfMemory
from daydream.memory.settings import (
    ALLOCATE,
    DEFER,
    FREE,
    LEAST_LARGE,
    MIB,
    Request,
    Segment,
    Settings,
)


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A piece of a segment: in use, free, or address space without memory.

    Attributes:
        start: of its expandable segment, whose pages are counted from there.
        mapped: whether there is memory; always, but in expandable segments.
        grows: whether it belongs to an expandable segment.
        born: how often the pool had been searched when the block became free.
    """

    pool: Pool
    stream: int
    address: int
    size: int
    start: int = 0
    prev: Block | None = None
    next: Block | None = None
    in_use: bool = False
    mapped: bool = True
    grows: bool = False
    born: int = 0

    @property
    def extent(self) -> int:
        """The size with the address space behind it."""
        after = self.next
        return self.size + (after.size if after is not None and not after.mapped else 0)

    def split(self, size: int) -> Block:
        """Shorten the block to its first bytes and return the rest, its neighbour, in no pool yet."""
        rest = Block(self.pool, self.stream, self.address + size, self.size - size, self.start)
        rest.grows = self.grows
        rest.mapped = self.mapped
        rest.prev = self
        rest.next = self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    def merge(self) -> None:
        """Join the block, which is in no pool, with neighbours not in use that are mapped as it is."""
        before = self.prev
        after = self.next
        if before is not None and not before.in_use and before.mapped == self.mapped:
            self.pool.take(before)
            self.address = before.address
            self.size = before.size + self.size
            self.prev = before.prev
            if self.prev is not None:
                self.prev.next = self
        if after is not None and not after.in_use and after.mapped == self.mapped:
            self.pool.take(after)
            self.size = self.size + after.size
            self.next = after.next
            if self.next is not None:
                self.next.prev = self

    def extend(self, end: int) -> Block:
        """Add address space from the end of the block to an address; return the last block of the segment."""
        address = self.address + self.size
        if end <= address:
            return self
        block = Block(self.pool, self.stream, address, end - address, self.start)
        block.grows = True
        block.mapped = False
        block.prev = self
        self.next = block
        self.pool.add(block)
        return block


@dataclass(slots=True, eq=False, repr=False)
class Pool:
    """The blocks that requests of one kind may share, per stream.

    Attributes:
        private: the private pool that it is part of, 0 for none.
        small: whether it serves requests of up to 1 MiB.
        page: bytes by which its expandable segments grow.
        searched: how often a free block was looked for.
        at: what is not in use, by address.
        free: for each stream size, address and block of what is free, in this order.
        unmapped: for each stream address and block of what has no memory, in this order.
    """

    private: int
    small: bool
    page: int
    searched: int = 0
    at: dict[int, Block] = field(default_factory=dict)
    free: dict[int, list[tuple[int, int, Block]]] = field(default_factory=dict)
    unmapped: dict[int, list[tuple[int, Block]]] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        """Enter a block that is not in use."""
        self.at[block.address] = block
        if block.mapped:
            block.born = self.searched
            insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))
        else:
            insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def take(self, block: Block) -> None:
        """Remove a block that is not in use."""
        del self.at[block.address]
        if block.mapped:
            free = self.free[block.stream]
            del free[bisect_left(free, (block.size, block.address))]
        else:
            unmapped = self.unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.address,))]

    def blocks(self) -> list[Block]:
        """Return the free blocks in order of stream, size and address."""
        return [each[2] for stream in sorted(self.free) for each in self.free[stream]]


LEAST = 512  # every size is a multiple of it
LARGEST_SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_STEP = 2 * MIB
FIRST_ADDRESS = 1 << 40
ADDRESS_SPACE = (
    1 << 40
)  # of an expandable segment; PyTorch takes 9/8 of the device, not always known here


class OutOfMemoryError(Exception):
    """The device has no room for a request, even after all unused memory was returned."""

    def __init__(self, asked: int) -> None:
        super().__init__(f"{asked} bytes were asked for")
        self.asked = asked


class Allocator:
    """The allocator of one device.

    Attributes:
        allocated: bytes of the blocks that the program holds.
        reserved: bytes that the device gave.
        retries: how often unused memory was returned because the device had no room.
        ranges: start and end of every segment, in order of address.
        held: the blocks that the program holds, by their names.
        deferred: those that it has freed and another stream still uses.
        strays: how many requests the rules would have served from a block of another size.

    Args:
        settings: PYTORCH_CUDA_ALLOC_CONF, parsed.
        capacity_bytes: what the device may give; None: without end.
    """

    def __init__(self, settings: Settings | None = None, capacity_bytes: int | None = None) -> None:
        self.settings = settings or Settings()
        self.limit = (
            None if capacity_bytes is None else int(capacity_bytes * self.settings.memory_fraction)
        )
        self.allocated = self.reserved = self.retries = self.strays = 0
        self.expandable = self.settings.expandable_segments  # as the device's last segment shows it
        self._collects = self.limit is not None and self.settings.garbage_collection_threshold > 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self.held: dict[int, Block] = {}
        self.deferred: dict[int, Block] = {}
        self.ranges: list[tuple[int, int]] = []
        self._largest_split = self.settings.max_split_bytes or 1 << 62
        self._rounds = any(each > 1 for each in self.settings.roundup_divisions)

    def allocate(
        self,
        name: int,
        requested: int,
        stream: int = 0,
        private: int = 0,
        address: int | None = None,
        fresh: str = "",
    ) -> Block:
        """Return the block that serves a request.

        Args:
            name: what to call it, of which nothing is held yet.
            requested: bytes, at least one.
            stream: any number that names the stream.
            private: the private pool, 0 for none.
            address: where it was recorded.
            fresh: what the device gave for it then: "segment_alloc", "segment_map", or nothing.

        Raises:
            OutOfMemoryError: the device has no room.
        """
        size = self.rounded(requested)
        pool = self.pool(private, small=size <= LARGEST_SMALL)
        block = self._best_fit(pool, stream, size)
        if address is None or self.limit is not None:
            fresh = ""
        else:
            block = self._recorded(block, size, address, fresh)
        if block is None:
            if self._collects:
                self._collect_garbage()
            new = partial(self._new, pool, stream, size, address, fresh)
            block = new()
            if block is None and self._return_oversized(pool, stream, size):
                block = new()
            if block is None:
                self.retries += 1
                self.return_unused()
                block = new()
            if block is None:
                raise OutOfMemoryError(requested)
        else:
            block.pool.take(block)
        grows = block.grows or (self.expandable and not block.pool.private)
        if self.splits(block.pool, size, block.size - size, grows=grows):
            block.pool.add(block.split(size))
        block.in_use = True
        self.allocated += block.size
        self.held[name] = block
        return block

    def free(self, name: int) -> None:
        """Take back a block; nothing happens where it is not held, or was taken back by `return_unused`."""
        if name in self.held:
            block = self.held.pop(name)
            self.allocated -= block.size
            self._release(block)
        elif name in self.deferred:
            self._release(self.deferred.pop(name))

    def defer(self, name: int) -> None:
        """Take back a block that another stream still uses: it serves no request before `free`."""
        if name in self.held:
            block = self.deferred[name] = self.held.pop(name)
            self.allocated -= block.size

    def _release(self, block: Block) -> None:
        block.in_use = False
        block.merge()
        block.pool.add(block)

    def rounded(self, requested: int) -> int:
        """Return the size of the block that a request needs, in bytes."""
        if self._rounds:
            at = min(max(requested.bit_length() - 21, 0), len(self.settings.roundup_divisions) - 1)
            steps = self.settings.roundup_divisions[at]
            if steps > 1 and requested > LEAST * steps:
                step = (1 << (requested.bit_length() - 1)) // steps
                return -(-requested // step) * step
        return -(-requested // LEAST) * LEAST

    def _segment_size(self, size: int) -> int:
        if size <= LARGEST_SMALL:
            return SMALL_SEGMENT
        if size < LEAST_LARGE:
            return self.settings.large_segment_bytes
        return -(-size // LARGE_STEP) * LARGE_STEP

    def pool(self, private: int, *, small: bool) -> Pool:
        """Return the blocks for requests of up to 1 MiB or above it, of a private pool or (0) of none."""
        found = self._pools.get((private, small))
        if found is None:
            page = SMALL_SEGMENT if small else self.settings.large_segment_bytes
            found = self._pools[private, small] = Pool(private, small, page)
        return found

    # Blocks --------------------------------------------------------------------------------------

    def _best_fit(self, pool: Pool, stream: int, size: int) -> Block | None:
        pool.searched += 1
        free = pool.free.get(stream)
        if not free:
            return None
        at = bisect_left(free, (size,))
        if self.expandable:
            # A block at the end of what is mapped could grow: it counts with all that it could have.
            while (
                at + 1 < len(free)
                and free[at][2].grows
                and free[at + 1][2].extent < free[at][2].extent
            ):
                at += 1
        else:
            while at < len(free) and free[at][2].grows:
                at += 1
        if at >= len(free):
            return None
        found = free[at][0]
        if size < self._largest_split <= found:
            return None
        if size >= self._largest_split and found >= size + self.settings.non_split_rounding_bytes:
            return None
        return free[at][2]

    def _recorded(self, best: Block | None, size: int, address: int, fresh: str) -> Block | None:
        """Return the block that served a request as it was recorded, the best fit where that is not free."""
        there = None if fresh else next(iter(self._at(address)), best)
        if there is not None and (not there.mapped or there.size < size):
            there = best
        self.strays += (there and there.size) != (best and best.size)
        return there

    def _at(self, address: int) -> list[Block]:
        """Return what is not in use and begins at an address."""
        found = (pool.at.get(address) for pool in self._pools.values())
        return [block for block in found if block is not None]

    def splits(self, pool: Pool, size: int, rest: int, *, grows: bool) -> bool:
        """Tell whether a block, of an expandable segment or not, is split where so many bytes are left."""
        if pool.small or grows:
            return rest >= LEAST
        return size < self._largest_split and rest > LARGEST_SMALL

    # Segments ------------------------------------------------------------------------------------

    def _new(
        self, pool: Pool, stream: int, size: int, address: int | None, fresh: str
    ) -> Block | None:
        """Return a block of new memory, or None where the device has no room."""
        if fresh and not pool.private:
            self.expandable = fresh == "segment_map"
        if fresh == "segment_map" or (self.expandable and not fresh):
            return self._expand(pool, stream, size, address, fresh)
        given = self._segment_size(size)
        if not self._has_room(given):
            return None
        self.reserved += given
        return Block(pool, stream, *self._place(given, given, address))

    def _has_room(self, size: int) -> bool:
        return self.limit is None or self.reserved + size <= self.limit

    def _place(self, size: int, least: int, address: int | None) -> tuple[int, int]:
        """Return where a new segment lies, and its size: as recorded where it fits, else after all others."""
        if address is not None:
            at = bisect_left(self.ranges, (address,))
            for pool in self._pools.values():  # address space that another is recorded in
                for start, block in [each for some in pool.unmapped.values() for each in some]:
                    if start < address < start + block.size:
                        low, end = self.ranges[at - 1]
                        self.ranges[at - 1] = (low, address)
                        block.size = address - start
                        after = block.next
                        block.next = None
                        if after is not None:  # a segment of its own, too
                            after.prev = None
                            self.ranges.insert(at, (after.address, end))
            room = self.ranges[at][0] - address if at < len(self.ranges) else size
            if room >= least and (at == 0 or self.ranges[at - 1][1] <= address):
                self.ranges.insert(at, (address, address + min(size, room)))
                return address, min(size, room)
        address = max(FIRST_ADDRESS, self.ranges[-1][1] if self.ranges else 0)
        address = -(-address // LARGE_STEP) * LARGE_STEP
        self.ranges.append((address, address + size))
        return address, size

    def _expand(
        self, pool: Pool, stream: int, size: int, address: int | None, fresh: str
    ) -> Block | None:
        """Return a free block of this size at the lowest address where pages can be mapped to have it."""
        block = self._with_address_space(pool, stream, size, address, fresh)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next  # without memory: only what is free and mapped lies before it
            if after is None or not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        block.pool.take(block)
        return block

    def _with_address_space(
        self, pool: Pool, stream: int, size: int, address: int | None, fresh: str
    ) -> Block:
        places = [each for _, each in pool.unmapped.get(stream, ())]
        if fresh:
            places = self._at(address or 0)
        for block in places:
            if not block.mapped and block.prev is not None and not block.prev.in_use:
                block = block.prev  # noqa: PLW2901 - what is free before it serves, too
            room = 0
            each = block
            while room < size and not each.in_use:
                room += each.size
                if each.next is None:
                    break
                each = each.next
            if room >= size:
                return block
        space = max(ADDRESS_SPACE, size) // pool.page * pool.page + pool.page  # whole pages
        start, space = self._place(space, size, address)
        block = Block(pool, stream, start, space, start)
        block.grows = True
        block.mapped = False
        pool.add(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Put pages behind the first bytes of a block without memory, and merge it; False without room."""
        page = block.pool.page
        size = min(-(-size // page) * page, block.size)
        if not self._has_room(size):
            return False
        block.pool.take(block)
        if size < block.size:
            block.pool.add(block.split(size))
        block.mapped = True
        self.reserved += size
        block.merge()
        block.pool.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Return the whole pages of a free block of an expandable segment."""
        page = block.pool.page
        first = block.start + -(-(block.address - block.start) // page) * page
        last = block.start + (block.address + block.size - block.start) // page * page
        if first >= last:
            return
        pool = block.pool
        pool.take(block)
        if first > block.address:
            before = block
            block = block.split(first - block.address)
            pool.add(before)
        if last < block.address + block.size:
            pool.add(block.split(last - block.address))
        self.reserved -= block.size
        block.mapped = False
        block.merge()
        if block.prev is not None or block.next is not None:
            pool.add(block)
        else:  # the segment is gone
            del self.ranges[bisect_left(self.ranges, (block.address,))]

    # Returning memory to the device --------------------------------------------------------------

    def return_unused(self, private: int = 0, address: int | None = None) -> None:
        """Return all unused segments and pages, as `torch.cuda.empty_cache()` does.

        Args:
            private: the private pool that is returned, 0 for all that is in none.
            address: of what was recorded as returned; where it is unused, nothing else is, and where
                `garbage_collection_threshold` is set, nothing at all if it is not.
        """
        if address is not None and self.limit is None:
            unused = [block for pool in self._pools.values() for block in pool.blocks()]
            found = [each for each in unused if 0 <= address - each.address < each.size][:1]
            for each in found:
                self._return(each)
            if found or self.settings.garbage_collection_threshold:
                return
        while self.deferred:  # the device is waited for
            self._release(self.deferred.popitem()[1])
        for pool in self._pools.values():
            if pool.private == private:
                for block in pool.blocks():
                    self._return(block)

    def _return(self, block: Block) -> bool:
        """Return the segment of a free block, or its pages; False where parts of it are in use."""
        if block.grows:
            self._unmap(block)
            return False
        if block.prev is not None or block.next is not None:
            return False
        block.pool.take(block)
        self.reserved -= block.size
        del self.ranges[bisect_left(self.ranges, (block.address,))]
        return True

    def _return_oversized(self, pool: Pool, stream: int, size: int) -> bool:
        """Return blocks too large to be split, enough for a request; False where that is not possible."""
        if self.settings.max_split_bytes is None:
            return False
        least = max(size, self._largest_split)
        free = pool.free.get(stream, [])
        at = bisect_left(free, (least,))
        if at < len(free) and not free[at][2].grows:
            return self._return(free[at][2])
        found = 0
        for length, _, block in reversed(free[:at]):
            if found >= least or length < self._largest_split:
                break
            if not block.grows and self._return(block):
                found += length
        return found >= least

    def _collect_garbage(self) -> None:
        """Return segments that have not been used for long, oldest first, until below the threshold."""
        threshold = int(self.settings.garbage_collection_threshold * (self.limit or 0))
        target = self.reserved - threshold
        pool = self.pool(0, small=False)
        unused = [each for each in pool.blocks() if each.prev is None and each.next is None]
        while target > 0 and unused:
            mean = sum(pool.searched - each.born for each in unused) / len(unused)
            old = [each for each in unused if not each.grows and pool.searched - each.born >= mean]
            if not old:
                return
            target -= sum(each.size for each in old)
            for each in old:
                self._return(each)
            gone = set(old)
            unused = [each for each in unused if each not in gone]


def restore(allocator: Allocator, segments: Iterable[Segment]) -> None:
    """Give segments to an allocator that has served no request yet; it holds what they say, by its ids."""
    before: Block | None = None
    for segment in sorted(segments, key=lambda each: each.address):
        pool = allocator.pool(segment.private, small=segment.small)
        address = segment.address
        before = _continued(allocator, before, segment, pool)
        start = address if before is None else before.start
        allocator.reserved += segment.size
        for part in segment.blocks:
            block = Block(pool, segment.stream, address, part.size, start)
            block.grows = segment.expandable
            block.prev = before
            if before is not None:
                before.next = block
            before = block
            address = address + part.size
            if part.requested is None:
                pool.add(block)
                continue
            block.in_use = True
            if part.pending:
                allocator.deferred[part.id] = block
            else:
                allocator.held[part.id] = block
                allocator.allocated += part.size
        if not segment.expandable:
            allocator.ranges.append((segment.address, address))
            before = None
    _end(allocator, before, 1 << 64)


def _continued(
    allocator: Allocator, before: Block | None, segment: Segment, pool: Pool
) -> Block | None:
    """Return the last block of the expandable segment that a range belongs to, None if it is another one.

    The address space of one segment is in one piece: what lies between two of its ranges has no memory.
    """
    if before is None:
        return None
    distance = segment.address - before.start
    same = segment.expandable and before.pool is pool and before.stream == segment.stream
    if not same or distance % pool.page or distance >= ADDRESS_SPACE:
        _end(allocator, before, segment.address)
        return None
    return before.extend(segment.address)


def _end(allocator: Allocator, before: Block | None, limit: int) -> None:
    """End an expandable segment with the address space that it may still grow into."""
    if before is not None:
        page = before.pool.page
        end = min(limit, before.start + ADDRESS_SPACE // page * page + page)
        end -= (end - before.start) % page
        before.extend(end)
        allocator.ranges.append((before.start, max(end, before.address + before.size)))


@dataclass(frozen=True)
class Usage:
    """What a sequence of requests needs, in bytes; up to the failing request where it is out of memory.

    Attributes:
        peak_allocated_bytes: most that the program held at once, sizes rounded up.
        peak_reserved_bytes: most that the device had given at once.
        peak_index: the request at which the allocated peak was reached first, -1 if none exceeds the start.
        reserved_at_peak_bytes: what the device had given then.
        retries: how often all unused memory was returned because there was no room.
        out_of_memory: where it ended, None if all requests were served.
        strays: how many requests were recorded where the allocator's rules do not place them.
        held: what the program holds at the end: bytes of the block of each id.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_index: int
    reserved_at_peak_bytes: int
    retries: int = 0
    out_of_memory: OutOfMemory | None = None
    strays: int = 0
    held: Mapping[int, int] = field(default_factory=dict)


def usage(
    requests: Sequence[Request],
    *,
    settings: Settings | None = None,
    capacity_bytes: int | None = None,
    start: Iterable[Segment] = (),
) -> Usage:
    """Return what a sequence of requests needs.

    Args:
        requests: in program order; frees of ids that hold nothing are passed over.
        settings: PYTORCH_CUDA_ALLOC_CONF, parsed; by default PyTorch's own.
        capacity_bytes: what the device may give to the allocator; None: without end.
        start: what the allocator holds at the beginning, with an id for each block in use.

    Raises:
        DaydreamError: an id is allocated that holds memory already.
    """
    allocator = Allocator(settings, capacity_bytes)
    restore(allocator, start)
    peak = allocator.allocated
    reserved = allocator.reserved
    at = -1
    reserved_then = reserved
    failed = None
    held = allocator.held
    for index, request in enumerate(requests):
        if request.what != ALLOCATE:
            _serve(allocator, request)
            continue
        if request.id in held:
            raise DaydreamError(
                f"request {index} allocates {request.id}, which is allocated already"
            )
        try:
            allocator.allocate(*request[1:])
        except OutOfMemoryError as error:
            reserved_now = allocator.reserved
            failed = OutOfMemory(
                index + 1, len(requests), error.asked, allocator.allocated, reserved_now
            )
            break
        reserved = max(reserved, allocator.reserved)
        if allocator.allocated > peak:
            peak = allocator.allocated
            at = index
            reserved_then = allocator.reserved
    sizes = {name: block.size for name, block in held.items()}
    how = allocator.retries, failed, allocator.strays, sizes
    return Usage(peak, reserved, at, reserved_then, *how)


def _serve(allocator: Allocator, request: Request) -> None:
    what = request.what
    name = request.id
    if what == FREE:
        allocator.free(name)
    elif what == DEFER:
        allocator.defer(name)
    else:
        allocator.return_unused(request.private, request.address)
