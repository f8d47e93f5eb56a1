"""Quantization: linear layers in int8, or while training their fake quantization, which only costs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from daydream.optimizations._weighted_products import (
    Products,
    elementwise_ns,
    insert_elementwise,
    linear_operators,
    weighted_products,
)

from daydream import Graph, NotApplicableError
from daydream.costs import device_of, elements, in_place, itemsize, parse_shapes, retime, work
from daydream.memory import Allocations, in_phase, kept_calls, renumber
from daydream.model import operand_elements
from daydream.transforms import counted, stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"fp8"})
CODE = "torchao.quantization.quantize_(model, Int8DynamicActivationInt8WeightConfig())"

BITS = {"int8": 8}
MASK_BYTES = 1  # of `fake_quantize_per_tensor_affine_cachemask`: a truth value an element, for the gradient


def quantize(
    graph: Graph,
    *,
    dtype: Literal["int8"] = "int8",
    operands: Literal["both", "weights"] = "both",
    scaling: Literal["dynamic", "static"] = "dynamic",
    layer: str | None = None,
) -> None:
    """Predict int8 linear layers: `operands` both (weights and activations), or weights only.

    A trace with a backward pass is taken as training with fake quantization (QAT): values are rounded to 256
    steps and stay floats, so no product gets faster. Before each product weight and, with
    `both`, input pass through kernels: `dynamic` `scaling` reads a tensor for its range, then reads it again
    and writes it with a mask of a byte an element; `static` does the latter alone. The gradient
    passes the mask once more in the backward pass.

    A trace without is taken as inference. With `both` each product runs on int8 tensor cores at the share of
    the peak that it reaches today, reads 1 B an element and writes its result as before, and its
    input is quantized first (dynamic: two kernels, static: one); scaling the result back is assumed
    to be part of the product, as compiled code has it. With `weights` arithmetic stays as it is, and only
    products bound by reading their weights gain. GPUs without int8 tensor cores gain nothing, and what
    int8 gives on a CPU depends on its instructions, which no trace tells: both are refused.

    `dtype` is int8, the only one there is. `layer` takes those layers alone whose path matches, for example
    `blocks.*`.

    With a table of `daydream calibrate --tool` the layers take what was measured in place.

    Memory: while training each product keeps its rounded operands and a byte an element for the gradient, and
    no longer its input itself; for inference weights are held in 8 bits.

    Not modelled: convolutions, attention, accuracy.
    """
    products = weighted_products(graph, layer)
    measured = in_place(graph, products.work)
    if len(measured.tasks):
        measured.tasks.set(duration_ns=measured.duration_ns)
        graph.note(measured.words())
    elif len(graph.select(phase="backward")):
        _fake(graph, products, operands, scaling)
    elif not products.on_gpu:
        graph.does_not_apply(
            "this is inference on a CPU, where int8 depends on instructions (VNNI, AMX) that no trace tells"
        )
    else:
        _for_inference(graph, products, dtype, operands, scaling)


def tool(
    *, dtype: str = "int8", operands: str = "both", scaling: str = "dynamic", layer: str | None = None
) -> Any:
    """Return what rounds the operands of a running model's linear layers."""
    from daydream.instrument.tools import FakeQuantization, chosen

    return FakeQuantization(
        BITS[dtype], training=scaling == "dynamic", activations=operands == "both",
        where=chosen("^aten::linear$", layer),
    )  # fmt: skip


def _fake(graph: Graph, products: Products, operands: str, scaling: str) -> None:
    """Insert fake quantization before each product, and its gradient's mask in the backward pass."""
    names = {"weight": products.weights, "input": products.inputs}
    spent = 0.0
    for what, size in names.items():
        if what == "input" and operands == "weights":
            continue
        rounding = size * (2 * products.width + MASK_BYTES)
        steps = {"range": size * products.width} if scaling == "dynamic" else {}
        for name, nbytes in {**steps, "fake quantization": rounding}.items():
            spent += _insert(graph, products, f"{name} of {what}", nbytes)
    nodes, call = products.nodes()
    if len(nodes):
        size = products.weights + (products.inputs if operands == "both" else 0)
        nbytes = (size * (2 * products.width + MASK_BYTES))[call]
        spent += insert_elementwise(graph, nodes, "mask of gradient", _ns(graph, products, nbytes))
    else:
        graph.note(
            "Which backward work belongs to which layer is not known: masks of gradients are left out."
        )
    graph.note(
        f"Taken as training with fake quantization: no product gets faster, and rounding "
        f"{counted(len(products.first), 'product')} takes {spent / 1e6:,.3f} ms."
    )


