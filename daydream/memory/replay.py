"""What the allocator needs for a sequence of allocations and frees: peaks, fragmentation, out of memory.

It may go on from what it held at one moment: segments, and the blocks that they are divided into. Nothing here
needs NumPy, so that a snapshot is answered without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from daydream.errors import DaydreamError
from daydream.memory.allocator import ADDRESS_SPACE, Allocator, Block, OutOfMemoryError, Pool
from daydream.memory.result import OutOfMemory
from daydream.memory.settings import Settings


class Part(NamedTuple):
    """A block of a segment.

    Attributes:
        size: bytes.
        requested: bytes that the program asked for, None where the block is free.
        id: what the events call it, -1 where it is free.
        pending: whether the program has freed it, and another stream still uses it.

    """

    size: int
    requested: int | None = None
    id: int = -1
    pending: bool = False


class Segment(NamedTuple):
    """Memory that the device gave in one piece, or a range of an expandable segment that has memory.

    Attributes:
        address: where it starts.
        stream: whose requests it serves.
        small: whether it serves requests of up to 1 MiB.
        blocks: the whole of it, in order of address.
        expandable: whether it may grow in place.
        private: the private pool that it belongs to, 0 for none.

    """

    address: int
    stream: int
    small: bool
    blocks: tuple[Part, ...]
    expandable: bool = False
    private: int = 0

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return sum(part.size for part in self.blocks)


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
            block.requested = part.requested
            allocator.requested += part.requested
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


ALLOCATE, FREE, DEFER, EMPTY_CACHE = range(4)  # what a request asks for


class Request(NamedTuple):
    """What a program asks of the allocator.

    Attributes:
        what: ALLOCATE; FREE; DEFER: freed, but another stream uses it until FREE; EMPTY_CACHE: return unused
            memory to the device.
        id: any number that names the allocation.
        size: bytes asked for, of ALLOCATE.
        stream: any number that names the stream, of ALLOCATE.
        private: the private pool (of a CUDA graph, say), 0 for none.
        address: where it was recorded; a new segment is placed there if it can be.
        fresh: what the device gave for it when it was recorded, as `Allocator.allocate` has it.

    """

    what: int
    id: int = -1
    size: int = 0
    stream: int = 0
    private: int = 0
    address: int | None = None
    fresh: str = ""


@dataclass(frozen=True)
class Usage:
    """What a sequence of requests needs, in bytes; up to the failing request where it is out of memory.

    Attributes:
        peak_allocated_bytes: most that the program held at once, sizes rounded up.
        peak_requested_bytes: most that it asked for at once.
        peak_reserved_bytes: most that the device had given at once.
        peak_index: the request at which the allocated peak was reached first, -1 if none exceeds the start.
        reserved_at_peak_bytes: what the device had given then.
        retries: how often all unused memory was returned because there was no room.
        out_of_memory: where it ended, None if all requests were served.
        strays: how many requests were recorded where the allocator's rules do not place them.
        held: what the program holds at the end: bytes of the block of each id.

    """

    peak_allocated_bytes: int
    peak_requested_bytes: int
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
    requested = allocator.requested
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
        requested = max(requested, allocator.requested)
        reserved = max(reserved, allocator.reserved)
        if allocator.allocated > peak:
            peak = allocator.allocated
            at = index
            reserved_then = allocator.reserved
    sizes = {name: block.size for name, block in held.items()}
    how = allocator.retries, failed, allocator.strays, sizes
    return Usage(peak, requested, reserved, at, reserved_then, *how)


def _serve(allocator: Allocator, request: Request) -> None:
    what = request.what
    name = request.id
    if what == FREE:
        allocator.free(name)
    elif what == DEFER:
        allocator.defer(name)
    else:
        allocator.return_unused(request.private, request.address)
