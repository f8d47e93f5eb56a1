"""Calls that stand blocked: in the queue, for the device, before a launch. Times in us, sums written out."""

import pytest
from rule_traces import blocked, full_queue_trace, long_launch_trace
from small_graphs import kernels, named
from small_traces import call, kernel, launched, op, starts, sync_row, total, trace

from daydream import build, simulate

# -- launch queue ------------------------------------------------------------------------------------


def test_the_depth_of_a_full_queue_is_learned_and_the_waits_come_out_of_the_calls():
    graph = build(full_queue_trace())

    assert (graph.facts.queue_depth, graph.facts.queue_learned) == (2, True)
    assert (graph.select(kind="cpu").duration_ns / 1000).tolist() == [5, 5, 5, 5, 5]
    assert total(graph) == 105 + 4 * 101


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
    rows, now = [], 0
    for place in range(420):
        at = now if place < 400 else ends[place] - 12
        held = ends[place - 200] if 200 <= place < 300 else ends[place - 199] if 300 <= place < 400 else 0
        now = max(at + 1, held)
        early = late if place == 250 else 0
        rows += [
            call("cudaLaunchKernel", at, now - early, place),
            kernel("k", ends[place] - 10, ends[place], place),
        ]
        now += 3 if place == 299 else 0
    graph = build(trace(rows))
    assert (graph.facts.queue_depth, graph.facts.queue_learned) == (200, True)
    assert set(graph.select(on="cpu").duration_ns.tolist()) == {1_000}

    # The event's place is not kept: the CPU replays ahead by a kernel of 10 less its own call of 1.
    assert starts(graph)["k"] == ends[-1] - 10 - 9
    named(graph, "k").scale(0.1)  # nothing waits for a place any more: calls and pauses of the CPU
    assert starts(graph)["k"] == 400 + 3 + late + (ends[400] - 12 - ends[200]) + 19 * 10 + 2


def test_an_nvidia_queue_that_never_filled_is_assumed_and_a_rocm_one_is_not():
    rows = [launched("a", 0, 10, 20), launched("b", 30, 40, 50)]

    assert build(trace(rows)).facts.queue_depth == 1022
    assert not build(trace(rows)).facts.queue_learned
    assert build(trace(rows, vendor="rocm")).facts.queue_depth is None


# -- synchronization ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cuCtxSynchronize", "hipDeviceSynchronize",
     "hipStreamSynchronize", "cudaFree", "hipFree", "cudaHostAlloc"],
)  # fmt: skip
def test_a_blocking_call_ends_after_the_work_it_waits_for_plus_its_return(name):
    graph = build(blocked(name))
    assert starts(graph)["after"] == 120

    graph.select(on="gpu").scale(0.5)
    assert starts(graph)["after"] == 10 + 50 + 10
    graph.select(on="gpu").scale(0)
    assert starts(graph)["after"] <= 10 + 5 + 10  # what the call itself takes stays


def test_a_pageable_copy_blocks_its_call_until_it_is_done():
    #  thread 1  |launch 5|copy: enters at 10, done at 120, returns at 124|after 5|
    #  stream 7          |a 100 ...   |1|copy 9|
    name = "Memcpy DtoH (Device -> Pageable)"
    graph = build(
        trace(
            launched("a", 0, 10, 110),
            call("cudaMemcpyAsync", 10, 124, 2),
            kernel(name, 111, 120, 2, kind="memcpy"),
            op("after", 124, 129),
        )
    )
    assert starts(graph)["after"] == 124

    kernels(graph).scale(0.5)
    assert starts(graph)["after"] == 60 + 1 + 9 + 4


def two_streams(sync):
    #  stream 7  |a: 10 to 60|       stream 8  |b: 20 to 300|
    return build(
        trace(launched("a", 0, 10, 60), launched("b", 5, 20, 300, stream=8), sync, op("after", 70, 75))
    )


def test_a_stream_synchronize_waits_for_the_stream_that_time_allows():
    graph = two_streams([call("cudaStreamSynchronize", 15, 70, 9)])
    named(graph, "a").scale(0.5)  # b was launched last, but had not ended when the call returned

    assert starts(graph)["after"] == 10 + 25 + 10


def test_a_stream_synchronize_waits_for_the_stream_the_device_recorded():
    sync = [call("cudaStreamSynchronize", 15, 320, 9), sync_row("Stream Sync", 320, 9, stream=7)]
    graph = build(
        trace(launched("a", 0, 10, 310), launched("b", 5, 20, 300, stream=8), sync, op("after", 320, 325))
    )
    named(graph, "a").scale(0.1)

    assert starts(graph)["after"] == 10 + 30 + 10  # not b's 300


def test_an_event_synchronize_waits_for_the_work_before_the_record():
    #  thread 1  |launch a|record 10-12|launch b|sync: enters 20, a is done at 60, returns at 66|after|
    #  stream 7           |a: 10 to 60            |1|b: 61 to 200
    graph = build(
        trace(
            launched("a", 0, 10, 60), call("cudaEventRecord", 10, 12, 8), launched("b", 12, 61, 200),
            call("cudaEventSynchronize", 20, 66, 9), op("after", 66, 70),
        )
    )  # fmt: skip
    assert starts(graph)["after"] == 66
    named(graph, "a").scale(0.5)
    assert starts(graph)["after"] == 10 + 25 + 6
    named(graph, "b").scale(9)
    assert starts(graph)["after"] == 10 + 25 + 6


def test_a_synchronize_that_returned_before_the_work_was_done_is_left_alone_and_said():
    graph = build(blocked("cudaDeviceSynchronize", returned=60))

    assert len(graph.syncs) == 0
    assert any("returned before the work" in note for note in graph.facts.notes)


def test_a_synchronize_that_found_the_device_idle_still_waits_for_work_that_takes_longer():
    graph = build(
        trace(launched("a", 0, 10, 20), call("cudaDeviceSynchronize", 50, 55, 9), op("after", 55, 60))
    )
    assert starts(graph)["after"] == 55

    graph.select(on="gpu").scale(9)
    assert starts(graph)["after"] == 10 + 90 + 5


# -- long launches -----------------------------------------------------------------------------------


def test_what_a_long_launch_does_before_it_submits_is_cpu_work():
    graph = build(long_launch_trace())
    assert starts(graph)["k"] == 401

    graph.select(on="cpu").scale(0)
    assert starts(graph)["k"] <= 100 + 6  # gaps stay, the 295 of loading are gone
