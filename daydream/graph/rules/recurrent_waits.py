"""Waits of threads: what the recording tells of who was blocked, then what ends alike again and again.

A thread that is known to have been blocked did not compute, so its time is no CPU work: neither a gap nor
the time of a range. What it waited for is told by what ended it, and one instance is enough:

| what ended it | the wait is |
|---|---|
| another thread, which began to wait itself then, or whose task began or ended just before | resolved |
| nothing in the trace: a worker process, a disk, a timer, a thread without rows | outside: its length stays |
| a point of another thread, of too many to prove anything | kept as CPU time, and counted |

A call into the driver is judged by `lock` and `synchronization`; a range in which threads without rows
work is their work, and stays. What no row records is recognized by its regularity:

A thread that waits is idle, or spins, or is inside a call, for as long as its cause takes: longer in one step
and shorter in the next. And it goes on a short time after the cause, always the same. So a candidate for the
cause is believed if it comes just before the end of nearly all pauses of a kind, is too rare to come there by
chance, and its distance from that end varies far less than the length of the pauses. Three kinds of
candidates are tried: points of another thread (`wake_up`), the end of device work that the thread launched
last (`wait_in_spins`), and the return of a blocking call of another thread (`wait_for_lock`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from daydream.arrays import combinations, distinct, run_starts, turns, unique
from daydream.graph.calls import Coverage
from daydream.graph.draft import NEVER, NONE, Draft
from daydream.graph.plan import Cause, around
from daydream.graph.rules import (
    COVERED_SHARE,
    FAR_NS,
    LEAST_LOCKED,
    LEAST_PAUSES,
    LEAST_STEADY,
    PAUSE_CHANCE,
    PAUSE_NS,
    PAUSES_SHARE,
    RETURN_CLOCK_NS,
    SHORT_SHARE,
    SPIN_NS,
    THREAD_CLOCK_NS,
    WAKE_NS,
    WOKEN_NS,
)
from daydream.graph.rules.synchronization import blocking_copies, is_sync
from daydream.graph.rules.threads import (
    RESUME_PLACE,
    Pauses,
    others_of,
    pauses_of,
    spread,
    steadier,
)
from daydream.graph.tables import CPU, ORDER_STEP
from daydream.lazy import regex
from daydream.trace.schema import NO_ID, OFF_CPU
from daydream.trace.trace import Trace

NUMBER = regex(r"\d+")
# Calls that wait for what no thread of the trace ends.
FOR_OTHERS = regex(r"sleep|recv|^read$|waitpid|connection|popen|subprocess|socket|^profiler: ")


class Found(NamedTuple):
    """Points that end pauses."""

    thread: int
    place: ndarray  # of each pause among the thread's points, or -1
    alike: int  # how many such points the thread has
    delay_ns: ndarray  # of the pauses that have one
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
    are, and doubtful. The idle time up to a point that explains it is a wait; kept as a gap it
    would hide every change of what the thread waited for.
    """
    search = _Search(draft)
    for lane in draft.threads():
        others = others_of(draft, lane)
        for pauses in search.alike(lane) if others else ():
            found = search.explained(others, pauses)
            if found is None:
                continue
            points = search.points(found.thread)
            ended = np.flatnonzero(found.place >= 0)
            first = np.unique(pauses.task[ended], return_index=True)[1]
            ended = ended[first]  # of a task's range and gap the range
            place = found.place[ended]
            waits = pauses.only(ended)
            waker = points.task[place]
            resumes = draft.turn_into_wait(
                waits.task,
                waits.begin,
                np.clip(points.time[place], waits.begin, waits.end),
                waits.end,
                order=np.maximum(draft.order[waker], draft.order[waits.task]) + RESUME_PLACE,
                inside=waits.in_range,
                name="wait for thread",
            )
            draft.link(waker, resumes, from_start=points.begins[place], cause=Cause.HANDOFF)
            search.forget(lane)  # a range that was a wait ends nothing


