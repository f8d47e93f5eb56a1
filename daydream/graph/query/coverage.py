"""What runs beside what: the union of intervals, and the lanes of a graph that share a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.arrays import unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from daydream.graph.tables import Lane


class Coverage:
    """The time that any of some intervals covers: `start_ns` and `end_ns` bound its pieces, in order."""

    def __init__(self, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
        lasting = end_ns > start_ns
        order = np.argsort(start_ns[lasting], kind="stable")
        start = start_ns[lasting][order]
        end = np.maximum.accumulate(end_ns[lasting][order])
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > end[:-1]
        self.start_ns: np.ndarray = start[first]
        self.end_ns: np.ndarray = end[np.append(first[1:], True)[: len(end)]]
        self.before_ns = np.append(0, np.cumsum(self.end_ns - self.start_ns))  # covered ahead of each piece
        self._ends_ns = np.append(-(2**62), self.end_ns)  # of the piece that has begun; of none, before all

    def until(self, time_ns: np.ndarray) -> np.ndarray:
        """Return how much is covered before each time."""
        if not len(self.start_ns):
            return np.zeros(np.shape(time_ns), np.int64)
        begun = np.searchsorted(self.start_ns, time_ns, side="right")
        covered: np.ndarray = self.before_ns[begun] - np.maximum(self._ends_ns[begun] - time_ns, 0)
        return covered

    def within(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Return how much of each span is covered."""
        return self.until(end_ns) - self.until(start_ns)


def sharing(lanes: Sequence[Lane]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each device, masks of the lanes whose kernels run on it and of those with its transfers.

    Of a rank with several devices the lanes of no device (a link that an edit made) carry transfers
    of all of them. Pools of CPU threads are on no device.
    """
    rank = np.array([lane.rank for lane in lanes], np.int64)
    device = np.array([lane.device for lane in lanes], np.int64)
    on_device = np.array([lane.on_device and not lane.host for lane in lanes], bool)
    found = []
    for each in unique(rank[on_device]).tolist():
        mine = on_device & (rank == each)
        named = unique(device[mine & (device >= 0)]).tolist()
        for place, number in enumerate(named if len(named) > 1 else [None]):
            compute = transfers = mine
            if number is not None:
                nowhere = device < 0
                compute = mine & ((device == number) | (nowhere & (place == 0)))
                transfers = mine & ((device == number) | nowhere)
            found.append((compute, transfers))
    return found
