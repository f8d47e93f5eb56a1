"""CPU time cut into pieces: each nanosecond of a thread belongs to the innermost range around it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daydream import Trace
from daydream.collect.derive import nesting
from daydream.collect.derive.recording import Recording
from daydream.graph.build import build
from daydream.graph.draft import Draft
from daydream.graph.rules.threads import pieces

KINDS = ["annotation", "operator", "runtime"]
spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2), st.integers(0, 1)),
    min_size=1,
    max_size=30,
)


def trace_of(rows):
    """Return a trace of some host rows, outer first: start, duration, kind and thread of each."""
    start, duration, kind, tid = np.array(sorted(rows, key=lambda row: (row[0], -row[1], row[2])), np.int64).T
    one = np.zeros(len(rows), np.int64)
    columns = {
        "start_ns": start, "duration_ns": duration, "kind": kind, "name": one, "rank": one,
        "pid": one, "tid": tid, "step": one,
    }  # fmt: skip
    texts = {"kind": KINDS, "name": ["x"]}
    found = nesting.nest(Recording(dict(columns), texts))
    return Trace({**columns, "duration_ns": found.duration_ns, "parent": found.parent}, texts)


def cut(trace):
    """Return (owner, thread, start, end) of each piece."""
    found = pieces(Draft(trace), np.arange(len(trace)), np.asarray(trace["tid"], np.int64))
    return list(zip(*(values.tolist() for values in found), strict=True))


@given(spans)
def test_time_belongs_to_the_innermost_range(rows):
    trace = trace_of(rows)
    start, duration = trace["start_ns"], trace["duration_ns"]
    end, tid = start + duration, trace["tid"]
    found = cut(trace)
    for thread in set(tid.tolist()):
        mine = np.flatnonzero(tid == thread)
        here = [(owner, begin, stop) for owner, lane, begin, stop in found if lane == thread]
        times = [time for _, begin, stop in here for time in range(begin, stop)]
        assert times == list(range(int(start[mine].min()), int(end[mine].max())))  # all of them, in order
        for owner, begin, stop in here:
            if begin == stop:
                assert duration[owner] == 0
                continue
            around = mine[(start[mine] <= begin) & (end[mine] >= stop) & (duration[mine] > 0)]
            assert owner == max(around, default=-1)  # rows are in order, outer first: the last is innermost
        instants = mine[duration[mine] == 0].tolist()
        assert [owner for owner, begin, stop in here if begin == stop] == instants


@given(spans, st.data())
def test_rows_that_do_not_lie_in_their_parents_lose_no_time(rows, data):
    columns = {name: trace_of(rows)[name] for name in ("start_ns", "duration_ns", "kind", "name", "tid")}
    count = len(rows)
    parents = data.draw(st.lists(st.integers(-1, count - 1), min_size=count, max_size=count))
    columns["parent"] = np.array([min(parent, row - 1) for row, parent in enumerate(parents)], np.int32)
    none = np.zeros(count, np.int64)
    trace = Trace({**columns, "rank": none, "pid": none, "step": none}, {"kind": KINDS, "name": ["x"]})
    graph = build(trace)
    span = graph.columns["duration_ns"] + graph.columns["gap_ns"]
    for thread in set(trace["tid"].tolist()):
        mine = trace["tid"] == thread
        end = (trace["start_ns"] + trace["duration_ns"])[mine].max()
        lane = next(n for n, lane in enumerate(graph.lanes) if lane.name == f"thread {thread}")
        assert span[graph.columns["lane"] == lane].sum() == end - trace["start_ns"][mine].min()
