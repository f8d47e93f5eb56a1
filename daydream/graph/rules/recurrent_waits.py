"""Waits that no row records, recognized because they end alike again and again.

A thread that waits is idle, or spins, or is inside a call, for as long as its cause takes: longer in one step
and shorter in the next. And it goes on a short time after the cause, always the same. So a candidate for the
cause is believed if it comes just before the end of nearly all pauses of a kind, is too rare to come there by
chance, and its distance from that end varies far less than the length of the pauses. Three kinds of
candidates are tried: points of another thread (`wake_up`), the end of device work that the thread launched
last (`wait_in_spins`), and the return of a blocking call of another thread (`wait_for_lock`).
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from daydream.arrays import combinations, distinct, turns, unique
from daydream.graph.draft import Draft, runs_of
from daydream.graph.plan import Cause
from daydream.graph.rules.handoff import RESUME_PLACE, Pauses, others_of, pauses_of, spread, steadier
from daydream.graph.rules.synchronization import blocking_copies, is_sync
from daydream.graph.rules.thresholds import (
    AS_STEADY,
    FAR_NS,
    LEAST_LOCKED,
    LEAST_PAUSES,
    LEAST_STEADY,
    LOCK_NS,
    PAUSE_CHANCE,
    PAUSE_NS,
    PAUSES_SHARE,
    RETURN_CLOCK_NS,
    SPIN_NS,
    THREAD_CLOCK_NS,
    WAKE_NS,
)
from daydream.graph.tables import CPU
from daydream.lazy import regex

NUMBER = regex(r"\d+")


class Found(NamedTuple):
    """Points that end pauses."""

    thread: int
    place: np.ndarray  # of each pause among the thread's points, or -1
    alike: int  # how many such points the thread has
    delay_ns: np.ndarray  # of the pauses that have one
    begins: bool  # whether the thread began to work there, or ended a task


def wake_up(draft: Draft) -> None:
    """Link the pauses of every thread to the points of other threads that end them every time.

    Threads that run side by side hand work to each other through queues: a loader's
    executors, pools, pin-memory threads, and a producer whose queue is full until the
    consumer takes an item. No trace records who waited for whom. But a thread that
    waits idles for as long as the other one takes, and begins a short time after the
    other one got there:

        thread A  |   prepares 159 ms   |                |  prepares 161 ms     |
        thread B  idles                  80 us |copies|    idles                 82 us |copies|

    A point that lies further back explains a pause only if its distance is steady: in a program where every
    step takes equally long, anything is at the same distance from anything. Such pauses are kept as they
    are, and counted as doubtful. The idle time up to a point that explains it is a wait; kept as a gap it
    would hide every change of what the thread waited for.
    """
    search = _Search(draft)
    for lane in draft.threads():
        others = others_of(draft, lane)
        for pauses in search.alike(lane) if others else ():
            found = search.explained(others, pauses)
            if found is not None:
                _wait_for(draft, pauses, search.points(found.thread), found.place)
                search.forget(lane)  # a range that was a wait ends nothing


class Points:
    """When a thread ended a task or began to work again, in order.

    Most threads have no point close to any pause: what points are called is looked up when one has.
    """

    def __init__(self, draft: Draft, lane: int, search: _Search) -> None:
        self._draft = draft
        self._search = search
        tasks = draft.on(lane)
        start = draft.start_ns[tasks]
        end = draft.end_ns[tasks]
        linked = np.zeros(draft.size, bool)
        linked[draft.links["dst"]] = True
        woken = linked[tasks]
        begun = np.append(True, end[:-1] < start[1:]) & ~woken
        ended = ~woken | (end > start)  # who goes on at that moment was woken, too
        time = np.append(end[ended], start[begun & ended])
        order = np.argsort(time, kind="stable")  # at one time ends come first
        self.time = time[order]
        self.begins = order >= ended.sum()
        self.task = np.append(tasks[ended], tasks[begun & ended])[order]

    @cached_property
    def kinds(self) -> list[np.ndarray]:
        """A number for each point's name and whether it begins there; then for its place in the step, too."""
        name = 2 * (self._search.names(self._draft.name[self.task]) + 1) + self.begins
        turn = turns(combinations([name, self._draft.step[self.task]])[0])
        return [name, combinations([name, turn])[0]]


