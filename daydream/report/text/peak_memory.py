"""Notes about a recording: `info` and `memory` tell them in full, other answers how many there are.

Peak memory before and after a change, and whether that fits, in a line or a cell of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from daydream.predict.memory import Largest, MemoryAnswer
from daydream.report.text.layout import MARGIN, Block, Headline, Screen, Words, notes, printable, tail
from daydream.report.text.numbers import count, percent, time_text
from daydream.text import bytes_text, capacity_text, memory_unit

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction
    from daydream.memory.result import DeviceMemory
    from daydream.predict.explain import Explanation


def recording_notes(notes: Sequence[str]) -> list[str]:
    """Return how many notes there are about a recording, and the command that tells them; or nothing."""
    return _counted(notes, "the recording", "info -v")


def memory_notes(notes: Sequence[str]) -> list[str]:
    """Return likewise how many notes there are about what is recorded of memory."""
    return _counted(notes, "recorded memory", "memory -v")


def about_memory(predictions: Iterable[MemoryPrediction | None]) -> list[str]:
    """Return the notes about recorded memory of several predictions, each once."""
    known = (prediction for prediction in predictions if prediction is not None)
    return list(dict.fromkeys(note for prediction in known for note in prediction.recording_notes))


def _counted(notes: Sequence[str], about: str, command: str) -> list[str]:
    different = len(dict.fromkeys(notes))
    return [f"{count(different, 'note')} about {about}: daydream {command}"] if different else []


CONTEXT = " with CUDA's context of 300 to 600 MiB"
FITS = {True: "fits", False: "does not fit", None: "too close to tell"}


CELLS = {**FITS, None: "too close"}  # of a table
MANY = {  # kind -> what memory of it is called
    "optimizer_state": "optimizer states", "temporary": "temporary tensors", "unknown": "of an unknown kind",
}  # fmt: skip
LAYER = 40  # characters of a layer's path in a line


def explained_memory(explanation: Explanation) -> list[Block]:
    """Return the peak of a step, what most of it is; and where it may not fit, what makes it smaller."""
    found = explanation.memory
    if found is None:
        return memory_words(MemoryAnswer(unsaid=explanation.memory_unsaid))
    change = memory_change(found, changes=explanation.after is not None)
    blocks: list[Block] = [
        Words(f"peak memory {change}{verdict(found)}; {_most_of(found.holders)}", MARGIN, 2 * MARGIN)
    ]
    if found.capacity_bytes is None or found.fits:
        return blocks
    alone = found.by_kind.get("parameter", 0)
    if alone > found.capacity_bytes:
        said = (
            f"its parameters alone take {bytes_text(alone)}: only sharding them or fewer bits for them helps"
        )
        blocks.append(Words(said, 2 * MARGIN, 3 * MARGIN))
    if not found.whatifs:
        return [*blocks, Words("no what-if for its largest holders makes it smaller", 2 * MARGIN, 3 * MARGIN)]
    best = found.whatifs[0]
    unit, size = memory_unit(best.after_bytes)
    peak = f"{best.after_bytes / size:,.{2 if unit == 'GiB' else 1}f} {unit}"
    step = "" if best.predicted_ns is None else f"; step {time_text(best.predicted_ns)}"
    takes = f" ({best.needs})" if best.needs else ""
    from daydream.report.text.explain_costs import command

    said = f"{command(best)}   peak {peak}, {FITS[best.fits]}{step}{takes}"
    blocks.append(Words(said, 2 * MARGIN, 3 * MARGIN))
    if best.code:
        blocks.append(Words(f"in code: {best.code}", 2 * MARGIN, 3 * MARGIN))
    return blocks


def _most_of(device: DeviceMemory) -> str:
    """Return what most of a device's peak is, and where in the step it is."""
    kind, nbytes = max(device.by_kind.items(), key=lambda each: each[1], default=("unknown", 0))
    layer = device.peak_layer and tail(printable(device.peak_layer), LAYER)
    where = ", ".join(part for part in (device.peak_phase, layer) if part)
    share = percent(nbytes / max(device.peak_allocated_bytes or 0, 1))
    return f"{share} of it {MANY.get(kind, kind + 's')}{f', reached in {where}' if where else ''}"


def memory_words(answer: MemoryAnswer) -> list[Block]:
    """Return the line on memory: `peak memory 12.10 -> 8.30 GiB, fits 24 GB`; or why it is not known."""
    if answer.unsaid is not None:
        return [Words(printable(answer.unsaid), MARGIN, 2 * MARGIN)]
    if answer.memory is None:
        return []
    return [Words(f"peak memory {memory_change(answer.memory)}{verdict(answer.memory)}", MARGIN, 2 * MARGIN)]


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


def memory_columns(
    rows: list[list[str]], memories: list[MemoryPrediction | None], place: int
) -> list[list[str]]:
    """Return a table's rows, the head first, with the peak and whether it fits before a column.

    Args:
        rows: the table, its head first.
        memories: of each row but the head; rows without one have empty cells.
        place: where the columns go. There are none where no row tells its memory.
    """
    known = [memory for memory in memories if memory is not None]
    if not known:
        return rows
    unit, size = memory_unit(max(memory.after_bytes for memory in known))
    digits = 2 if unit == "GiB" else 1
    head = [f"memory, {unit}"]
    capacity = next((memory.capacity_bytes for memory in known if memory.capacity_bytes is not None), None)
    head += [f"in {capacity_text(capacity)}"] if capacity is not None else []
    cells = [head]
    for memory in memories:
        if memory is None:
            cells.append([""] * len(head))
            continue
        fits = [CELLS[memory.fits]] if memory.capacity_bytes is not None else [""]
        cells.append([f"{memory.after_bytes / size:,.{digits}f}", *fits][: len(head)])
    return [[*row[:place], *own, *row[place:]] for row, own in zip(rows, cells, strict=True)]


def too_large(memories: Sequence[MemoryPrediction | None]) -> frozenset[int]:
    """Return the rows of a table, its head the row 0, whose memory does not fit; they are shown in grey.

    Args:
        memories: of each row but the head, None where it is not known.
    """
    return frozenset(
        place for place, memory in enumerate(memories, 1) if memory is not None and memory.fits is False
    )


def largest_text(found: Largest) -> Screen:
    """Return the largest size that fits, what it holds, and from where on it does not fit."""
    memory = found.memory
    capacity = capacity_text(memory.capacity_bytes or 0)
    name = {"batch": "batch", "sequence": "sequence"}[found.what]
    times = f", {found.fits / found.recorded:,.4g} times the recorded {found.recorded:,}"
    if found.fits:
        said = f"largest {name} that fits {capacity}: {found.fits:,}{times}"
    else:
        said = f"not even a {name} of 1 fits {capacity}; {found.recorded:,} was recorded"
    if found.too_large is None:
        close = "no size that was tried does not fit"
    elif found.too_large > found.fits + 1:
        close = f"{found.fits + 1:,} to {found.too_large - 1:,}: too close to tell; "
        close += f"from {found.too_large:,}: does not fit"
    else:
        close = f"from {found.too_large:,}: does not fit"
    return Screen([
        Headline(said), Words(f"peak memory {memory_change(memory)} on {memory.device}"), Words(close),
        *notes([*memory.recording_notes, *memory.notes]),
    ])  # fmt: skip
