"""The machine model against sums written out by hand, on machines small enough to draw."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest
from machine import (
    Blocked,
    Costs,
    Machine,
    Program,
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
    read_word,
    record,
    sleep,
    stream_sync,
    take,
    wait,
)
from machine.programs import PROGRAMS

TINY = Costs(
    launch=6, graph_launch=9, memcpy=7, memset=5, record=2, wait_event=2, query=1,
    sync_entry=3, sync_return=4, copy_return=5, free_entry=2, free_return=3, wake=8, step_gap=0,
    launch_latency=4, spacing=1, graph_spacing=0, event_latency=2,
)  # fmt: skip


def run(*step, depth=100, steps=1, others=None, **knobs):
    program = Program(lambda _number: step, others or {})
    return Machine(program, queue_depth=depth, costs=TINY, steps=steps).run(**knobs)


def spans(rows):
    return [(row.name, row.start, row.end) for row in rows]


def times(rows):
    return [(row.start, row.end) for row in rows]


NODES = [("a", 10), ("b", 10)]
MADE = {
    "launch": launch, "memset": memset, "memcpy": memcpy, "record": record, "wait": wait, "free": free,
    "device_sync": device_sync, "stream_sync": stream_sync, "event_sync": event_sync, "read_word": read_word,
    "graph": lambda stream: graph_launch(stream, NODES),
    "writing": lambda stream, name, ns: launch(stream, name, ns, writes="word"),
}  # fmt: skip
CASES = {  # what a step does, then begin and end of its calls and of its device work, and the queue's depth
    #  main      |launch a 6|launch b 6|
    #  stream 7      |a 3|        |b 3|
    "a kernel starts a latency after its launch began, even before the call returns": (
        "launch 7 a 3, launch 7 b 3", "0-6 6-12", "4-7 10-13"),
    #  main      |launch a 6|launch b 6|
    #  stream 7      |a 20          |1|b 20
    "kernels of a stream follow each other with the spacing between them": (
        "launch 7 a 20, launch 7 b 20", "0-6 6-12", "4-24 25-45"),
    "streams run beside each other": ("launch 7 a 20, launch 8 b 20", "0-6 6-12", "4-24 10-30"),
    #  main      |a 6|b 6|c: wait 12, 6 |          depth 2: c is taken when a ends, at 24
    #  stream 7     |a 20    |1|b 20     |1|c 20
    "a launch that finds the queue full blocks at entry and then takes its cost": (
        "launch 7 a 20, launch 7 b 20, launch 7 c 20", "0-6 6-12 12-24+6", "4-24 25-45 46-66", 2),
    "each stream has a queue of its own": (
        "launch 7 a 90, launch 7 b 90, launch 8 c 9", "0-6 6-12 12-18", "4-94 95-185 16-25", 2),
    #  memset 4-44; the copy is taken at 44, runs 48-88; c is taken at 88
    "copies and memsets take queue slots, too": (
        "memset 7 40 64, memcpy 7 htod_pinned 40 64, launch 7 c 1",
        "0-5 5-44+7 51-88+6", "4-44 48-88 92-93", 1),
    #  main      |graph 9|graph: wait 15, 9|
    #  stream 7     |a 10|b 10|               depth 1: the slot is free when b ends, at 24
    "a graph launch is one call, one slot and many kernels": (
        "graph 7, graph 7", "0-9 9-24+9", "4-14 14-24 28-38 38-48", 1),
    #  main      |a 6|b 6|sync: 3, wait, 4|
    #  stream 7     |a 20      |
    #  stream 8         |b 40               |
    "a synchronize of the device takes its entry, then waits for all, then its return": (
        "launch 7 a 20, launch 8 b 40, device_sync", "0-6 6-12 12-50+4", "4-24 10-50"),
    "a synchronize of a stream waits for that one": (
        "launch 7 a 20, launch 8 b 40, stream_sync 7", "0-6 6-12 12-24+4", "4-24 10-50"),
    "a synchronize with nothing to wait for takes entry and return": ("device_sync", "0-3+4", ""),
    "a free waits for the whole device": ("launch 8 a 20, free", "0-6 6-24+3", "4-24"),
    #  main      |a 6|record 2|b 6|sync 3, wait, 4|
    #  stream 7     |a 20        |1|b 20
    "an event synchronize waits only for the work before the record": (
        "launch 7 a 20, record e 7, launch 7 b 20, event_sync e", "0-6 6-8 8-14 14-24+4", "4-24 25-45"),
    #  main      |a 6|copy 7, wait, 5|
    #  stream 7     |a 20        |1|copy 10|
    "a pageable copy blocks until its own end": (
        "launch 7 a 20, memcpy 7 dtoh_pageable 10 4, launch 7 b 1",
        "0-6 6-35+5 40-46", "4-24 25-35 44-45"),
    "a pinned copy does not": (
        "launch 7 a 20, memcpy 7 htod_pinned 10 4, launch 7 b 1", "0-6 6-13 13-19", "4-24 25-35 36-37"),
    #  main      |a 6|record 2|b 6|wait 2|c 6|
    #  stream 7     |a 20        |1|b 20       the event is a's end
    #  stream 8                  |2|c 5
    "a stream waits for the event as it was recorded last": (
        "launch 7 a 20, record e 7, launch 7 b 20, wait 8 e, launch 8 c 5",
        "0-6 6-8 8-14 14-16 16-22", "4-24 25-45 24+2-31"),
    "waiting for an event not recorded does nothing": ("wait 8 e, launch 8 c 5", "0-2 2-8", "2+4-11"),
    #  a 4-54; stream 8 is past its wait at 56
    "an event recorded behind a wait is complete no sooner than what was waited for": (
        "launch 7 a 50, record e 7, wait 8 e, record f 8, event_sync f",
        "0-6 6-8 8-10 10-12 12-56+4", "4-54"),
    #  |read 2|spins until the kernel ends|
    "a thread spins until a kernel has written its word": (
        "writing 7 a 20, read_word word, launch 7 b 1", "0-6 24-30", "4-24 28-29"),
    "or sleeps between two looks at it": (
        "writing 7 a 20, read_word word 10, launch 7 b 1", "0-6 26-32", "4-24 30-31"),
}  # fmt: skip


def made(text):
    """Return the instructions of a text."""
    words = [each.split() for each in text.split(", ")]
    return [MADE[name](*(int(arg) if arg.isdigit() else arg for arg in args)) for name, *args in words]


def at(text):
    """Return times from text: `0-6 6-24+3`."""
    return [tuple(sum(map(int, side.split("+"))) for side in each.split("-")) for each in text.split()]


@pytest.mark.parametrize("case", CASES)
def test_calls_and_device_work_take_their_time(case):
    step, host, device, *depth = CASES[case]
    result = run(*made(step), depth=(depth or [100])[0])

    assert times(result.host) == at(host)
    assert times(result.device) == at(device)


def test_a_row_tells_how_long_it_was_blocked():
    full = run(*[launch(7, "a", 20)] * 3, depth=2)
    synced = run(launch(7, "a", 20), device_sync())
    copied = run(launch(7, "a", 20), memcpy(7, "dtoh_pageable", 10, 4))

    assert [row.wait for row in full.host] == [0, 0, 12]
    assert synced.host[1].wait == 24 - (6 + 3)
    assert copied.host[1].wait == 35 - 13


def test_operators_nest_and_own_their_time():
    #  |outer: 3 |inner: 2 |launch 6| 1 | 4 |
    result = run(op("outer", 3, [op("inner", 2, [launch(7, "k", 1)], 1)], 4), python(5), cpu("next", 7))

    assert spans(result.host) == [
        ("outer", 0, 16), ("inner", 3, 12), ("cudaLaunchKernel", 5, 11), ("next", 21, 28)]  # fmt: skip
    outer, inner, call, _ = result.host
    assert call.external == inner.external != outer.external
    assert result.device[0].external == inner.external


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


def test_a_run_tells_when_each_thread_was_off_the_cpu_and_who_woke_it():
    #  loader    |load 30|sleeps 50        |load 30|
    #  main      |--------|8|a 6|sync: 3, |1|4|
    #  stream 7               |a 20       |
    def loader():
        while True:
            yield from (cpu("load", 30), put("batch"), sleep(50))

    step = (take("batch"), launch(7, "a", 20), device_sync())
    program = Program(lambda _number: step, {"loader": loader})
    result = Machine(program, costs=TINY, steps=1, hand_off=(8, 8), blocking_sync=True).run()

    assert sorted(result.blocked, key=lambda each: each.start) == [
        Blocked("main", 0, 38, "queue", "loader"), Blocked("loader", 30, 80, "outside"),
        Blocked("main", 47, 62 + 8, "synchronize"),
    ]  # fmt: skip


def test_batches_vary_by_factors_that_come_again():
    program = Program(lambda _number: [python(1_000), launch(7, "a", 1_000), device_sync()])
    result = Machine(program, costs=TINY, steps=6, variation=0.3, period=3).run()
    lengths = [end - start for start, end in times(result.device)]

    assert lengths[:3] == lengths[3:]
    assert len({*lengths}) == 3
    assert all(700 <= length <= 1_300 for length in lengths)
    assert result.step_starts[1] == lengths[0] + lengths[0] + 4 + 4


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


def test_a_step_is_complete_when_the_last_work_launched_in_it_ends():
    #  main      |a 6|     |a 6|
    #  stream 7     |a 50       |1|a 50 |
    result = run(launch(7, "a", 50), cpu("rest", 4), steps=3)

    assert result.step_starts == [0, 10, 20]
    assert result.step_completions == [54, 105, 156]
    assert result.step_times() == [51, 51]
    assert result.step_times(skip=1) == [51]
    assert result.steady_step_ns(last=2) == 51


# -- the laws every run of the machine obeys, and the profiler traces it writes --------------------------


def by_lane(rows):
    lanes = defaultdict(list)
    for row in rows:
        lanes[row.lane].append(row)
    return lanes


@pytest.fixture(scope="module", params=PROGRAMS)
def result(request):
    return PROGRAMS[request.param]().run(steps=12)


def test_rows_of_a_thread_nest_and_tasks_of_a_stream_do_not_overlap(result):
    for rows in by_lane(result.host).values():
        stack = []
        for row in rows:
            while stack and stack[-1].end <= row.start:
                stack.pop()
            assert not stack or row.end <= stack[-1].end
            stack.append(row)
    for rows in by_lane(result.device).values():
        assert all(before.end <= after.start for before, after in pairwise(rows))


def test_no_more_launches_are_in_flight_than_the_queue_holds(result):
    changes = defaultdict(list)
    ends = {}
    for row in result.device:
        ends[row.correlation] = (row.lane, row.end)
    for correlation, (stream, end) in ends.items():
        changes[stream] += [(result.launch_starts[correlation], 1), (end, -1)]
    for stream, moves in changes.items():
        flight = peak = 0
        for _, change in sorted(moves):
            flight += change
            peak = max(peak, flight)
        assert peak <= result.queue_depth, stream


def test_no_task_starts_before_its_launch_arrives(result):
    latency = result.costs.launch_latency
    for row in result.device:
        assert row.start >= result.launch_starts[row.correlation] + latency


def launched_before(result, call):
    return [row for row in result.device if result.launch_starts[row.correlation] < call.start]


def test_a_blocking_call_ends_after_the_work_it_covers(result):
    for call in result.host:
        kind = (call.sync or {}).get("kind")
        if kind == "Context Sync" or call.name == "cudaFree":
            covered = launched_before(result, call)
        elif kind == "Stream Sync":
            covered = [row for row in launched_before(result, call) if row.lane == call.sync["stream"]]
        elif kind == "Event Sync":
            record_call = next(row for row in result.host if row.correlation == call.sync["record"])
            covered = [row for row in launched_before(result, record_call) if row.lane == call.sync["source"]]
        else:
            covered = [
                row for row in result.device if "Pageable" in row.name and row.correlation == call.correlation
            ]
        assert all(row.end < call.end for row in covered)


def test_work_behind_a_wait_starts_after_the_work_before_the_record(result):
    calls = {row.correlation: row for row in result.host}
    for call in (row for row in result.host if (row.sync or {}).get("kind") == "Stream Wait Event"):
        source, stream = call.sync["source"], call.sync["stream"]
        before = [row for row in launched_before(result, calls[call.sync["record"]]) if row.lane == source]
        behind = [row for row in result.device
                  if row.lane == stream and result.launch_starts[row.correlation] >= call.end]  # fmt: skip
        if before and behind:
            earliest = max(row.end for row in before) + result.costs.event_latency
            assert min(row.start for row in behind) >= earliest


def test_the_same_machine_gives_the_same_run(result):
    again = result.machine.run(steps=12)

    assert spans(again.host) == spans(result.host)
    assert spans(again.device) == spans(result.device)


def test_an_instance_keeps_its_jitter_in_a_rerun(result):
    half = result.machine.run(gpu=0.5, cpu=0.7, steps=12)
    for stream, rows in by_lane(result.device).items():
        steady = [row for row in rows if row.step < 10]
        for before, after in zip(steady, by_lane(half.device)[stream], strict=False):
            assert abs((after.end - after.start) - (before.end - before.start) / 2) <= 0.5


def rows_of(document, *categories):
    return [event for event in document["traceEvents"] if event.get("cat") in categories]


def test_times_in_the_file_are_those_of_the_run_to_the_nanosecond():
    result = PROGRAMS["multi_stream"]().run(steps=4)
    document = json.loads(json.dumps(result.kineto(1, 2)))
    written = {event["args"]["correlation"]: event for event in rows_of(document, "kernel")}
    first = rows_of(document, "kernel")[0]
    origin = round(first["ts"] * 1000) - next(
        row.start for row in result.device if row.correlation == first["args"]["correlation"])  # fmt: skip

    assert len(written) > 100
    for row in result.device:
        if row.correlation in written and row.category == "kernel":
            event = written[row.correlation]
            assert round(event["ts"] * 1000) - origin == row.start
            assert round(event["dur"] * 1000) == row.end - row.start
            assert event["tid"] == event["args"]["stream"] == row.lane


def test_a_cpu_that_runs_ahead_leaves_orphans_at_the_head():
    document = PROGRAMS["queue_full_64"]().run().kineto(24, 27)
    calls = {event["args"]["correlation"] for event in rows_of(document, "cuda_runtime")}
    device = sorted(rows_of(document, "kernel", "gpu_memset"), key=lambda event: event["ts"])
    orphans = [event["args"]["correlation"] not in calls for event in device]

    assert 50 <= sum(orphans) <= 64
    assert orphans == sorted(orphans, reverse=True)


def test_backward_operators_carry_the_sequence_number_of_their_forward():
    result = PROGRAMS["cpu_bound"]().run(steps=4)
    ops = rows_of(result.kineto(1, 2), "cpu_op")
    forward = {event["args"]["Sequence number"] for event in ops if event["args"].get("Fwd thread id") == 0}
    gradients = [event for event in ops if event["args"].get("Fwd thread id") == 1]

    assert gradients
    assert all(
        event["args"]["Sequence number"] in forward and event["tid"] != event["pid"] for event in gradients
    )
