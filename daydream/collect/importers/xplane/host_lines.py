"""Which lines of a profile's host are one thread.

On AMD's GPUs the calls that launch stand on lines of their own (`Host Threads/7`), while the ranges of the
same thread have a line with its name. A call into HIP is made for an operator, whose range is around
it: that range tells the thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daydream.collect.importers.xplane.space import Line

CALLS_LINE = "Host Threads/"
MOST = 0.9  # of the calls that lie in their operator's range on a line, for it to be their thread's


def calls_on_their_thread(threads: Sequence[tuple[Line, list[str]]]) -> list[int]:
    """Return for each line the line of its thread: itself, or that of the ranges around its calls.

    Args:
        threads: lines and the names of their events.

    """
    of = list(range(len(threads)))
    ranges = [place for place, (line, _) in enumerate(threads) if not line.name.startswith(CALLS_LINE)]
    for place, (line, _) in enumerate(threads):
        if not line.name.startswith(CALLS_LINE):
            continue
        calls = [(row, str(stats["hlo_op"])) for row, stats in enumerate(line.stats) if "hlo_op" in stats]
        if not calls:
            continue
        best = max(((_inside(line, calls, *threads[other]), -other) for other in ranges), default=(0.0, 0))
        if best[0] >= MOST:
            of[place] = -best[1]
    return of


def _inside(line: Line, calls: Sequence[tuple[int, str]], other: Line, names: Sequence[str]) -> float:
    """Return what share of a line's calls begins inside a range of another that has their operator's name."""
    wanted = {name for _, name in calls}
    rows = np.array([row for row, name in enumerate(names) if name in wanted], np.int64)
    if not len(rows):
        return 0.0
    rows = rows[np.argsort(other.start_ns[rows], kind="stable")]
    start = other.start_ns[rows]
    before = np.searchsorted(start, line.start_ns[[row for row, _ in calls]], side="right") - 1
    hits = 0
    for (row, name), at in zip(calls, before.tolist(), strict=True):
        if at >= 0 and names[rows[at]] == name and line.start_ns[row] <= other.end_ns[rows[at]]:
            hits += 1
    return hits / len(calls)
