"""CUDA and HIP graphs: one launch, many kernels.

The nodes of a graph launch share its correlation id. On one stream they run in
order; a node that starts just as a node of the same launch ends on another stream
waited for it. Profilers record only some of a graph's nodes at times: a hole
between two recorded nodes is device work that was not traced, and takes part in a
what-if as such. Treated as idle time, it would be missing from the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daydream.arrays import distinct_rows
from daydream.graph.calls import GRAPH_LAUNCH
from daydream.graph.draft import NEVER, DeviceWork, Draft, runs_of
from daydream.graph.plan import Cause
from daydream.graph.rules.latencies import ready
from daydream.graph.rules.thresholds import (
    GRAPH_HOLE_NS,
    GRAPH_NODE_NS,
    HEAD_NS,
    HEAD_OF_PARTLY_TRACED_NS,
    STREAM_CLOCK_NS,
)
from daydream.graph.tables import CPU, KERNEL, UNTRACED_HEAD, UNTRACED_NODES
from daydream.lazy import regex
from daydream.text import counted

BEGIN_CAPTURE = regex(r"StreamBeginCapture")
GRAPH_WORDS = {"cuda": "CUDA graph", "rocm": "HIP graph"}


def fill_holes(draft: Draft) -> None:
    """Put untraced work into the holes between nodes of a graph launch that runs on one stream."""
    work = draft.device_work
    if work is None or (work.launch < 0).all():  # nothing tells a graph's hole from a pause
        return
    end = work.start + work.duration
    same = (work.unit[1:] == work.unit[:-1]) & (work.lane[1:] == work.lane[:-1]) & (work.unit[1:] >= 0)
    same &= work.start[1:] - end[:-1] > GRAPH_HOLE_NS
    units = work.unit[distinct_rows([work.unit, work.lane])[0]]  # again for each further stream of a unit
    hole = np.flatnonzero(same & ~np.isin(work.unit[1:], units[1:][units[1:] == units[:-1]]))
    after = hole + 1
    whole = {name: np.insert(values, after, values[after]) for name, values in vars(work).items()}
    new = after + np.arange(len(after))
    whole["row"][new] = -1
    whole["start"][new] = end[hole]
    whole["duration"][new] = work.start[after] - end[hole]
    draft.device_work = DeviceWork(**whole)


def link_nodes(draft: Draft) -> None:
    """Link nodes of one graph launch across streams, and count the holes that stand for untraced work."""
    named = _graph_word(draft)
    captured = int(draft.named(BEGIN_CAPTURE.search)[draft.kind == CPU].sum())
    if captured:
        draft.note(
            f"{counted(captured, f'{named} is', f'{named}s are')} captured here: calls between begin and "
            "end of a capture run nothing; their work runs when the graph is replayed."
        )
    holes = draft.duration_ns[_untraced(draft)]
    if len(holes):
        draft.facts.untraced_ns += int(holes.sum())
        draft.note(
            f"{counted(len(holes), 'hole')} between recorded nodes of {named}s, {holes.sum() / 1e6:,.2f} ms "
            "in total, counted as untraced device work."
        )
    nodes = draft.launched()
    nodes = nodes[np.bincount(draft.launch[nodes], minlength=1)[draft.launch[nodes]] > 1]
    nodes = nodes[np.lexsort((draft.start_ns[nodes], draft.launch[nodes]))]
    for begin, end in runs_of(draft.launch[nodes]):
        lanes = draft.lane[nodes[begin:end]]
        if (lanes != lanes[0]).any():
            _link_streams(draft, nodes[begin:end])


def _graph_word(draft: Draft) -> str:
    """Return what the device's vendor calls many kernels of one launch."""
    return GRAPH_WORDS.get(draft.trace.metadata.get("vendor", "cuda"), "device graph")


def _untraced(draft: Draft) -> np.ndarray:
    """Return the device work without a row, which stands for nodes that were not traced."""
    return np.flatnonzero((draft.kind != CPU) & (draft.row < 0))


def _link_streams(draft: Draft, nodes: np.ndarray) -> None:
    lanes = draft.lane[nodes]
    ends = draft.end_ns[nodes]
    free: dict[int, int] = {}
    for place, node in enumerate(nodes.tolist()):
        start = int(draft.start_ns[node])
        lane = int(lanes[place])
        if start - free.get(lane, NEVER) > STREAM_CLOCK_NS:
            others = np.flatnonzero((lanes[:place] != lane) & (ends[:place] <= start + STREAM_CLOCK_NS))
            if len(others):
                source = int(others[np.argmax(ends[others])])
                latency = start - int(ends[source])
                if latency <= GRAPH_NODE_NS:
                    draft.link(nodes[[source]], nodes[[place]], latency_ns=max(latency, 0), cause=Cause.GRAPH)
        free[lane] = int(ends[place])


def fill_heads(draft: Draft) -> None:
    """Put untraced work in front of what was launched long before it started, with nothing to hold it back.

    Ahead of the first recorded node of a graph, other nodes of it ran: they are launched with it. Ahead of
    the first task of a stream, work ran that was launched before the window, most often a graph's.
    """
    # First recorded nodes of graph launches that started long after all that could hold them.
    nodes = draft.launched()
    nodes = nodes[draft.named(lambda name: GRAPH_LAUNCH in name, draft.launch[nodes])]
    nodes = nodes[np.argsort(draft.start_ns[nodes], kind="stable")]
    _, first = np.unique(draft.launch[nodes], return_index=True)
    first = nodes[first]
    begun = ready(draft, first)
    partly = np.isin(draft.launch[first], draft.launch[_untraced(draft)])
    late = draft.start_ns[first] - begun > np.where(partly, HEAD_OF_PARTLY_TRACED_NS, HEAD_NS)
    inside = first[late]
    # First tasks of streams.
    firsts = np.array([tasks[0] for _, tasks in draft.streams()], np.int64)
    firsts = firsts[~np.isin(firsts, inside) & (draft.launch[firsts] >= 0)]
    firsts = firsts[draft.start_ns[firsts] - ready(draft, firsts) > HEAD_NS]
    if len(inside):
        _add_heads(
            draft,
            inside,
            begun[late],
            f"{counted(len(inside), _graph_word(draft))} began with nodes that were not recorded",
            name=draft.code("name", UNTRACED_NODES),
            launch=draft.launch[inside],
            order=draft.order[inside] - 1,
            step=draft.step[inside],
        )
    if len(firsts):
        called = ready(draft, firsts)
        streams = counted(len(firsts), "stream")
        _add_heads(
            draft,
            firsts,
            called,
            f"{streams} began with work launched before the window that was not recorded",
            name=draft.code("name", UNTRACED_HEAD),
            order=draft.order[draft.launch[firsts]] - 1,
            release_ns=called,
        )


def _add_heads(draft: Draft, tasks: np.ndarray, begun: np.ndarray, what: str, **columns: Any) -> None:
    """Add untraced work ahead of tasks, from when these were free to start, and note what it is."""
    duration = draft.start_ns[tasks] - begun
    draft.add(
        len(tasks),
        lane=draft.lane[tasks],
        kind=KERNEL,
        phase=draft.phase[tasks],
        duration_ns=duration,
        start_ns=begun,
        **columns,
    )
    draft.facts.untraced_ns += int(duration.sum())
    draft.note(f"{what}, {duration.sum() / 1e6:,.2f} ms in total, counted as untraced device work.")
