"""One step of a timeline as a matplotlib figure: a row a lane, and the critical path below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.report.format import UNITS, printable, shortened, time_text
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.simulate.timeline import Timeline

COLORS = {
    "data": "#b5651d",
    "forward": "#1f6feb",
    "loss": "#8250df",
    "backward": "#d1495b",
    "optimizer": "#2a9d5c",
    "other": "#8c959f",
    "unknown": "#c4cad1",
}
MOST_LANES = 14
NAME_WIDTH = 22
BINS = 600  # of a step; a lane's share of work in a bin is the height there, as most tasks are narrower
HEIGHT = 0.8
HEIGHT_IS = "the height is how much of the time a lane works"
PATH = "critical path"


def draw_step(figure: Any, timeline: Timeline, step: int | None, copy: int | None) -> Any:
    """Draw one step into a figure: how busy each lane is, in the colours of phases.

    Without `step` it is the median one. Raises `GraphError` if the timeline has no such step.
    """
    copy, step = _chosen(timeline, step, copy)
    path = timeline.path_to(copy, step)
    end = int(timeline.end_ns[timeline.last_of_steps[copy, step]])
    begin = end - timeline.step_times()[copy, step]
    unit, size = UNITS[0] if end - begin >= 1e6 else UNITS[1]
    phase = timeline.graph.columns["phase"][timeline.task].astype(np.int64)
    inside = np.flatnonzero((timeline.end_ns > begin) & (timeline.start_ns < end))
    inside = inside[timeline.plan.duration_ns[inside] > 0]
    lanes = _lanes(timeline, inside)
    axes = figure.subplots()
    shown = set()
    for row, lane in enumerate(lanes):
        here = inside[timeline.plan.lane[inside] == lane]
        shown |= _bars(
            axes,
            row,
            timeline.start_ns[here],
            timeline.end_ns[here],
            phase[here],
            (begin, end, size),
        )
    start = np.maximum(timeline.start_ns[path.task], begin)
    shown |= _bars(
        axes, len(lanes), start, start + path.task_ns, phase[path.task], (begin, end, size)
    )
    names = [shortened(printable(timeline.graph.lanes[lane].name), NAME_WIDTH) for lane in lanes]
    axes.set(
        yticks=range(len(lanes) + 1), yticklabels=[*names, PATH], xlim=(0, (end - begin) / size),
        ylim=(len(lanes) + 0.6, -0.6), xlabel=f"{unit} since the step before was complete; {HEIGHT_IS}",
        title=f"{printable(str(timeline.graph.steps[step]['name']))}, {time_text(end - begin)}",
    )  # fmt: skip
    axes.axhline(len(lanes) - 0.5, color="0.6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, [name for name in COLORS if name in shown])
    return figure


def _chosen(timeline: Timeline, step: int | None, copy: int | None) -> tuple[int, int]:
    """Return the (copy, step) that is meant; of the steps of a copy the median one."""
    times = timeline.step_times()
    copies = {key[0] for key in times}
    copy = min(copies, default=0) if copy is None else copy
    there = sorted((ns, key[1]) for key, ns in times.items() if key[0] == copy)
    if not there:
        raise GraphError("there is nothing to draw: the timeline covers no step")
    if step is None:
        return copy, there[(len(there) - 1) // 2][1]
    if (copy, step) not in times:
        numbers = ", ".join(str(number) for _, number in sorted(there, key=lambda each: each[1]))
        raise GraphError(f"unknown step {step}; the covered steps are {numbers}")
    return copy, step


def _lanes(timeline: Timeline, inside: np.ndarray) -> list[int]:
    """Return the busiest lanes, threads above streams, as they are numbered."""
    lanes = timeline.graph.lanes
    busy = np.bincount(
        timeline.plan.lane[inside], timeline.plan.duration_ns[inside], minlength=len(lanes)
    )
    chosen = [lane for lane in np.argsort(-busy, kind="stable")[:MOST_LANES].tolist() if busy[lane]]
    return sorted(chosen, key=lambda lane: (lanes[lane].rank, lanes[lane].on_device, lane))


def _bars(
    axes: Any,
    row: int,
    start: np.ndarray,
    end: np.ndarray,
    phase: np.ndarray,
    window: tuple[int, int, int],
) -> set[str]:
    """Draw how much of the time a row is busy, each phase in its colour; return the phases there are."""
    begin, last, size = window
    edges = np.linspace(begin, last, BINS + 1)
    low = np.full(BINS, row + HEIGHT / 2)
    found = set()
    for code in np.unique(phase).tolist():
        some = phase == code
        high = low - HEIGHT * _busy(start[some], end[some], edges)
        if (high < low).any():
            name = PHASES[code] if code >= 0 else "unknown"
            axes.stairs(
                high,
                (edges - begin) / size,
                baseline=low,
                fill=True,
                color=COLORS[name],
                label=name,
            )
            found.add(name)
        low = high
    return found


def _busy(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the share of each bin that is taken by intervals, of which no two overlap."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    times = np.stack([start, end], axis=1).ravel()
    total = np.cumsum(np.stack([np.zeros(len(start), np.int64), end - start], axis=1).ravel())
    if not len(times):
        return np.zeros(len(edges) - 1)
    share: np.ndarray = np.diff(np.interp(edges, times, total)) / np.diff(edges)
    return share


def _legend(figure: Any, names: list[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=COLORS[name], label=name) for name in names]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
