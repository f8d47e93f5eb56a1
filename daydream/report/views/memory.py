"""Peak memory: before and after a change, by device, who holds it, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from daydream.report.blocks import Block, Column, Headline, Kind, Notes, Row, Table, Text
from daydream.report.format import layer_name, percent
from daydream.text import bytes_text, capacity_text, counted, memory_unit

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction
    from daydream.memory.result import DeviceMemory, MemoryReport
    from daydream.memory.views import MemoryView
    from daydream.predict.memory import Largest, MemoryAnswer

CLOSE = (
    600 << 20
)  # what the context of a device takes besides, at most: less than that left is no answer
CONTEXT = " with CUDA's context of 300 to 600 MiB"
FITS = {True: "fits", False: "does not fit", None: "too close to tell"}
UNKNOWN = "unknown"
MOST, MOST_VERBOSE, MOST_USES = 6, 20, 100  # rows
MOST_PEAKS = 4  # of other devices
LINK = 25  # GB/s: PCIe 4.0 with 16 lanes, as copies of pinned memory reach it
HELD = "held at the peak, by"


# Of a prediction


def memory_line(answer: MemoryAnswer) -> list[Block]:
    """Return the line on memory: `peak memory 12.10 -> 8.30 GiB, fits 24 GB`; or why it is not known."""
    if answer.unsaid is not None:
        return [Text(answer.unsaid)]
    if answer.memory is None:
        return []
    return [Text(f"peak memory {memory_change(answer.memory)}{verdict(answer.memory)}")]


def memory_change(memory: MemoryPrediction, *, changes: bool = True) -> str:
    """Return the peak before and after, its unit once, and the range where there is one.

    Without `changes` nothing is changed, and the peak alone is told.
    """
    unit, size = memory_unit(max(memory.before_bytes, memory.after_bytes))
    digits = 2 if unit == "GiB" else 1
    before, after, low, high = (
        f"{nbytes / size:,.{digits}f}"
        for nbytes in (memory.before_bytes, memory.after_bytes, memory.low_bytes, memory.high_bytes)
    )
    if before == after == low == high:
        return f"{before} {unit}{' (unchanged)' if changes else ''}"
    likely = f" ({low} to {high})" if low != high else ""
    return f"{before} -> {after} {unit}{likely}"


def verdict(memory: MemoryPrediction) -> str:
    """Return whether it fits its capacity, as the end of a sentence; nothing where that is unknown."""
    if memory.capacity_bytes is None:
        return ""
    capacity = capacity_text(memory.capacity_bytes)
    if memory.fits:
        return f", fits {capacity}"
    on_gpu = not memory.device.endswith("cpu") and memory.low_bytes <= memory.capacity_bytes
    return f", {FITS[memory.fits]} in {capacity}{CONTEXT if on_gpu else ''}"


def memory_columns(memories: Iterable[MemoryPrediction | None], spare: int) -> list[Column]:
    """Return columns of the peak and of whether it fits; they stay empty where no row tells its memory."""
    known = (memory.capacity_bytes for memory in memories if memory is not None)
    capacity = next((nbytes for nbytes in known if nbytes is not None), None)
    fits = f"in {capacity_text(capacity)}" if capacity is not None else ""
    return [Column("memory", Kind.BYTES, spare + 1), Column(fits, spare=spare)]


def memory_cells(memory: MemoryPrediction | None) -> tuple[int | None, str]:
    """Return the cells of these columns."""
    if memory is None:
        return None, ""
    return memory.after_bytes, "" if memory.capacity_bytes is None else FITS[memory.fits].partition(
        " to "
    )[0]


def too_large(memory: MemoryPrediction | None) -> bool:
    """Tell whether what is predicted does not fit its device."""
    return memory is not None and memory.fits is False


def recording_notes(notes: Sequence[str]) -> list[Block]:
    """Return how many notes there are about a recording, and the command that tells them; or nothing."""
    return _counted(notes, "the recording", "info -v")


def memory_notes(notes: Sequence[str]) -> list[Block]:
    """Return likewise how many notes there are about what is recorded of memory."""
    return _counted(notes, "recorded memory", "memory -v")


def about_memory(predictions: Iterable[MemoryPrediction | None]) -> list[str]:
    """Return the notes about recorded memory of several predictions, each once."""
    known = (prediction for prediction in predictions if prediction is not None)
    return list(dict.fromkeys(note for prediction in known for note in prediction.recording_notes))


def _counted(notes: Sequence[str], about: str, command: str) -> list[Block]:
    different = len(dict.fromkeys(notes))
    if not different:
        return []
    return [Text(f"{counted(different, 'note')} about {about}: daydream {command}", aside=True)]


# Of a recording


def report(found: MemoryReport, *, verbose: bool = False, most: int = MOST_VERBOSE) -> list[Block]:
    """Return the peak of each device, who holds it, and notes; `most` rows a table."""
    most = most if verbose else MOST
    devices = sorted(
        found.devices, key=lambda one: (one.device == "cpu", -(one.peak_allocated_bytes or 0))
    )
    blocks: list[Block] = []
    for device in devices if verbose else devices[:1]:
        blocks += [
            Headline(memory_headline(device)),
            *_at_the_peak(device),
            *_out_of_memory(device),
        ]
        blocks += [peaks_table(device)] if verbose else []
        blocks += (
            [parts_table("kind", device.by_kind, most)] if set(device.by_kind) - {UNKNOWN} else []
        )
        for title, parts in (("phase", device.by_phase), ("layer", device.by_layer)):
            blocks += [parts_table(title, parts, most)] if verbose and len(parts) > 1 else []
        if device.holders:
            blocks.append(holders_table(device, most, lines=verbose))
    if not verbose and devices[1:]:
        peaks = [
            f"{_name(each)} {bytes_text(each.peak_allocated_bytes or 0)}" for each in devices[1:]
        ]
        more = [f"{len(peaks) - MOST_PEAKS:,} more"] if len(peaks) > MOST_PEAKS else []
        blocks.append(Text(", ".join([*peaks[:MOST_PEAKS], *more]), "peaks of the others: "))
    if found.outside_bytes is not None:
        blocks.append(Text(f"outside the allocator: {bytes_text(found.outside_bytes)}"))
    if verbose:
        return [*blocks, Notes(found.notes)]
    if found.notes:
        blocks.append(
            Text(f"-v adds: {counted(len(found.notes), 'note')}, phases and layers", aside=True)
        )
    return blocks


def memory_headline(device: DeviceMemory) -> str:
    """Return the peak of a device in one line and, with a capacity, whether it fits."""
    peak = device.peak_allocated_bytes
    said = f"peak {UNKNOWN if peak is None else bytes_text(peak)} allocated"
    if device.peak_reserved_bytes is not None:
        said += f", {bytes_text(device.peak_reserved_bytes)} reserved"
    return f"{_name(device)}: {said}{_fits(device)}"


def _fits(device: DeviceMemory) -> str:
    """Return whether a device's memory fits its capacity, as the end of a sentence; nothing without one."""
    capacity, left = device.capacity_bytes, device.left_bytes
    if capacity is None or left is None:
        return ""
    if device.out_of_memory is not None or left < 0:
        return f": does not fit in {capacity_text(capacity)}"
    close = left < CLOSE and device.device != "cpu"
    fits = "too close to tell in" if close else "fits in"
    return f": {fits} {capacity_text(capacity)} ({bytes_text(left)} left)"


