"""Reserved memory from what the allocator held before the recording: all of it by hand."""

from __future__ import annotations

import pytest
from recordings import PARAMETER, Recording

from daydream.memory.allocations import BEFORE
from daydream.memory.lifetimes import allocations
from daydream.memory.report import memory_of
from daydream.memory.reserved import reserved_for, start_of

MIB = 2**20
WEIGHT = {**PARAMETER, "device": "cuda:0", "shape": [3 * MIB // 4], "gradient_bytes": 0}  # 3 MiB


def segment(address, *blocks, pool="large", **more):
    """A segment of blocks: bytes in use, or free where below 0."""
    parts = [[abs(size), None if size < 0 else size] for size in blocks]
    total = sum(size for size, _ in parts)
    return {"address": address, "total_size": total, "pool": pool, "blocks": parts, **more}


def recorded(tmp_path, *segments, asked=11 * MIB):
    """A GPU that holds 3 MiB of a weight and 1 MiB of something, and asks for `asked` bytes."""
    recording = Recording(device=0, before=4 * MIB)
    recording.inside("aten::mm", ("large", asked), "large")
    trace = recording.trace(tmp_path)
    trace.metadata["parameters"] = [WEIGHT]
    trace.metadata["held_before"] = {
        "0": {"allocated_bytes": 4 * MIB, "reserved_bytes": 2**24, "segments": list(segments)}
    }
    return trace


def reserved(trace, **how):
    return reserved_for(allocations(trace), 0, 0, **how).peak_reserved_bytes


# A weight at the start of 20 MiB, and 1 MiB of something at their end: 16 MiB are free between them.
APART = segment(1 << 30, 3 * MIB, -16 * MIB, 1 * MIB)


def test_what_lay_cached_counts(tmp_path):
    trace = recorded(tmp_path, APART, segment(2 << 30, -64 * MIB))

    assert reserved(trace) == 84 * MIB
    device, *_ = memory_of(trace).devices
    assert device.peak_reserved_bytes == 2**24  # the recorded total counts, whatever a replay says
    assert device.peak_allocated_bytes == 15 * MIB


def test_rows_lie_where_they_are_freed_else_in_blocks_of_their_size(tmp_path):
    recording = Recording(device=0, before=4 * MIB)
    recording.held["old"] = (5 << 30, MIB)  # from before the recording, and freed in it
    recording.before = 3 * MIB
    recording.inside("aten::mm", ("a", 512), "old", "a")
    trace = recording.trace(tmp_path)
    trace.metadata["parameters"] = [WEIGHT]
    segments = [segment(1 << 30, MIB, -MIB), segment(5 << 30, MIB, 3 * MIB)]
    trace.metadata["held_before"] = {
        "0": {"allocated_bytes": 5 * MIB, "reserved_bytes": 1, "segments": segments}
    }

    held = allocations(trace)
    old, weight = (
        next(row for row in range(len(held)) if held["begin"][row] == BEFORE and held["bytes"][row] == nbytes)
        for nbytes in (MIB, 3 * MIB)
    )
    start = start_of(held, 0, 0)

    assert [part.id for part in start.segments[1].blocks] == [old, weight]
    assert start.segments[0].blocks == ((2 * MIB, None, -1, False),)  # whose it is the totals do not say
    assert start.inside == {old: MIB, weight: 3 * MIB}


@pytest.mark.parametrize(
    "wrong",
    [
        [{**APART, "total_size": 1}],  # blocks are more
        [{**APART, "blocks": []}],
        [{**APART, "blocks": [[20 * MIB, 21 * MIB]]}],  # holds more than it is
        [{**APART, "blocks": [[0, None], [20 * MIB, 1]]}],
        [APART, {**APART, "address": (1 << 30) + MIB}],  # one in the other
    ],
)
def test_segments_that_cannot_be_are_not_used(tmp_path, wrong):
    assert reserved(recorded(tmp_path, *wrong)) == reserved(recorded(tmp_path))
    said = " ".join(memory_of(recorded(tmp_path, *wrong)).notes)
    assert "1 segment that the allocator of cuda:0 held before the recording contradicts itself" in said
    assert "none of its segments is used" in said


def test_segments_that_grow_go_on_growing(tmp_path):
    grows = segment(1 << 30, 3 * MIB, MIB, -16 * MIB, is_expandable=True)
    # 16 MiB are free at its end, and 14 more are needed: it grows by pages of 20.
    assert reserved(recorded(tmp_path, grows, asked=30 * MIB)) == 20 * MIB + 20 * MIB
