"""What the HTML report's timelines show: the tasks of a window, as measured, replayed or predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.tables import CPU
from daydream.report.perfetto.tasks import waits, waits_for

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline

ON_PATH, INSERTED = 1, 2  # bits of the flags
WHY = {int(cause): cause.label for cause in Cause}
NOT_KNOWN = -1  # what a measured task waited for


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


@dataclass(frozen=True, eq=False)
class Spans:
    """Tasks of a graph within a window: columns of equal length, by lane and then by start.

    Times count from the begin of the window. `former_ns` is the duration before the
    change (-1 for none), `count` how many tasks a span stands for.
    """

    lane: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    name: np.ndarray
    kind: np.ndarray
    phase: np.ndarray
    layer: np.ndarray
    wait_ns: np.ndarray  # how long the lane stood before the span
    why: np.ndarray
    former_ns: np.ndarray
    flags: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.lane)

    def take(self, chosen: np.ndarray) -> Spans:
        """Return some of the spans."""
        return Spans(**{name: column[chosen] for name, column in vars(self).items()})


def simulated_window(timeline: Timeline, copy: int, typical: int) -> Window:
    """Return the window of the covered steps of one pass."""
    last, bounds = timeline.last_of_steps, {}
    for (number, step), before in timeline.spans.items():
        if number == copy:
            alone = int(timeline.graph.steps[step]["start_ns"])
            begin = alone if before is None else int(timeline.end_ns[last[before]])
            bounds[step] = (begin, int(timeline.end_ns[last[number, step]]))
    return _window(bounds, typical)


def measured_window(graph: Graph, typical: int) -> Window:
    """Return the window of the covered steps as they were recorded."""
    bounds = {}
    for number, step in enumerate(graph.steps):
        if step.get("covered"):
            end = int(step.get("completion_ns", step["end_ns"]))
            bounds[number] = (end - int(step["measured_ns"]), end)
    return _window(bounds, typical)


def simulated_spans(
    timeline: Timeline, window: Window, path: np.ndarray, before: Graph | None = None
) -> Spans:
    """Return the tasks that run in a window, a path marked, held against a graph `before` the change."""
    graph, duration = timeline.graph, timeline.plan.duration_ns
    inside = (
        (timeline.end_ns > window.begin_ns) & (timeline.start_ns < window.end_ns) & (duration > 0)
    )
    chosen = np.flatnonzero(inside)
    task, duration = timeline.task[chosen], duration[chosen]
    former = np.full(len(task), -1, np.int64)
    marked = np.zeros(len(timeline.task), bool)
    marked[path] = True
    flags = np.where(marked[chosen], ON_PATH, 0)
    if before is not None:
        new = task >= before.size
        flags[new] |= INSERTED
        former[~new] = before.columns["duration_ns"][task[~new]]
        former[former == duration] = -1
    return _spans(
        graph, task, timeline.start_ns[chosen] - window.begin_ns, duration,
        wait_ns=waits(timeline)[chosen], why=waits_for(timeline)[chosen], former_ns=former, flags=flags,
    )  # fmt: skip


def measured_spans(graph: Graph, window: Window) -> Spans:
    """Return the tasks of a graph where they were recorded, waits apart as the graph has them."""
    columns = graph.columns
    start, duration = columns["measured_start_ns"], columns["duration_ns"]
    end = start + duration
    recorded = graph.alive & (start >= 0) & (duration > 0)
    task = np.flatnonzero(recorded & (end > window.begin_ns) & (start < window.end_ns))
    zero = np.zeros(len(task), np.int64)
    ordered = task[np.lexsort((start[task], columns["lane"][task]))]
    spans = _spans(
        graph, ordered, start[ordered] - window.begin_ns, duration[ordered],
        wait_ns=zero, why=zero + NOT_KNOWN, former_ns=zero - 1, flags=zero,
    )  # fmt: skip
    ready = spans.start_ns + spans.duration_ns + columns["gap_ns"][ordered]
    follows = (spans.lane[1:] == spans.lane[:-1]) & (spans.kind[1:] == CPU)
    wait = zero.copy()
    wait[1:][follows] = np.maximum(spans.start_ns[1:] - ready[:-1], 0)[follows]
    return replace(spans, wait_ns=wait)


def coarsened(spans: Spans, detail: tuple[int, int], most: int) -> Spans:
    """Return at most `most` spans: short neighbours on a lane become one, within `detail` only at need.

    What counts as short doubles until the rest fits.
    """
    if len(spans) <= most:
        return spans
    kept = (spans.start_ns + spans.duration_ns > detail[0]) & (spans.start_ns < detail[1])
    if kept.sum() > most // 2:
        kept[:] = False
    longest = int((spans.start_ns + spans.duration_ns).max())
    short_ns, merged = 1_000, spans
    while len(merged) > most and short_ns < longest:
        merged = _joined(spans, ~kept, short_ns)
        short_ns *= 2
    return merged


def _joined(spans: Spans, may: np.ndarray, short_ns: int) -> Spans:
    """Return the spans with runs of those that are shorter than this, and no further apart, as one each."""
    end = spans.start_ns + spans.duration_ns
    short = may & (spans.duration_ns < short_ns)
    place = spans.start_ns // (8 * short_ns)
    joins = short[1:] & short[:-1] & (spans.start_ns[1:] - end[:-1] < short_ns)
    for column in (spans.lane, spans.kind, place):
        joins &= column[1:] == column[:-1]
    first = np.flatnonzero(np.append(True, ~joins))
    count = np.add.reduceat(spans.count, first)
    several = count > 1
    merged = spans.take(first)
    return replace(
        merged,
        duration_ns=np.maximum.reduceat(end, first) - merged.start_ns,
        name=np.where(several, -1, merged.name),
        former_ns=np.where(several, -1, merged.former_ns),
        flags=np.bitwise_or.reduceat(spans.flags, first),
        count=count,
    )


def _window(bounds: Mapping[int, tuple[int, int]], typical: int) -> Window:
    begin, end = min(b for b, _ in bounds.values()), max(e for _, e in bounds.values())
    steps = tuple((step, b - begin, e - begin) for step, (b, e) in sorted(bounds.items()))
    middle = bounds.get(typical, (begin, end))
    return Window(begin, end, steps, (middle[0] - begin, middle[1] - begin))


def _spans(
    graph: Graph, task: np.ndarray, start: np.ndarray, duration: np.ndarray, **own: np.ndarray
) -> Spans:
    columns = graph.columns
    spans = Spans(
        start_ns=start,
        duration_ns=duration,
        count=np.ones(len(task), np.int64),
        **{
            name: columns[name][task].astype(np.int64)
            for name in ("lane", "name", "kind", "phase", "layer")
        },
        **own,
    )
    return spans.take(np.lexsort((start, spans.lane)))
