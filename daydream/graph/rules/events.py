"""Event waits: work on one stream waits for an event recorded on another.

`cudaStreamWaitEvent` rows say neither the event nor the streams, unless the
profiler recorded the device's own rows. So the source is found, in this order:

1. *recorded*: the device's sync row names the stream and the record call;
2. *known stream*: it names the stream that waits only;
3. *program order*: a wait right before a collective's launch holds the collective
   until the work launched before it on the current stream is done; a later wait on
   the current stream is for collectives not waited for yet, oldest first; a wait
   between launches on two streams orders the second behind the first, one between
   launches on one stream joins the other stream whose work it has not waited for;
4. *forks*: it holds the one other stream that gets work later.

A wait right behind a collective's launch, where nearly every collective has one, is
the communication library's own. An edge that the recorded times contradict is not drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import takewhile
from math import comb
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from daydream.arrays import take, unique
from daydream.graph.draft import Draft
from daydream.graph.plan import Cause, around
from daydream.graph.rules import (
    EVENT_NS,
    HELD_AFTER_NS,
    HELD_BEFORE_NS,
    HELD_CHANCE,
    HELD_LATE_NS,
    LEAST_EVENTS,
    STREAM_CLOCK_NS,
    WAITS_SHARE,
)
from daydream.graph.rules.streams import BEFORE_ALL, ended_beside, ready
from daydream.graph.rules.synchronization import device_records
from daydream.graph.tables import COLLECTIVE, CPU
from daydream.lazy import regex

STREAM_WAIT = regex(r"^(cuda|cu|hip)StreamWaitEvent")

Row = tuple[
    int, int, int, int
]  # of `Draft.waits`: the record, its stream, the call, the stream that waits
Joined = dict[tuple[int, int], int]  # (stream, stream that waited for it) -> order waited up to
# (whether the thread switched from one stream to the other, these two) -> calls, and if times allow each
Patterns = dict[tuple[bool, int, int], list[tuple[int, bool]]]


class Wait(NamedTuple):
    """A stream-wait call between two launches of its thread (tasks, -1 for none)."""

    number: int  # in program order
    call: int
    before: int  # device task launched last on this thread
    after: int  # device task launched next
    source: int  # the streams of these tasks
    target: int
    waiting: int  # as the device recorded it: the streams, and the call that recorded the event
    waited_for: int
    record: int


def find_waits(draft: Draft, way: Callable[[_Search], Iterator[Row]]) -> None:
    """Add the event waits that a way to search finds for the calls that have none yet, and count them."""
    every, calls = _stream_waits(draft)
    if not len(calls) or not (draft.kind != CPU).any():
        return
    search = _Search(draft, calls)
    counts = draft.facts.event_waits
    if way != _Search.by_records:
        library = search.of_library()
        search.waits = [wait for wait in search.waits if wait.call not in library]
    rows = np.array(list(way(search)), np.int64).reshape(-1, 4)
    record, source, call, target = rows.T
    draft.waits.add(record=record, source=source, wait=call, target=target)
    if way == _Search.by_records:
        counts["recorded"] = len(rows)
    counts["unresolved"] = len(search.waits) - len(rows)
    counts["inferred"] = len(every) - counts["recorded"] - counts["unresolved"]
    if way == _Search.by_forks:  # the last one
        resolved = {*draft.waits["wait"].tolist()}
        behind = np.array(
            [wait.after for wait in search.waits if wait.call not in resolved], np.int64
        )
        source = ended_beside(draft, behind)
        known = (source >= 0) & (behind >= 0)
        draft.doubtful.add(src=source[known], dst=behind[known])


def _stream_waits(draft: Draft) -> tuple[ndarray, ndarray]:
    """Return the stream-wait calls: all, and those without a source."""
    calls = draft.calls_named(STREAM_WAIT.search)
    return calls, calls[~np.isin(calls, draft.waits["wait"])]


class _Search:
    """What the search for the sources of event waits looks up; each way to search gives what it finds."""

    def __init__(self, draft: Draft, calls: ndarray) -> None:
        self.start = draft.start_ns
        self.end = draft.end_ns
        self.kind = draft.kind
        self.lane = draft.lane
        self.order = draft.order
        self.launch = draft.launch
        self.ranks = draft.ranks.tolist()
        self.launched_by = cache(draft.launched_by)
        around_calls = draft.launched_around(calls)
        lanes = (take(draft.lane, tasks) for tasks in around_calls)
        recorded = device_records(draft, "Stream Wait Event", calls)
        columns = (np.arange(len(calls)), calls, *around_calls, *lanes, *recorded)
        self.waits = [Wait(*each) for each in np.stack(columns, axis=1).tolist()]
        work = draft.in_order(draft.launched())
        self.collectives: dict[int, ndarray] = {}
        # The last task launched on each stream without collectives before each wait, and the next.
        self.side_work: dict[int, tuple[ndarray, ndarray]] = {}
        for lane in unique(draft.lane[work]):
            tasks = {lane: work[draft.lane[work] == lane]}
            collective = tasks[lane][draft.kind[tasks[lane]] == COLLECTIVE]
            if len(collective):
                self.collectives[lane] = collective
                continue
            self.side_work[lane] = around(
                tasks.__getitem__, draft.order, np.full(len(calls), lane), draft.order[calls]
            )

    def allowed(self, source: int, target: int) -> bool:
        """Tell whether the recorded times allow one task to follow another."""
        return self.start[target] >= self.end[source] - STREAM_CLOCK_NS

    def ends_near(self, source: int, target: int) -> bool:
        """Tell whether a task started just as another ended."""
        apart = self.start[target] - self.end[source]
        return -STREAM_CLOCK_NS <= apart <= EVENT_NS

    def beside(self, lane: int, streams: Iterable[int]) -> list[int]:
        """Return those of some streams that are others of the rank of a lane."""
        return [
            other for other in streams if other != lane and self.ranks[other] == self.ranks[lane]
        ]

    def by_records(self) -> Iterator[Row]:
        """Find the waits that the device recorded."""
        for wait in self.waits:
            if min(wait.waiting, wait.waited_for, wait.record) >= 0:
                yield wait.record, wait.waited_for, wait.call, wait.waiting

    def on_known_streams(self) -> Iterator[Row]:
        """Find the waits of streams that the device's own rows name, but without the event.

        The record of an event from before the window, or of a library's own event, is not named
        (`wait_on_cuda_event_record_corr_id` is -1; cuDNN forks to side streams and joins them so).
        The waiting stream is known, so only the other is to be found: the one that got work last
        of those whose work the waiting stream has not waited for yet. One whose work still ran when
        the waiting stream's next work started cannot be it. Where collectives run, a wait may be for
        one of them, and program order decides.
        """
        joined: Joined = defaultdict(lambda: BEFORE_ALL)
        for wait in self.waits:
            target = wait.waiting
            if self.collectives or target not in self.side_work:
                continue
            held = self.side_work[target][1][wait.number]
            sources = self.open_work(wait, target, joined) if held >= 0 else []
            sources = [source for source in sources if self.allowed(source, held)]
            if sources:
                source = max(sources, key=self.order.__getitem__)
                joined[self.lane[source], target] = self.order[source]
                yield wait.call, self.lane[source], wait.call, target

    def open_work(self, wait: Wait, target: int, joined: Joined) -> list[int]:
        """Return the last task launched on each other stream with work that was not waited for yet."""
        found = []
        for lane in self.beside(target, self.side_work):
            task = self.side_work[lane][0][wait.number]
            if task >= 0 and self.order[task] > joined[lane, target]:
                found.append(task)
        return found

    def by_program_order(self) -> Iterator[Row]:
        """Find the waits whose source follows from what was launched before and after them."""
        consumed = defaultdict[int, int](
            lambda: BEFORE_ALL
        )  # communication lane -> order waited up to
        joined: Joined = defaultdict(lambda: BEFORE_ALL)
        patterns = defaultdict(list)
        for wait in self.waits:
            if wait.after < 0:
                continue
            if self.kind[wait.after] == COLLECTIVE:
                ahead = self.launched_by(self.lane[wait.call])
                earlier = self.order[ahead] < self.order[wait.call]
                ahead = ahead[earlier & (self.lane[ahead] != wait.target)]
                if len(ahead) and self.allowed(ahead[-1], wait.after):
                    yield wait.call, self.lane[ahead[-1]], wait.call, wait.target
                continue
            source = self.open_collective(wait, consumed)
            if source >= 0:
                consumed[self.lane[source]] = self.order[source]
                yield source, self.lane[source], wait.call, wait.target
                continue
            switched = wait.source not in {-1, wait.target} and self.kind[wait.before] != COLLECTIVE
            # What joins is the one other stream with work not waited for yet, or whose work just ended.
            sources = [wait.before] if switched else self.open_work(wait, wait.target, joined)
            if len(sources) > 1:
                sources = [task for task in sources if self.ends_near(task, wait.after)]
            if len(sources) == 1:
                source = sources[0]
                joined[self.lane[source], wait.target] = self.order[source]
                allowed = self.allowed(source, wait.after)
                patterns[switched, self.lane[source], wait.target].append((wait.call, allowed))
        yield from self.often(patterns, 1)

    def often(self, patterns: Patterns, least: int) -> Iterator[Row]:
        """Give the waits of each pattern that recorded times allow, if they allow nearly all of it."""
        for (_, source, target), seen in patterns.items():
            calls = [call for call, allowed in seen if allowed]
            if len(seen) >= least and len(calls) >= WAITS_SHARE * len(seen):
                yield from ((call, source, call, target) for call in calls)

    def of_library(self) -> set[int]:
        """Return the waits right behind a collective's launch, if nearly every collective has one.

        They are the communication library's own. Not if the next work, on another stream, mostly
        started just as the collective ended: then the program itself waits for it at once.
        """
        behind = {  # the first behind each
            wait.before: wait
            for wait in reversed(self.waits)
            if wait.before >= 0 and self.kind[wait.before] == COLLECTIVE
        }
        held = sum(
            wait.target not in {-1, wait.source} and self.ends_near(before, wait.after)
            for before, wait in behind.items()
        )
        launched = sum(map(len, self.collectives.values()))
        own = len(behind) >= WAITS_SHARE * launched and 2 * held <= len(behind)
        return {wait.call for wait in behind.values()} if own else set()

    def open_collective(self, wait: Wait, consumed: Mapping[int, int]) -> int:
        """Return the collective that a compute stream's wait is for, or -1.

        Of those that its rank launched and has not waited for yet: the one that ended just before the
        waiting work started, else the oldest that had ended by then.
        """
        found = list[int]()
        for lane in self.beside(wait.target, self.collectives):
            tasks = self.collectives[lane]
            begin = np.searchsorted(self.order[tasks], consumed[lane], side="right")
            stop = np.searchsorted(self.order[tasks], self.order[wait.call])
            found += takewhile(
                lambda task: self.allowed(task, wait.after), tasks[begin:stop].tolist()
            )
        near = [task for task in found if self.ends_near(task, wait.after)]
        if near:
            return max(near, key=self.end.__getitem__)
        return min(found, key=self.order.__getitem__, default=-1)

    def by_forks(self) -> Iterator[Row]:
        """Find waits of a stream that gets its next work later: the only other with more of that thread."""
        patterns = defaultdict(list)
        for wait in self.waits:
            if wait.before < 0 or wait.source != wait.target:
                continue
            others = self.beside(wait.source, self.side_work)
            following = [self.side_work[other][1][wait.number] for other in others]
            thread = self.lane[wait.call]
            following = [
                task for task in following if task >= 0 and self.lane[self.launch[task]] == thread
            ]
            if len(following) == 1:
                allowed = self.allowed(wait.before, following[0])
                patterns[False, wait.source, self.lane[following[0]]].append((wait.call, allowed))
        yield from self.often(patterns, LEAST_EVENTS)


WAYS = {  # how the sources of event waits are found, in this order
    f"events.{name}": partial(find_waits, way=way)
    for name, way in {
        "recorded": _Search.by_records,
        "known_streams": _Search.on_known_streams,
        "program_order": _Search.by_program_order,
        "forks": _Search.by_forks,
    }.items()
}


def follow_what_held(draft: Draft) -> None:
    """Let late device work follow the work of another stream that ended as it began.

    Blocks of kernels are placed in the order of launches, as processors come free: a kernel
    that finds the device full begins when the one before it has no more blocks to place, some
    tens of microseconds before that one's end. And work behind a stream wait whose event is
    not in the recording begins a few microseconds behind what it waited for:

        stream 7   |matrix product, fills the device        |
        stream 23       launched, held by nothing       |begins

    Kept as launch latency, the delay would stay when the device gets faster. Most late starts of a
    stream must be so, and more than can be by chance, which is likely where kernels are short.
    """
    late = draft.on_streams()
    late = late[
        (draft.start_ns[late] - ready(draft, late) >= HELD_LATE_NS) & (draft.launch[late] >= 0)
    ]
    others = np.flatnonzero((draft.kind != CPU) & (draft.row >= 0))
    others = others[np.argsort(draft.end_ns[others], kind="stable")]
    for lane in unique(draft.lane[late]):
        tasks = late[draft.lane[late] == lane]
        work = others[draft.beside(lane)[draft.lane[others]]]
        ends = draft.end_ns[work]
        pairs = []  # the work launched before each that ended nearest to its start
        for task in tasks.tolist():  # a handful
            start = draft.start_ns[task]
            low, high = np.searchsorted(ends, [start - HELD_AFTER_NS, start + HELD_BEFORE_NS + 1])
            near = work[low:high]
            near = near[(draft.order[near] < draft.order[task]) & (draft.start_ns[near] < start)]
            if len(near):
                pairs.append((near[np.argmin(np.abs(draft.end_ns[near] - start))], task))
        if 2 * len(pairs) <= len(tasks):
            continue
        held_by, held = np.array(pairs, np.int64).T
        # How likely it is that as many of some moments lie so close to the end of a task.
        span = max(draft.end_ns[work].max() - draft.start_ns[work].min(), 1)
        each_near = min(len(work) * (HELD_BEFORE_NS + HELD_AFTER_NS) / span, 1.0)
        if comb(len(tasks), len(held)) * each_near ** len(held) <= HELD_CHANCE:
            apart = draft.start_ns[held] - draft.end_ns[held_by]
            draft.link(held_by, held, latency_ns=apart, cause=Cause.EVENT)
            # Of the waits whose source is not known, those ahead of such work are explained.
            _, calls = _stream_waits(draft)
            counts = draft.facts.event_waits
            ahead = np.isin(draft.launched_around(calls)[1], held).sum()
            explained = min(int(ahead), counts["unresolved"])
            counts["unresolved"] -= explained
            counts["inferred"] += explained
