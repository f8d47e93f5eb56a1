"""Collectives that a pool of CPU threads runs (gloo), and where the program waits for them.

A call queues the collective, the next free thread of the pool runs it, and whoever needs
the result waits. So each becomes a task of its own, launched by its call, on a lane that stands for a
thread of the pool; what it waits for on other ranks is found in `communication`.

    caller   |call|backward ...........|wait, until it is done|copy back
    pool       `->|all-reduce: waiting, transferring  |--^

A pool thread notes the end of its run after it has woken who waits, on a busy machine much later. A
collective therefore ended no later than its waiter went on.

Where a thread waits for a collective is not recorded. The program is the same in every step and on every
rank, so the n-th collective of a step is waited for at one place: a task's name, and how often it came in its
step so far. Each time that a thread came by is evidence for or against a place:

    for      the thread paused while the collective was under way, and went on as that ended, or, as ends
             are noted late, when its last member had begun: the longer the pause and the nearer to
             it, the less it can be chance
    against  it went on long before the end was noted, or even before the last member had begun

The evidence is the logarithm of how much likelier it is to go on at that distance from the end where the
thread waits for it than where its pause ends at any time. Distances have long tails, as on a busy machine
anything may be late; so one time that contradicts does not outweigh several that agree. Their sum decides.

A pause can be a wait for two collectives. It belongs to the one that it fits better; for the other only what
comes after the end of the first is evidence. What that leaves as work and may be a wait is said in a note.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from daydream.arrays import combinations, distinct, turns, unique
from daydream.collect.derive.collectives import (
    CLOCKS_AGREE_NS,
    NEED_ALL,
    calls_of,
    host_collectives,
    match_collectives,
    operations,
)
from daydream.graph.draft import Draft
from daydream.graph.plan import Cause, around
from daydream.graph.rules.handoff import pauses_of
from daydream.graph.rules.streams import DEVICE_PLACE
from daydream.graph.rules.thresholds import (
    GLOO_LATE_NS,
    GLOO_LEFT_SHARE,
    GLOO_PASSES,
    GLOO_PAUSE_NS,
    GLOO_POOL,
    LEAST_PAUSES,
    WAKE_NS,
)
from daydream.graph.tables import COLLECTIVE, Lane
from daydream.text import counted, listed

UNEXPLAINED = -(2**62)


@dataclass
class Runs:
    """Collectives in the order of their calls."""

    task: np.ndarray
    call: np.ndarray  # the task that asked for it, or -1
    rank: np.ndarray
    step: np.ndarray  # of the call, or -1; each rank has steps of its own
    turn: np.ndarray  # how many came before in the step
    begun: np.ndarray  # when the last member that it needs had begun
    late_ns: int  # by how much ends are noted late: how far those of the ranks lie apart


@dataclass
class Wait:
    """What a thread waits for at a task: collectives, and when its pause began and ended."""

    task: int
    begin: int
    end: int
    runs: list[int] = field(default_factory=list)


def run_on_threads(draft: Draft) -> None:
    """Make collectives on the CPU tasks of their own, which their calls launch and threads wait for."""
    rows = host_collectives(draft.trace)
    if not len(rows):
        return
    pieces = np.bincount(draft.row.clip(0), minlength=len(draft.trace))
    rows = rows[pieces[rows] == 1]  # not those with operators inside
    if not len(rows):
        return
    search = _Search(draft, _runs(draft, rows))
    runs, waits, missing = search.runs, *search.find_waits()
    left = search.pauses_left(waits)
    for wait in waits:
        tasks = runs.task[wait.runs]
        done = np.maximum(wait.end, runs.begun[wait.runs])
        draft.end_ns[tasks] = np.minimum(draft.end_ns[tasks], done)
    _move(draft, runs)
    for wait in waits:
        _wait_for(draft, wait, runs.task[wait.runs])
    if missing:
        called = counted(len(search.called), "collective")
        draft.note(
            f"Where the program waits for {missing:,} of {called} on the CPU "
            "could not be found; nothing waits for them."
        )
    if left:
        shares = listed([f"{share:.0%} of the steps' time on rank {rank}" for rank, share in left.items()])
        draft.note(
            f"For {shares} a thread was idle while a collective on the CPU was under way, at places where "
            "the program was not found to wait for one. That time is kept as work: if it is waiting, no "
            "prediction shortens it."
        )


def _runs(draft: Draft, rows: np.ndarray) -> Runs:
    """Return the collectives of some rows, and give their tasks the step, phase and layer of their calls."""
    trace = draft.trace
    start = trace["start_ns"].astype(np.int64)
    call = calls_of(trace, rows)
    order = np.argsort(np.where(call >= 0, start[call], start[rows]), kind="stable")
    rows = rows[order]
    call = call[order]
    step = np.where(call >= 0, trace["step"][call].astype(np.int64), -1)
    begun = start.copy()
    needs_all = np.zeros(len(trace), bool)
    needs_all[rows] = np.isin(operations(trace, rows), NEED_ALL)
    apart = []
    for members in match_collectives(trace).rows:
        begun[members[needs_all[members]]] = start[members].max()
        if needs_all[members[0]]:
            apart.append(np.ptp(start[members] + trace["duration_ns"][members]))
    late = max(WAKE_NS, int(np.median(apart))) if apart else GLOO_LATE_NS
    tasks = draft.task_of_row[rows]
    calls = np.where(call >= 0, draft.task_of_row[call], -1)
    draft.step[tasks] = step
    for column in (draft.phase, draft.layer):
        column[tasks] = np.where(calls >= 0, column[calls], -1)
    return Runs(tasks, calls, draft.ranks[draft.lane[tasks]], step, turns(step), begun[rows], late)


class _Search:
    """When threads came by the places where they may wait: a row a place, a column a step of a rank."""

    def __init__(self, draft: Draft, runs: Runs) -> None:
        self.draft = draft
        self.runs = runs
        self.called = np.flatnonzero((runs.call >= 0) & (runs.step >= 0))
        steps = unique(runs.step[self.called])
        column_of = np.full(len(draft.steps) + 1, -1)
        column_of[steps] = np.arange(len(steps))
        self.column = column_of[runs.step]
        parts = [np.empty((3, 0), np.int64)]
        for lane in unique(draft.lane[runs.call[self.called]]).tolist():
            idle = pauses_of(draft, lane)
            tasks = draft.on(lane)
            turn = turns(combinations([draft.name[tasks], draft.step[tasks]])[0])
            paused = dict(zip(idle.end.tolist(), idle.begin.tolist(), strict=True))
            begin = [paused.get(at, at) for at in draft.start_ns[tasks].tolist()]
            parts.append(np.stack([tasks, turn, begin]))
        task, turn, begin = np.concatenate(parts, axis=1)
        end = draft.start_ns[task]
        column = column_of[draft.step[task]]
        place, _ = combinations([draft.name[task], turn])
        long = (column >= 0) & (end - begin >= GLOO_PAUSE_NS)
        often = (column >= 0) & (np.bincount(place, long)[place] >= LEAST_PAUSES)
        known, place = distinct(place[often])
        # What came by, -1 where a thread did not, and begin and end of the pause before it.
        visits = np.zeros((3, len(known), len(steps)), np.int64)
        visits[0] = -1
        visits[:, place, column[often]] = np.stack([task, begin, end])[:, often]
        self.task, self.begin, self.end = visits

    def find_waits(self) -> tuple[list[Wait], int]:
        """Return the waits for collectives, and for how many of those called in a step none was found."""
        runs = self.runs
        turn_of = runs.turn[self.called]
        by_turn = [self.called[turn_of == turn] for turn in unique(turn_of)]
        waits: dict[int, Wait] = {}
        found = 0
        for mine, place in zip(by_turn, self._places(by_turn), strict=True):
            if place < 0:
                continue
            at = self.column[mine]
            task = self.task[place, at]
            begin = self.begin[place, at]
            end = self.end[place, at]
            there = (task > runs.call[mine]) & (end + CLOCKS_AGREE_NS >= runs.begun[mine])
            found += int(there.sum())
            for number, one, since, until in np.stack([mine, task, begin, end])[:, there].T.tolist():
                waits.setdefault(one, Wait(one, since, until)).runs.append(number)
        return list(waits.values()), len(self.called) - found

    def _places(self, by_turn: list[np.ndarray]) -> list[int]:
        """Return the place at which each turn's collectives are waited for, -1 where none is likely."""
        none = np.full(self.task.shape, UNEXPLAINED)
        paused = self.end - self.begin >= GLOO_PAUSE_NS
        score = []
        likely = []
        for mine in by_turn:
            evidence = self._evidence(mine, none)
            for_it = ((evidence > 0) & paused[:, self.column[mine]]).sum(axis=1)
            score.append(evidence.sum(axis=1))
            likely.append(np.flatnonzero((score[-1] > 0) & (for_it >= LEAST_PAUSES)).tolist())
        chosen = [-1] * len(by_turn)
        for _ in range(GLOO_PASSES):
            owner: dict[int, int] = {}
            for turn, place in enumerate(chosen):
                if place >= 0 and (place not in owner or score[turn][place] > score[owner[place]][place]):
                    owner[place] = turn
            before = chosen
            chosen = []
            for turn, mine in enumerate(by_turn):
                explained = none.copy()
                for place, first in owner.items():
                    if first != turn:
                        done = self.draft.end_ns[self.runs.task[by_turn[first]]]
                        explained[place, self.column[by_turn[first]]] = done
                fits = zip(self._evidence(mine, explained).sum(axis=1), score[turn], strict=True)
                chosen.append(max(likely[turn], key=list(fits).__getitem__, default=-1))
            if chosen == before:
                break
        return chosen

    def _evidence(self, mine: np.ndarray, explained: np.ndarray) -> np.ndarray:
        """Return the evidence of each visit for a place (a row) to be that of each collective (a column).

        Pauses count from where they are not yet `explained`.
        """
        at = self.column[mine]
        begin = np.maximum(self.begin[:, at], explained[:, at])
        evidence = self._likelihood(mine, begin, self.end[:, at])
        return np.where(self.task[:, at] > self.runs.call[mine], evidence, 0)

    def _likelihood(self, mine: np.ndarray, begin: np.ndarray, went_on: np.ndarray) -> np.ndarray:
        """Return the logarithm of how much likelier pauses are if threads waited for these collectives."""
        draft = self.draft
        runs = self.runs
        asked = draft.start_ns[runs.call[mine]]
        taken = draft.start_ns[runs.task[mine]]
        begun = runs.begun[mine]
        end = draft.end_ns[runs.task[mine]]
        begin = np.maximum(begin, asked)
        usual = np.where(went_on > end, WAKE_NS, runs.late_ns)
        waited = np.maximum(np.minimum(went_on, end) - begin, 0)
        at_end = np.log((waited + usual) / (np.abs(went_on - end) + usual))
        blocked = np.maximum(begun - np.maximum(begin, taken), 0)  # for other ranks
        at_arrival = np.log((blocked + WAKE_NS) / (np.maximum(went_on - begun, 0) + WAKE_NS))
        in_time = np.where(begin < end, at_end + np.maximum(at_arrival, 0), 0)
        too_early = -np.log1p(np.maximum(begun - went_on, 0) / CLOCKS_AGREE_NS)
        return np.where(went_on < asked, 0, np.where(went_on < begun, too_early, in_time))

    def pauses_left(self, waits: list[Wait]) -> dict[int, float]:
        """Return, by rank, the share of its steps in which threads paused as they would for a collective.

        Such a pause is no wait, holds the moment in which the last member began, is longer than the transfer
        after it, and fits the collective better than the wait that was found for it, if any. Once is chance.
        """
        draft = self.draft
        runs = self.runs
        known = np.zeros(len(runs.task))  # how well the wait that was found fits each
        for wait in waits:
            fits = self._likelihood(np.array(wait.runs), np.array(wait.begin), np.array(wait.end))
            known[wait.runs] = np.maximum(fits, 0)
        woken = {(int(draft.lane[wait.task]), wait.end) for wait in waits}
        left: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)  # by rank, then by lane and end
        for lane in unique(draft.lane[runs.call[runs.call >= 0]]).tolist():
            rank = draft.lanes[lane].rank
            idle = pauses_of(draft, lane)
            idle = idle.only(np.array([(lane, end) not in woken for end in idle.end.tolist()], bool))
            for number in self.called[runs.rank[self.called] == rank].tolist():
                begun = int(runs.begun[number])
                end = int(draft.end_ns[runs.task[number]])
                since = np.maximum(idle.begin, draft.start_ns[runs.call[number]])
                asleep = np.minimum(idle.end, end) - since
                long = (idle.end >= begun) & (asleep > max(end - begun, GLOO_PAUSE_NS))
                fits = self._likelihood(np.array([number]), idle.begin[long], idle.end[long])
                better = np.flatnonzero(long)[fits > known[number]]
                for place in better.tolist():
                    left[rank][lane, int(idle.end[place])] = int(idle.end[place] - since[place])
        shares = {}
        for rank, pauses in sorted(left.items()):
            steps = unique(runs.step[(runs.rank == rank) & (runs.step >= 0)]).tolist()
            whole = sum(draft.steps[step]["end_ns"] - draft.steps[step]["start_ns"] for step in steps)
            share = sum(pauses.values()) / max(int(whole), 1)
            if len(pauses) >= LEAST_PAUSES and share >= GLOO_LEFT_SHARE:
                shares[rank] = share
        return shares


