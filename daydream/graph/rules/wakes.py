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

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from daydream.arrays import unique
from daydream.graph.builder import GraphBuilder, runs_of
from daydream.graph.columns import Columns
from daydream.graph.plan import Cause, stable_order
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
)
from daydream.lazy import regex

IDLE_NS = 50_000  # shorter pauses are a thread's own
FAR_NS = 300_000  # the same where only how steady it is speaks for it: 80 to 100 us between DALI's executors
LEAST_STEADY = 3  # pauses that have a spread
AS_STEADY = 1.25  # of such points, those that vary by so much more than the steadiest count, too
NUMBER = regex(r"\d+")
OFTEN = 0.8  # of a thread's pauses before one kind of task that must end so
CHANCE = 0.1  # of any moment to lie so close behind such a point; more would prove nothing


@dataclass
class Names:
    """Numbers for names, the same where they differ in their digits only (`step 7`)."""

    texts: list[str]
    _first: dict[str, int] = field(default_factory=dict)

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """Return the number of each name, int64; -1 for none."""
        found, place = distinct(codes)
        plain = [NUMBER.sub("0", self.texts[code]) if code >= 0 else "" for code in found.tolist()]
        known = [self._first.setdefault(text, code) for text, code in zip(plain, found.tolist(), strict=True)]
        return np.where(found < 0, -1, np.array(known, np.int64))[place]


@dataclass
class Points:
    """When a thread ended a task or began to work again, in order; alike names are one number.

    Most threads have no point close to any pause: what points are is looked up when one has.
    """

    time: np.ndarray
    begins: np.ndarray  # the task begins there, behind a pause; else it ends
    _tasks: tuple[np.ndarray, np.ndarray]  # the task of each point in another order, and this order
    _columns: Columns
    _names: Names
    _turns: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    @cached_property
    def task(self) -> np.ndarray:
        """The task of each point."""
        tasks, order = self._tasks
        return tasks[order]

    @cached_property
    def name(self) -> np.ndarray:
        """A number for its name and for whether it begins there."""
        return 2 * (self._names.numbers(self._columns["name"][self.task]) + 1) + self.begins

    @cached_property
    def _by_name(self) -> tuple[np.ndarray, np.ndarray]:
        """Places by name, and where each name begins there."""
        order = stable_order(self.name, int(self.name.max(initial=0)) + 1)
        return order, np.append(0, np.cumsum(np.bincount(self.name)))

    def named(self, name: int) -> np.ndarray:
        """Return the places of the points of a name, in order."""
        order, bounds = self._by_name
        return order[bounds[name] : bounds[name + 1]]

    def turns(self, name: int) -> tuple[np.ndarray, np.ndarray]:
        """Return how often each point of a name came before in its step; and how many have each turn."""
        if name not in self._turns:
            turn = _turns(self._columns["step"][self.task[self.named(name)]])
            self._turns[name] = turn, np.bincount(turn)
        return self._turns[name]


@dataclass
class Found:
    """Points that end pauses: for each pause its place among a thread's points, or -1."""

    place: np.ndarray
    alike: int  # how many such points the thread has
    delay_ns: np.ndarray  # of the pauses that have one


def wake_up(builder: GraphBuilder) -> None:
    """Link the pauses of every thread to the points of other threads that end them every time."""
    lanes = builder.tasks.threads()
    if len(lanes) < 2:
        return
    names = Names(builder.graph.texts["name"])
    points: dict[int, Points] = {}
    for lane in lanes:
        others = [o for o in lanes if o != lane and builder.thread_ids[o][:2] == builder.thread_ids[lane][:2]]
        if not others:
            continue
        for sign in _alike(builder, lane, names):
            begin, end = sign.begin, sign.end
            points |= {other: _points_of(builder, other, names) for other in others if other not in points}
            explained, doubtful = _explained(points, others, begin, end)
            if doubtful:
                builder.graph.facts.doubtful_waits += len(begin)
                builder.graph.facts.doubtful_ns += int((end - begin).sum())
            if explained is not None:
                other, found = explained
                _wait_for(builder, sign, points[other], found.place)
                builder.linked_threads |= {lane, other}
                points.pop(lane, None)  # a range that was a wait ends nothing


def _alike(builder: GraphBuilder, lane: int, names: Names) -> list[IdleTime]:
    """Return the long pauses of a thread by the name of what lasts, or of what follows."""
    columns, mine = builder.graph.columns, builder.tasks.on(lane)
    idle = builder.idle.pop(lane, None) or idle_time(builder, lane)
    starts = builder.start_ns[builder.tasks.at(lane)]
    idle = idle.only((idle.end - idle.begin >= IDLE_NS) & (idle.end <= starts[-1]))
    following = mine[np.minimum(np.searchsorted(starts, idle.end), len(mine) - 1)]
    sign = names.numbers(columns["name"][np.where(idle.in_range, idle.task, following)])
    groups = [idle.only(sign == name) for name in unique(sign).tolist()]
    return [pauses for pauses in groups if len(pauses.task) >= LEAST_BURSTS]


