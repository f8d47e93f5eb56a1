"""What a sound graph is, as a list of checks, each a sentence when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.cycles import task_name
from daydream.graph.tables import CPU
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


STRUCTURE = ("release_ns", "launch", "kind", "order", "lane")  # columns that are looked at, besides times


def problems(graph: Graph, *, cycles: bool = True, like: Graph | None = None) -> list[str]:
    """Return what is wrong: negative times, lost launches, work on the wrong kind of lane, cycles.

    Whoever simulates the graph next meets its cycles anyway, and may leave them out. Where `like` has the
    same columns but for times, what is wrong with these is looked up once.
    """
    from daydream.graph.lower import lower

    said = _Said(graph)
    said.negative("duration_ns")
    said.negative("gap_ns")
    found: list[str] = [*said.found, *_of_structure(graph, graph if like is None else like)]
    if cycles and not found:
        try:
            lower(graph)
        except GraphError as error:
            found.append(f"{error}.")
    return found


class _Said:
    """Sentences about a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.found: list[str] = []

    def check(self, tasks: np.ndarray, kind: str, said: str) -> None:
        """Say what is wrong with how many tasks, and name the first."""
        if len(tasks):
            first = task_name(self.graph, int(tasks[0]))
            self.found.append(f"{counted(len(tasks), kind)} {said.format(first=first)}")

    def negative(self, name: str) -> None:
        """Say which times of a column are below zero."""
        values = self.graph.columns[name]
        if values.min(initial=0) < 0:  # a removed one's may be
            wrong = np.flatnonzero(self.graph.alive & (values < 0))
            self.check(wrong, "task", f"with a negative {name}, {{first}} first.")


def _of_structure(graph: Graph, like: Graph) -> list[str]:
    columns = [graph.columns[name] for name in STRUCTURE]
    known = like._derived.get("sound")
    if known is not None and known[-1] == graph.lanes and all(map(_same, (*columns, graph.alive), known)):
        graph._derived["sound"] = known
        return []
    found = _wrong(graph)
    if not found and not any(column.flags.writeable for column in columns):  # else written to without a word
        graph._derived["sound"] = like._derived["sound"] = *columns, graph.alive.copy(), list(graph.lanes)
    return found


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one is other or np.array_equal(one, other)


def _wrong(graph: Graph) -> list[str]:
    columns, said = graph.columns, _Said(graph)
    check, alive = said.check, np.flatnonzero(graph.alive)
    said.negative("release_ns")
    launched = alive[columns["launch"][alive] >= 0]
    launch = columns["launch"][launched].astype(np.int64)
    there, of_device = graph.alive[launch], columns["kind"][launched] != CPU
    check(
        launched[~there], "device task",
        "without the call that launched them, {first} first; removing work removes its launch.",
    )  # fmt: skip
    check(
        launched[there & (columns["kind"][launch] != CPU)], "device task",
        "launched by device work, {first} first; only CPU tasks launch.",
    )  # fmt: skip
    check(
        launched[~of_device], "CPU task", "with a launch, {first} first; only device work is launched.",
    )  # fmt: skip
    order = columns["order"]
    check(
        launched[there & of_device & (order[launched] < order[launch])], "device task",
        "ahead of their launch in program order, {first} first; calls in between would not see them.",
    )  # fmt: skip
    lane, is_cpu = columns["lane"][alive], columns["kind"][alive] == CPU
    known = (lane >= 0) & (lane < len(graph.lanes))
    check(alive[~known], "task", "on a lane that is not there, {first} first; make it with `lane_id`.")
    on_device = np.array([lane.on_device for lane in graph.lanes] + [False])[np.where(known, lane, -1)]
    check(alive[known & is_cpu & on_device], "CPU task", "on a lane of the device, {first} first.")
    check(alive[known & ~is_cpu & ~on_device], "device task", "on a CPU thread, {first} first.")
    return said.found
