"""The laws every run of the machine obeys, and the profiler traces it writes."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest
from machine import Row
from machine.programs import PROGRAMS


def spans(rows):
    return [(row.name, row.start, row.end) for row in rows]


def by_lane(rows):
    lanes: dict[str | int, list[Row]] = defaultdict(list)
    for row in rows:
        lanes[row.lane].append(row)
    return lanes


@pytest.fixture(scope="module", params=PROGRAMS)
def result(request):
    return PROGRAMS[request.param]().run(steps=12)


def test_rows_of_a_thread_nest_and_tasks_of_a_stream_do_not_overlap(result):
    for rows in by_lane(result.host).values():
        stack: list[Row] = []
        for row in rows:
            while stack and stack[-1].end <= row.start:
                stack.pop()
            assert not stack or row.end <= stack[-1].end
            stack.append(row)
    for rows in by_lane(result.device).values():
        assert all(before.end <= after.start for before, after in pairwise(rows))


def test_no_more_launches_are_in_flight_than_the_queue_holds(result):
    changes: dict[str | int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, tuple[str | int, int]] = {}
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


@pytest.mark.parametrize("program", sorted(set(PROGRAMS) - {"multi_thread", "multi_thread_loader_bound"}))
def test_launches_block_only_in_the_programs_that_fill_the_queue(program):
    steady = [
        row for row in PROGRAMS[program]().run(steps=27).host if row.step >= 24 and "Launch" in row.name
    ]

    assert any(row.wait for row in steady) == ("queue_full" in program)


@pytest.mark.slow
def test_what_is_faster_is_what_was_slow():
    def gain(program, **knobs):
        machine = PROGRAMS[program]()
        return machine.run().steady_step_ns() / machine.run(**knobs).steady_step_ns()

    assert gain("cpu_bound", gpu=0.5) == pytest.approx(1, abs=0.001)
    assert gain("cpu_bound", cpu=0.5) == pytest.approx(2, abs=0.01)
    assert gain("queue_full_1022", cpu=0.5) == pytest.approx(1, abs=0.001)
    assert 1.9 < gain("queue_full_1022", gpu=0.5) < 2
    assert gain("multi_thread_loader_bound", cpu=0.5) == pytest.approx(2, abs=0.01)


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