def _at_the_peak(device: DeviceMemory) -> list[Block]:
    where = [each for each in (device.peak_step, device.peak_phase, device.peak_layer) if each]
    return [Text(", ".join(where), "at the peak: ")] if where else []


def _out_of_memory(device: DeviceMemory) -> list[Block]:
    where = device.out_of_memory
    if where is None:
        return []
    place = f"request {where.request:,} of {where.requests:,}" if where.request else "the start"
    unused = bytes_text(where.reserved_bytes - where.allocated_bytes)
    return [
        Text(
            f"out of memory at {place}: {bytes_text(where.asked_bytes)} asked for, with "
            f"{bytes_text(where.allocated_bytes)} allocated and {unused} reserved in pieces that do not fit; "
            "the peaks are those without a limit"
        )
    ]


def peaks_table(device: DeviceMemory) -> Table:
    """Return the peaks as they were recorded and as they are replayed."""
    reserved = device.replayed_reserved_bytes or device.peak_reserved_bytes
    recorded = device.recorded_allocated_bytes, device.recorded_reserved_bytes
    rows = [
        Row((name, *(UNKNOWN if nbytes is None else nbytes for nbytes in both)))
        for name, both in (
            ("allocated", (recorded[0], device.peak_allocated_bytes)),
            ("reserved", (recorded[1], reserved)),
        )
    ]
    if device.fragmentation is not None:
        rows.append(Row(("fragmentation", None, percent(device.fragmentation))))
    if device.retries:
        rows.append(Row(("unused memory returned", None, counted(device.retries, "time"))))
    return Table(
        [Column("peak"), Column("recorded", Kind.BYTES), Column("replayed", Kind.BYTES)], rows
    )


