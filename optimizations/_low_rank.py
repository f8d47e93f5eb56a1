"""Which gradients an all-reduce holds, and how large the low-rank factors are that could stand for them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from daydream import Graph, NotApplicableError, Selection
from daydream.costs import itemsize
from daydream.model import gradients_of, shapes_in

SAVED = 2  # least factor by which factors must be smaller: `min_compression_rate` of torch's PowerSGDState
UNLIKE = 0.01  # sums of gradients and of their all-reduces that differ by more are of different things


@dataclass(frozen=True)
class Factors:
    """Of each all-reduce: its gradients, those that are compressed, their values, and those of P and Q."""

    tensors: np.ndarray
    matrices: np.ndarray
    compressed: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def where(self, mask: np.ndarray) -> Factors:
        """Return those of some all-reduces."""
        return Factors(
            self.tensors[mask], self.matrices[mask], self.compressed[mask], self.left[mask], self.right[mask]
        )


def factors_of(graph: Graph, reduced: Selection, rank: int) -> Factors:
    """Return what rank-`rank` factors of the gradients in each all-reduce hold, in values.

    A gradient's first dimension gives the rows, all others together the columns. The gradients of a
    step fill its all-reduces in the order in which they are ready. Those of steps whose sums differ hold
    none here. Raises `NotApplicableError` where shapes are unknown or no step's sums agree.
    """
    gradients = gradients_of(graph)
    shapes = [(shapes_in(text) or [[]])[0] if text else [] for text in gradients.nodes.shapes.tolist()]
    width = [itemsize(dtype or "float32") or 4 for dtype in gradients.nodes.dtype.tolist()]
    sizes = [prod(shape) * each if shape else -1 for shape, each in zip(shapes, width, strict=True)]
    if sizes != gradients.nbytes.tolist():
        raise NotApplicableError("the shapes of this trace's gradients are unknown; record it with shapes")
    rows = np.array([shape[0] for shape in shapes])
    columns = np.array([prod(shape[1:]) for shape in shapes])
    thin = np.minimum(np.minimum(rows, columns), rank)
    small = (rows + columns) * thin * SAVED < rows * columns

    number = np.full(len(gradients), -1)
    mine, theirs = (
        list(zip(tasks.step.tolist(), tasks.rank.tolist(), strict=True))
        for tasks in (gradients.nodes, reduced)
    )
    for step in sorted(set(mine) & set(theirs)):
        here = np.array([one == step for one in mine])
        there = np.flatnonzero([one == step for one in theirs])
        filled, nbytes = np.cumsum(reduced.bytes[there]), gradients.nbytes[here]
        if abs(nbytes.sum() - filled[-1]) <= UNLIKE * filled[-1]:
            place = np.searchsorted(filled, np.cumsum(nbytes) - nbytes / 2)
            number[here] = there[np.minimum(place, len(there) - 1)]
    known = number >= 0
    if not known.any():
        raise NotApplicableError(
            "the gradients of a step are not as large as what its all-reduces hold together"
        )

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(number[known], values[known], len(reduced)).astype(np.int64)

    return Factors(
        summed(np.ones(len(rows))), summed(small), summed(small * rows * columns),
        summed(small * rows * thin), summed(small * columns * thin),
    )  # fmt: skip
