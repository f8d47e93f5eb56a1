"""Which backward work computes gradients of parameters, and which those of a layer's inputs.

A product whose result has a parameter's shape is the gradient of that parameter, one that
multiplies by it that of the input (the backward pass of `y = x W` is `x' = y' W^T` and
`W' = x^T y'`). A convolution's two gradients take the same FLOP, so where one call
computes both, each is half of its time. Sums in a product's node are its bias's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream import Graph, Selection
from daydream.costs import (
    Argument,
    Shape,
    calls_of,
    nodes_that,
    operator,
    operators_that,
    parameter_shapes,
    parse_shapes,
)

OF_WEIGHTS = r"(?i)wgrad|bgrad|WrW|bwd_?weight|backward_?(weight|filter)|GammaBeta"  # cuDNN, MIOpen, ATen
OF_INPUTS = r"(?i)dgrad|bwd_?data|backward_?data|GradInput|grad_input"
ONLY_WEIGHTS = r"AccumulateGrad|^EmbeddingBackward|^EmbeddingBagBackward|^aten::embedding_(dense_)?backward"


@dataclass(frozen=True)
class GradientParts:
    """Parts of each task's time, 0 to 1: for gradients of parameters, and of inputs; the rest is neither."""

    weights: np.ndarray
    inputs: np.ndarray


def gradient_parts(graph: Graph, tasks: Selection) -> GradientParts:
    """Return what of each backward task's time goes into gradients of parameters and of inputs.

    From kernel names and recorded shapes; a product whose shapes fit both, or were not
    recorded, counts half for each.
    """
    weights, inputs = np.zeros(len(tasks)), np.zeros(len(tasks))

    def give(chosen: Selection, weight: float, data: float) -> None:
        mask = np.isin(tasks.ids, chosen.ids)
        weights[mask], inputs[mask] = weight, data

    convolutions = tasks.where(within=nodes_that(lambda op: op.family == "convolution"))
    backward = operators_that(lambda op: op.family == "convolution" and "_backward" in op.name)
    give(convolutions | tasks.where(within=backward), 0.5, 0.5)
    products = tasks.where(op=operators_that(lambda op: op.family == "matmul"))
    known = _products(graph, products)
    for index, (weight, data) in zip(np.flatnonzero(np.isin(tasks.ids, products.ids)), known, strict=True):
        weights[index], inputs[index] = weight, data
    give(tasks.where(within=nodes_that(lambda op: op.is_linear), op=r"^aten::(sum|fill_)$"), 1.0, 0.0)
    device = tasks.where(on="gpu")
    give(device.where(name=OF_INPUTS), 0.0, 1.0)
    give(device.where(name=OF_WEIGHTS), 1.0, 0.0)
    give(tasks.where(within=ONLY_WEIGHTS) | tasks.where(op=ONLY_WEIGHTS), 1.0, 0.0)
    return GradientParts(weights, inputs)


def _products(graph: Graph, products: Selection) -> list[tuple[float, float]]:
    shapes = products.shapes.tolist()
    parameters = parameter_shapes(calls_of(graph.trace)) if graph.trace is not None else set()
    seen: dict[tuple[str | None, str | None], tuple[float, float]] = {}
    for key in zip(products.op.tolist(), shapes, strict=True):
        if key not in seen:
            seen[key] = _of_product(key[0] or "", parse_shapes(key[1]) or [], parameters)
    return [seen[key] for key in zip(products.op.tolist(), shapes, strict=True)]


def _of_product(op: str, arguments: list[Argument], parameters: set[Shape]) -> tuple[float, float]:
    """Return the parts of one product: of a parameter's gradient, of an input's."""
    factors = [shape for shape in arguments if isinstance(shape, tuple) and len(shape) >= 2]
    if len(factors) < 2:
        return 0.5, 0.5
    left, right = factors[-2:]
    if operator(op).formula == "linear":
        right = right[::-1]
    result = (*left[:-1], right[-1])
    is_weight, uses_weight = result in parameters, left in parameters or right in parameters
    if is_weight and uses_weight:
        return 0.5, 0.5
    return (1.0, 0.0) if is_weight else (0.0, 1.0 if uses_weight else 0.0)
