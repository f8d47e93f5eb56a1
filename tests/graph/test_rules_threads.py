"""Thread order and stream order: what becomes a task, and that no time is lost."""

from collections import defaultdict

import numpy as np
import pytest
from machine.programs import PROGRAMS
from shared import ROOT
from small_graphs import named
from small_traces import backward_trace, call, latency_trace, launched, op, rows, starts, total, trace

import daydream
from daydream import Trace, build, simulate
from daydream.graph.plan import Cause


def pieces(graph, lane="thread 1"):
    """Return (name, duration, gap) of a lane's tasks, in us."""
    tasks = graph.select(lane=lane)
    columns = (tasks.name.tolist(), (tasks.duration_ns / 1000).tolist(), (tasks.gap_ns / 1000).tolist())
    return list(zip(*columns, strict=True))


def test_time_belongs_to_the_innermost_operator():
    #  |outer 2|inner 3|outer 1|gap 4|next 5|
    graph = build(
        trace("""
        op outer 0 6
        op inner 2 5
        op next 10 15
    """)
    )

    assert pieces(graph) == [("outer", 2, 0), ("inner", 3, 0), ("outer", 1, 4), ("next", 5, 0)]
    assert simulate(graph).makespan_ns == 15_000


def late_thread():
    """Thread 1 works from the beginning, thread 2 from 50 us on."""
    return build(
        trace("""
        op a 0 10
        op b 50 60 tid=2
        op c 60 70 tid=2
    """)
    )


def test_a_thread_begins_when_it_was_recorded_to_without_its_first_task():
    graph = late_thread()
    named(graph, "b").remove()

    assert starts(graph)["c"] == 50


def test_an_answer_about_a_sole_step_does_not_depend_on_when_it_was_recorded():
    """Two batches take 20 us more, whether the clock of the recording began with it or 1 s before."""
    answers = []
    for at in (0, 1_000_000):
        text = "op pass 0 10 phase=forward\nop grad 10 20 phase=backward\nop update 20 30 phase=optimizer"
        later = [each | {"start_ns": each["start_ns"] + 1_000 * at} for each in rows(text)]
        recorded = trace(later, steps=(at, at + 30), profiler="by hand")
        recorded.metadata["steps"][0]["covered"] = True
        answers.append(daydream.whatif(recorded, "gradient-accumulation").predicted_ns)

    assert answers == [50_000, 50_000]


# -- streams ---------------------------------------------------------------------------------------


def test_work_without_a_launch_is_held_to_its_recorded_start_and_counted():
    #  thread 1        |launch b|
    #  stream 7  |a 10|    ...   |b 5|       a was launched before the window
    graph = build(
        trace("""
        kernel a 2 12 correlation=9
        launch b 20 30 35
    """)
    )
    timeline = simulate(graph)
    starts = dict(zip(timeline.column("name").tolist(), timeline.start_ns.tolist(), strict=True))

    assert (starts["a"], starts["b"]) == (2_000, 30_000)
    assert (graph.facts.orphans, graph.facts.unlaunched_kernels) == (1, 1)
    assert "1 of 2 device tasks" in " ".join(graph.facts.notes)
    graph.select(on="cpu").scale(0)
    assert simulate(graph).start_ns[0] == 2_000


# -- no time is lost -------------------------------------------------------------------------------


