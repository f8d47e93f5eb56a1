"""Calls that stand blocked: in the queue, for the device, before a launch. Times in us, sums written out."""

import numpy as np
import pytest
from small_graphs import kernels, named
from small_traces import (
    blocked,
    call,
    full_queue_trace,
    graph_trace,
    kernel,
    launched,
    long_launch_trace,
    op,
    ranks_trace,
    rows,
    starts,
    sync_row,
    total,
    trace,
    waiting_trace,
)

from daydream import build, simulate
from daydream.graph.rules.streams import _typical

# -- launch queue ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "launches", "before"), [(2, 5, 0), (1, 3, 0), (1, 4, 1)])
def test_the_depth_of_a_full_queue_is_learned_and_the_waits_come_out_of_the_calls(depth, launches, before):
    graph = build(full_queue_trace(depth, launches, before=before))

    assert (graph.facts.queue_depth, graph.facts.queue_learned) == (depth, True)
    assert set(graph.select(kind="cpu").duration_ns) == {5_000}
    assert total(graph) == 105 + (launches - 1) * 101


def test_a_faster_gpu_frees_the_queue_sooner():
    graph = build(full_queue_trace())
    graph.select(on="gpu").scale(0.5)
    assert total(graph) == 55 + 4 * 51

    graph.select(on="gpu").scale(0)
    assert simulate(graph).wait_ns[graph.column("kind", simulate(graph).task) == "cpu"].sum() <= 2_000


@pytest.mark.parametrize("late", [0, 7])
def test_a_call_may_find_the_queue_full_a_place_early(late):
    #  a queue of 200, kernels of 10, calls of 1. From the 300th call on an event holds a place: each call
    #  stands blocked with 199 in flight until the next kernel ends. The last 20 come when all is done.
    #  One call seems to return before there is a place, as where times are rounded.
    ends = [15 + 10 * place for place in range(400)] + [5_000 + 10 * place for place in range(20)]
    found, now = [], 0
    for place in range(420):
        at = now if place < 400 else ends[place] - 12
        held = ends[place - 200] if 200 <= place < 300 else ends[place - 199] if 300 <= place < 400 else 0
        now = max(at + 1, held)
        early = late if place == 250 else 0
        found += [
            call("cudaLaunchKernel", at, now - early, place),
            kernel("k", ends[place] - 10, ends[place], place),
        ]
        now += 3 if place == 299 else 0
    graph = build(trace(found))
    assert (graph.facts.queue_depth, graph.facts.queue_learned) == (200, True)
    assert set(graph.select(on="cpu").duration_ns.tolist()) == {1_000}

    # The event's place is not kept: the CPU replays ahead by a kernel of 10 less its own call of 1.
    assert starts(graph)["k"] == ends[-1] - 10 - 9
    named(graph, "k").scale(0.1)  # nothing waits for a place any more: calls and pauses of the CPU
    assert starts(graph)["k"] == 400 + 3 + late + (ends[400] - 12 - ends[200]) + 19 * 10 + 2


def test_an_nvidia_queue_that_never_filled_is_assumed_and_a_rocm_one_is_not():
    text = "launch a 0 10 20\nlaunch b 30 40 50"

    assert build(trace(text)).facts.queue_depth == 1022
    assert not build(trace(text)).facts.queue_learned
    assert build(trace(text, vendor="rocm")).facts.queue_depth is None


# -- synchronization ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize",
     "hipStreamSynchronize", "cudaFree", "hipFree", "cudaHostAlloc", "block_until_ready"],
)  # fmt: skip
def test_a_blocking_call_ends_after_the_work_it_waits_for_plus_its_return(name):
    graph = build(blocked(name))
    assert starts(graph)["after"] == 120

    graph.select(on="gpu").scale(0.5)
    assert starts(graph)["after"] == 10 + 50 + 10
    graph.select(on="gpu").scale(0)
    assert starts(graph)["after"] <= 10 + 5 + 10  # what the call itself takes stays


