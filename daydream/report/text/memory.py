"""How much memory a device needs, who holds the peak, and whether it fits: `daydream memory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from daydream.memory.result import DeviceMemory, MemoryReport
from daydream.report.text.layout import (
    NAME_WIDTH,
    Block,
    Headline,
    Screen,
    Table,
    Words,
    fitting,
    notes,
    printable,
    shortened,
)
from daydream.report.text.numbers import count, percent
from daydream.text import bytes_text, capacity_text, memory_unit

CLOSE = 600 << 20  # what the context of a device takes besides, at most: less than that left is no answer
HOLDERS = (10, 6, 4, 3, 2)  # how many are shown, the most that leave the answer on one screen
NONE = "unknown"
Unit: TypeAlias = tuple[str, int]  # of a table, and its bytes


def memory_text(report: MemoryReport) -> Screen:
    """Return the peak of each device, what is recorded of it, who holds it, and notes."""
    return fitting(_screen(report, most) for most in HOLDERS)


def _screen(report: MemoryReport, most: int) -> Screen:
    blocks: list[Block] = []
    for place, device in enumerate(report.devices):
        named = len(report.devices) > 1
        blocks += [""] if place else []
        unit = memory_unit(device.peak_allocated_bytes or 0)
        blocks += [Headline(memory_headline(device, named=named)), *_out_of_memory(device)]
        blocks += ["", peaks_table(device, unit)]
        for title, parts in (
            ("kind", device.by_kind),
            ("phase", device.by_phase),
            ("layer", device.by_layer),
        ):
            if len(parts) > 1:
                blocks += ["", parts_table(f"held at the peak, by {title}", parts, unit, most)]
        if device.holders:
            blocks += ["", _holders(device, unit, most)]
    if report.outside_bytes is not None:
        blocks += ["", Words(f"outside the allocator: {bytes_text(report.outside_bytes)}")]
    return Screen([*blocks, *notes(report.notes)])


def memory_headline(device: DeviceMemory, *, named: bool = False) -> str:
    """Return the peak in one line and, with a capacity, whether it fits; `named` says of which device."""
    peak = device.peak_allocated_bytes
    said = f"peak {NONE if peak is None else bytes_text(peak)} allocated"
    if device.peak_reserved_bytes is not None:
        said += f", {bytes_text(device.peak_reserved_bytes)} reserved"
    if device.peak_step is not None:
        said += f" in {printable(device.peak_step)}"
    where = f"rank {device.rank}, {device.device}: " if device.rank else f"{device.device}: "
    return (where if named else "") + said + verdict(device)


def verdict(device: DeviceMemory) -> str:
    """Return whether a device's memory fits its capacity, as the end of a sentence; nothing without one."""
    capacity, left = device.capacity_bytes, device.left_bytes
    if capacity is None or left is None:
        return ""
    if device.out_of_memory is not None or left < 0:
        return f": does not fit in {capacity_text(capacity)}"
    if left < CLOSE and device.device != "cpu":
        return f": too close to tell in {capacity_text(capacity)} ({bytes_text(left)} left)"
    return f": fits in {capacity_text(capacity)} ({bytes_text(left)} left)"


def _out_of_memory(device: DeviceMemory) -> list[Block]:
    where = device.out_of_memory
    if where is None:
        return []
    place = f"request {where.request:,} of {where.requests:,}" if where.request else "the start"
    unused = bytes_text(where.reserved_bytes - where.allocated_bytes)
    return [
        Words(
            f"out of memory at {place}: {bytes_text(where.asked_bytes)} asked for, with "
            f"{bytes_text(where.allocated_bytes)} allocated and {unused} reserved in pieces that do not fit; "
            "the peaks are those without a limit"
        )
    ]


def peaks_table(device: DeviceMemory, unit: Unit) -> Table:
    """Return the peaks as they were recorded and as they are replayed, in the unit."""
    rows = [[f"peak, {unit[0]}", "recorded", "replayed"]]
    reserved = device.replayed_reserved_bytes or device.peak_reserved_bytes
    for name, recorded, replayed in (
        ("allocated", device.recorded_allocated_bytes, device.peak_allocated_bytes),
        ("reserved", device.recorded_reserved_bytes, reserved),
    ):
        rows.append([name, amount_in(unit, recorded), amount_in(unit, replayed)])
    if device.fragmentation is not None:
        rows.append(["fragmentation", "", percent(device.fragmentation)])
    if device.retries:
        rows.append(["unused memory returned", "", count(device.retries, "time")])
    return Table(rows)


def parts_table(title: str, parts: Mapping[str, int], unit: Unit, most: int) -> Table:
    """Return the largest of some parts, what each holds, and its share; the others in one row."""
    whole = sum(parts.values())
    sizes = sorted(
        ((size, name) for name, size in parts.items() if size), key=lambda each: (-each[0], each[1])
    )
    rows = [[f"{title}, {unit[0]}", "memory", "share"]]
    rows += [[_name(name), amount_in(unit, size), share_of(size, whole)] for size, name in sizes[:most]]
    rest = sum(size for size, _ in sizes[most:])
    if rest:
        rows.append([f"{len(sizes) - most:,} more", amount_in(unit, rest), share_of(rest, whole)])
    return Table(rows)


def _holders(device: DeviceMemory, unit: Unit, most: int) -> Table:
    whole = device.peak_allocated_bytes or sum(each.bytes for each in device.holders)
    shown, more = device.holders[:most], device.holders[most:]
    rows = [[f"held at the peak by, {unit[0]}", "memory", "share", "blocks", "smaller with"]]
    for each in shown:
        size, share = amount_in(unit, each.bytes), share_of(each.bytes, whole)
        rows.append([_name(each.name), size, share, f"{each.count:,}", printable(each.whatif or "")])
    if more:
        nbytes, blocks = sum(each.bytes for each in more), sum(each.count for each in more)
        rows.append(
            [f"{len(more):,} more", amount_in(unit, nbytes), share_of(nbytes, whole), f"{blocks:,}", ""]
        )
    advice = any(each.whatif for each in shown)
    return Table(rows if advice else [row[:-1] for row in rows], spare=(3,))


def _name(name: str) -> str:
    return shortened(printable(name), NAME_WIDTH)


def amount_in(unit: Unit, nbytes: int | None) -> str:
    """Return an amount in the unit of its table."""
    if nbytes is None:
        return NONE
    return f"{nbytes / unit[1]:,.{2 if unit[0] == 'GiB' else 1}f}"


def share_of(nbytes: int, whole: int) -> str:
    """Return a part's share in percent."""
    return percent(nbytes / whole) if whole else ""
