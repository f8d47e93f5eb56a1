"""The settled step, and the mean of the steps that a prediction is. Hand-made traces are in microseconds."""

import tracemalloc

import numpy as np
import pytest
from graph.jobs import job
from machine.programs import multi_stream, queue_full
from small_graphs import kernels, named
from small_traces import launched, op, trace

import daydream
from daydream import Graph, GraphError, build, load, replay, simulate
from daydream.graph.plan import Cause
from daydream.graph.tables import COLUMNS, ORDER_STEP, Lane
from daydream.simulate import steady_state
from daydream.simulate.contention import Contention
from daydream.simulate.steady_state import coupled, repeatable, settle


def steps_of(*durations, ops=1):
    """Return a trace whose steps are full of work: `ops` operators each, the first as long as it takes."""
    rows = []
    borders = [0.0]
    for duration in durations:
        at = borders[-1]
        rows += [op("long", at, at + duration - ops + 1)]
        rows += [op("short", at + duration - n, at + duration - n + 1) for n in range(1, ops)]
        borders.append(at + duration)
    return trace(rows, steps=tuple(borders))


# -- settling --------------------------------------------------------------------------------------


def first_of_steps(graph):
    """Return the first task of each step."""
    return graph.select(kind="cpu").group_by("step").first()


def test_what_stands_before_the_first_task_of_a_step_is_repeated_with_it():
    """The window begins where the first step does, with that task: 40 us before it are the step's, too."""
    graph = build(steps_of(50, 100, 100, 100))
    graph.insert_before(first_of_steps(graph), "more", duration_ns=40_000)

    assert set(settle(graph).times.values()) == {140_000}


def test_gradients_of_two_batches_take_two_passes_in_every_step():
    """Forward and backward take 60 of 100 us and begin with the step, the update 40: two batches, 160."""
    rows = [
        op(name, 100 * n + at, 100 * n + to, phase=phase)
        for n in range(4)
        for name, at, to, phase in (
            ("pass", 0, 30, "forward"), ("grad", 30, 60, "backward"), ("update", 60, 100, "optimizer"),
        )
    ]  # fmt: skip
    comparison = daydream.whatif(
        trace(rows, steps=(0, 100, 200, 300, 400), profiler="by hand"), "gradient-accumulation"
    )

    assert set(comparison.after.times.values()) == {160_000}


def catching_up():
    #  thread 1  |op 25|launch 5| a step, 30; the device was held up by 267 in the first and catches up
    #  stream 7          |k0: 33 to 300|1|k1 20|1|k2 20|1|k3 20|
    rows = [launched("k", 25, 33, 300)]
    rows += [launched("k", 30 * n + 25, 280 + 21 * n, 300 + 21 * n) for n in (1, 2, 3)]
    return trace([op("work", 30 * n, 30 * n + 25) for n in range(4)], rows, steps=(0, 30, 60, 90, 120))


def test_a_device_that_catches_up_has_not_settled_until_it_waits_for_the_threads():
    settled = settle(build(catching_up()))

    assert settled.step_times(0) == {1: 21_000, 2: 21_000, 3: 21_000}
    assert (settled.settled, settled.step_ns) == (True, 30_000)
    assert settled.copy > 1
    assert settled.times[settled.copy - 2, 2] == 21_000


def test_it_is_said_where_the_recorded_window_had_not_settled():
    def unchanged(graph):
        graph.select(on="gpu").scale(1)

    comparison = daydream.whatif(catching_up(), unchanged)

    assert (comparison.replay.replayed_ns, comparison.replayed_ns, comparison.predicted_ns) == (
        21_000, 30_000, 30_000)  # fmt: skip
    assert any("recorded steps are not steady" in note for note in comparison.notes)


def test_a_window_that_begins_with_an_empty_queue_settles_to_the_full_one(tmp_path):
    machine = queue_full(depth=64)
    path = machine.run(steps=5).write(tmp_path / "cold.json", 0, 3)
    settled = settle(build(daydream.load(path)))

    assert settled.settled
    assert settled.step_ns == pytest.approx(machine.run().steady_step_ns(), rel=0.01)


def test_what_does_not_settle_in_reasonable_work_is_said(monkeypatch):
    monkeypatch.setattr(steady_state, "MOST_TASKS", 50)
    graph = build(catching_up())

    assert not settle(graph).settled
    assert any("had not reached a steady state" in note for note in daydream.replay(graph).notes)


def test_of_a_very_long_recording_the_last_steps_are_repeated(monkeypatch):
    monkeypatch.setattr(steady_state, "MOST_REPEATED", 10)  # tasks, of which each step has one
    settled = settle(build(steps_of(*[100] * 20)))

    assert {step for copy, step in settled.times if copy == 1} == set(range(10, 20))
    assert len(settled.step_times(0)) == 19


