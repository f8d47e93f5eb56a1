"""The roofline of a recording as a picture: kernels by FLOP a byte and FLOP a second, as large as their time.

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
    from daydream.costs.devices import Device
    from daydream.graph.graph import Graph

HELP = (
    "Each circle is a kernel in a layer, its area the time that it takes; hover for its name. Lines "
    "are what the device can do at best: memory bounds below the slope, arithmetic below a flat line."
)
NO_PEAKS = "No picture: the peaks of the GPU are not known."
NO_WORK = "No picture: of no kernel that calculates are FLOP and bytes known. Record shapes, or give --counters."
ROOM = 0.12  # powers of ten left of and below the lowest point, so that its circle is whole
UNTYPED = "float32"  # whose line is drawn where no kernel's type is known
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 410, 64, 44, 26, 92
MOST = 400  # circles: those that take longest
LARGEST, SMALLEST = 22.0, 2.0  # radii
COLORS = {"compute": "#b5651d", "memory": "#2b7bba", "latency": "#8a8a8a"}
WORDS = {"compute": "arithmetic", "memory": "memory", "latency": "neither"}


class Point(NamedTuple):
    """Kernels of one name in one layer: FLOP a byte, FLOP a ns, their time, and what bounds most of it."""

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
    return joined(
        element("p", _covered(points, int(kernels.duration_ns.sum())), class_="help"),
        _svg(points, device, used, reached_l2(graph)),
    )


def points_of(graph: Graph, kernels: Selection, device: Device) -> list[Point]:
    """Return kernels of known FLOP and bytes, by name and layer, those first that take longest."""
    amounts, kind = work(graph, kernels), bound(graph, kernels, device=device).kind
    time, rule = kernels.duration_ns, rule_of(graph, kernels)
    found: dict[tuple[str, str], list[int]] = {}
    known = (amounts.flop > 0) & (amounts.nbytes > 0) & (time > 0)
    names, layers = kernels.name.tolist(), kernels.layer.tolist()
    for at in np.flatnonzero(known).tolist():
        found.setdefault((names[at] or "", layers[at] or ""), []).append(at)
    points = []
    for (name, layer), mine in found.items():
        flop, nbytes, ns = (
            int(column[mine].sum()) for column in (amounts.flop, amounts.nbytes, time)
        )
        kinds = {each: int(time[mine][kind[mine] == each].sum()) for each in COLORS}
        points.append(
            Point(
                name, layer, len(mine), flop / nbytes, flop / ns, ns,
                max(kinds, key=lambda each: kinds[each]),
                "counters" if (rule[mine] == "counters").any() else "shapes",
            )
        )  # fmt: skip
    return sorted(points, key=lambda point: (-point.ns, point.name, point.layer))


def _covered(points: list[Point], total: int) -> str:
    """Return how much of the kernels' time is in the picture, and what it is known by."""
    shares = {
        rule: sum(point.ns for point in points if point.rule == rule) / total
        for rule in ("counters", "shapes")
    }
    by = [f"{percent(share)} by {rule}" for rule, share in shares.items() if share]
    shown = (
        ""
        if len(points) <= MOST
        else f" The {MOST} circles that take longest of {len(points):,} are drawn."
    )
    return (
        f"FLOP and bytes are known of {percent(sum(shares.values()))} of the kernels' time: {', '.join(by)}. "
        f"Kernels that only move bytes, or of which one of the two is unknown, are not here.{shown}"
    )


class _Scale:
    """Two logarithmic axes that hold all points and the ridge."""

    def __init__(self, points: list[Point], device: Device, formats: list[str]) -> None:
        peaks = [device.peak(name) for name in formats]
        x = [log10(point.intensity) for point in points] + [
            log10(peak / device.bandwidth) for peak in peaks
        ]
        y = [log10(point.rate) for point in points] + [log10(peak) for peak in peaks]
        self.x0, self.y0 = floor(min(x) - ROOM), floor(min(y) - ROOM)
        self.x1, self.y1 = max(ceil(max(x)), self.x0 + 1), max(ceil(max(y)), self.y0 + 1)

    def x(self, value: float) -> float:
        part = (log10(value) - self.x0) / (self.x1 - self.x0)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        part = (log10(value) - self.y0) / (self.y1 - self.y0)
        return round(HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP), 1)


