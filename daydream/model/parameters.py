"""Parameters by layer: who has some, their part of all, and what a joint update of fewer or more takes.

The parts of a model that are compiled: all of it in one call, or each module that matches by itself.

Autograd's walks over its graph, before a backward pass and behind it.

Before the first node runs, the engine counts what each one waits for; behind the last one the
graph is freed. Both visit all nodes, neither is an operator: in a trace they are untraced CPU time,
0.15 and 0.25 us a node (of 54 to 1,042 nodes, torch 2.13.0, one thread of an x86 server). A model
with fewer layers has fewer nodes.
"""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec import Struct

from daydream.costs.device.call_scaling import scaled_time
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.graph.tables import phase_code
from daydream.model.optimizers import ACCUMULATE, update_of

ZERO_GRAD = r"^Optimizer\.zero_grad"


class Trained(Struct, frozen=True):
    """What each layer trains.

    Attributes:
        tensors: layer -> its tensors.
        elements: layer -> their elements (or bytes; only ratios count).
    """

    tensors: dict[str, int]
    elements: dict[str, int]

    def part(self, layers: set[str]) -> tuple[float, float]:
        """Return which part of all tensors, and of all elements, these layers hold, 0 to 1."""
        return _part(self.tensors, layers), _part(self.elements, layers)


def trained_parameters(graph: Graph) -> Trained:
    """Return the parameters that the trace trains, by layer; empty where it tells none.

    From the run's parameters, else from the gradients that are accumulated. Without either,
    layers that the optimizer updates one by one count as one tensor each, of equal size.
    """
    metadata = graph.recorded.metadata
    tensors: dict[str, int] = {}
    elements: dict[str, int] = {}
    for parameter in metadata.get("parameters") or []:
        layer = parameter.get("layer")
        if layer is not None and parameter.get("requires_grad", True):
            tensors[layer] = tensors.get(layer, 0) + 1
            elements[layer] = elements.get(layer, 0) + prod(parameter["shape"])
    if tensors:
        return Trained(tensors, elements)
    nodes = graph.select(kind="cpu", phase="backward").group_by("layer", within=ACCUMULATE).last()
    if len(nodes):
        tensors = _counted(nodes)
        backward = graph.select(phase="backward")
        try:
            sizes = backward.where(lambda tasks: tasks.grad_bytes > 0).group_by("layer")
            elements = dict(zip(sizes.keys, sizes.total("grad_bytes").tolist(), strict=True))
        except NotApplicableError:
            elements = {}
        return Trained(tensors, elements if set(elements) >= set(tensors) else tensors)
    updated = graph.select(phase="optimizer").group_by("layer").keys
    return Trained(dict.fromkeys(updated, 1), dict.fromkeys(updated, 1))


def joint_update(graph: Graph, tensors: float, elements: float) -> tuple[Selection, np.ndarray]:
    """Return the tasks that update parameters of all layers at once, and their durations at another number.

    The work of kernels, and of operators of a trace without device work, goes with the elements. The
    overhead of operators, and Python's walks over the parameters, also that which zeroes the gradients, go
    with the tensors. Updates of one layer are not among the tasks.

    Args:
        graph: the graph of the trace.
        tensors: how many times the tensors.
        elements: how many times their elements.

    Returns:
        the tasks; and ns, shape (tasks,), float64.
    """
    host = graph.select(kind="cpu", phase="optimizer") | graph.select(kind="cpu", within=ZERO_GRAD)
    kernels = graph.select(kind="kernel", phase="optimizer")
    tasks = (host | kernels).where(lambda each: each.layer == None)  # noqa: E711 - an array, one by one
    time = tasks.duration_ns.astype(np.float64)
    cpu = tasks.kind == "cpu"
    working = ~cpu if len(kernels) else cpu & (tasks.op != None)  # noqa: E711
    time[cpu] *= tensors
    if working.any():
        work = graph.tasks(tasks.ids[working])
        fixed, whole = (scaled_time(graph, work, factor).duration_ns for factor in (0.0, elements))
        calls = np.where(
            cpu[working], tensors, 1.0
        )  # on a CPU a tensor each, on a device a few for all
        time[working] = fixed * calls + (whole - fixed)
    return tasks, time


def _counted(nodes: Selection) -> dict[str, int]:
    steps = max(len(set(zip(nodes.rank.tolist(), nodes.step.tolist(), strict=True))), 1)
    groups = nodes.group_by("layer")
    return {
        layer: max(round(size / steps), 1)
        for layer, size in zip(groups.keys, groups.sizes.tolist(), strict=True)
    }


def _part(amounts: dict[str, int], layers: set[str]) -> float:
    total = sum(amounts.values())
    return (
        sum(amount for layer, amount in amounts.items() if layer in layers) / total
        if total
        else 0.0
    )


class CompiledPart(Struct, frozen=True):
    """What one compiled call holds.

    Attributes:
        tasks: tasks of the eager step that it takes the place of.
        parameters: parameter tensors that it uses.
    """

    tasks: Selection
    parameters: int


def compiled_parts(graph: Graph, tasks: Selection, layers: str | None) -> list[CompiledPart]:
    """Return what is compiled, a part for each compiled call.

    Args:
        graph: the graph of the trace.
        tasks: what could be compiled.
        layers: a shell pattern: each outermost module that matches is compiled by itself. None: all as one.

    Raises:
        NotApplicableError: no task is of such a layer.

    """
    if layers is None:
        return [CompiledPart(tasks, max(update_of(graph).tensors, 0))]
    blocks = tasks.group_by(block=layers)
    blocks.tasks.need(
        f"forward or backward work of layers {layers!r}; layers are recorded by `daydream collect`, and "
        "`*` is any text"
    )
    ids = np.split(blocks.by_group.ids, np.cumsum(blocks.sizes)[:-1])
    trained = trained_parameters(graph).tensors
    found = []
    for key, mine in zip(blocks.keys, ids, strict=True):
        inside = f"{key}."
        own = sum(
            many for layer, many in trained.items() if layer == key or layer.startswith(inside)
        )
        if len(mine):
            found.append(CompiledPart(blocks.tasks.of(np.sort(mine), tasks.words), own))
    return found


NODE = r"^autograd::engine::evaluate_function"
BETWEEN = ("data", "loss", "optimizer", "other")  # phases that part one backward pass from the next


def graph_walks(graph: Graph) -> Selection:
    """Return the CPU tasks whose gap holds such a walk: the one before each pass, and its last one.

    Only of threads that run the forward pass too. A GPU's nodes run on a thread of their own, and the
    caller's walks are in what it waits.
    """
    host = graph.select(kind="cpu").ids
    nodes = np.isin(host, graph.select(kind="cpu", name=NODE).ids)
    lane = graph.lane[host]
    phase = graph.phase[host]
    forward = np.unique(lane[phase == phase_code("forward")])
    found = []
    for each in forward.tolist():
        mine = np.flatnonzero(lane == each)
        between = np.isin(phase[mine], [phase_code(name) for name in BETWEEN])
        number = np.cumsum(between)
        first = np.flatnonzero(nodes[mine])
        _, place = np.unique(number[first], return_index=True)
        begins = first[place]
        inside = np.flatnonzero(
            np.isin(number, number[begins]) & (phase[mine] == phase_code("backward"))
        )
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
