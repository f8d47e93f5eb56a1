"""EventLog: a trace of code whose compiler has no profiler, from the times that its own run time takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from daydream.collect.derive.build import derive
from daydream.collect.derive.recording import Recording
from daydream.errors import HandleError, TraceError
from daydream.text import counted
from daydream.trace.handle_map import DebugHandleMap, Identifier, check_identifier
from daydream.trace.schema import LONGEST_NS, UNKNOWN, Columns
from daydream.trace.trace import Trace

STEP = "step"
LARGEST_NS = 2**62


@dataclass(frozen=True, order=True)
class _Event:
    """An interval on a thread; an identifier of None is a step."""

    start_ns: int
    minus_end_ns: int  # outer ones first, where two begin together
    thread: int
    identifier: Identifier | None

    @property
    def end_ns(self) -> int:
        return -self.minus_end_ns


class EventLog:
    """Collects when each compiled piece ran, by its identifier, on any number of threads.

    Log with `event`, which takes the times itself, or with `record` where they are known afterwards: the
    trace is the same. `clock` tells ns, and `record` has to be given times of the same one.

    Example::

        log = daydream.EventLog()
        with log.step(), log.event("fused_mlp"):
            print(sum(range(1000)))
        handles = daydream.DebugHandleMap({"fused_mlp": [daydream.Handle("aten::linear", layer="mlp")]})
        print(log.to_trace(handles).values("layer"))

    """

    def __init__(self, *, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._events: list[_Event] = []
        self._first: dict[Identifier, None] = {}

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<EventLog of {counted(len(self), 'event')}>"

    @contextmanager
    def event(self, identifier: Identifier) -> Iterator[None]:
        """Log what runs inside as one event of the piece with this identifier, on the thread that runs it.

        Raises `HandleError` if the identifier is no whole number or text, or of another kind than the first.
        """
        self._check(identifier)
        start = self._clock()
        try:
            yield
        finally:
            self._add(identifier, start, self._clock(), None)

    def record(
        self, identifier: Identifier, start_ns: int, end_ns: int, *, thread: int | None = None
    ) -> None:
        """Log an event that is over.

        Args:
            identifier: a whole number or a text, of one kind in a log.
            start_ns: when it began, int, ns of the log's clock.
            end_ns: when it ended, likewise.
            thread: a number of the thread or queue it ran on; by default the thread that calls.

        Raises:
            HandleError: the identifier is of another kind than the first, or the times are none.

        """
        self._check(identifier)
        self._add(identifier, start_ns, end_ns, thread)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Log what runs inside as one step; without steps the whole log is one."""
        start = self._clock()
        try:
            yield
        finally:
            self._add(None, start, self._clock(), None)

    def record_step(self, start_ns: int, end_ns: int, *, thread: int | None = None) -> None:
        """Log a step that is over, as `record` does an event."""
        self._add(None, start_ns, end_ns, thread)

    def to_trace(self, handles: DebugHandleMap | None = None) -> Trace:
        """Return the trace: a row per event, named as its identifier, with what the map says it came from.

        Raises:
            TraceError: nothing was logged, or two events of a thread overlap and neither lies in the other.
            HandleError: the map has none of the log's identifiers.

        """
        events = sorted(
            self._events,
            key=lambda event: (event.start_ns, event.minus_end_ns, event.identifier is not None),
        )
        if not any(event.identifier is not None for event in events):
            raise TraceError(
                "nothing was logged: log what runs with log.event(identifier) or log.record(...)"
            )
        _need_nesting(events)
        first = events[0].start_ns
        last = max(event.end_ns for event in events)
        if last - first > LONGEST_NS:
            raise TraceError(
                "the events of the log lie more than 13 days apart; log the times of one clock, in ns"
            )
        recording = _recording(events)
        if handles is not None:
            _attach(recording, events, handles)
        steps = [event for event in events if event.identifier is None]
        for one, other in pairwise(steps):
            if other.start_ns < one.end_ns:
                raise TraceError(
                    f"{_said(one)} and {_said(other)} overlap; log steps one after another"
                )
        begins = [event.start_ns - first for event in steps]
        ends = [*begins[1:], *[event.end_ns - first for event in steps[-1:]]]
        names = [f"{STEP} {number}" for number in range(len(steps))]
        ranges = list(zip(names, begins, ends, strict=True))
        trace = derive(recording, ranges=(ranges, "steps of the event log") if steps else None)
        trace.check("an event log")
        return trace

    def _check(self, identifier: Any) -> None:
        self._first.setdefault(check_identifier(identifier, self._first))
        if len(self._first) > 1:
            self._first.pop(identifier)  # one is enough to compare with

    def _add(
        self, identifier: Identifier | None, start_ns: int, end_ns: int, thread: int | None
    ) -> None:
        what = STEP if identifier is None else repr(identifier)[:60]
        for value in (start_ns, end_ns, 0 if thread is None else thread):
            if (
                isinstance(value, bool)
                or not isinstance(value, int | np.integer)
                or not 0 <= value < LARGEST_NS
            ):
                raise HandleError(
                    f"{what} was logged with {value!r:.60}; whole numbers of 0 or more were needed"
                )
        if end_ns < start_ns:
            raise HandleError(
                f"{what} was logged to end at {end_ns}, before its start at {start_ns}"
            )
        place = threading.get_ident() if thread is None else int(thread)
        self._events.append(_Event(int(start_ns), -int(end_ns), place, identifier))


