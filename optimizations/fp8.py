"""FP8: linear layers multiply in 8-bit floats, their operands scaled and cast before each product."""

from __future__ import annotations

from typing import Literal

import numpy as np
from daydream.optimizations._weighted_products import insert_elementwise, linear_operators

from daydream import Graph
from daydream.costs import device_of, itemsize, retime, say_evidence, work
from daydream.memory import Allocations, hold_8_bits
from daydream.model import operand_elements, streaming_ns
from daydream.transforms import stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"amp", "tf32"})
CODE = "torchao.float8.convert_to_float8_training(model)"


def fp8(graph: Graph, *, scaling: Literal["dynamic", "delayed"] = "dynamic") -> None:
    """Predict linear layers in float8 (e4m3; gradients e5m2, of the same rate) with one scale a tensor.

    Each product of a linear layer runs at the 8-bit peak with the share of the peak it reaches today, reads
    1 B an element and writes its result as before. Before it both operands are cast: `dynamic` `scaling`
    reads a tensor for its largest value (amax), then reads it again and writes 1 B an element, two
    kernels each; `delayed` takes the scale from earlier steps, one kernel that notes the amax in
    passing. Weights of a trace without a backward pass are cast once beforehand and cost nothing. Casts
    run at the bandwidth of the trace's own streaming work. Products too small to gain are converted
    as well, as converting all linear layers does; the note says how much time goes to casts. Each
    of these kernels brings a launch and the CPU time of an element-wise operator of this trace.

    Attention, convolutions and products of two activations stay. An upper bound of the casts:
    libraries that keep the forward pass's casts for the backward pass do fewer.

    Memory: casts of a product's operands are held while it runs; at the least the cast is what a linear
    layer saves of its input, as libraries do that keep it. Not modelled: compiled casts that fuse with
    the kernel before them, convergence, collectives in 8 bits.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels: fp8 is a format of GPUs' matrix units", lacks="device")
    device = device_of(graph)
    if "float8" not in device.tflops:
        graph.does_not_apply(f"a {device.name} has no fp8 units; H100 and MI300X, and Ada cards, have them")
    linear = kernels.where(op=linear_operators(), dtype=("float32", "float16", "bfloat16"))
    linear = linear.where(lambda tasks: work(graph, tasks).flop > 0)
    linear.need(
        "products of linear layers with recorded shapes in 16 or 32 bits; "
        "record with record_shapes=True, for the sizes of the casts"
    )
    left, right = operand_elements(linear)[:2]
    amounts = work(graph, linear)
    width = np.array([itemsize(dtype) or 1 for dtype in linear.dtype.tolist()])
    written = np.maximum(amounts.nbytes / width - left - right, 0)
    # The result keeps its type: its bytes do not shrink with those of the operands.
    factor = (left + right + width * written) / np.maximum(left + right + written, 1)
    retimed = retime(graph, linear, dtype="float8_e4m3fn", bytes_factor=factor)
    calls = linear.group_by("call").first()
    trains = len(graph.select(kind="kernel", phase="backward")) > 0
    sizes, narrow = (
        operand_elements(calls)[: 2 if trains else 1],
        np.array([itemsize(d) or 1 for d in calls.dtype]),
    )
    before = int(linear.duration_ns.sum())
    say_evidence(graph, linear)

    linear.set(duration_ns=retimed.duration_ns, dtype="float8_e4m3fn")
    spent = 0.0
    for size, what in zip(sizes, ("left operand", "right operand"), strict=False):
        steps = {"amax": size * narrow} if scaling == "dynamic" else {}
        for name, nbytes in {**steps, "cast to fp8": size * (narrow + 1)}.items():
            spent += insert_elementwise(graph, calls, f"{name} of {what}", streaming_ns(graph, nbytes))
    graph.note(
        f"{len(linear):,} products of {before / 1e6:,.2f} ms become "
        f"{retimed.duration_ns.sum() / 1e6:,.2f} ms in fp8; amax and casts before them take "
        f"{spent / 1e6:,.2f} ms."
    )
    graph.note(retimed.words())


def memory(held: Allocations, *, scaling: Literal["dynamic", "delayed"] = "dynamic") -> None:
    """Hold casts of linear layers' operands to 1 B an element."""
    hold_8_bits(held)
