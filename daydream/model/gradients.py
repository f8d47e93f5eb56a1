"""Layers in the order they run, and the bytes of gradient that backward tasks produce."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import NotApplicableError
from daydream.graph.calls import instances, shapes_in
from daydream.graph.tables import CPU, KERNEL
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

ACCUMULATE = re.compile(r"^(torch::autograd::)?AccumulateGrad$")
BYTES = {
    "float64": 8,
    "double": 8,
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "complex64": 8,
    "complex128": 16,
}
BACKWARD = PHASES.index("backward")


def gradient_bytes(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return the bytes of parameter gradients that are complete when each task ends, 0 for none.

    A gradient is complete with the last backward work that ran, or was launched, before
    its `AccumulateGrad` node ended; its size is the node's recorded input, else that of
    its layer's parameters. Without such nodes it is complete with the last backward task
    of the parameter's layer. Raises `NotApplicableError` where the trace tells no sizes.
    """

    def of_tasks() -> np.ndarray:
        found = np.zeros(graph.size, np.int64)
        _, producers, size = gradients(graph)
        np.add.at(found, producers, size)
        return found

    found: np.ndarray = graph.derived("grad_bytes", of_tasks, structure=True)[ids]
    return found


def gradients(
    graph: Graph,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the parameter gradients one by one, in program order: node, maker, bytes.

    The node is the task with which a gradient is complete, its maker the device work that
    produced it (the node itself on a CPU); see `gradient_bytes`.
    """
    nodes, size = _nodes(graph)
    if not len(nodes):
        nodes, size = _last_of_layers(graph)
    order = np.lexsort((nodes, graph.order[nodes]))
    nodes, size = nodes[order], size[order]
    return nodes, _producers(graph, nodes), size


def accumulated(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the last CPU task of each `AccumulateGrad` node, in program order, and its gradient's maker."""
    nodes, _ = _accumulating(graph)
    nodes = nodes[np.lexsort((nodes, graph.order[nodes]))]
    return nodes, _producers(graph, nodes)


def _nodes(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the last CPU task of each `AccumulateGrad` node, and the bytes of its gradient."""
    tasks, rows = _accumulating(graph)
    if not len(tasks):
        return tasks, rows
    sizes = _recorded_sizes(graph, rows)
    if (sizes < 0).any() and graph.layer[tasks].max(initial=-1) >= 0:
        return _shared_out(graph, tasks)
    if (sizes < 0).any() or not len(tasks):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return tasks, sizes


def _accumulating(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the last CPU task and the row of each `AccumulateGrad` node."""
    trace = graph.recorded
    if not len(trace):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    cpu = graph.ids[graph.kind[graph.ids] == CPU]
    call = instances(graph, cpu, ACCUMULATE.pattern)
    cpu, call = cpu[call >= 0], call[call >= 0]
    calls, last = np.unique(call[::-1], return_index=True)
    return cpu[::-1][last], calls % len(trace)


def _recorded_sizes(graph: Graph, rows: np.ndarray) -> np.ndarray:
    """Return the bytes of the first input of these rows, -1 where shape or element type are unknown."""
    shapes, types = (
        graph.recorded.values("shapes", rows.tolist()),
        graph.recorded.values("dtype", rows.tolist()),
    )
    sizes = []
    for shape, dtype in zip(shapes, types, strict=True):
        tensors = shapes_in(shape) if shape is not None else []
        sizes.append(prod(tensors[0]) * BYTES[dtype] if tensors and dtype in BYTES else -1)
    return np.array(sizes, np.int64)


def _layer_bytes(graph: Graph) -> np.ndarray:
    """Return the bytes of gradient of each layer, by layer code."""
    metadata = graph.recorded.metadata
    codes = {layer: code for code, layer in enumerate(graph.texts["layer"])}
    found = np.zeros(len(codes) + 1, np.int64)
    for parameter in metadata.get("parameters", []):
        code = codes.get(parameter.get("layer"))
        if code is not None:
            found[code] += int(parameter.get("gradient_bytes") or 0)
    if not found.any():
        raise NotApplicableError(
            "the sizes of this trace's gradients are unknown: it has neither recorded shapes of "
            "AccumulateGrad nor parameters; record it with `daydream collect`"
        )
    return found


def _shared_out(graph: Graph, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the bytes of each layer to the last of its nodes in each step."""
    sizes = _layer_bytes(graph)
    tasks = tasks[np.lexsort((tasks, graph.order[tasks]))][::-1]
    key = graph.layer[tasks].astype(np.int64) * (2**31) + graph.step[tasks]
    _, last = np.unique(key, return_index=True)
    tasks = tasks[last]
    tasks = tasks[graph.layer[tasks] >= 0]
    return tasks, sizes[graph.layer[tasks]]


def _last_of_layers(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the last backward task of each layer and step, and the bytes of the layer."""
    sizes = _layer_bytes(graph)
    backward = graph.ids[(graph.phase[graph.ids] == BACKWARD) & (graph.layer[graph.ids] >= 0)]
    work = backward[graph.kind[backward] != CPU]
    tasks = work if len(work) else backward
    tasks, found = _shared_out(graph, tasks) if len(tasks) else (tasks, tasks)
    if not len(tasks) or not sizes.any():
        raise NotApplicableError("this trace has no backward tasks that belong to a layer")
    return tasks, found


def _producers(graph: Graph, tasks: np.ndarray) -> np.ndarray:
    """Return, for CPU tasks, the last backward device work launched before each ended; else the tasks."""
    ids = graph.ids
    ranks = np.array([lane.rank for lane in graph.lanes] or [0], np.int64)
    chosen = tasks.copy()
    for rank in np.unique(ranks[graph.lane[tasks]]).tolist():
        here = ids[ranks[graph.lane[ids]] == rank]
        compute = here[(graph.kind[here] == KERNEL) & (graph.phase[here] == BACKWARD)]
        mine = np.flatnonzero((graph.kind[tasks] == CPU) & (ranks[graph.lane[tasks]] == rank))
        if not len(compute) or not len(mine):
            continue
        keys = graph.order[compute]
        place = np.searchsorted(keys, graph.order[tasks[mine]] + 8, side="right") - 1
        step = graph.step
        before = compute[np.maximum(place, 0)]
        found = (place >= 0) & (step[before] == step[tasks[mine]])
        chosen[mine[found]] = before[found]
    return chosen
