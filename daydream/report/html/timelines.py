"""The report's two timelines as data: measured and replayed, or replayed and predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daydream.report.html.packing import MOST_SPANS, Names, legend, packed
from daydream.report.html.spans import (
    measured_spans,
    measured_window,
    simulated_spans,
    simulated_window,
)
from daydream.simulate.critical_path import critical_path

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.report.html.spans import Window
    from daydream.simulate.timeline import Timeline


def timelines(
    replay: Replay, comparison: Prediction | None, most: int = MOST_SPANS
) -> dict[str, Any]:
    """Return both timelines of a replay, or of a what-if with its replay, as an object for JSON.

    Each has at most `most` spans: of more, short neighbours are one.
    """
    names = Names()
    graph = replay.graph
    shown = []
    if comparison is None:
        typical = replay.settled.typical()[0]
        window = measured_window(graph, typical)
        shown.append(packed("measured", graph, window, measured_spans(graph, window), names, most))
        shown.append(_simulated("replayed", replay.timeline, 0, typical, names, most))
    else:
        step, then = comparison.shown_steps()
        shown.append(
            _simulated("replayed", replay.timeline, replay.settled.copy, step, names, most)
        )
        after = comparison.after
        shown.append(_simulated("predicted", after.timeline, after.copy, then, names, most, graph))
    return {**legend(), "names": names.texts, "timelines": shown, "changes": comparison is not None}


def _simulated(
    title: str,
    timeline: Timeline,
    copy: int,
    typical: int,
    names: Names,
    most: int,
    before: Graph | None = None,
) -> dict[str, Any]:
    window = simulated_window(timeline, copy, typical)
    path = _whole_path(timeline, copy, window)
    spans = simulated_spans(timeline, window, path, before)
    return packed(title, timeline.graph, window, spans, names, most)


def _whole_path(timeline: Timeline, copy: int, window: Window) -> Any:
    """Return the tasks on the chain of causes behind the last step to complete in a window."""
    ends = {
        step: task for (number, step), task in timeline.last_of_steps.items() if number == copy
    }  # fmt: skip
    last = max(
        (ends[step] for step, _, _ in window.steps), key=lambda task: int(timeline.end_ns[task])
    )
    plan = timeline.plan
    return critical_path(plan, timeline.start_ns, timeline.end_ns, last, since=window.begin_ns).task
