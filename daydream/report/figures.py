"""Results as matplotlib figures: `result.plot()` in notebooks, `scaling --plot` as PNG, SVG or a page."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import singledispatch
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from daydream.errors import GraphError, MissingPackageError, OutputError
from daydream.files.atomic import write_whole
from daydream.predict.compare import Difference
from daydream.predict.curves import Curve, Curves
from daydream.predict.prediction import Prediction
from daydream.predict.rank import Ranking
from daydream.predict.replay import Replay
from daydream.predict.scaling import Scaling
from daydream.report.blocks import printable, scale, shortened, speedup, time_text
from daydream.report.timeline import simulated_in, simulated_window
from daydream.report.views.breakdown import STEP, Parts, breakdown
from daydream.report.views.difference import sides_of
from daydream.simulate.critical_path import PathCause
from daydream.simulate.timeline import Timeline
from daydream.trace.schema import PHASES

BEFORE, AFTER = "#9aa5b1", "#1f6feb"
PHASE_COLORS = {
    "data": "#b5651d",
    "forward": "#1f6feb",
    "loss": "#8250df",
    "backward": "#d1495b",
    "optimizer": "#2a9d5c",
    "other": "#8c959f",
    "unknown": "#c4cad1",
}
MOST_CURVES = 8
MOST_BARS = 12
MOST_LANES = 14
NAME_WIDTH = 34
BINS = 600  # of a step; a lane's share of work in a bin is the height there, as most tasks are narrower
HEIGHT = 0.8
PATH = "critical path"
PLOTS = (".png", ".svg", ".html")


def plot(thing: Any, **options: Any) -> Any:
    """Return the figure of a result, a `matplotlib.figure.Figure`.

    Raises `DaydreamError` if matplotlib is not installed.
    """
    _needs_matplotlib("notebook")
    figure = _draw(thing, **options)
    # A figure without pyplot has no window and no global state, but notebooks show it only if it is told how.
    figure._repr_png_ = lambda: _file_of(figure, "png", dpi=110)
    return figure


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise `DaydreamError` before the work begins if a plot of that name cannot be drawn."""
    if not os.fspath(path).endswith(PLOTS):
        suffixes = ", ".join(PLOTS)
        raise OutputError(
            f"{os.fspath(path)} is not a plot format; name a file that ends in {suffixes}"
        )
    _needs_matplotlib("plot")


