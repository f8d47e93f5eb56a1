"""Laws of the allocator, for any program: no overlap, no byte lost; recorded histories say the rest."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from daydream.memory.allocator import Allocator, OutOfMemoryError
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
    assert (allocator.allocated, allocator.requested, allocator.reserved) == (0, 0, 0)
