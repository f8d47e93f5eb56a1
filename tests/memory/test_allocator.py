"""The caching allocator by hand and by laws, its settings, and what lies in it at the start."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import PARAMETER, Recording

from daydream.errors import DaydreamError
from daydream.memory.allocations import BEFORE
from daydream.memory.allocator import Allocator, OutOfMemoryError, usage
from daydream.memory.lifetimes import allocations
from daydream.memory.report import memory_of
from daydream.memory.reserved import reserved_for, start_of
from daydream.memory.settings import (
    ALLOCATE,
    DEFER,
    FREE,
    Part,
    Request,
    Segment,
    Settings,
    settings_of,
    settings_text,
)

# The allocator's rules, worked out by hand; `test_snapshot.py` compares it with real histories


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
    assert (allocator.allocated, allocator.reserved) == (block, segment)


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


# Laws of the allocator, for any program: no overlap, no byte lost; recorded histories say the rest


# Sizes at and around every limit of the rules, and any others.
LIMITS = [1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 19 * MIB, 20 * MIB,
          21 * MIB, 25 * MIB, 40 * MIB]  # fmt: skip
SIZES = st.one_of(st.sampled_from(LIMITS), st.integers(1, 3 * MIB), st.integers(1, 60 * MIB))
PLACES = st.integers(0, 30)  # of what is freed, counted from the oldest
STEPS = st.one_of(
    st.tuples(
        st.just("allocate"), SIZES, st.integers(0, 1), st.integers(0, 5).map(lambda pool: int(pool == 5))
    ),
    st.tuples(st.just("free"), PLACES),
    st.tuples(st.just("free"), PLACES),
    st.tuples(st.just("defer"), PLACES),
    st.just(("empty",)),
)
PROGRAMS = st.lists(STEPS, min_size=1, max_size=60)
SETTINGS = st.builds(
    Settings,
    expandable_segments=st.booleans(),
    max_split_bytes=st.sampled_from([None, None, 20 * MIB, 25 * MIB]),
    roundup_divisions=st.sampled_from([(0,) * 16, (4,) * 16, (1, 2, 8, 4, *[0] * 12)]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.0, 0.5]),
    large_segment_bytes=st.sampled_from([20 * MIB, 32 * MIB]),
).filter(lambda how: (how.max_split_bytes or MIB << 10) >= how.large_segment_bytes)  # PyTorch takes no other
CAPACITIES = st.sampled_from([None, 64 * MIB, 150 * MIB])


def run(program, allocator):
    """Run a program, up to where it is out of memory."""
    names = []
    for name, (what, *how) in enumerate(program):
        if what == "allocate":
            allocator.allocate(name, *how)
            names.append(name)
        elif what == "empty":
            allocator.return_unused()
        elif names:
            old = names[how[0] % len(names)]  # perhaps one that is not held any more
            (allocator.free if what == "free" else allocator.defer)(old)


@settings(max_examples=100, deadline=None)
@given(PROGRAMS, SETTINGS, CAPACITIES)
def test_no_byte_is_lost_and_no_two_blocks_overlap(program, how, capacity):
    allocator = Allocator(how, capacity)
    with suppress(OutOfMemoryError):
        run(program, allocator)
    in_use = [*allocator.held.values(), *allocator.deferred.values()]
    firsts = {}
    for block in [*in_use, *(free for pool in allocator._pools.values() for free in pool.blocks())]:
        first = block
        while first.prev is not None:
            first = first.prev
        firsts[id(first)] = first
    memory = 0
    for block in firsts.values():
        while block is not None:
            memory += block.size if block.mapped else 0
            after = block.next
            assert after is None or (after.prev is block and after.address == block.address + block.size)
            block = after  # noqa: PLW2901 - along its segment
    assert memory == allocator.reserved
    ends = sorted((block.address, block.address + block.size) for block in in_use)
    assert all(end <= after for (_, end), (after, _) in pairwise(ends))
    assert sum(block.size for block in allocator.held.values()) == allocator.allocated
    assert allocator.allocated <= allocator.reserved
    if capacity is not None:
        assert allocator.reserved <= capacity


@settings(max_examples=50, deadline=None)
@given(PROGRAMS, SETTINGS)
def test_when_all_is_freed_all_can_be_returned(program, how):
    allocator = Allocator(how)
    run([(what, *args[:2], 0) if what == "allocate" else (what, *args) for what, *args in program], allocator)
    for name in list(allocator.held):
        allocator.free(name)
    allocator.return_unused()
    assert (allocator.allocated, allocator.reserved) == (0, 0)


# Reserved memory from what the allocator held before the recording: all of it by hand


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


# PYTORCH_CUDA_ALLOC_CONF, as PyTorch reads it


LISTED = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"

LEGAL = {
    "": Settings(),
    "expandable_segments:True": Settings(expandable_segments=True),
    "expandable_segments:True,max_split_size_mb:128": Settings(True, 128 * MIB),
    " max_split_size_mb : 20 , ": Settings(max_split_bytes=20 * MIB),
    "garbage_collection_threshold:0.8": Settings(garbage_collection_threshold=0.8),
    "roundup_power2_divisions:4": Settings(roundup_divisions=(4,) * 16),
    "large_segment_size_mb:32,max_split_size_mb:64": Settings(
        large_segment_bytes=32 * MIB, max_split_bytes=64 * MIB
    ),
    "max_non_split_rounding_mb:30": Settings(max_non_split_rounding_bytes=30 * MIB),
    "per_process_memory_fraction:0.5": Settings(memory_fraction=0.5),
    "backend:native,pinned_use_background_threads:True,release_lock_on_cudamalloc:True": Settings(),
    # Up to 64 MiB 8 steps, then as listed, above 1 GiB none: c10's own test of the list.
    LISTED: Settings(roundup_divisions=(*[8] * 7, 2, 4, 2, 4, *[1] * 5)),
}
WRONG = {
    "expandable_segments": "not an allocator setting",
    "expandable_segments:true": "True or False was needed",
    "expandable_segment:True": "Did you mean 'expandable_segments'",
    "fast:True": "unknown allocator setting 'fast'",
    "max_split_size_mb:19": "at least 20",
    "max_split_size_mb:-1": "a whole number was needed",
    "max_split_size_mb:12.5": "a whole number was needed",
    "max_split_size_mb:": "not an allocator setting",
    "large_segment_size_mb:30,max_split_size_mb:25": "at least 30",
    "large_segment_size_mb:10": "more than 10",
    "max_non_split_rounding_mb:19": "at least 20",
    "garbage_collection_threshold:1.0": "between 0 and 1",
    "garbage_collection_threshold:nan": "between 0 and 1",
    "roundup_power2_divisions:3": "a power of two",
    "roundup_power2_divisions:0": "a power of two",
    "roundup_power2_divisions:[100:2]": "a power of two",
    "roundup_power2_divisions:[256:1,512:2": "closing bracket",
    "backend:cudaMallocAsync": "only the backend native",
    "per_process_memory_fraction:2": "between 0 and 1",
}


@pytest.mark.parametrize("text", LEGAL)
def test_settings_are_read(text):
    assert settings_of(text) == LEGAL[text]


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_is_refused_in_one_line(text):
    with pytest.raises(DaydreamError) as error:
        settings_of(text)
    assert WRONG[text] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", LEGAL)
def test_settings_are_told_as_they_are_typed(text):
    assert settings_of(settings_text(LEGAL[text])) == LEGAL[text]


@pytest.mark.parametrize("text", [*LEGAL, *WRONG])
def test_pytorch_accepts_and_refuses_the_same(text):
    torch = pytest.importorskip("torch")
    read = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if read is None:
        pytest.skip("this version of torch reads its settings elsewhere")
    later = ("max_split_size_mb:-1", "large_segment", "per_process", "backend", "expandable_segment:", "fast")
    if text.startswith(later) or text.endswith(", ") or not text:
        pytest.skip("another part of torch reads this, or it is left to that part to refuse")
    try:
        read(text)
        accepted = True
    except (ValueError, RuntimeError):
        accepted = False
    finally:
        read("max_split_size_mb:20")  # leave nothing behind that a later test could meet
    assert accepted == (text in LEGAL)


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


@pytest.mark.parametrize(
    ("asked", "rounded"),
    [(1200, 1536), (100, 512), (2048, 2048), (2049, 2560), (5 * MIB, 5 * MIB), (5 * MIB + 1, 6 * MIB)],
)
def test_sizes_are_rounded_to_a_quarter_of_a_power_of_two(asked, rounded):
    allocator = Allocator(Settings(roundup_divisions=(4,) * 16))

    # 1200 is below 4 * 512, so it is rounded to 512 bytes; between 4 and 8 MiB steps are 1 MiB.
    assert allocator.rounded(asked) == rounded


def test_unused_memory_is_returned_before_it_is_out_of_memory():
    #  30 MiB: a 12 | b 14, a freed -> c 16 does not fit with both; without a's segment it does
    asked = [Request(ALLOCATE, 0, 12 * MIB), Request(ALLOCATE, 1, 14 * MIB), Request(FREE, 0)]
    asked.append(Request(ALLOCATE, 2, 16 * MIB))

    free = usage(asked)
    assert (free.peak_reserved_bytes, free.retries) == (42 * MIB, 0)
    full = usage(asked, capacity_bytes=30 * MIB)
    assert (full.peak_reserved_bytes, full.retries, full.out_of_memory) == (30 * MIB, 1, None)


def test_a_split_segment_cannot_be_returned():
    #  20 MiB: | a 4 | b 4 | 12 left |, a freed -> 16 MiB are unused, and none of it can be given back
    allocator = Allocator(capacity_bytes=30 * MIB)
    allocator.allocate(0, 4 * MIB)
    allocator.allocate(1, 4 * MIB)
    allocator.free(0)

    with pytest.raises(OutOfMemoryError):
        allocator.allocate(2, 13 * MIB)
    assert allocator.reserved == 20 * MIB


def test_a_fraction_of_the_device_is_the_limit():
    asked = [Request(ALLOCATE, 0, 12 * MIB)]

    half = Settings(memory_fraction=0.5)
    assert usage(asked, settings=half, capacity_bytes=24 * MIB).out_of_memory is None
    assert usage(asked, settings=half, capacity_bytes=23 * MIB).out_of_memory is not None


def test_a_sequence_goes_on_from_what_is_held_at_the_start():
    #  20 MiB: | held 4 | free 6 | waiting 10 |
    start = [
        Segment(
            1 << 30, 0, False, (Part(4 * MIB, 4 * MIB, 0), Part(6 * MIB), Part(10 * MIB, 9 * MIB, 1, True))
        )
    ]  # fmt: skip
    asked = [Request(ALLOCATE, 2, 8 * MIB), Request(FREE, 1), Request(ALLOCATE, 3, 13 * MIB)]

    found = usage(asked, start=start)
    assert found.peak_reserved_bytes == (20 + 20) * MIB  # 8 MiB do not fit into 6; 13 fit into 6 + 10
    assert found.peak_allocated_bytes == (4 + 8 + 13) * MIB
    assert usage(asked[:1], start=start).held == {0: 4 * MIB, 2: 8 * MIB}
