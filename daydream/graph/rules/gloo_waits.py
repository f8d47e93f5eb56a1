"""Where the program waits for the collectives that threads of the CPU run (gloo): for rule 5 on the CPU.

It is not recorded. The program is the same in every step and on every rank, so the n-th collective of a
step is waited for at one place: a task's name, and how often it came in its step so far. Each time that a
thread came by, it tells for or against a place:

    for      the thread paused while the collective was under way, and went on as that ended, or, as ends
             are noted late, when its last member had begun: the longer the pause and the nearer to
             it, the less it can be chance
    against  it went on long before the end was noted, or even before the last member had begun

Each is told as the logarithm of how much likelier it is to go on at that distance from the end where the
thread waits for it than where its pause ends at any time. Distances have long tails, as on a busy machine
anything may be late; so one time that contradicts does not outweigh several that agree. Their sum decides.

A pause can be a wait for two collectives. It belongs to the one that it fits better; of the other it is
held to tell only what comes after the end of the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from daydream.collect.derive.host_collectives import CLOCKS_AGREE_NS
from daydream.graph.builder import GraphBuilder
from daydream.graph.rules.handoff import idle_time

WAKE_NS = 50_000  # from the end of a collective until its waiter goes on: 15 to 60 us on two busy cores
LATE_NS = 200_000  # by which a pool thread notes the end late, where no other rank tells
PAUSE_NS = 20_000  # shorter pauses do not tell that a thread waited
LEAST_SEEN = 2
PASSES = 4  # over the collectives, until none fits better at another place
TOLD = 0.01  # of a step: less work that may be a wait is not worth a note
NEVER = -(2**62)


@dataclass
class Runs:
    """Collectives in the order of their calls: task, call's task (-1), rank, step, place in the step."""

    task: np.ndarray
    call: np.ndarray
    rank: np.ndarray
    step: np.ndarray
    turn: np.ndarray
    begun: np.ndarray  # when the last member that it needs had begun
    late_ns: int  # by how much ends are noted late: how far those of the ranks lie apart


@dataclass
class Visits:
    """When threads came by the places: a row a place, a column a step of a rank."""

    column: dict[tuple[int, int], int]  # by rank and step
    task: np.ndarray  # what stood there, -1 where a thread did not come by
    begin: np.ndarray  # of the pause before it
    end: np.ndarray  # when the thread went on

    def of(self, runs: Runs, numbers: np.ndarray) -> np.ndarray:
        """Return the columns of some collectives."""
        pairs = zip(runs.rank[numbers].tolist(), runs.step[numbers].tolist(), strict=True)
        return np.array([self.column[pair] for pair in pairs], np.int64)


@dataclass
class Wait:
    """What a thread waits for at a task: collectives' tasks, and when its pause began and ended."""

    task: int
    begin: int
    end: int
    runs: list[int]


def find_waits(builder: GraphBuilder, runs: Runs) -> tuple[list[Wait], int]:
    """Return the waits for collectives, and for how many of those called in a step none was found."""
    called = np.flatnonzero((runs.call >= 0) & (runs.step >= 0))
    visits = _visits(builder, runs, called)
    turns = [called[runs.turn[called] == turn] for turn in np.unique(runs.turn[called]).tolist()]
    waits: dict[int, Wait] = {}
    found = 0
    for mine, place in zip(turns, _places(builder, runs, turns, visits), strict=True):
        if place < 0:
            continue
        at = visits.of(runs, mine)
        task, end = visits.task[place, at], visits.end[place, at]
        there = (task > runs.call[mine]) & (end + CLOCKS_AGREE_NS >= runs.begun[mine])
        found += int(there.sum())
        for number, column in zip(mine[there].tolist(), at[there].tolist(), strict=True):
            one = int(visits.task[place, column])
            new = Wait(one, int(visits.begin[place, column]), int(visits.end[place, column]), [])
            waits.setdefault(one, new).runs.append(number)
    return list(waits.values()), len(called) - found


def _places(builder: GraphBuilder, runs: Runs, turns: list[np.ndarray], visits: Visits) -> list[int]:
    """Return the place at which each turn's collectives are waited for, -1 where none is likely."""
    none = np.full(visits.task.shape, NEVER)
    alone = [_told(builder, runs, mine, visits, none) for mine in turns]
    score = [each.sum(axis=1) for each in alone]
    likely = [
        (whole > 0) & (((each > 0) & _paused(visits, visits.of(runs, mine))).sum(axis=1) >= LEAST_SEEN)
        for each, whole, mine in zip(alone, score, turns, strict=True)
    ]
    chosen = [-1] * len(turns)
    for _ in range(PASSES):
        owner: dict[int, int] = {}
        for turn, place in enumerate(chosen):
            if place >= 0 and (place not in owner or score[turn][place] > score[owner[place]][place]):
                owner[place] = turn
        before, chosen = chosen, []
        for turn, mine in enumerate(turns):
            explained = none.copy()
            for place, first in owner.items():
                if first != turn:
                    explained[place, visits.of(runs, turns[first])] = builder.end_ns[runs.task[turns[first]]]
            rest = _told(builder, runs, mine, visits, explained).sum(axis=1)
            places = np.flatnonzero(likely[turn])
            best = np.lexsort((places, -score[turn][places], -rest[places]))
            chosen.append(int(places[best[0]]) if len(best) else -1)
        if chosen == before:
            break
    return chosen


def _paused(visits: Visits, at: np.ndarray) -> np.ndarray:
    return visits.end[:, at] - visits.begin[:, at] >= PAUSE_NS