class _Search:
    """The points of threads, and which of them end pauses."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._points: dict[int, Points] = {}
        self._numbers: dict[str, int] = {}

    def names(self, codes: np.ndarray) -> np.ndarray:
        """Return a number for each name, the same where only digits differ (`step 7`); -1 for none."""
        found, place = distinct(codes)
        texts = self._draft.texts["name"]
        numbers = [
            self._numbers.setdefault(NUMBER.sub("0", texts[code]), code) if code >= 0 else -1
            for code in found.tolist()
        ]
        return np.array(numbers, np.int64)[place]

    def points(self, lane: int) -> Points:
        """Return the points of a thread."""
        if lane not in self._points:
            self._points[lane] = Points(self._draft, lane, self)
        return self._points[lane]

    def forget(self, lane: int) -> None:
        """Look at a thread anew, as its tasks changed."""
        self._points.pop(lane, None)

    def alike(self, lane: int) -> list[Pauses]:
        """Return the long pauses of a thread by the name of what lasts, or of what follows."""
        draft = self._draft
        tasks = self._draft.on(lane)
        pauses = pauses_of(self._draft, lane)
        starts = draft.start_ns[tasks]
        pauses = pauses.only((pauses.end - pauses.begin >= PAUSE_NS) & (pauses.end <= starts[-1]))
        following = tasks[np.minimum(np.searchsorted(starts, pauses.end), len(tasks) - 1)]
        sign = self.names(draft.name[np.where(pauses.in_range, pauses.task, following)])
        groups = [pauses.only(sign == name) for name in unique(sign).tolist()]
        return [group for group in groups if len(group.task) >= LEAST_PAUSES]

    def explained(self, others: list[int], pauses: Pauses) -> Found | None:
        """Return the points that end these pauses; if none surely does but some may, count the doubt."""
        length = pauses.end - pauses.begin
        best = [found for found in self._candidates(others, pauses, WAKE_NS) if not found.begins]
        if not best:  # that a task begins close by is easily chance
            far = [
                each
                for each in self._candidates(others, pauses, FAR_NS)
                if len(each.delay_ns) >= LEAST_STEADY
            ]
            best = [found for found in far if steadier(found.delay_ns, length[found.place >= 0])]
            least = AS_STEADY * min((spread(found.delay_ns) for found in best), default=0.0)
            best = [found for found in best if spread(found.delay_ns) <= least]
            if not best:
                if any(spread(found.delay_ns) <= spread(length) for found in far):
                    _doubt(self._draft, length)
                return None
        return min(best, key=lambda found: (np.median(found.delay_ns), found.alike))

    def _candidates(self, others: list[int], pauses: Pauses, reach_ns: int) -> list[Found]:
        """Return what comes before the ends of nearly all pauses, the last of each kind, too rare for chance.

        Points are of a kind by name; then by name and place in the step.
        """
        end = pauses.end
        candidates = []
        least = max(LEAST_PAUSES, PAUSES_SHARE * len(end))
        for other in others:
            points = self.points(other)
            time = points.time
            low = np.searchsorted(time, np.maximum(pauses.begin, end - reach_ns))
            high = np.searchsorted(time, end + THREAD_CLOCK_NS, side="right")
            count = np.maximum(high - low, 0)
            if np.count_nonzero(count) < least:
                continue
            pause = np.repeat(np.arange(len(end)), count)
            place = np.arange(len(pause)) + np.repeat(low - (np.cumsum(count) - count), count)
            earlier = ~points.begins[place] | (time[place] < end[pause])  # else it woke it
            pause = pause[earlier]
            place = place[earlier]
            for kind in points.kinds:
                order = np.argsort(kind[place], kind="stable")
                for first, stop in runs_of(kind[place[order]]):
                    some = order[first:stop]
                    if stop - first < least or np.count_nonzero(np.diff(pause[some])) + 1 < least:
                        continue
                    last = np.full(len(end), -1)
                    last[pause[some]] = place[some]  # of what is assigned to one pause, the last stays
                    there = last >= 0
                    delay = np.maximum(end[there] - time[last[there]], 0)
                    alike = int(np.count_nonzero(kind == kind[place[some[0]]]))
                    if alike * max(WAKE_NS, int(delay.max())) <= PAUSE_CHANCE * (time[-1] - time[0]):
                        begins = bool(points.begins[place[some[0]]])
                        candidates.append(Found(other, last, alike, delay, begins))
        return candidates


def _wait_for(draft: Draft, pauses: Pauses, points: Points, place: np.ndarray) -> None:
    """Turn the pauses of a thread that have a place among the points of another into waits for these."""
    ended = np.flatnonzero(place >= 0)
    ended = ended[np.unique(pauses.task[ended], return_index=True)[1]]  # of a task's range and gap the range
    pauses = pauses.only(ended)
    place = place[ended]
    task = pauses.task
    waker = points.task[place]
    resumes = draft.turn_into_wait(
        task,
        np.where(pauses.in_range, draft.start_ns[task], draft.end_ns[task]),
        np.clip(points.time[place], pauses.begin, pauses.end),
        pauses.end,
        order=np.maximum(draft.order[waker], draft.order[task]) + RESUME_PLACE,
        inside=pauses.in_range,
        name="wait for thread",
    )
    draft.link(waker, resumes, from_start=points.begins[place], cause=Cause.HANDOFF)


def _doubt(draft: Draft, length_ns: np.ndarray) -> None:
    """Count stretches of CPU time that may be waits."""
    draft.facts.doubtful_waits += len(length_ns)
    draft.facts.doubtful_ns += int(length_ns.sum())


def wait_in_spins(draft: Draft) -> None:
    """Turn CPU time that ends with the device task launched before it, again and again, into a wait.

    An expert-parallel dispatch launches a kernel that counts the rows to come, and reads a
    counter in mapped memory until it is there; a lock-free queue, a `while not done` in C++
    does the same. No call is recorded, only a range or an operator that lasts:

        thread 1   |launch|        dispatch: spins         |empty|empty|launch
        stream 27          ...      |notify: writes the counter, ends|

    Its time is a wait if its distance from the end of the device task that the thread launched last is
    steady. It may end a little before the task does: the task writes first and ends then.
    """
    long = (draft.kind == CPU) & (draft.duration_ns >= PAUSE_NS) & (draft.row >= 0) & ~draft.waited
    tasks = np.flatnonzero(long & ~draft.trace.is_kind("runtime")[draft.row])
    work, _ = draft.launched_around(tasks)
    running = (work >= 0) & (draft.end_ns[work] > draft.start_ns[tasks])
    tasks = tasks[running]
    work = work[running]
    kind, kinds = combinations([draft.lane[tasks], draft.name[tasks], draft.name[work]])
    start = draft.start_ns[tasks]
    end = draft.end_ns[tasks]
    done = draft.end_ns[work]
    length = end - start
    distance = end - done
    near = np.abs(distance) <= SPIN_NS
    count = np.bincount(kind[near], minlength=len(kinds))
    often = count >= np.maximum(LEAST_STEADY, PAUSES_SHARE * np.bincount(kind))
    rare = count * 2 * SPIN_NS <= PAUSE_CHANCE * np.bincount(kind, length)
    for number in np.flatnonzero(often & rare).tolist():
        mine = kind == number
        ends = mine & near
        if steadier(
            distance[ends], length[ends]
        ):  # the time ends with the work, as a synchronizing call does
            spins = tasks[ends]
            order = draft.order[tasks[ends]] + RESUME_PLACE
            resumes = draft.turn_into_wait(
                spins, start[ends], np.minimum(done, end)[ends], end[ends], order=order
            )
            draft.waited[resumes] = True
            latency = np.minimum(distance[ends], 0)
            draft.syncs.add(task=resumes, lane=draft.lane[work[ends]], point=resumes, latency_ns=latency)
        elif spread(distance[ends]) <= spread(length[mine]):
            _doubt(draft, length[mine])


def wait_for_lock(draft: Draft) -> None:
    """Let calls that were blocked until a blocking copy of another thread returned wait for that copy's call.

    A copy from or to pageable memory, such as `.item()`, is done by the driver inside the
    call: it holds the context until the device has delivered. Calls of other threads
    that need the context are blocked until it returns, whatever they ask for:

        thread A  |cudaMemcpyAsync, 2 bytes to pageable memory: until the device is done ......|
        thread B          |cudaMemcpyAsync of pinned memory, which need not wait for anything ...|
        its copy                                                                                |320 MB

    No trace records the lock. But a call that waited for it began while the other one lasted,
    returned just behind it, and its own work reached the device only then. Its time is a
    wait until the other call returns, and what it takes itself. Kept as work it would be
    a floor under the step that no faster device could lower. Synchronizing calls let go of
    the lock while they wait, so they hold up nobody.
    """
    holders, _ = blocking_copies(draft)
    holders = holders[np.argsort(draft.end_ns[holders], kind="stable")]
    calls = draft.calls_named(lambda name: not is_sync(name)) if len(holders) else holders
    for lane in unique(draft.lane[holders]).tolist():
        mine = holders[draft.lane[holders] == lane]
        for other in others_of(draft, lane):
            _lock(draft, calls[(draft.lane[calls] == other) & ~draft.waited[calls]], mine)


def _lock(draft: Draft, calls: np.ndarray, holders: np.ndarray) -> None:
    """Link the calls of a thread to the blocking calls of another during which they were blocked."""
    start = draft.start_ns[calls]
    end = draft.end_ns[calls]
    names = draft.name[calls]
    held_until = draft.end_ns[holders]
    at = np.minimum(np.searchsorted(held_until, start, side="right"), len(holders) - 1)
    until = held_until[at]
    met = (draft.start_ns[holders[at]] <= start) & (start < until)
    blocked = met & (end - start >= PAUSE_NS) & (end >= until) & (end - until <= LOCK_NS)
    work = draft.launched()
    reached_device = np.full(draft.size, np.iinfo(np.int64).max)
    np.minimum.at(reached_device, draft.launch[work].astype(np.intp), draft.start_ns[work])
    blocked &= (2 * (until - start) >= end - start) & (reached_device[calls] >= until - RETURN_CLOCK_NS)
    for name in unique(names[blocked]).tolist():
        chosen = np.flatnonzero((names == name) & blocked)
        if len(chosen) >= max(LEAST_LOCKED, PAUSES_SHARE * int(((names == name) & met).sum())):
            draft.wait_first(calls[chosen], until[chosen])
            draft.link(holders[at[chosen]], calls[chosen], cause=Cause.LOCK)
