"""Rule 7b, wake-ups: a thread that goes on again and again just behind a point of another waited for it.

Threads that run side by side hand work to each other through queues: a loader's
executors, pools, pin-memory threads, and a producer whose queue is full until the
consumer takes an item. No trace records who waited for whom. But a thread that
waits idles for as long as the other one takes, longer in one step and shorter in
the next, and begins a short time after the other one got there, always the same:

    thread A  |   prepares 159 ms   |                |  prepares 161 ms     |
    thread B  idles                  80 us |copies|    idles                 82 us |copies|

So a point of another thread explains a pause if it lies close before its end in
nearly every pause of that kind, and is too rare to lie there by chance. One that
lies further back explains it only if its distance varies far less than the length
of the pauses: in a program where every step takes equally long, anything is at the
same distance from anything. Such pauses are kept as they are, and counted as doubtful.
The idle time up to a point that explains it is a wait; kept as a gap it would hide
every change of what the thread waited for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from daydream.graph.builder import GraphBuilder
from daydream.graph.plan import Cause
from daydream.graph.query.numbering import distinct
from daydream.graph.rules.handoff import (
    LEAST_BURSTS,
    NO_EARLIER,
    ROUNDING_NS,
    WAKE_NS,
    IdleTime,
    idle_time,
    spread,
    steadier,
    tasks_of,
)
from daydream.graph.tables import CPU

IDLE_NS = 50_000  # shorter pauses are a thread's own
FAR_NS = 300_000  # the same where only how steady it is speaks for it: 80 to 100 us between DALI's executors
LEAST_STEADY = 3  # pauses that have a spread
AS_STEADY = 1.25  # of such points, those that vary by so much more than the steadiest count, too
OFTEN = 0.8  # of a thread's pauses before one kind of task that must end so
CHANCE = 0.1  # of any moment to lie so close behind such a point; more would prove nothing


@dataclass
class Points:
    """When a thread ended a task or began to work again, in order, and numbers for what is alike."""

    time: np.ndarray
    task: np.ndarray
    begins: np.ndarray  # the task begins there, behind a pause; else it ends
    alike: tuple[np.ndarray, ...]  # by name; by name and place in the step


@dataclass
class Found:
    """Points that end pauses: for each pause its place among a thread's points, or -1."""

    place: np.ndarray
    alike: int  # how many such points the thread has
    delay_ns: np.ndarray  # of the pauses that have one


def wake_up(builder: GraphBuilder) -> None:
    """Link the pauses of every thread to the points of other threads that end them every time."""
    columns = builder.graph.columns
    lanes = np.unique(columns["lane"][columns["kind"] == CPU]).tolist()
    if len(lanes) < 2:
        return
    names = _without_numbers(builder.graph.texts["name"])
    points = {lane: _points_of(builder, lane, names) for lane in lanes}
    for lane in lanes:
        others = [o for o in lanes if o != lane and builder.thread_ids[o][:2] == builder.thread_ids[lane][:2]]
        idle = idle_time(builder, lane)
        mine = tasks_of(builder, lane)
        following = mine[np.minimum(np.searchsorted(builder.start_ns[mine], idle.end), len(mine) - 1)]
        columns = builder.graph.columns
        sign = names[np.where(idle.in_range, columns["name"][idle.task], columns["name"][following])]
        long = (idle.end - idle.begin >= IDLE_NS) & (idle.end <= builder.start_ns[mine[-1]])
        for name in np.unique(sign[long]).tolist():
            pauses = np.flatnonzero(long & (sign == name))
            if len(pauses) < LEAST_BURSTS:
                continue
            begin, end = idle.begin[pauses], idle.end[pauses]
            explained, doubtful = _explained(points, others, begin, end)
            if doubtful:
                builder.graph.facts.doubtful_waits += len(pauses)
                builder.graph.facts.doubtful_ns += int((end - begin).sum())
            if explained is not None:
                other, found = explained
                there = found.place >= 0
                _wait_for(builder, idle, pauses[there], points[other], found.place[there])
                builder.linked_threads |= {lane, other}
                points[lane] = _points_of(builder, lane, names)  # a range that was a wait ends nothing


def _without_numbers(texts: list[str]) -> np.ndarray:
    """Return a number for each name, the same where names differ in their digits only (`step 7`)."""
    codes: dict[str, int] = {}
    plain = [codes.setdefault(re.sub(r"\d+", "0", text), len(codes)) for text in texts]
    return np.array([*plain, -1], np.int64)


def _points_of(builder: GraphBuilder, lane: int, names: np.ndarray) -> Points:
    columns = builder.graph.columns
    tasks = tasks_of(builder, lane)
    start, end = builder.start_ns[tasks], builder.end_ns[tasks]
    woken = np.isin(tasks, builder.graph.links["dst"])
    again = np.append(True, end[:-1] < start[1:]) & ~woken
    counts = ~woken | (end > start)  # who goes on at that moment was woken, too
    tasks, start, end, again = tasks[counts], start[counts], end[counts], again[counts]
    time = np.concatenate([end, start[again]])
    begins = np.repeat([False, True], [len(tasks), int(again.sum())])
    task = np.concatenate([tasks, tasks[again]])
    order = np.lexsort((begins, time))
    time, begins, task = time[order], begins[order], task[order]
    kinds, what = distinct(2 * names[columns["name"][task]] + begins)
    step = columns["step"][task].astype(np.int64)
    turn = _turns(what * (len(builder.graph.steps) + 2) + step + 1)
    # Turns of a kind are numbered without a hole, so kind and turn have a number together.
    turns = np.zeros(len(kinds) + 1, np.int64)
    np.maximum.at(turns, what + 1, turn + 1)
    return Points(time, task, begins, (what, np.cumsum(turns)[what] + turn))


