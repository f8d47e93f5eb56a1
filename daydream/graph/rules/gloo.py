"""Rule 5 on the CPU: collectives that a pool of threads runs (gloo).

A call queues the collective, the next free thread of the pool runs it, and whoever needs
the result waits. So each becomes a task of its own, launched by its call, on a lane that stands for a
thread of the pool; what it waits for on other ranks is the business of rule 5.

    caller   |call|backward ...........|wait, until it is done|copy back
    pool       `->|all-reduce: waiting, transferring  |--^

Where a thread waits for a collective is not recorded; `gloo_waits` finds it. What that leaves as work
and may be a wait is said in a note.

A pool thread notes the end of its run after it has woken who waits, on a busy machine much later. A
collective therefore ended no later than its waiter went on.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from daydream.collect.derive.collective_matching import match_collectives
from daydream.collect.derive.host_collectives import NEED_ALL, calls_of, host_collectives, operations
from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import Lane
from daydream.graph.plan import Cause
from daydream.graph.rules.gloo_waits import LATE_NS, WAKE_NS, Runs, Wait, find_waits, pauses_left
from daydream.graph.rules.streams import DEVICE_PLACE
from daydream.graph.tables import COLLECTIVE, CPU
from daydream.text import counted, listed

POOL = 2  # threads of a pool: torch gives gloo two a network interface


def run_on_threads(builder: GraphBuilder) -> None:
    """Make collectives on the CPU tasks of their own, which their calls launch and threads wait for."""
    rows = host_collectives(builder.trace)
    if not len(rows):
        return
    pieces = np.bincount(builder.graph.columns["row"].clip(0), minlength=len(builder.trace))
    rows = rows[pieces[rows] == 1]  # not those with operators inside
    if not len(rows):
        return
    runs = _find(builder, rows)
    waits, unknown = find_waits(builder, runs)
    left = pauses_left(builder, runs, waits)
    for wait in waits:
        done = np.maximum(wait.end, runs.begun[wait.runs])
        tasks = runs.task[wait.runs]
        builder.end_ns[tasks] = np.minimum(builder.end_ns[tasks], done)
    _move(builder, runs)
    builder.tasks.forget()
    for wait in waits:
        _wait(builder, runs, wait)
    if unknown:
        called = int(((runs.call >= 0) & (runs.step >= 0)).sum())
        builder.graph.note(
            f"Where the program waits for {unknown:,} of {counted(called, 'collective')} on the CPU "
            "could not be found; nothing waits for them."
        )
    if left:
        shares = listed([f"{share:.0%} of the steps' time on rank {rank}" for rank, share in left.items()])
        builder.graph.note(
            f"For {shares} a thread was idle while a collective on the CPU was under way, at places where "
            "the program was not found to wait for one. That time is kept as work: if it is waiting, no "
            "prediction shortens it."
        )


def _find(builder: GraphBuilder, rows: np.ndarray) -> Runs:
    graph, trace = builder.graph, builder.trace
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
    apart = []
    for members in match_collectives(trace).rows:
        for row in members.tolist():
            if what.get(row) in NEED_ALL:
                begun[row] = int(start[members].max())
        if what.get(int(members[0])) in NEED_ALL:
            apart.append(int(np.ptp(start[members] + trace["duration_ns"][members])))
    late = max(WAKE_NS, int(np.median(apart))) if apart else LATE_NS
    tasks = builder.task_of_row[rows]
    calls = np.where(call >= 0, builder.task_of_row[call], -1)
    known = np.array([begun[int(row)] for row in rows], np.int64)
    graph.columns["step"][tasks] = step
    for name in ("phase", "layer"):
        graph.columns[name][tasks] = np.where(calls >= 0, graph.columns[name][calls], -1)
    return Runs(tasks, calls, rank, step, np.array(turn), known, late)


def _move(builder: GraphBuilder, runs: Runs) -> None:
    """Put the collectives on lanes of their own, launched by their calls, as a pool runs them."""
    graph, columns = builder.graph, builder.graph.columns
    start, end = builder.start_ns, builder.end_ns
    several = len(set(runs.rank.tolist())) > 1
    for rank in np.unique(runs.rank).tolist():
        mine = np.flatnonzero(runs.rank == rank)
        threads = max(POOL, len(np.unique(columns["lane"][runs.task[mine]])))
        prefix = f"rank {rank} " if several else ""
        lanes = [
            graph.add_lane(Lane(f"{prefix}gloo {number}", rank, on_device=True, host=True))
            for number in range(threads)
        ]
        builder.host_lanes |= set(lanes)
        free = dict.fromkeys(lanes, 0)
        last = dict.fromkeys(lanes, -1)
        idle = [
            int(start[runs.task[n]] - start[runs.call[n]])
            for place, n in enumerate(mine.tolist())
            if runs.call[n] >= 0 and (place < threads or _done(builder, runs, mine, place, threads))
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


def _done(builder: GraphBuilder, runs: Runs, mine: np.ndarray, place: int, threads: int) -> bool:
    """Tell whether a thread of the pool was free when a collective was asked for."""
    before = runs.task[mine[:place]]
    return int((builder.end_ns[before] > builder.start_ns[runs.call[mine[place]]]).sum()) < threads


def _wait(builder: GraphBuilder, runs: Runs, wait: Wait) -> None:
    """Turn the pause at a place into a wait for the collectives that are waited for there."""
    graph, columns, task = builder.graph, builder.graph.columns, wait.task
    collectives = runs.task[wait.runs]
    woken = min(max(int(builder.end_ns[collectives].max()), wait.begin), wait.end)
    rest = 0
    if wait.end > wait.begin and woken > wait.begin:
        mates = np.flatnonzero((columns["lane"] == columns["lane"][task]) & (columns["kind"] == CPU))
        mates = mates[columns["order"][mates] < columns["order"][task]]
        before = int(mates[np.argmax(columns["order"][mates])])
        if columns["gap_ns"][before] == 0:  # it stood in a named range
            columns["duration_ns"][before] = 0
            builder.end_ns[before] = builder.start_ns[before]
        columns["gap_ns"][before] = 0
        rest = wait.end - woken
    order = int(columns["order"][task]) - 2
    resume = builder.add_cpu_tasks(
        np.array([task]), "wait for collective", np.array([woken if rest else wait.end]), order
    )
    graph.columns["gap_ns"][resume] = rest
    graph.link(collectives, resume, cause=Cause.COMMUNICATION)
