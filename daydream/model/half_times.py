"""How long 32-bit kernels take in 16 bits, by what sort of kernel they are.

| sort | time above the fixed cost |
|---|---|
| products, convolutions, recurrent layers | FLOP and bytes at the shares reached today (`roofline.py`) |
| fused attention | the rates of the kernels that torch takes for either type |
| element-wise, reductions, the rest | bytes halve, and so much of the time stays as is not bytes |

Every time comes with how far it may be off. The shares below are measured, and say where.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from daydream.costs.device.retime import Retimed, retime
from daydream.costs.device.roofline import Change, Correction, device_or_none, runs_in_tf32
from daydream.costs.kernel_names import kernel_class, kernels_are, names_fit
from daydream.costs.kernels import work
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.lazy import regex


class Sort(NamedTuple):
    """Kernels that stream: their classes, and what they take in 16 bits of their time in 32."""

    classes: tuple[str, ...]
    keeps: float
    doubt: float


# Half the bytes are half the time only where nothing but bytes counts. From kernels that ran in both types
# on one card, two development pairs: a ViT with bfloat16 on an A100 (`vit_a100`: GELU 0.56 and 0.61,
# gradients of biases 0.55 to 0.66, strided copies 0.83, concatenations 0.92, layout changes 0.85), an MLP
# with float16 on a T4 (`t4_mlp_amp`: ReLU 0.47 and 0.53, sums of few blocks 0.88 and 0.93).
SORTS = (
    # cuDNN's for float16; for bfloat16 torch takes its own, which cuDNN's 32-bit ones leave behind
    # (ATen/native/Normalization.cpp, _select_batch_norm_backend): somewhere from 0.5 to 1.
    Sort(("batch norm",), 0.75, 0.35),
    # Vector loads of 16 B: the bytes halve, arithmetic in 32 bits and conversions stay.
    Sort(("vectorized",), 0.55, 0.2),
    Sort(("reduction", "partial sum"), 0.63, 0.25),
    # One element a thread at a time (offsets, strides, indices): elements count, not their bytes.
    Sort(("element-wise", "copy", "layout", "index"), 0.87, 0.2),
    Sort((), 0.7, 0.35),  # all others
)
DOUBT_WITHOUT_DEVICE = 0.4  # by constants, of a GPU whose peaks are unknown
DOUBT_OF_PRODUCTS = (
    0.3  # CUDA cores to tensor cores: shares of peak differ so much with size and shape
)
DOUBT_ON_TENSOR_CORES = 0.15  # TF32 to 16 bits: the same units, twice as fast
# The library may choose another algorithm, with other layout changes; a step of a recurrent layer has few rows.
DOUBT_OF_CONVOLUTIONS = 0.45

# torch's 32-bit attention multiplies on tensor cores since the A100, three TF32 products for each
# (CUTLASS, OpMultiplyAddFastF32): on vector units `vit_a100` would run at 1.2 of their peak. Before, on
# vector units. The new kernel's share of the 16-bit peak, as a part of the old one's share of its own,
# and the doubt:
SINCE_2_2 = regex(r"std::array<char|gpu_kernel_impl_nocast|manual_unroll|pytorch_flash|nvjet")
# - FlashAttention 1 (torch 2.0 and 2.1): 0.67 forward, 0.74 backward in `vit_a100`, a development pair.
# - FlashAttention 2 (since torch 2.2) is 1.5 to 2 times as fast (arXiv 2307.08691, figures 4 to 7).
# - V100 and T4 take CUTLASS kernels for both: about 0.3 of the peak of tensor cores, 0.55 of that of vector
#   units (an estimate).
FLASH_1, FLASH_2, FLASH_UNKNOWN, BEFORE_AMPERE = (0.7, 0.2), (1.2, 0.35), (0.95, 0.4), (0.55, 0.4)


def in_16_bits(graph: Graph, kernels: Selection, dtype: str) -> Retimed:
    """Return what 32-bit kernels take in 16 bits, and by how much that may be off; never longer than today.

    Args:
        graph: the graph of the trace.
        kernels: of 32-bit data.
        dtype: `float16` or `bfloat16`.

    Returns:
        `Retimed`, arrays in the order of the kernels.

    Raises:
        NotApplicableError: the device has no units for the type.
    """
    found = retime(graph, kernels, dtype=dtype, corrections=CORRECTIONS)
    doubt = np.where(np.isnan(found.doubt), DOUBT_WITHOUT_DEVICE, found.doubt)
    return replace(found, doubt=doubt)


def sort_of(name: str | None) -> Sort:
    """Return the sort of a kernel's name."""
    return next((sort for sort in SORTS if kernel_class(name) in sort.classes), SORTS[-1])


