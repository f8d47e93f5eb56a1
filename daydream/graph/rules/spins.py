"""Rule 4b, spinning: a CPU that reads memory again and again until the device has written it.

An expert-parallel dispatch launches a kernel that counts the rows to come, and reads a
counter in mapped memory until it is there; a lock-free queue, a `while not done` in C++
does the same. No call is recorded, only a range or an operator that lasts:

    thread 1   |launch|        dispatch: spins         |empty|empty|launch
    stream 27          ...      |notify: writes the counter, ends|

Its time is a wait if it ends with the device task that the thread launched last, again
and again, and its distance from that end varies far less than its length. It may end
a little before the task does: the task writes first and ends then.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder
from daydream.graph.query.numbering import distinct
from daydream.graph.rules.handoff import NO_EARLIER, spread, steadier
from daydream.graph.rules.wakes import CHANCE, IDLE_NS, LEAST_STEADY, OFTEN

NEAR_NS = 100_000  # between the ends of what spins and of what it waits for: 25 to 70 us before (H800)


def wait_in_spins(builder: GraphBuilder) -> None:
    """Turn CPU time that ends with the device task launched before it, again and again, into a wait."""
    columns = builder.graph.columns
    for lane in builder.tasks.threads():
        work = builder.tasks.launched_by(lane)
        if len(work) < LEAST_STEADY:
            continue
        tasks = _stretches(builder, lane)
        calls = columns["order"][columns["launch"][work]]
        place = np.searchsorted(calls, columns["order"][tasks]) - 1
        tasks, work = tasks[place >= 0], work[place[place >= 0]]
        running = builder.end_ns[work] > builder.start_ns[tasks]
        tasks, work = tasks[running], work[running]
        what = columns["name"][tasks].astype(np.int64) * (len(builder.graph.texts["name"]) + 1)
        kinds, what = distinct(what + columns["name"][work])
        length = builder.end_ns[tasks] - builder.start_ns[tasks]
        near = np.abs(builder.end_ns[tasks] - builder.end_ns[work]) <= NEAR_NS
        count = np.bincount(what[near], minlength=len(kinds))
        often = count >= np.maximum(LEAST_STEADY, OFTEN * np.bincount(what))
        rare = count * 2 * NEAR_NS <= CHANCE * np.bincount(what, length)
        for kind in np.flatnonzero(often & rare).tolist():
            mine = what == kind
            spun, doubtful = _spun(builder, tasks[mine], work[mine])
            if doubtful:
                builder.graph.facts.doubtful_waits += int(mine.sum())
                builder.graph.facts.doubtful_ns += int(columns["duration_ns"][tasks[mine]].sum())
            if spun.any():
                _wait(builder, tasks[mine][spun], work[mine][spun])


def _stretches(builder: GraphBuilder, lane: int) -> np.ndarray:
    """Return the long pieces of a thread that are no runtime calls, and are no wait yet."""
    columns, tasks = builder.graph.columns, builder.tasks.on(lane)
    tasks = np.sort(tasks[columns["duration_ns"][tasks] >= IDLE_NS])
    rows = columns["row"][tasks]
    return tasks[(rows >= 0) & ~builder.trace.is_kind("runtime")[rows] & ~builder.waited[tasks]]


def _spun(builder: GraphBuilder, tasks: np.ndarray, work: np.ndarray) -> tuple[np.ndarray, bool]:
    """Tell which pieces of CPU time ended with device work because they waited for it; or may they?"""
    length = builder.end_ns[tasks] - builder.start_ns[tasks]
    distance = builder.end_ns[tasks] - builder.end_ns[work]
    near = np.abs(distance) <= NEAR_NS
    if steadier(distance[near], length[near]):
        return near, False
    return np.zeros(len(tasks), bool), spread(distance[near]) <= spread(length)


def _wait(builder: GraphBuilder, tasks: np.ndarray, work: np.ndarray) -> None:
    """Let CPU time end with the work on a stream, as a synchronizing call would."""
    graph = builder.graph
    columns = graph.columns
    end, done = builder.end_ns[tasks], builder.end_ns[work]
    gap = columns["gap_ns"][tasks].copy()
    columns["duration_ns"][tasks] = 0
    columns["gap_ns"][tasks] = 0
    builder.end_ns[tasks] = builder.start_ns[tasks]
    woken = np.minimum(done, end)
    resumes = builder.add_cpu_tasks(tasks, None, woken, columns["order"][tasks] + NO_EARLIER)
    graph.columns["gap_ns"][resumes] = end - woken + gap
    builder.waited[resumes] = True
    lanes = graph.columns["lane"][work]
    graph.syncs.add(task=resumes, lane=lanes, point=resumes, latency_ns=np.minimum(end - done, 0))
