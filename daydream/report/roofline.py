"""The roofline of a recording: kernels by FLOP per byte and FLOP per second, as large as their time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import distinct_rows
from daydream.costs.device.retime import rule_of
from daydream.costs.device.roofline import device_or_none
from daydream.costs.kernels import bound, number_formats, work
from daydream.costs.workload.counters import reached_l2
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL
from daydream.report.blocks import Block, Drawing, Text, Title, percent, printable

if TYPE_CHECKING:
    from daydream.costs.devices import Device
    from daydream.graph.graph import Graph

HELP = (
    "Each circle is a kernel in a layer, its area the time that it takes; hover for its name. Lines "
    "are the device's peaks: memory bounds below the slope, arithmetic below a flat line."
)
NO_PEAKS = "No picture: the peaks of the GPU are not known."
NO_WORK = "No picture: of no kernel that calculates are FLOP and bytes known. Record shapes, or give --counters."
UNTYPED = "float32"  # whose line is drawn where no kernel's type is known
MOST = 400  # circles: those that take longest
BOUNDS = "compute", "memory", "latency"


def roofline(graph: Graph) -> Iterator[Block]:
    """Return the picture and what it covers, or why there is none; nothing where there is no kernel."""
    device = device_or_none(graph)
    kernels = Selection(graph, np.flatnonzero((graph.columns["kind"] == KERNEL) & graph.alive))
    total = int(kernels.duration_ns.sum())
    if not total:
        return
    title = Title("Roofline", "roofline-section", HELP)
    points = [] if device is None else points_of(graph, kernels, device)
    if device is None or not points:
        yield title
        yield Text(NO_PEAKS if device is None else NO_WORK, aside=True)
        return
    amounts = work(graph, kernels)
    formats = number_formats(kernels, device)[(amounts.flop > 0) & (amounts.nbytes > 0)]
    used = sorted({name for name in formats.tolist() if name in device.tflops}) or [UNTYPED]
    drawn = {
        "device": device.name,
        "bandwidth": device.bandwidth,
        "cache": reached_l2(graph),
        "peaks": {name: device.peak(name) for name in used},
        "points": points[:MOST],
    }
    known = {"counters": 0.0, "shapes": 0.0}
    for point in points:
        known[point["by"]] += point["ns"] / total
    by = ", ".join(f"{percent(share)} by {rule}" for rule, share in known.items() if share)
    shown = f" The {MOST} circles that take longest of {len(points):,} are drawn."
    said = (
        f"FLOP and bytes are known of {percent(sum(known.values()))} of the kernels' time: {by}. "
        "Kernels that only move bytes, or of which one of the two is unknown, are not here."
        f"{shown if len(points) > MOST else ''}"
    )
    yield title
    yield Text(said, aside=True)
    yield Drawing("roofline", drawn)


def points_of(graph: Graph, kernels: Selection, device: Device) -> list[dict[str, Any]]:
    """Return kernels of known FLOP and bytes by name and layer, those first that take longest.

    Each has its `kernels`, `ns`, `intensity` in FLOP per byte, `rate` in FLOP per ns, the `kind` of what
    bounds most of its time, and `by` what its work is known.
    """
    amounts = work(graph, kernels)
    chosen = np.flatnonzero((amounts.flop > 0) & (amounts.nbytes > 0) & (kernels.duration_ns > 0))
    time = kernels.duration_ns[chosen]
    kind = bound(graph, kernels, device=device).kind[chosen]
    counted = rule_of(graph, kernels)[chosen] == "counters"
    columns = [graph.columns[name][kernels.ids[chosen]] for name in ("name", "layer")]
    first, group = distinct_rows(columns)

    def sums(values: np.ndarray) -> list[int]:
        found = np.zeros(len(first), np.int64)
        np.add.at(found, group, values)
        return list(found.tolist())

    names, layers = (
        [printable(["", *graph.texts[name]][code + 1]) for code in column[first].tolist()]
        for name, column in zip(("name", "layer"), columns, strict=True)
    )
    bounds = zip(*(sums(np.where(kind == each, time, 0)) for each in BOUNDS), strict=True)
    amount = [amounts.flop[chosen], amounts.nbytes[chosen], time, np.ones_like(time), counted]
    rows = zip(names, layers, bounds, *map(sums, amount), strict=True)
    points = [
        {
            "name": name,
            "layer": layer,
            "kernels": kernels,
            "intensity": flop / nbytes,
            "rate": flop / ns,
            "ns": ns,
            "kind": BOUNDS[of.index(max(of))],
            "by": "counters" if by_counters else "shapes",
        }
        for name, layer, of, flop, nbytes, ns, kernels, by_counters in rows
    ]
    return sorted(points, key=lambda point: (-point["ns"], point["name"], point["layer"]))