def products(change: Change) -> None:
    """How far products may be off; a kernel of any sort takes no longer than today."""
    change.doubt[:] = doubt_of_products(change.graph, change.selection)
    change.new = np.minimum(change.new, change.old)


def streaming(change: Change) -> None:
    """Kernels that stream move half the bytes, and so much of their time stays as is not bytes."""
    kernels, old, floor = change.selection, change.old, change.floor
    sorts = [sort_of(name)[1:] for name in kernels.name.tolist()]
    keeps, doubt = np.array(sorts, float).reshape(-1, 2).T
    # Arithmetic stays in 32 bits: of shapes it is next to nothing, counters may tell of more.
    arithmetic = np.maximum(change.work.flop, 0) / change.here.peak("float32")
    keeps = np.maximum(keeps, np.minimum(arithmetic / np.maximum(old - floor, 1e-3), 1.0))
    mine = ~change.matrix & ~kernels_are(kernels, "attention")
    change.new[mine], change.model[mine] = (floor + keeps * (old - floor))[mine], "bytes"
    change.doubt[mine] = doubt[mine]


def attention(change: Change) -> None:
    """Fused attention takes the kernels that torch has for 16 bits; AMD's has none of its own for this."""
    graph, device, old = change.graph, change.here, change.old
    mine = kernels_are(change.selection, "attention") & ("float32_matrix" not in device.tflops)
    if not mine.any():
        return
    on_tensor_cores = "tf32" in device.tflops
    rate = device.peak("tf32") / 3 if on_tensor_cores else device.peak("float32")
    kept, doubt = BEFORE_AMPERE
    if on_tensor_cores:  # names of kernels tell torch's flash attention
        names = graph.texts["name"]
        # A strided kernel that keeps its type has been named apart (`nocast`) since the time of FlashAttention 2.
        strided = any("gpu_kernel_impl<" in name for name in names)
        kept, doubt = FLASH_1 if strided else FLASH_UNKNOWN
        if any(SINCE_2_2.search(name) for name in names):
            kept, doubt = FLASH_2
    gain = max(device.peak("float16") * kept / rate, 1.0)
    found = change.floor + (old - change.floor) / gain
    change.new[mine], change.model[mine], change.doubt[mine] = found[mine], "attention", doubt


CORRECTIONS: tuple[Correction, ...] = (products, streaming, attention)


def doubt_of_products(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return by how much times of products on tensor cores may be off, by what they are today.

    Args:
        graph: the graph of the trace.
        kernels: products and convolutions.

    Returns:
        part of the time, at 90%, shape (kernels,), float64.
    """
    chosen = work(graph, kernels).is_of("convolution", "recurrent")
    chosen |= kernels_are(kernels, "convolution")
    doubt = np.where(chosen, DOUBT_OF_CONVOLUTIONS, DOUBT_OF_PRODUCTS)
    return np.where(runs_in_tf32(graph, kernels), DOUBT_ON_TENSOR_CORES, doubt)


# Of what convolutions read and write: those of 1 x 1 run as products of planes, and some kernels read or
# write planes themselves. In the public trace `a100_resnet_ddp_rank0of2` (ResNet-50, TF32) 211 changes of
# layout take 5.0 ms a step, where all of it would take 9.9 at the rate of its element-wise work.
TURNED = 0.5
LAYOUT_CHANGE = "nchwToNhwc and back"  # as cuDNN's are named, so that channels-last finds them


def changes_layout(graph: Graph, matrix: Selection) -> tuple[Selection, np.ndarray]:
    """Return the convolutions to which tensor cores bring changes of layout, and the bytes that those move.

    cuDNN's kernels for NVIDIA's tensor cores take channels last (NHWC); what the model keeps as NCHW is
    turned before many and back behind them: 2 B read and 2 B written an element. Not those that run there
    already (in TF32, with their changes of layout in the trace) or that are named after NHWC, nor those of
    unknown shapes.

    Args:
        graph: the graph of the trace.
        matrix: products and convolutions.

    Returns:
        those convolutions, and the bytes of each, shape (convolutions,), float64.
    """
    device = device_or_none(graph)
    if device is None or "float32_matrix" in device.tflops:
        return graph.tasks([]), np.zeros(0)
    on_tensor_cores = device.peak("float16") > 2 * device.peak("float32")
    amounts = work(graph, matrix)
    planes = (amounts.family == "convolution") & (amounts.nbytes > 0) & ~runs_in_tf32(graph, matrix)
    planes &= ~names_fit(matrix, re.compile(r"(?i)nhwc|depthwise").search) & on_tensor_cores
    return graph.tasks(matrix.ids[planes]), TURNED * amounts.nbytes[planes]
