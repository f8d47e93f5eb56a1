"""The settled step of several ranks: their windows, and collectives matched copy by copy. Microseconds."""

import numpy as np
import pytest
from graph.jobs import job
from machine.programs import multi_stream, queue_full
from small_graphs import named

import daydream
from daydream import Graph, build, simulate
from daydream.graph.plan import Cause
from daydream.graph.tables import ORDER_STEP, Lane
from daydream.simulate.steady_state import coupled, repeatable, settle


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


@pytest.mark.parametrize("skip", [(0, 1), (1, 0), (0, 2)])
def test_a_rank_that_began_later_is_repeated_from_the_same_step(skip):
    graph = build(job(6, skip=skip))
    window = repeatable(graph)

    assert window is not None
    for rank, (begin, end) in window.items():
        names = [
            step["name"]
            for step in graph.steps
            if step["rank"] == rank and begin <= step["start_ns"] * ORDER_STEP < end
        ]
        assert names == [f"step {n}" for n in range(max(skip) + 1, 6)]
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
