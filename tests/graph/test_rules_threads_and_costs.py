"""Hand-off between threads, and the small costs of device work. Times in microseconds, sums written out."""

import pytest
from rule_traces import backward_trace, latency_trace
from small_graphs import named
from small_traces import call, launched, op, starts, total, trace

from daydream import GraphError, build, simulate
from daydream.graph.plan import Cause


def test_an_unknown_rule_cannot_be_left_out():
    with pytest.raises(GraphError, match="unknown rule 'gaps'; the rules are threads, streams"):
        build(trace(op("a", 0, 1)), without=["gaps"])


# -- hand-off ----------------------------------------------------------------------------------------


def test_the_caller_waits_for_the_thread_it_woke():
    graph = build(backward_trace())
    assert (graph.links["cause"] == Cause.HANDOFF).tolist() == [True, True]
    assert total(graph) == 50

    graph.select(lane="thread 2").scale(0.5)
    #  forward 10, wake 2, nodes 7 + 2 + 5, back 2, step 10
    assert starts(graph)["step"] == 10 + 2 + 7 + 2 + 5 + 2


def test_the_woken_thread_waits_for_the_caller():
    graph = build(backward_trace(2))
    named(graph, "forward").scale(3)

    #  each forward takes 20 longer, and all behind it comes later
    assert total(graph) == 150 + 20 + 20


# Of nine calls in a public recording of a GPU: until the called thread's first call, in us.
UNTIL_CALLED = (340, 240, 270, 230, 240, 230, 260, 240, 270)


@pytest.mark.parametrize(("times", "calls"), [(1, 9), (10, 0)])
def test_a_called_thread_may_take_a_while_until_its_first_call(times, calls):
    """As `backward()` does 8 % of 3.2 ms, a twelfth of which varies; nothing needs 2.4 of 32 ms.

    Thread 1 works 1,000 us, then idles; thread 2 works meanwhile and ends 40 us before.
    """
    rows, at = [], 0
    for until in UNTIL_CALLED:
        end = at + 1000 + 3200 * times
        rows += [op("a", at, at + 1000), op("b", at + 1000 + times * until, end - 40, tid=2)]
        at = end
    graph = build(trace(rows, op("a", at, at + 1000)), without=["wakes"])

    assert (graph.links["cause"] == Cause.HANDOFF).sum() == 2 * calls


def test_a_thread_that_hands_nothing_over_and_launches_nothing_is_background():
    polls = [call("cudaEventQuery", at, at + 1, tid=9) for at in range(0, 90, 7)]
    graph = build(trace(op("a", 0, 50), launched("k", 50, 60, 70), polls))

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
    rows = [launched(f"k{n}", 100 * n, 100 * n + 8, 100 * n + 20) for n in range(5)]
    graph = build(trace(rows, launched("late", 600, 1_400, 1_410)))

    assert (graph.facts.unexplained, graph.facts.unexplained_ns) == (1, 792_000)
    assert starts(graph)["late"] == 1_400
