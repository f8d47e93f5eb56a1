"""What a sound graph is, as a list of checks, each a sentence when it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def problems(graph: Graph) -> list[str]:
    """Return what is wrong: negative times, lost launches, work on the wrong kind of lane, cycles."""
    from daydream.graph.lower import lower

    columns = graph.columns
    alive = np.flatnonzero(graph.alive)
    found = []
    for name in ("duration_ns", "gap_ns", "release_ns"):
        negative = alive[columns[name][alive] < 0]
        if len(negative):
            found.append(
                f"{len(negative):,} tasks have a negative {name}, {_name(graph, negative[0])} first."
            )
    launch = columns["launch"][alive]
    lost = alive[(launch >= 0) & ~graph.alive[launch]]
    if len(lost):
        found.append(
            f"{len(lost):,} device tasks lost the call that launched them, {_name(graph, lost[0])} first; "
            "remove the work, and its launch goes along."
        )
    on_device = np.array([lane.on_device for lane in graph.lanes] + [False])[columns["lane"][alive]]
    is_cpu = columns["kind"][alive] == 0
    misplaced = alive[is_cpu & on_device]
    if len(misplaced):
        found.append(
            f"{len(misplaced):,} CPU tasks are on a device lane, {_name(graph, misplaced[0])} first."
        )
    if not found:
        try:
            lower(graph)
        except GraphError as error:
            found.append(f"{error}.")
    return found


def _name(graph: Graph, task: int) -> str:
    name = graph.texts["name"][graph.columns["name"][task]]
    return repr(name if len(name) <= 60 else name[:57] + "...")
