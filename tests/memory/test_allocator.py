"""The allocator's rules, worked out by hand; `test_histories.py` compares it with real histories."""

from __future__ import annotations

import pytest

from daydream.errors import DaydreamError
from daydream.memory.allocator import Allocator, OutOfMemoryError
from daydream.memory.replay import ALLOCATE, DEFER, FREE, Request, usage
from daydream.memory.settings import Settings

MIB = 1 << 20
GROWING = Settings(expandable_segments=True)


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the last of the small pool
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),  # rounded up it is 10 MiB, no longer below
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest of 1 MiB is not split off
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # this one is larger than 1 MiB
    ],
)
def test_sizes_of_blocks_and_segments(asked, block, segment):
    allocator = Allocator()

    assert allocator.allocate(0, asked).size == block
    assert (allocator.allocated, allocator.requested, allocator.reserved) == (block, asked, segment)


def test_the_smallest_block_that_fits_is_taken_and_of_equal_ones_the_lowest():
    #  20 MiB: | a 2 | b 3 | c 2 | d 4 | e 2 | f 4 | 3 left |
    allocator = Allocator()
    a, b, c, d, e, f = (allocator.allocate(at, size * MIB) for at, size in enumerate((2, 3, 2, 4, 2, 4)))
    assert [each.address - a.address for each in (a, b, c, d, e, f)] == [
        at * MIB for at in (0, 2, 5, 7, 11, 13)
    ]
    places = {name: block.address for name, block in zip("abcdef", (a, b, c, d, e, f), strict=True)}
    for at in (1, 3, 5):
        allocator.free(at)  # f joins the 3 MiB that were left

    assert allocator.allocate(10, 3 * MIB).address == places["b"]  # fits exactly
    assert allocator.allocate(11, 3 * MIB).address == places["d"]  # 4 rather than 7; 1 MiB is no rest
    assert allocator.held[11].size == 4 * MIB
    assert allocator.allocate(12, 3 * MIB).address == places["f"]
    assert allocator.reserved == 20 * MIB


def test_freed_neighbours_become_one_block():
    allocator = Allocator()
    for name in range(4):
        allocator.allocate(name, 512 * 1024)  # fills a segment of 2 MiB
    first = allocator.held[0].address
    for name in (0, 2, 1):
        allocator.free(name)

    assert allocator.allocate(4, MIB).address == first
    assert allocator.allocate(5, 512 * 1024).address == first + MIB
    assert allocator.reserved == 2 * MIB


def test_streams_and_private_pools_share_no_block():
    allocator = Allocator()
    for name, (stream, private) in enumerate([(0, 0), (1, 0), (0, 1)]):
        allocator.allocate(name, 4 * MIB, stream, private)
    assert allocator.reserved == 3 * 20 * MIB
    for name in range(3):
        allocator.free(name)
    allocator.return_unused()

    assert allocator.reserved == 20 * MIB  # a private pool keeps its memory while it lives
    allocator.return_unused(private=1)
    assert allocator.reserved == 0


def test_a_block_that_another_stream_still_uses_serves_no_request():
    def peak(*middle):
        asked = [Request(ALLOCATE, 0, 12 * MIB), *middle, Request(ALLOCATE, 1, 12 * MIB)]
        return usage([*asked, Request(FREE, 0)])

    freed, deferred = peak(Request(FREE, 0)), peak(Request(DEFER, 0))
    assert (freed.peak_allocated_bytes, freed.peak_reserved_bytes) == (12 * MIB, 12 * MIB)
    assert (deferred.peak_allocated_bytes, deferred.peak_reserved_bytes) == (12 * MIB, 24 * MIB)


# Expandable segments -----------------------------------------------------------------------------


def test_an_expandable_segment_grows_by_pages_and_leaves_no_slivers():
    #  fixed:       12 + 14 + 16 = 42 MiB: what is freed is too small for what follows
    #  expandable:  12 -> a page of 20; 14 grows the same 20 MiB; 16 grows it again
    asked = [
        request
        for name, size in enumerate((12, 14, 16))
        for request in (Request(ALLOCATE, name, size * MIB), Request(FREE, name))
    ]

    assert usage(asked).peak_reserved_bytes == 42 * MIB
    assert usage(asked, settings=GROWING).peak_reserved_bytes == 20 * MIB


def test_only_whole_pages_of_an_expandable_segment_are_returned_and_the_gap_is_filled_first():
    #  pages of 20 |        |        |        |
    #              | a 5 | b 40      | c 5 |10|   b is freed: only the page from 20 to 40 is free as a whole
    allocator = Allocator(GROWING)
    start = allocator.allocate(0, 5 * MIB).address
    allocator.allocate(1, 40 * MIB)
    allocator.allocate(2, 5 * MIB)
    allocator.free(1)
    allocator.return_unused()
    assert allocator.reserved == 40 * MIB

    # 30 MiB fit into the gap (15 free, 20 without memory, 5 free): one page comes back.
    assert allocator.allocate(3, 30 * MIB).address == start + 5 * MIB
    assert allocator.reserved == 60 * MIB


