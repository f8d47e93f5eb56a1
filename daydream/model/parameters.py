"""Parameters by layer: who has some, their part of all, and what a joint update of fewer or more takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from daydream.costs.device.call_scaling import scaled_time
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.model.optimizers import ACCUMULATE

ZERO_GRAD = r"^Optimizer\.zero_grad"


@dataclass(frozen=True)
class Trained:
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
    metadata = {} if graph.trace is None else graph.trace.metadata
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
        calls = np.where(cpu[working], tensors, 1.0)  # on a CPU a tensor each, on a device a few for all
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
    return sum(amount for layer, amount in amounts.items() if layer in layers) / total if total else 0.0
