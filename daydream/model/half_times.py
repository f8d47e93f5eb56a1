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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from daydream.costs.device.retime import Retimed, held_up, measured_first, retime
from daydream.costs.device.roofline import device_or_none, runs_in_tf32
from daydream.costs.devices import Device
from daydream.costs.kernel_names import kernel_class, kernels_are, names_fit
from daydream.costs.kernels import floor_ns, grid_blocks, is_matrix, units_of, work
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
FEW_BLOCKS, FEW_BLOCKS_DOUBT = 0.9, 0.15  # a grid that leaves units idle waits for memory's latency
# A step of a recurrent layer multiplies few rows by all weights: their bytes halve, and latency stays.
# In TF32 the bytes stay, too. Both are estimates.
FEW_ROWS, FEW_ROWS_IN_TF32, FEW_ROWS_DOUBT = 0.4, 0.5, 0.45
DOUBT_OF_PRODUCTS = (
    0.3  # CUDA cores to tensor cores: shares of peak differ so much with size and shape
)
DOUBT_ON_TENSOR_CORES = 0.15  # TF32 to 16 bits: the same units, twice as fast
DOUBT_OF_CONVOLUTIONS = 0.45  # the library may choose another algorithm, with other layout changes

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
# Of fixed costs of the smallest kernels: flash attention over few hundred tokens takes 9 to 10 us on an H100
# (`h100_bert_small_inference`, `h100_vit_inference`), whatever its FLOP.
FIXED_OF_ATTENTION = 4.0
BEST_ATTENTION = 0.75  # of the 16-bit peak: FlashAttention 3 (arXiv 2407.08608); none is faster


@dataclass(frozen=True)
class Narrowed:
    """Times of kernels in 16 bits; an entry a kernel.

    Attributes:
        times: `Retimed`: the times, and the models behind them.
        doubt: part by which each may be off, at 90%, float64.
    """

    times: Retimed
    doubt: np.ndarray


def in_16_bits(graph: Graph, kernels: Selection, dtype: str) -> Narrowed:
    """Return what 32-bit kernels take in 16 bits; never longer than today.

    Args:
        graph: the graph of the trace.
        kernels: of 32-bit data.
        dtype: `float16` or `bfloat16`.

    Returns:
        `Narrowed`, arrays in the order of the kernels.

    Raises:
        NotApplicableError: the device has no units for the type.
    """
    found = retime(graph, kernels, dtype=dtype)
    device = device_or_none(graph)
    if device is None:
        return Narrowed(found, np.full(len(kernels), 0.4))
    old = found.before_ns
    new = found.duration_ns.astype(np.float64)
    model = found.model.copy()
    matrix = is_matrix(graph, kernels)
    attention = kernels_are(kernels, "attention")
    stream = ~matrix & ~attention
    times, doubt = _streaming(graph, kernels, device)
    new[stream], model[stream] = times[stream], "bytes"
    doubt[matrix] = doubt_of_products(graph, kernels)[matrix]
    new = np.where(matrix, np.maximum(new, few_rows_ns(graph, kernels, device, FEW_ROWS)), new)
    if (
        attention.any() and "float32_matrix" not in device.tflops
    ):  # AMD's has no kernels of its own for this
        times, share = _attention(graph, kernels, device)
        new[attention], model[attention], doubt[attention] = times[attention], "attention", share
    waits = held_up(graph, kernels)  # as was counted: for neither arithmetic nor memory
    new[waits], model[waits] = old[waits], "latency"
    chosen = Retimed(np.rint(np.minimum(new, old)).astype(np.int64), model, old)
    return Narrowed(measured_first(graph, kernels, chosen, dtype=dtype), doubt)


def sort_of(name: str | None) -> Sort:
    """Return the sort of a kernel's name."""
    return next((sort for sort in SORTS if kernel_class(name) in sort.classes), SORTS[-1])


