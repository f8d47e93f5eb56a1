"""Laws that hold for any graph."""

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import graphs

from daydream import Graph, Trace, simulate
from daydream.collect.derive import nesting
from daydream.collect.derive.recording import Recording
from daydream.graph.build import build
from daydream.graph.draft import Draft
from daydream.graph.rules.threads import pieces


def times(graph):
    """Return the start and end of each task."""
    timeline = simulate(graph)
    both = zip(timeline.start_ns.tolist(), timeline.end_ns.tolist(), strict=True)
    return dict(zip(timeline.task.tolist(), both, strict=True))


def one_of(graph):
    return st.sampled_from(graph.ids.tolist())


@given(graphs())
def test_a_random_graph_is_sound(graph):
    assert graph.lint() == []


@given(graphs() | graphs(scheduled=True))
def test_no_task_starts_before_its_causes_and_none_overlap_on_a_lane(graph):
    timeline = simulate(graph)
    plan = timeline.plan
    counted_from = np.where(
        plan.edge_from_start, timeline.start_ns[plan.edge_src], timeline.end_ns[plan.edge_src]
    )
    assert (timeline.start_ns[plan.edge_dst] >= counted_from + plan.edge_latency_ns).all()
    for lane in range(plan.lanes):
        here = np.flatnonzero(plan.lane == lane)
        here = here[np.lexsort((timeline.end_ns[here], timeline.start_ns[here]))]
        assert (timeline.start_ns[here[1:]] >= timeline.end_ns[here[:-1]]).all()


@given(graphs(), st.data())
def test_insert_then_remove_changes_nothing(graph, data):
    before = times(graph)
    where = data.draw(st.sampled_from(["after", "before", "launch_after"]))
    calls = graph.select(kind="cpu").ids.tolist()
    task = data.draw(st.sampled_from(calls) if where == "launch_after" else one_of(graph))
    kind = "kernel" if where == "launch_after" else data.draw(st.sampled_from(["cpu", "kernel"]))
    lane = data.draw(st.sampled_from([0, 1, 2] if kind == "cpu" else [3, 4, 5]))
    new = graph.insert("new", kind=kind, lane=lane, duration_ns=7, gap_ns=2, **{where: task})
    assert new.ids[0] in times(graph)
    new.remove()

    assert times(graph) == before


@given(graphs(), st.data())
def test_an_inserted_task_is_the_neighbour_of_what_it_was_inserted_behind_or_before(graph, data):
    for _ in range(4):
        task = data.draw(one_of(graph))
        where = data.draw(st.sampled_from(["after", "before"]))
        lane, kind = int(graph.lane[task]), str(graph.column("kind", np.array([task]))[0])
        order = [other for other in graph.ids.tolist() if graph.lane[other] == lane]
        new = int(graph.insert("new", kind=kind, lane=lane, duration_ns=1, **{where: task}).ids[0])

        launched = np.flatnonzero(graph.launch == task)
        at = order.index(task) + (where == "after")
        if where == "before" or lane not in graph.lane[launched]:
            expected = [*order[:at], new, *order[at:]]
            assert [other for other in graph.ids.tolist() if graph.lane[other] == lane] == expected


@given(graphs() | graphs(scheduled=True))
def test_scaling_every_cost_by_two_doubles_every_time(graph):
    before = times(graph)
    graph.select().scale(2, gaps=True)
    for column in ("latency_ns", "release_ns"):
        graph.columns.put(column, graph.columns[column] * 2)
    for table in (graph.syncs, graph.waits, graph.links):
        table.put("latency_ns", table["latency_ns"] * 2)

    assert times(graph) == {task: (2 * start, 2 * end) for task, (start, end) in before.items()}


@given(graphs(), st.data())
def test_with_fixed_lane_order_less_work_is_never_slower(graph, data):
    before = times(graph)
    ids = graph.ids
    shares = st.lists(st.integers(0, 4), min_size=len(ids), max_size=len(ids))
    for name in ("duration_ns", "gap_ns"):
        graph.write(name, ids, graph.columns[name][ids] * data.draw(shares) // 4)

    assert all(end <= before[task][1] for task, (_, end) in times(graph).items())


@given(graphs(), st.data())
def test_with_fixed_lane_order_removing_work_delays_nothing(graph, data):
    before = times(graph)
    graph.tasks(data.draw(st.sets(one_of(graph), min_size=1))).remove()

    assert all(start <= before[task][0] for task, (start, _) in times(graph).items())


@given(graphs(), st.data())
def test_a_repeated_window_keeps_the_order_on_every_lane(graph, data):
    order = np.unique(graph.order)
    begin = data.draw(st.sampled_from(order.tolist()))
    end = data.draw(st.sampled_from([key + 1 for key in order.tolist() if key >= begin]))
    once, twice = simulate(graph), simulate(graph, copies=2, window=(begin, end))
    inside = {task for task in graph.ids.tolist() if begin <= graph.order[task] < end}
    for lane in range(len(graph.lanes)):
        here = once.task[once.plan.lane == lane].tolist()
        repeated = twice.plan.lane == lane
        first = twice.task[repeated & (twice.copy == 0)].tolist()
        assert first == [task for task in here if graph.order[task] < end]
        assert twice.task[repeated & (twice.copy == 1)].tolist() == [task for task in here if task in inside]


@given(graphs(), st.data())
def test_the_first_copy_of_a_window_runs_as_the_window_itself(graph, data):
    order = np.unique(graph.order)
    begin = data.draw(st.sampled_from(order.tolist()))
    once, twice = times(graph), simulate(graph, copies=2, window=(begin, int(order[-1]) + 1))
    first = twice.copy == 0

    assert dict(zip(twice.task[first].tolist(), twice.start_ns[first].tolist(), strict=True)) == {
        task: start for task, (start, _) in once.items()
    }


@given(graphs() | graphs(scheduled=True))
def test_the_longest_path_of_networkx_is_the_makespan(graph):
    digraph = graph.to_networkx()
    path = nx.DiGraph(digraph.edges)
    for src, dst, edge in digraph.edges(data=True):
        path.edges[src, dst]["weight"] = edge["delay_ns"]
    for task, node in digraph.nodes(data=True):
        path.add_edge("begin", task, weight=node["release_ns"])
        path.add_edge(task, "end", weight=node["duration_ns"])

    assert nx.dag_longest_path_length(path) == simulate(graph).makespan_ns


@given(graphs() | graphs(scheduled=True))
def test_to_networkx_and_back_keeps_every_time(graph):
    digraph = graph.to_networkx()
    back = simulate(Graph.from_networkx(digraph))
    timeline = simulate(graph)
    expected = dict(zip(timeline.task.tolist(), timeline.start_ns.tolist(), strict=True))

    assert back.start_ns.tolist() == [expected[task] for task in digraph]


# -- cpu time cut into pieces ----------------------------------------------------------------------------

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
    start = trace["start_ns"]
    duration = trace["duration_ns"]
    end = start + duration
    tid = trace["tid"]
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
