"""Rule 5 on the CPU: collectives that a pool of threads runs (gloo).

A call queues the collective, the next free thread of the pool runs it, and whoever needs
the result waits. So each becomes a task of its own, launched by its call, on a lane that stands for a
thread of the pool; what it waits for on other ranks is the business of rule 5.

    caller   |call|backward ...........|wait, until it is done|copy back
    pool       `->|all-reduce: waiting, transferring  |--^

Where a thread waits for a collective is not recorded. The program is the same in every step and on
every rank, so the n-th collective of a step is waited for at one place: where a thread went on again and
again just as that collective ended, or, where ends tell nothing, as its last member began. A place
at which a thread went on before a collective could be done is not it.

A pool thread notes the end of its run after it has woken who waits, on a busy machine much later. A
collective therefore ended no later than its waiter went on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from daydream.collect.host_collectives import NEED_ALL, calls_of, host_collectives, operations
from daydream.collect.meetings import find_meetings
from daydream.graph.draft import Draft
from daydream.graph.graph import KINDS, Lane
from daydream.graph.plan import Cause
from daydream.graph.rules.handoff import idle_time
from daydream.graph.rules.streams import DEVICE_PLACE
from daydream.wording import counted

COLLECTIVE = KINDS.index("collective")
POOL = 2  # threads of a pool: torch gives gloo two a network interface
WAKE_NS = 50_000  # from the end of a collective until its waiter goes on
LATE_NS = 200_000  # by which a pool thread notes the end late
PAUSE_NS = 20_000  # shorter pauses do not tell that a thread waited
LEAST_SEEN = 2
CONTRADICTED = 0.1  # of the steps in which a thread went on too early for a place to be the one


@dataclass
class _Runs:
    """Collectives in the order of their calls: task, call's task (-1), rank, step, place in the step."""

    task: np.ndarray
    call: np.ndarray
    rank: np.ndarray
    step: np.ndarray
    turn: np.ndarray
    begun: np.ndarray  # when the last member that it needs had begun


@dataclass
class _Visit:
    """One time that a thread came by a place: what stood there, when the pause before it began and ended."""

    task: int
    begin: int
    end: int


def run_on_threads(draft: Draft) -> None:
    """Make collectives on the CPU tasks of their own, which their calls launch and threads wait for."""
    rows = host_collectives(draft.trace)
    pieces = np.bincount(draft.graph.columns["row"].clip(0), minlength=len(draft.trace))
    rows = rows[pieces[rows] == 1]  # not those with operators inside
    if not len(rows):
        return
    runs = _find(draft, rows)
    visits, waits = _waits(draft, runs)
    for number, place in waits.items():
        if place is not None:
            mine = visits[place][int(runs.rank[number]), int(runs.step[number])]
            task = runs.task[number]
            draft.end_ns[task] = min(int(draft.end_ns[task]), max(mine.end, int(runs.begun[number])))
    _move(draft, runs)
    _wait(draft, runs, visits, waits)
    unknown = sum(place is None for place in waits.values())
    if unknown:
        draft.graph.note(
            f"Where the program waits for {unknown:,} of {counted(len(waits), 'collective')} on the CPU "
            "could not be found; nothing waits for them."
        )


def _find(draft: Draft, rows: np.ndarray) -> _Runs:
    graph, trace = draft.graph, draft.trace
    start = trace["start_ns"]
    call = calls_of(trace, rows)
    key = np.where(call >= 0, start[call], start[rows])
    order = np.argsort(key, kind="stable")
    rows, call = rows[order], call[order]
    rank = np.maximum(np.asarray(trace["rank"], np.int64), 0)[rows]
    step = np.where(call >= 0, np.asarray(trace["step"], np.int64)[call], -1)
    seen: Counter[tuple[int, int]] = Counter()
    turn = []
    for one in zip(rank.tolist(), step.tolist(), strict=True):
        turn.append(seen[one])
        seen[one] += 1
    begun = {int(row): int(start[row]) for row in rows}
    what = dict(zip(rows.tolist(), operations(trace, rows), strict=True))
    for members in find_meetings(trace).rows:
        for row in members.tolist():
            if what.get(row) in NEED_ALL:
                begun[row] = int(start[members].max())
    tasks = draft.task_of_row[rows]
    calls = np.where(call >= 0, draft.task_of_row[call], -1)
    known = np.array([begun[int(row)] for row in rows], np.int64)
    graph.columns["step"][tasks] = step
    for name in ("phase", "layer"):
        graph.columns[name][tasks] = np.where(calls >= 0, graph.columns[name][calls], -1)
    return _Runs(tasks, calls, rank, step, np.array(turn), known)


