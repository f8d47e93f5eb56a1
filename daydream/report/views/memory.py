"""Peak memory: before and after a change, by device, who holds it, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daydream.report.blocks import (
    Block,
    Column,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    layer_name,
    percent,
)
from daydream.text import bytes_text, capacity_text, counted, listed, memory_unit
from daydream.trace.recorded_steps import MADE_UP

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction
    from daydream.memory.report import MemoryView
    from daydream.memory.result import DeviceMemory, MemoryReport
    from daydream.predict.memory import Largest, MemoryAnswer

CLOSE = (
    600 << 20
)  # what the context of a device takes besides, at most: less than that left is no answer
CONTEXT = " with CUDA's context of 300 to 600 MiB"
CONTEXTS = (300 << 20, CLOSE)
EARLIER = "held before"  # as results name it
FITS = {True: "fits", False: "does not fit", None: "too close to tell"}
UNKNOWN = "unknown"
# Rows
MOST = 6
MOST_VERBOSE = 20
MOST_USES = 100
LINK = 25  # GB/s: PCIe 4.0 with 16 lanes, as copies of pinned memory reach it
Use = tuple[str, Sequence[Column], Sequence[Sequence[Any]]]  # a line, heads and rows of a table


# Of a prediction


def memory_line(answer: MemoryAnswer) -> Iterator[Block]:
    """Return the line on memory: `peak memory 12.10 -> 8.30 GiB, fits 24 GB`; or why it is not known."""
    if answer.unsaid is not None:
        yield Text(answer.unsaid)
        return
    if answer.memory is None:
        return
    yield Text(f"peak memory {memory_change(answer.memory)}{verdict(answer.memory)}")


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
    return [Kind.BYTES("memory", spare + 1), Column(fits, spare=spare)]


def memory_cells(memory: MemoryPrediction | None) -> tuple[int | None, str]:
    """Return the cells of these columns."""
    if memory is None:
        return None, ""
    fits = FITS[memory.fits].partition(" to ")[0]
    return memory.after_bytes, "" if memory.capacity_bytes is None else fits


def too_large(memory: MemoryPrediction | None) -> bool:
    """Tell whether what is predicted does not fit its device."""
    return memory is not None and memory.fits is False


def recording_notes(notes: Sequence[str]) -> Iterator[Block]:
    """Return how many notes there are about a recording, and the command that tells them; or nothing."""
    yield from _counted(notes, "the recording", "info -v")


def memory_notes(notes: Sequence[str]) -> Iterator[Block]:
    """Return likewise how many notes there are about what is recorded of memory."""
    yield from _counted(notes, "recorded memory", "memory -v")


def _counted(notes: Sequence[str], about: str, command: str) -> Iterator[Block]:
    number = counted(len(set(notes)), "note")
    if notes:
        yield Text(f"{number} about {about}: daydream {command}", aside=True)


def about_memory(predictions: Iterable[MemoryPrediction | None]) -> list[str]:
    """Return the notes about recorded memory of several predictions, each once."""
    known = (prediction for prediction in predictions if prediction is not None)
    return list(dict.fromkeys(note for prediction in known for note in prediction.recording_notes))


# Of a recording


def report(
    found: MemoryReport, *, verbose: bool = False, most: int = MOST_VERBOSE
) -> Iterator[Block]:
    """Return the peak of each device, who holds it, and notes; `most` rows a table."""
    most = most if verbose else MOST
    devices = sorted(
        found.devices,
        key=lambda one: (one.device == "cpu", -(one.peak_allocated_bytes or 0)),
    )
    shown = devices if verbose else devices[:1]

    for device in shown:
        yield from _device(device, most, verbose=verbose)
    if others := devices[len(shown) :]:
        peaks = [
            f"{device_name(each)} {bytes_text(each.peak_allocated_bytes or 0)}" for each in others
        ]
        yield Text(listed(peaks), "peaks of the others: ")
    if found.outside_bytes is not None:
        yield Text(f"outside the allocator: {bytes_text(found.outside_bytes)}")
    if verbose:
        yield Notes(found.notes)
        return
    yield from [Text(note) for note in found.notes if note.startswith(MADE_UP)]
    said = f"{counted(len(found.notes), 'note')}, phases and layers"
    if found.notes:
        yield Text(said, "-v adds: ", aside=True)


def _device(device: DeviceMemory, most: int, *, verbose: bool) -> Iterator[Block]:
    yield Headline(memory_headline(device))
    layer = device.peak_layer and f"layer {device.peak_layer}"
    where = [each for each in (device.peak_step, device.peak_phase, layer) if each]
    if where:
        yield Text(", ".join(where), "at the peak: ")
    allocated = _allocated(device)
    reserved = device.peak_reserved_bytes
    if reserved is not None:
        unit, size = memory_unit(reserved)
        digits = 2 if unit == "GiB" else 0
        low, high = (f"{(reserved + context) / size:,.{digits}f}" for context in CONTEXTS)
        yield Text(f"needs {low} to {high} {unit} of the GPU,{CONTEXT}")
    if device.peak_allocated_bytes not in (None, allocated):
        about = "what predictions and the tables below are about"
        yield Text(f"replayed: {bytes_text(device.peak_allocated_bytes)} allocated, {about}")
    if device.recorded_reserved_bytes not in (None, reserved):
        recorded = _peak(device.recorded_allocated_bytes, device.recorded_reserved_bytes)
        yield Text(f"as recorded: {recorded}")
    if end := device.out_of_memory:
        place = f"request {end.request:,} of {end.requests:,}" if end.request else "the start"
        unused = bytes_text(end.reserved_bytes - end.allocated_bytes)
        said = (
            f"out of memory at {place}: {bytes_text(end.asked_bytes)} asked for, with "
            f"{bytes_text(end.allocated_bytes)} allocated and {unused} reserved in pieces that do not fit; "
            "the peaks are those without a limit"
        )
        yield Text(said)
    if verbose:
        replayed = device.replayed_reserved_bytes or device.peak_reserved_bytes
        both = (
            ("allocated", device.recorded_allocated_bytes, device.peak_allocated_bytes),
            ("reserved", device.recorded_reserved_bytes, replayed),
        )
        rows = [Row([UNKNOWN if cell is None else cell for cell in cells]) for cells in both]
        if device.fragmentation is not None:
            rows.append(Row(("fragmentation", None, percent(device.fragmentation))))
        if device.retries:
            rows.append(Row(("unused memory returned", None, counted(device.retries, "time"))))
        heads = [Column("peak"), Kind.BYTES("recorded"), Kind.BYTES("replayed")]
        yield Table(heads, rows)
    if set(device.by_kind) - {UNKNOWN}:
        yield _parts("kind", device.by_kind, most)
    for title, parts in (("phase", device.by_phase), ("layer", device.by_layer)):
        if verbose and len(parts) > 1:
            yield _parts(title, parts, most)
    if device.holders:
        yield holders_table(device, most, lines=verbose)


def memory_headline(device: DeviceMemory) -> str:
    """Return the peak of a device in one line and, with a capacity, whether it fits."""
    peak = _peak(_allocated(device), device.peak_reserved_bytes)
    said = f"{device_name(device)}: peak {peak}"
    capacity = device.capacity_bytes
    left = device.left_bytes
    if capacity is None or left is None:
        return said
    if device.out_of_memory is not None or left < 0:
        return f"{said}: does not fit in {capacity_text(capacity)}"
    close = left < CLOSE and device.device != "cpu"
    fits = "too close to tell in" if close else "fits in"
    return f"{said}: {fits} {capacity_text(capacity)} ({bytes_text(left)} left)"


def _allocated(device: DeviceMemory) -> int | None:
    """Return the peak that the allocator recorded; where it recorded none, or has other settings, a replay's."""
    reserved = device.recorded_reserved_bytes
    known = reserved is not None and reserved == device.peak_reserved_bytes
    return device.recorded_allocated_bytes if known else device.peak_allocated_bytes


