"""Rule 9, CUDA and HIP graphs: one launch, many kernels.

The nodes of a graph launch share its correlation id. On one stream they run in
order; a node that starts just as a node of the same launch ends on another stream
waited for it. Profilers record only some of a graph's nodes at times: a hole
between two recorded nodes is device work that was not traced, and takes part in a
what-if as such. Treated as idle time, it would be missing from the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.graph.builder import GraphBuilder, runs_of
from daydream.graph.plan import Cause
from daydream.graph.query.device import GRAPH_LAUNCH
from daydream.graph.tables import CPU, KERNEL, UNTRACED_HEAD, UNTRACED_NODES
from daydream.lazy import regex
from daydream.text import counted

HOLE_NS = 10_000  # nodes of a graph follow each other in 0.5 to 2 us
NEAR_NS = 20_000
CLOCK_NS = 3_000
HEAD_NS = 1_000_000  # launches of an idle stream take 5 to 30 us, first uses some hundred
BEGIN_CAPTURE = regex(r"StreamBeginCapture")
PARTLY_NS = 100_000  # of a graph of which other nodes are missing; its first starts in 10 to 50 us
GRAPH_WORDS = {"cuda": "CUDA graph", "rocm": "HIP graph"}


@dataclass
class DeviceWork:
    """Device tasks by lane, in order: `row` is -1 for work that was not traced, `like` a row it resembles."""

    row: np.ndarray
    like: np.ndarray
    lane: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    launch: np.ndarray
    order: np.ndarray
    unit: np.ndarray  # correlation, the same for all nodes of a graph launch


def fill_holes(work: DeviceWork) -> DeviceWork:
    """Put untraced work into the holes between nodes of a graph launch that runs on one stream."""
    if (work.launch < 0).all():  # no launch was recorded: nothing tells a graph's hole from a pause
        return work
    end = work.start + work.duration
    same = (work.unit[1:] == work.unit[:-1]) & (work.lane[1:] == work.lane[:-1]) & (work.unit[1:] >= 0)
    hole = np.flatnonzero(same & (work.start[1:] - end[:-1] > HOLE_NS))
    if len(hole):
        hole = hole[~np.isin(work.unit[hole + 1], _spread(work))]
    if not len(hole):
        return work
    after = hole + 1
    return DeviceWork(
        row=np.insert(work.row, after, -1),
        like=np.insert(work.like, after, work.like[after]),
        lane=np.insert(work.lane, after, work.lane[after]),
        start=np.insert(work.start, after, end[hole]),
        duration=np.insert(work.duration, after, work.start[after] - end[hole]),
        launch=np.insert(work.launch, after, work.launch[after]),
        order=np.insert(work.order, after, work.order[after]),
        unit=np.insert(work.unit, after, work.unit[after]),
    )


def _spread(work: DeviceWork) -> np.ndarray:
    """Return the launches whose nodes run on more than one stream."""
    by_unit = np.lexsort((work.lane, work.unit))
    unit, lane = work.unit[by_unit], work.lane[by_unit]
    spread: np.ndarray = np.unique(unit[1:][(unit[1:] == unit[:-1]) & (lane[1:] != lane[:-1])])
    return spread


def _graph_word(builder: GraphBuilder) -> str:
    """Return what the device's vendor calls many kernels of one launch."""
    return GRAPH_WORDS.get(builder.trace.metadata.get("vendor", "cuda"), "device graph")


def link_nodes(builder: GraphBuilder) -> None:
    """Link nodes of one graph launch across streams, and count the holes that stand for untraced work."""
    graph = builder.graph
    columns = graph.columns
    named = _graph_word(builder)
    captured = int(builder.named(BEGIN_CAPTURE.search)[columns["kind"] == CPU].sum())
    if captured:
        graph.note(
            f"{counted(captured, f'{named} is', f'{named}s are')} captured here: calls between begin and "
            "end of a capture run nothing; their work runs when the graph is replayed."
        )
    holes = (columns["kind"] != CPU) & (columns["row"] < 0)
    if holes.any():
        graph.facts.untraced_ns += int(columns["duration_ns"][holes].sum())
        found, total = counted(int(holes.sum()), "hole"), columns["duration_ns"][holes].sum()
        graph.note(
            f"{found} between recorded nodes of {named}s, {total / 1e6:,.2f} ms in total, "
            "counted as untraced device work."
        )
    launched = builder.tasks.launched()
    call = columns["launch"][launched]
    shared = launched[np.bincount(call)[call] > 1] if len(call) else launched
    shared = shared[np.argsort(columns["launch"][shared], kind="stable")]
    lane = columns["lane"][shared]
    for begin, end in runs_of(columns["launch"][shared]):
        if (lane[begin:end] != lane[begin]).any():
            _link_streams(builder, shared[begin:end])


