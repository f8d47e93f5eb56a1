"""TF32: float32 matrix products and convolutions run on tensor cores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import (
    bound,
    device_of,
    is_matrix,
    kernels_are,
    names_fit,
    retime,
    runs_in_tf32,
    say_evidence,
    work,
)
from daydream.memory import unchanged
from daydream.model import (
    DOUBT_OF_CONVOLUTIONS,
    FEW_ROWS_IN_TF32,
    LAYOUT_CHANGE,
    changes_layout,
    doubt_of_products,
    few_rows_ns,
    streaming_ns,
)
from daydream.transforms import stages

STAGE = stages.PRECISION
EXCLUDES = frozenset({"amp", "autocast", "fp8"})  # they take the same kernels to 16 or 8 bits
CODE = 'torch.set_float32_matmul_precision("high")'
memory = unchanged

AMD = ("MI", "Radeon")
# Whatever the switch says, 32-bit fused attention multiplies on tensor cores, and torch's depthwise
# convolutions on vector units.
AS_IS = re.compile(r"depthwise")
# Of products in TF32 whose shapes are not looked at: with them, those of a step take 1.00 to 1.21 times what
# the ratio of peaks gives, in five recordings with shapes (predictions of both sorts, none of them measured).
DOUBT_WITHOUT_SHAPES = 0.2


def tf32(graph: Graph, *, unknown_speedup: float | None = None) -> None:
    """Predict float32 products and convolutions rounded to TF32 (`set_float32_matmul_precision("high")`).

    Matrix kernels of float32 that do not run in TF32 yet and that are bound by arithmetic move to the
    tensor cores: they keep 0.75 of the share of the peak that each reaches today (docs/costs.md), of a
    higher peak, until memory bounds them. What is bound by memory or by its launch stays: TF32
    moves as many bytes. Kernels whose shapes are not recorded are assumed to be bound by arithmetic: they
    gain 0.75 of the ratio of the peaks, and their range is wider. `unknown_speedup` gives them a factor, no
    more than that ratio (3 is Daydream's, section 5.1).

    Convolutions of NCHW tensors bring changes of layout, which are inserted (see channels-last). Not
    modelled: products of 10 mantissa bits and what they do to convergence.
    """
    if unknown_speedup is not None and unknown_speedup < 1:
        raise GraphError(f"unknown_speedup must be 1 or more, not {unknown_speedup:g}")
    kernels = graph.select(kind="kernel")
    kernels.need("kernels: TF32 is a format of GPUs' tensor cores", lacks="device")
    device = device_of(graph)
    if device.name.startswith(AMD):
        graph.does_not_apply(f"torch's TF32 switch is for NVIDIA GPUs; this is a {device.name}")
    if "tf32" not in device.tflops:
        graph.does_not_apply(f"a {device.name} has no TF32 units; NVIDIA GPUs since the A100 have them")
    ratio = device.peak("tf32") / device.peak("float32")
    if ratio <= 1:
        graph.does_not_apply(
            f"a {device.name} computes {device.tflops['float32']:g} TFLOP/s in float32 and in TF32 alike"
        )
    matrix = kernels.where(lambda tasks: is_matrix(graph, tasks))
    wide = matrix.where(dtype="float32").need("float32 matrix products or convolutions")
    exact = wide.where(
        lambda tasks: (
            ~runs_in_tf32(graph, tasks) & ~kernels_are(tasks, "attention") & ~names_fit(tasks, AS_IS.search)
        )
    )
    exact.need("float32 matrix kernels outside of TF32: all run in TF32 already")
    products = exact.where(
        lambda tasks: np.isin(bound(graph, tasks).kind.astype(str), ("compute", "unknown"))
    )
    products.need("float32 matrix kernels bound by arithmetic: memory or launches bound all of them")

    old = products.duration_ns
    say_evidence(graph, exact)
    known = work(graph, products).flop > 0
    retimed = retime(graph, products, dtype="tf32")
    new = np.minimum(retimed.duration_ns, old)
    modelled = new if unknown_speedup is None else np.where(known, new, old / min(unknown_speedup, ratio))
    modelled = np.maximum(modelled, few_rows_ns(graph, products, device, FEW_ROWS_IN_TF32))
    new = np.where(retimed.model == "table", new, modelled)
    doubt, (turned, moved) = doubt_of_products(graph, products), changes_layout(graph, products)
    doubt = np.where(known, doubt, np.hypot(doubt, DOUBT_WITHOUT_SHAPES))
    turned_ns = streaming_ns(graph, 2 * moved) if len(turned) else np.zeros(0)
    products.set(duration_ns=new, name=[f"{name} in tf32" for name in products.name])
    products.doubt(doubt)
    if len(turned):
        layout = graph.insert_before(turned, LAYOUT_CHANGE, duration_ns=turned_ns)
        layout.doubt(DOUBT_OF_CONVOLUTIONS)
        graph.note(f"Changes of layout inserted: {len(turned):,}, {turned_ns.sum() / 1e6:,.2f} ms in total.")
    how = "the ratio of peaks" if unknown_speedup is None else "the constant"
    graph.note(
        f"{len(products):,} of {len(matrix):,} matrix kernels move to TF32: {old.sum() / 1e6:,.2f} ms become "
        f"{new.sum() / 1e6:,.2f} ms; {int((~known).sum()):,} by {how}, as their shapes are unknown."
    )
    if graph.times is not None:
        graph.note(retimed.words())


@contextmanager
def apply(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: products and convolutions of float32 may use TF32."""
    import torch

    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = True
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
