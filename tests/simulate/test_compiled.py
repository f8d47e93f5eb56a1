"""The compiled loops: they equal what Python and NumPy give, and read nothing beyond their arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate.test_engines import random_plan
from strategies import Edge, Task, drawn, plans, written

from daydream import compiled
from daydream.collect.derive import nesting
from daydream.collect.derive.recording import Recording
from daydream.errors import GraphError
from daydream.simulate import engine

ENGINE = compiled.engine()
needs_engine = pytest.mark.skipif(
    ENGINE is None, reason="the compiled loops were not built, or DAYDREAM_COMPILED=0 turns them off"
)
ARRAYS = (
    "lane", "duration_ns", "gap_ns", "release_ns",
    "edge_ptr", "edge_src", "edge_latency_ns", "edge_from_start",
)  # fmt: skip


def arguments(plan, **other):
    """Return what `pull` takes for a plan, some of it replaced."""
    room = {"progress": np.empty(plan.lanes, np.int64)}
    room |= {name: np.empty(len(plan), np.int64) for name in ("start", "end")}
    return {name: getattr(plan, name) for name in ARRAYS} | room | other


def pulled(plan, **other):
    given_arrays = arguments(plan, **other)
    done = ENGINE.pull(*given_arrays.values())
    return done, given_arrays["start"].tolist(), given_arrays["end"].tolist()


def tried(loop, *given_arrays):
    """Return what a loop answers, or why it refuses."""
    try:
        return loop(*given_arrays)
    except ValueError as error:
        return str(error)


def lists(timeline):
    return [column.tolist() for column in timeline]


# -- the pull loop ---------------------------------------------------------------------------------


LONG = 2**60


@pytest.mark.parametrize(
    ("tasks", "edges"),
    [
        ([Task(0, LONG), Task(0, LONG), Task(0, LONG), Task(0, LONG)], []),
        ([Task(0, 1, gap=LONG), Task(0, 1, gap=LONG)], []),
        ([Task(0, 1), Task(1, 1)], [Edge(0, 1, 2**63 - 3)]),
    ],
)
def test_times_that_int64_may_not_hold_are_left_to_whole_numbers_of_python(tasks, edges):
    plan = drawn(tasks, edges)
    if ENGINE is not None:
        assert not pulled(plan)[0]
    assert engine.run(plan)[0].tolist() == engine.algorithm_1(plan)[0].tolist()


def test_times_that_int64_does_not_hold_are_refused():
    with pytest.raises(GraphError, match="292 years"):
        engine.run(drawn([Task(0, 2**63 - 1, gap=2**63 - 1)] * 5, []))
    with pytest.raises(GraphError, match="292 years"):
        engine.run(drawn([Task(0, 1), Task(1, 1)], [Edge(0, 1, 2**63 - 2)]))


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@needs_engine
@pytest.mark.parametrize("name", ARRAYS[:-1])
@given(st.data())
def test_any_content_is_answered_or_refused(name, data):
    plan = data.draw(plans().filter(lambda plan: len(plan.edge_src)))
    column = getattr(plan, name).copy()
    anything = st.integers(-2, 2 * len(plan)) | (int32 if column.dtype == np.int32 else int64)
    for place in data.draw(st.lists(st.integers(0, len(column) - 1), min_size=1, max_size=3)):
        column[place] = data.draw(anything)
    refused = "an index of the plan is out of its range"
    assert tried(ENGINE.pull, *arguments(plan, **{name: column}).values()) in (True, False, refused)


@needs_engine
@pytest.mark.parametrize("name", [*ARRAYS, "start", "end"])
def test_arrays_of_another_length_are_refused(name):
    plan = written("0 3, 1 2, 0 1", "0>1, 1>2")
    for count in (0, 1, 2, 7):
        right = arguments(plan)[name]
        if count != len(right):
            with pytest.raises(ValueError, match=r"items of|out of its range"):
                pulled(plan, **{name: np.zeros(count, right.dtype)})


# -- the nesting of ranges -------------------------------------------------------------------------

spans = st.lists(
    st.tuples(
        st.integers(0, 40) | st.sampled_from([0, 2**31, 2**40]),
        st.integers(0, 20) | st.sampled_from([0, 2**31, 2**40]),
        st.integers(0, 3),
        st.integers(0, 1),
        st.sampled_from([1, 900, 1000]),
    ),
    max_size=30,
)


@needs_engine
@given(spans)
def test_ranges_nest_as_in_python(rows):
    columns = {
        "start_ns": np.array([start * unit for start, *_, unit in rows], np.int64),
        "duration_ns": np.array([length * unit for _, length, *_, unit in rows], np.int64),
        "kind": np.array([kind for _, _, kind, _, _ in rows], np.int32),
        "name": np.zeros(len(rows), np.int32),
        "pid": np.ones(len(rows), np.int64),
        "tid": np.array([thread for *_, thread, _ in rows], np.int64),
    }
    kinds = ["annotation", "operator", "runtime", "module"]

    def nested():
        found = nesting.nest(Recording(dict(columns), {"kind": kinds, "name": ["x"]}))
        return found.parent.tolist(), found.module.tolist(), found.duration_ns.tolist(), found.crossings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.VARIABLE, "0")
        expected = nested()
    assert nested() == expected


@needs_engine
@given(st.data())
def test_any_rows_are_nested_or_refused(data):
    count = data.draw(st.integers(0, 8))

    def column(values, dtype, length=count):
        return np.array(data.draw(st.lists(values, min_size=length, max_size=length)), dtype)

    order = column(st.integers(-1, count), np.int32, data.draw(st.integers(0, 12)))
    parent, room = np.empty(count, np.int32), np.empty(len(order), np.int32)
    start, end = column(int64, np.int64), column(int64, np.int64)
    depth, thread = column(st.integers(-1, 3), np.int8), column(st.integers(-1, 2), np.int32)
    outside = ((order < 0) | (order >= count)).any()
    answer = tried(ENGINE.nest, order, start, end, depth, thread, parent, room, 1000)
    assert (answer == "a row to be nested is out of range") == outside


# -- the switch ------------------------------------------------------------------------------------


def test_the_environment_turns_them_off(monkeypatch):
    monkeypatch.setenv(compiled.VARIABLE, "0")
    assert compiled.engine() is None


def test_without_them_answers_are_the_same(monkeypatch):
    plan = random_plan(500, lanes=4, edges=300, reach=200, seed=3)
    expected = lists(engine.run(plan))
    monkeypatch.setattr(compiled, "import_module", lambda name: __import__("no_such_module_of_ours"))
    compiled._built.cache_clear()
    try:
        assert compiled.engine() is None
        assert lists(engine.run(plan)) == expected
    finally:
        compiled._built.cache_clear()