def test_a_stream_synchronize_waits_for_the_stream_the_device_recorded():
    sync = [call("cudaStreamSynchronize", 15, 320, 9), sync_row("Stream Sync", 320, 9, stream=7)]
    graph = build(
        trace(
            """
            launch a 0 10 310
            launch b 5 20 300 stream=8
        """,
            sync,
            op("after", 320, 325),
        )
    )
    named(graph, "a").scale(0.1)

    assert starts(graph)["after"] == 10 + 30 + 10  # not b's 300


def test_a_synchronize_that_returned_before_the_work_was_done_is_left_alone_and_said():
    graph = build(blocked("cudaDeviceSynchronize", returned=60))

    assert len(graph.syncs) == 0
    assert any("returned before the work" in note for note in graph.facts.notes)
    for name in ("cudaDeviceSynchronize", "cudaFree"):  # clocks differ by 5
        assert len(build(blocked(name, returned=107)).syncs) == 1


# -- long launches -----------------------------------------------------------------------------------


def test_what_a_long_launch_does_before_it_submits_is_cpu_work():
    graph = build(long_launch_trace())
    assert starts(graph)["k"] == 401

    graph.select(on="cpu").scale(0)
    assert starts(graph)["k"] <= 100 + 6  # gaps stay, the 295 of loading are gone


# -- what ties streams together --------------------------------------------------------------------------

# -- event waits -------------------------------------------------------------------------------------


def side_rows(*, named):
    #  a library forks to streams 8 and 9 and joins them; its events are not recorded, the waiting streams are
    #  stream 7  |a: 10 to 110|                               |d: 232 to 242|
    #  stream 8                |b: 112 to 142|
    #  stream 9                |c: 112 to 230.................|
    found = []
    for place, (stream, at) in enumerate([(8, 6), (9, 16), (7, 30), (7, 34)]):
        found.append(call("cudaEventRecord", at, at + 1, 20 + place))
        found.append(call("cudaStreamWaitEvent", at + 2, at + 3, 30 + place))
        if named:
            found.append(sync_row("Stream Wait Event", at + 2, 30 + place, stream=stream))
    launches = """
        launch a 0 10 110
        launch b 10 112 142 stream=8
        launch c 20 112 230 stream=9
        launch d 40 232 242
    """
    return [*found, launches]


def reduce_trace():
    #  thread 1   |launch gradient|wait|launch reduce|launch next| ... |wait|launch update|
    #  stream 7        |gradient: 10 to 60|next: 61 to 90|                 |update: 205 to 215|
    #  stream 40                          |reduce: 62 to 203 ...........|
    step = """
        launch gradient 0 10 60
        call cudaStreamWaitEvent 6 7
        launch reduce 8 62 203 stream=40 kind=collective
        launch next 14 61 90
        call cudaStreamWaitEvent 30 31
        launch update 32 205 215
    """
    return trace(rows(step, times=4, every=500))


def recorded_waits():
    return waiting_trace(
        sync_row(
            "Stream Wait Event", 0.008 + n, 10 * n + 3, stream=8, wait_stream=7, wait_correlation=10 * n + 2
        )
        for n in range(10)
    )


def contradicted():
    #  b starts while a still runs, every time
    step = "launch a 0 10 210\ncall cudaStreamWaitEvent 8 9\nlaunch b 10 20 40 stream=8"
    return trace(rows(step, times=10, every=400))


def own_wait():
    #  the library waits for its collective on a stream of its own; the next work goes on beside it
    step = """
        launch reduce 0 10 203 stream=40 kind=collective
        call cudaStreamWaitEvent 6 7
        launch next 8 20 60
    """
    return trace(rows(step, times=4, every=500))


