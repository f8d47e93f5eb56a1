"""Laws of the allocator, for any program: no overlap, no byte lost, and the same as its plain rewriting."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings, target
from hypothesis import strategies as st
from plain_allocator import Cell, Full, PlainAllocator

from daydream.memory.allocator import Allocator, OutOfMemoryError
from daydream.memory.replay import Part, Segment, restore
from daydream.memory.settings import Settings

MIB = 1 << 20
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
LARGE = st.sampled_from([size * MIB for size in (2, 9, 11, 19, 20, 21, 24, 25, 30, 46)])
PRESSING = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), LARGE, st.just(0), st.just(0)), st.tuples(st.just("free"), PLACES)
    ),
    min_size=15, max_size=60,
)  # fmt: skip
PRESSED = st.builds(
    Settings,
    expandable_segments=st.booleans(),
    max_split_bytes=st.sampled_from([None, 20 * MIB, 25 * MIB]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.4, 0.8]),
)


def assert_agree(program, allocator, plain, first=0):
    """Run a program on both, and compare after each step; end where both are out of memory."""
    names = list(plain.addresses())
    for name, (what, *how) in enumerate(program, first):
        if what == "allocate":
            size, stream, private = how
            try:
                plain.allocate(name, size, stream, private)
            except Full:
                plain = None
            try:
                allocator.allocate(name, size, stream, private)
            except OutOfMemoryError:
                assert plain is None
                return
            assert plain is not None
            names.append(name)
        elif what == "empty":
            allocator.return_unused()
            plain.give_all()
        elif names:
            old = names[how[0] % len(names)]  # perhaps one that is not held any more
            if what == "free":
                allocator.free(old)
                plain.free(old)
            else:
                allocator.defer(old)
                plain.defer(old)
        assert (allocator.allocated, allocator.requested, allocator.reserved, allocator.retries) == (
            plain.allocated, plain.requested, plain.reserved, plain.retries,
        )  # fmt: skip
    assert {name: block.address for name, block in allocator.held.items()} == plain.addresses()


@settings(max_examples=300, deadline=None)
@given(PRESSING, PRESSED, st.sampled_from([100 * MIB, 150 * MIB, 250 * MIB]))
def test_it_agrees_where_the_device_is_full(program, how, capacity):
    allocator = Allocator(how, capacity)
    assert_agree(program, allocator, PlainAllocator(how, capacity))
    target(float(allocator.retries))


@settings(max_examples=400, deadline=None)
@given(PROGRAMS, SETTINGS, CAPACITIES)
def test_the_allocator_agrees_with_its_plain_rewriting_and_loses_no_byte(program, how, capacity):
    allocator = Allocator(how, capacity)
    assert_agree(program, allocator, PlainAllocator(how, capacity))
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


@settings(max_examples=100, deadline=None)
@given(PROGRAMS, SETTINGS)
def test_when_all_is_freed_all_can_be_returned(program, how):
    program = [(what, *args[:2], 0) if what == "allocate" else (what, *args) for what, *args in program]
    allocator = Allocator(how)
    assert_agree(program, allocator, PlainAllocator(how, None))
    for name in list(allocator.held):
        allocator.free(name)
    allocator.return_unused()
    assert (allocator.allocated, allocator.requested, allocator.reserved) == (0, 0, 0)


@settings(max_examples=200, deadline=None)
@given(PROGRAMS, PROGRAMS, SETTINGS.map(lambda how: replace(how, garbage_collection_threshold=0.0)))
def test_a_restored_allocator_goes_on_as_the_one_that_it_was_taken_from(before, after, how):
    # Address space from which all memory was returned does not show in a snapshot.
    before = [step for step in before if step != ("empty",)]
    plain = PlainAllocator(how, None)
    allocator = Allocator(how)
    assert_agree(before, allocator, plain)
    again = Allocator(how)
    restore(again, segments(plain))
    assert (again.allocated, again.requested, again.reserved) == (
        allocator.allocated, allocator.requested, allocator.reserved,
    )  # fmt: skip
    plain.retries = 0
    assert_agree(after, again, plain, first=len(before))


def segments(plain):
    """Return the state as a snapshot tells it: of expandable segments each range that has memory."""
    found = []
    for seg in plain.segs:
        address, parts = seg.address, []
        for cell in [*seg.cells, Cell(0, "empty")]:
            if cell.state != "empty":
                asked = None if cell.state == "free" else cell.requested
                parts.append(Part(cell.size, asked, cell.name, cell.state == "waiting"))
            elif parts:
                start = address - sum(part.size for part in parts)
                found.append(Segment(start, seg.stream, seg.small, tuple(parts), seg.grows, seg.private))
                parts = []
            address += cell.size
    return found
