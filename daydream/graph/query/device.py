"""What a device runs, as opposed to threads of the CPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, hipGraphLaunch, cuGraphLaunch and their versions

LAUNCH = re.compile(r"^(cuda|cu|hip)(ExtLaunch|Ext|Module)*Launch\w*Kernel|^mtia\w*[Ll]aunch")


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
