"""Where ranks on gloo wait, told from what happened in a few noisy steps. Times in microseconds."""

from dataclasses import dataclass

import numpy as np
import pytest
from small_traces import note, op, trace, with_steps

from daydream import build, simulate

STEP = 100_000
CALL, WORK = 1_000, 30_000  # when rank 0 calls, and how much later rank 1 does
TAKEN = 50
TRANSFER = 500
WAKE = 40
# How late the pool notes the end, and how late the waiter goes on: as recorded on two busy cores.
BUSY = ((0, 62), (322, 40), (0, 76), (361, 40), (0, 124), (310, 40), (640, 40), (0, 90))
PROFILER = 100  # stands before each of the tasks that follow, as the profiler notes what came before


@dataclass(frozen=True)
class Seen:
    """What one step of one rank recorded, each since the step began."""

    call: int
    end: int  # as the pool's thread noted it
    on: int  # when the caller went on where it waits
    stands: int = 0  # before its backward work


def step(*, late=(0, 0), wake=(WAKE, WAKE), work=(0, WORK), stands=(0, 0), goes_on=None):
    """Return a step of two ranks; `goes_on` is when rank 0 does, if not when the transfer is done."""
    #  rank 0  |call 5|stands|backward 20|.....waits.........|copy 20|100|update 20|100|last 20
    #  rank 1  |.... work ....|call 5|stands|backward 20|wait|copy 20|100|update 20|100|last 20
    #  pools              50 |gloo:all_reduce: waits, transfers 500|late|
    calls = [CALL + each for each in work]
    begun = max(calls) + TAKEN
    done = begun + TRANSFER
    on = [max(calls[rank] + 25 + stands[rank], done) + wake[rank] for rank in (0, 1)]
    if goes_on is not None:
        on[0] = goes_on
    return [Seen(calls[rank], done + late[rank], on[rank], stands[rank]) for rank in (0, 1)]


def job(steps, *, copies=lambda number, rank: "copy"):
    rows = []
    for number, ranks in enumerate(steps):
        for rank, seen in enumerate(ranks):
            at = number * STEP
            columns = {"rank": rank, "tid": 1}
            called = at + seen.call
            on = at + seen.on
            backward = called + 5 + seen.stands
            update = on + 20 + PROFILER
            last = update + 20 + PROFILER
            rows += [
                op("forward", at, called, **columns),
                op("c10d::allreduce_", called, called + 5, collective="all_reduce", bytes=8, **columns),
                op("backward", backward, backward + 20, **columns),
                note(
                    "gloo:all_reduce",
                    called + TAKEN,
                    at + seen.end,
                    rank=rank,
                    tid=8 + number % 2,
                    collective="all_reduce",
                    bytes=8,
                ),
                op(copies(number, rank), on, on + 20, **columns),
                op("update", update, update + 20, **columns),
                op("last", last, last + 20, **columns),
            ]
    return finished(rows, len(steps))


def finished(rows, steps):
    """Return a trace of two ranks that begin their steps together."""
    return with_steps(trace(rows), dict.fromkeys((0, 1), range(0, STEP * steps + 1, STEP)))


def two_at_once(*, transfers, noted_late=0):
    """Return steps that begin two all-reduces and wait for the one before `halve`, the other before `use`."""
    #  rank r  |forward|call a|call b|....waits.....|halve 20|..waits..|use 20|
    #  pools               |a: transfers[0]                  |
    #                             |b: transfers[1]  |
    rows = []
    for number in range(4):
        for rank in (0, 1):
            at = number * STEP
            columns = {"rank": rank, "tid": 1}
            called = at + CALL + rank * WORK
            begun = at + CALL + WORK + TAKEN
            ends = [begun + each for each in transfers]
            halve = ends[1] + WAKE
            use = max(halve + 40, ends[0] + WAKE)
            rows += [op("forward", at, called, **columns)]
            rows += [
                op(
                    "c10d::allreduce_",
                    called + 10 * n,
                    called + 10 * n + 5,
                    collective="all_reduce",
                    bytes=8 * (n + 1),
                    **columns,
                )
                for n in (0, 1)
            ]
            noted = [ends[0] + noted_late, ends[1]]
            rows += [
                note(
                    "gloo:all_reduce",
                    called + TAKEN + 10 * n,
                    noted[n],
                    rank=rank,
                    tid=8 + n,
                    collective="all_reduce",
                    bytes=8 * (n + 1),
                )
                for n in (0, 1)
            ]
            rows += [op("halve", halve, halve + 20, **columns), op("use", use, use + 20, **columns)]
    return finished(rows, 4)


def waited_at(graph):
    """Return before which tasks threads wait for collectives, and how often."""
    columns = graph.columns
    names = graph.texts["name"]
    found = {}
    for wait in graph.select(name="wait for collective").ids.tolist():
        later = (columns["lane"] == columns["lane"][wait]) & (columns["order"] > columns["order"][wait])
        ids = np.flatnonzero(later & (columns["row"] >= 0))
        name = names[columns["name"][ids[np.argmin(columns["order"][ids])]]]
        found[name] = found.get(name, 0) + 1
    return found


def lost(graph):
    return [remark for remark in graph.facts.notes if "could not be found" in remark]


def busy(number):
    late, wake = zip(BUSY[number % 8], BUSY[(number + 3) % 8], strict=True)
    return step(late=late, wake=wake)


@pytest.mark.parametrize("shift", range(8))
def test_ends_that_are_noted_late_do_not_move_the_wait_to_a_later_place(shift):
    # such an end falls on the profiler's pauses before `update` or `last` as often as on the wait's
    graph = build(job([busy(shift + number) for number in range(3)]))

    assert waited_at(graph) == {"copy": 6}
    assert lost(graph) == []


def test_one_step_that_contradicts_does_not_lose_the_wait_of_the_others():
    early = step(goes_on=CALL + 40)
    graph = build(job([step(), early, step(), step()]))

    assert waited_at(graph) == {"copy": 7}
    assert "1 of 8 collectives" in lost(graph)[0]


@pytest.mark.parametrize("noted_late", [0, 300])
def test_a_pause_is_of_the_collective_that_it_fits_and_another_is_waited_for_after_it(noted_late):
    # both are under way in the long pause, which lasts as long as the second; the first has one of its own
    graph = build(two_at_once(transfers=(900, 500), noted_late=noted_late))

    assert waited_at(graph) == {"halve": 8, "use": 8}
    first, second = (graph.select(name="gloo:all_reduce").where(lambda t, n=n: t.bytes == n) for n in (8, 16))
    assert set(second.duration_ns.tolist()) == {490_000}  # begun 10 after the first
    assert set(first.duration_ns.tolist()) == {1000 * (900 + min(noted_late, WAKE))}


def test_two_that_end_in_one_pause_are_both_waited_for_there():
    graph = build(two_at_once(transfers=(300, 500)))

    assert waited_at(graph) == {"halve": 8}
    assert lost(graph) == []
    before = simulate(graph).makespan_ns
    graph.select(name="gloo:all_reduce").where(lambda tasks: tasks.bytes == 8).scale(10)
    assert simulate(graph).makespan_ns - before == 4 * 1000 * (3_000 - 500)


def test_a_rank_that_went_on_too_early_waits_for_nothing():
    wrong = [step(goes_on=CALL + 5_000 + n) for n in range(4)]
    graph = build(job(wrong))

    assert waited_at(graph) == {"copy": 4}  # the other rank's
    assert "4 of 8 collectives" in lost(graph)[0]
