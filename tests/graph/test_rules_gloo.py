"""Collectives that threads of the CPU run, on several ranks. Times in microseconds."""

from functools import partial

import pytest
from small_graphs import named
from small_traces import kernel, launched, note, op, total, trace, with_steps

import daydream
from daydream import build, simulate
from daydream.collect.derive.collectives import calls_of, host_collectives, match_collectives
from daydream.graph.build import RULES
from daydream.graph.lower import problems
from daydream.graph.plan import Cause
from daydream.simulate.steady_state import settle

CALL = 5
QUEUED = 3
TRANSFER = 30
WAKE = 2
RESULT = {"all_reduce": "allreduce_", "reduce_scatter": "_reduce_scatter_base_", "broadcast": "broadcast_"}


def job(steps=4, *, work=(100, 150), late=(0, 0), inside=False, called="all_reduce", ranks=(0, 1)):
    """Return what ranks with gloo would record: each step an all-reduce beside some backward work.

    A pool thread takes it 3 after its call; 30 after the last did, it is done, and who waits goes on 2
    later. The pool's row ends `late` by so much.
    """
    #  rank r  |forward work[r]|call 5|backward 20|...wait...|2|copy 30|step 10|
    #  pool               3 |gloo:all_reduce: waiting, 30    |
    rows = []
    now = [0] * len(ranks)
    borders = [[0] for _ in ranks]
    for n in range(steps):
        taken = [at + work[rank] + QUEUED for rank, at in enumerate(now)]
        done = max(taken) + TRANSFER
        for place, rank in enumerate(ranks):
            at = now[place]
            call = at + work[place]
            on = max(call + CALL + 20, done) + WAKE
            columns = {"rank": rank, "tid": 1}
            size = {"bytes": 8 if called == "all_reduce" else 12}
            pool = {"rank": rank, "tid": 8 + n % 2, "collective": "all_reduce", "bytes": 8}
            rows += [
                op("forward", at, call, **columns),
                op(f"c10d::{RESULT[called]}", call, call + CALL, collective=called, **size, **columns),
                op("backward", call + CALL, call + CALL + 20, **columns),
                note("gloo:all_reduce", taken[place], done + late[place], **pool),
                op("copy", on, on + 30, **columns), op("step", on + 30, on + 40, **columns),
            ]  # fmt: skip
            if inside:
                rows.append(op("aten::copy_", taken[place], taken[place] + 1, rank=rank, tid=8 + n % 2))
            now[place] = on + 40
            borders[place].append(on + 40)
    return with_steps(trace(rows), dict(zip(ranks, borders, strict=True)))


def step_of(recorded):
    return recorded.metadata["steps"][-1]["measured_ns"]


def transfers(graph):
    return graph.select(kind="collective", name="gloo:all_reduce")


def of_rank(rank):
    return lambda tasks: tasks.rank == rank


def test_waiting_for_the_other_rank_is_no_transfer():
    graph = build(job())

    assert problems(graph) == []
    assert (transfers(graph).duration_ns == 1000 * TRANSFER).all()
    assert [len(rows) for rows in match_collectives(job()).rows] == [2] * 4
    assert len(named(graph, "arrival")) == 8
    assert len(graph.select(name="wait for collective")) == 8


def test_every_rank_is_replayed_exactly():
    replay = daydream.replay(build(job()))

    assert {(step.rank, step.error) for step in replay.steps} == {(0, 0), (1, 0)}
    assert replay.steps[0].measured_ns == 1000 * (150 + 3 + 30 + 2 + 40)
    assert [each["ranks"] for each in replay.to_json()["collectives"]] == [[0, 1]] * 4
    assert replay.settled.settled
    assert replay.settled.passes > 1


