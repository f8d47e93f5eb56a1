"""The layout of a plan: the program's tasks in their order, and how a window of them is repeated.

    plan ids   0 ...             | ahead ...       | ahead + block ... |
    tasks      before the window | window, copy 0  | window, copy 1    | ...

Places are those in the program, which ends with copy 0: what is looked up there stands for all copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.plan import stable_order
from daydream.graph.windows import borders, where_in

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.windows import Window

Seams = tuple[np.ndarray, np.ndarray]  # the last task of each lane and copy, and the one whose gap it has


@dataclass(frozen=True)
class Repeats:
    """A program of `ahead` tasks, and behind them a window of `block` tasks that runs `copies` times."""

    ahead: int
    block: int
    copies: int

    def __len__(self) -> int:
        """Return how many tasks the plan has."""
        return self.ahead + self.copies * self.block

    @property
    def tasks(self) -> int:
        """How many tasks the program has: the first of the plan."""
        return self.ahead + self.block

    def of_tasks(self, values: np.ndarray) -> np.ndarray:
        """Return what each task of the plan has, given what each of the program has."""
        if self.copies == 1:
            return values
        return np.concatenate([values, *[values[self.ahead :]] * (self.copies - 1)])

    def numbers(self) -> np.ndarray:
        """Return which copy each task of the plan is in: int32; 0 also ahead of the window."""
        found = np.zeros(len(self), np.int32)
        for copy in range(1, self.copies):  # zeros that are not written to take no memory
            found[self.ahead + copy * self.block :][: self.block] = copy
        return found

    def all_ids(self, places: np.ndarray) -> np.ndarray:
        """Return the plan ids, in order, of all copies of places in the program, which ascend."""
        inside = places[np.searchsorted(places, self.ahead) :]
        return np.concatenate([places, *[inside + copy * self.block for copy in range(1, self.copies)]])

    def ids(self, places: np.ndarray) -> np.ndarray:
        """Return the plan ids of places in the program, or -1: int64, shape (copies, places).

        What lies ahead of the window is in copy 0 only; a place of -1 is nowhere.
        """
        found = places + np.arange(self.copies)[:, None] * self.block
        found[0] = places
        found[1:, places < self.ahead] = -1
        return found

    def places(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the places in the program of plan ids, and the copies that these are in."""
        copy = np.maximum(ids - self.ahead, 0) // max(self.block, 1)
        return ids - copy * self.block, copy

    def as_in(self, plan: np.ndarray, values: np.ndarray) -> bool:
        """Tell whether what the program's tasks have is what the plan's have ahead of the window and last."""
        ahead, last = self.ahead, len(plan) - self.block
        return np.array_equal(plan[:ahead], values[:ahead]) and np.array_equal(plan[last:], values[ahead:])


class Layout:
    """A graph's tasks as a plan has them; columns and places are those of the program.

    `task`, `lane` and `order` are of each place, `at` is the place of each task or -1, `shift` the distance
    in program order between copies, by lane.
    """

    def __init__(self, graph: Graph, copies: int, window: Window | None) -> None:
        task, ahead, lanes = graph.ids, 0, len(graph.lanes)
        self.shift = np.zeros(lanes, np.int64)
        if copies > 1:
            if window is None:
                raise GraphError("repeating needs a window")
            begin, end = borders(graph, window)
            self.shift = end - begin
            where = where_in(graph, window)[task]
            before = task[where == 0]
            task, ahead = np.concatenate([before, task[where == 1]]), len(before)
        self.task = task
        self.repeats = Repeats(ahead, len(task) - ahead, copies)
        self.lane, self.order = graph.columns["lane"][task], graph.columns["order"][task]
        self.at = np.full(graph.size, -1, np.int32)
        self.at[task] = np.arange(len(task), dtype=np.int32)
        by_lane = stable_order(self.lane, lanes)
        bounds = np.append(0, np.cumsum(np.bincount(self.lane, minlength=lanes))).tolist()
        self.of_lane = [by_lane[begin:end] for begin, end in pairwise(bounds)]  # places, ascending
        self.on_device = [number for number, lane in enumerate(graph.lanes) if lane.on_device]
        self._launched: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def ids(self, tasks: np.ndarray) -> np.ndarray:
        """Return the plan ids of tasks, or -1: int64, shape (copies, tasks)."""
        return self.repeats.ids(self.at[tasks])

    def launched(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the plan ids on a lane, all copies, and their program order; none if it is of no device."""
        if lane not in self._launched:
            places = self.of_lane[lane] if lane in self.on_device else self.of_lane[lane][:0]
            ids = self.repeats.all_ids(places)
            place, copy = self.repeats.places(ids)
            self._launched[lane] = ids, self.order[place] + copy * self.shift[lane]
        return self._launched[lane]

    def seams(self) -> Seams:
        """Return where copies meet: plan ids, by copy and lane."""
        ahead, ends, leading = self.repeats.ahead, [], []
        for places in self.of_lane:
            inside = int(np.searchsorted(places, ahead))
            if 0 < inside < len(places):
                leading.append(places[inside - 1])
                ends.append(places[-1])
        more = self.repeats.copies - 1
        ids = self.repeats.ids(np.array(ends, np.int64))[:more].reshape(-1)
        return ids, np.tile(np.array(leading, np.int64), more)

    def leading_in(
        self, name: np.ndarray, src: np.ndarray, dst: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the edges by which links into the window lead into its further copies.

        A link from a step into the next is recorded once where the window begins: its source lies before
        the window. In each further copy the same place of the copy before it takes the source's part:

            before |  window, copy 0  |  copy 1          |
              ...s |d            ...s'|d            ...s'|     recorded: s -> d; in copy 1: s' -> d

        That is as many tasks of its name on its lane before the copy's end. `src` and `dst` are tasks of
        the graph, and `name` what each of its tasks is called. Returns sources and targets as plan ids, and
        the link each edge is of.
        """
        repeats = self.repeats
        copies = np.arange(1, repeats.copies)
        sources, targets, rows = [copies[:0]], [copies[:0]], [copies[:0]]
        begin, end = self.at[src], self.at[dst]
        for row in np.flatnonzero((begin >= 0) & (begin < repeats.ahead) & (end >= repeats.ahead)).tolist():
            mates = self.of_lane[self.lane[begin[row]]]
            alike = mates[name[self.task[mates]] == name[src[row]]]
            each = int((alike >= repeats.ahead).sum())
            if not each:
                continue  # what is not done in the window is not waited for again
            sources.append(repeats.all_ids(alike)[np.searchsorted(alike, begin[row]) + copies * each])
            targets.append(end[row] + copies * repeats.block)
            rows.append(np.full(len(copies), row))
        return np.concatenate(sources), np.concatenate(targets), np.concatenate(rows)
