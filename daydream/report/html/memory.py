"""Memory in the HTML report: what is held over time, below the timeline, and who holds the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.memory.over_time import HeldOverTime, held_over_time
from daydream.memory.prediction import changed, worst_device
from daydream.memory.report import at_peak
from daydream.predict.memory import held_now
from daydream.report.html.elements import Cell, Html, Number, element, joined, sortable
from daydream.report.text.memory import amount_in, memory_headline, share_of
from daydream.report.text.peak_memory import memory_change, verdict
from daydream.text import memory_unit

if TYPE_CHECKING:
    from daydream.memory.result import DeviceMemory, MemoryReport
    from daydream.predict.prediction import Prediction
    from daydream.report.html.spans import Window
    from daydream.trace.trace import Trace

MOST_POINTS = 4_000  # of one line: more than pixels, and each keeps the highest value it stands for
HELP = (
    "What is allocated as the program asks for it; what was there before the recording counts where it is "
    "known. The chart moves with the timelines. Who holds the peak, by operator, layer and kind:"
)


def memory(report: MemoryReport, comparison: Prediction | None = None) -> Html:
    """Return the place of the chart, and for each device its peak and a table of who holds it.

    With a what-if also the predicted peak, on the device that comes out worst, and who holds it then; or
    why that is not known.
    """
    parts: list[str] = [element("div", id="memory-chart")]
    devices = sorted(report.devices, key=lambda each: each.device == "cpu")
    for place, device in enumerate(devices):
        recorded = memory_headline(device, named=True)
        parts.append(element("h3", recorded if comparison is None else f"As recorded: {recorded}"))
        parts.append(_holders(device, place))
    after = _after(comparison, len(devices)) if comparison is not None else ()
    return joined(*parts, *after)


def memory_card(comparison: Prediction) -> tuple[str, str, str] | None:
    """Return what the card of the peak says: its name, the peak then, and the change with whether it fits.

    None where the peak is not known.
    """
    told = comparison.memory
    if told is None:
        return None
    fits = verdict(told).removeprefix(", ")
    change = memory_change(told)
    figure = change.partition(" -> ")[2].partition(" (")[0] or change.partition(" (")[0]
    return "peak memory", figure, f"{change}{f'; {fits}' if fits else ''}"


def _after(comparison: Prediction, place: int) -> list[str]:
    """Return the predicted peak and who holds it, or why neither is known."""
    answer, trace = comparison.memory_answer, comparison.replay.graph.trace
    title = f"After {comparison.optimization}: "
    if answer.unsaid is not None:
        return [element("h3", f"{title}{answer.unsaid}")]
    if answer.memory is None or trace is None or comparison.memory_changes is None:
        return []
    held = changed(held_now(trace, comparison.replay.graph), comparison.memory_changes())
    said = f"{title}peak {memory_change(answer.memory)}{verdict(answer.memory)}"
    return [element("h3", said), _holders(at_peak(held, *worst_device(held)), place)]


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
