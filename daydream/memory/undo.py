"""What an allocator held when a recording began: its state at the end with the events undone."""

from __future__ import annotations

from daydream.memory.allocator import Allocator
from daydream.memory.layout import Held, Layout, region_of, with_tail
from daydream.memory.records import Record
from daydream.memory.settings import Settings


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