# -- steps that cannot follow themselves -----------------------------------------------------------


def test_a_sole_step_counts_from_its_start():
    recorded = steps_of(100)
    recorded.metadata["steps"][0]["covered"] = True
    settled = settle(build(recorded))

    assert repeatable(build(recorded)) is None
    assert (settled.copy, settled.step_ns) == (0, 100_000)
    assert daydream.whatif(recorded, "scale", on="cpu", factor=0.5).predicted_ns == 50_000


@pytest.mark.parametrize(("factor", "step_ns"), [(0.0, 0), (0.5, 35_000), (2.0, 140_000)])
def test_a_sole_step_begins_where_what_runs_before_it_lets_it(factor, step_ns):
    #  thread 1  |before 30|  |work 60|      the step: from 34, 6 before its work, to 100
    #      x 0.5 |15|  |work: 20 to 50|      from 15, where `before` ends; x 2 from 60 to 200
    recorded = trace(
        """
        op before 0 30
        op work 40 100
    """,
        steps=(34.0, 100.0),
    )
    recorded.metadata["steps"][0]["covered"] = True
    found = daydream.whatif(recorded, "scale", on="cpu", factor=factor)
    assert (found.replayed_ns, found.after.step_ns) == (66_000, step_ns)


def test_a_trace_that_covers_no_step_says_why():
    recorded = steps_of(100)
    recorded.metadata["steps"][0]["why_not"] = "device work launched before the window runs in it"

    with pytest.raises(GraphError) as raised:
        settle(build(recorded))
    assert str(raised.value) == (
        "no step of this trace can be judged: device work launched before the window runs in it. "
        "Record at least two whole steps, or name another marker with --step-marker."
    )


# -- the headline: what a run pays for a step --------------------------------------------------------


def test_a_prediction_is_the_mean_of_the_steps():
    #  covered: 100, 110, 120, each with one operator of 1 that stays: 49.5 + 54.5 + 59.5 + 3 of 330 are left
    comparison = daydream.whatif(steps_of(90, 100, 110, 120, ops=2), "scale", name="^long$", factor=0.5)
    left = 50 + 55 + 60 + 3 * 0.5

    assert comparison.replayed_ns == 110_000
    assert comparison.predicted_ns == round(1_000 * left / 3)
    assert comparison.speedup == pytest.approx(330 / left)
    assert comparison.replay.settled.typical() == (2, 110_000)


def test_steps_that_a_change_left_no_work_take_no_time():
    graph = build(steps_of(90, 100, 110))
    graph.select().where(lambda tasks: tasks.step > 0).remove()
    settled = settle(graph)
    assert settled.step_ns == settled.typical_ns == 0


def overlapping():
    #  thread 1  |step 0: a, b|step 1: c|step 2: d|
    #  stream 7  |a 10 to 40|
    #  stream 8      |b 20 to 300.....................|   step 0 ends behind steps 1 and 2
    #  stream 7           |c 110 to 140| |d 210 to 400|
    return trace(
        """
            launch a 0 10 40
            launch b 8 20 300 stream=8
            launch c 100 110 140
            launch d 200 210 400
        """,
        steps=(0, 100, 200, 290),
    )


def test_a_step_is_not_done_before_the_one_before_it_in_the_replay_either():
    replay = daydream.replay(overlapping())
    assert [step.measured_ns for step in replay.steps] == [0, 100_000]
    assert [step.replayed_ns for step in replay.steps] == [0, 100_000]
    assert replay.max_error == 0


def test_a_call_that_lasts_beyond_the_range_of_its_step_does_not_complete_it():
    #  thread 2  |a call of step 1, from 150 to 900, which waits for nothing that is recorded
    #  stream 7  |c 110 to 190|tail 191 to 260|
    rows = [
        """
            launch a 0 10 90
            launch c 100 110 190
            call poll 150 900 correlation=99 tid=2
            launch tail 160 191 260
        """,
    ]
    replay = daydream.replay(trace(rows, steps=(0, 100, 250)))
    assert [step.measured_ns for step in replay.steps] == [260_000 - 90_000]
    assert [step.replayed_ns for step in replay.steps] == [260_000 - 90_000]


# -- the settled step of several ranks -------------------------------------------------------------------


def last_step(recorded):
    return recorded.metadata["steps"][-1]["measured_ns"]


def of_rank(rank):
    return lambda tasks: tasks.rank == rank


