"""Device work that graphs launch: what `cuda-graphs` captures, and `compile --mode reduce-overhead`.

Which calls part the work, the cost of a graph's launch, and what is said of the CPU time that goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daydream import Graph, Groups, Selection
from daydream.model import Captured, capture, capture_parts, start_as_nodes
from daydream.transforms import counted

CALL = "cudaGraphLaunch"
LAUNCH_US, NODE_US = 15.0, 0.58  # measured on an RTX 5070 Ti (ahrefs/ocannl, issue 488)
LEAST_SAID_NS = 10_000


def launch_as_graphs(
    graph: Graph,
    captured: Selection,
    other: Selection,
    *,
    phases: Sequence[str],
    launch_us: float,
    node_us: float,
    layer: str | None = None,
    apart: Sequence[Sequence[str]] | None = None,
) -> None:
    """Let graphs launch some device work, and note how many there are and what CPU time goes.

    Args:
        graph: the graph of the trace.
        captured: device work that was launched by calls of its own.
        other: other device work: its launches stay, and part the graphs.
        phases: phases whose CPU work goes.
        launch_us: what the launch of a graph takes on the CPU, us.
        node_us: most time between two nodes that follow each other on a stream, us.
        layer: a shell pattern; each outermost module that matches has graphs of its own.
        apart: groups of phases that have graphs of their own, by default one of all.

    """
    waits = graph.select(kind="cpu").waiting().on_lanes_of(captured.launches())
    by = waits | waits.waited_for() | other.launches()
    parts = _parts(graph, captured, by, layer, apart or [phases])
    nodes = len(captured) / len(parts)
    stays = waits | other.launches()
    if len(other.where(lambda tasks: tasks.op != None)):  # noqa: E711 - a column of texts and None
        stays = stays | other.operators()
    start_as_nodes(captured, round(node_us * 1e3))
    taken = capture(graph, parts, name=CALL, launch_ns=round(launch_us * 1e3), stays=stays, phases=phases)
    many = max(len(captured.group_by("step")), 1)
    graph.note(
        f"{counted(round(len(parts) / many), 'graph')} per step, {counted(round(nodes), 'node')} each."
    )
    _say(graph, taken)


def _parts(
    graph: Graph, captured: Selection, by: Selection, layer: str | None, apart: Sequence[Sequence[str]]
) -> Groups:
    """Return the work in groups that one graph each launches."""
    if layer is None and len(apart) == 1:
        return capture_parts(graph, captured, by)
    number, count = np.full(len(captured), -1), 0
    modules = [captured]
    if layer is not None:
        blocks = captured.group_by(block=layer)
        ends = np.cumsum(blocks.sizes)
        ids = np.split(blocks.by_group.ids, ends[:-1])
        modules = [graph.tasks(np.sort(each)) for each in ids]
    for module in modules:
        for phases in apart:
            held = module.where(phase=tuple(phases))
            if not len(held):
                continue
            groups = capture_parts(graph, held, by | (captured - held).launches())
            of_task = np.full(graph.size, -1)
            of_task[groups.by_group.ids] = np.repeat(np.arange(len(groups)), groups.sizes) + count
            number = np.maximum(number, of_task[captured.ids])
            count += len(groups)
    parts = Groups(captured, number, list(range(count)))
    calls = parts.first().launch
    if len(np.unique(calls)) < len(calls):
        graph.does_not_apply(
            f"some calls launched work of several of the layers {layer!r} at once, as compiled code does: "
            "none of them can be a graph by itself"
        )
    return parts


def _say(graph: Graph, taken: Captured) -> None:
    """Note how much of the CPU time that goes is untraced, and how much between captured launches stays."""
    steps = max(sum(bool(step.get("covered")) for step in graph.steps), 1)
    if taken.untraced > 0:
        graph.note(
            f"Of the CPU time that goes, {taken.untraced / steps / 1e6:,.2f} ms per step "
            f"({taken.untraced / (taken.untraced + max(taken.work, 0)):.0%}) are untraced: taken for Python "
            "between launches."
        )
    if taken.stays > LEAST_SAID_NS * steps:
        graph.note(
            f"{taken.stays / steps / 1e6:,.2f} ms per step of CPU time between captured launches stay: calls "
            "and pauses of over 1 ms and allocations are first uses, file access or waiting."
        )