def _peak(allocated: int | None, reserved: int | None) -> str:
    said = f"{UNKNOWN if allocated is None else bytes_text(allocated)} allocated"
    return said if reserved is None else f"{said}, {bytes_text(reserved)} reserved"


def _parts(title: str, parts: Mapping[str, int], most: int) -> Table:
    """Return the largest of some parts, what each holds, and its share; the others in one row."""
    whole = sum(parts.values())
    known = [(_named(name).replace("_", " "), size) for name, size in parts.items() if size]
    known.sort(key=lambda one: (-one[1], one[0]))
    most += len(known) == most + 1  # one more takes no more room than its number
    shown = known[:most]
    if others := known[most:]:
        shown.append((f"{len(others):,} more", sum(size for _, size in others)))
    memory = Kind.BYTES("memory", bar=True)
    heads = [Column(f"held at the peak, by {title}"), memory, Kind.PERCENT("share")]
    return Table(heads, [Row((name, size, size / whole)) for name, size in shown], whole)


def holders_table(device: DeviceMemory, most: int, *, lines: bool = False, name: str = "") -> Table:
    """Return who holds most of a device's peak, with the line of the program that asked for it if `lines`."""
    whole = device.peak_allocated_bytes or sum(each.bytes for each in device.holders)
    rows = []
    for each in device.holders[:most]:
        share = each.bytes / max(whole, 1)
        cells = (_named(each.name), _kind(each.kind), each.bytes, share, each.count, each.whatif)
        rows.append(Row(cells, below=(each.line or "") if lines else ""))
    more = device.holders[most:]
    if more:
        nbytes = sum(each.bytes for each in more)
        blocks = sum(each.count for each in more)
        rows.append(Row((f"{len(more):,} more", "", nbytes, nbytes / max(whole, 1), blocks, None)))
    columns = [
        Column("largest holders", keep="both"),
        Column("kind", spare=2),
        Kind.BYTES("memory", bar=True),
        Kind.PERCENT("share"),
        Kind.COUNT("blocks", spare=1),
        Column("smaller with"),
    ]
    return Table(columns, rows, whole, name=name)