def _move(draft: Draft, runs: Runs) -> None:
    """Put the collectives on lanes of their own, launched by their calls, as a pool runs them."""
    start = draft.start_ns
    end = draft.end_ns
    draft.duration_ns[runs.task] = (end - start)[runs.task]
    draft.gap_ns[runs.task] = 0
    lane_of = draft.lane.copy()
    ranks = unique(runs.rank).tolist()
    for rank in ranks:
        mine = np.flatnonzero(runs.rank == rank)
        threads = max(GLOO_POOL, len(unique(draft.lane[runs.task[mine]])))
        prefix = f"rank {rank} " if len(ranks) > 1 else ""
        lanes = [
            draft.add_lane(Lane(f"{prefix}gloo {number}", rank, on_device=True, host=True))
            for number in range(threads)
        ]
        free = dict.fromkeys(lanes, 0)
        last = dict.fromkeys(lanes, -1)
        at_once: list[int] = []
        later: list[int] = []  # whether a thread was free when it was asked for
        for task, call in zip(runs.task[mine].tolist(), runs.call[mine].tolist(), strict=True):
            lane_of[task] = lane = min(free, key=free.__getitem__)
            if call >= 0:
                draft.latency_ns[task] = start[task] - start[call]
                draft.release_ns[task] = 0
                busy = free[lane] > start[call]
                (later if busy else at_once).append(task)
                if busy:
                    draft.gap_ns[last[lane]] = max(int(start[task]) - free[lane], 0)
            free[lane] = int(end[task])
            last[lane] = task
        usual = int(np.median(draft.latency_ns[at_once])) if at_once else 0
        draft.latency_ns[later] = np.minimum(draft.latency_ns[later], usual)
    called = runs.call >= 0
    draft.kind[runs.task] = COLLECTIVE
    draft.launch[runs.task] = runs.call
    order = np.where(called, draft.order[runs.call] + DEVICE_PLACE, draft.order[runs.task])
    draft.move(runs.task, lane=lane_of[runs.task], order=order)


def _wait_for(draft: Draft, wait: Wait, collectives: np.ndarray) -> None:
    """Turn the pause at a place into a wait for the collectives that are waited for there."""
    task = np.array([wait.task])
    order = draft.order[wait.task] - 2
    name = "wait for collective"
    woken = min(max(int(draft.end_ns[collectives].max()), wait.begin), wait.end)
    if woken > wait.begin:
        before, _ = around(draft.on, draft.order, draft.lane[task], draft.order[task] - 1)
        in_range = draft.gap_ns[before] == 0  # it paused in a named range
        begin = np.where(in_range, draft.start_ns[before], draft.end_ns[before])
        resume = draft.turn_into_wait(
            before, begin, np.array([woken]), np.array([wait.end]),
            order=order, inside=in_range, like=task, name=name,
        )  # fmt: skip
    else:
        resume = draft.add_cpu_tasks(task, np.array([wait.end]), order, name)
    draft.link(collectives, resume, cause=Cause.COMMUNICATION)
