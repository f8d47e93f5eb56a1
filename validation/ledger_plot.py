"""The ledger as a picture: each change's predicted step beside the measured one, and its error."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ledger import Entry, Ledger

# The picture takes the reader's light or dark colors: these stand for text and paper until it is written.
TEXT, PAPER = "#010203", "#fdfeff"
STYLE = (
    "<style>svg{--text:#24292f;--paper:#ffffff}"
    "@media(prefers-color-scheme:dark){svg{--text:#c9d1d9;--paper:#0d1117}}</style>"
)
COLORS = ("#3b82c4", "#e07b39", "#3aa06a", "#b565c9", "#c9a227", "#d9534f", "#4fb3bf", "#8c8c8c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LEGEND_COLUMNS = 6


@dataclass(frozen=True)
class Row:
    """One change of one model: medians over its recordings, ratios of the step after to the step before."""

    group: str
    model: str
    title: str
    measured: float
    predicted: float
    errors: tuple[float, ...]
    half_width: float
    paper: float | None = None


def rows_of(found: Ledger) -> list[Row]:
    """Return what is drawn: every change that has a prediction."""
    rows = []
    for device in found.recorded:
        known = [one for one in device.entries if one.predicted is not None]
        for model, title in dict.fromkeys((one.model, one.title) for one in known):
            rows.append(_row(device.name, [one for one in known if (one.model, one.title) == (model, title)]))
    for pair in found.public:
        if pair.pair is not None:
            error = pair.predicted_ns / pair.measured_ns - 1
            width = (pair.half_width or 0.0) * pair.predicted_ns / pair.before_ns
            model = pair.title.partition(",")[0] if "," in pair.title else "other public pairs"
            rows.append(
                Row(
                    "public pairs", model, pair.title, pair.measured_ns / pair.before_ns,
                    pair.predicted_ns / pair.before_ns, (error,), width,
                )
            )  # fmt: skip
    return rows


def _row(group: str, found: Sequence[Entry]) -> Row:
    predicted = median(one.predicted or 0.0 for one in found)
    papers = [one.paper / one.measured - 1 for one in found if one.paper is not None]
    return Row(
        group, found[0].model, found[0].title, median(one.measured for one in found), predicted,
        tuple(one.error for one in found), median((one.high - one.low) / 2 for one in found),
        median(papers) if papers else None,
    )  # fmt: skip


def write(found: Ledger, path: Path) -> None:
    """Write the picture, or say that matplotlib is missing and leave the old one."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"{path.name} is left as it is: drawing it needs matplotlib", file=sys.stderr)
        return
    path.write_text(drawn(rows_of(found)), encoding="utf-8")


def drawn(rows: Sequence[Row]) -> str:
    """Return the picture as SVG; the same for the same rows."""
    from matplotlib import rc_context

    file = BytesIO()
    settings: dict[Any, Any] = {
        "svg.hashsalt": "daydream", "svg.fonttype": "none", "font.size": 9, "text.color": TEXT,
        "axes.labelcolor": TEXT, "axes.edgecolor": TEXT, "axes.facecolor": "none", "xtick.color": TEXT,
        "ytick.color": TEXT, "axes.spines.top": False, "axes.spines.right": False,
    }  # fmt: skip
    with rc_context(settings):
        _figure(rows).savefig(file, format="svg", facecolor=PAPER, metadata={"Date": None})
    svg = file.getvalue().decode()
    svg = svg.replace(TEXT, "var(--text)").replace(PAPER, "var(--paper)")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", "sans-serif", svg)
    svg = re.sub(r"(<svg[^>]*>)", rf"\1{STYLE}", svg, count=1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _figure(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row.model for row in rows))
    look = {
        model: (COLORS[place % len(COLORS)], MARKERS[(place + place // len(COLORS)) % len(MARKERS)])
        for place, model in enumerate(models)
    }
    titles = list(dict.fromkeys((row.group, row.title) for row in rows))[::-1]
    figure = Figure(figsize=(11, 2 + 0.2 * len(titles)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _against(left, rows, look)
    _errors(right, rows, titles, look)
    handles, labels = left.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(
        by_label.values(), by_label.keys(), loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False
    )
    return figure


def _against(axes: Any, rows: Sequence[Row], look: Mapping[str, tuple[str, str]]) -> None:
    """Draw predicted over measured speed-ups, with their ranges."""
    for row in rows:
        color, marker = look[row.model]
        low = row.predicted + row.half_width
        high = max(row.predicted - row.half_width, 0.05 * row.predicted)
        speedup = 1 / row.predicted
        axes.errorbar(
            1 / row.measured, speedup, yerr=[[speedup - 1 / low], [1 / high - speedup]], color=color,
            marker=marker, markersize=5, elinewidth=0.8, linestyle="none", alpha=0.85, label=row.model,
        )  # fmt: skip
    ends = [1 / max(row.measured for row in rows) * 0.85, 1 / min(row.measured for row in rows) * 1.18]
    axes.plot(ends, ends, color=TEXT, linewidth=0.8, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=ends, xlabel="measured speed-up", ylabel="predicted speed-up")
    axes.set_title("Predicted over measured, with the range of 90 %", fontsize=10)
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10) if ends[0] <= tick <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[f"{tick:g}x" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.grid(color=TEXT, alpha=0.12)


def _errors(
    axes: Any, rows: Sequence[Row], titles: Sequence[tuple[str, str]], look: Mapping[str, tuple[str, str]]
) -> None:
    """Draw the error of each change, a line a change: the median recording, and how far the others are."""
    place = {title: number for number, title in enumerate(titles)}
    members: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        members.setdefault((row.group, row.title), []).append(row.model)
    for row in rows:
        color, marker = look[row.model]
        mates = members[row.group, row.title]
        shift = (mates.index(row.model) - (len(mates) - 1) / 2) * 0.16
        at = place[row.group, row.title] - shift
        axes.plot(
            [100 * min(row.errors), 100 * max(row.errors)], [at, at], color=color, linewidth=1, alpha=0.6
        )
        axes.plot(100 * median(row.errors), at, color=color, marker=marker, markersize=4.5, linestyle="none")
        if row.paper is not None:
            axes.plot(
                100 * row.paper,
                at,
                color=color,
                marker=marker,
                markersize=4.5,
                linestyle="none",
                fillstyle="none",
            )
    axes.axvline(0, color=TEXT, linewidth=0.8)
    widest = (
        np.ceil(max(abs(100 * error) for row in rows for error in (*row.errors, row.paper or 0.0)) / 5) * 5
    )
    axes.axvspan(-4, 4, color="#8c8c8c", alpha=0.18, linewidth=0)
    axes.set_xlim(-widest, widest)
    axes.set_ylim(-0.7, len(titles) - 0.3)
    axes.set_yticks(range(len(titles)), labels=[title for _, title in titles], fontsize=8)
    axes.set_xlabel("error of the predicted step, %")
    axes.set_title("Error, that of single recordings (line), paper's model (hollow)", fontsize=10)
    axes.grid(axis="x", color=TEXT, alpha=0.12)