def _named(name: str) -> str:
    return "held before the recording" if name == EARLIER else name


def _kind(kind: str) -> str:
    return "" if kind == UNKNOWN else kind.replace("_", " ")


def device_name(device: Any) -> str:
    """Return what a device is called, behind its rank but for the first."""
    return f"rank {device.rank} {device.device}" if device.rank else device.device


# What operators touch, what layers need, what is held and not used


def uses(found: MemoryView, *, verbose: bool = False) -> Iterator[Block]:
    """Return what `memory --by` shows of a view; `verbose` shows a hundred rows."""
    of_view = {"idle": _idle, "operators": _operators}.get(found.by, _layers)
    said, columns, rows = of_view(found)
    shown = [Row(each) for each in rows[: MOST_USES if verbose else 2 * MOST]]
    whole = 0 if found.by == "idle" else found.peak_bytes
    notes = Notes(found.notes)
    yield Headline(f"{found.device}: {said}")
    yield Table(columns, shown, whole)
    yield notes


def _operators(found: MemoryView) -> Use:
    rows: Sequence[Any] = found.rows
    cells = [(row.name, row.footprint_bytes, row.asked_bytes or "-", row.calls) for row in rows]
    columns = [
        Column("operator"),
        Kind.BYTES("touches at most", bar=True),
        Kind.BYTES("asks for"),
        Kind.COUNT("calls"),
    ]
    return _working_set(found, cells, "operator"), columns, cells


def _layers(found: MemoryView) -> Use:
    amounts = ("working_set_bytes", "parameter_bytes", "kept_bytes", "temporary_bytes")
    merged: dict[str, list[int]] = {}  # the blocks of a stack in one row
    for row in found.rows:
        *before, number = merged.setdefault(layer_name(row.name), [0] * 5)
        largest = map(max, before, (getattr(row, name) for name in amounts))
        merged[layer_name(row.name)] = [*largest, number + 1]
    cells = [(name, *(each or "-" for each in sizes)) for name, sizes in merged.items()]
    columns = [
        Column("one layer", keep="end"),
        *(Kind.BYTES(name) for name in ("working set", "parameters", "kept", "temporary")),
        Kind.COUNT("layers", spare=1),
    ]
    return _working_set(found, cells, "layer"), columns, cells


def _working_set(found: MemoryView, cells: Sequence[Any], what: str) -> str:
    largest = max((row[1] for row in cells if row[1] != "-"), default=0)
    return f"no {what} touches more than {bytes_text(largest)}, of a peak of {bytes_text(found.peak_bytes)}"


def _idle(found: MemoryView) -> Use:
    rows: Sequence[Any] = found.rows
    movable = sum(row.bytes for row in rows if row.gigabytes_per_second <= LINK)
    columns = [
        Column("held", keep="both"),
        Column("kind", spare=2),
        Kind.BYTES("memory", bar=True),
        Kind.COUNT("tensors", spare=1),
        Kind.COUNT("never again"),
        Kind.TIME("idle for"),
        Kind.COUNT("GB/s needed"),
    ]
    cells = [
        (
            row.name,
            _kind(row.kind),
            row.bytes,
            row.count,
            row.never_again,
            row.idle_ns,
            row.gigabytes_per_second,
        )
        for row in rows
    ]
    said = (
        f"{bytes_text(movable)} of the peak of {bytes_text(found.peak_bytes)} is idle long enough to be "
        f"moved to the host and back at {LINK} GB/s"
    )
    return said, columns, cells


# The largest batch or sequence


FAR = 64  # times the recorded size


def largest(found: Largest, *, verbose: bool = False) -> Iterator[Block]:
    """Return the largest size that fits, what it holds, and from where on it does not fit."""
    memory = found.memory
    capacity = capacity_text(memory.capacity_bytes or 0)
    said = f"not even a {found.what} of 1 fits {capacity}; {found.recorded:,} was recorded"
    if found.fits:
        ratio = f"{found.fits / found.recorded:,.4g} times the recorded {found.recorded:,}"
        said = f"largest {found.what} that fits {capacity}: {found.fits:,}, {ratio}"
    far = f"Over {FAR} times what was recorded: take it as an order of magnitude."
    close = "every size that was tried fits"
    if found.too_large is not None:
        close = f"from {found.too_large:,}: does not fit"
        if found.too_large > found.fits + 1:
            close = f"{found.fits + 1:,} to {found.too_large - 1:,}: too close to tell; {close}"
    yield Headline(said)
    yield Text(f"peak memory {memory_change(memory)} on {memory.device}")
    yield Text(close)
    if found.fits > FAR * found.recorded:
        yield Text(far)
    yield Notes([*memory.recording_notes, *memory.notes])