def parts_table(title: str, parts: Mapping[str, int], most: int = MOST_VERBOSE) -> Table:
    """Return the largest of some parts, what each holds, and its share; the others in one row."""
    whole = sum(parts.values())
    found = sorted(
        ((size, name) for name, size in parts.items() if size), key=lambda one: (-one[0], one[1])
    )
    rows = [Row((name.replace("_", " "), size, size / whole)) for size, name in found[:most]]
    rest = sum(size for size, _ in found[most:])
    rows += [Row((f"{len(found) - most:,} more", rest, rest / whole))] if rest else []
    memory = Column("memory", Kind.BYTES, bar=True)
    return Table([Column(f"{HELD} {title}"), memory, Column("share", Kind.PERCENT)], rows, whole)


def holders_table(device: DeviceMemory, most: int, *, lines: bool = False, name: str = "") -> Table:
    """Return who holds most of a device's peak, with the line of the program that asked for it if `lines`."""
    whole = device.peak_allocated_bytes or sum(each.bytes for each in device.holders)
    rows = [
        Row(
            (each.name, _kind(each.kind), each.bytes, each.bytes / max(whole, 1),
             each.count, each.whatif),
            below=(each.line or "") if lines else "",
        )
        for each in device.holders[:most]
    ]  # fmt: skip
    more = device.holders[most:]
    if more:
        nbytes, blocks = sum(each.bytes for each in more), sum(each.count for each in more)
        rows.append(Row((f"{len(more):,} more", "", nbytes, nbytes / max(whole, 1), blocks, None)))
    columns = [
        Column("largest holders", keep="both"), Column("kind", spare=2),
        Column("memory", Kind.BYTES, bar=True),
        Column("share", Kind.PERCENT), Column("blocks", Kind.COUNT, spare=1), Column("smaller with"),
    ]  # fmt: skip
    return Table(columns, rows, whole, name=name)


def _kind(kind: str) -> str:
    return "" if kind == UNKNOWN else kind.replace("_", " ")


def _name(device: DeviceMemory) -> str:
    return f"rank {device.rank} {device.device}" if device.rank else device.device


# What operators touch, what layers need, what is held and not used


def uses(found: MemoryView, *, verbose: bool = False) -> list[Block]:
    """Return what `memory --by` shows of a view; `verbose` shows a hundred rows."""
    most = MOST_USES if verbose else MOST + MOST
    if found.by == "idle":
        said, table = _idle(found, most)
    else:
        said, table = (_operators if found.by == "operators" else _layers)(found, most)
    return [Headline(f"{found.device}: {said}"), table, Notes(found.notes)]


