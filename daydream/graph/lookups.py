"""What rules look up again and again: the tasks of each lane in program order, and what was launched.

Rules add tasks and leave lane, kind, launch and order of those that are there alone, so only what was added
since is looked at. Who changes them all the same says so: `forget`.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.plan import stable_order

NONE = np.empty(0, np.int64)


class Lookups:
    """Ids of tasks by what they are, each int64. Arrays are shared: not to be written to."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.forget()

    def forget(self) -> None:
        """Look at all tasks anew."""
        self._lanes: dict[int, np.ndarray] = {}
        self._slices: dict[int, slice | None] = {}
        self._launched = NONE
        self._launched_by: dict[int, np.ndarray] = {}
        self._sorted = self._looked_at = 0  # tasks

    def on(self, lane: int) -> np.ndarray:
        """Return the tasks of a lane in program order."""
        self._sort_in()
        return self._lanes.get(lane, NONE)

    def at(self, lane: int) -> slice | np.ndarray:
        """Return an index of these tasks into columns: a slice where ids follow each other, quick to read."""
        tasks = self.on(lane)
        if lane not in self._slices:
            one_by_one = len(tasks) > 0 and bool((np.diff(tasks) == 1).all())
            self._slices[lane] = slice(int(tasks[0]), int(tasks[-1]) + 1) if one_by_one else None
        return self._slices[lane] or tasks

    def threads(self) -> list[int]:
        """Return the lanes of the CPU that have tasks."""
        self._sort_in()
        return sorted(lane for lane in self._lanes if not self._graph.lanes[lane].on_device)

    def streams(self) -> list[tuple[int, np.ndarray]]:
        """Return (lane, its tasks in program order) for each stream of a device that has tasks."""
        self._sort_in()
        lanes = self._graph.lanes
        return [
            (lane, self._lanes[lane])
            for lane in sorted(self._lanes)
            if lanes[lane].on_device and not lanes[lane].host
        ]

    def launched(self) -> np.ndarray:
        """Return the tasks that a call launched."""
        if self._looked_at < self._graph.size:
            new = np.flatnonzero(self._graph.columns["launch"][self._looked_at :] >= 0) + self._looked_at
            if len(new):
                self._launched = np.concatenate([self._launched, new])
                self._launched_by = {}
            self._looked_at = self._graph.size
        return self._launched

    def launched_by(self, thread: int) -> np.ndarray:
        """Return the tasks that the calls of a thread launched, in program order."""
        work, columns = self.launched(), self._graph.columns
        if not self._launched_by:
            lanes = columns["lane"][columns["launch"][work]]
            for lane in np.flatnonzero(np.bincount(lanes)).tolist():
                self._launched_by[lane] = self.in_order(work[lanes == lane])
        return self._launched_by.get(thread, NONE)

    def in_order(self, tasks: np.ndarray) -> np.ndarray:
        """Return tasks in program order."""
        return tasks[np.argsort(self._graph.columns["order"][tasks], kind="stable")]

    def _sort_in(self) -> None:
        first, graph = self._sorted, self._graph
        if first == graph.size:
            return
        self._sorted = graph.size
        lanes, order = graph.columns["lane"][first:], graph.columns["order"]
        ids = np.arange(first, graph.size)
        if (lanes[1:] < lanes[:-1]).any():
            ids = ids[stable_order(lanes, len(graph.lanes))]
            lanes = graph.columns["lane"][ids]
        cuts = np.append(np.flatnonzero(lanes[1:] != lanes[:-1]) + 1, len(ids)).tolist()
        begin = 0
        for end in cuts:
            lane, mine = int(lanes[begin]), ids[begin:end]
            if lane in self._lanes:
                mine = np.concatenate([self._lanes[lane], mine])
            keys = order[mine]
            if (keys[1:] < keys[:-1]).any():
                mine = mine[np.argsort(keys, kind="stable")]
            self._lanes[lane] = mine
            self._slices.pop(lane, None)
            begin = end