def test_ranks_are_repeated_together_as_recorded():
    graph = build(job(4))
    settled = settle(graph)

    assert settled.passes > 1
    assert settled.settled
    assert settled.step_ns == last_step(job(20)) == 130_000
    assert set(settled.times.values()) == {130_000}
    assert coupled(graph) == {0: {0, 1}, 1: {0, 1}}
    together = settle(graph, contention=Contention(graph, 2))
    assert {copy for copy, _ in together.times} == {*range(together.passes - 1)}  # the last slows the others
    step = max(step for _, step in settled.times)
    assert settled.timeline.path(1, [step]).ns.sum() == 130_000
    assert not any("as recorded" in note for note in daydream.replay(graph).notes)


@pytest.mark.parametrize("changed", [0, 1])
@pytest.mark.parametrize("factor", [0.5, 2, 4, 10])
def test_a_changed_job_settles_to_what_a_longer_recording_would_show(changed, factor):
    graph = build(job(4))
    named(graph, "k").where(of_rank(changed)).scale(factor)
    gpu = [50, 50]
    gpu[changed] = round(50 * factor)

    settled = settle(graph)
    assert settled.settled
    assert settled.step_ns == last_step(job(60, gpu=gpu))
    steps = {step for copy, step in settled.times if copy == settled.copy}
    assert {graph.steps[step]["rank"] for step in steps} == {0, 1}


def test_a_device_that_catches_up_on_one_rank_is_repeated_until_it_has():
    recorded = job(5, first=2_000)
    settled = settle(build(recorded))

    assert set(settled.step_times(0).values()) == {72_000}  # 50 + 1 + 20 + 1: rank 1's device never idles
    assert settled.settled
    assert settled.step_ns == last_step(job(60, first=2_000)) == 130_000


@pytest.mark.parametrize(("skip", "last"), [((0, 1), 5), ((1, 0), 5), ((0, 2), 5), ((0, 0), 4)], ids=str)
def test_a_rank_that_began_later_or_ended_earlier_is_repeated_with_the_same_steps(skip, last):
    recorded = job(6, skip=skip)
    steps = recorded.metadata["steps"]
    if last < 5:
        del steps[-1]
        recorded.columns["step"][recorded["step"] == len(steps)] = -1
    graph = build(recorded)
    window = repeatable(graph)

    assert window is not None
    for rank, (begin, end) in window.items():
        names = [
            step["name"]
            for step in graph.steps
            if step["rank"] == rank and begin <= step["start_ns"] * ORDER_STEP < end
        ]
        assert names == [f"step {n}" for n in range(max(skip) + 1, last + 1)]
    assert settle(graph).step_ns == 130_000


def test_ranks_that_no_longer_wait_for_each_other_settle_for_themselves():
    replay = daydream.replay(job(4, cpu=(100, 300)))
    after = daydream.whatif(replay, "no-stragglers").after

    # They still meet, but nobody waits for it: 100 + 10 and 300 + 10 by the CPU, and no passes to catch up.
    assert coupled(after.timeline.graph) == {0: {0, 1}, 1: {0, 1}}
    assert coupled(after.timeline.graph, waiting=True) == {0: {0}, 1: {1}}
    assert after.settled
    assert after.passes <= 4
    assert set(after.step_times().values()) == {110_000, 310_000}


@pytest.mark.parametrize("program", [multi_stream, lambda: queue_full(depth=64)])
def test_a_machine_recorded_as_two_ranks_settles_to_its_own_steady_step(tmp_path, program):
    machine = program()
    for rank in (0, 1):
        machine.run(steps=6).write(tmp_path / f"rank{rank}.json", 0, 4)
    graph = build(daydream.load(tmp_path))
    settled = settle(graph)

    assert settled.settled
    assert settled.passes > 1
    assert {lane.rank for lane in graph.lanes} == {0, 1}
    assert settled.step_ns == pytest.approx(machine.run(steps=60).steady_step_ns(), rel=0.01)


# -- matched collectives on lanes of their own ------------------------------------------------------


# -- from one copy into the next -------------------------------------------------------------------


def test_a_link_into_the_next_step_leads_into_the_next_copy():
    #  a loader of 70 beside steps of 50: each step waits for the batch that was begun with the one before
    #  thread 1  |train 50|....|train 50|....|train 50|....
    #  thread 2  |load 70      |load 70      |load 70      |
    graph = Graph()
    train, load = (graph.add_lane(Lane(name)) for name in ("train", "load"))
    for n in range(4):
        at = 100 * n * ORDER_STEP
        for name, lane, duration in (("train", train, 50), ("load", load, 70)):
            graph.add(1, lane=lane, kind=0, name=graph.code("name", name), duration_ns=duration, order=at)
    trains = np.flatnonzero(graph.columns["lane"] == train)
    loads = np.flatnonzero(graph.columns["lane"] == load)
    graph.link(loads[:-1], trains[1:], cause=Cause.HANDOFF)
    graph.link(trains[1:], loads[1:], from_start=True, cause=Cause.HANDOFF)

    # The window holds steps 2 and 3; what is recorded of step 1 leads into it.
    window = (200 * ORDER_STEP, 400 * ORDER_STEP)
    timeline = simulate(graph, copies=3, window=window)
    starts = timeline.start_ns[timeline.column("name") == "train"]
    assert starts.tolist() == [70 * n for n in range(2 + 3 * 2)]