def _svg(
    points: list[Point], device: Device, formats: list[str], cache: float | None = None
) -> Html:
    """Return the drawing; `cache` is the highest rate through L2 that was counted, GB/s."""
    scale, whole = _Scale(points, device, formats), max(point.ns for point in points)
    circles = [
        element(
            "circle", element("title", _said(point)), cx=str(scale.x(point.intensity)),
            cy=str(scale.y(point.rate)), r=f"{max(LARGEST * (point.ns / whole) ** 0.5, SMALLEST):.1f}",
            fill=COLORS[point.kind], fill_opacity="0.55", stroke=COLORS[point.kind],
        )
        for point in points[:MOST]
    ]  # fmt: skip
    return element(
        "svg", _axes(scale), *_roofs(scale, device, formats, cache), *circles, _legend(points),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="roofline", style="width: 100%; max-width: 60rem",
        aria_label=f"Roofline of a {device.name}", font_size="11", fill="currentColor",
    )  # fmt: skip


def _said(point: Point) -> str:
    layer = f"\nlayer {point.layer}" if point.layer else "\nlayer unknown"
    return (
        f"{point.name}{layer}\n{counted(point.kernels, 'kernel')}, {time_text(point.ns)}, "
        f"known by {point.rule}\n"
        f"{point.intensity:.3g} FLOP/B, {point.rate / 1e3:.3g} TFLOP/s, bound by {WORDS[point.kind]}"
    )


def _axes(scale: _Scale) -> Html:
    right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for power in range(scale.x0, scale.x1 + 1):
        x = scale.x(10.0**power)
        parts += [
            _line(x, TOP, x, low, faint=True),
            _text(x, low + 15, f"{10.0**power:g}", "middle"),
        ]
    for power in range(scale.y0, scale.y1 + 1):
        y = scale.y(10.0**power)
        parts += [
            _line(LEFT, y, right, y, faint=True),
            _text(LEFT - 6, y + 4, f"{10.0 ** (power - 3):g}", "end"),
        ]
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, "FLOP a byte", "middle"))
    parts.append(_text(LEFT, TOP - 10, "TFLOP/s", "middle"))
    return element("g", *parts)


def _roofs(scale: _Scale, device: Device, formats: list[str], cache: float | None) -> list[Html]:
    """Return the slope of memory, and a flat line for each number format that a kernel calculates in.

    Above memory's lies the slope of L2, dashed, where it was counted to give more.
    """
    highest = max(device.peak(name) for name in formats)
    begin = max(10.0**scale.x0, 10.0**scale.y0 / device.bandwidth)
    slope = [begin, highest / device.bandwidth]
    found = [_line(*(each for x in slope for each in (scale.x(x), scale.y(x * device.bandwidth))))]
    if cache is not None and cache > device.bandwidth:
        begin, end = max(10.0**scale.x0, 10.0**scale.y0 / cache), highest / cache
        if begin < end:
            ends = (scale.x(begin), scale.y(begin * cache), scale.x(end), scale.y(highest))
            found.append(_line(*ends, dashed=True))
            found.append(_text(ends[2] - 4, ends[3] - 5, "L2, as reached here", "end"))
    placed: list[float] = []
    for name in sorted(formats, key=device.peak, reverse=True):
        peak = device.peak(name)
        y = scale.y(peak)
        found.append(_line(scale.x(peak / device.bandwidth), y, WIDTH - RIGHT, y))
        label = y + 4 if not placed else max(y + 4, placed[-1] + 12)
        placed.append(label)
        found.append(_text(WIDTH - RIGHT + 4, label, name.replace("_", " "), "start"))
    return found


def _legend(points: list[Point]) -> Html:
    parts = []
    for place, kind in enumerate(
        kind for kind in COLORS if any(point.kind == kind for point in points)
    ):
        y = TOP + 10 + 15 * place
        parts.append(element("circle", cx=str(LEFT + 14), cy=str(y), r="5", fill=COLORS[kind]))
        parts.append(_text(LEFT + 24, y + 4, f"bound by {WORDS[kind]}", "start"))
    return element("g", *parts)


def _line(
    x0: float, y0: float, x1: float, y1: float, *, faint: bool = False, dashed: bool = False
) -> Html:
    return element(
        "line", x1=str(x0), y1=str(y0), x2=str(x1), y2=str(y1), stroke="currentColor",
        stroke_width="1" if faint else "1.5", stroke_opacity="0.12" if faint else "0.8",
        **({"stroke_dasharray": "5 4"} if dashed else {}),
    )  # fmt: skip


def _text(x: float, y: float, said: str, anchor: str) -> Html:
    return element("text", said, x=str(x), y=str(y), text_anchor=anchor)
