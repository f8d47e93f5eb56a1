"""Timelines for https://ui.perfetto.dev: measured, replayed and predicted, each a process of its own.

The file is in the Trace Event Format ("Trace Event Format", Google, 2016): complete
events (`X`) with microseconds, metadata events (`M`) that name processes and threads,
arrows (`s` to `f`) from slice to slice, and counters (`C`). Slices of one thread nest or
follow each other, as the format demands.

The simulated processes show the recorded window once; where it was repeated to let
the step settle, that is the first pass.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import count, islice
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from daydream.arrays import places, run_starts
from daydream.files.atomic import write_whole
from daydream.graph.calls import Coverage, device_work
from daydream.graph.plan import Cause
from daydream.graph.tables import CPU, KINDS, step_rank
from daydream.memory.report import held_over_time
from daydream.report.timeline import (
    INSERTED,
    ON_PATH,
    Spans,
    measured_steps,
    paths,
    simulated_spans,
)
from daydream.trace.schema import DEVICE_KINDS, HOST_KINDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.simulate.timeline import Timeline
    from daydream.trace.trace import Trace

LAUNCH = "launch"
PACK_LEVEL = 4
EVENTS_AT_ONCE = 10_000
NAMED = ("kind", "phase", "layer", "op", "name")
ABOUT = ("kind", "phase", "layer", "op", "step")
OF_SLICES = ("lane", "start_ns", "duration_ns", "name", "wait_ns", "why", "former_ns", "flags")
# Waiting for room in the queue ties every launch to a kernel a thousand before it: no arrow helps there.
ARROWS = (
    Cause.LAUNCH,
    Cause.EVENT,
    Cause.SYNC,
    Cause.HANDOFF,
    Cause.LOCK,
    Cause.COMMUNICATION,
    Cause.USER,
)
Event = dict[str, Any]
Texts = dict[str, Sequence[str]]


def write(
    path: str | os.PathLike[str],
    replay: Replay,
    comparison: Prediction | None = None,
    *,
    force: bool = False,
) -> None:
    """Write the timelines of a replay, or of a what-if with its replay, as .json or .json.gz.

    Raises `OutputError` if the file exists and `force` is not given, or cannot be written.
    """

    def fill(temporary: str) -> None:
        with open(temporary, "wb") as file:
            if str(path).endswith(".gz"):
                with gzip.GzipFile("", "wb", PACK_LEVEL, file, mtime=0) as packed:
                    _fill(packed, replay, comparison)
            else:
                _fill(file, replay, comparison)

    write_whole(path, fill, force=force)


def _fill(file: IO[bytes] | gzip.GzipFile, replay: Replay, comparison: Prediction | None) -> None:
    about: Event = {"measured_ns": replay.measured_ns, "replayed_ns": replay.replayed_ns}
    if comparison is not None:
        names = ("optimization", "measured_ns", "replayed_ns", "predicted_ns")
        about |= {name: getattr(comparison, name) for name in names}
        about["options"] = {name: str(value) for name, value in comparison.options.items()}
    encode = msgspec.json.Encoder().encode
    head = encode({"displayTimeUnit": "ms", "otherData": about})
    file.write(head[:-1] + b', "traceEvents": [\n')
    lines = map(encode, events(replay, comparison))
    file.write(next(lines))
    while block := list(islice(lines, EVENTS_AT_ONCE)):
        file.write(b",\n" + b",\n".join(block))
    file.write(b"\n]}\n")


def events(replay: Replay, comparison: Prediction | None = None) -> Iterator[Event]:
    """Return the events of the file."""
    graph = replay.graph
    numbers = count(1)
    shown: list[tuple[str, Timeline, Graph | None]] = [("replayed", replay.timeline, None)]
    if comparison is not None:
        shown.append((f"predicted: {comparison.optimization}", comparison.timeline, graph))
    times = [timeline.start_ns for _, timeline, _ in shown]
    times.append(np.array([step["start_ns"] for step in graph.steps]))
    times += [] if graph.trace is None else [graph.trace["start_ns"]]
    origin = min(int(part.min()) for part in times if len(part))
    if graph.trace is not None:
        yield from _Process(1, graph, origin, numbers).measured(graph.trace)
    for pid, (name, timeline, before) in enumerate(shown, 2):
        yield from _Process(pid, timeline.graph, origin, numbers).simulated(name, timeline, before)


class _Process:
    """The events of one process. Threads are numbered from 1: the steps of each rank, then the lanes."""

    def __init__(self, pid: int, graph: Graph, origin: int, numbers: count[int]) -> None:
        self.pid = pid
        self.graph = graph
        self.origin = origin
        self.numbers = numbers
        self.ranks = sorted({step_rank(step) for step in graph.steps}) or [0]
        self.first_lane = len(self.ranks) + 1

    def measured(self, trace: Trace) -> Iterator[Event]:
        """Return the rows of a trace: host rows nested as recorded, device rows by stream."""
        graph = self.graph
        on_device = trace.is_kind(*DEVICE_KINDS)
        rows = np.flatnonzero(trace.is_kind(*HOST_KINDS) | on_device)
        lane, names = _lanes_of_rows(graph, trace, rows, on_device)
        yield from self._head("measured", names, measured_steps(graph))
        start = trace["start_ns"]
        duration = trace["duration_ns"]
        zero = np.zeros(len(rows), np.int64)
        spans = Spans(
            lane=lane[rows],
            start_ns=start[rows],
            duration_ns=duration[rows],
            wait_ns=zero,
            why=zero,
            former_ns=zero - 1,
            flags=zero,
            **{name: np.asarray(trace[name])[rows] for name in ("step", *NAMED)},
        )
        yield from self._slices(spans, {name: trace.text(name) for name in NAMED})
        columns = graph.columns
        launched = (columns["kind"] != CPU) & (columns["launch"] >= 0) & (columns["row"] >= 0)
        target = columns["row"][launched]
        source = columns["row"][columns["launch"][launched]]
        there = on_device[target] & (source >= 0) & (start[source] <= start[target])
        for end in (source, target):
            there &= (lane[end] >= 0) & (duration[end] > 0)
        source = source[there]
        target = target[there]
        yield from self._arrows(LAUNCH, lane[source], start[source], lane[target], start[target])

        recorded = columns["measured_start_ns"]
        shown = device_work(graph) & graph.alive & (columns["row"] >= 0) & (recorded >= 0)
        yield from self._in_flight(np.flatnonzero(shown), recorded)
        for one in held_over_time(trace):
            name = f"memory: {f'rank {one.rank} ' if one.rank else ''}{one.device}"
            last = np.append(one.time_ns[1:] != one.time_ns[:-1], True)[: len(one.time_ns)]
            times = np.maximum(one.time_ns[last], self.origin)
            yield from self._counter(name, times, one.held_bytes[last])

    def simulated(self, name: str, timeline: Timeline, before: Graph | None) -> Iterator[Event]:
        """Return the tasks of a timeline's first pass, and on CPU threads what they waited for.

        Compared with the graph `before` the change, tasks that changed show their former duration and new
        ones are marked.
        """
        graph = self.graph
        names = [lane.name for lane in graph.lanes]
        yield from self._head(name, names, _simulated_steps(timeline))
        of_steps = paths(timeline, 0)
        chosen = np.flatnonzero(timeline.copy == 0)
        path = np.concatenate([*of_steps, np.empty(0, np.int64)])
        texts = {**graph.texts, "kind": KINDS, "phase": PHASES}
        yield from self._slices(simulated_spans(timeline, chosen, path, before), texts)
        yield from self._flows(timeline, of_steps)
        task = timeline.task[chosen]
        start = np.full(graph.size, -1, np.int64)
        start[task] = timeline.start_ns[chosen]
        yield from self._in_flight(task[device_work(graph)[task]], start)

    def _head(
        self,
        name: str,
        lanes: Sequence[str],
        steps: Iterable[tuple[int, int, int]],
    ) -> Iterator[Event]:
        """Return the events that name a process and its threads, and its steps as (step, begin, end)."""
        of_steps = [f"steps of rank {rank}" if self.ranks[1:] else "steps" for rank in self.ranks]
        named = [("process", 0, self.pid, name)]
        named += [("thread", tid, tid, text) for tid, text in enumerate([*of_steps, *lanes], 1)]
        for what, tid, place, text in named:
            for key, value in (("name", text), ("sort_index", place)):
                yield self._event(
                    "M",
                    tid=tid,
                    name=f"{what}_{key}",
                    args={key: value},
                )
        for number, begin, end in steps:
            step = self.graph.steps[number]
            args = {"covered": bool(step.get("covered"))}
            if step.get("why_not"):
                args["why_not"] = step["why_not"]
            if end >= begin:
                yield self._event(
                    "X",
                    tid=self.ranks.index(step_rank(step)) + 1,
                    name=step["name"],
                    cat="step",
                    args=args,
                    ts=self._us(begin),
                    dur=(end - begin) / 1000,
                )

    def _slices(self, spans: Spans, texts: Texts) -> Iterator[Event]:
        """Return a slice for each span, and for what a CPU thread waited before it; codes are of `texts`."""
        texts = {**texts, "step": [step["name"] for step in self.graph.steps]}

        @cache  # most slices share what is said of them
        def about(*row: int) -> Event:
            named = zip(ABOUT, row, strict=True)
            return {name: texts[name][code] for name, code in named if code >= 0}

        columns = (getattr(spans, name).tolist() for name in (*OF_SLICES, *ABOUT))
        for row in zip(*columns, strict=True):
            lane, start, duration, name, wait, why, former, flags, *codes = row
            args = dict(about(*codes))
            event = self._event(
                "X",
                tid=lane + self.first_lane,
                ts=self._us(start),
                dur=duration / 1000,
                name=texts["name"][name],
                cat=args["kind"],
            )
            if wait > 0:
                args["wait_us"] = wait / 1000
                if args["kind"] == KINDS[CPU]:
                    yield {
                        **event,
                        "ts": self._us(start - wait),
                        "dur": wait / 1000,
                        "name": f"wait: {Cause(why).label}",
                        "cat": "wait",
                        "args": {},
                    }
            if flags & ON_PATH:
                args["critical"] = True
            if flags & INSERTED:
                args["inserted"] = True
                event["name"] += " [inserted]"
            elif former >= 0:
                args["changed"] = True
                args["before_us"] = former / 1000
            yield {**event, "args": args}

    def _flows(self, timeline: Timeline, of_steps: Sequence[np.ndarray]) -> Iterator[Event]:
        """Return the arrows of a first pass: launches, waits, and the critical path from lane to lane."""
        plan = timeline.plan
        start = timeline.start_ns
        shown = (timeline.copy == 0) & (plan.duration_ns > 0)

        def arrows(
            name: str,
            src: np.ndarray,
            dst: np.ndarray,
            leaves: np.ndarray,
        ) -> Iterator[Event]:
            drawn = shown[src] & shown[dst] & (plan.lane[src] != plan.lane[dst])
            drawn &= (leaves <= start[dst]) & (start[src] <= start[dst])
            src = src[drawn]
            dst = dst[drawn]
            return self._arrows(name, plan.lane[src], leaves[drawn], plan.lane[dst], start[dst])

        src = plan.edge_src
        dst = plan.edge_dst
        # An arrow leaves a slice within it: at its start where that is what counts, else at its end.
        leaves = start[src] + np.where(plan.edge_from_start, 0, plan.duration_ns[src] - 1)
        leaves = np.clip(leaves, start[src], np.maximum(start[dst], start[src]))
        for cause in ARROWS:
            edges = np.flatnonzero(plan.edge_cause == cause)
            name = LAUNCH if cause is Cause.LAUNCH else cause.label
            yield from arrows(name, src[edges], dst[edges], leaves[edges])
        for path in of_steps:
            drawn = path[shown[path]]
            source = drawn[:-1]
            target = drawn[1:]
            leaves = np.minimum(start[source] + plan.duration_ns[source] - 1, start[target])
            yield from arrows("critical path", source, target, leaves)

    def _arrows(
        self,
        name: str,
        lane: np.ndarray,
        ns: np.ndarray,
        to_lane: np.ndarray,
        to_ns: np.ndarray,
    ) -> Iterator[Event]:
        """Return the two events of each arrow from the slice at a time on one lane to that on another."""
        ends = (column.tolist() for column in (lane, ns, to_lane, to_ns))
        for tid, ts, to_tid, to_ts in zip(*ends, strict=True):
            common = {
                "id": next(self.numbers),
                "name": name,
                "cat": name,
            }
            yield self._event(
                "s",
                tid=tid + self.first_lane,
                ts=self._us(ts),
                **common,
            )
            yield self._event(
                "f",
                bp="e",
                tid=to_tid + self.first_lane,
                ts=self._us(to_ts),
                **common,
            )

    def _in_flight(self, tasks: np.ndarray, start: np.ndarray) -> Iterator[Event]:
        """Return how many launches are in flight on each stream, and how many streams are busy.

        `start` is by the graph's ids. What has no launch in the trace counts from its own start.
        """
        columns = self.graph.columns
        launch = columns["launch"][tasks]
        begin = start[tasks]
        end = begin + columns["duration_ns"][tasks]
        launched = np.where((launch >= 0) & (start[launch] >= 0), start[launch], begin)
        lane = columns["lane"][tasks]
        busy = []
        for number in np.unique(lane).tolist():
            here = lane == number
            name = f"in flight: {self.graph.lanes[number].name}"
            yield from self._open(name, np.minimum(launched, begin)[here], end[here])
            busy.append(Coverage(begin[here], end[here]))
        if busy:
            begins = [one.start_ns for one in busy]
            ends = [one.end_ns for one in busy]
            yield from self._open("streams busy", np.concatenate(begins), np.concatenate(ends))

    def _open(self, name: str, begin: np.ndarray, end: np.ndarray) -> Iterator[Event]:
        """Return how many intervals are open, wherever that changes."""
        change = np.repeat([1, -1], len(begin))
        at, place = places(np.concatenate([begin, end]))
        level = np.cumsum(np.bincount(place, weights=change).astype(np.int64))
        differs = run_starts(level)
        yield from self._counter(name, at[differs], level[differs])

    def _counter(self, name: str, at: np.ndarray, values: np.ndarray) -> Iterator[Event]:
        for ns, value in zip(at.tolist(), values.tolist(), strict=True):
            yield self._event(
                "C",
                ts=self._us(ns),
                name=name,
                args={"value": value},
            )

    def _event(self, ph: str, **fields: Any) -> Event:
        return {"ph": ph, "pid": self.pid, **fields}

    def _us(self, ns: int) -> float:
        return (ns - self.origin) / 1000


def _simulated_steps(timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    steps = timeline.graph.steps
    reached: dict[int, int] = {}
    for (copy, number), task in sorted(timeline.last_of_steps.items()):
        if copy == 0:
            rank = step_rank(steps[number])
            end = int(timeline.end_ns[task])
            yield number, reached.get(rank, int(steps[number]["start_ns"])), end
            reached[rank] = end


def _lanes_of_rows(
    graph: Graph,
    trace: Trace,
    rows: np.ndarray,
    on_device: np.ndarray,
) -> tuple[np.ndarray, list[str]]:
    """Return the lane of each row of a trace, -1 for those that are not asked for, and the names of all lanes.

    Threads without a task follow the lanes of the graph, and so do device rows that overlap others of their
    stream.
    """
    sides = (("pid", "device"), ("tid", "stream"))
    places = [np.where(on_device, trace[device], trace[host]) for host, device in sides]
    columns = (column.tolist() for column in (trace["rank"], on_device, *places))
    keys = list(zip(*columns, strict=True))
    names = [lane.name for lane in graph.lanes]
    tasks = graph.columns["row"] >= 0
    row_and_lane = (graph.columns[name][tasks].tolist() for name in ("row", "lane"))
    lane_of = {keys[row]: lane for row, lane in zip(*row_and_lane, strict=True)}
    lane = np.full(len(trace), -1, np.int64)
    reached: dict[int, int] = {}  # by lane: the end of its device rows so far
    spare: dict[int, int] = {}  # by lane: that of what overlaps there
    start = trace["start_ns"]
    end = start + trace["duration_ns"]
    for row in rows[np.lexsort((-end[rows], start[rows]))].tolist():
        key = keys[row]
        if key not in lane_of:
            lane_of[key] = len(names)
            names.append(f"thread {key[3]}")
        own = lane_of[key]
        while on_device[row] and start[row] < reached.get(own, start[row]):
            if own not in spare:
                spare[own] = len(names)
                names.append(f"{names[lane_of[key]]} (overlapping)")
            own = spare[own]
        reached[own] = int(end[row])
        lane[row] = own
    return lane, names