def test_a_step_that_took_longer_counts_as_long_as_it_took():
    #  the third covered step takes three times as long and does no other work: a loader that stalled, say
    comparison = daydream.whatif(steps_of(90, 100, 100, 300, 100, ops=2), "scale", name="^long$", factor=0.5)

    assert (comparison.measured_ns, comparison.replayed_ns) == (150_000, 150_000)
    assert comparison.predicted_ns == (600_000 + 4_000) // 8
    document = comparison.to_json()
    assert [document[f"typical_{what}_ns"] for what in ("measured", "replayed", "predicted")] == [
        100_000, 100_000, 50_500,
    ]  # fmt: skip


# Arrays are never written in place: an edit replaces them, and a graph has another version then.


GPT = "examples/synthetic_gpt_gpu.json.gz"


def graph_of(tasks):
    graph = Graph()
    lane = graph.lane_id("thread 1")
    graph.add(tasks, lane=lane, duration_ns=np.arange(tasks), order=np.arange(tasks) * 10)
    return graph


def held(one, other):
    return {name for name in one.columns if one.columns[name] is other.columns[name]}


def test_a_copy_holds_only_what_was_changed():
    graph = graph_of(4)
    copy = graph.copy()
    assert held(graph, copy) == set(COLUMNS)
    copy.select().set(phase="forward")
    copy.select().scale(2)
    assert held(graph, copy) == set(COLUMNS) - {"phase", "duration_ns"}
    assert graph.columns["phase"].tolist() == [-1] * 4
    assert graph.columns["duration_ns"].tolist() == [0, 1, 2, 3]


def test_versions_tell_what_was_written():
    graph = graph_of(3)
    copy = graph.copy()
    assert (copy.version, copy.structure) == (graph.version, graph.structure)
    copy.select().scale(2)
    assert copy.version != graph.version
    assert copy.structure == graph.structure
    for edit in (
        lambda graph: graph.select().set(dtype="float16"),
        lambda graph: graph.select().first().remove(),
        lambda graph: graph.links.add(src=0, dst=1, latency_ns=0, from_start=0, cause=8),
        lambda graph: graph.schedule("thread 1", key="order"),
        lambda graph: graph.add_lane(graph.lanes[0]._replace(name="other")),
    ):
        before = graph.version
        seen = {before}
        for _ in range(2):
            twin = graph.copy()
            edit(twin)
            seen.add(twin.version)
        assert len(seen) == 3  # two copies that were edited alike have versions of their own
        assert graph.version == before


@pytest.mark.parametrize("factor", [0.5, 1, 40])
def test_a_plan_that_is_kept_ends_its_steps_as_one_made_anew(factor):
    graph = replay(load(GPT)).graph
    slower = graph.copy()
    slower.select(kind="cpu").scale(factor)
    kept = settle(slower)
    anew = graph.copy()
    anew.select(kind="cpu").scale(factor)
    anew._derived = {}  # nothing is kept
    fresh = settle(anew)
    assert kept.times == fresh.times
    np.testing.assert_array_equal(kept.timeline.closing, fresh.timeline.closing)


def test_edits_leave_the_same_tasks_whatever_another_copy_did_before():
    def split_and_remove(graph):
        work = kernels(graph)
        work.launches().split(2)
        work.remove()
        return len(graph)

    asked_first, asked_later = replay(load(GPT)).graph, replay(load(GPT)).graph
    alone = split_and_remove(asked_first.copy())
    kernels(asked_later.copy()).first().remove()
    assert split_and_remove(asked_later.copy()) == split_and_remove(asked_later.copy()) == alone
    calls = asked_first.copy()
    work = kernels(calls)
    pieces = work.launches().split(2)
    work.remove()
    assert not calls.alive[pieces.ids].any()  # a call goes with all of its pieces


def test_a_repeated_task_costs_no_memory_by_the_rows_of_its_trace():
    graph = replay("examples/mlp_cpu.json.gz").graph.copy()
    graph.select(name="aten::addmm").first().repeat(300)
    tracemalloc.start()
    graph.select(name="aten::addmm").first().remove()
    assert tracemalloc.get_traced_memory()[1] < 300 * len(graph.recorded) * 4
    tracemalloc.stop()
