"""What a sound graph is, as a list of checks, each a sentence when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.lower import lower, task_name
from daydream.graph.tables import CPU
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def problems(graph: Graph, *, cycles: bool = True) -> list[str]:
    """Return what is wrong: negative times, lost launches, work on the wrong kind of lane, cycles.

    Whoever simulates the graph next meets its cycles anyway, and may leave them out.
    """
    alive = np.flatnonzero(graph.alive)
    found = []

    def check(tasks: np.ndarray, kind: str, issue: str) -> None:
        """Say what is wrong with how many tasks, and name the first."""
        if len(tasks):
            first = task_name(graph, int(tasks[0]))
            found.append(f"{counted(len(tasks), kind)} {issue.format(first=first)}")

    for name in ("duration_ns", "gap_ns", "release_ns"):
        check(
            alive[graph.columns[name][alive] < 0],
            "task",
            f"with a negative {name}, {{first}} first.",
        )
    launched = alive[graph.launch[alive] >= 0]
    launch = graph.launch[launched].astype(np.int64)
    there = graph.alive[launch]
    of_device = graph.kind[launched] != CPU
    check(
        launched[~there],
        "device task",
        "without the call that launched them, {first} first; removing work removes its launch.",
    )
    check(
        launched[there & (graph.kind[launch] != CPU)],
        "device task",
        "launched by device work, {first} first; only CPU tasks launch.",
    )
    check(
        launched[~of_device],
        "CPU task",
        "with a launch, {first} first; only device work is launched.",
    )
    order = graph.order
    check(
        launched[there & of_device & (order[launched] < order[launch])],
        "device task",
        "ahead of their launch in program order, {first} first; calls in between would not see them.",
    )
    lane = graph.lane[alive]
    is_cpu = graph.kind[alive] == CPU
    known = (lane >= 0) & (lane < len(graph.lanes))
    check(
        alive[~known], "task", "on a lane that is not there, {first} first; make it with `lane_id`."
    )
    on_device = np.array([lane.on_device for lane in graph.lanes] + [False])[
        np.where(known, lane, -1)
    ]
    check(alive[known & is_cpu & on_device], "CPU task", "on a lane of the device, {first} first.")
    check(alive[known & ~is_cpu & ~on_device], "device task", "on a CPU thread, {first} first.")
    if cycles and not found:
        try:
            lower(graph)
        except GraphError as error:
            found.append(f"{error}.")
    return found