def spans(trace):
    """Return when each thread begins and ends in a recording, step markers and module frames aside."""
    found = defaultdict(list)
    listed = zip(
        *(trace.values(name) for name in ("kind", "name", "tid", "start_ns", "duration_ns")), strict=True
    )
    for kind, name, tid, start, duration in listed:
        if kind in {"operator", "annotation", "runtime"} and not name.startswith("ProfilerStep"):
            found[f"thread {tid}"].append((start, start + duration))
    return {lane: (min(s for s, _ in ends), max(e for _, e in ends)) for lane, ends in found.items()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_tasks_gaps_and_waits_of_a_thread_add_up_to_its_span(program, tmp_path):
    recorded = daydream.load(PROGRAMS[program]().run(steps=8).write(tmp_path / "t.json", 4, 6))
    timeline = simulate(build(recorded))
    lanes, ends = timeline.column("lane"), timeline.end_ns
    for lane, (begin, end) in spans(recorded).items():
        here = np.flatnonzero(lanes == lane)
        time = (timeline.wait_ns + ends - timeline.start_ns)[here].sum() + timeline.plan.gap_ns[here][
            :-1
        ].sum()
        assert time == ends[here].max()
        assert abs(int(ends[here].max()) - end) <= 0.001 * (end - begin)
    hour = 3_600_000_000_000
    recorded.columns["start_ns"] = recorded["start_ns"] + hour
    assert (simulate(build(recorded)).start_ns == timeline.start_ns + hour).all()


# -- hand-off ----------------------------------------------------------------------------------------


def test_the_caller_waits_for_the_thread_it_woke():
    graph = build(backward_trace())
    assert (graph.links["cause"] == Cause.HANDOFF).tolist() == [True, True]
    assert total(graph) == 50

    graph.select(lane="thread 2").scale(0.5)
    #  forward 10, wake 2, nodes 7 + 2 + 5, back 2, step 10
    assert starts(graph)["step"] == 10 + 2 + 7 + 2 + 5 + 2


# Of nine calls in a public recording of a GPU: until the called thread's first call, in us.
UNTIL_CALLED = (340, 240, 270, 230, 240, 230, 260, 240, 270)


@pytest.mark.parametrize(("times", "calls"), [(1, 9), (10, 0)])
def test_a_called_thread_may_take_a_while_until_its_first_call(times, calls):
    """As `backward()` does 8 % of 3.2 ms, a twelfth of which varies; nothing needs 2.4 of 32 ms.

    Thread 1 works 1,000 us, then idles; thread 2 works meanwhile and ends 40 us before.
    """
    found, at = [], 0
    for until in UNTIL_CALLED:
        end = at + 1000 + 3200 * times
        found += [op("a", at, at + 1000), op("b", at + 1000 + times * until, end - 40, tid=2)]
        at = end
    graph = build(trace(found, op("a", at, at + 1000)), without=["wakes"])

    assert (graph.links["cause"] == Cause.HANDOFF).sum() == 2 * calls


def test_a_thread_that_hands_nothing_over_and_launches_nothing_is_background():
    polls = [call("cudaEventQuery", at, at + 1, tid=9) for at in range(0, 90, 7)]
    graph = build(
        trace(
            """
        op a 0 50
        launch k 50 60 70
    """,
            polls,
        )
    )

    assert {lane.name: lane.background for lane in graph.lanes} == {
        "thread 1": False, "thread 9": True, "stream 7": False}  # fmt: skip


# -- latencies ---------------------------------------------------------------------------------------


def test_each_task_keeps_the_latency_it_was_recorded_with():
    graph = build(latency_trace())
    first, second = graph.select(name="first"), graph.select(name="second")

    assert (first.latency_ns / 1000).tolist() == [7, 8, 9, 30]
    assert graph.facts.launch_latency_ns == 8_000 + 500  # the median
    assert (second.latency_ns / 1000).tolist() == [8.5] * 4  # not seen: the stream held them back
    assert (first.gap_ns / 1000).tolist() == [2] * 4
    timeline = simulate(graph)
    assert (timeline.start_ns == graph.measured_start_ns[timeline.task]).all()


def test_a_start_that_no_cause_explains_is_counted_and_kept():
    found = [launched(f"k{n}", 100 * n, 100 * n + 8, 100 * n + 20) for n in range(5)]
    graph = build(trace(found, launched("late", 600, 1_400, 1_410)))

    assert (graph.facts.unexplained, graph.facts.unexplained_ns) == (1, 792_000)
    assert starts(graph)["late"] == 1_400


# -- the autograd thread is found by when it works, as well as by its operators --------------------------

RECORDED = ROOT / "validation" / "h200"
NODES = "autograd::engine::evaluate_function"


def without_operators(trace):
    """Return what a profiler would have recorded that knows calls, device work and ranges alone."""
    found = np.flatnonzero(~trace.is_kind("operator", "module"))
    columns = {name: column[found] for name, column in trace.columns.items()}
    place = np.append(np.searchsorted(found, np.arange(len(trace))), 0)
    there = np.append(np.isin(np.arange(len(trace)), found), False)
    columns["parent"] = np.where(there[columns["parent"]], place[columns["parent"]], -1).astype(np.int32)
    columns["forward_thread"] = np.full(len(found), -1)
    return Trace(columns, trace.texts, trace.metadata)


def handed_over(graph, lanes):
    """Return how many hand-offs lead to these lanes."""
    links = graph.links
    lane = graph.columns["lane"]
    there = [graph.lanes[number].name in lanes for number in lane[links["dst"]].tolist()]
    return int(((links["cause"] == Cause.HANDOFF) & there).sum())


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.parquet")), ids=lambda path: path.stem)
def test_the_autograd_thread_is_called_without_its_operators_too(path):
    trace = daydream.load(path)
    nodes = np.array([name.startswith(NODES) for name in trace.text("name")])[trace["name"]]
    autograd = {f"thread {tid}" for tid in np.unique(trace["tid"][nodes]).tolist()}

    known, told = (daydream.build(each) for each in (trace, without_operators(trace)))
    assert handed_over(known, autograd) > 0
    assert handed_over(told, autograd) > 0


def test_the_woken_thread_waits_for_the_caller():
    graph = build(backward_trace(2))
    named(graph, "forward").scale(3)

    #  each forward takes 20 longer, and all behind it comes later
    assert total(graph) == 150 + 20 + 20


def test_what_is_left_of_a_range_goes_on_behind_the_thread_it_waited_for():
    graph = build(
        trace(f"""
        op forward 0 10
        note range 10 60
        op {NODES} 12 38 tid=2
        op step 65 70
    """)
    )
    assert starts(graph)["step"] == 65

    graph.select(lane="thread 2").scale(0.5)
    assert starts(graph)["step"] == 65 - 13


def test_a_thread_is_woken_by_a_caller_that_goes_on_before_it_is_done_too():
    #  thread 1  |forward 10|4|go 46  |  40  |again 10|   28   |step|
    #  thread 2              |node 14|                 |node 26|
    graph = build(
        trace(f"""
        op forward 0 10
        op {NODES}:first 12 26 tid=2
        op go 14 60
        op again 100 110
        op {NODES}:second 112 138 tid=2
        op step 140 150
    """)
    )
    named(graph, "forward").scale(3)
    assert starts(graph)[f"{NODES}:first"] == 30 + 2
