"""The roofline of a recording as a picture: kernels by FLOP per byte and FLOP per second, as large as their time.

An SVG without a program: what a kernel is stands in its `title`, which browsers show on hover.
"""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.costs.device.retime import rule_of
from daydream.costs.device.roofline import device_or_none
from daydream.costs.kernels import bound, number_formats, work
from daydream.costs.workload.counters import reached_l2
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL
from daydream.report.format import percent, time_text
from daydream.report.html.render import Html, element, joined
from daydream.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from daydream.costs.devices import Device
    from daydream.graph.graph import Graph

HELP = (
    "Each circle is a kernel in a layer, its area the time that it takes; hover for its name. Lines "
    "are the device's peaks: memory bounds below the slope, arithmetic below a flat line."
)
NO_PEAKS = "No picture: the peaks of the GPU are not known."
NO_WORK = "No picture: of no kernel that calculates are FLOP and bytes known. Record shapes, or give --counters."
ROOM = 0.12  # powers of ten left of and below the lowest point, so that its circle is whole
LEAST = 0.001  # of the longest: kernels that take less do not widen the axes
UNTYPED = "float32"  # whose line is drawn where no kernel's type is known
WIDTH = 760
HEIGHT = 410
LEFT = 64
BOTTOM = 44
TOP = 26
RIGHT = 92
MOST = 400  # circles: those that take longest
LARGEST, SMALLEST = 22.0, 2.0  # radii
COLORS = {"compute": "#b5651d", "memory": "#2b7bba", "latency": "#8a8a8a"}
WORDS = {"compute": "arithmetic", "memory": "memory", "latency": "neither"}


class Point(NamedTuple):
    """Kernels of one name in one layer: FLOP per byte, FLOP per ns, their time, and what bounds most of it."""

    name: str
    layer: str
    kernels: int
    intensity: float
    rate: float
    ns: int
    kind: str
    rule: str


def picture(graph: Graph) -> Html:
    """Return the picture and what it covers, or why there is none; nothing where there is no kernel."""
    device = device_or_none(graph)
    kernels = Selection(graph, np.flatnonzero((graph.columns["kind"] == KERNEL) & graph.alive))
    if not len(kernels) or not kernels.duration_ns.sum():
        return Html()
    points = [] if device is None else points_of(graph, kernels, device)
    if device is None or not points:
        return element("p", NO_PEAKS if device is None else NO_WORK, class_="help")
    amounts = work(graph, kernels)
    formats = number_formats(kernels, device)[(amounts.flop > 0) & (amounts.nbytes > 0)]
    used = sorted({name for name in formats.tolist() if name in device.tflops}) or [UNTYPED]
    covered = element("p", _covered(points, int(kernels.duration_ns.sum())), class_="help")
    return joined(covered, _svg(points, device, used, reached_l2(graph)))


def points_of(graph: Graph, kernels: Selection, device: Device) -> list[Point]:
    """Return kernels of known FLOP and bytes, by name and layer, those first that take longest."""
    amounts = work(graph, kernels)
    kind = bound(graph, kernels, device=device).kind
    time = kernels.duration_ns
    rule = rule_of(graph, kernels)
    found: dict[tuple[str, str], list[int]] = {}
    names = kernels.name.tolist()
    layers = kernels.layer.tolist()
    known = (amounts.flop > 0) & (amounts.nbytes > 0) & (time > 0)
    for at in np.flatnonzero(known).tolist():
        found.setdefault((names[at] or "", layers[at] or ""), []).append(at)
    points = []
    for (name, layer), mine in found.items():
        sums = (int(column[mine].sum()) for column in (amounts.flop, amounts.nbytes, time))
        flop, nbytes, ns = sums
        kinds = {each: int(time[mine][kind[mine] == each].sum()) for each in COLORS}
        most = max(kinds, key=lambda each: kinds[each])
        by = "counters" if (rule[mine] == "counters").any() else "shapes"
        points.append(Point(name, layer, len(mine), flop / nbytes, flop / ns, ns, most, by))
    return sorted(points, key=lambda point: (-point.ns, point.name, point.layer))


def _covered(points: list[Point], total: int) -> str:
    """Return how much of the kernels' time is in the picture, and what it is known by."""
    known = {
        rule: sum(point.ns for point in points if point.rule == rule) / total
        for rule in ("counters", "shapes")
    }
    by = ", ".join(f"{percent(share)} by {rule}" for rule, share in known.items() if share)
    shown = f" The {MOST} circles that take longest of {len(points):,} are drawn."
    return (
        f"FLOP and bytes are known of {percent(sum(known.values()))} of the kernels' time: {by}. "
        "Kernels that only move bytes, or of which one of the two is unknown, are not here."
        f"{shown if len(points) > MOST else ''}"
    )


