"""What ties streams together: event waits, CUDA graphs, collectives. Times in us, sums written out."""

import numpy as np
import pytest
from rule_traces import graph_trace, ranks_trace, waiting_trace
from small_graphs import kernels, named
from small_traces import call, kernel, launched, op, starts, sync_row, total, trace

from daydream import build
from daydream.graph.rules.streams import _typical

# -- event waits -------------------------------------------------------------------------------------


def test_work_behind_a_wait_follows_the_work_before_the_record():
    graph = build(waiting_trace())
    assert graph.facts.event_waits == {"recorded": 0, "inferred": 10, "unresolved": 0}
    assert starts(graph)["b"] == 3_600 + 212

    named(graph, "a").scale(0.5)
    assert starts(graph)["b"] == 3_600 + 10 + 100 + 2


def test_a_recorded_wait_names_its_record():
    rows = [
        sync_row(
            "Stream Wait Event", 0.008 + n, 10 * n + 3, stream=8, wait_stream=7, wait_correlation=10 * n + 2
        )
        for n in range(10)
    ]
    graph = build(waiting_trace(rows))
    assert graph.facts.event_waits == {"recorded": 10, "inferred": 0, "unresolved": 0}

    named(graph, "a").scale(0.5)
    assert starts(graph)["b"] == 3_600 + 10 + 100 + 2


def side_rows(*, named):
    #  a library forks to streams 8 and 9 and joins them; its events are not recorded, the waiting streams are
    #  stream 7  |a: 10 to 110|                               |d: 232 to 242|
    #  stream 8                |b: 112 to 142|
    #  stream 9                |c: 112 to 230.................|
    rows = [*launched("a", 0, 10, 110)]
    for place, (stream, at) in enumerate([(8, 6), (9, 16), (7, 30), (7, 34)]):
        rows.append(call("cudaEventRecord", at, at + 1, 20 + place))
        rows.append(call("cudaStreamWaitEvent", at + 2, at + 3, 30 + place))
        if named:
            rows.append(sync_row("Stream Wait Event", at + 2, 30 + place, stream=stream))
    rows += [
        *launched("b", 10, 112, 142, stream=8),
        *launched("c", 20, 112, 230, stream=9),
        *launched("d", 40, 232, 242),
    ]
    return rows


def test_waits_of_known_streams_for_unknown_events_follow_the_open_work():
    graph = build(trace(side_rows(named=True)))
    assert graph.facts.event_waits == {"recorded": 0, "inferred": 4, "unresolved": 0}

    named(graph, "a").scale(0.5)
    began = starts(graph)
    assert (began["b"], began["c"], began["d"]) == (62, 62, 182)

    named(graph, "c").scale(0.1)  # 11.8: b is now the later of the two
    assert starts(graph)["d"] == 62 + 30 + 2


def test_a_wait_that_the_times_contradict_is_not_drawn():
    #  b starts while a still runs, every time
    rows = []
    for at in range(0, 4_000, 400):
        rows += [
            *launched("a", at, at + 10, at + 210),
            call("cudaStreamWaitEvent", at + 8, at + 9),
            *launched("b", at + 10, at + 20, at + 40, stream=8),
        ]
    graph = build(trace(rows))

    assert graph.facts.event_waits == {"recorded": 0, "inferred": 0, "unresolved": 10}
    assert len(graph.waits) == 0


def reduce_trace():
    #  thread 1   |launch gradient|wait|launch reduce|launch next| ... |wait|launch update|
    #  stream 7        |gradient: 10 to 60|next: 61 to 90|                 |update: 205 to 215|
    #  stream 40                          |reduce: 62 to 203 ...........|
    rows = []
    for at in range(0, 2_000, 500):
        rows += [
            *launched("gradient", at, at + 10, at + 60),
            call("cudaStreamWaitEvent", at + 6, at + 7),
            *launched("reduce", at + 8, at + 62, at + 203, stream=40, kind="collective"),
            *launched("next", at + 14, at + 61, at + 90),
            call("cudaStreamWaitEvent", at + 30, at + 31),
            *launched("update", at + 32, at + 205, at + 215),
        ]
    return trace(rows)


def test_a_collective_follows_its_gradients_and_the_update_follows_the_collective():
    graph = build(reduce_trace())
    assert graph.facts.event_waits == {"recorded": 0, "inferred": 8, "unresolved": 0}

    graph.select(kind="collective").scale(0.5)
    assert starts(graph)["reduce"] == 1_500 + 62
    assert starts(graph)["update"] == 1_500 + 62 + 70.5 + 2
    graph.select(name="gradient").scale(0.5)
    assert starts(graph)["reduce"] == 1_500 + 10 + 25 + 2


def test_a_synchronous_collective_is_waited_for_right_behind_its_launch():
    #  thread 1   |launch gradient|wait|launch reduce|wait|launch update|
    rows = []
    for at in range(0, 2_000, 500):
        rows += [
            *launched("gradient", at, at + 10, at + 60),
            call("cudaStreamWaitEvent", at + 6, at + 7),
            *launched("reduce", at + 8, at + 62, at + 203, stream=40, kind="collective"),
            call("cudaStreamWaitEvent", at + 14, at + 15),
            *launched("update", at + 16, at + 205, at + 215),
        ]
    graph = build(trace(rows))
    assert graph.facts.event_waits == {"recorded": 0, "inferred": 8, "unresolved": 0}

    graph.select(kind="collective").scale(0.5)
    assert starts(graph)["update"] == 1_500 + 62 + 70.5 + 2


