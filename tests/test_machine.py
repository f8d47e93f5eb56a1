"""The machine model against sums written out by hand, on machines small enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from machine import (
    Costs,
    Machine,
    Program,
    Row,
    Run,
    annotation,
    backward,
    cpu,
    device_sync,
    event_sync,
    free,
    graph_launch,
    launch,
    memcpy,
    memset,
    op,
    put,
    python,
    query,
    record,
    sleep,
    stream_sync,
    take,
    wait,
)
from machine.engine import Instruction

TINY = Costs(
    launch=6, graph_launch=9, memcpy=7, memset=5, record=2, wait_event=2, query=1,
    sync_entry=3, sync_return=4, copy_return=5, free_entry=2, free_return=3, wake=8, step_gap=0,
    launch_latency=4, spacing=1, graph_spacing=0, event_latency=2,
)  # fmt: skip


def run(*step: Instruction, depth: int = 100, steps: int = 1, others: Any = None, **knobs: Any) -> Run:
    program = Program(lambda _number: step, others or {})
    return Machine(program, queue_depth=depth, costs=TINY, steps=steps).run(**knobs)


def spans(rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    return [(row.name, row.start, row.end) for row in rows]


def times(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return [(row.start, row.end) for row in rows]


def test_a_kernel_starts_a_latency_after_its_launch_began_even_before_the_call_returns():
    #  main      |launch a 6|launch b 6|
    #  stream 7      |a 3|        |b 3|
    result = run(launch(7, "a", 3), launch(7, "b", 3))

    assert times(result.host) == [(0, 6), (6, 12)]
    assert spans(result.device) == [("a", 4, 7), ("b", 10, 13)]


def test_kernels_of_a_stream_follow_each_other_with_the_spacing_between_them():
    #  main      |launch a 6|launch b 6|
    #  stream 7      |a 20          |1|b 20
    result = run(launch(7, "a", 20), launch(7, "b", 20))

    assert spans(result.device) == [("a", 4, 24), ("b", 25, 45)]


def test_streams_run_beside_each_other():
    result = run(launch(7, "a", 20), launch(8, "b", 20))

    assert spans(result.device) == [("a", 4, 24), ("b", 10, 30)]


def test_a_launch_that_finds_the_queue_full_blocks_at_entry_and_then_takes_its_cost():
    #  main      |a 6|b 6|c: wait 12, 6 |          depth 2: c is taken when a ends, at 24
    #  stream 7     |a 20    |1|b 20     |1|c 20
    result = run(launch(7, "a", 20), launch(7, "b", 20), launch(7, "c", 20), depth=2)

    assert times(result.host) == [(0, 6), (6, 12), (12, 24 + 6)]
    assert [row.wait for row in result.host] == [0, 0, 12]
    assert times(result.device) == [(4, 24), (25, 45), (46, 66)]


def test_each_stream_has_a_queue_of_its_own():
    result = run(launch(7, "a", 90), launch(7, "b", 90), launch(8, "c", 9), depth=2)

    assert times(result.host) == [(0, 6), (6, 12), (12, 18)]


def test_copies_and_memsets_take_queue_slots_too():
    result = run(memset(7, 40, 64), memcpy(7, "htod_pinned", 40, 64), launch(7, "c", 1), depth=1)

    #  memset 4-44; the copy is taken at 44, runs 48-88; c is taken at 88
    assert times(result.host) == [(0, 5), (5, 44 + 7), (51, 88 + 6)]


def test_a_graph_launch_is_one_call_one_slot_and_many_kernels():
    #  main      |graph 9|graph: wait 15, 9|
    #  stream 7     |a 10|b 10|               depth 1: the slot is free when b ends, at 24
    nodes = [("a", 10), ("b", 10)]
    result = run(graph_launch(7, nodes), graph_launch(7, nodes), depth=1)

    assert times(result.host) == [(0, 9), (9, 24 + 9)]
    assert spans(result.device) == [("a", 4, 14), ("b", 14, 24), ("a", 28, 38), ("b", 38, 48)]
    assert [row.correlation for row in result.device] == [result.host[0].correlation] * 2 + [
        result.host[1].correlation
    ] * 2


@pytest.mark.parametrize(("call", "stream_only"), [(device_sync(), False), (stream_sync(7), True)])
def test_a_synchronize_takes_its_entry_then_waits_then_its_return(call, stream_only):
    #  main      |a 6|b 6|sync: 3, wait, 4|
    #  stream 7     |a 20      |
    #  stream 8         |b 40               |
    result = run(launch(7, "a", 20), launch(8, "b", 40), call)
    done = 24 if stream_only else 50

    assert times(result.host)[-1] == (12, done + 4)
    assert result.host[-1].wait == done - (12 + 3)


def test_a_synchronize_with_nothing_to_wait_for_takes_entry_and_return():
    assert times(run(device_sync()).host) == [(0, 3 + 4)]


def test_free_waits_for_the_whole_device():
    result = run(launch(8, "a", 20), free())

    assert times(result.host) == [(0, 6), (6, 24 + 3)]


def test_an_event_synchronize_waits_only_for_the_work_before_the_record():
    #  main      |a 6|record 2|b 6|sync 3, wait, 4|
    #  stream 7     |a 20        |1|b 20
    result = run(launch(7, "a", 20), record("e", 7), launch(7, "b", 20), event_sync("e"))

    assert times(result.host)[-1] == (14, 24 + 4)


def test_a_pageable_copy_blocks_until_its_own_end_and_a_pinned_one_does_not():
    #  main      |a 6|copy 7, wait, 5|
    #  stream 7     |a 20        |1|copy 10|
    blocking = run(launch(7, "a", 20), memcpy(7, "dtoh_pageable", 10, 4), launch(7, "b", 1))
    free_running = run(launch(7, "a", 20), memcpy(7, "htod_pinned", 10, 4), launch(7, "b", 1))

    assert times(blocking.host) == [(0, 6), (6, 35 + 5), (40, 46)]
    assert blocking.host[1].wait == 35 - 13
    assert times(blocking.device) == [(4, 24), (25, 35), (44, 45)]
    assert times(free_running.host) == [(0, 6), (6, 13), (13, 19)]


def test_a_stream_waits_for_the_event_as_it_was_recorded_last():
    #  main      |a 6|record 2|b 6|wait 2|c 6|
    #  stream 7     |a 20        |1|b 20       the event is a's end
    #  stream 8                  |2|c 5
    result = run(launch(7, "a", 20), record("e", 7), launch(7, "b", 20), wait(8, "e"), launch(8, "c", 5))

    assert spans(result.device) == [("a", 4, 24), ("b", 25, 45), ("c", 24 + 2, 31)]


def test_waiting_for_an_event_that_was_never_recorded_does_nothing():
    result = run(wait(8, "e"), launch(8, "c", 5))

    assert times(result.device) == [(2 + 4, 11)]


def test_an_event_recorded_behind_a_wait_is_complete_no_sooner_than_what_was_waited_for():
    result = run(launch(7, "a", 50), record("e", 7), wait(8, "e"), record("f", 8), event_sync("f"))

    #  a 4-54; stream 8 is past its wait at 56
    assert times(result.host)[-1] == (12, 56 + 4)


def test_operators_nest_and_own_their_time():
    #  |outer: 3 |inner: 2 |launch 6| 1 | 4 |
    result = run(op("outer", 3, [op("inner", 2, [launch(7, "k", 1)], 1)], 4), python(5), cpu("next", 7))

    assert spans(result.host) == [
        ("outer", 0, 16), ("inner", 3, 12), ("cudaLaunchKernel", 5, 11), ("next", 21, 28)]  # fmt: skip
    outer, inner, call, _ = result.host
    assert call.external == inner.external != outer.external
    assert result.device[0].external == inner.external


def test_an_annotation_is_a_range_of_its_own_kind():
    row = run(annotation("range", [cpu("inside", 4)], own=2)).host[0]

    assert (row.category, row.start, row.end) == ("user_annotation", 0, 6)


def test_backward_runs_on_the_autograd_thread_while_the_caller_stands():
    #  main      |forward 10|                            |8|step 5|
    #  autograd             |8|grad 20|launch 6|
    result = run(cpu("forward", 10), backward([cpu("grad", 20), launch(7, "k", 1)]), cpu("step", 5))

    assert [(row.lane, *span) for row, span in zip(result.host, spans(result.host), strict=True)] == [
        ("main", "forward", 0, 10), ("autograd", "grad", 18, 38),
        ("autograd", "cudaLaunchKernel", 38, 44), ("main", "step", 52, 57)]  # fmt: skip


def test_a_taker_stands_until_another_thread_puts_and_then_wakes():
    #  loader    |load 30|load 30|
    #  main      |-------|8|step 5|---|8|step 5|
    def loader():
        while True:
            yield cpu("load", 30)
            yield put("batch")

    result = run(take("batch"), cpu("step", 5), steps=2, others={"loader": loader})

    assert [times([row])[0] for row in result.host if row.name == "step"] == [(38, 43), (68, 73)]


def test_taking_what_is_there_already_costs_nothing():
    result = run(put("room"), take("room"), cpu("step", 5))

    assert times(result.host) == [(0, 5)]


def test_a_watchdog_polls_in_its_own_time_and_disturbs_nobody():
    def watchdog():
        while True:
            yield query()
            yield sleep(9)

    result = run(cpu("step", 25), launch(7, "k", 1), others={"watchdog": watchdog})

    assert times([row for row in result.host if row.lane == "main"]) == [(0, 25), (25, 31)]
    polls = times([row for row in result.host if row.lane == "watchdog"])
    assert polls[:3] == [(0, 1), (10, 11), (20, 21)]


def test_a_rerun_scales_device_work_but_neither_latency_nor_spacing():
    program = (launch(7, "a", 21), launch(7, "b", 21))

    assert times(run(*program, gpu=0.5).device) == [(4, 15), (16, 27)]  # 10.5 is rounded up
    assert times(run(*program, gpu=0).device) == [(4, 4), (10, 10)]


def test_a_rerun_scales_cpu_costs_of_every_kind_but_no_latency():
    program = (python(10), launch(7, "a", 20), device_sync(), backward([cpu("grad", 4)]), cpu("end", 2))
    half, nothing = run(*program, cpu=0.5), run(*program, cpu=0)

    #  python 5, launch 3, sync until 5 + 4 + 20 = 29 and 2 back, wake 4, grad 2, wake 4, end 1
    assert times(half.host) == [(5, 8), (8, 31), (35, 37), (41, 42)]
    assert times(nothing.host) == [(0, 0), (0, 24), (24, 24), (24, 24)]


def test_a_rerun_can_have_another_queue_depth():
    program = (launch(7, "a", 20), launch(7, "b", 20), launch(7, "c", 20))

    assert run(*program, depth=100).host[-1].wait == 0
    assert run(*program, depth=100, queue_depth=1).host[-1].wait > 0


def test_a_step_is_complete_when_the_last_work_launched_in_it_ends():
    #  main      |a 6|     |a 6|
    #  stream 7     |a 50       |1|a 50 |
    result = run(launch(7, "a", 50), cpu("rest", 4), steps=3)

    assert result.step_starts == [0, 10, 20]
    assert result.step_completions == [54, 105, 156]
    assert result.step_times() == [51, 51]
    assert result.step_times(skip=1) == [51]
    assert result.steady_step_ns(last=2) == 51