class _Axis:
    """A logarithmic axis that holds some values, from one place of the drawing to another."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        powers = [log10(value) for value in values]
        self.low = floor(min(powers) - ROOM)
        self.high = max(ceil(max(powers)), self.low + 1)
        self.begin = begin
        self.end = end

    def __call__(self, value: float) -> float:
        part = min(max((log10(value) - self.low) / (self.high - self.low), 0), 1)
        return round(self.begin + part * (self.end - self.begin), 1)

    def powers(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _svg(
    points: list[Point], device: Device, formats: list[str], cache: float | None = None
) -> Html:
    """Return the drawing; `cache` is the highest rate through L2 that was counted, GB/s.

    There is a flat line for each number format that a kernel calculates in. Above the slope of memory lies
    that of L2, dashed, where it was counted to give more.
    """
    longest = max(point.ns for point in points)
    peaks = {name: device.peak(name) for name in sorted(formats, key=device.peak, reverse=True)}
    main = [point for point in points if point.ns >= LEAST * longest]
    ridges = [peak / device.bandwidth for peak in peaks.values()]
    right = WIDTH - RIGHT
    low = HEIGHT - BOTTOM
    x = _Axis([*(point.intensity for point in main), *ridges], LEFT, right)
    y = _Axis([*(point.rate for point in main), *peaks.values()], low, TOP)
    parts = []
    for power in x.powers():
        parts.append(_line(x(power), TOP, x(power), low, faint=True))
        parts.append(_text(x(power), low + 15, f"{power:g}", "middle"))
    for power in y.powers():
        parts.append(_line(LEFT, y(power), right, y(power), faint=True))
        parts.append(_text(LEFT - 6, y(power) + 4, f"{power / 1000:g}", "end"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, "FLOP/byte", "middle"))
    parts.append(_text(LEFT, TOP - 10, "TFLOP/s", "middle"))

    highest = max(peaks.values())
    least = x.powers()[0]
    for rate in (device.bandwidth, cache or 0.0):
        begin = max(least, y.powers()[0] / max(rate, 1e-9))
        end = highest / max(rate, 1e-9)
        if rate >= device.bandwidth and begin < end:
            of_cache = rate != device.bandwidth
            parts.append(_line(x(begin), y(begin * rate), x(end), y(highest), dashed=of_cache))
            parts += [_text(x(end) - 4, y(highest) - 5, "L2, as reached here", "end")] * of_cache
    placed = 0.0
    for name, peak in peaks.items():
        parts.append(_line(x(peak / device.bandwidth), y(peak), right, y(peak)))
        placed = max(y(peak) + 4, placed + 12) if placed else y(peak) + 4
        parts.append(_text(right + 4, placed, name.replace("_", " "), "start"))
    for point in points[:MOST]:
        radius = max(LARGEST * (point.ns / longest) ** 0.5, SMALLEST)
        place = x(point.intensity), y(point.rate)
        parts.append(
            _circle(*place, radius, point.kind, element("title", _said(point)), faint=True)
        )
    kinds = {point.kind for point in points}
    for place_of, kind in enumerate(kind for kind in COLORS if kind in kinds):
        at = TOP + 10 + 15 * place_of
        parts.append(_circle(LEFT + 14, at, 5, kind))
        parts.append(_text(LEFT + 24, at + 4, f"bound by {WORDS[kind]}", "start"))
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_="roofline",
        style="width: 100%; max-width: 60rem",
        aria_label=f"Roofline of a {device.name}",
        font_size="11",
        fill="currentColor",
    )


def _said(point: Point) -> str:
    return (
        f"{point.name}\nlayer {point.layer or 'unknown'}\n"
        f"{counted(point.kernels, 'kernel')}, {time_text(point.ns)}, known by {point.rule}\n"
        f"{point.intensity:.3g} FLOP/B, {point.rate / 1e3:.3g} TFLOP/s, bound by {WORDS[point.kind]}"
    )


def _circle(
    x: float, y: float, radius: float, kind: str, *inside: Html, faint: bool = False
) -> Html:
    color = COLORS[kind]
    more = {"fill_opacity": "0.55", "stroke": color} if faint else {}
    place = {"cx": str(x), "cy": str(y), "r": f"{radius:.1f}"}
    return element("circle", *inside, **place, fill=color, **more)


def _line(
    x0: float, y0: float, x1: float, y1: float, *, faint: bool = False, dashed: bool = False
) -> Html:
    ends = {"x1": str(x0), "y1": str(y0), "x2": str(x1), "y2": str(y1)}
    return element(
        "line",
        **ends,
        stroke="currentColor",
        stroke_width="1" if faint else "1.5",
        stroke_opacity="0.12" if faint else "0.8",
        stroke_dasharray="5 4" if dashed else "",
    )


def _text(x: float, y: float, said: str, anchor: str) -> Html:
    return element("text", said, x=str(x), y=str(y), text_anchor=anchor)