def draw(scaling: Scaling, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write throughput and step time over the number of workers; the same file for the same input.

    Raises `DaydreamError` if that fails, or the file exists and `force` is not given.
    """
    from matplotlib import rc_context

    from daydream.report.page import page

    check_plot(path)
    name = os.fspath(path)
    with rc_context({"svg.hashsalt": "daydream"}):
        form: dict[str, Any] = {} if name.endswith(".png") else {"metadata": {"Date": None}}
        content = _file_of(
            _scaling(scaling),
            "svg" if form else "png",
            dpi=150,
            **form,
        )
    if name.endswith(".html"):
        svg = content.decode()
        content = page(scaling, drawing=svg[svg.index("<svg") :]).encode()
    write_whole(name, lambda temporary: Path(temporary).write_bytes(content), force=force)


def _needs_matplotlib(extra: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError("matplotlib", extra)


def _file_of(figure: Any, form: str, **options: Any) -> bytes:
    file = BytesIO()
    figure.savefig(file, format=form, **options)
    return file.getvalue()


@singledispatch
def _draw(thing: object) -> Any:
    raise TypeError(f"cannot draw a {type(thing).__name__}")


@_draw.register
def _prediction(found: Prediction) -> Any:
    then = "cannot be predicted"
    if found.predicted_ns is not None:
        gain = speedup(found.replayed_ns, found.predicted_ns)
        then = f"{time_text(found.predicted_ns)} predicted, {gain}"
    title = f"{found.optimization}: {time_text(found.replayed_ns)} replayed, {then}"
    return _breakdowns(title, found.breakdowns(), ("before", "after"))


@_draw.register
def _difference(found: Difference) -> Any:
    one = found.before
    two = found.after
    names = sides_of(found)
    title = f"{names[0]} {time_text(one.simulated_ns)}, {names[1]} {time_text(two.simulated_ns)}"
    if not one.prediction:
        title += f", {speedup(one.simulated_ns, two.simulated_ns)}"
    return _breakdowns(title, (one.breakdown, two.breakdown), names)


def _breakdowns(title: str, sides: tuple[Parts, Parts], names: tuple[str, str]) -> Any:
    """Return bars of where a step's time goes, by cause on the left, by phase on the right.

    The names of causes stand on the color of what they make the step wait for.
    """
    from matplotlib.patches import Patch

    bounds = {cause.label: cause.bound for cause in PathCause}
    awaited: dict[str, Any] = {}
    figure = _figure(11, 4.5)
    figure.suptitle(printable(title))
    table = breakdown(*sides, names=names)
    unit, size, digits = scale(table.whole)
    for axes, part in zip(figure.subplots(1, 2), table.split()[:2], strict=True):
        rows = [row.cells for row in part.rows if row.cells[0] != STEP]
        places = np.arange(len(rows))
        for side, color in ((1, BEFORE), (2, AFTER)):
            offset = 0.4 * side - 0.6
            values = np.array([row[side] for row in rows], float) / size
            bars = axes.barh(
                places + offset,
                values,
                0.4,
                label=names[side - 1],
                color=color,
            )
            axes.bar_label(
                bars,
                fmt=f"{{:,.{digits}f}}",
                padding=3,
                fontsize=8,
                color="0.3",
            )
        labels = [printable(str(row[0])) for row in rows]
        title = part.columns[0].title
        axes.set(
            yticks=places,
            yticklabels=labels,
            xlabel=f"{unit} of the step",
            title=title,
        )
        axes.invert_yaxis()
        axes.margins(x=0.12)
        _tidy(axes)
        for label in axes.get_yticklabels():
            if label.get_text() in bounds:
                bound = bounds[label.get_text()]
                label.set_bbox(
                    {"facecolor": bound.light, "edgecolor": "none", "alpha": 0.6, "pad": 1.5}
                )
                awaited[f"waits for {bound.awaited}"] = Patch(color=bound.light, alpha=0.6)
    handles, labels = axes.get_legend_handles_labels()
    awaited = {**dict(zip(labels, handles, strict=True)), **awaited}
    figure.legend(
        awaited.values(),
        awaited.keys(),
        loc="outside lower center",
        ncols=len(awaited),
        frameon=False,
        fontsize=8,
    )
    return figure


@_draw.register
def _ranking(ranking: Ranking) -> Any:
    figure = _figure(12, 5)
    left, right = figure.subplots(1, 2)
    best = [each for each in ranking.optimizations if each.gains][:MOST_BARS][::-1]
    unit, size, _ = scale(ranking.replayed_ns)
    times = [(each.predicted_low_ns, each.predicted_ns, each.predicted_high_ns) for each in best]
    low, after, high = np.array(times, float).reshape(-1, 3).T / size
    left.barh(
        [_name(each.optimization) for each in best],
        after,
        xerr=[after - low, high - after],
        color=AFTER,
        ecolor="0.25",
    )
    left.axvline(
        ranking.replayed_ns / size,
        color="0.4",
        linestyle="--",
        linewidth=1,
    )
    left.set(xlabel=f"predicted step, {unit} (dashed: now)", title="optimizations")
    for place, each in enumerate(best):
        left.annotate(
            speedup(each.replayed_ns, each.predicted_ns),
            (0, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color="white",
            fontsize=8,
        )
    _tidy(left)
    _draw_curves(right, ranking.curves)
    return figure


@_draw.register
def _curves(curves: Curves) -> Any:
    figure = _figure(8, 4.5)
    _draw_curves(figure.subplots(), curves)
    return figure


def _draw_curves(axes: Any, curves: Sequence[Curve]) -> None:
    """Draw the step against what is left of the time of each part; a knee is marked with a ring."""
    shown = [curve for curve in curves if curve.knee is not None][:MOST_CURVES]
    axes.set(title="the step if a part took less time", xlabel="time that the part takes, % of now")
    if not shown:
        axes.text(
            0.5,
            0.5,
            "no part makes the step shorter",
            ha="center",
            transform=axes.transAxes,
        )
        return
    unit, size, _ = scale(shown[0].step_ns[0])
    for curve in shown:
        name = f"{'CPU' if curve.sort == 'cpu' else curve.sort} {_name(curve.name)}"
        step = [ns / size for ns in curve.step_ns]
        (line,) = axes.plot(
            [100 * each for each in curve.factors],
            step,
            marker=".",
            label=name,
        )
        if curve.knee:  # at 0 it pays to the end
            axes.plot(
                100 * curve.knee,
                step[curve.factors.index(curve.knee)],
                "o",
                markersize=10,
                fillstyle="none",
                color=line.get_color(),
            )
    axes.set_ylabel(f"step, {unit}")
    axes.invert_xaxis()
    axes.legend(
        fontsize=8,
        frameon=False,
        title="ring: beyond it, more speed saves little",
        title_fontsize=8,
    )
    _tidy(axes)


@_draw.register
def _scaling(scaling: Scaling) -> Any:
    """Return throughput and the ideal on the left, where a step's time goes on the right."""
    rows = scaling.rows
    workers = [row.workers for row in rows]
    figure = _figure(11, 4)
    left, right = figure.subplots(1, 2)
    left.plot(
        workers,
        workers,
        color="0.7",
        linestyle="--",
        label="ideal",
    )
    left.plot(
        workers,
        [row.throughput for row in rows],
        marker="o",
        label="predicted",
    )
    left.set(
        xscale="log",
        yscale="log",
        xlabel="workers",
        ylabel="throughput, times that of one worker",
    )
    for axis in (left.xaxis, left.yaxis):
        axis.set_ticks(workers, labels=[f"{number:,}" for number in workers])
        axis.set_ticks([], minor=True)
    left.legend()
    parts = {
        "one worker's step": [scaling.alone_ns] * len(rows),
        "overhead": [row.overhead_ns for row in rows],
        "exposed transfers": [row.exposed_ns for row in rows],
        "waiting for slower workers": [row.waiting_ns for row in rows] if scaling.waits else [],
    }
    below = np.zeros(len(rows))
    for label, times in parts.items():
        if times:
            high = np.array(times) / 1e6
            right.bar(
                range(len(rows)),
                high,
                bottom=below,
                label=label,
            )
            below += high
    right.set(xlabel="workers, and their efficiency", ylabel="step time, ms")
    labels = [f"{row.workers:,}\n{row.efficiency:.0%}" for row in rows]
    right.set_xticks(range(len(rows)), labels)
    right.set_ylim(0, 1.3 * below.max())
    right.legend(loc="upper center", ncols=2, frameon=False)
    return figure


# A step: a row a lane, and the critical path below them


@_draw.register
def _replay(replay: Replay, **options: Any) -> Any:
    return _timeline(replay.timeline, **{"copy": replay.settled.copy, **options})


@_draw.register
def _timeline(timeline: Timeline, *, step: int | None = None, copy: int | None = None) -> Any:
    """Draw one step, by default the median one: how busy each lane is, in the colors of phases.

    Raises `GraphError` if the timeline has no such step.
    """
    from matplotlib.patches import Patch

    times = timeline.step_times()
    graph = timeline.graph
    copy = min((each for each, _ in times), default=0) if copy is None else copy
    there = sorted((ns, number) for (each, number), ns in times.items() if each == copy)
    if not there:
        raise GraphError("there is nothing to draw: the timeline covers no step")
    step = there[(len(there) - 1) // 2][1] if step is None else step
    if (copy, step) not in times:
        numbers = ", ".join(map(str, sorted(number for _, number in there)))
        raise GraphError(f"unknown step {step}; the covered steps are {numbers}")
    window = simulated_window(timeline, copy, step)
    begin, end = window.typical
    spans = simulated_in(timeline, copy, window)
    spans = spans.take((spans.start_ns + spans.duration_ns > begin) & (spans.start_ns < end))
    busy = np.bincount(spans.lane, spans.duration_ns, len(graph.lanes))
    lanes = [each for each in np.argsort(-busy, kind="stable")[:MOST_LANES].tolist() if busy[each]]
    lanes.sort(key=lambda each: (graph.lanes[each].rank, graph.lanes[each].on_device, each))
    rows = []
    for lane in lanes:
        here = spans.take(spans.lane == lane)
        rows.append((here.start_ns, here.start_ns + here.duration_ns, here.phase))
    path = timeline.path_to(copy, step)
    start = np.maximum(timeline.start_ns[path.task] - window.begin_ns, begin)
    phase = graph.columns["phase"][timeline.task[path.task]]
    rows.append((start, start + path.task_ns, phase))

    unit, size, _ = scale(end - begin)
    figure = _figure(11, 5)
    shown = set()
    axes = figure.subplots()
    edges = np.linspace(begin, end, BINS + 1)
    for row, (starts, ends, phases) in enumerate(rows):
        low = np.full(BINS, row + HEIGHT / 2)
        for code in np.unique(phases).tolist():
            name = PHASES[code] if code >= 0 else "unknown"
            high = low - HEIGHT * _busy(starts[phases == code], ends[phases == code], edges)
            color = PHASE_COLORS[name]
            axes.stairs(
                high,
                (edges - begin) / size,
                baseline=low,
                fill=True,
                color=color,
            )
            low = high
            shown.add(name)
    names = [shortened(printable(graph.lanes[lane].name), 22) for lane in lanes]
    about = f"{unit} since the step before was complete; the height is how much of the time a lane works"
    title = f"{printable(str(graph.steps[step]['name']))}, {time_text(end - begin)}"
    axes.set(
        yticks=range(len(rows)),
        yticklabels=[*names, PATH],
        xlabel=about,
        title=title,
    )
    axes.set(xlim=(0, (end - begin) / size), ylim=(len(lanes) + 0.6, -0.6))
    axes.axhline(len(lanes) - 0.5, color="0.6", linewidth=0.8)
    _tidy(axes)
    colors = {name: color for name, color in PHASE_COLORS.items() if name in shown}
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    return figure


def _busy(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the share of each bin that is taken by intervals, of which no two overlap."""
    order = np.argsort(start, kind="stable")
    times = np.stack([start[order], end[order]], axis=1).ravel()
    lengths = np.stack([np.zeros(len(start), np.int64), (end - start)[order]], axis=1)
    if not len(times):
        return np.zeros(len(edges) - 1)
    return np.diff(np.interp(edges, times, np.cumsum(lengths))) / np.diff(edges)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    return Figure(figsize=(width, height), layout="constrained")


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _name(name: str) -> str:
    return shortened(printable(name), NAME_WIDTH)
