"""The memory of a trace: the peak of each device, when it is, who holds it: `daydream memory --trace`."""

from __future__ import annotations

from collections.abc import Sequence

from daydream.memory.result import DeviceMemory, MemoryReport
from daydream.report.text.layout import (
    Block,
    Headline,
    Screen,
    Table,
    Words,
    fitting,
    notes,
    printable,
    shortened,
    tail,
)
from daydream.report.text.memory import (
    Unit,
    amount_in,
    memory_headline,
    parts_table,
    peaks_table,
    share_of,
)
from daydream.text import bytes_text, counted, memory_unit

MOST = (10, 8, 6, 5, 4, 3)  # holders, the most that leave the answer on one screen
NAME, LEAST = 42, 14  # characters of a holder, and of its layer
ALL = 10**6


def trace_memory_text(report: MemoryReport, *, verbose: bool = False) -> Screen:
    """Return the peaks and who holds the largest; `verbose` adds every device, phases, layers and notes."""
    if verbose:
        return Screen([*_all(report), *notes(report.notes)])
    return fitting(_short(report, most) for most in MOST)


def _short(report: MemoryReport, most: int) -> Screen:
    first, *others = _by_size(report.devices)
    unit = memory_unit(first.peak_allocated_bytes or 0)
    blocks: list[Block] = [*_head(first), "", _kinds(first, unit), "", _holders(first, unit, most)]
    if others:
        peaks = [f"{_named(each)} {bytes_text(each.peak_allocated_bytes or 0)}" for each in others[:4]]
        more = [f"{len(others) - 4:,} more"] if len(others) > 4 else []
        blocks += ["", Words(f"peaks of the others: {', '.join([*peaks, *more])}")]
    if report.notes:
        blocks += [
            "",
            Words(f"{counted(len(report.notes), 'note', 'notes')}, phases and layers: -v", aside=True),
        ]
    return Screen(blocks)


def _all(report: MemoryReport) -> list[Block]:
    blocks: list[Block] = []
    for place, device in enumerate(_by_size(report.devices)):
        unit = memory_unit(device.peak_allocated_bytes or 0)
        blocks += [*([""] if place else []), *_head(device)]
        blocks += ["", peaks_table(device, unit), "", _kinds(device, unit)]
        for title, parts in (("phase", device.by_phase), ("layer", device.by_layer)):
            if len(parts) > 1:
                blocks += ["", parts_table(f"held at the peak, by {title}", parts, unit, 20)]
        blocks += ["", _holders(device, unit, 20, lines=True)]
    return blocks


def _by_size(devices: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    """Return GPUs before the CPU, and of each the largest peak first."""
    return sorted(devices, key=lambda each: (each.device == "cpu", -(each.peak_allocated_bytes or 0)))


def _head(device: DeviceMemory) -> list[Block]:
    where = [device.peak_step, device.peak_phase, device.peak_layer]
    said = ", ".join(printable(part) for part in where if part)
    peak = device.but(peak_step=None)  # it stands below
    return [Headline(memory_headline(peak, named=True)), *([Words(f"at the peak: {said}")] if said else [])]


def _named(device: DeviceMemory) -> str:
    return f"rank {device.rank} {device.device}" if device.rank else device.device


def _kinds(device: DeviceMemory, unit: Unit) -> Table:
    kinds = {kind.replace("_", " "): nbytes for kind, nbytes in device.by_kind.items()}
    return parts_table("held at the peak, by kind", kinds, unit, ALL)


def _holders(device: DeviceMemory, unit: Unit, most: int, *, lines: bool = False) -> Table:
    whole = device.peak_allocated_bytes or 0
    shown, more = device.holders[:most], device.holders[most:]
    rows = [[f"largest holders, {unit[0]}", "kind", "memory", "share", "blocks", "smaller with"]]
    below = [""]
    for each in shown:
        rows.append([
            holder_name(each.name), each.kind.replace("_", " "), amount_in(unit, each.bytes),
            share_of(each.bytes, whole), f"{each.count:,}", printable(each.whatif or ""),
        ])  # fmt: skip
        below.append(printable(each.line or ""))
    if more:
        nbytes, count = sum(each.bytes for each in more), sum(each.count for each in more)
        rows.append(
            [f"{len(more):,} more", "", amount_in(unit, nbytes), share_of(nbytes, whole), f"{count:,}", ""]
        )
        below.append("")
    return Table(rows, spare=(4,), below=below if lines and any(below) else ())


def holder_name(name: str) -> str:
    """Return an operator and its layer, of which the end says more than the beginning."""
    op, _, layer = printable(name).partition(" ")
    if not layer:
        return tail(op, NAME)
    return f"{shortened(op, NAME - LEAST)} {tail(layer, max(NAME - len(op) - 1, LEAST))}"
