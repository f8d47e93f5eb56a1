"""The tasks of a timeline as one table of spans, as the browser, Perfetto and figures draw them.

For the browser a table is packed: columns of bytes in base64, which `spans.js` reads back.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import places
from daydream.graph.plan import Cause
from daydream.graph.tables import CPU, KINDS, step_rank
from daydream.predict.basis import RECORDED
from daydream.report.blocks import printable, shortened
from daydream.simulate.critical_path import binding
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.simulate.timeline import Timeline

# Bits of the flags
ON_PATH = 1
INSERTED = 2
NOT_KNOWN = -1  # what a measured task waited for
CODES = ("lane", "name", "kind", "phase", "layer", "op", "step")


@dataclass(frozen=True)
class Window:
    """What is shown of a timeline: from the begin of its first covered step to the end of its last."""

    begin_ns: int
    end_ns: int
    steps: tuple[tuple[int, int, int], ...]  # number, begin, end
    typical: tuple[int, int]  # begin and end of the typical step

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns


class Spans(SimpleNamespace):
    """Tasks as columns of equal length, int64, by lane and then by start.

    Attributes:
        lane, name, kind, phase, layer, op, step: codes of the graph, -1 for unknown.
        start_ns, duration_ns: when they run.
        wait_ns: how long the lane waited before the span.
        why: the `Cause` of that wait.
        former_ns: the duration before the change, -1 if it is the same or there was none.
        flags: `ON_PATH`, `INSERTED`.
        count: how many tasks a span stands for.
    """

    def __len__(self) -> int:
        return len(self.lane)

    def but(self, **columns: np.ndarray) -> Spans:
        """Return the spans with other columns."""
        return Spans(**{**vars(self), **columns})

    def take(self, chosen: np.ndarray) -> Spans:
        """Return some of the spans."""
        return Spans(**{name: column[chosen] for name, column in vars(self).items()})


def simulated_window(timeline: Timeline, copy: int, typical: int) -> Window:
    """Return the window of the covered steps of one pass."""
    bounds = {}
    for (number, step), ns in timeline.step_times().items():
        if number == copy:
            end = int(timeline.end_ns[timeline.last_of_steps[number, step]])
            bounds[step] = end - ns, end
    return _window(bounds, typical)


def measured_window(graph: Graph, typical: int) -> Window:
    """Return the window of the covered steps as they were recorded."""
    steps = enumerate(graph.steps)
    covered = {number for number, step in steps if step.get("covered")}
    return _window({n: (b, e) for n, b, e in measured_steps(graph) if n in covered}, typical)


def measured_steps(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """Return (step, begin, end) of each recorded step, from completion to completion."""
    for number, step in enumerate(graph.steps):
        end = int(step.get("completion_ns", step["end_ns"]))
        measured = step.get("measured_ns")
        yield number, int(step["start_ns"]) if measured is None else end - int(measured), end


def _window(bounds: Mapping[int, tuple[int, int]], typical: int) -> Window:
    begin = min(b for b, _ in bounds.values())
    end = max(e for _, e in bounds.values())
    steps = tuple((step, b - begin, e - begin) for step, (b, e) in sorted(bounds.items()))
    middle = bounds.get(typical, (begin, end))
    return Window(begin, end, steps, (middle[0] - begin, middle[1] - begin))


def paths(timeline: Timeline, copy: int) -> list[np.ndarray]:
    """Return the critical path of each covered step of a pass as entries of the timeline, in order.

    They are the paths that breakdowns and tables are about.
    """
    of_copy = [step for number, step in timeline.spans if number == copy]
    return [np.asarray(timeline.path_to(copy, step).task, np.int64) for step in of_copy]


def simulated_spans(
    timeline: Timeline,
    chosen: np.ndarray,
    path: np.ndarray,
    before: Graph | None = None,
) -> Spans:
    """Return entries of a timeline, a path marked, compared with a graph `before` the change."""
    graph = timeline.graph
    plan = timeline.plan
    task = timeline.task[chosen]
    duration = plan.duration_ns[chosen].astype(np.int64)
    former = np.full(len(task), -1, np.int64)
    flags = np.where(np.isin(chosen, path), ON_PATH, 0)
    if before is not None:
        new = task >= before.size
        flags[new] |= INSERTED
        former[~new] = before.columns["duration_ns"][task[~new]]
        former[former == duration] = -1
    # The first task of a lane did not wait: what came before it was not recorded.
    wait = np.where(plan.before_on_lane() < 0, 0, timeline.wait_ns)[chosen]
    _, edge = binding(plan, timeline.start_ns, timeline.end_ns)
    why = np.full(len(plan), int(Cause.RELEASE))
    why[edge >= 0] = plan.edge_cause[edge[edge >= 0]]
    return _spans(
        graph,
        task,
        timeline.start_ns[chosen],
        duration,
        wait_ns=wait,
        why=why[chosen],
        former_ns=former,
        flags=flags,
    )


def simulated_in(
    timeline: Timeline,
    copy: int,
    window: Window,
    before: Graph | None = None,
) -> Spans:
    """Return the tasks of some duration that run in a window, times from its begin; the paths marked."""
    inside = (timeline.end_ns > window.begin_ns) & (timeline.start_ns < window.end_ns)
    chosen = np.flatnonzero(inside & (timeline.plan.duration_ns > 0))
    spans = simulated_spans(timeline, chosen, np.concatenate(paths(timeline, copy)), before)
    return spans.but(start_ns=spans.start_ns - window.begin_ns)


def measured_in(graph: Graph, window: Window) -> Spans:
    """Return the tasks of a window where they were recorded, waits apart as the graph has them."""
    columns = graph.columns
    start = columns["measured_start_ns"]
    duration = columns["duration_ns"]
    recorded = graph.alive & (start >= 0) & (duration > 0)
    task = np.flatnonzero(recorded & (start + duration > window.begin_ns) & (start < window.end_ns))
    task = task[np.lexsort((start[task], columns["lane"][task]))]
    zero = np.zeros(len(task), np.int64)
    spans = _spans(
        graph,
        task,
        start[task] - window.begin_ns,
        duration[task],
        wait_ns=zero,
        why=zero + NOT_KNOWN,
        former_ns=zero - 1,
        flags=zero,
    )
    ready = spans.start_ns + spans.duration_ns + columns["gap_ns"][task]
    follows = (spans.lane[1:] == spans.lane[:-1]) & (spans.kind[1:] == CPU)
    wait = zero.copy()
    wait[1:][follows] = np.maximum(spans.start_ns[1:] - ready[:-1], 0)[follows]
    return spans.but(wait_ns=wait)


def _spans(
    graph: Graph,
    task: np.ndarray,
    start: np.ndarray,
    duration: np.ndarray,
    **own: np.ndarray,
) -> Spans:
    codes = {name: graph.columns[name][task].astype(np.int64) for name in CODES}
    count = np.ones(len(task), np.int64)
    spans = Spans(
        **codes,
        start_ns=start,
        duration_ns=duration,
        count=count,
        **own,
    )
    return spans.take(np.lexsort((start, spans.lane)))


def step_name(steps: Sequence[Mapping[str, Any]], step: Mapping[str, Any]) -> str:
    """Return a step's name, behind its rank where there are several."""
    several = len({step_rank(each) for each in steps}) > 1
    return f"rank {step_rank(step)} {step['name']}" if several else str(step["name"])