def test_a_librarys_own_wait_orders_nothing():
    #  the library waits for its collective on a stream of its own; the next work goes on beside it
    rows = []
    for at in range(0, 2_000, 500):
        rows += [
            *launched("reduce", at, at + 10, at + 203, stream=40, kind="collective"),
            call("cudaStreamWaitEvent", at + 6, at + 7),
            *launched("next", at + 8, at + 20, at + 60),
        ]
    graph = build(trace(rows))

    assert graph.facts.event_waits == {"recorded": 0, "inferred": 4, "unresolved": 0}
    assert len(graph.waits) == 0


# -- CUDA graphs -------------------------------------------------------------------------------------


def test_a_hole_between_nodes_is_untraced_work_and_not_idle_time():
    #  stream 7  |a 10|hole 30|b 10|
    graph = build(graph_trace(("a", 10, 20, 7), ("b", 50, 60, 7)))
    assert graph.select(name="untraced").duration_ns.tolist() == [30_000]
    assert graph.facts.untraced_ns == 30_000
    assert any("1 hole" in note for note in graph.facts.notes)

    graph.select(on="gpu").scale(0.5)
    assert total(graph) == 10 + 5 + 15 + 5


def test_a_short_pause_between_nodes_is_their_start_up():
    graph = build(graph_trace(("a", 10, 20, 7), ("b", 22, 32, 7)))
    assert len(kernels(graph)) == 2

    graph.select(on="gpu").scale(0.5)
    assert total(graph) == 10 + 5 + 2 + 5


def test_a_stream_that_was_busy_before_the_window_has_untraced_work_at_its_head():
    #  the launch at 0 met a stream that was busy until 3,000
    graph = build(trace(launched("a", 0, 3_000, 3_100), launched("b", 10, 3_101, 3_201)))
    assert graph.select(name="untraced").duration_ns.tolist() == [3_000_000]

    graph.select(on="gpu").scale(0.5)
    assert total(graph) == pytest.approx(1_500 + 50 + 50, abs=2)


def test_work_in_the_queue_before_the_window_follows_the_work_before_it():
    #  stream 7  |a 2 to 12|b 14 to 24|c 40 to 50|d, launched at 20: 52 to 62|: the CPU had run ahead
    queued = [kernel("a", 2, 12, 90), kernel("b", 14, 24, 91), kernel("c", 40, 50, 92)]
    graph = build(trace(queued, launched("d", 20, 52, 62)))
    assert kernels(graph).release_ns.tolist() == [2_000, 0, 0, 0]
    assert total(graph) == 62
    named(graph, "a").scale(0)
    assert starts(graph)["c"] == 30


def test_work_behind_an_idle_device_begins_when_the_cpu_comes_to_it_though_its_call_was_not_recorded():
    rows = launched("a", 0, 10, 20), kernel("b", 130, 140, 9), launched("c", 120, 141, 150)
    graph = build(trace(rows))
    named(graph, "a").scale(0)
    assert starts(graph)["b"] == 130


def test_work_of_a_call_that_was_not_recorded_is_launched_by_the_operator_that_made_it():
    #  thread 1  |call a|relu 5 to 22|mm 22 to 34, its call is lost|call c 40|
    #  stream 7      |a 10 to 20|            |b 31 to 34|             |c 50 to 60|
    rows = [op("relu", 5, 22), op("mm", 22, 34), kernel("b", 31, 34, 9)]
    graph = build(trace(launched("a", 0, 10, 20), rows, launched("c", 40, 50, 60)))
    named(graph, "relu").scale(0)
    assert starts(graph)["b"] == 20 + 1  # 17 earlier, were its stream free then


def test_without_launches_a_stream_with_little_to_do_does_not_hold_the_others():
    #  stream 7  |a 400         |2|a 400         |2|a 400         |
    #  stream 8        |b 10 at 205: in the middle of a|  ...    |b at 607|
    graph = build(
        trace(
            [kernel("a", 402 * n, 402 * n + 400) for n in range(4)],
            [kernel("b", 402 * n + 205, 402 * n + 215, stream=8) for n in range(3)],
        )
    )
    assert total(graph) == 4 * 400 + 3 * 2
    assert graph.facts.unexplained == 0  # the device was never idle

    kernels(graph).scale(0)
    # Each b still comes 203 us behind the end of an a, but no longer 392 us behind the b before it.
    assert starts(graph)["b"] == pytest.approx(205 + 2 * 2, abs=2)


def test_without_launches_a_pause_of_the_whole_device_stays():
    #  stream 7  |a 0 to 100|          |c 310 to 330|
    #  stream 8                |b 200 to 210|
    rows = [kernel("a", 0, 100), kernel("b", 200, 210, stream=8), kernel("c", 310, 330)]
    graph = build(trace(rows, steps=(-50, 150, 400)))
    assert graph.facts.unexplained_ns == 200_000  # before b, and before c; the time before a is of no step
    graph.select(name="^[ab]$").scale(0)
    assert starts(graph)["c"] == 100 + 100


# -- collectives of several ranks --------------------------------------------------------------------


def test_ranks_whose_clocks_differ_are_left_apart_and_it_is_said():
    graph = build(ranks_trace(skew=500))

    assert any("clocks are not aligned" in note for note in graph.facts.notes)
    assert (named(graph, "reduce").duration_ns / 1000).tolist() == [70, 520]


def test_ranks_that_run_different_collectives_are_left_apart_and_it_is_said():
    graph = build(ranks_trace(other="gather"))

    assert any("different collectives" in note for note in graph.facts.notes)


@pytest.mark.parametrize(("samples", "cost"), [([5, 7], 42), ([5, 900, 7], 7), ([-1, 5, 7, 1001], 42)])
def test_three_samples_below_the_largest_make_a_typical_cost(samples, cost):
    assert _typical(np.array(samples), 1000, 42) == cost