@pytest.mark.parametrize("factor", [0, 0.5, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_faster_or_slower_rank_is_what_a_recording_of_it_shows(rank, factor):
    graph = build(job())
    graph.select(name="forward").where(of_rank(rank)).scale(factor)
    work = [100, 150]
    work[rank] = round(work[rank] * factor)

    assert settle(graph).step_ns == step_of(job(8, work=tuple(work)))


def test_a_faster_network_shortens_the_transfer_and_no_waiting():
    graph = build(job())
    faster = daydream.whatif(graph, "network", bandwidth_factor=2)
    # rank 1 needs the result when its backward pass is done: at 150 + 5 + 20, the transfer ends at 153 + 15
    assert faster.predicted_ns == 1000 * (175 + 2 + 40)
    slower = daydream.whatif(graph, "network", bandwidth_factor=0.1)
    assert slower.predicted_ns == 1000 * (153 + 300 + 2 + 40)


def test_a_pool_thread_that_notes_its_end_late_is_done_when_its_waiter_goes_on():
    graph = build(job(late=(40, 0)))

    by_rank = {rank: transfers(graph).where(of_rank(rank)).duration_ns.tolist() for rank in (0, 1)}
    assert by_rank == {0: [1000 * (TRANSFER + WAKE)] * 4, 1: [1000 * TRANSFER] * 4}
    assert {step.error for step in daydream.replay(graph).steps} == {0}


def test_a_call_of_another_name_is_the_one_before():
    # gloo runs a reduce-scatter as an all-reduce, of other sizes
    recorded = job(called="reduce_scatter")
    rows = host_collectives(recorded)
    calls = calls_of(recorded, rows)

    assert (calls >= 0).all()
    assert (recorded["start_ns"][rows] - recorded["start_ns"][calls] == 1000 * QUEUED).all()
    assert {step.error for step in daydream.replay(build(recorded)).steps} == {0}


def broadcast(*, root_done):
    #  rank 0 gives its data away and is done; rank 1 takes it when it comes by at 200
    rows = []
    for rank, begin, end in ((0, 10, root_done), (1, 200, 240)):
        rows += [
            op("c10d::broadcast_", begin - 5, begin - 1, rank=rank, collective="broadcast", bytes=8),
            note("gloo:broadcast", begin, end, rank=rank, tid=9, collective="broadcast", bytes=8),
        ]
    return build(trace(rows))


def test_a_root_that_is_done_before_others_come_by_waits_for_none():
    graph = broadcast(root_done=40)
    assert ends_of_broadcast(graph) == {0: 40, 1: 240}
    graph.select(name="gloo:broadcast").where(of_rank(0)).scale(10)
    assert ends_of_broadcast(graph) == {0: 310, 1: 240}


def ends_of_broadcast(graph):
    timeline = simulate(graph)
    names, rank = timeline.column("name"), timeline.column("rank")
    return {
        int(r): int(e) / 1000
        for n, r, e in zip(names, rank, timeline.end_ns, strict=True)
        if n == "gloo:broadcast"
    }


def test_a_pool_of_two_runs_two_at_a_time():
    #  three are asked for at once; the third is taken when the first is done
    rows = []
    for number, (begin, end) in enumerate(((12, 50), (22, 60), (52, 80))):
        asked = 10 * (number + 1)
        rows += [
            op("c10d::allreduce_", asked, asked + 5, collective="all_reduce", bytes=number),
            note("gloo:all_reduce", begin, end, tid=8 + number % 2, collective="all_reduce", bytes=number),
        ]
    graph = build(trace(rows))
    assert set(graph.select(kind="collective").lane.tolist()) == {"gloo 0", "gloo 1"}
    graph.select(kind="collective").where(lambda tasks: tasks.bytes == 0).scale(0.5)
    timeline = simulate(graph)
    ends = sorted((timeline.end_ns[timeline.column("kind") == "collective"] / 1000).tolist())
    assert ends == [31, 60, 31 + 2 + 28]


# -- collectives of several ranks ------------------------------------------------------------------------


def member(rank, start, end, **columns):
    columns = {"kind": "collective", "collective": "all_reduce", "bytes": 4096, "rank": rank, **columns}
    return launched("ncclAllReduce", columns.pop("at", 6), start, end, **columns)


def two_ranks(**metadata):
    #  rank 0  stream 7  |a: 10 to 20|reduce: 21 to 91 (50 waiting, 20 transfer)|
    #  rank 1  stream 7  |a: 10 to 70|                  |reduce: 71 to 91|
    return trace(
        launched("a", 0, 10, 20, rank=0), member(0, 21, 91),
        launched("a", 0, 10, 70, rank=1), member(1, 71, 91), **metadata,
    )  # fmt: skip


def test_a_root_that_ended_before_the_last_arrived_did_not_wait():
    #  rank 0, the root  |broadcast: 10 to 20|      rank 1  |a: 10 to 400|broadcast: 401 to 411|
    rows = [member(0, 10, 20, collective="broadcast"), launched("a", 0, 10, 400, rank=1)]
    graph = build(trace(*rows, member(1, 401, 411, collective="broadcast")))
    assert lasted(graph) == {0: 10, 1: 10}
    slow_work(graph).scale(2)
    assert total(graph) == 10 + 780 + 1 + 10
    root = graph.select(name="ncclAllReduce").where(rank=0)
    timeline = simulate(graph)
    assert timeline.start_ns[timeline.task == root.ids[0]].tolist() == [10_000]


def test_a_stream_waits_for_no_collective_of_another_rank():
    #  rank 0  stream 20  |reduce: 10 to 40|
    #  rank 1  stream 7   |a: 10 to 20|  (a stream wait at 30)  |b: 42 to 50|
    rows = [
        member(0, 10, 40, stream=20),
        """
            launch a 0 10 20 rank=1
            call cudaStreamWaitEvent 30 31 rank=1
            launch b 32 42 50 rank=1
        """,
    ]
    graph = build(trace(*rows))
    assert not len(graph.waits)
    assert graph.facts.event_waits["unresolved"] == 1


def test_ranks_whose_matches_contradict_each_other_are_left_apart_and_it_is_said(monkeypatch):
    def contradict(draft):  # rank 1 arrives when rank 0 has transferred
        tasks = draft.select(kind="collective")
        first = tasks.where(rank=0, name="ncclAllReduce").ids
        draft.link(first, tasks.where(rank=1, name="^arrival$").ids, cause=Cause.USER)

    monkeypatch.setattr("daydream.graph.build.RULES", (*RULES, ("communication", contradict)))
    graph = build(two_ranks())
    assert "without a contradiction" in graph.facts.notes[-1]
    assert "arrival" not in graph.texts["name"]
    assert total(graph) == 91


def lasted(graph):
    tasks = graph.select(kind="collective", name="ncclAllReduce")
    return dict(zip(tasks.rank.tolist(), (tasks.duration_ns / 1000).tolist(), strict=True))


def slow_work(graph):
    return named(graph, "a").where(lambda tasks: tasks.rank == 1)


def test_all_transfer_for_as_long_as_the_last_to_arrive():
    graph = build(two_ranks())
    assert lasted(graph) == {0: 20, 1: 20}
    assert total(graph) == 91


@pytest.mark.parametrize(("factor", "end"), [(0.5, 10 + 30 + 1 + 20), (0, 21 + 20), (2, 10 + 120 + 1 + 20)])
def test_the_last_arrival_moves_the_transfer_until_another_is_last(factor, end):
    graph = build(two_ranks())
    slow_work(graph).scale(factor)
    assert total(graph) == end


def test_collectives_that_a_recording_begins_with_are_matched():
    member = partial(kernel, "ncclAllReduce", 0, kind="collective", collective="all_reduce", bytes=8)
    graph = build(trace(member(30, 1, rank=0), member(30, 1, rank=1)))
    assert len(graph.select(name="^arrival$")) == 2
    assert total(graph) == 30


def test_missing_ranks_make_the_transfer_an_upper_bound_and_it_is_said():
    graph = build(two_ranks(world_size=8))
    assert lasted(graph) == {0: 20, 1: 20}
    assert any(
        "2 of 8 ranks took part in 1 collective" in note and "upper bounds" in note
        for note in graph.facts.notes
    )
    assert not any("upper bounds" in note for note in build(two_ranks(world_size=2)).facts.notes)


def test_ends_that_do_not_agree_give_the_least_duration():
    # Six matched collectives of two hosts, in two of which the ends are 150 apart.
    rows = []
    for at, apart in zip(range(0, 6_000, 1_000), (0, 0, 150, 0, -150, 0), strict=True):
        rows += [
            member(0, at + 21, at + 91, at=at),
            member(1, at + 71 + apart, at + 91 + apart, at=at),
        ]
    graph = build(trace(rows))
    tasks = graph.select(kind="collective", name="ncclAllReduce")
    assert (tasks.duration_ns / 1000).tolist() == [20] * 12
    timeline = simulate(graph)
    of = {int(task): int(end) for task, end in zip(timeline.task, timeline.end_ns, strict=True)}
    first, second = ([of[int(task)] for task in tasks.ids[tasks.rank == rank]] for rank in (0, 1))
    assert first == second
    assert any("2 collectives end up to 150 us apart" in note for note in graph.facts.notes)