MOST_SPANS = 32_000  # of one timeline: two of them, packed, take about 0.7 MB
LONGEST_NAME = 300
LONGEST = 2**30  # units of time that a window may have: the columns are 32 bits wide


def timelines(
    replay: Replay,
    comparison: Prediction | None,
    most: int = MOST_SPANS,
) -> dict[str, Any]:
    """Return both timelines of a replay, or of a what-if with its replay, as an object for JSON.

    Each has at most `most` spans: of more, short neighbors are one.
    """
    graph = replay.graph
    settled = replay.settled
    names: dict[str, int] = {}

    def simulated(title: str, timeline: Timeline, copy: int, typical: int) -> dict[str, Any]:
        window = simulated_window(timeline, copy, typical)
        before = None if timeline.graph is graph else graph
        spans = simulated_in(timeline, copy, window, before)
        return packed(title, timeline.graph, window, spans, names, most)

    if comparison is None:
        step = settled.typical()[0]
        window = measured_window(graph, step)
        first = packed("measured", graph, window, measured_in(graph, window), names, most)
        name = "replayed" if replay.basis == RECORDED else replay.basis
        second = simulated(name, replay.timeline, 0, step)
    else:
        after = comparison.after
        step, then = comparison.shown_steps()
        first = simulated("replayed", replay.timeline, settled.copy, step)
        second = simulated("predicted", after.timeline, after.copy, then)
    return {
        "kinds": list(KINDS),
        "phases": list(PHASES),
        "why": {int(cause): cause.label for cause in Cause},
        "names": list(names),
        "timelines": [first, second],
        "changes": comparison is not None,
    }