STARTS = {  # rows; what starts when (us), and how many waits there are: as recorded, and after each change
    #  thread 1  |launch 5|copy: enters at 10, done at 120, returns at 124|after 5|
    #  stream 7          |a 100 ...   |1|copy 9|
    "a pageable copy blocks its call until it is done": (
        """
            launch a 0 10 110
            call cudaMemcpyAsync 10 124 correlation=2
            memcpy Memcpy DtoH (Device -> Pageable) 111 120 correlation=2
            op after 124 129
        """,
        "after 124",
        "a 0.5: after 60+1+9+4",
    ),
    "of streams the one that time allows is waited for": (  # b had not ended when the call returned
        """
            launch a 0 10 60
            launch b 5 20 300 stream=8
            call cudaStreamSynchronize 15 70 correlation=9
            op after 70 75
        """,
        "a 0.5: after 10+25+10",
    ),
    #  thread 1  |launch a|record 10-12|launch b|sync: enters 20, a is done at 60, returns at 66|after|
    #  stream 7           |a: 10 to 60            |1|b: 61 to 200
    "an event is waited for as far as its record": (
        """
            launch a 0 10 60
            call cudaEventRecord 10 12 correlation=8
            launch b 12 61 200
            call cudaEventSynchronize 20 66 correlation=9
            op after 66 70
        """,
        "after 66",
        "a 0.5: after 10+25+6",
        "b 9: after 10+25+6",
    ),
    "a synchronize that found the device idle waits for work that takes longer": (
        """
            launch a 0 10 20
            call cudaDeviceSynchronize 50 55 correlation=9
            op after 55 60
        """,
        "after 55",
        "a 9: after 10+90+5",
    ),
    "work behind a wait follows the work before the record": (
        waiting_trace,
        "recorded 0, inferred 10, unresolved 0, b 3600+212",
        "a 0.5: b 3600+10+100+2",
    ),
    "a recorded wait names its record": (
        recorded_waits,
        "recorded 10, inferred 0, unresolved 0",
        "a 0.5: b 3600+10+100+2",
    ),
    "waits of known streams for unknown events follow the open work": (
        lambda: trace(side_rows(named=True)),
        "recorded 0, inferred 4, unresolved 0",
        "a 0.5: b 62, c 62, d 182",
        "c 0.1: d 62+30+2",  # 11.8: b is now the later of the two
    ),
    "a wait that the times contradict is not drawn": (
        contradicted,
        "recorded 0, inferred 0, unresolved 10, waits 0",
    ),
    "a library's own wait orders nothing": (own_wait, "recorded 0, inferred 4, unresolved 0, waits 0"),
    "a collective follows its gradients, the update the collective": (
        reduce_trace,
        "recorded 0, inferred 8, unresolved 0",
        "reduce 0.5: reduce 1500+62, update 1500+62+70.5+2",
        "gradient 0.5: reduce 1500+10+25+2",
    ),
    "work behind an idle device begins when the CPU comes to it": (  # b's call was not recorded
        """
            launch a 0 10 20
            kernel b 130 140 correlation=9
            launch c 120 141 150
        """,
        "a 0: b 130",
    ),
    #  thread 1  |call a|relu 5 to 22|mm 22 to 34, its call is lost|call c 40|
    #  stream 7      |a 10 to 20|            |b 31 to 34|             |c 50 to 60|
    "work of a lost call is launched by the operator that made it": (
        """
            launch a 0 10 20
            op relu 5 22
            op mm 22 34
            kernel b 31 34 correlation=9
            launch c 40 50 60
        """,
        "relu 0: b 20+1",  # 17 earlier, were its stream free then
    ),
    "work of a lost number is launched by the call whose name launches": (
        """
            call cudaLaunchKernel 0 5 correlation=1
            kernel a 10 20 correlation=1
            call cudaLaunchKernel 22 28
            kernel b 31 34 correlation=9
            call cuLaunchKernel 40 45 correlation=3
            kernel c 50 60 correlation=3
        """,
        "cudaLaunchKernel 0: b 26",
    ),
}


@pytest.mark.parametrize("case", STARTS)
def test_what_starts_when(case):
    recorded, *stages = STARTS[case]
    graph = build(trace(recorded) if isinstance(recorded, str) else recorded())
    for stage in stages:
        *changed, expected = stage.split(": ")
        for name, factor in map(str.split, changed):
            named(graph, name).scale(float(factor))
        found = starts(graph) | graph.facts.event_waits | {"waits": len(graph.waits)}
        for name, at in map(str.split, expected.split(", ")):
            assert found[name] == sum(map(float, at.split("+")))


# -- CUDA graphs -------------------------------------------------------------------------------------


