"""Data loader, pinned memory, prefetch: each answer worked out by hand."""

import numpy as np
import pytest
from daydream.optimizations._input import dataloader, pinned_memory, prefetch
from graph.small_graphs import named, names, put
from graph.small_traces import call, launched, note, trace
from recorded import (
    answers,
    change,
    does_not_apply,
    makespan,
    refusals,
    thread_and_stream,
    wait_before,
)
from shared import shared_replay, shared_trace

import daydream
from daydream import Graph, NotApplicableError, Trace
from daydream.transforms.registry import find

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
FETCH = 5e-6  # ms, so 5 ns


def two_batches():
    #  main  |load 50|compute 20|load 50|compute 20|
    graph = Graph()
    for step in (0, 1):
        put(graph, "load", "main", 50, phase="data", step=step)
        put(graph, "compute", "main", 20, phase="forward", step=step)
    return graph


def test_several_threads_that_load_are_no_work_of_the_main_thread():
    graph = two_batches()
    for step in (0, 1):
        put(graph, "load", "pipeline", 60, phase="data", step=step)
    dataloader(graph.copy(), get_ms=FETCH)
    by_workers = change(two_batches(), f"dataloader workers=2 get_ms={FETCH}")
    assert set(by_workers.select(phase="data", name="load").lane) == {"loader workers"}
    does_not_apply("several threads load already", dataloader, graph, workers=2, get_ms=FETCH)


def test_workers_are_predicted_from_a_trace_without_any():
    # Two recordings of one training run, with no worker and with four. Predicted from the first alone.
    before = shared_replay("kineto/v100_resnet50_loader_workers_0.json.gz")
    after = shared_replay("kineto/v100_resnet50_loader_workers_4.json.gz")
    for options in ({}, {"workers": 4}):
        predicted = daydream.whatif(before, "dataloader", **options)
        assert predicted.predicted_ns == pytest.approx(after.measured_ns, rel=0.12)
    assert before.measured_ns > 1.2 * after.measured_ns


def test_where_workers_load_already_their_cost_is_unknown():
    replay = shared_replay("kineto/v100_resnet50_loader_workers_4.json.gz")
    with pytest.raises(NotApplicableError, match="not recorded"):
        daydream.whatif(replay, "dataloader", workers=8)


# Copies


def pinned():
    return change(a_blocking_copy(), "pinned-memory bandwidth=10")


def a_blocking_copy():
    #  thread  |copy 6|waits until 54, 3|launch 6|        stream  4|copy 50|      57+4 |k 20|
    graph = thread_and_stream((PAGEABLE, 50, "forward"), ("k", 20, "forward"))
    copy = graph.select(kind="memcpy").set(bytes=100_000)
    wait = wait_before(graph, named(graph, "k").launches(), "cudaStreamSynchronize", phase="forward")
    # One operator does both: rows of one call, as a trace would have it.
    graph.columns["row"][wait] = graph.columns["row"][copy.launches().ids[0]] = 0
    graph.trace = recorded_copy()
    assert makespan(graph) == 4 + 50 + 3 + 4 + 20
    return graph


def recorded_copy():
    columns = {
        "kind": np.array([0]),
        "name": np.array([0]),
        "start_ns": np.array([0]),
        "duration_ns": np.array([1]),
    }
    return Trace({**columns, "parent": np.array([-1])}, {"kind": ["operator"], "name": ["aten::copy_"]})


def test_a_pinned_copy_does_not_hold_up_the_thread():
    #  thread  |copy 6|launch 6|      stream  4|copy 10|k 20|
    graph = a_blocking_copy()
    pinned_memory(graph, bandwidth=1e4)  # 100,000 B at 10,000 GB/s: 10 ns
    assert makespan(graph) == 4 + 10 + 20
    assert len(graph.select(kind="cpu").waiting()) == 0
    assert names(graph.select(kind="memcpy")) == "Memcpy HtoD (Pinned -> Device)"


def test_a_prefetched_batch_costs_the_step_nothing():
    #  thread  |copy 6|launch 6|      stream 7  4+6 |k 20|      prefetch stream  4|copy 50|
    graph = thread_and_stream("Memcpy HtoD (Pinned -> Device) 50 forward, k 20 forward")
    graph.select(kind="memcpy").set(bytes=100_000)
    assert makespan(graph) == 4 + 50 + 20
    prefetch(graph)
    assert makespan(graph) == 4 + 50  # a copy longer than the step is what is left
    graph.select(kind="memcpy").set(duration_ns=5)
    assert makespan(graph) == 6 + 4 + 20


def test_prefetch_refuses_small_copies_and_streams_of_their_own():
    graph = thread_and_stream("Memcpy HtoD (Pinned -> Device) 50 forward, k 20 forward")
    graph.select(kind="memcpy").set(bytes=100)
    does_not_apply("64 KiB or more", prefetch, graph)
    graph.select(kind="memcpy").set(bytes=100_000)
    prefetch(graph)
    does_not_apply("stream of their own", prefetch, graph)


# Loaders that no range shows