Visits = dict[tuple[int, int], dict[tuple[int, int], _Visit]]  # by place, then by (rank, step)


def _waits(draft: Draft, runs: _Runs) -> tuple[Visits, dict[int, tuple[int, int] | None]]:
    """Return how often threads came by which places, and at which place each collective is waited for."""
    visits = _visits(draft, np.unique(draft.graph.columns["lane"][runs.call[runs.call >= 0]]).tolist())
    waits: dict[int, tuple[int, int] | None] = {}
    for turn in np.unique(runs.turn[runs.step >= 0]).tolist():
        mine = np.flatnonzero((runs.turn == turn) & (runs.call >= 0) & (runs.step >= 0)).tolist()
        place = _place(draft, runs, mine, visits)
        for number in mine:
            visit = visits[place].get((int(runs.rank[number]), int(runs.step[number]))) if place else None
            there = visit is not None and visit.end >= runs.begun[number]
            waits[number] = place if there else None
    return visits, waits


def _place(draft: Draft, runs: _Runs, mine: list[int], visits: Visits) -> tuple[int, int] | None:
    """Return the place at which these collectives, one a step and rank, are waited for."""
    start, end = draft.start_ns, draft.end_ns
    found: list[tuple[int, int, int, tuple[int, int]]] = []
    for place, by_step in visits.items():
        at_end = at_arrival = early = came = 0
        soonest = 2**62
        for number in mine:
            visit = by_step.get((int(runs.rank[number]), int(runs.step[number])))
            if visit is None or visit.task <= runs.call[number] or visit.end < start[runs.call[number]]:
                continue
            came += 1
            soonest = min(soonest, visit.end - int(start[runs.call[number]]))
            early += visit.end < runs.begun[number]
            if visit.end - visit.begin >= PAUSE_NS:
                at_end += -LATE_NS <= visit.end - end[runs.task[number]] <= WAKE_NS
                at_arrival += visit.begin < runs.begun[number] <= visit.end
        if came and early <= CONTRADICTED * came and max(at_end, at_arrival) >= LEAST_SEEN:
            known = at_end if at_end >= LEAST_SEEN else 0
            found.append((-known, -at_arrival, soonest, place))
    return min(found)[-1] if found else None


def _visits(draft: Draft, lanes: list[int]) -> Visits:
    """Return when the threads came by each place: a task's name and how often it came in its step so far.

    Only places before which they paused.
    """
    columns = draft.graph.columns
    found: Visits = {}
    for lane in lanes:
        idle = idle_time(draft, lane)
        pauses = dict(zip(idle.end.tolist(), idle.begin.tolist(), strict=True))
        tasks = np.flatnonzero(columns["lane"] == lane)
        tasks = tasks[np.argsort(columns["order"][tasks], kind="stable")]
        rank = draft.graph.lanes[lane].rank
        seen: Counter[tuple[int, int]] = Counter()
        names, steps = columns["name"][tasks].tolist(), columns["step"][tasks].tolist()
        starts = draft.start_ns[tasks].tolist()
        for task, name, step, at in zip(tasks.tolist(), names, steps, starts, strict=True):
            place = (name, seen[name, step])
            seen[name, step] += 1
            if step >= 0:
                found.setdefault(place, {})[rank, step] = _Visit(task, pauses.get(at, at), at)
    return {
        place: visits
        for place, visits in found.items()
        if sum(visit.end - visit.begin >= PAUSE_NS for visit in visits.values()) >= LEAST_SEEN
    }