def fill_heads(builder: GraphBuilder) -> None:
    """Put untraced work in front of what was launched long before it started, with nothing to hold it back.

    Ahead of the first recorded node of a graph, other nodes of it ran: they are launched with it. Ahead of
    the first task of a stream, work ran that was launched before the window, most often a graph's.
    """
    inside = _node_heads(builder)
    firsts = np.array([int(tasks[0]) for _, tasks in builder.tasks.streams()], np.int64)
    firsts = firsts[~np.isin(firsts, inside)]
    _add_heads(builder, inside, UNTRACED_NODES, launched=True)
    columns = builder.graph.columns
    firsts = firsts[columns["launch"][firsts] >= 0]
    begun = builder.start_ns[columns["launch"][firsts]]
    _add_heads(
        builder, firsts[builder.start_ns[firsts] - _free(builder, firsts, begun) > HEAD_NS], UNTRACED_HEAD
    )


def _node_heads(builder: GraphBuilder) -> np.ndarray:
    """Return the first recorded nodes of graph launches that started long after all that could hold them."""
    columns = builder.graph.columns
    nodes = builder.tasks.launched()
    nodes = nodes[builder.named(lambda name: GRAPH_LAUNCH in name, columns["launch"][nodes])]
    if not len(nodes):
        return nodes
    nodes = nodes[np.argsort(builder.start_ns[nodes], kind="stable")]
    calls, first = np.unique(columns["launch"][nodes], return_index=True)
    first = nodes[first]
    begun = np.maximum(builder.start_ns[calls], builder.ended_before(first))
    partly = np.isin(calls, columns["launch"][(columns["row"] < 0) & (columns["kind"] != CPU)])
    late = builder.start_ns[first] - _free(builder, first, begun)
    found: np.ndarray = first[late > np.where(partly, PARTLY_NS, HEAD_NS)]
    return found


def _free(builder: GraphBuilder, tasks: np.ndarray, begun: np.ndarray) -> np.ndarray:
    """Return when the work that each task is known to wait for had ended, at least when it had `begun`."""
    held = dict(builder.event_pairs + builder.matched)
    ended = [int(builder.end_ns[held[task]]) if task in held else -(2**60) for task in tasks.tolist()]
    return np.maximum(begun, np.array(ended, np.int64))


def _add_heads(builder: GraphBuilder, tasks: np.ndarray, name: str, *, launched: bool = False) -> None:
    """Add untraced work ahead of tasks, from when these were free to start: `launched` with them or not."""
    if not len(tasks):
        return
    graph = builder.graph
    columns = graph.columns
    calls = columns["launch"][tasks]
    begun = _free(builder, tasks, np.maximum(builder.start_ns[calls], builder.ended_before(tasks)))
    duration = builder.start_ns[tasks] - begun
    how = (
        {"launch": calls, "order": columns["order"][tasks] - 1, "step": columns["step"][tasks]}
        if launched
        else {"order": columns["order"][calls] - 1, "release_ns": begun}
    )
    graph.add(
        len(tasks), lane=columns["lane"][tasks], kind=KERNEL, name=graph.code("name", name),
        phase=columns["phase"][tasks], duration_ns=duration, measured_start_ns=begun, **how,
    )  # fmt: skip
    builder.extend(builder.start_ns[tasks])
    graph.facts.untraced_ns += int(duration.sum())
    total = f"{duration.sum() / 1e6:,.2f} ms in total, counted as untraced device work."
    if launched:
        graph.note(
            f"{counted(len(tasks), _graph_word(builder))} began with nodes that were not recorded, {total}"
        )
    else:
        streams = counted(len(tasks), "stream")
        graph.note(f"{streams} began with work launched before the window that was not recorded, {total}")


def _link_streams(builder: GraphBuilder, nodes: np.ndarray) -> None:
    columns = builder.graph.columns
    nodes = nodes[np.argsort(builder.start_ns[nodes], kind="stable")]
    lanes, ends = columns["lane"][nodes], builder.end_ns[nodes]
    free: dict[int, int] = {}
    for place, node in enumerate(nodes.tolist()):
        start, lane = int(builder.start_ns[node]), int(lanes[place])
        if start - free.get(lane, -(2**60)) > CLOCK_NS:
            others = np.flatnonzero((lanes[:place] != lane) & (ends[:place] <= start + CLOCK_NS))
            if len(others):
                source = int(others[np.argmax(ends[others])])
                if start - ends[source] <= NEAR_NS:
                    latency = max(start - int(ends[source]), 0)
                    builder.graph.link([int(nodes[source])], [node], latency_ns=latency, cause=Cause.GRAPH)
                    builder.matched.append((node, int(nodes[source])))
        free[lane] = int(ends[place])
