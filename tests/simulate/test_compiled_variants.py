"""The compiled loops over variants and critical paths equal NumPy, and read nothing beyond their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate.test_compiled import ARRAYS, ENGINE, int32, int64, needs_engine, tried
from strategies import Edge, Task, drawn, plans

from daydream.simulate import batch, critical_path, scan
from daydream.simulate.batch import scaled

REFUSED = "an index of the plan is out of its range"


def many(plan, **other):
    """Return what `pull_many` takes: two groups of two variants, all ends asked for."""
    count = len(plan)
    uses = np.bincount(plan.edge_src, minlength=count).astype(np.int32)
    given_arrays = {name: getattr(plan, name) for name in ARRAYS} | {
        "slower": np.full(count, 1, np.uint16), "wider": np.full(count, 2, np.uint16),
        "first": np.array([0, 2, 4]), "factor": np.array([0.5, 2.0, 0.0, 1.0]), "uses": uses,
        "slot": np.empty(count, np.int32), "seen": np.arange(count, dtype=np.int32),
        "out": np.empty((count, 4)),
    }  # fmt: skip
    return given_arrays | other | {"lanes": plan.lanes}


def walked(plan, sink, since, **other):
    """Return what `walk` takes for a plan and its timeline."""
    start, end = scan.run(plan)
    names = (name for name in ARRAYS if name not in ("duration_ns", "release_ns"))
    count = len(plan)
    room = {
        "edge_cause": plan.edge_cause, "start": start, "end": end, "before": np.empty(count, np.int32),
        "last": np.empty(plan.lanes, np.int32), "path": np.empty(count, np.int32),
        "by": np.empty(count, np.int64),
    }  # fmt: skip
    return {name: getattr(plan, name) for name in names} | room | other | {"sink": sink, "since": since}


@needs_engine
@given(st.data())
def test_the_walk_finds_the_chain_that_numpy_finds(data):
    plan = data.draw(plans(least_latency=-5))
    start, end = scan.run(plan)
    sink = data.draw(st.integers(0, len(plan) - 1))
    since = data.draw(st.none() | st.integers(0, int(end.max(initial=0))))
    found = critical_path._walked(ENGINE, plan, start, end, sink, since)
    expected = critical_path._in_numpy(plan, start, end, sink, since)
    assert [column.tolist() for column in found] == [column.tolist() for column in expected]


@needs_engine
@given(st.data())
def test_more_variants_than_go_together_are_answered_in_order(data):
    plan = data.draw(plans())
    tasks = st.lists(st.integers(0, len(plan) - 1), unique=True)
    factors = st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0, 4.0]), min_size=1, max_size=9)
    groups = [scaled(data.draw(tasks), data.draw(factors), gaps_of=data.draw(tasks)) for _ in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "GROUPS", 2)
        patch.setattr(batch, "VARIANTS", 3)
        found = batch.ends(plan, groups, np.arange(len(plan)))
    alone = [scan.in_numpy(variant)[1].tolist() for group in groups for variant in group.plans(plan)]
    assert found.tolist() == alone


def test_times_that_doubles_may_round_are_left_to_the_others():
    short, long = drawn([Task(0, 2**40)], []), drawn([Task(0, 2**52)], [])
    assert batch.fits(short, [scaled([0], (2.0,))])
    assert not batch.fits(long, [scaled([0], (0.5,))])
    assert not batch.fits(short, [scaled([0], (2.0**13,))])


@needs_engine
@pytest.mark.parametrize("name", [*(name for name in ARRAYS[:-1]), "slower", "first", "uses", "seen"])
@given(st.data())
def test_any_content_of_variants_is_answered_or_refused(name, data):
    plan = data.draw(plans().filter(lambda plan: len(plan.edge_src)))
    column = many(plan)[name].copy()
    small = {np.dtype(np.uint16): st.integers(0, 2**16 - 1), np.dtype(np.int32): int32}.get(
        column.dtype, int64
    )
    for place in data.draw(st.lists(st.integers(0, len(column) - 1), min_size=1, max_size=3)):
        column[place] = data.draw(
            small if column.dtype == np.uint16 else st.integers(-2, 2 * len(plan)) | small
        )
    assert tried(ENGINE.pull_many, *many(plan, **{name: column}).values()) in (None, REFUSED)


@needs_engine
@pytest.mark.parametrize("name", ["lane", "edge_ptr", "edge_src", "edge_latency_ns", "start", "end"])
@given(st.data())
def test_any_content_of_a_chain_is_followed_or_refused(name, data):
    plan = data.draw(plans().filter(lambda plan: len(plan.edge_src)))
    sink = data.draw(st.integers(-1, len(plan)))
    column = walked(plan, sink, 0)[name].copy()
    for place in data.draw(st.lists(st.integers(0, len(column) - 1), min_size=1, max_size=3)):
        wide = int32 if column.dtype == np.int32 else int64
        column[place] = data.draw(st.integers(-2, 2 * len(plan)) | wide)
    found = tried(ENGINE.walk, *walked(plan, sink, 0, **{name: column}).values())
    assert found == REFUSED or 1 <= found <= len(plan)


@needs_engine
@pytest.mark.parametrize("loop", ["walk", "pull_many"])
def test_arrays_of_another_length_are_refused_by_both(loop):
    plan = drawn([Task(0, 3), Task(1, 2), Task(0, 1)], [Edge(0, 1), Edge(1, 2)])
    right = many(plan) if loop == "pull_many" else walked(plan, 2, 0)
    for name, column in right.items():
        if name in ("lanes", "sink", "since", "last", "first"):
            continue
        given_arrays = right | {name: np.zeros(len(column) + 4, column.dtype)}
        with pytest.raises(ValueError, match=r"items of|out of its range"):
            getattr(ENGINE, loop)(*given_arrays.values())
