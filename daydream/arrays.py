"""What NumPy has, without what it imports for it: `np.unique` and `np.percentile` load `numpy.ma`, 10 ms.

For what a kept answer is made with: a hundred milliseconds in all.

Freed memory: kept where many simulations follow each other, handed back where a part of the work is done.

Every scenario makes and drops arrays of some MB. glibc hands those back to the system at once, and each
page that is taken again is cleared and mapped again. It can keep them. A sweep of 30 scenarios over a
trace of 75,000 rows takes 1.9 s of CPU time so, 2.6 s without (0.03 and 0.36 million page faults); `rank`
on 111,000 tasks 3.3 and 3.6 s; their peaks of memory are the same (medians in turns, 2-core x86, glibc 2.36).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def unique(values: npt.ArrayLike) -> np.ndarray:
    """Return the distinct values in ascending order, as `np.unique` does: shape (n,), none of them NaN."""
    ordered = np.sort(values, axis=None)
    return ordered[run_starts(ordered)]


def take(values: np.ndarray, rows: Any, default: Any = -1) -> np.ndarray:
    """Return the values of some rows, `default` for the row -1: shape of `rows`."""
    return np.append(values, default)[rows]


def run_starts(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that differ from the one before: where each run of equal ones begins."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


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
    below = ordered[low]
    above = ordered[np.minimum(low + 1, len(ordered) - 1)]
    share = place - low
    apart = above - below
    return np.where(share < 0.5, below + apart * share, above - apart * (1 - share))[()]


SPAN = 4  # a table of this many places for each value is quicker than sorting the values


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct whole numbers in ascending order, and the place of each value among them."""
    if not len(values):
        return values, np.empty(0, np.int64)
    whole = values.astype(np.int64)
    low = int(whole.min())
    high = int(whole.max())
    if high - low > SPAN * len(values) + 1024:
        heads = np.flatnonzero(run_starts(whole))
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
    _, number = distinct(np.asarray(columns[0]))
    for column in columns[1:]:
        values, place = distinct(np.asarray(column))
        _, number = distinct(number * len(values) + place)
    return first_of(number, int(number.max(initial=-1)) + 1), number


def combinations(
    columns: np.ndarray | Sequence[np.ndarray],
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Return which distinct combination each row of some columns holds, and the combinations, in order."""
    first, number = distinct_rows(columns)
    return number, list(zip(*(column[first].tolist() for column in columns), strict=True))


def first_of(number: np.ndarray, count: int) -> np.ndarray:
    """Return where each of the numbers below `count` comes first, -1 for one that does not come."""
    first = np.full(count, -1)
    first[number[::-1]] = np.arange(len(number))[
        ::-1
    ]  # of what is assigned to one place, the last stays
    return first


def lookup(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each wanted number stands first among some keys, -1 where it is none of them: int64."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    row = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[row] == wanted, row, -1)


def last_before(
    group: np.ndarray, time: np.ndarray, at_group: np.ndarray, at_time: np.ndarray
) -> np.ndarray:
    """Return which row of its group each asked time is at or right behind, -1 where none is: int64.

    Args:
        group: the group of each row, a whole number.
        time: when each row is.
        at_group: the groups that are asked for.
        at_time: the times that are asked for.

    """
    asked = np.arange(len(group) + len(at_group)) >= len(group)
    groups = np.append(group, at_group)
    order = np.lexsort((asked, np.append(time, at_time), groups))
    last = np.maximum.accumulate(np.where(asked[order], -1, np.arange(len(order))))
    found = np.empty(len(order), np.int64)
    found[order] = np.where((last >= 0) & (groups[order[last]] == groups[order]), order[last], -1)
    return found[len(group) :]


def innermost(
    group: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    around: np.ndarray,
    at_group: np.ndarray,
    at_start: np.ndarray,
) -> np.ndarray:
    """Return which range of its group is the innermost around each asked start, -1 where none is: int64.

    Ranges are in order of group and start, outer first; `around` is the range that each lies in, -1 for none.
    """
    found = last_before(group, start, at_group, at_start)
    while (over := (found >= 0) & (end[found] <= at_start) & (start[found] < at_start)).any():
        found[over] = around[found[over]]
    return found


def turns(numbers: np.ndarray) -> np.ndarray:
    """Return how often the number at each place came before."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    index = np.arange(len(numbers))
    found = np.empty(len(numbers), np.int64)
    found[order] = index - np.maximum.accumulate(np.where(run_starts(ordered), index, 0))
    return found


def once(numbers: np.ndarray, below: int) -> np.ndarray:
    """Return each of some numbers from 0 to `below` once, where it comes last: in their order."""
    last = np.empty(below, np.int64)
    last[numbers] = np.arange(len(numbers))  # of what is assigned to one place, the last stays
    return numbers[last[numbers] == np.arange(len(numbers))]


# The memory of arrays, in processes of our own -------------------------------------------------


MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # from glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes: half a heap of a thread; glibc refuses more on 64 bits
KEPT = 1 << 30  # bytes at the top of the heap that are not handed back
STEP = 64 << 20  # bytes that the heap grows by


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed from now on; return whether it does. Elsewhere nothing happens.

    This is for processes of our own that simulate many scenarios: commands, and workers of engines.
    Nothing in the Python API calls it, since the allocator of a user's process is the user's.
    """
    set_option = _of_glibc("mallopt")
    if set_option is None:
        return False
    wanted = ((MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD), (TRIM_THRESHOLD, KEPT), (TOP_PAD, STEP))
    return 0 not in [set_option(option, value) for option, value in wanted]


def hand_back_freed_memory() -> None:
    """Give what is freed but still held by glibc to the system; elsewhere nothing happens.

    Between two parts of an import that each make and drop large arrays, of unlike sizes: what the one leaves
    is in pieces, and the other takes new memory beside them.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # numpy has imported it already

    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
    return found
