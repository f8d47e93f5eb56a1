"""Recorded input shapes: the JSON text of a trace's `shapes` column, as tuples.

An argument is `()` for what is no tensor (and for a tensor of no dimensions:
the profiler writes both the same way), a tuple of sizes for a tensor, and a
list of tuples for a list of tensors.

Amount: what one call of an operator computes and moves.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Argument: TypeAlias = Shape | list[Shape]


def parse_shapes(text: str | None) -> list[Argument] | None:
    """Return the arguments of a recorded call, None if nothing readable was recorded.

    Args:
        text: the column `shapes` of a task: `[[32, 64], []]`.

    Returns:
        for each argument `()` for what is no tensor, a tuple of sizes, or a list of tuples.
    """
    arguments = _parsed(text) if text else None
    return None if arguments is None else [*arguments]


@lru_cache(maxsize=1 << 14)  # a few thousand texts make a trace, and every optimization reads them
def _parsed(text: str) -> list[Argument] | None:
    try:
        recorded = json.loads(text)
    except ValueError:
        return None
    if not isinstance(recorded, list):
        return None
    return [_argument(part) for part in recorded]


def _argument(part: Any) -> Argument:
    if not isinstance(part, list):
        return ()
    if part and all(isinstance(one, list) for one in part):
        return [tuple(one) if _sizes(one) else () for one in part]
    return tuple(part) if _sizes(part) else ()


def _sizes(part: list[Any]) -> bool:
    return all(isinstance(size, int) and size >= 0 for size in part)


def elements(shape: Argument) -> int:
    """Return the elements of a tensor or of a list of tensors; 0 for what is no tensor."""
    if isinstance(shape, list):
        return sum(elements(one) for one in shape)
    return prod(shape) if shape else 0


def all_tensors(arguments: list[Argument]) -> list[Shape]:
    """Return the shapes of a call's tensors, those in lists too."""
    return [
        shape
        for part in arguments
        for shape in (part if isinstance(part, list) else [part])
        if shape
    ]


def broadcast(shapes: list[Shape]) -> Shape | None:
    """Return the shape that these broadcast to, None if they do not."""
    width = max((len(shape) for shape in shapes), default=0)
    sizes = [1] * width
    for shape in shapes:
        for place, size in enumerate(shape, width - len(shape)):
            if size != 1 and sizes[place] not in (1, size):
                return None
            sizes[place] = size if sizes[place] == 1 else sizes[place]
    return tuple(sizes)


class Amount(NamedTuple):
    """FLOP and memory traffic of a call.

    `elements` are those of the call's element type, read and written, each tensor
    once (compulsory traffic: what a cache saves or a poor kernel reads twice is part
    of a kernel's efficiency, not of its work); `extra_bytes` are those of other types
    (indices, masks). None is unknown. `tensors` counts what a list operator updates.
    `sizes` are those by which it was measured on GPUs (`device/measured_tables.py`), if it may have been.
    """

    family: str
    flop: int | None
    elements: int | None
    extra_bytes: int = 0
    tensors: int = 1
    sizes: Shape = ()

    def nbytes(self, itemsize: int | None) -> int | None:
        """Return the bytes moved, None where the elements or their size are unknown."""
        if self.elements is None or (itemsize is None and self.elements):
            return None
        return self.elements * (itemsize or 0) + self.extra_bytes