def _told(
    builder: GraphBuilder, runs: Runs, mine: np.ndarray, visits: Visits, explained: np.ndarray
) -> np.ndarray:
    """Return what each visit tells for a place (a row each) to be the one of each collective (a column each).

    Pauses count from where they are not yet `explained`.
    """
    at = visits.of(runs, mine)
    begin = np.maximum(visits.begin[:, at], explained[:, at])
    told = _likelihood(builder, runs, mine, begin, visits.end[:, at])
    return np.where(visits.task[:, at] > runs.call[mine], told, 0)


def _likelihood(
    builder: GraphBuilder, runs: Runs, mine: np.ndarray, begin: np.ndarray, went_on: np.ndarray
) -> np.ndarray:
    """Return the logarithm of how much likelier pauses are if threads waited for these collectives."""
    asked, taken = builder.start_ns[runs.call[mine]], builder.start_ns[runs.task[mine]]
    begun, end = runs.begun[mine], builder.end_ns[runs.task[mine]]
    begin = np.maximum(begin, asked)
    usual = np.where(went_on > end, WAKE_NS, runs.late_ns)
    waited = np.maximum(np.minimum(went_on, end) - begin, 0)
    at_end = np.log((waited + usual) / (np.abs(went_on - end) + usual))
    stood = np.maximum(begun - np.maximum(begin, taken), 0)  # for other ranks
    at_arrival = np.log((stood + WAKE_NS) / (np.maximum(went_on - begun, 0) + WAKE_NS))
    told = np.where(begin < end, at_end + np.maximum(at_arrival, 0), 0)
    too_early = -np.log1p(np.maximum(begun - went_on, 0) / CLOCKS_AGREE_NS)
    return np.where(went_on < asked, 0, np.where(went_on < begun, too_early, told))


def _visits(builder: GraphBuilder, runs: Runs, called: np.ndarray) -> Visits:
    """Return when the calling threads came by each place before which they paused at times."""
    columns = builder.graph.columns
    found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    pairs = sorted(set(zip(runs.rank[called].tolist(), runs.step[called].tolist(), strict=True)))
    column = {pair: number for number, pair in enumerate(pairs)}
    for lane in np.unique(columns["lane"][runs.call[called]]).tolist():
        idle = idle_time(builder, lane)
        pauses = dict(zip(idle.end.tolist(), idle.begin.tolist(), strict=True))
        tasks = builder.tasks.on(lane)
        rank = builder.graph.lanes[lane].rank
        seen: Counter[tuple[int, int]] = Counter()
        names, steps = columns["name"][tasks].tolist(), columns["step"][tasks].tolist()
        starts = builder.start_ns[tasks].tolist()
        for task, name, step, at in zip(tasks.tolist(), names, steps, starts, strict=True):
            place = (name, seen[name, step])
            seen[name, step] += 1
            if (rank, step) in column:
                visit = (column[rank, step], task, pauses.get(at, at), at)
                found.setdefault(place, []).append(visit)
    paused = {
        place: visits
        for place, visits in sorted(found.items())
        if sum(end - begin >= PAUSE_NS for _, _, begin, end in visits) >= LEAST_SEEN
    }
    task, begin, end = (np.full((len(paused), len(column)), fill, np.int64) for fill in (-1, 0, 0))
    for row, visits in enumerate(paused.values()):
        at = [visit[0] for visit in visits]
        task[row, at], begin[row, at], end[row, at] = np.array([visit[1:] for visit in visits]).T
    return Visits(column, task, begin, end)


def pauses_left(builder: GraphBuilder, runs: Runs, waits: list[Wait]) -> dict[int, float]:
    """Return, by rank, the share of its steps in which threads paused as they would for a collective.

    Such a pause is no wait, holds the moment in which the last member began, is longer than the transfer
    after it, and fits the collective better than the wait that was found for it, if any. Once is chance.
    """
    graph = builder.graph
    found = {number: wait for wait in waits for number in wait.runs}
    woken = {(int(graph.columns["lane"][wait.task]), wait.end) for wait in waits}
    left: dict[int, dict[tuple[int, int], int]] = {}  # by rank, then by lane and end
    for lane in np.unique(graph.columns["lane"][runs.call[runs.call >= 0]]).tolist():
        idle, rank = idle_time(builder, lane), graph.lanes[lane].rank
        kept = np.array([(lane, end) not in woken for end in idle.end.tolist()], bool)
        begins, ends = idle.begin[kept], idle.end[kept]
        for number in np.flatnonzero((runs.rank == rank) & (runs.call >= 0) & (runs.step >= 0)).tolist():
            begun, end = int(runs.begun[number]), int(builder.end_ns[runs.task[number]])
            first = np.maximum(begins, builder.start_ns[runs.call[number]])
            long = (ends >= begun) & (np.minimum(ends, end) - first > max(end - begun, PAUSE_NS))
            one = np.array([number])
            told = _likelihood(builder, runs, one, begins[long], ends[long])
            wait = found.get(number)
            known = 0.0
            if wait is not None:
                there = _likelihood(builder, runs, one, np.array([wait.begin]), np.array([wait.end]))
                known = max(float(there[0]), 0.0)
            for begin, last in zip(first[long][told > known], ends[long][told > known], strict=True):
                left.setdefault(rank, {})[lane, int(last)] = int(last - begin)
    shares = {}
    for rank, pauses in sorted(left.items()):
        if len(pauses) < LEAST_SEEN:
            continue
        steps = np.unique(runs.step[(runs.rank == rank) & (runs.step >= 0)]).tolist()
        whole = sum(graph.steps[step]["end_ns"] - graph.steps[step]["start_ns"] for step in steps)
        shares[rank] = sum(pauses.values()) / max(int(whole), 1)
    return {rank: share for rank, share in shares.items() if share >= TOLD}