def _points_of(builder: GraphBuilder, lane: int, names: Names) -> Points:
    columns = builder.graph.columns
    tasks, at = builder.tasks.on(lane), builder.tasks.at(lane)
    start, end = builder.start_ns[at], builder.end_ns[at]
    linked = np.zeros(builder.graph.size, bool)
    linked[builder.graph.links["dst"]] = True
    woken = linked[at]
    again = np.append(True, end[:-1] < start[1:]) & ~woken
    if woken.any():
        counts = ~woken | (end > start)  # who goes on at that moment was woken, too
        tasks, start, end, again = tasks[counts], start[counts], end[counts], again[counts]
    begun = np.flatnonzero(again)
    time = np.concatenate([end, start[begun]])
    order = np.argsort(time, kind="stable")  # at one time ends come first
    task = np.concatenate([tasks, tasks[begun]])
    return Points(time[order], order >= len(end), (task, order), columns, names)


def _turns(keys: np.ndarray) -> np.ndarray:
    """Return how often each entry's key occurred before it."""
    order = np.argsort(keys, kind="stable")
    index = np.arange(len(keys))
    first = np.ones(len(keys), bool)
    first[1:] = keys[order][1:] != keys[order][:-1]
    turns = np.empty(len(keys), np.int64)
    turns[order] = index - np.maximum.accumulate(np.where(first, index, 0))
    return turns


def _explained(
    points: dict[int, Points], others: list[int], begin: np.ndarray, end: np.ndarray
) -> tuple[tuple[int, Found] | None, bool]:
    """Return the thread whose points end these pauses, and which do; and if not, whether some may."""
    others = [other for other in others if _close(points[other], begin, end, FAR_NS)]
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
        for found in _found(points[other], begin, end, reach_ns)
        if found.alike * max(WAKE_NS, int(found.delay_ns.max()))
        <= CHANCE * (points[other].time[-1] - points[other].time[0])
    ]


def _ends(points: Points, found: Found) -> bool:
    """Tell whether these points are the ends of tasks; that one begins close by is easily chance."""
    return not points.begins[found.place[found.place >= 0][0]]


def _found(points: Points, begin: np.ndarray, end: np.ndarray, reach_ns: int) -> list[Found]:
    """Return what lies close before the end of nearly all pauses, the last of each kind.

    Points are of a kind by name; then by name and place in the step.
    """
    close = _close(points, begin, end, reach_ns)
    if close is None:
        return []
    low, count = close
    pause = np.repeat(np.arange(len(end)), count)
    place = np.arange(len(pause)) + np.repeat(low - (np.cumsum(count) - count), count)
    earlier = ~points.begins[place] | (points.time[place] < end[pause])  # else it was the one that woke it
    pause, place = pause[earlier], place[earlier]
    by_name, by_turn = [], []
    for name, pauses, places in _often(points.name[place], pause, place, end):
        by_name.append(_as_found(points, end, pauses, places, len(points.named(name))))
        turn, how_many = points.turns(name)
        turn = turn[np.searchsorted(points.named(name), places)]
        for number, some, last in _often(turn, pauses, places, end):
            by_turn.append(_as_found(points, end, some, last, int(how_many[number])))
    return by_name + by_turn


def _close(
    points: Points, begin: np.ndarray, end: np.ndarray, reach_ns: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the first point close before the end of each pause, and how many are; None if few have one."""
    low = np.searchsorted(points.time, np.maximum(begin, end - reach_ns))
    count = np.maximum(np.searchsorted(points.time, end + ROUNDING_NS, side="right") - low, 0)
    return (low, count) if np.count_nonzero(count) >= max(LEAST_BURSTS, OFTEN * len(end)) else None


def _often(
    kind: np.ndarray, pause: np.ndarray, place: np.ndarray, end: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Give the kinds of points that come before nearly all pauses, with pause and place of each point."""
    order = np.argsort(kind, kind="stable")
    least = max(LEAST_BURSTS, OFTEN * len(end))
    for first, stop in runs_of(kind[order]):
        mine = order[first:stop]
        if stop - first >= least and np.count_nonzero(np.diff(pause[mine])) + 1 >= least:
            yield int(kind[mine[0]]), pause[mine], place[mine]


def _as_found(points: Points, end: np.ndarray, pause: np.ndarray, place: np.ndarray, alike: int) -> Found:
    last = np.full(len(end), -1)
    last[pause] = place  # of what is assigned to one pause, the last stays
    there = last >= 0
    return Found(last, alike, np.maximum(end[there] - points.time[last[there]], 0))


def _wait_for(builder: GraphBuilder, idle: IdleTime, points: Points, place: np.ndarray) -> None:
    """Turn the pauses of a thread that have a place among the points of another into waits for these."""
    graph = builder.graph
    columns = graph.columns
    pauses = np.flatnonzero(place >= 0)
    pauses = pauses[np.unique(idle.task[pauses], return_index=True)[1]]  # of a task's range and gap the range
    task, in_range, ends = idle.task[pauses], idle.in_range[pauses], idle.end[pauses]
    waker, time = points.task[place[pauses]], points.time[place[pauses]]
    woken = np.clip(time, idle.begin[pauses], ends)
    gap = np.where(in_range, columns["gap_ns"][task], 0)
    columns["duration_ns"][task[in_range]] = 0
    builder.end_ns[task[in_range]] = builder.start_ns[task[in_range]]
    columns["gap_ns"][task] = 0
    order = np.maximum(columns["order"][waker], columns["order"][task]) + NO_EARLIER
    resumes = builder.add_cpu_tasks(task, "wait for thread", woken, order)
    graph.columns["gap_ns"][resumes] = ends - woken + gap
    graph.link(waker, resumes, from_start=points.begins[place[pauses]], cause=Cause.HANDOFF)
