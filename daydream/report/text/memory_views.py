"""What operators touch, what layers need, what is held and not used: `daydream memory --by`."""

from __future__ import annotations

from collections.abc import Callable

from daydream.memory.footprints import LayerNeed, OperatorFootprint
from daydream.memory.idle import Idle
from daydream.memory.views import MemoryView
from daydream.report.text.layout import Headline, Screen, Table, fitting, layer_name, notes, printable
from daydream.report.text.memory import Unit, amount_in
from daydream.report.text.numbers import time_text
from daydream.report.text.trace_memory import holder_name
from daydream.text import bytes_text, memory_unit

MOST = (12, 10, 8, 6, 4)
ALL = 100
LINK = 25  # GB/s: PCIe 4.0 with 16 lanes, as copies of pinned memory reach it


def view_text(view: MemoryView, *, verbose: bool = False) -> Screen:
    """Return a view as text; `verbose` shows a hundred rows."""
    head, table = TEXTS[view.by]
    screens = (
        Screen([Headline(head(view)), "", table(view, most), *notes(view.notes)])
        for most in ((ALL,) if verbose else MOST)
    )
    return next(screens) if verbose else fitting(screens)


def _operators_head(view: MemoryView) -> str:
    largest = max((row.footprint_bytes for row in view.rows if isinstance(row, OperatorFootprint)), default=0)
    return _working_set(view, largest, "operator")


def _layers_head(view: MemoryView) -> str:
    largest = max((row.working_set_bytes for row in view.rows if isinstance(row, LayerNeed)), default=0)
    return _working_set(view, largest, "layer")


def _working_set(view: MemoryView, largest: int, what: str) -> str:
    return (
        f"{view.device}: no {what} touches more than {bytes_text(largest)}, of a peak of "
        f"{bytes_text(view.peak_bytes)}"
    )


def _idle_head(view: MemoryView) -> str:
    rows = [row for row in view.rows if isinstance(row, Idle)]
    movable = [row for row in rows if row.gigabytes_per_second <= LINK]
    return (
        f"{view.device}: {bytes_text(sum(row.bytes for row in movable))} of the peak of "
        f"{bytes_text(view.peak_bytes)} wait long enough to be moved out and back at {LINK} GB/s"
    )


def _operators(view: MemoryView, most: int) -> Table:
    unit = memory_unit(view.peak_bytes)
    rows = [
        [
            printable(row.name), _or_dash(unit, row.footprint_bytes), _or_dash(unit, row.asked_bytes),
            f"{row.calls:,}",
        ]
        for row in view.rows[:most] if isinstance(row, OperatorFootprint)
    ]  # fmt: skip
    return Table([[f"operator, {unit[0]}", "touches at most", "asks for", "calls"], *rows])


def _layers(view: MemoryView, most: int) -> Table:
    unit = memory_unit(view.peak_bytes)
    merged: dict[str, list[int]] = {}  # the blocks of a stack in one row
    for row in view.rows:
        if isinstance(row, LayerNeed):
            amounts = [
                1, row.working_set_bytes, row.parameter_bytes, row.kept_bytes, row.temporary_bytes
            ]  # fmt: skip
            before = merged.setdefault(layer_name(row.name), [0, 0, 0, 0, 0])
            merged[layer_name(row.name)] = [
                before[0] + 1, *(max(pair) for pair in zip(before[1:], amounts[1:], strict=True))
            ]  # fmt: skip
    rows = [[f"one layer, {unit[0]}", "working set", "parameters", "kept", "temporary", "layers"]]
    for name, (count, *amounts) in list(merged.items())[:most]:
        rows.append([name, *(_or_dash(unit, amount) for amount in amounts), f"{count:,}"])
    return Table(rows, spare=(5,))


def _idle(view: MemoryView, most: int) -> Table:
    unit = memory_unit(view.peak_bytes)
    rows = [
        [
            holder_name(row.name), row.kind.replace("_", " "), _or_dash(unit, row.bytes),
            f"{row.count:,}", f"{row.never_again:,}", time_text(row.idle_ns),
            f"{row.gigabytes_per_second:,.1f}",
        ]
        for row in view.rows[:most] if isinstance(row, Idle)
    ]  # fmt: skip
    head = [f"held, {unit[0]}", "kind", "memory", "tensors", "never again", "idle for", "GB/s to offload"]
    return Table([head, *rows], spare=(3,))


def _or_dash(unit: Unit, nbytes: int) -> str:
    return amount_in(unit, nbytes) if nbytes else "-"


TEXTS: dict[str, tuple[Callable[[MemoryView], str], Callable[[MemoryView, int], Table]]] = {
    "operators": (_operators_head, _operators),
    "layers": (_layers_head, _layers),
    "idle": (_idle_head, _idle),
}
