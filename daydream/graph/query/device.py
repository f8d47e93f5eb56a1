"""What a device runs, as opposed to threads of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import CPU
from daydream.lazy import regex

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, hipGraphLaunch, cuGraphLaunch and their versions

LAUNCH = regex(r"^(cuda|cu|hip)(ExtLaunch|Ext|Module)*Launch\w*Kernel|^mtia\w*[Ll]aunch")


def device_work(graph: Graph) -> np.ndarray:
    """Return a mask over tasks of those that a device runs; collectives on CPU threads (gloo) are none.

    The mask is kept until the next structural edit: read-only.
    """
    on_threads = tuple(number for number, lane in enumerate(graph.lanes) if lane.host)
    kept, mask = graph._derived.get("device_work", (None, None))
    if kept != on_threads:
        host = np.array([lane.host for lane in graph.lanes] + [False], bool)
        mask = graph.columns["kind"] != CPU
        if on_threads:
            mask &= ~host[graph.columns["lane"]]
        mask.flags.writeable = False
        graph._derived["device_work"] = on_threads, mask
    return np.asarray(mask)


def fused_parts(graph: Graph) -> np.ndarray:
    """Return a mask of the parts of fused work: what a map of debug handles gives several owners.

    Returns:
        A mask of the tasks: bool, shape (tasks of the graph,).
    """
    handles = None if graph.trace is None else graph.trace.handles
    if graph.trace is None or handles is None:
        return np.zeros(graph.size, bool)
    several = np.array([*(len(handles[each]) > 1 for each in handles), False])
    row = graph.columns["row"]
    return np.asarray(several[graph.trace["handle"][row]] & (row >= 0))


def whole_duration_ns(tasks: Selection) -> np.ndarray:
    """Return how long the kernel of each task runs: of a part of fused work that of all parts together.

    int64, shape (tasks,), in ns.
    """
    graph, duration = tasks.graph, tasks.duration_ns
    parts = fused_parts(graph)[tasks.ids]
    if not parts.any():
        return duration
    mine = np.flatnonzero(graph.alive & fused_parts(graph) & (graph.columns["repeat"] == 0))
    of_row = np.zeros(int(graph.columns["row"].max()) + 1, np.int64)
    np.add.at(of_row, graph.columns["row"][mine], graph.columns["duration_ns"][mine])
    return np.where(parts, of_row[graph.columns["row"][tasks.ids]], duration)


def in_replays(tasks: Selection) -> Selection:
    """Return those of some device tasks that a replayed CUDA (or HIP) graph runs: its call launched them.

    What nsys records of a graph as a whole is one task; work between its nodes that was not traced counts.
    """
    graph = tasks.graph
    columns = graph.columns
    replays = np.array([GRAPH_LAUNCH in name for name in graph.texts["name"]] + [False], bool)
    call = columns["launch"][tasks.ids]
    found = (call >= 0) & replays[columns["name"][call]] & device_work(graph)[tasks.ids]
    return tasks.of(tasks.ids[found], f"{tasks.words} in replays")


def mostly_replayed(tasks: Selection) -> bool:
    """Tell whether most of some device work, by number or by time, runs inside replays of graphs."""
    inside = in_replays(tasks)
    return 2 * len(inside) > len(tasks) or 2 * inside.total("duration_ns") > tasks.total("duration_ns")


def unrecorded_launches(graph: Graph) -> bool:
    """Tell whether calls of the trace launched kernels, of which it has none."""
    if device_work(graph)[graph.alive].any():
        return False
    names = np.array([bool(LAUNCH.search(name)) for name in graph.texts["name"]] + [False], bool)
    return bool(names[graph.columns["name"][graph.alive]].any())