class Points:
    """When a thread ended a task or began to work again, in order.

    Most threads have no point close to any pause: what points are called is looked up when one has.
    """

    def __init__(self, lane: int, search: _Search) -> None:
        self._search = search
        draft = search.draft
        tasks = draft.on(lane)
        start = draft.start_ns[tasks]
        end = draft.end_ns[tasks]
        woken = np.isin(tasks, draft.links["dst"])
        begun = np.append(True, end[:-1] < start[1:]) & ~woken
        ended = ~woken | (end > start)  # who goes on at that moment was woken, too
        time = np.append(end[ended], start[begun])
        order = np.argsort(time, kind="stable")  # at one time ends come first
        self.time = time[order]
        self.begins = order >= ended.sum()
        self.task = np.append(tasks[ended], tasks[begun])[order]

    @cached_property
    def kinds(self) -> list[ndarray]:
        """A number for each point's name and whether it begins there; then for its place in the step, too."""
        draft = self._search.draft
        name = 2 * (self._search.names(draft.name[self.task]) + 1) + self.begins
        turn = turns(combinations([name, draft.step[self.task]])[0])
        return [name, combinations([name, turn])[0]]


class _Search:
    """The points of threads, and which of them end pauses."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._points: dict[int, Points] = {}
        self._numbers: dict[str, int] = {}
        self._off = off_cpu(draft)

    def names(self, codes: ndarray) -> ndarray:
        """Return a number for each name, the same where only digits differ (`step 7`); -1 for none."""
        found, place = distinct(codes)
        texts = self.draft.texts["name"]
        numbers = [
            self._numbers.setdefault(NUMBER.sub("0", texts[code]), code) if code >= 0 else -1
            for code in found.tolist()
        ]
        return np.array(numbers, np.int64)[place]

    def points(self, lane: int) -> Points:
        """Return the points of a thread."""
        if lane not in self._points:
            self._points[lane] = Points(lane, self)
        return self._points[lane]

    def forget(self, lane: int) -> None:
        """Look at a thread anew, as its tasks changed."""
        self._points.pop(lane, None)

    def alike(self, lane: int) -> list[Pauses]:
        """Return the long pauses of a thread by the name of what lasts, or of what follows."""
        draft = self.draft
        tasks = draft.on(lane)
        pauses = pauses_of(draft, lane)
        starts = draft.start_ns[tasks]
        pauses = pauses.only((pauses.length >= PAUSE_NS) & (pauses.end <= starts[-1]))
        if lane in self._off:
            off = self._off[lane](pauses.begin, pauses.end)
            pauses = pauses.only(2 * off >= pauses.length)
        following = tasks[np.minimum(np.searchsorted(starts, pauses.end), len(tasks) - 1)]
        sign = self.names(draft.name[np.where(pauses.in_range, pauses.task, following)])
        groups = [pauses.only(sign == name) for name in unique(sign)]
        return [group for group in groups if len(group.task) >= LEAST_PAUSES]

    def explained(self, others: list[int], pauses: Pauses) -> Found | None:
        """Return the points that end these pauses; if none surely does but some may, note the doubt."""
        length = pauses.length
        best = [found for found in self._candidates(others, pauses, WAKE_NS) if not found.begins]
        if not best:  # that a task begins close by is easily chance
            far = [
                each
                for each in self._candidates(others, pauses, FAR_NS)
                if len(each.delay_ns) >= LEAST_STEADY
            ]
            best = [found for found in far if steadier(found.delay_ns, length[found.place >= 0])]
            if not best and any(spread(found.delay_ns) <= spread(length) for found in far):
                self.draft.doubt[pauses.task[pauses.in_range]] = 1
                self.draft.gap_doubt[pauses.task[~pauses.in_range]] = 1
        return min(best, key=lambda found: (np.median(found.delay_ns), found.alike), default=None)

    def _candidates(self, others: list[int], pauses: Pauses, reach_ns: int) -> list[Found]:
        """Return what comes before the ends of nearly all pauses, the last of each kind, too rare for chance.

        Points are of a kind by name; then by name and place in the step.
        """
        end = pauses.end
        since = np.maximum(pauses.begin, end - reach_ns)
        candidates = []
        least = max(LEAST_PAUSES, PAUSES_SHARE * len(end))
        for other in others:
            points = self.points(other)
            time = points.time
            # The points that lie just before the end of a pause, and in it.
            next_end = np.searchsorted(end, time - THREAD_CLOCK_NS)
            near = np.flatnonzero(time >= np.append(since, time[-1:] + 1)[next_end])
            for kind in points.kinds if len(near) >= least else ():
                found, number = distinct(kind[near])
                for each in found[np.bincount(number) >= least].tolist():
                    alike = np.flatnonzero(kind == each)
                    begins = points.begins[alike[0]]
                    # What begins as the pause ends was woken with it.
                    until = end if begins else end + THREAD_CLOCK_NS + 1
                    last = np.append(-1, alike)[np.searchsorted(time[alike], until)]
                    last[(last < 0) | (time[last] < since)] = -1
                    there = last >= 0
                    if np.count_nonzero(there) < least:
                        continue
                    delay = np.maximum(end[there] - time[last[there]], 0)
                    if len(alike) * max(WAKE_NS, delay.max()) <= PAUSE_CHANCE * (
                        time[-1] - time[0]
                    ):
                        candidates.append(Found(other, last, len(alike), delay, begins))
        return candidates


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
    tasks = np.flatnonzero(long & ~draft.of_rows("runtime"))
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
    for number in range(len(kinds)):
        mine = kind == number
        ends = mine & near
        spins = tasks[ends]
        reach = np.abs(distance[ends]).max(initial=0)
        if (
            len(spins) < max(LEAST_STEADY, PAUSES_SHARE * mine.sum())
            or 2 * len(spins) * reach > PAUSE_CHANCE * length[mine].sum()
        ):
            continue
        latency = np.minimum(distance[ends], 0)
        # The time ends with the work, as a synchronizing call does.
        if steadier(distance[ends], length[ends]):
            order = draft.order[spins] + RESUME_PLACE
            resumes = draft.turn_into_wait(
                spins, start[ends], np.minimum(done, end)[ends], end[ends], order=order
            )
            draft.waited[resumes] = True
            draft.syncs.add(
                task=resumes, lane=draft.lane[work[ends]], point=resumes, latency_ns=latency
            )
        elif spread(distance[ends]) <= spread(length[mine]):
            draft.doubt[tasks[mine]] = 1
            _, behind = around(draft.on, draft.order, draft.lane[spins], draft.order[spins])
            draft.link(work[ends], behind, latency_ns=latency, cause=Cause.HANDOFF)


def wait_for_lock(draft: Draft, blocked: ndarray | None = None) -> None:
    """Let calls that were blocked until a blocking copy of another thread returned wait for that copy's call.

    A copy from or to pageable memory, such as `.item()`, is done by the driver inside the
    call: it holds the context until the device has delivered. Calls of other threads
    that need the context are blocked until it returns, whatever they ask for:

        thread A  |cudaMemcpyAsync, 2 bytes to pageable memory: until the device is done ......|
        thread B          |cudaMemcpyAsync of pinned memory, which need not wait for anything ...|
        its copy                                                                                |320 MB

    No trace records the lock. But a call that waited for it began while the other one lasted,
    stood there for half of its time or more, and its own work reached the device only then. Its time is a
    wait until the other call returns, and what it takes itself. Kept as work it would be
    a floor under the step that no faster device could lower. Synchronizing calls let go of
    the lock while they wait, so they hold up nobody. Of calls that are known to have been `blocked`, these
    alone are looked at, and one is enough.
    """
    holders, _ = blocking_copies(draft)
    holders = holders[np.argsort(draft.end_ns[holders], kind="stable")]
    calls = draft.calls_named(lambda name: not is_sync(name)) if blocked is None else blocked
    least = LEAST_LOCKED if blocked is None else 1
    work = draft.launched()
    reached_device = np.full(draft.size, np.iinfo(np.int64).max)
    np.minimum.at(reached_device, draft.launch[work], draft.start_ns[work])
    for lane in unique(draft.lane[holders]).tolist():
        mine = holders[draft.lane[holders] == lane]
        held_until = draft.end_ns[mine]
        for other in others_of(draft, lane):
            locked = calls[(draft.lane[calls] == other) & ~draft.waited[calls]]
            start = draft.start_ns[locked]
            end = draft.end_ns[locked]
            names = draft.name[locked]
            at = np.minimum(np.searchsorted(held_until, start, side="right"), len(mine) - 1)
            until = held_until[at]
            met = (draft.start_ns[mine[at]] <= start) & (start < until)
            held = met & (end - start >= PAUSE_NS) & (end >= until)
            held &= 2 * (until - start) >= end - start
            held &= reached_device[locked] >= until - RETURN_CLOCK_NS
            for name in unique(names[held]):
                chosen = np.flatnonzero((names == name) & held)
                if len(chosen) >= max(least, PAUSES_SHARE * ((names == name) & met).sum()):
                    draft.wait_first(locked[chosen], until[chosen])
                    draft.link(mine[at[chosen]], locked[chosen], cause=Cause.LOCK)


def wait_for_wakers(draft: Draft) -> None:
    """Let threads that were blocked wait for what another thread did just before they went on."""
    calls = [blocked.task[in_call] for _, blocked, in_call in _blocked(draft)]
    wait_for_lock(draft, np.concatenate([NONE, *calls]))
    _resolve(draft, outside=False)


def wait_outside(draft: Draft) -> None:
    """Keep the length of waits that nothing in the trace ended, and count those that are not known."""
    _resolve(draft, outside=True)


def _rows(draft: Draft) -> Iterator[tuple[int, ndarray]]:
    """Yield the rows of each thread that tell when it was blocked."""
    trace = draft.trace
    every = np.flatnonzero(trace.is_kind("blocked"))
    rank = np.maximum(trace["rank"][every], 0)
    thread = np.stack([rank, trace["pid"][every], trace["tid"][every]], axis=1)
    for lane, identity in enumerate(draft.thread_ids if len(every) else ()):
        yield lane, every[(thread == identity).all(axis=1)]


def _blocked(draft: Draft) -> Iterator[tuple[int, Pauses, ndarray]]:
    """Yield the blocked time of each thread, and a mask of what lies in runtime calls."""
    trace = draft.trace
    for lane, told in _rows(draft):
        clock = _Clock(trace, told)
        waits = told[trace["cpu_ns"][told] < 0]
        begin = trace["start_ns"][waits]
        end = begin + trace["duration_ns"][waits]
        outer = (
            begin >= np.append(NEVER, np.maximum.accumulate(end))[:-1]
        )  # it has the name of its call
        rows = waits[outer]
        begin = begin[outer]
        end = end[outer]
        tasks = draft.on(lane)
        # The thread's time as slots: a task's own, its gap, the next task's own, ...
        over = draft.end_ns[tasks]
        opens = np.stack([draft.start_ns[tasks], over], axis=1).reshape(-1)
        closes = np.stack([over, over + draft.gap_ns[tasks]], axis=1).reshape(-1)
        first = np.maximum(np.searchsorted(opens[::2], begin, side="right") - 1, 0)
        count = 2 * np.maximum(np.searchsorted(opens[::2], end) - first, 0)
        of = np.repeat(np.arange(len(rows)), count)
        slot = np.arange(len(of)) - np.repeat(np.cumsum(count) - count - 2 * first, count)
        in_task = slot % 2 == 0
        pieces = Pauses(
            tasks[slot // 2],
            np.maximum(begin[of], opens[slot]),
            np.minimum(end[of], closes[slot] - 1),
            in_task,
            rows[of],
        )
        # What lies wholly in a blocked call is work.
        pieces = pieces.only(~in_task | (opens[slot] < begin[of]) | (closes[slot] > end[of]))
        if len(clock.rows):
            slept = pauses_of(draft, lane)
            slept.row = np.resize(clock.rows, len(slept.task))
            slept = slept.only(2 * clock.off(slept.begin, slept.end, at_most=False) >= slept.length)
            pieces = Pauses(*map(np.append, vars(pieces).values(), vars(slept).values()))
        order = np.argsort(pieces.begin, kind="stable")
        blocked = pieces.only(order[pieces.length[order] >= PAUSE_NS])
        yield lane, blocked, draft.of_rows("runtime")[blocked.task] & blocked.in_range


class _Clock:
    """How long a thread ran, or was ready to, between the looks at its clock that some of its rows tell."""

    def __init__(self, trace: Trace, rows: ndarray) -> None:
        self.rows = rows[trace["cpu_ns"][rows] >= 0]
        self._begin = trace["start_ns"][self.rows]
        self._end = self._begin + trace["duration_ns"][self.rows]
        self._ran = np.append(0, np.cumsum(trace["cpu_ns"][self.rows]))

    def off(self, begin: ndarray, end: ndarray, *, at_most: bool) -> ndarray:
        """Return how long the thread may have been off the CPU in stretches, or was for certain, in ns."""
        first = np.maximum(np.searchsorted(self._begin, begin, side="right") - 1, 0)
        last = np.minimum(np.searchsorted(self._end, end), len(self.rows) - 1)
        ran = self._ran[last + 1] - self._ran[first]
        known = (self._begin[first] <= begin) & (self._end[last] >= end)
        if not at_most:
            return np.maximum(end - begin - ran, 0) * known
        apart = self._end[last] - self._begin[first]
        return np.where(known, np.clip(apart - ran, 0, end - begin), end - begin)


def off_cpu(draft: Draft) -> dict[int, Callable[[ndarray, ndarray], ndarray]]:
    """Return how long threads may have been off the CPU in stretches, of those where it was recorded."""
    found = {}
    if (draft.trace["name"] == draft.trace.code("name", OFF_CPU)).any():
        found = {lane: Coverage(one.begin, one.end).within for lane, one, _ in _blocked(draft)}
    clocks = {lane: _Clock(draft.trace, rows) for lane, rows in _rows(draft)}
    return found | {
        lane: partial(clock.off, at_most=True) for lane, clock in clocks.items() if len(clock.rows)
    }


def _resolve(draft: Draft, *, outside: bool) -> None:
    """Turn blocked time into waits for other threads and, last, for what is `outside` the trace."""
    woken = [(NONE, NONE, NONE)]
    for lane, every, in_call in [*_blocked(draft)]:
        blocked = every.only(~in_call)
        waker, doubtful, kept = _wakers(draft, lane, blocked)
        known = waker >= 0
        _, goes_on = _cut(draft, blocked.only(known))
        woken.append((goes_on, blocked.end[known], waker[known]))
        if outside:
            alone = blocked.only(~known & ~kept)
            unknown = doubtful[~known & ~kept]
            # Those of one task are one wait between which the thread hardly runs.
            runs = alone.begin[1:] - alone.end[:-1] > SHORT_SHARE * (
                alone.end[1:] - alone.begin[:-1]
            )
            apart = run_starts(alone.task) | run_starts(alone.in_range) | run_starts(unknown)
            apart |= np.append(True, runs)[: len(alone.task)]
            last = np.append(apart[1:], True)[: len(apart)]
            end_of = alone.end[last]
            alone = alone.only(apart)
            unknown = unknown[apart]
            alone.end[:] = end_of
            stops, _ = _cut(draft, alone, keep_gaps=True)
            length = alone.length
            inside = stops[alone.in_range]
            draft.duration_ns[inside] = length[alone.in_range]
            draft.end_ns[inside] += draft.duration_ns[inside]
            draft.doubt[stops] = unknown & alone.in_range
            draft.gap_doubt[stops] = (
                unknown * ~alone.in_range * length / np.maximum(draft.gap_ns[stops], 1)
            )
            texts = draft.trace.values("name", alone.row)
            draft.name[stops] = [draft.code("name", f"wait: {text}") for text in texts]
            tasks = draft.on(lane)
            after = np.searchsorted(draft.order[tasks], draft.order[stops], side="right")
            behind = tasks[np.minimum(after, len(tasks) - 1)]
            draft.link(stops, behind, latency_ns=length, from_start=True, cause=Cause.OUTSIDE)
    goes_on, end, waker = (np.concatenate(part) for part in zip(*woken, strict=True))
    for lane in unique(waker):
        mine = waker == lane
        tasks = draft.on(lane)
        source = tasks[np.searchsorted(draft.start_ns[tasks], end[mine]) - 1]
        before = draft.end_ns[source] <= end[mine]
        since = np.where(before, draft.end_ns[source], draft.start_ns[source])
        draft.link(
            source,
            goes_on[mine],
            latency_ns=end[mine] - since,
            from_start=~before,
            cause=Cause.HANDOFF,
        )


def _wakers(draft: Draft, lane: int, blocked: Pauses) -> tuple[ndarray, ndarray, ndarray]:
    """Return which thread ended each wait, or -1, and masks of waits not known and of others' work."""
    told = draft.trace["waker"][blocked.row]
    unknown = told == NO_ID
    names = draft.trace.values("name", blocked.row)
    alone = np.array([FOR_OTHERS.search(name) is not None for name in names], bool)
    rank = (draft.rank == draft.lanes[lane].rank) & (draft.lane != lane)
    worked = Coverage(draft.start_ns[rank], draft.end_ns[rank]).within(blocked.begin, blocked.end)
    doubtful = unknown & ~alone & (worked >= COVERED_SHARE * blocked.length)
    waker = np.full(len(told), -1)
    nearest = waker + WOKEN_NS
    for other in others_of(draft, lane):
        tasks = draft.on(other)
        points = np.sort(np.append(draft.start_ns[tasks], draft.end_ns[tasks]))
        last = np.append(NEVER, points)[np.searchsorted(points, blocked.end)]
        late = blocked.end - last
        near = (last > blocked.begin) & (late <= nearest) & (unknown | ~blocked.in_range) & ~alone
        chance = Coverage(points, points + WOKEN_NS).within(blocked.begin, blocked.end)
        sure = near & (chance <= PAUSE_CHANCE * blocked.length)
        doubtful |= near & unknown
        nearest[sure] = late[sure]
        by_record = (told == draft.thread_ids[other][2]) & (last > NEVER)
        nearest[by_record] = NEVER
        waker[sure | by_record] = other
    open_ = waker < 0
    return waker, doubtful & open_, blocked.in_range & open_ & ~unknown


