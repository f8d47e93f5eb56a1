"""Amount: what one call of an operator computes and moves."""

from __future__ import annotations

from typing import NamedTuple


class Amount(NamedTuple):
    """FLOP and memory traffic of a call.

    `elements` are those of the call's element type, read and written, each tensor
    once (compulsory traffic: what a cache saves or a poor kernel reads twice is part
    of a kernel's efficiency, not of its work); `extra_bytes` are those of other types
    (indices, masks). None is unknown. `tensors` counts what a list operator updates.
    """

    family: str
    flop: int | None
    elements: int | None
    extra_bytes: int = 0
    tensors: int = 1

    def nbytes(self, itemsize: int | None) -> int | None:
        """Return the bytes moved, None where the elements or their size are unknown."""
        if self.elements is None or (itemsize is None and self.elements):
            return None
        return self.elements * (itemsize or 0) + self.extra_bytes