def _streaming(graph: Graph, kernels: Selection, device: Device) -> tuple[np.ndarray, np.ndarray]:
    """Return times of kernels that move half the bytes, and their doubt."""
    old = kernels.duration_ns.astype(np.float64)
    floor = np.minimum(floor_ns(graph), old)
    sorts = [sort_of(name)[1:] for name in kernels.name.tolist()]
    keeps, doubt = np.array(sorts, float).reshape(-1, 2).T
    few = _leaves_units_idle(graph, kernels, device) & (keeps < FEW_BLOCKS)
    keeps[few], doubt[few] = FEW_BLOCKS, FEW_BLOCKS_DOUBT
    # Arithmetic stays in 32 bits: of shapes it is next to nothing, counters may tell of more.
    arithmetic = np.maximum(work(graph, kernels).flop, 0) / device.peak("float32")
    keeps = np.maximum(keeps, np.minimum(arithmetic / np.maximum(old - floor, 1e-3), 1.0))
    return floor + keeps * (old - floor), doubt


def _leaves_units_idle(graph: Graph, kernels: Selection, device: Device) -> np.ndarray:
    blocks = grid_blocks(graph, kernels)
    found: np.ndarray = (blocks > 0) & (blocks < units_of(graph, device))
    return found


def _attention(graph: Graph, kernels: Selection, device: Device) -> tuple[np.ndarray, float]:
    """Return times of fused attention with the kernels that torch has for 16 bits, and their doubt."""
    old = kernels.duration_ns.astype(np.float64)
    on_tensor_cores = "tf32" in device.tflops
    rate = device.peak("tf32") / 3 if on_tensor_cores else device.peak("float32")
    kept, doubt = _share_kept(graph) if on_tensor_cores else BEFORE_AMPERE
    gain = max(device.peak("float16") * kept / rate, 1.0)
    fixed = np.minimum(FIXED_OF_ATTENTION * floor_ns(graph), old / 2)
    least = np.maximum(work(graph, kernels).flop, 0) / (BEST_ATTENTION * device.peak("float16"))
    found: np.ndarray = np.maximum(fixed + (old - fixed) / gain, least)
    return found, doubt


def _share_kept(graph: Graph) -> tuple[float, float]:
    """Return what the names of the trace's kernels say of torch's flash attention: share kept, doubt."""
    names = graph.texts["name"]
    if any(SINCE_2_2.search(name) for name in names):
        return FLASH_2
    # A strided kernel that keeps its type has been named apart (`nocast`) since the time of FlashAttention 2.
    strided = any("gpu_kernel_impl<" in name for name in names)
    return FLASH_1 if strided else FLASH_UNKNOWN


def few_rows_ns(graph: Graph, kernels: Selection, device: Device, keeps: float) -> np.ndarray:
    """Return the least that kernels of recurrent layers take which leave units idle; 0 for all others.

    Args:
        graph: the graph of the trace.
        kernels: as they run today.
        device: what they run on.
        keeps: part of the time above the fixed cost that stays, 0 to 1.

    Returns:
        ns, shape (kernels,), float64.
    """
    old = kernels.duration_ns.astype(np.float64)
    floor = np.minimum(floor_ns(graph), old)
    few = (work(graph, kernels).family == "recurrent") & _leaves_units_idle(graph, kernels, device)
    return np.where(few, floor + keeps * (old - floor), 0.0)


def doubt_of_products(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return by how much times of products on tensor cores may be off, by what they are today.

    Args:
        graph: the graph of the trace.
        kernels: products and convolutions.

    Returns:
        part of the time, at 90%, shape (kernels,), float64.
    """
    recurrent = work(graph, kernels).family == "recurrent"
    convolution = (work(graph, kernels).family == "convolution") | kernels_are(
        kernels, "convolution"
    )
    doubt = np.where(convolution, DOUBT_OF_CONVOLUTIONS, DOUBT_OF_PRODUCTS)
    doubt = np.where(recurrent, FEW_ROWS_DOUBT, doubt)
    found: np.ndarray = np.where(runs_in_tf32(graph, kernels), DOUBT_ON_TENSOR_CORES, doubt)
    return found


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
