"""Mixed precision: what runs in 16 bits already, what a device gains, autocast's casts, gradient scaling.

How long 32-bit kernels take in 16 bits, by what sort of kernel they are.

| sort | time above the fixed cost |
|---|---|
| products, convolutions, recurrent layers | FLOP and bytes at the shares reached today (`roofline.py`) |
| fused attention | the rates of the kernels that torch takes for either type |
| element-wise, reductions, the rest | bytes halve, and so much of the time stays as is not bytes |

Every time comes with how far it may be off. The shares below are measured, and say where.

Types under autocast: which work runs in 16 bits, and where it has to cast. One walk for time and for memory.

Which tensor a kernel or call reads is not recorded. What is known: products want 16 bits, some operators want 32
(ATen/autocast_mode.h; for the CPU ATen/autocast_mode.cpp), and all others take the type of what they read. So
types follow from the order of kernels on a lane, or of calls. In the forward pass each takes what the work before
it left. The backward pass is the same in reverse: the gradient of a cast is a cast back, at the mirrored place, so
a kernel takes what the work *behind* it wants. A sum of two activations is as wide as the wider one (torch's type
promotion): beside a norm one of them is the residual stream, which a norm's
result or an embedding began. A sum or factor is as wide as a parameter that goes into it, where shapes show one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from daydream.arrays import distinct, percentile, run_starts, unique
from daydream.costs.device.call_scaling import memory_bandwidth
from daydream.costs.device.retime import Retimed, retime
from daydream.costs.device.roofline import Change, Correction, device_or_none, runs_in_tf32
from daydream.costs.kernels import floor_ns, is_matrix, value_ns, work
from daydream.costs.operators import (
    Operator,
    kernel_class,
    kernels_are,
    names_fit,
    nodes_that,
    operator,
    operators_that,
)
from daydream.costs.workload.formulas import elements, parse_shapes
from daydream.errors import NotApplicableError
from daydream.graph.calls import instances
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.select import of_tasks
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.model.optimizers import UPDATE_RULES, Update, update_of
from daydream.text import counted

NARROW = ("float16", "bfloat16")
NARROWER = regex(r"float[48]_")
LAUNCH = r"Launch(Cooperative)?Kernel|ModuleLaunch"
# One launch of a foreach kernel holds so many tensors and elements (blocks x chunk) of one list:
# ATen/native/cuda/MultiTensorApply.cuh, depth 1.
TENSORS_A_LAUNCH = 110
ELEMENTS_A_LAUNCH = 320 * 65_536
# Python and dispatch of `scale`, `step` and `update` of a GradScaler, less the unscaling operator and an
# empty `step()`: 4 to 160 tensors, torch 2.13.0 on an x86 server CPU at one thread; the fit is within 2%.
SCALER_CALL_NS = 29_700
SCALER_TENSOR_NS = 690
# Of the bandwidth of streaming work: torch's kernel that widens (`unrolled_elementwise_kernel`) loads no
# vectors, the one that narrows does: 22.9 us against 14.8 on a T4 (`t4_mlp_amp`, a development pair).
TO_32_REACHES = 0.63
STREAMING = ("element-wise", "copy")
STREAMING_KERNEL = r"(?i)elementwise"


def main_dtype(graph: Graph, kernels: Selection) -> tuple[str | None, float, str]:
    """Return the element type of most of the time, its share, and of what: of matrix kernels, if any.

    Args:
        graph: the graph of the trace.
        kernels: of which passes, of which kinds.

    Returns:
        the type (None for unknown), its share of the time, 0 to 1, and `matrix kernels` or `kernels`.
    """
    matrix = kernels.where(lambda tasks: is_matrix(graph, tasks))
    judged, what = (matrix, "matrix kernels") if len(matrix) else (kernels, "kernels")
    types = judged.group_by("dtype")
    if not len(types):
        return None, 0.0, what
    time = types.total("duration_ns")
    return types.keys[int(time.argmax())], float(time.max() / max(time.sum(), 1)), what


def refuse_narrow(graph: Graph, kernels: Selection) -> None:
    """Refuse kernels that are in 16 bits or fewer already: most time of the matrix kernels, else of all.

    Kernels of 8 or 4 bits beside those that change stay as they are, with a note.

    Raises:
        NotApplicableError: most of that time is in 16 bits or fewer.
    """
    dtype, share, what = main_dtype(graph, kernels)
    if dtype in NARROW:
        raise NotApplicableError(
            f"the {what} run in 16 bits already: {share:.0%} of their time in {dtype}"
        )
    if NARROWER.match(dtype or ""):
        raise NotApplicableError(
            f"the {what} run in fewer than 16 bits already: {share:.0%} of their time in {dtype}"
        )
    narrower = kernels.where(
        lambda tasks: of_tasks(tasks, "dtype", lambda text: bool(NARROWER.match(text or "")), bool)
    )
    if len(narrower):
        total = narrower.total("duration_ns") / 1e6
        graph.note(
            f"Left as they are: {counted(len(narrower), 'kernel')} of 8 or 4 bits, {total:,.4g} ms in total."
        )


def wide_kernels(graph: Graph) -> Selection:
    """Return the 32-bit kernels of forward, loss and backward that 16 bits may change.

    Autocast acts on operators: a kernel that a thread with operators launches outside of them (hand-written,
    of no custom operator) stays. Compiled code and replayed graphs stand for operators.

    Raises:
        NotApplicableError: there are none, or they are narrow already.
    """
    passes = graph.select(kind="kernel", phase=("forward", "loss", "backward"))
    passes.need("kernels in the forward or backward pass", lacks="device")
    refuse_narrow(graph, passes)
    wide = passes.where(dtype="float32").need("32-bit kernels in the forward or backward pass")
    calls = graph.select(kind="cpu", name=LAUNCH).on_lanes_of(graph.select(kind="cpu", op=r"."))
    alone = wide.where(lambda tasks: np.isin(tasks.launch, calls.ids))
    alone -= wide.where(op=r".") | wide.where(name=r"^triton_")
    if len(alone):
        graph.note(f"Left as they are: {counted(len(alone), 'kernel')} that no operator launched.")
    return wide - alone


def streaming_ns(graph: Graph, nbytes: np.ndarray) -> np.ndarray:
    """Return the time of kernels that stream so many bytes: fixed cost, and the trace's own bandwidth.

    Args:
        graph: the graph of the trace.
        nbytes: bytes of each, shape (kernels,).

    Returns:
        ns, shape (kernels,), float64.

    Raises:
        NotApplicableError: neither the trace nor the table of devices tells a bandwidth.
    """
    rate = memory_bandwidth(graph)
    if rate is None:
        raise NotApplicableError(
            "the bandwidth of this device is not known: the trace has no shapes of streaming kernels, "
            "and the GPU is not in the table"
        )
    return floor_ns(graph) + nbytes / rate


def operand_elements(tasks: Selection) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements of input, weight and bias of products and convolutions.

    Of other calls the first is the first tensor.

    Args:
        tasks: kernels or CPU tasks.

    Returns:
        three arrays, each shape (tasks,), int64; -1 where there is none.
    """
    known: dict[tuple[str | None, str | None], tuple[int, int, int]] = {}
    found = []
    for op, text in zip(tasks.op.tolist(), tasks.shapes.tolist(), strict=True):
        if (op, text) not in known:
            known[op, text] = _operands(op or "", text)
        found.append(known[op, text])
    table = np.array(found, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _operands(op: str, text: str | None) -> tuple[int, int, int]:
    arguments = parse_shapes(text) or []
    row = operator(op)
    if not has_weight(row):
        return next((elements(one) for one in arguments if elements(one)), -1), -1, -1
    found = []
    for roles in (("input",), ("weight", "factor"), ("bias",)):
        places = [place for place in row.places(*roles) if place < len(arguments)]
        found.append((elements(arguments[places[0]]) or -1) if places else -1)
    return found[0], found[1], found[2]


def has_weight(op: Operator) -> bool:
    """Return whether a product or convolution has a weight; products of two activations (bmm) have none."""
    return op.is_linear or (op.family == "convolution" and "weight" in op.roles)


def weight_casts(matrix: Selection) -> tuple[Selection, np.ndarray]:
    """Return the kernels beside which a parameter or its gradient is cast, and the elements that are.

    Forward the first kernel of each call with a weight, for the weight and for the bias if there is one.
    Backward the first kernel of the node that belongs to such a call: the k-th call of a step to the
    k-th node from the end, or the mean size where their numbers differ. Without shapes each has
    its share of the parameters that the optimizer updates.

    Args:
        matrix: kernels of products and convolutions, of both passes.

    Returns:
        kernels, one a cast (some twice); and elements, shape (casts,), int64, -1 if unknown.
    """
    calls = matrix.where(phase=("forward", "loss")).where(
        lambda tasks: of_tasks(tasks, "op", lambda op: has_weight(operator(op)), bool)
    )
    first = calls.group_by("call").first() if len(calls) else calls
    _, weight, bias = operand_elements(first)
    parameters = update_of(matrix.graph).elements
    steps = len(unique(first.step))
    if not (weight > 0).any() and parameters > 0 and len(first):
        weight = np.full(len(first), parameters * steps // len(first))
    nodes = matrix.where(phase="backward").group_by("step", within=nodes_that(has_weight)).first()
    ids = [first.ids]
    sizes = [weight]
    if len(nodes):
        by_step = np.argsort(first.step, kind="stable")
        turned = np.lexsort((-np.arange(len(nodes)), nodes.step))
        same = np.array_equal(first.step[by_step], nodes.step[turned])
        mean = int(weight[weight > 0].mean()) if (weight > 0).any() else -1
        ids.append(nodes.ids[turned])
        sizes.append(weight[by_step] if same else np.full(len(nodes), mean))
        if same:
            ids.append(nodes.ids[turned][bias[by_step] > 0])
            sizes.append(bias[by_step][bias[by_step] > 0])
    ids.append(first.ids[bias > 0])
    sizes.append(bias[bias > 0])
    return matrix.of(np.concatenate(ids), "weights", ordered=True), np.concatenate(sizes)


def border_kernel_ns(kernels: Selection, to_16: np.ndarray, matrix: Selection) -> np.ndarray:
    """Return what the 32-bit kernel at each border to 16 bits takes: that before a cast to 16, else itself.

    0 where that is no kernel of 32-bit work that streams: at the start of a step, or a product.

    Args:
        kernels: in program order.
        to_16: mask of those before which a result is cast to 16 bits, shape (kernels,), bool.
        matrix: those of them that are products.

    Returns:
        ns, shape (kernels,), int64.
    """
    own = kernels.duration_ns
    product = kernels.is_in(matrix)
    previous = np.append(0, np.where(product, 0, own)[:-1])
    previous[run_starts(kernels.step)] = 0
    return np.where(to_16, previous, own)


def cast_ns(graph: Graph, sizes: np.ndarray, instead: np.ndarray, to_32: np.ndarray) -> np.ndarray:
    """Return the time of casts between 32 and 16 bits: 6 B an element, slower to 32.

    Where the size is unknown: three quarters of what the 32-bit kernel beside it takes above the
    fixed cost of a kernel, as that moves 8 B an element or more.

    Args:
        graph: the graph of the trace.
        sizes: elements, -1 for unknown, shape (casts,), int64.
        instead: ns of the 32-bit kernel beside each, shape (casts,).
        to_32: mask of casts to 32 bits, shape (casts,), bool.

    Returns:
        ns, shape (casts,), float64.
    """
    floor = floor_ns(graph)
    by_neighbour = floor + 0.75 * np.maximum(instead - floor, 0)
    if not (sizes >= 0).any():
        return by_neighbour
    moved = 6 * np.maximum(sizes, 0) / np.where(to_32, TO_32_REACHES, 1.0)
    return np.where(sizes >= 0, streaming_ns(graph, moved), by_neighbour)


def dispatch_ns(graph: Graph) -> int:
    """Return the CPU time of an element-wise operator call besides its launch, as this trace's own take, ns.

    The median over launches of the forward pass, which start-up in a few calls does not move, without what
    lies between operators; 0 where no operators are recorded. (In three public traces of autocast,
    `a100_particle_transformer_forward_batch8` the first, 22, 39 and 11 us; casts take 24, 38 and 11 us. In
    `t4_mlp_amp` 39 us without autocast; with it a cast takes 35 to 42 us, its allocation included.)
    """
    kernels = graph.select(kind="kernel", phase="forward")
    family = work(graph, kernels).family.astype(str)
    streaming = graph.tasks(kernels.ids[np.isin(family, STREAMING)]) | kernels.where(
        name=STREAMING_KERNEL
    )
    if not len(streaming.where(op=r".")):
        return 0
    cpu = streaming.operators()
    launches = cpu.launched().launches()
    if not len(launches):
        return 0
    _, call = distinct(instances(graph, cpu.ids))
    launching = cpu.is_in(launches)
    count = np.bincount(call, launching).astype(np.int64)
    spent = np.bincount(call, np.where(launching, 0, cpu.duration_ns))
    return int(percentile(np.repeat(spent / np.maximum(count, 1), count), 50))


def unscale_ns(graph: Graph, updates: Groups, update: Update) -> tuple[np.ndarray, int, str]:
    """Return the time of unscaling a step's gradients, in how many launches, and a sentence on it.

    Each gradient is read, multiplied, checked and written: twice its width. Where the number of parameters is
    unknown, by the update's own kernels, which move so many values a parameter.

    Args:
        graph: the graph of the trace.
        updates: kernels of the update, a group a step.
        update: what the trace tells of its optimizer.

    Returns:
        ns, shape (steps,), float64; the launches; and the sentence.

    Raises:
        NotApplicableError: how many gradients there are is not known.
    """
    if update.elements >= 0:
        nbytes = 2 * update.width * update.elements
        launches = max(
            ceil(update.tensors / TENSORS_A_LAUNCH), ceil(update.elements / ELEMENTS_A_LAUNCH), 1
        )
        time = np.full(len(updates), float(streaming_ns(graph, np.array([nbytes]))[0]))
        said = f"Unscaling moves {nbytes / 1e6:,.1f} MB: {update.elements:,} gradients, {update.where}."
        return time + (launches - 1) * floor_ns(graph), launches, said
    each = value_ns(updates.tasks)
    if each is not None:
        said = "Unscaling takes as long as the update's multi-tensor kernels take for the two values it moves."
        return np.full(len(updates), 2 * each), 1, said
    rule = UPDATE_RULES.get(update.kind or "")
    if rule is None:
        raise NotApplicableError(
            "how many gradients there are is not known: record shapes, or use `daydream collect`"
        )
    share = 2 / rule.values
    said = (
        f"Unscaling takes {share:.0%} of the update's kernels, as it moves 2 of the {rule.values} values a "
        "parameter: the number of parameters is not recorded."
    )
    return updates.total("duration_ns") * share, 1, said


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
FLASH_1 = (0.7, 0.2)
FLASH_2 = (1.2, 0.35)
FLASH_UNKNOWN = (0.95, 0.4)
BEFORE_AMPERE = (0.55, 0.4)


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
    kernels = change.selection
    old = change.old
    floor = change.floor
    sorts = [sort_of(name)[1:] for name in kernels.name.tolist()]
    keeps, doubt = np.array(sorts, float).reshape(-1, 2).T
    # Arithmetic stays in 32 bits: of shapes it is next to nothing, counters may tell of more.
    arithmetic = np.maximum(change.work.flop, 0) / change.here.peak("float32")
    keeps = np.maximum(keeps, np.minimum(arithmetic / np.maximum(old - floor, 1e-3), 1.0))
    mine = ~change.matrix & ~kernels_are(kernels, "attention")
    change.new[mine] = (floor + keeps * (old - floor))[mine]
    change.model[mine] = "bytes"
    change.doubt[mine] = doubt[mine]


def attention(change: Change) -> None:
    """Fused attention takes the kernels that torch has for 16 bits; AMD's has none of its own for this."""
    graph = change.graph
    device = change.here
    old = change.old
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
    change.new[mine] = found[mine]
    change.model[mine] = "attention"
    change.doubt[mine] = doubt


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


ADD = r"aten::add_?$"
ADD_KERNEL = r"CUDAFunctor_add|AddFunctor|add_kernel"
# Within `cross_entropy` the logarithm of softmax is asked for in the type of its input
# (ATen/native/LossNLL.cpp), and only the loss is computed in 32 bits: so in `t4_mlp_amp`, a development pair.
LOG = r"log_softmax"
LOG_KERNEL = r"(?i)log_?softmax|softmax_warp_\w+<[^>]*\b\d+, (true|\(bool\)1),"
LOSS = r"(?i)nll_loss"
COMPILED = r"triton_"  # Inductor writes casts into the kernels around them
SUM = r"aten::sum$"
SUM_KERNEL = r"reduce_kernel.*(sum_functor|SumOps|sum_kernel)"


def _stays_wide(op: Operator) -> bool:
    norm = op.family == "normalization" and "batch_norm" not in op.name
    return norm or op.family in ("softmax", "loss") or "loss" in op.traits


def _is_cast_inside(op: Operator) -> bool:
    """Whether it takes a 16-bit input and gives a 32-bit result in one kernel, its gradient the other way."""
    return op.family == "softmax" or op.autocast_gpu == "32 result"


class Work(NamedTuple):
    """A kernel of a lane, or a call of the forward pass: what decides its type.

    `wants` are bits: 16 of a product, 32 of what autocast keeps wide, 0 of what takes what it is given.
    """

    wants: int
    adds: bool = False
    backward: bool = False
    casts: bool = False  # inside, from one type to the other
    sums: bool = False
    widens: bool = False  # a parameter of 32 bits goes in


class Types(NamedTuple):
    """Bits that work is given, that it runs in and that it wants, 0 for none; and whether it is a residual sum."""

    given: int
    runs: int
    wants: int
    residual: bool


def walk(works: Sequence[Work], *, calls: bool = False) -> list[Types]:
    """Return the types of a step's work in its order; a step begins in 32 bits.

    Of `calls` every sum adds activations, so that the first one tells the type of the stream that others add to.
    Of kernels some add what belongs to an operator.
    """
    wants = [one.wants for one in works]
    residual = []
    ahead = 32
    left = 32
    stream = 0
    for one, want, behind in zip(works, wants, _behind(wants), strict=True):
        beside_wide = behind == 32 or (ahead if one.backward else stream) == 32
        residual.append(not want and (one.widens or (one.adds and beside_wide)))
        ahead = want or ahead
        left = 32 if residual[-1] else want or left
        stream = stream or left * one.adds * calls
    wants = [32 if wide else want for want, wide in zip(wants, residual, strict=True)]
    # A sum of the backward pass, the gradient of a bias, takes what it is given.
    sums = [one.sums and one.backward and one.wants != 32 for one in works]
    behind_it = _behind([0 if sums_up else want for want, sums_up in zip(wants, sums, strict=True)])
    given = 32
    found = []
    for at, one in enumerate(works):
        mirrored = one.backward and not sums[at]
        want = wants[at] or (behind_it[at] if mirrored else 0)
        found.append(Types(given, want or given, want, residual[at]))
        turns = one.wants == 32 and one.casts and one.backward
        given = 16 if turns else want or given
    return found


def wants(op: Operator, *, on_gpu: bool) -> int:
    """Return how many bits autocast gives a call of an operator: 16, 32, or 0 for what it is given.

    A loss is none of these: it may be called outside of autocast.
    """
    told = op.autocast_gpu if on_gpu else op.autocast_cpu
    if told == "16" or op.family in ("attention", "recurrent"):
        return 16
    # Within `cross_entropy` the logarithm of softmax has the type of the logits (LossNLL.cpp).
    wide = told.startswith("32") and "loss" not in op.traits
    return 32 if wide and not op.name.endswith("log_softmax") else 0


class Flow(NamedTuple):
    """Masks of kernels, an entry each: run in 16 bits; a cast to 16 or 32 bits comes before them."""

    narrow: Any
    to_16: Any
    to_32: Any


def wide_work(kernels: Selection) -> Selection:
    """Return the kernels of operators that autocast keeps in 32 bits."""
    # Autocast is not active in the backward pass: what reads there what a norm, a softmax or a loss kept has
    # its type, and a sum (the gradient of a bias) takes what it is given.
    forward = kernels.where(phase=("forward", "loss"))
    found = kernels.where(op=operators_that(_stays_wide))
    found = found | kernels.where(lambda tasks: kernels_are(tasks, "softmax", "norm", "loss"))
    if len(kernels.where(name=LOSS)):
        found = found - kernels.where(op=LOG) - kernels.where(name=LOG_KERNEL)
    return found | forward.where(op=operators_that(lambda op: op.autocast_gpu.startswith("32")))


def flow(graph: Graph, kernels: Selection) -> Flow:
    """Return which of some 32-bit kernels of forward, loss and backward autocast runs in 16 bits.

    Not known: a third use of an activation (one that feeds three products is cast once here), and which of several
    streams an activation came from.
    """
    matrix = kernels.where(lambda tasks: is_matrix(graph, tasks))
    wide = wide_work(kernels) - matrix
    bits = 16 * kernels.is_in(matrix) + 32 * kernels.is_in(wide)
    chosen = (
        kernels.where(op=ADD) | kernels.where(name=ADD_KERNEL),
        kernels.where(phase="backward"),
        kernels.where(op=operators_that(_is_cast_inside))
        | kernels.where(lambda tasks: kernels_are(tasks, "softmax")),
        kernels.where(op=SUM) | kernels.where(name=SUM_KERNEL),
    )
    columns = (bits, *(kernels.is_in(some) for some in chosen))
    works = map(Work, *(column.tolist() for column in columns))
    compiled = kernels.is_in(kernels.where(name=COMPILED)).tolist()
    places = zip(kernels.step.tolist(), kernels.lane.tolist(), strict=True)
    rows = sorted(
        zip(places, kernels.ids.tolist(), compiled, works, strict=True), key=lambda row: row[0]
    )  # in program order within
    found: dict[str, list[int]] = {"narrow": [], "to 16": [], "to 32": []}
    for _, of_lane in groupby(rows, lambda row: row[0]):
        lane = [*of_lane]
        before = False
        for (_, task, fused, one), types in zip(lane, walk([row[-1] for row in lane]), strict=True):
            if types.runs == 16:
                found["narrow"].append(task)
            casts = types.residual or (one.wants == 32 and one.casts)
            if not (fused or before) and types.wants + types.given == 48:
                if types.wants == 16:
                    found["to 16"].append(task)
                elif one.backward or not casts:
                    found["to 32"].append(task)
            before = fused
    return Flow(*(kernels.is_in(graph.tasks(tasks)) for tasks in found.values()))


def _behind(values: list[int]) -> list[int]:
    """Return for each place the next value behind it that is not 0, 0 where none is."""
    found = []
    value = 0
    for each in reversed(values):
        found.append(value)
        value = each or value
    return found[::-1]


def insert_elementwise(graph: Graph, beside: Selection, name: str, duration_ns: Any) -> None:
    """Insert an element-wise operator before each task, with its launch and CPU time."""
    dispatch = dispatch_ns(graph)
    called = beside.where(lambda tasks: tasks.launch >= 0)
    if dispatch and len(called):
        graph.insert_before(called, f"operator of {name}", kind="cpu", duration_ns=dispatch)
    graph.insert_before(beside, name, duration_ns=duration_ns)
