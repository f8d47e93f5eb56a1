"""The changes as a picture: each one's predicted step beside the measured one, and its error."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from evaluate import CASES, PUBLIC, Row

# The picture takes the reader's light or dark colors: these stand for text and paper until it is written.
TEXT, PAPER = "#010203", "#fdfeff"
STYLE = (
    "<style>svg{--text:#24292f;--paper:#ffffff}"
    "@media(prefers-color-scheme:dark){svg{--text:#c9d1d9;--paper:#0d1117}}</style>"
)
COLORS = ("#3b82c4", "#e07b39", "#3aa06a", "#b565c9", "#c9a227", "#d9534f", "#4fb3bf", "#8c8c8c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LEGEND_COLUMNS = 6


class Drawn(NamedTuple):
    """One change of one model: medians over its recordings, ratios of the step after to the step before."""

    group: str
    model: str
    title: str
    measured: float
    predicted: float
    errors: tuple[float, ...]
    half_width: float


def drawn_of(rows: Sequence[Row]) -> list[Drawn]:
    """Return what is drawn: every change of a device of ours and of the public pairs that has a prediction."""
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for row in rows:
        if row["source"] in {*CASES["devices"], PUBLIC} and row["predicted"]:
            names = ("measured", "predicted", "low", "high", "before")
            values = {name: float(row[name] or row["predicted"]) for name in names}
            found.setdefault((row["source"], row["model"], row["change"]), []).append(values)
    return [
        Drawn(
            *names, median(one["measured"] / one["before"] for one in mine),
            median(one["predicted"] / one["before"] for one in mine),
            tuple(one["predicted"] / one["measured"] - 1 for one in mine),
            median((one["high"] - one["low"]) / 2 / one["before"] for one in mine),
        )
        for names, mine in found.items()
    ]  # fmt: skip


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the picture as SVG, the same for the same rows; without matplotlib the old one is left."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"{path.name} is left as it is: drawing it needs matplotlib", file=sys.stderr)
        return
    from matplotlib import rc_context

    file = BytesIO()
    settings: dict[Any, Any] = {
        "svg.hashsalt": "daydream", "svg.fonttype": "none", "font.size": 9, "text.color": TEXT,
        "axes.labelcolor": TEXT, "axes.edgecolor": TEXT, "axes.facecolor": "none", "xtick.color": TEXT,
        "ytick.color": TEXT, "axes.spines.top": False, "axes.spines.right": False,
    }  # fmt: skip
    with rc_context(settings):
        _figure(drawn_of(rows)).savefig(file, format="svg", facecolor=PAPER, metadata={"Date": None})
    svg = file.getvalue().decode().replace(TEXT, "var(--text)").replace(PAPER, "var(--paper)")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", "sans-serif", svg)
    svg = re.sub(r"(<svg[^>]*>)", rf"\1{STYLE}", svg, count=1)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


def _figure(drawn: Sequence[Drawn]) -> Any:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(one.model for one in drawn))
    look = {
        model: {"color": COLORS[place % 8], "marker": MARKERS[(place + place // 8) % 8], "linestyle": "none"}
        for place, model in enumerate(models)
    }
    titles = list(dict.fromkeys((one.group, one.title) for one in drawn))[::-1]
    figure = Figure(figsize=(11, 2 + 0.2 * len(titles)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _against(left, drawn, look)
    _errors(right, drawn, titles, look)
    handles, labels = left.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(
        by_label.values(), by_label.keys(), loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False
    )
    return figure


def _against(axes: Any, drawn: Sequence[Drawn], look: dict[str, Any]) -> None:
    """Draw predicted over measured speed-ups, with their intervals."""
    for one in drawn:
        low, high = one.predicted + one.half_width, max(one.predicted - one.half_width, 0.05 * one.predicted)
        speedup = 1 / one.predicted
        ends = ([speedup - 1 / low], [1 / high - speedup])
        style = {**look[one.model], "markersize": 5, "elinewidth": 0.8, "alpha": 0.85, "label": one.model}
        axes.errorbar(1 / one.measured, speedup, yerr=ends, **style)
    first, last = 0.85 / max(one.measured for one in drawn), 1.18 / min(one.measured for one in drawn)
    axes.plot([first, last], [first, last], color=TEXT, linewidth=0.8, linestyle="--")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(first, last),
        xlabel="measured speed-up",
        ylabel="predicted speed-up",
    )
    axes.set_title("Predicted over measured, with the 90% interval", fontsize=10)
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10) if first <= tick <= last]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[f"{tick:g}x" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.grid(color=TEXT, alpha=0.12)


def _errors(
    axes: Any, drawn: Sequence[Drawn], titles: Sequence[tuple[str, str]], look: dict[str, Any]
) -> None:
    """Draw the error of each change, a line a change: the median recording, and how far the others are."""
    for one in drawn:
        models = [other.model for other in drawn if (other.group, other.title) == (one.group, one.title)]
        shift = (models.index(one.model) - (len(models) - 1) / 2) * 0.16
        at = titles.index((one.group, one.title)) - shift
        ends = [100 * min(one.errors), 100 * max(one.errors)]
        axes.plot(ends, [at, at], color=look[one.model]["color"], linewidth=1, alpha=0.6)
        axes.plot(100 * median(one.errors), at, markersize=4.5, **look[one.model])
    axes.axvline(0, color=TEXT, linewidth=0.8)
    widest = np.ceil(max(abs(100 * error) for one in drawn for error in one.errors) / 5) * 5
    axes.axvspan(-4, 4, color="#8c8c8c", alpha=0.18, linewidth=0)
    axes.set_xlim(-widest, widest)
    axes.set_ylim(-0.7, len(titles) - 0.3)
    axes.set_yticks(range(len(titles)), labels=[title for _, title in titles], fontsize=8)
    axes.set_xlabel("error of the predicted step, %")
    axes.set_title("Error, and that of single recordings (line)", fontsize=10)
    axes.grid(axis="x", color=TEXT, alpha=0.12)