def _move(draft: Draft, runs: _Runs) -> None:
    """Put the collectives on lanes of their own, launched by their calls, as a pool runs them."""
    graph, columns = draft.graph, draft.graph.columns
    start, end = draft.start_ns, draft.end_ns
    several = len(set(runs.rank.tolist())) > 1
    for rank in np.unique(runs.rank).tolist():
        mine = np.flatnonzero(runs.rank == rank)
        threads = max(POOL, len(np.unique(columns["lane"][runs.task[mine]])))
        prefix = f"rank {rank} " if several else ""
        lanes = [
            graph.add_lane(Lane(f"{prefix}gloo {number}", rank, on_device=True, host=True))
            for number in range(threads)
        ]
        draft.host_lanes |= set(lanes)
        free = dict.fromkeys(lanes, 0)
        last = dict.fromkeys(lanes, -1)
        idle = [
            int(start[runs.task[n]] - start[runs.call[n]])
            for place, n in enumerate(mine.tolist())
            if runs.call[n] >= 0 and (place < threads or _done(draft, runs, mine, place, threads))
        ]
        usual = int(np.median(idle)) if idle else 0
        for number in mine.tolist():
            task, call = int(runs.task[number]), int(runs.call[number])
            lane = min(free, key=lambda each: free[each])
            columns["lane"][task], columns["kind"][task] = lane, COLLECTIVE
            columns["launch"][task] = call
            columns["duration_ns"][task], columns["gap_ns"][task] = end[task] - start[task], 0
            if call >= 0:
                asked = int(start[task] - start[call])
                columns["release_ns"][task] = 0
                columns["order"][task] = columns["order"][call] + DEVICE_PLACE
                columns["latency_ns"][task] = asked
                if free[lane] > start[call] and last[lane] >= 0:  # its thread was busy when it was asked for
                    columns["latency_ns"][task] = min(asked, usual)
                    columns["gap_ns"][last[lane]] = max(int(start[task]) - free[lane], 0)
            free[lane], last[lane] = int(end[task]), task


def _done(draft: Draft, runs: _Runs, mine: np.ndarray, place: int, threads: int) -> bool:
    """Tell whether a thread of the pool was free when a collective was asked for."""
    before = runs.task[mine[:place]]
    return int((draft.end_ns[before] > draft.start_ns[runs.call[mine[place]]]).sum()) < threads


def _wait(draft: Draft, runs: _Runs, visits: Visits, waits: dict[int, tuple[int, int] | None]) -> None:
    """Turn the pause at each place into a wait for the collectives that are waited for there."""
    graph = draft.graph
    at: dict[int, list[int]] = {}
    found: dict[int, _Visit] = {}
    for number, place in waits.items():
        if place is not None:
            visit = visits[place][int(runs.rank[number]), int(runs.step[number])]
            at.setdefault(visit.task, []).append(int(runs.task[number]))
            found[visit.task] = visit
    for task, collectives in at.items():
        visit, columns = found[task], graph.columns
        done = max(int(draft.end_ns[each]) for each in collectives)
        woken = min(max(done, visit.begin), visit.end)
        if visit.end > visit.begin:
            mates = np.flatnonzero((columns["lane"] == columns["lane"][task]) & (columns["kind"] == 0))
            mates = mates[columns["order"][mates] < columns["order"][task]]
            before = int(mates[np.argmax(columns["order"][mates])])
            if woken > visit.begin:
                if columns["gap_ns"][before] == 0:  # it stood in a named range
                    columns["duration_ns"][before] = 0
                    draft.end_ns[before] = draft.start_ns[before]
                columns["gap_ns"][before] = 0
            rest = visit.end - woken if woken > visit.begin else 0
        else:
            rest = 0
        order = int(columns["order"][task]) - 2
        resume = draft.add_cpu_tasks(
            np.array([task]), "wait for collective", np.array([woken if rest else visit.end]), order
        )
        graph.columns["gap_ns"][resume] = rest
        graph.link(collectives, resume, cause=Cause.COMMUNICATION)
