"""CPU time cut into stretches: the compiled loop equals NumPy, and reads nothing beyond its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate.test_compiled import int64, needs_engine, tried

from daydream import Graph, Trace, compiled
from daydream.collect.derive import nesting
from daydream.collect.derive.recording import Recording
from daydream.graph.build import build
from daydream.graph.builder import GraphBuilder
from daydream.graph.rules.threads import _cut, _stretches

KINDS = ["annotation", "operator", "runtime"]
ENGINE = compiled.engine()
spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2), st.integers(0, 1)),
    min_size=1,
    max_size=30,
)


def recorded(rows: list[tuple[int, int, int, int]]) -> dict[str, np.ndarray]:
    """Return the columns of some host rows, outer first: start, duration, kind and thread of each."""
    start, duration, kind, tid = np.array(sorted(rows, key=lambda row: (row[0], -row[1], row[2])), np.int64).T
    one = np.zeros(len(rows), np.int64)
    return {
        "start_ns": start, "duration_ns": duration, "kind": kind, "name": one, "rank": one,
        "pid": one, "tid": tid, "step": one,
    }  # fmt: skip


def trace_of(columns: dict[str, np.ndarray]) -> Trace:
    texts = {"kind": KINDS, "name": ["x"]}
    found = nesting.nest(Recording(dict(columns), texts))
    return Trace({**columns, "duration_ns": found.duration_ns, "parent": found.parent}, texts)


def both_ways(trace: Trace) -> tuple[list[list[int]] | None, list[list[int]]]:
    builder, rows = GraphBuilder(trace, Graph(trace)), np.arange(len(trace))
    thread, _ = builder.threads(rows)
    in_c, in_numpy = _cut(builder, rows, thread), _stretches(builder, rows, thread)
    return in_c and [each.tolist() for each in in_c], [each.tolist() for each in in_numpy]


@needs_engine
@given(spans)
def test_time_is_cut_as_in_numpy(rows):
    in_c, in_numpy = both_ways(trace_of(recorded(rows)))
    assert in_c == in_numpy


@given(spans, st.data())
def test_rows_that_do_not_lie_in_their_parents_get_the_answer_of_numpy(rows, data):
    columns = recorded(rows)
    count = len(rows)
    parents = data.draw(st.lists(st.integers(-1, count - 1), min_size=count, max_size=count))
    columns["parent"] = np.array([min(parent, row - 1) for row, parent in enumerate(parents)], np.int32)
    trace = Trace(columns, {"kind": KINDS, "name": ["x"]})
    in_c, in_numpy = both_ways(trace)
    assert in_c in (None, in_numpy)
    graph = build(trace)
    assert graph.columns["row"].tolist() == in_numpy[0]
    assert graph.columns["gap_ns"].tolist() == in_numpy[5]


def test_a_range_an_instant_and_what_lies_in_both():
    #  thread 1   |outer 2|inner 3|instant|inner 3|outer 2|gap 5|next 4|
    rows = [(0, 10, 1, 0), (2, 6, 1, 0), (5, 0, 1, 0), (15, 4, 1, 0)]
    in_c, in_numpy = both_ways(trace_of(recorded(rows)))
    owner, thread, turn, start, end, gap = in_numpy
    assert owner == [0, 1, 2, 1, 0, 3]
    assert start == [0, 2, 5, 5, 8, 15]
    assert end == [2, 5, 5, 8, 10, 19]
    assert turn == [0, 0, 0, 1, 0, 0]  # of what starts together, the instant comes first
    assert gap == [0, 0, 0, 0, 5, 0]
    assert thread == [0] * 6
    assert in_c in (None, in_numpy)


@needs_engine
@given(st.data())
def test_any_rows_are_cut_or_refused(data):
    count, length, room = (data.draw(st.integers(0, most)) for most in (8, 12, 24))

    def column(values, dtype, length=count):
        return np.array(data.draw(st.lists(values, min_size=length, max_size=length)), dtype)

    order = column(st.integers(-1, count), np.int32, length)
    lane = column(st.integers(-1, 2), np.int32, length)
    times = column(int64 | st.integers(0, 9), np.int64), column(int64 | st.integers(-1, 5), np.int64)
    parent, enclosing = column(st.integers(-1, 3), np.int32), np.empty(length, np.int32)
    found = [np.empty(room, dtype) for dtype in (*[np.int32] * 3, *[np.int64] * 3)]
    answer = tried(ENGINE.cut, order, lane, *times, parent, enclosing, *found)
    assert answer == "a row to be cut is out of range" or -1 <= answer <= room


@needs_engine
@pytest.mark.parametrize("place", range(12))
def test_arrays_that_do_not_fit_each_other_are_refused(place):
    given_arrays = [
        *[np.zeros(2, np.int32)] * 2, *[np.zeros(2, np.int64)] * 2, *[np.zeros(2, np.int32)] * 2,
        *[np.empty(4, np.int32) for _ in range(3)], *[np.empty(4, np.int64) for _ in range(3)],
    ]  # fmt: skip
    given_arrays[place] = given_arrays[place][:1].copy()
    assert "items of" in tried(ENGINE.cut, *given_arrays)
