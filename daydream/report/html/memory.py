"""Memory in the HTML report: what is held over time, below the timeline, and who holds the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.memory.over_time import HeldOverTime, held_over_time
from daydream.report.html.elements import Cell, Html, Number, element, joined, sortable
from daydream.report.text.memory import amount_in, memory_headline, share_of
from daydream.text import memory_unit

if TYPE_CHECKING:
    from daydream.memory.result import DeviceMemory, MemoryReport
    from daydream.report.html.spans import Window
    from daydream.trace.trace import Trace

MOST_POINTS = 4_000  # of one line: more than pixels, and each keeps the highest value it stands for
HELP = (
    "What is allocated as the program asks for it; what was there before the recording counts where it is "
    "known. The chart moves with the timelines. Who holds the peak, by operator, layer and kind:"
)


def memory(report: MemoryReport) -> Html:
    """Return the place of the chart, and for each device its peak and a table of who holds it."""
    parts: list[str] = [element("div", id="memory-chart")]
    devices = sorted(report.devices, key=lambda each: each.device == "cpu")
    for place, device in enumerate(devices):
        parts.append(element("h3", memory_headline(device, named=True)))
        parts.append(_holders(device, place))
    return joined(*parts)


def chart(trace: Trace, window: Window) -> dict[str, Any]:
    """Return the lines of the chart: times in ms from the window's begin, amounts in MiB."""
    lines = []
    for one in held_over_time(trace):
        begin = int(np.searchsorted(one.time_ns, window.begin_ns, side="right")) - 1
        end = int(np.searchsorted(one.time_ns, window.end_ns, side="right"))
        time = np.clip(one.time_ns[max(begin, 0) : end], window.begin_ns, window.end_ns) - window.begin_ns
        time, held = _thinned(time, one.held_bytes[max(begin, 0) : end], window.length_ns)
        lines.append({
            "name": _name(one), "ms": (time / 1e6).tolist(), "mib": np.round(held / 2**20, 3).tolist()
        })  # fmt: skip
    return {"length": window.length_ns / 1e6, "lines": lines}


def _name(one: HeldOverTime) -> str:
    return f"rank {one.rank} {one.device}" if one.rank else one.device


def _thinned(time: np.ndarray, held: np.ndarray, length_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points: of each stretch of time the highest, and the last."""
    if len(time) <= MOST_POINTS:
        return time, held
    stretch = time * (MOST_POINTS // 2) // max(length_ns, 1)
    last = np.append(stretch[1:] != stretch[:-1], True)
    first = np.flatnonzero(np.append(True, last[:-1]))
    highest = np.zeros(len(time), bool)
    order = np.lexsort((held, stretch))  # of each stretch the highest comes last
    highest[order[np.append(first[1:], len(time)) - 1]] = True
    keep = last | highest
    return time[keep], held[keep]


def _holders(device: DeviceMemory, place: int) -> Html:
    whole, unit = device.peak_allocated_bytes or 0, memory_unit(device.peak_allocated_bytes or 0)
    rows: list[list[Cell]] = [
        [
            each.name, each.kind.replace("_", " "),
            Number(amount_in(unit, each.bytes), each.bytes, each.bytes / whole if whole else None),
            Number(share_of(each.bytes, whole), each.bytes), Number(f"{each.count:,}", each.count),
            each.whatif or "", each.line or "",
        ]
        for each in device.holders
    ]  # fmt: skip
    head = ["held by", "kind", f"memory, {unit[0]}", "share", "blocks", "smaller with", "line"]
    return sortable(f"holders-{place}", head, rows, what="holders")