def _need_nesting(events: list[_Event]) -> None:
    """Raise `TraceError` for the first two events of one thread that overlap, neither within the other."""
    around: dict[int, list[_Event]] = {}
    for event in events:
        stack = around.setdefault(event.thread, [])
        while stack and stack[-1].end_ns <= event.start_ns:
            stack.pop()
        if stack and event.end_ns > stack[-1].end_ns:
            raise TraceError(
                f"{_said(stack[-1])} and {_said(event)} overlap on one thread, and neither lies in the "
                "other. Log what runs at the same time on threads of its own: record(..., thread=1)."
            )
        stack.append(event)


def _said(event: _Event) -> str:
    what = STEP if event.identifier is None else repr(event.identifier)[:60]
    return f"{what} from {event.start_ns:,} to {event.end_ns:,} ns"


def _recording(events: list[_Event]) -> Recording:
    number = 0
    names: dict[str, int] = {}
    codes = []
    for event in events:
        name = str(event.identifier)
        if event.identifier is None:
            name = f"{STEP} {number}"
            number += 1
        codes.append(names.setdefault(name, len(names)))
    origin = events[0].start_ns
    columns: Columns = {
        "start_ns": np.array([event.start_ns - origin for event in events], np.int64),
        "duration_ns": np.array([event.end_ns - event.start_ns for event in events], np.int64),
        "kind": np.array([event.identifier is not None for event in events], np.int8),
        "name": np.array(codes, np.int32),
        "pid": np.full(len(events), os.getpid(), np.int64),
        "tid": np.array([event.thread for event in events], np.int64),
    }
    metadata: dict[str, Any] = {
        "source": "an event log",
        "vendor": "cpu",
        "origin_ns": origin,
        "notes": [],
    }
    return Recording(columns, {"name": list(names), "kind": ["annotation", "operator"]}, metadata)


def _attach(recording: Recording, events: list[_Event], handles: DebugHandleMap) -> None:
    places = {identifier: place for place, identifier in enumerate(handles)}
    logged = dict.fromkeys(event.identifier for event in events if event.identifier is not None)
    missing = [identifier for identifier in logged if identifier not in places]
    if len(missing) == len(logged):
        raise HandleError(
            f"the map has none of the log's identifiers: the log begins with {missing[0]!r:.60}, the map "
            f"with {next(iter(handles), None)!r:.60}. Give the map of the same compilation."
        )
    if missing:
        recording.note(
            f"The map does not have {counted(len(missing), 'identifier')} of the log, as "
            f"{missing[0]!r:.60}: such an event is part of the one around it, or its origin is unknown."
        )
    recording.handles = handles
    recording.columns["handle"] = np.array(
        [
            UNKNOWN if event.identifier is None else places.get(event.identifier, UNKNOWN)
            for event in events
        ],
        np.int32,
    )