def _cut(draft: Draft, blocked: Pauses, *, keep_gaps: bool = False) -> tuple[ndarray, ndarray]:
    """Cut blocked time out of its tasks; return tasks where it begins, and those that go on behind it.

    What is to `keep_gaps` stays the gap of the task where it begins, and nothing is put behind it.
    """
    stops = np.full(len(blocked.task), -1)
    goes_on = stops.copy()
    last = np.append(run_starts(blocked.task) | run_starts(blocked.in_range), True)[
        1 : len(stops) + 1
    ]
    following = np.append(blocked.begin, 0)[1:]
    for inside in (False, True):  # what is left of the gap comes behind what is left of the task
        some = np.flatnonzero(blocked.in_range == inside)[
            ::-1
        ]  # the first of a task decides what stays with it
        task = blocked.task[some]
        begin = blocked.begin[some]
        end = blocked.end[some]
        over = draft.end_ns[task] + (0 if inside else draft.gap_ns[task])
        until = np.where(last[some], over, following[some])
        order = np.maximum(begin * ORDER_STEP, draft.order[task]) + RESUME_PLACE
        cut = partial(draft.turn_into_wait, inside=inside, works_on=inside)
        stops[some] = cut(task, begin, begin, until, order=order)
        if inside:
            draft.gap_ns[stops[some][~last[some]]] = 0
        if inside or not keep_gaps:
            order = np.maximum(end * ORDER_STEP, order) + RESUME_PLACE
            goes_on[some] = cut(stops[some], begin, end, until, order=order)
    return stops, goes_on
