"""Products with a weight, and element-wise work inserted before them: masks and fake quantization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream import Graph, Selection
from daydream.costs import copies_into_new_ns, itemsize, operators_that
from daydream.model import backward_chains, dispatch_ns, operand_elements, streaming_ns


@dataclass(frozen=True)
class Products:
    """Forward products with a weight: their work, and an entry a call.

    Attributes:
        work: device work, or on a CPU the operators' tasks.
        first: the first task of each call.
        inputs: elements that go in, int64, shape (calls,).
        weights: elements of the weight, likewise.
        width: bytes of an element, likewise.
        on_gpu: it is device work.
    """

    work: Selection
    first: Selection
    inputs: np.ndarray
    weights: np.ndarray
    width: np.ndarray
    on_gpu: bool

    def nodes(self) -> tuple[Selection, np.ndarray]:
        """Return the first work of each autograd node of a call, and the place of that call."""
        calls = self.work.group_by("call")
        place = {key: number for number, key in enumerate(calls.keys)}
        nodes = backward_chains(calls)
        return nodes.first(), np.array([place[key] for key in nodes.keys], np.int64)


def linear_operators() -> str:
    """Return a pattern of the operators that multiply by a matrix."""
    return operators_that(lambda op: op.is_linear)


def weighted_products(graph: Graph, layer: str | None, operators: str | None = None) -> Products:
    """Return the forward products of linear layers (and of what `operators` adds) in layers that match.

    Raises `NotApplicableError` where there are none with recorded shapes.
    """
    on_gpu = len(graph.select(on="gpu")) > 0
    work = graph.select(kind="kernel" if on_gpu else "cpu", phase=("forward", "loss"), layer=layer)
    work = work.where(op=operators or linear_operators())
    inputs, weights, _ = operand_elements(work)
    known = work.of(work.ids[(inputs > 0) & (weights > 0)], work.words, ordered=True)
    known.need(
        f"forward products of linear layers{f' in {layer!r}' if layer else ''} with recorded shapes "
        "(record with record_shapes=True)"
    )
    first = known.group_by("call").first()
    inputs, weights, _ = operand_elements(first)
    width = np.array([itemsize(dtype) or 4 for dtype in first.dtype.tolist()], np.int64)
    return Products(known, first, inputs, weights, width, on_gpu)


def elementwise_ns(graph: Graph, nbytes: np.ndarray, *, on_gpu: bool) -> np.ndarray | None:
    """Return what an element-wise kernel (on a CPU an operator) takes that moves so many bytes, ns.

    On a CPU half of them are taken to be a new result. None where no bandwidth is known.
    """
    if on_gpu:
        return streaming_ns(graph, nbytes)
    return copies_into_new_ns(graph, nbytes / 2, "cpu")


def insert_elementwise(graph: Graph, beside: Selection, name: str, duration_ns: np.ndarray) -> float:
    """Insert an element-wise operator before each task, with its launch and CPU time; return the ns."""
    if (beside.kind == "cpu").all():
        graph.insert_before(beside, name, kind="cpu", duration_ns=duration_ns)
        return float(np.sum(duration_ns))
    dispatch, called = dispatch_ns(graph), beside.where(lambda tasks: tasks.launch >= 0)
    if dispatch and len(called):
        graph.insert_before(called, f"operator of {name}", kind="cpu", duration_ns=dispatch)
    graph.insert_before(beside, name, duration_ns=duration_ns)
    return float(np.sum(duration_ns))
