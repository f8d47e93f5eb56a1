"""An allocator as it was when a recording began."""

from __future__ import annotations

from collections.abc import Iterable

from daydream.memory.allocator import ADDRESS_SPACE, Allocator
from daydream.memory.blocks import Block, Pool
from daydream.memory.segments import Segment


def restore(allocator: Allocator, segments: Iterable[Segment]) -> None:
    """Give segments to an allocator that has served no request yet; it holds what they say, by its ids."""
    before: Block | None = None
    for segment in sorted(segments, key=lambda each: each.address):
        pool, address = allocator.pool(segment.private, small=segment.small), segment.address
        before = _continued(allocator, before, segment, pool)
        start = address if before is None else before.start
        allocator.reserved += segment.size
        for part in segment.blocks:
            block = Block(pool, segment.stream, address, part.size, start)
            block.grows, block.prev = segment.expandable, before
            if before is not None:
                before.next = block
            before, address = block, address + part.size
            if part.requested is None:
                pool.add(block)
                continue
            block.in_use, block.requested = True, part.requested
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