def test_a_hole_between_nodes_is_untraced_work_and_not_idle_time():
    #  stream 7  |a 10|hole 30|b 10|
    graph = build(graph_trace(("a", 10, 20, 7), ("b", 50, 60, 7)))
    assert graph.select(name="untraced").duration_ns.tolist() == [30_000]
    assert graph.facts.untraced_ns == 30_000
    assert any("1 hole" in note for note in graph.facts.notes)

    graph.select(on="gpu").scale(0.5)
    assert total(graph) == 10 + 5 + 15 + 5


def test_a_stream_that_was_busy_before_the_window_has_untraced_work_at_its_head():
    #  the launch at 0 met a stream that was busy until 3,000
    graph = build(
        trace("""
        launch a 0 3000 3100
        launch b 10 3101 3201
    """)
    )
    assert graph.select(name="untraced").duration_ns.tolist() == [3_000_000]

    graph.select(on="gpu").scale(0.5)
    assert total(graph) == pytest.approx(1_500 + 50 + 50, abs=2)


def test_work_in_the_queue_before_the_window_follows_the_work_before_it():
    #  stream 7  |a 2 to 12|b 14 to 24|c 40 to 50|d, launched at 20: 52 to 62|: the CPU had run ahead
    queued = [
        """
        kernel a 2 12 correlation=90
        kernel b 14 24 correlation=91
        kernel c 40 50 correlation=92
    """
    ]
    graph = build(trace(queued, launched("d", 20, 52, 62)))
    assert kernels(graph).release_ns.tolist() == [2_000, 0, 0, 0]
    assert total(graph) == 62
    named(graph, "a").scale(0)
    assert starts(graph)["c"] == 30


def test_without_launches_a_stream_with_little_to_do_does_not_hold_the_others():
    #  stream 7  |a 400         |2|a 400         |2|a 400         |
    #  stream 8        |b 10 at 205: in the middle of a|  ...    |b at 607|
    graph = build(
        trace(
            rows("kernel a 0 400 correlation=-1", times=4, every=402),
            rows("kernel b 205 215 correlation=-1 stream=8", times=3, every=402),
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
    text = "kernel a 0 100\nkernel b 200 210 stream=8\nkernel c 310 330"
    graph = build(trace(text, steps=(-50, 150, 400)))
    assert graph.facts.unexplained_ns == 200_000  # before b, and before c; the time before a is of no step
    graph.select(name="^[ab]$").scale(0)
    assert starts(graph)["c"] == 100 + 100


# -- collectives of several ranks --------------------------------------------------------------------


def test_ranks_whose_clocks_differ_are_left_apart_and_it_is_said():
    graph = build(ranks_trace(skew=500))

    assert any("clocks are not aligned" in note for note in graph.facts.notes)
    assert (named(graph, "reduce").duration_ns / 1000).tolist() == [70, 520]
    assert not [note for note in build(ranks_trace(skew=100)).facts.notes if "apart" in note]


@pytest.mark.parametrize(("samples", "cost"), [([5, 7], 42), ([5, 900, 7], 7), ([-1, 5, 7, 1001], 42)])
def test_three_samples_below_the_largest_make_a_typical_cost(samples, cost):
    assert _typical(np.array(samples), 1000, 42) == cost


def test_a_synchronous_collective_is_waited_for_right_behind_its_launch():
    #  thread 1   |launch gradient|wait|launch reduce|wait|launch update|
    step = """
        launch gradient 0 10 60
        call cudaStreamWaitEvent 6 7
        launch reduce 8 62 203 stream=40 kind=collective
        call cudaStreamWaitEvent 14 15
        launch update 16 205 215
    """
    graph = build(trace(rows(step, times=4, every=500)))
    assert graph.facts.event_waits == {"recorded": 0, "inferred": 8, "unresolved": 0}

    graph.select(kind="collective").scale(0.5)
    assert starts(graph)["update"] == 1_500 + 62 + 70.5 + 2


def test_a_short_pause_between_nodes_is_their_start_up():
    graph = build(graph_trace(("a", 10, 20, 7), ("b", 22, 32, 7)))
    assert len(kernels(graph)) == 2

    graph.select(on="gpu").scale(0.5)
    assert total(graph) == 10 + 5 + 2 + 5