def _turns(keys: np.ndarray) -> np.ndarray:
    """Return how often each entry's key occurred before it."""
    order = np.argsort(keys, kind="stable")
    first = np.append(True, keys[order][1:] != keys[order][:-1])[: len(keys)]
    turn = np.arange(len(keys)) - np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    turns = np.empty(len(keys), np.int64)
    turns[order] = turn
    return turns


def _explained(
    points: dict[int, Points], others: list[int], begin: np.ndarray, end: np.ndarray
) -> tuple[tuple[int, Found] | None, bool]:
    """Return the thread whose points end these pauses, and which do; and if not, whether some may."""
    near = [each for each in _rare(points, others, begin, end, WAKE_NS) if _ends(points[each[0]], each[1])]
    if near:
        return min(near, key=lambda pair: (np.median(pair[1].delay_ns), pair[1].alike)), False
    far = _rare(points, others, begin, end, FAR_NS)
    far = [(other, found) for other, found in far if len(found.delay_ns) >= LEAST_STEADY]
    steady = [pair for pair in far if steadier(pair[1].delay_ns, (end - begin)[pair[1].place >= 0])]
    if not steady:
        return None, any(spread(found.delay_ns) <= spread(end - begin) for _, found in far)
    least = AS_STEADY * min(spread(found.delay_ns) for _, found in steady)
    best = [pair for pair in steady if spread(pair[1].delay_ns) <= least]
    return min(best, key=lambda pair: (np.median(pair[1].delay_ns), pair[1].alike)), False


def _rare(
    points: dict[int, Points], others: list[int], begin: np.ndarray, end: np.ndarray, reach_ns: int
) -> list[tuple[int, Found]]:
    """Return what lies before the ends of nearly all pauses and is too rare to do so by chance, by thread."""
    return [
        (other, found)
        for other in others
        for alike in points[other].alike
        for found in _found(points[other], alike, begin, end, reach_ns)
        if found.alike * max(WAKE_NS, int(found.delay_ns.max()))
        <= CHANCE * (points[other].time[-1] - points[other].time[0])
    ]


def _ends(points: Points, found: Found) -> bool:
    """Tell whether these points are the ends of tasks; that one begins close by is easily chance."""
    return not points.begins[found.place[found.place >= 0][0]]


def _found(
    points: Points, alike: np.ndarray, begin: np.ndarray, end: np.ndarray, reach_ns: int
) -> list[Found]:
    """Return the kinds of points that lie close before the end of nearly all pauses, the last of each."""
    low = np.searchsorted(points.time, np.maximum(begin, end - reach_ns))
    high = np.searchsorted(points.time, end + ROUNDING_NS, side="right")
    count = np.maximum(high - low, 0)
    pause = np.repeat(np.arange(len(end)), count)
    place = np.arange(len(pause)) + np.repeat(low - (np.cumsum(count) - count), count)
    earlier = ~points.begins[place] | (points.time[place] < end[pause])  # else it was the one that woke it
    pause, place = pause[earlier], place[earlier]
    kind = alike[place]
    order = np.lexsort((place, pause, kind))
    kind, pause, place = kind[order], pause[order], place[order]
    last = np.append((kind[1:] != kind[:-1]) | (pause[1:] != pause[:-1]), True)[: len(kind)]
    kind, pause, place = kind[last], pause[last], place[last]
    kinds, first, often = np.unique(kind, return_index=True, return_counts=True)
    found = []
    for which in np.flatnonzero(often >= max(LEAST_BURSTS, OFTEN * len(end))).tolist():
        mine = slice(first[which], first[which] + often[which])
        places = np.full(len(end), -1)
        places[pause[mine]] = place[mine]
        delay = np.maximum(end[pause[mine]] - points.time[place[mine]], 0)
        found.append(Found(places, int((alike == kinds[which]).sum()), delay))
    return found


def _wait_for(
    builder: GraphBuilder, idle: IdleTime, pauses: np.ndarray, points: Points, place: np.ndarray
) -> None:
    """Turn pauses into waits for points of another thread."""
    graph = builder.graph
    columns = graph.columns
    _, first = np.unique(idle.task[pauses], return_index=True)  # a task's range and its gap: the range
    pauses, place = pauses[first], place[first]
    task, in_range, waker = idle.task[pauses], idle.in_range[pauses], points.task[place]
    woken = np.clip(points.time[place], idle.begin[pauses], idle.end[pauses])
    gap = np.where(in_range, columns["gap_ns"][task], 0)
    columns["duration_ns"][task[in_range]] = 0
    builder.end_ns[task[in_range]] = builder.start_ns[task[in_range]]
    columns["gap_ns"][task] = 0
    order = np.maximum(columns["order"][waker], columns["order"][task]) + NO_EARLIER
    resumes = builder.add_cpu_tasks(task, "wait for thread", woken, order)
    graph.columns["gap_ns"][resumes] = idle.end[pauses] - woken + gap
    graph.link(waker, resumes, from_start=points.begins[place], cause=Cause.HANDOFF)
