"""Numbering: the distinct values of a column and the place of each value among them, without sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daydream.arrays import places

SPAN = 4  # a table of this many places for each value is quicker than sorting the values


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct whole numbers in ascending order, and the place of each value among them."""
    if not len(values):
        return values, np.empty(0, np.int64)
    whole = values.astype(np.int64)
    low, high = int(whole.min()), int(whole.max())
    if high - low > SPAN * len(values) + 1024:
        heads = np.flatnonzero(np.append(True, whole[1:] != whole[:-1]))  # of runs of one value
        found, number = places(values[heads])
        return found, np.repeat(number, np.diff(heads, append=len(values)))
    seen = np.zeros(high - low + 1, bool)
    shifted = whole - low
    seen[shifted] = True
    found = np.flatnonzero(seen)
    number = np.empty(len(seen), np.int64)
    number[found] = np.arange(len(found))
    return (found + low).astype(values.dtype), number[shifted]


def distinct_rows(columns: np.ndarray | Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return where each distinct row of some columns comes first, and the place of each row among them.

    Rows are ordered by the first column, then by the next.
    """
    _, number = distinct(np.asarray(columns[0], np.int64))
    for column in columns[1:]:
        values, place = distinct(np.asarray(column, np.int64))
        _, number = distinct(number * len(values) + place)
    return first_of(number, int(number.max(initial=-1)) + 1), number


def first_of(number: np.ndarray, count: int) -> np.ndarray:
    """Return where each of the numbers below `count` comes first, -1 for one that does not come."""
    first = np.full(count, -1)
    first[number[::-1]] = np.arange(len(number))[::-1]  # of what is assigned to one place, the last stays
    return first


def once(numbers: np.ndarray, below: int) -> np.ndarray:
    """Return each of some numbers from 0 to `below` once, where it comes last: in their order."""
    last = np.empty(below, np.int64)
    last[numbers] = np.arange(len(numbers))  # of what is assigned to one place, the last stays
    return numbers[last[numbers] == np.arange(len(numbers))]
