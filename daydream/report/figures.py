"""Results as matplotlib figures, for notebooks: `result.plot()`."""

from __future__ import annotations

import importlib.util
from functools import singledispatch
from io import BytesIO
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError
from daydream.predict.compare import Difference
from daydream.predict.curves import Curve, Curves
from daydream.predict.prediction import Prediction
from daydream.predict.rank import Ranking
from daydream.predict.replay import Replay
from daydream.predict.scaling import Scaling
from daydream.report.format import UNITS, printable, scale, shortened, speedup, time_text
from daydream.report.step_figure import draw_step
from daydream.report.views.breakdown import sections
from daydream.report.views.difference import sides_of
from daydream.simulate.critical_path import Bound, PathCause
from daydream.simulate.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BEFORE, AFTER = "#9aa5b1", "#1f6feb"
MOST_CURVES = 8
MOST_BARS = 12
NAME_WIDTH = 34


def plot(thing: Any, **options: Any) -> Any:
    """Return the figure of a result, a `matplotlib.figure.Figure`.

    Raises `DaydreamError` if matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise DaydreamError(
            "a figure needs matplotlib, which is not installed: pip install 'daydream[notebook]'"
        )
    figure = _draw(thing, **options)
    # A figure without pyplot has no window and no global state, but notebooks show it only if it is told how.
    figure._repr_png_ = lambda: _png(figure)
    return figure


def _png(figure: Any) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


@singledispatch
def _draw(thing: object) -> Any:
    raise TypeError(f"cannot draw a {type(thing).__name__}")


@_draw.register
def _comparison(comparison: Prediction) -> Any:
    title = f"{comparison.optimization}: {time_text(comparison.replayed_ns)} replayed, "
    if comparison.predicted_ns is None:
        title += "cannot be predicted"
    else:
        times = speedup(comparison.replayed_ns, comparison.predicted_ns)
        title += f"{time_text(comparison.predicted_ns)} predicted, {times}"
    return _breakdowns(title, *comparison.breakdowns(), ("before", "after"))


@_draw.register
def _difference(difference: Difference) -> Any:
    one, two = difference.before, difference.after
    names = sides_of(difference)
    title = f"{names[0]} {time_text(one.simulated_ns)}, {names[1]} {time_text(two.simulated_ns)}"
    if not one.prediction:
        title += f", {speedup(one.simulated_ns, two.simulated_ns)}"
    return _breakdowns(title, one.breakdown, two.breakdown, names)


@_draw.register
def _replay(replay: Replay, **options: Any) -> Any:
    return _timeline(replay.timeline, **{"copy": replay.settled.copy, **options})


@_draw.register
def _timeline(timeline: Timeline, *, step: int | None = None, copy: int | None = None) -> Any:
    return draw_step(_figure(11, 5), timeline, step, copy)


@_draw.register
def _ranking(ranking: Ranking) -> Any:
    figure = _figure(12, 5)
    left, right = figure.subplots(1, 2)
    steps = [each for each in ranking.optimizations if each.gains][:MOST_BARS][::-1]
    unit, size = _unit(ranking.replayed_ns)
    ends = [
        (step.predicted_ns or 0, step.predicted_low_ns, step.predicted_high_ns) for step in steps
    ]
    error = [
        [0.0 if low is None else (after - low) / size for after, low, _ in ends],
        [0.0 if high is None else (high - after) / size for after, _, high in ends],
    ]
    names = [_name(step.optimization) for step in steps]
    left.barh(names, [after / size for after, *_ in ends], xerr=error, color=AFTER, ecolor="0.25")
    left.axvline(ranking.replayed_ns / size, color="0.4", linestyle="--", linewidth=1)
    left.set(xlabel=f"predicted step, {unit} (dashed: now)", title="optimizations")
    for place, step in enumerate(steps):
        left.annotate(
            speedup(step.replayed_ns, step.predicted_ns), (0, place), xytext=(4, 0), va="center",
            textcoords="offset points", color="white", fontsize=8,
        )  # fmt: skip
    _tidy(left)
    _draw_curves(right, ranking.curves)
    return figure


@_draw.register
def _curves(curves: Curves) -> Any:
    figure = _figure(8, 4.5)
    _draw_curves(figure.subplots(), curves)
    return figure


@_draw.register
def _scaling(scaling: Scaling) -> Any:
    from daydream.report.scaling_plot import figure_of

    return figure_of(scaling)


def _breakdowns(
    title: str,
    before: Mapping[str, Mapping[str, int]],
    after: Mapping[str, Mapping[str, int]],
    names: tuple[str, str],
) -> Any:
    """Return bars of where a step's time goes, by cause on the left, by phase on the right.

    The names of causes stand on the colour of what they make the step wait for.
    """
    from matplotlib.patches import Patch

    bounds = {cause.label: cause.bound for cause in PathCause}
    awaited: dict[Bound, Any] = {}
    figure = _figure(11, 4.5)
    figure.suptitle(printable(title))
    # The parts of the text, so that both leave out and sum up the same.
    whole = max(sum(side["by_cause"].values()) for side in (before, after))
    unit, size, digits = scale(whole)
    for axes, (part, shown) in zip(
        figure.subplots(1, 2), sections((before, after), whole)[:2], strict=True
    ):
        labels = [printable(name) for name, _ in shown]
        for offset, column, name, color in ((-0.2, 0, names[0], BEFORE), (0.2, 1, names[1], AFTER)):
            values = [ns[column] / size for _, ns in shown]
            bars = axes.barh(
                [place + offset for place in range(len(shown))],
                values,
                0.4,
                label=name,
                color=color,
            )
            said = [f"{value:,.{digits}f}" for value in values]
            axes.bar_label(bars, labels=said, padding=3, fontsize=8, color="0.3")
        axes.set(
            yticks=range(len(labels)), yticklabels=labels, xlabel=f"{unit} of the step", title=part
        )
        axes.invert_yaxis()
        axes.margins(x=0.12)
        _tidy(axes)
        for label in axes.get_yticklabels():
            if label.get_text() in bounds:
                color = bounds[label.get_text()].light
                label.set_bbox({"facecolor": color, "edgecolor": "none", "alpha": 0.6, "pad": 1.5})
                awaited[bounds[label.get_text()]] = Patch(color=color, alpha=0.6)
    handles, labels = axes.get_legend_handles_labels()
    handles += awaited.values()
    labels += [f"waits for {bound.awaited}" for bound in awaited]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8
    )
    return figure


def _draw_curves(axes: Any, curves: Sequence[Curve]) -> None:
    """Draw the step against what is left of the time of each part; a knee is marked with a ring."""
    shown = [curve for curve in curves if curve.knee is not None][:MOST_CURVES]
    axes.set(title="the step if a part took less time", xlabel="time that the part takes, % of now")
    if not shown:
        axes.text(0.5, 0.5, "no part makes the step shorter", ha="center", transform=axes.transAxes)
        return
    unit, size = _unit(shown[0].step_ns[0])
    for curve in shown:
        share = [100 * factor for factor in curve.factors]
        sort = "CPU" if curve.sort == "cpu" else curve.sort
        (line,) = axes.plot(
            share,
            [ns / size for ns in curve.step_ns],
            marker=".",
            label=f"{sort} {_name(curve.name)}",
        )
        if curve.knee:  # at 0 it pays to the end
            at = curve.step_ns[curve.factors.index(curve.knee)] / size
            axes.plot(
                100 * curve.knee, at, "o", markersize=10, fillstyle="none", color=line.get_color()
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


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    return Figure(figsize=(width, height), layout="constrained")


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _unit(ns: float) -> tuple[str, int]:
    return UNITS[0] if ns >= 1e6 else UNITS[1]


def _name(name: str) -> str:
    return shortened(printable(name), NAME_WIDTH)