def _for_inference(graph: Graph, products: Products, dtype: str, operands: str, scaling: str) -> None:
    device = device_of(graph)
    if operands == "both" and dtype not in device.tflops:
        graph.does_not_apply(
            f"a {device.name} has no {dtype} tensor cores; NVIDIA GPUs since the T4 have them"
        )
    tasks = products.work.where(dtype=("float32", "float16", "bfloat16"))
    tasks.need("forward products of linear layers in 16 or 32 bits")
    left, right, _ = operand_elements(tasks)
    width = np.array([itemsize(one) or 4 for one in tasks.dtype.tolist()])
    moved = np.maximum(work(graph, tasks).nbytes, 1)
    written = np.maximum(moved / width - left - right, 0)
    before = tasks.duration_ns
    if operands == "weights":
        factor = (width * (left + written) + right) / moved
        retimed = retime(graph, tasks, bytes_factor=np.minimum(factor, 1.0))
        if not (retimed.duration_ns < before).any():
            graph.does_not_apply("no product of these layers is bound by reading its weight")
        tasks.set(duration_ns=retimed.duration_ns)
    else:
        # The result keeps its type: its bytes do not shrink with those of the operands.
        factor = (left + right + width * written) / np.maximum(left + right + written, 1)
        retimed = retime(graph, tasks, dtype=dtype, bytes_factor=factor)
        tasks.set(duration_ns=retimed.duration_ns, dtype=dtype)
    spent = 0.0
    if operands == "both":
        steps = {"range": products.inputs * products.width} if scaling == "dynamic" else {}
        for name, nbytes in {**steps, "quantization": products.inputs * (products.width + 1)}.items():
            spent += _insert(graph, products, f"{name} of input", nbytes)
    graph.note(
        f"Taken as inference: {counted(len(tasks), 'product')} of {before.sum() / 1e6:,.3f} ms become "
        f"{tasks.total('duration_ns') / 1e6:,.3f} ms; quantizing inputs takes {spent / 1e6:,.3f} ms."
    )
    graph.note(retimed.words())


def _insert(graph: Graph, products: Products, name: str, nbytes: np.ndarray) -> float:
    return insert_elementwise(graph, products.first, name, _ns(graph, products, nbytes))


def _ns(graph: Graph, products: Products, nbytes: np.ndarray) -> np.ndarray:
    time = elementwise_ns(graph, nbytes, on_gpu=products.on_gpu)
    if time is None:
        raise NotApplicableError(
            "what rounding takes is not known: this trace has no element-wise work to go by"
        )
    return time


def memory(
    held: Allocations,
    *,
    dtype: Literal["int8"] = "int8",
    operands: Literal["both", "weights"] = "both",
    scaling: Literal["dynamic", "static"] = "dynamic",
    layer: str | None = None,
) -> None:
    """Keep rounded operands and their masks for the backward pass, or hold weights in 8 bits."""
    products = kept_calls(held, linear_operators(), layer)
    if not len(products):
        raise NotApplicableError("no memory of this trace is due to linear layers")
    rows = products.calls.keys[:, -1]
    if not in_phase(held, "backward").any():
        layers = {held.trace.text("layer")[code] for code in held.trace["layer"][rows].tolist() if code >= 0}
        width = np.ones(len(held), np.int64)
        for number in np.flatnonzero(held.where(kind="parameter") & (held["parameter"] >= 0)).tolist():
            known = held.parameter(number)
            if known["layer"] in layers and len(known["shape"]) > 1:
                width[number] = itemsize(known["dtype"]) or 4
        held.resize(width > 1, (held["bytes"] // width)[width > 1])
        return
    shapes = [_two_operands(held, row) for row in rows.tolist()]
    inputs, weights = np.array(shapes, np.int64).T
    codes = held.trace["dtype"][rows].tolist()
    width = np.array([(itemsize(held.trace.text("dtype")[one]) if one >= 0 else None) or 4 for one in codes])
    rounded = {"both": (inputs, weights), "weights": (weights,)}[operands]
    if operands == "both":
        products.drop_inputs(held, inputs > 0)
    for size in rounded:
        products.add(held, size * width)
        products.add(held, size * MASK_BYTES)
    renumber(held)


def _two_operands(held: Allocations, row: int) -> tuple[int, int]:
    """Return the elements of a call's input and weight, its arguments that are no vectors; 0 if unknown."""
    code = int(held.trace["shapes"][row])
    arguments = (parse_shapes(held.trace.text("shapes")[code]) if code >= 0 else None) or []
    sizes = [elements(one) for one in arguments if len(one) > 1]
    return (sizes[0], sizes[1]) if len(sizes) > 1 else (0, 0)
