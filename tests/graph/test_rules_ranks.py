"""Collectives of several ranks: one transfer, begun by the last to arrive. Times in microseconds."""

import pytest
from small_graphs import named
from small_traces import launched, total, trace

from daydream import build, simulate
from daydream.graph.build import RULES
from daydream.graph.plan import Cause


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
    assert transfers(graph) == {0: 10, 1: 10}
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


def transfers(graph):
    tasks = graph.select(kind="collective", name="ncclAllReduce")
    return dict(zip(tasks.rank.tolist(), (tasks.duration_ns / 1000).tolist(), strict=True))


def slow_work(graph):
    return named(graph, "a").where(lambda tasks: tasks.rank == 1)


def test_all_transfer_for_as_long_as_the_last_to_arrive():
    graph = build(two_ranks())
    assert transfers(graph) == {0: 20, 1: 20}
    assert total(graph) == 91


@pytest.mark.parametrize(("factor", "end"), [(0.5, 10 + 30 + 1 + 20), (0, 21 + 20), (2, 10 + 120 + 1 + 20)])
def test_the_last_arrival_moves_the_transfer_until_another_is_last(factor, end):
    graph = build(two_ranks())
    slow_work(graph).scale(factor)
    assert total(graph) == end


def test_missing_ranks_make_the_transfer_an_upper_bound_and_it_is_said():
    graph = build(two_ranks(world_size=8))
    assert transfers(graph) == {0: 20, 1: 20}
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
