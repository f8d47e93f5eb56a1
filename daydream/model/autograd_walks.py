"""Autograd's walks over its graph, before a backward pass and behind it.

Before the first node runs, the engine counts what each one waits for; behind the last one the
graph is freed. Both visit all nodes, neither is an operator: in a trace they are untraced CPU time,
0.15 and 0.25 us a node (of 54 to 1,042 nodes, torch 2.13.0, one thread of an x86 server). A model
with fewer layers has fewer nodes.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.graph import Graph, phase_code
from daydream.graph.selection import Selection

NODE = r"^autograd::engine::evaluate_function"
BETWEEN = ("data", "loss", "optimizer", "other")  # phases that part one backward pass from the next


def graph_walks(graph: Graph) -> Selection:
    """Return the CPU tasks whose gap holds such a walk: the one before each pass, and its last one.

    Only of threads that run the forward pass too. A GPU's nodes run on a thread of their own, and the
    caller's walks are in what it waits.
    """
    host = graph.select(kind="cpu").ids
    columns = graph.columns
    nodes = np.isin(host, graph.select(kind="cpu", name=NODE).ids)
    lane, phase = columns["lane"][host], columns["phase"][host]
    forward = np.unique(lane[phase == phase_code("forward")])
    found = []
    for each in forward.tolist():
        mine = np.flatnonzero(lane == each)
        between = np.isin(phase[mine], [phase_code(name) for name in BETWEEN])
        number = np.cumsum(between)
        first = np.flatnonzero(nodes[mine])
        _, place = np.unique(number[first], return_index=True)
        begins = first[place]
        inside = np.flatnonzero(np.isin(number, number[begins]) & (phase[mine] == phase_code("backward")))
        last = inside[np.flatnonzero(np.append(np.diff(number[inside]) != 0, True))[: len(inside)]]
        found += [host[mine[begins[begins > 0] - 1]], host[mine[last]]]
    ids = np.unique(np.concatenate(found)) if found else host[:0]
    return graph.tasks(ids.tolist())


def scale_autograd_walks(graph: Graph, factor: float) -> None:
    """Let autograd's walks over its graph take so many times as long, as over so many times the nodes.

    Before a backward pass it counts what each node waits for, behind it frees the graph: gaps of the CPU
    thread.
    """
    tasks = graph_walks(graph)
    if len(tasks):
        tasks.set(gap_ns=np.rint(tasks.gap_ns * factor).astype(np.int64))


def autograd_node_count(tasks: Selection) -> int:
    """Return how many of these tasks are calls of autograd's nodes."""
    return len(tasks.where(kind="cpu").where(name=NODE))