def packed(
    title: str,
    graph: Graph,
    window: Window,
    spans: Spans,
    names: dict[str, int],
    most: int = MOST_SPANS,
) -> dict[str, Any]:
    """Return a timeline as an object for JSON, of `most` spans; `names` gathers what it points to."""
    unit = 1
    while window.length_ns > LONGEST * unit:
        unit *= 10
    shown = coarsened(spans, window.typical, most)
    lanes = np.unique(shown.lane)
    first = np.searchsorted(shown.lane, lanes)
    start = np.maximum(shown.start_ns, 0)
    duration = np.minimum(shown.start_ns + shown.duration_ns, window.length_ns) - start
    start = start // unit
    since = np.diff(start, prepend=0)
    since[first] = start[first]
    columns = {
        "since": since,
        "duration": duration // unit,
        "name": _coded(names, shown.name, graph.texts["name"]),
        "layer": _coded(names, shown.layer, graph.texts["layer"]),
        "kind": shown.kind,
        "phase": shown.phase,
        "wait": shown.wait_ns // unit,
        "why": shown.why,
        "whole": np.where(shown.duration_ns > duration, shown.duration_ns // unit, -1),
        "before": np.where(shown.former_ns < 0, -1, shown.former_ns // unit),
        "count": shown.count,
        "flags": shown.flags,
    }
    return {
        "title": title,
        "unit_ns": unit,
        "length": window.length_ns // unit,
        "lanes": [printable(graph.lanes[number].name) for number in lanes.tolist()],
        "first": [*first.tolist(), len(shown)],
        "steps": [
            [
                printable(step_name(graph.steps, graph.steps[step])),
                begin // unit,
                end // unit,
                step_rank(graph.steps[step]),
            ]
            for step, begin, end in window.steps
        ],
        "typical": [edge // unit for edge in window.typical],
        "tasks": int(shown.count.sum()),
        "joined": int((shown.count > 1).sum()),
        "columns": {name: _text(column) for name, column in columns.items()},
    }


def _coded(names: dict[str, int], codes: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return a graph's codes as places in `names`, which two graphs share; -1 for unknown."""
    used, place = places(codes)
    shown = [
        shortened(printable(texts[code]), LONGEST_NAME) if code >= 0 else None for code in used
    ]
    mine = [-1 if name is None else names.setdefault(name, len(names)) for name in shown]
    return np.array(mine, np.int64)[place]


def _text(column: np.ndarray) -> str:
    """Return 32-bit numbers, low bytes first and apart from high ones, which packs better."""
    words = np.clip(column, -1, 2**31 - 1).astype("<i4")
    planes = words.view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)).decode()


def coarsened(spans: Spans, detail: tuple[int, int], most: int) -> Spans:
    """Return at most `most` spans: short neighbors on a lane become one, within `detail` only at need.

    What counts as short doubles until the rest fits.
    """
    if len(spans) <= most:
        return spans
    kept = (spans.start_ns + spans.duration_ns > detail[0]) & (spans.start_ns < detail[1])
    if kept.sum() > most // 2:
        kept[:] = False
    longest = int((spans.start_ns + spans.duration_ns).max())
    short_ns = 1_000
    merged = spans
    while len(merged) > most and short_ns < longest:
        merged = _joined(spans, ~kept, short_ns)
        short_ns *= 2
    return merged


def _joined(spans: Spans, may: np.ndarray, short_ns: int) -> Spans:
    """Return the spans with runs of those that are shorter than this, and no further apart, as one each."""
    end = spans.start_ns + spans.duration_ns
    short = may & (spans.duration_ns < short_ns)
    joins = short[1:] & short[:-1] & (spans.start_ns[1:] - end[:-1] < short_ns)
    for column in (spans.lane, spans.kind, spans.start_ns // (8 * short_ns)):
        joins &= column[1:] == column[:-1]
    first = np.flatnonzero(np.append(True, ~joins))
    count = np.add.reduceat(spans.count, first)
    merged = spans.take(first)
    return merged.but(
        duration_ns=np.maximum.reduceat(end, first) - merged.start_ns,
        name=np.where(count > 1, -1, merged.name),
        former_ns=np.where(count > 1, -1, merged.former_ns),
        flags=np.bitwise_or.reduceat(spans.flags, first),
        count=count,
    )
