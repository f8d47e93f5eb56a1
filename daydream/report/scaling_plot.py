"""How a trace scales as a plot: PNG, SVG, or a page that holds it. Needs matplotlib."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError, OutputError
from daydream.files.atomic import write_whole
from daydream.report.html.page import page

if TYPE_CHECKING:
    from daydream.predict.scaling import Scaling

PLOTS = (".png", ".svg", ".html")


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise `DaydreamError` before the work begins if a plot of that name cannot be drawn."""
    import importlib.util

    if not os.fspath(path).endswith(PLOTS):
        raise OutputError(
            f"{os.fspath(path)} is not a plot format; name a file that ends in {', '.join(PLOTS)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise DaydreamError(
            "a plot needs matplotlib, which is not installed: pip install 'daydream[plot]'"
        )


def draw(scaling: Scaling, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write throughput and step time over the number of workers.

    Raises `DaydreamError` if that fails, or the file exists and `force` is not given.
    """
    check_plot(path)
    name = os.fspath(path)
    if name.endswith(".png"):
        content = _drawn(scaling, "png")
    elif name.endswith(".svg"):
        content = _drawn(scaling, "svg")
    else:
        svg = _drawn(scaling, "svg").decode()
        content = page(scaling, drawing=svg[svg.index("<svg") :]).encode()
    write_whole(name, lambda temporary: Path(temporary).write_bytes(content), force=force)


def _drawn(scaling: Scaling, form: str) -> bytes:
    """Return the picture's file; the same for the same input."""
    from matplotlib import rc_context

    file = BytesIO()
    with rc_context({"svg.hashsalt": "daydream"}):
        figure_of(scaling).savefig(
            file, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None
        )
    return file.getvalue()


def figure_of(scaling: Scaling) -> Any:
    """Return the drawing: throughput beside the ideal on the left, where a step's time goes on the right."""
    from matplotlib.figure import Figure  # without pyplot: no window, no global state

    workers = [row.workers for row in scaling.rows]
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(workers, workers, color="0.7", linestyle="--", label="ideal")
    left.plot(workers, [row.throughput for row in scaling.rows], marker="o", label="predicted")
    left.set(
        xscale="log", yscale="log", xlabel="workers", ylabel="throughput, times that of one worker"
    )
    for axis in (left.xaxis, left.yaxis):
        axis.set_ticks(workers, labels=[f"{number:,}" for number in workers])
        axis.set_ticks([], minor=True)
    left.legend()
    places, below = range(len(workers)), [0.0] * len(workers)
    for label, parts in _parts(scaling).items():
        right.bar(places, parts, bottom=below, label=label)
        below = [a + b for a, b in zip(below, parts, strict=True)]
    right.set(xlabel="workers, and their efficiency", ylabel="step time, ms", xticks=list(places))
    right.set_xticklabels([f"{row.workers:,}\n{row.efficiency:.0%}" for row in scaling.rows])
    right.set_ylim(0, 1.3 * max(below))
    right.legend(loc="upper center", ncols=2, frameon=False)
    return figure


def _parts(scaling: Scaling) -> dict[str, list[float]]:
    """Return where the time of each step goes, in ms."""
    parts = {"one worker's step": [scaling.alone_ns / 1e6 for _ in scaling.rows]}
    parts["overhead"] = [row.overhead_ns / 1e6 for row in scaling.rows]
    parts["exposed transfers"] = [row.exposed_ns / 1e6 for row in scaling.rows]
    if scaling.waits:
        parts["waiting for slower workers"] = [row.waiting_ns / 1e6 for row in scaling.rows]
    return parts