def bursts_of_two(cycles=8, unit=1):
    #  thread  |copy 5|launch 5|(nothing) 5|copy 5|launch 5|(nothing) 75|copy ...
    #  stream         |copy 2| |k 6|           2|  6|
    # Two workers take 100 us a batch each: two batches come every 100 us.
    rows = []
    for n in range(2 * cycles):
        at = unit * (100 * (n // 2) + 15 * (n % 2))
        rows += launched("Memcpy HtoD (Pinned -> Device)", at, at + 1, at + 3, 2 * n + 1, kind="memcpy")
        rows += launched("k", at + 5, at + 6, at + 12, 2 * n + 2)
    starts = [float(unit * (100 * (n // 2) + 15 * (n % 2))) for n in range(2 * cycles + 1)]
    return trace(rows, steps=tuple(starts))


@pytest.mark.parametrize("recorded", [None, 3])
def test_as_many_workers_as_were_recorded_give_the_steps_that_were(recorded):
    replay = daydream.replay(bursts_of_two())
    workers = recorded or 2
    predicted = daydream.whatif(replay, "dataloader", workers=workers, recorded=recorded, get_ms=FETCH)
    assert predicted.predicted_ns == pytest.approx(replay.measured_ns, rel=1e-3)


def test_workers_that_were_not_waited_for_while_the_program_warmed_up_are_no_slower():
    # Four workers gave batches in bursts of 4; the first eight were there before the recorded steps began.
    replay = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz")
    four, eight = (daydream.whatif(replay, "dataloader", workers=count) for count in (4, 8))
    assert four.predicted_ns == pytest.approx(replay.measured_ns, rel=1e-3)
    assert eight.predicted_ns == pytest.approx(replay.measured_ns / 2, rel=0.1)


def test_without_a_number_of_workers_loading_is_hidden_whole_where_some_load_already_too():
    replay = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz")
    hidden, many = daydream.whatif(replay, "dataloader"), daydream.whatif(replay, "dataloader", workers=64)
    assert hidden.predicted_ns <= many.predicted_ns < replay.measured_ns / 2
    assert any("4 of them as batches come in bursts" in note for note in hidden.to_json()["notes"])


@pytest.mark.parametrize("change", ["pinned-memory", "remove-sync", "amp", "prefetch"])
def test_where_a_step_waits_for_worker_processes_they_may_set_its_pace(change):
    # Four workers, measured 333.6 ms a step: the rest of the step is faster, or only waits longer for them.
    replay = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz")
    answer = daydream.whatif(replay, change)
    assert answer.predicted_ns <= 333.6e6 <= 1.001 * answer.predicted_high_ns


def test_a_trace_suggests_twice_the_workers_that_load_already():
    replay = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz")
    assert find("dataloader").suggested_options(replay.graph) == {"workers": 8}
    alone = shared_replay("kineto/v100_resnet50_loader_workers_0.json.gz")
    assert find("dataloader").suggested_options(alone.graph) == {}


def test_explain_tells_the_wait_for_a_batch_that_no_range_shows():
    # Milliseconds here: what Python does between two steps is shorter.
    explanation = daydream.explain(daydream.replay(bursts_of_two(unit=1000)))
    first = explanation.avoidable[0]
    assert (first.sort, first.best.optimization) == ("data loading", "dataloader")
    assert "idle gap" not in {cost.sort for cost in explanation.avoidable}


def test_the_loader_of_a_3d_unet_is_seen_before_its_copies():
    # Two workers give batches in pairs every 1.5 s; with 16 the device is what holds up a step.
    path = shared_trace("pairs/unet3d_a100/baseline.sqlite.gz")
    replay = daydream.replay(daydream.load(path, step_marker=r"^step \d+"))
    two, sixteen = (daydream.whatif(replay, "dataloader", workers=count) for count in (2, 16))
    assert two.predicted_ns == pytest.approx(replay.measured_ns, rel=0.02)
    assert sixteen.predicted_ns == pytest.approx(132e6, rel=0.05)


@pytest.mark.parametrize(
    ("wait", "whole", "faster"), [(80e3, 100e3, 90e3), (30e3, 100e3, 65e3), (80, 100, 92.5)]
)
def test_a_wait_for_workers_keeps_its_length_unless_they_set_the_pace(wait, whole, faster):
    #  thread  |wait for a batch 80 ms|launch, synchronize 20|
    #  stream                          |k                   |
    rows = []
    for n in range(10):
        begin, at, end = n * whole, n * whole + wait, (n + 1) * whole
        rows += [note(LOADER, begin, at, phase="data"), *launched("k", at, at + 5, end, n)]
        rows += [call("cudaDeviceSynchronize", at + 5, end)]
    replay = daydream.replay(trace(rows, steps=tuple(whole * n for n in range(11))))
    predicted = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    assert predicted.predicted_ns == pytest.approx(faster * 1e3, rel=0.02)
    assert predicted.predicted_high_ns >= 0.999e3 * whole


test_loading_and_copies = answers(
    globals(),
    {
        "loading is hidden but for fetching the batch": (
            "two_batches",
            "dataloader get_ms=5e-6",
            "140 to 50, CPU 50, 0 launches: ",
        ),
        "batches at 50 and 100 hold up the step": (
            "two_batches",
            "dataloader workers=1 get_ms=5e-6",
            "140 to 125, CPU 150, 0 launches: ",
        ),
        "the second batch is there at 50, when it is asked for": (
            "two_batches",
            "dataloader workers=2 get_ms=5e-6",
            "140 to 75, CPU 100, 0 launches: ",
        ),
        "workers enough": (
            "two_batches",
            "dataloader workers=5 get_ms=5e-6",
            "140 to 60, CPU 70, 0 launches: ",
        ),
    },
)

test_what_cannot_be_loaded_or_copied_otherwise_is_refused = refusals(globals())