# Settings ----------------------------------------------------------------------------------------


def test_large_blocks_are_not_split_with_max_split_size():
    asked = [Request(ALLOCATE, 0, 100 * MIB), Request(FREE, 0), Request(ALLOCATE, 1, 30 * MIB)]

    assert usage(asked).peak_reserved_bytes == 100 * MIB
    kept = usage(asked, settings=Settings(max_split_bytes=64 * MIB))
    assert kept.peak_reserved_bytes == 130 * MIB  # the 100 MiB block serves requests from 64 MiB only


@pytest.mark.parametrize(("second", "reserved"), [(81, 100), (80, 180), (64, 164)])
def test_a_block_that_is_not_split_serves_requests_up_to_20_mib_smaller(second, reserved):
    asked = [Request(ALLOCATE, 0, 100 * MIB), Request(FREE, 0), Request(ALLOCATE, 1, second * MIB)]

    found = usage(asked, settings=Settings(max_split_bytes=64 * MIB))
    assert found.peak_reserved_bytes == reserved * MIB


# A device that is full ---------------------------------------------------------------------------


def test_out_of_memory_says_where_and_what_was_held():
    asked = [Request(ALLOCATE, 0, 12 * MIB), Request(ALLOCATE, 1, 14 * MIB), Request(ALLOCATE, 2, 5)]

    where = usage(asked, capacity_bytes=20 * MIB).out_of_memory
    assert (where.request, where.requests, where.asked_bytes) == (2, 3, 14 * MIB)
    assert (where.allocated_bytes, where.reserved_bytes) == (12 * MIB, 12 * MIB)


def test_waiting_for_the_device_frees_what_other_streams_used():
    asked = [Request(ALLOCATE, 0, 12 * MIB), Request(DEFER, 0), Request(ALLOCATE, 1, 14 * MIB)]

    found = usage([*asked, Request(FREE, 0)], capacity_bytes=20 * MIB)
    assert (found.out_of_memory, found.retries, found.peak_reserved_bytes) == (None, 1, 14 * MIB)


def test_oversized_blocks_are_returned_before_all_others():
    #  a 40, b 12 and c 30 are unused: with 25 MiB as limit a is enough for d 45, and b stays
    allocator = Allocator(Settings(max_split_bytes=25 * MIB), capacity_bytes=90 * MIB)
    for name, size in enumerate((40, 12, 30)):
        allocator.allocate(name, size * MIB)
    for name in range(3):
        allocator.free(name)
    allocator.allocate(3, 45 * MIB)

    # No block is as large as 45 MiB, so the largest ones go until that much is returned: 40 and 30.
    assert allocator.reserved == (12 + 46) * MIB
    assert allocator.retries == 0


def test_garbage_collection_returns_the_oldest_segments_above_the_threshold():
    #  70 of 100 MiB: 12 + 14 + 16 + 18 + 20 = 80 are reserved when e is followed by f, so 10 have to go. The
    #  large pool was searched twice since a was freed and once since c was: a is older than both on average.
    allocator = Allocator(Settings(garbage_collection_threshold=0.7), capacity_bytes=100 * MIB)
    for name, size in enumerate((12, 14, 16, 18)):
        allocator.allocate(name, size * MIB)
    allocator.free(0)
    allocator.allocate(4, 20 * MIB)
    allocator.free(2)
    allocator.allocate(5, 30 * MIB)

    assert allocator.reserved == (14 + 16 + 18 + 20 + 30) * MIB
    assert allocator.retries == 0


# Sequences ---------------------------------------------------------------------------------------


def test_frees_of_what_is_not_held_are_passed_over_and_names_are_used_once():
    assert usage([Request(FREE, 7), Request(DEFER, 7)]).peak_allocated_bytes == 0
    with pytest.raises(DaydreamError, match="request 1 allocates 3, which is allocated already"):
        usage([Request(ALLOCATE, 3, 1), Request(ALLOCATE, 3, 1)])


def test_a_block_that_is_not_split_is_returned_where_the_device_is_full():
    #  46 MiB are free, and too large to be split for 12; a segment of 12 beside them has no room in 50
    allocator = Allocator(Settings(max_split_bytes=20 * MIB), 50 * MIB)
    allocator.allocate(0, 46 * MIB)
    allocator.free(0)
    allocator.allocate(1, 12 * MIB)
    assert allocator.reserved == 12 * MIB


def test_an_expandable_segment_that_cannot_grow_is_out_of_memory():
    #  |15|5 free|: for 12 it would take a second page of 20, and 30 are there
    allocator = Allocator(GROWING, 30 * MIB)
    allocator.allocate(0, 15 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(1, 12 * MIB)
    assert allocator.reserved == 20 * MIB
    with pytest.raises(OutOfMemoryError):
        Allocator(GROWING, 10 * MIB).allocate(0, 12 * MIB)
