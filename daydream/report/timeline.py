"""The tasks of a timeline as one table of spans, as the browser, Perfetto and figures draw them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.tables import CPU, step_rank
from daydream.simulate.critical_path import binding

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline

ON_PATH, INSERTED = 1, 2  # bits of the flags
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
    timeline: Timeline, chosen: np.ndarray, path: np.ndarray, before: Graph | None = None
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
    timeline: Timeline, copy: int, window: Window, before: Graph | None = None
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
    graph: Graph, task: np.ndarray, start: np.ndarray, duration: np.ndarray, **own: np.ndarray
) -> Spans:
    codes = {name: graph.columns[name][task].astype(np.int64) for name in CODES}
    count = np.ones(len(task), np.int64)
    spans = Spans(**codes, start_ns=start, duration_ns=duration, count=count, **own)
    return spans.take(np.lexsort((start, spans.lane)))


def step_name(graph: Graph, number: int) -> str:
    """Return a step's name, with its rank where there are several."""
    step = graph.steps[number]
    several = len({step_rank(each) for each in graph.steps}) > 1
    return f"rank {step_rank(step)} {step['name']}" if several else str(step["name"])
