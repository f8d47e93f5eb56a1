"""Peak memory before and after a change, and whether that fits, in a line or a cell of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.report.text.layout import MARGIN, Block, Headline, Screen, Words, notes, printable
from daydream.report.text.memory import capacity_text
from daydream.text import memory_unit

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction
    from daydream.predict.largest import Largest
    from daydream.predict.memory import MemoryAnswer

CONTEXT = " with CUDA's context of 300 to 600 MiB"
FITS = {True: "fits", False: "does not fit", None: "too close to tell"}


def memory_words(answer: MemoryAnswer) -> list[Block]:
    """Return the line on memory: `peak memory 12.10 -> 8.30 GiB, fits 24 GB`; or why it is not known."""
    if answer.unsaid is not None:
        return [Words(printable(answer.unsaid), MARGIN, 2 * MARGIN)]
    if answer.memory is None:
        return []
    return [Words(f"peak memory {memory_change(answer.memory)}{verdict(answer.memory)}", MARGIN, 2 * MARGIN)]


def memory_change(memory: MemoryPrediction) -> str:
    """Return the peak before and after, its unit once, and the range where there is one."""
    unit, size = memory_unit(max(memory.before_bytes, memory.after_bytes))
    digits = 2 if unit == "GiB" else 1
    before, after, low, high = (
        f"{nbytes / size:,.{digits}f}"
        for nbytes in (memory.before_bytes, memory.after_bytes, memory.low_bytes, memory.high_bytes)
    )
    if before == after == low == high:
        return f"{before} {unit} (unchanged)"
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
    head = [f"peak memory, {unit}"]
    capacity = next((memory.capacity_bytes for memory in known if memory.capacity_bytes is not None), None)
    head += [f"in {capacity_text(capacity)}"] if capacity is not None else []
    cells = [head]
    for memory in memories:
        if memory is None:
            cells.append([""] * len(head))
            continue
        fits = [FITS[memory.fits]] if memory.capacity_bytes is not None else [""]
        cells.append([f"{memory.after_bytes / size:,.{digits}f}", *fits][: len(head)])
    return [[*row[:place], *own, *row[place:]] for row, own in zip(rows, cells, strict=True)]


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