def _operators(found: MemoryView, most: int) -> tuple[str, Table]:
    from daydream.memory.views import OperatorFootprint

    rows = [row for row in found.rows if isinstance(row, OperatorFootprint)]
    largest = max((row.footprint_bytes for row in rows), default=0)
    columns = [
        Column("operator"), Column("touches at most", Kind.BYTES, bar=True), Column("asks for", Kind.BYTES),
        Column("calls", Kind.COUNT),
    ]  # fmt: skip
    cells = [
        (row.name, row.footprint_bytes, row.asked_bytes or "-", row.calls) for row in rows[:most]
    ]
    return _working_set(found, largest, "operator"), Table(
        columns, list(map(Row, cells)), found.peak_bytes
    )


def _layers(found: MemoryView, most: int) -> tuple[str, Table]:
    from daydream.memory.views import LayerNeed

    merged: dict[str, list[int]] = {}  # the blocks of a stack in one row
    for row in found.rows:
        if isinstance(row, LayerNeed):
            amounts = [
                row.working_set_bytes,
                row.parameter_bytes,
                row.kept_bytes,
                row.temporary_bytes,
            ]
            *before, number = merged.get(layer_name(row.name), [0] * 5)
            largest = [max(pair) for pair in zip(before, amounts, strict=True)]
            merged[layer_name(row.name)] = [*largest, number + 1]
    names = ("working set", "parameters", "kept", "temporary")
    columns = [
        Column("one layer", keep="end"), *(Column(name, Kind.BYTES) for name in names),
        Column("layers", Kind.COUNT, spare=1),
    ]  # fmt: skip
    rows = [
        Row((name, *(each or "-" for each in cells))) for name, cells in list(merged.items())[:most]
    ]
    largest_set = max((cells[0] for cells in merged.values()), default=0)
    return _working_set(found, largest_set, "layer"), Table(columns, rows, found.peak_bytes)


def _working_set(found: MemoryView, largest: int, what: str) -> str:
    return f"no {what} touches more than {bytes_text(largest)}, of a peak of {bytes_text(found.peak_bytes)}"


def _idle(found: MemoryView, most: int) -> tuple[str, Table]:
    from daydream.memory.views import Idle

    rows = [row for row in found.rows if isinstance(row, Idle)]
    movable = sum(row.bytes for row in rows if row.gigabytes_per_second <= LINK)
    columns = [
        Column("held", keep="both"), Column("kind", spare=2), Column("memory", Kind.BYTES, bar=True),
        Column("tensors", Kind.COUNT, spare=1), Column("never again", Kind.COUNT),
        Column("idle for", Kind.TIME), Column("GB/s to offload", Kind.COUNT),
    ]  # fmt: skip
    cells = [
        (row.name, _kind(row.kind), row.bytes, row.count, row.never_again, row.idle_ns,
         row.gigabytes_per_second)
        for row in rows[:most]
    ]  # fmt: skip
    said = (
        f"{bytes_text(movable)} of the peak of {bytes_text(found.peak_bytes)} is idle long enough to be "
        f"moved to the host and back at {LINK} GB/s"
    )
    return said, Table(columns, list(map(Row, cells)))


# The largest batch or sequence


def largest(found: Largest, *, verbose: bool = False) -> list[Block]:
    """Return the largest size that fits, what it holds, and from where on it does not fit."""
    memory = found.memory
    capacity = capacity_text(memory.capacity_bytes or 0)
    if found.fits:
        times = f"{found.fits / found.recorded:,.4g} times the recorded {found.recorded:,}"
        said = f"largest {found.what} that fits {capacity}: {found.fits:,}, {times}"
    else:
        said = f"not even a {found.what} of 1 fits {capacity}; {found.recorded:,} was recorded"
    if found.too_large is None:
        close = "every size that was tried fits"
    else:
        close = f"from {found.too_large:,}: does not fit"
        if found.too_large > found.fits + 1:
            close = f"{found.fits + 1:,} to {found.too_large - 1:,}: too close to tell; {close}"
    notes = Notes([*memory.recording_notes, *memory.notes])
    return [
        Headline(said),
        Text(f"peak memory {memory_change(memory)} on {memory.device}"),
        Text(close),
        notes,
    ]
