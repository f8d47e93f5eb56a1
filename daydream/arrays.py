"""What NumPy has, without what it imports for it: `np.unique` and `np.percentile` load `numpy.ma`, 10 ms.

For what a kept answer is made with: a hundred milliseconds in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def unique(values: npt.ArrayLike) -> np.ndarray:
    """Return the distinct values in ascending order, as `np.unique` does: shape (n,), none of them NaN."""
    ordered = np.sort(values, axis=None)
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def places(values: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in ascending order, and the place of each value among them, int64."""
    found = unique(values)
    return found, np.searchsorted(found, values)


def percentile(values: npt.ArrayLike, percent: float | Sequence[float]) -> Any:
    """Return what this share of the values is below, to the last bit as `np.percentile` does.

    Args:
        values: one or more numbers, none of them NaN.
        percent: from 0 to 100; of several, an array of as many is returned.

    """
    ordered = np.sort(values, axis=None)
    place = (len(ordered) - 1) * np.true_divide(percent, 100)
    low = np.floor(place).astype(np.intp)
    below, above = ordered[low], ordered[np.minimum(low + 1, len(ordered) - 1)]
    share, apart = place - low, above - below
    return np.where(share < 0.5, below + apart * share, above - apart * (1 - share))[()]
