"""Mixed precision: what runs in 16 bits already, what a device gains, autocast's casts, gradient scaling."""

from __future__ import annotations

import re
from math import ceil

import numpy as np

from daydream.costs.achieved import memory_bandwidth
from daydream.costs.calls import NOT_MAIN
from daydream.costs.devices import device_of
from daydream.costs.kernels import floor_ns, work
from daydream.costs.optimizers import RULES, Update, update_of
from daydream.costs.retime import Retimed, measured_first
from daydream.costs.roofline import is_matrix_kernel, names_fit
from daydream.costs.shapes import elements, parse_shapes
from daydream.costs.work import bare_name
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection

NARROW = ("float16", "bfloat16")
# Where `at::autocast` computes in 32 bits (ATen/autocast_mode.h, AT_FORALL_FP32 and its optional-dtype part):
# element-wise functions, norms, losses, softmax, sums; with the operators of their backward pass.
IN_32_BITS = (
    r"aten::(native_)?(layer_norm|rms_norm|group_norm)|aten::_?(safe_|log_)?softmax|_softmax_backward|"
    r"(layer|rms|group)_norm\w*_backward|nll_loss|mse_loss|l1_loss|huber_loss|kl_div|cross_entropy|logsumexp|"
    r"binary_cross_entropy_with_logits|aten::(exp|expm1|log|log10|log2|log1p|pow|reciprocal|rsqrt|softplus|sum|"
    r"prod|cumsum|cumprod|norm|linalg_vector_norm|linalg_matrix_norm|cosine_similarity|dist|cdist|renorm|"
    r"upsample_\w+)$"
)
IN_32_BITS_KERNEL = r"(?i)softmax|(layer|rms|group)_?norm|nll_loss|mse_loss|logsumexp"
# These take a 16-bit input and give a 32-bit result in one kernel, their gradients the other way round.
TO_32_IN_ONE = r"(?i)soft_?max|aten::(sum|prod|cumsum|cumprod|linalg_vector_norm)$"
HELPER = re.compile(rf"{NOT_MAIN.pattern}|reduce_wgrad|reduce_kernel", re.IGNORECASE)
PRODUCT_NODE = r"(Addmm|Mm|Linear|Convolution|Conv\w*)Backward\d*$"
# Places of input, weight and bias among the arguments; products of two activations (bmm) have no weight.
ARGUMENTS = {
    "addmm": (1, 2, 0), "mm": (0, 1, None), "linear": (0, 1, 2),
    **dict.fromkeys(("convolution", "_convolution", "cudnn_convolution", "miopen_convolution",
                     "convolution_overrideable"), (0, 1, 2)),
}  # fmt: skip
# One launch of a foreach kernel holds so many tensors and elements (blocks x chunk) of one list:
# ATen/native/cuda/MultiTensorApply.cuh, depth 1.
TENSORS_A_LAUNCH, ELEMENTS_A_LAUNCH = 110, 320 * 65_536
# Python and dispatch of `scale`, `step` and `update` of a GradScaler, less the unscaling operator and an
# empty `step()`: 4 to 160 tensors, torch 2.13.0 on an x86 server CPU at one thread; the fit is within 2 %.
SCALER_CALL_NS, SCALER_TENSOR_NS = 29_700, 690
STREAMING = ("element-wise", "copy")
STREAMING_KERNEL = r"(?i)elementwise"


def main_type(graph: Graph, kernels: Selection) -> tuple[str | None, float, str]:
    """Return the element type of most of the time, its share, and of what: of matrix kernels, if any."""
    matrix = kernels.where(lambda tasks: tasks_in_matrix_units(graph, tasks))
    judged, what = (matrix, "matrix kernels") if len(matrix) else (kernels, "kernels")
    types = judged.group_by("dtype")
    if not len(types):
        return None, 0.0, what
    time = types.total("duration_ns")
    return types.keys[int(time.argmax())], float(time.max() / max(time.sum(), 1)), what


def refuse_narrow(graph: Graph, kernels: Selection) -> None:
    """Raise `NotApplicableError` if most time of the matrix kernels (else of all kernels) is in 16 bits."""
    dtype, share, what = main_type(graph, kernels)
    if dtype in NARROW:
        raise NotApplicableError(f"the {what} run in 16 bits already: {share:.0%} of their time in {dtype}")


def tasks_in_matrix_units(graph: Graph, tasks: Selection) -> np.ndarray:
    """Return a mask of products, convolutions, attention and recurrent layers, by shapes, else by name.

    Libraries of convolutions name their layout changes, sums of parts and batch normalizations alike.
    """
    amounts = work(graph, tasks)
    helpers = names_fit(tasks.name, HELPER.search)
    found: np.ndarray = (amounts.flop > 0) & amounts.is_matrix | is_matrix_kernel(tasks.name) & ~helpers
    return found


def gain_in_16_bits(graph: Graph, most: float) -> float:
    """Return `most`, or the ratio of the device's 16- to its 32-bit peak where that is less, and note it.

    A device without tensor cores (P100) or one whose tensor cores are no more than twice as
    fast (GeForce cards since Ampere) cannot gain the paper's factor of 3. On a device that
    is not in the table `most` stands.
    """
    try:
        device = device_of(graph)
    except NotApplicableError:
        return most
    ratio = device.peak("float16") / device.peak(device.matrix_format("float32"))
    if ratio >= most:
        return most
    graph.note(
        f"Matrix kernels gain {ratio:.3g} and not {most:g}: a {device.name} computes "
        f"{device.tflops['float16']:g} TFLOP/s in 16 bits and {device.tflops['float32']:g} in 32."
    )
    return ratio


def set_measured(graph: Graph, selection: Selection, *, dtype: str, otherwise: str) -> Selection:
    """Set the durations in another element type that the graph's table has measured; return those tasks.

    `otherwise` is what a note calls the model that the others are left to.
    """
    if graph.times is None:
        return graph.tasks([])
    old = selection.duration_ns.astype(np.float64)
    retimed = measured_first(
        graph,
        selection,
        Retimed(selection.duration_ns, np.full(len(old), otherwise, dtype=object), old),
        dtype=dtype,
    )
    known = retimed.model == "table"
    if known.any():
        graph.tasks(selection.ids[known]).set(duration_ns=retimed.duration_ns[known])
    graph.note(retimed.words())
    return graph.tasks(selection.ids[known])


def streaming_ns(graph: Graph, nbytes: np.ndarray) -> np.ndarray:
    """Return the time of kernels that stream so many bytes: fixed cost, and the trace's own bandwidth.

    Raises `NotApplicableError` if neither the trace nor the table of devices tells a bandwidth.
    """
    rate = memory_bandwidth(graph)
    if rate is None:
        raise NotApplicableError(
            "the bandwidth of this device is not known: the trace has no shapes of streaming kernels, "
            "and the GPU is not in the table"
        )
    return np.asarray(floor_ns(graph) + nbytes / rate)


def operands(tasks: Selection) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements of input, weight and bias of products and convolutions; -1 where there is none.

    Of other calls the first is the first tensor, the others are -1.
    """
    known: dict[tuple[str | None, str | None], tuple[int, int, int]] = {}
    found = []
    for op, text in zip(tasks.op.tolist(), tasks.shapes.tolist(), strict=True):
        if (op, text) not in known:
            known[op, text] = _operands(bare_name(op or ""), text)
        found.append(known[op, text])
    table = np.array(found, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _operands(op: str, text: str | None) -> tuple[int, int, int]:
    arguments = parse_shapes(text) or []
    if op not in ARGUMENTS:
        return next((elements(one) for one in arguments if elements(one)), -1), -1, -1
    sizes = [
        (elements(arguments[place]) or -1) if place is not None and place < len(arguments) else -1
        for place in ARGUMENTS[op]
    ]
    return sizes[0], sizes[1], sizes[2]


def borders(graph: Graph, kernels: Selection) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the kernels before which autocast casts an activation: to 16 bits, to 32 bits.

    Matrix work wants 16 bits, the operators of `IN_32_BITS` want 32, and all others take what
    the work before them on their lane left: which tensor a kernel reads is not recorded. A
    step begins in 32 bits.
    """
    if not len(kernels):
        return np.zeros(0, bool), np.zeros(0, bool)
    matrix = tasks_in_matrix_units(graph, kernels)
    wide = np.isin(kernels.ids, in_32_bits(kernels).ids)
    in_one = np.isin(kernels.ids, (kernels.where(op=TO_32_IN_ONE) | kernels.where(name=TO_32_IN_ONE)).ids)
    backward = kernels.phase == "backward"
    wants = np.where(matrix, 16, np.where(wide, 32, 0))
    leaves = np.where(wide & in_one & backward & ~matrix, 16, wants)
    order = np.lexsort((graph.columns["lane"][kernels.ids], kernels.step))  # stable: program order within
    place = np.stack([kernels.step[order], graph.columns["lane"][kernels.ids][order]])
    starts = np.append(True, (place[:, 1:] != place[:, :-1]).any(axis=0))
    wanted, left = wants[order], leaves[order]
    # What is left before each kernel: that of the last one that leaves something, 32 bits at the start.
    shifted = np.where(starts, 32, np.append(32, left[:-1]))
    last = np.maximum.accumulate(np.where(shifted > 0, np.arange(len(order)), 0))
    before = shifted[last]
    to_16, to_32 = np.zeros(len(order), bool), np.zeros(len(order), bool)
    to_16[order] = (wanted == 16) & (before == 32)
    to_32[order] = (wanted == 32) & (before == 16)
    return to_16, to_32 & ~(in_one & ~backward)


def in_32_bits(kernels: Selection) -> Selection:
    """Return the kernels of operators that autocast keeps in 32 bits."""
    return kernels.where(op=IN_32_BITS) | kernels.where(name=IN_32_BITS_KERNEL)


def weight_casts(matrix: Selection) -> tuple[Selection, np.ndarray]:
    """Return the kernels beside which a parameter or its gradient is cast, and the elements; -1 if unknown.

    Forward the first kernel of each call with a weight, for the weight and for the bias if there is one.
    Backward the first kernel of the node that belongs to such a call: the k-th call of a step to the
    k-th node from the end, or the mean size where their numbers differ. Without shapes each has
    its share of the parameters that the optimizer updates.
    """
    calls = matrix.where(phase=("forward", "loss")).where(
        lambda tasks: np.array([bare_name(op or "") in ARGUMENTS for op in tasks.op.tolist()], bool)
    )
    first = calls.group_by("call").first() if len(calls) else calls
    _, weight, bias = operands(first)
    parameters, steps = update_of(matrix.graph).elements, len(np.unique(first.step))
    if not (weight > 0).any() and parameters > 0 and len(first):
        weight = np.full(len(first), parameters * steps // len(first))
    nodes = matrix.where(phase="backward").group_by("step", within=PRODUCT_NODE).first()
    ids, sizes = [first.ids], [weight]
    if len(nodes):
        by_step = np.lexsort((np.arange(len(first)), first.step))
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


def time_beside(kernels: Selection, to_16: np.ndarray, matrix: Selection) -> np.ndarray:
    """Return what the 32-bit kernel at each border takes, in ns: that before a cast to 16 bits, else itself.

    0 where that is no kernel of 32-bit work that streams: at the start of a step, or a product.
    """
    own, product = kernels.duration_ns, np.isin(kernels.ids, matrix.ids)
    previous = np.append(0, np.where(product, 0, own)[:-1])
    previous[np.append(True, kernels.step[1:] != kernels.step[:-1])] = 0
    return np.where(to_16, previous, own)


def cast_ns(graph: Graph, sizes: np.ndarray, instead: np.ndarray) -> np.ndarray:
    """Return the time of casts between 32 and 16 bits of so many elements: 6 B each.

    Where the size is unknown (-1): three quarters of what the 32-bit kernel beside it takes above the
    fixed cost of a kernel, as that moves 8 B an element or more.
    """
    floor = floor_ns(graph)
    by_neighbour = floor + 0.75 * np.maximum(instead - floor, 0)
    if not (sizes >= 0).any():
        return np.asarray(by_neighbour)
    return np.where(sizes >= 0, streaming_ns(graph, 6 * np.maximum(sizes, 0)), by_neighbour)


def dispatch_ns(graph: Graph) -> int:
    """Return the CPU time of an element-wise operator call besides its launch, as this trace's own take.

    The mean over calls of the forward pass, without what lies between operators; 0 where no operators
    are recorded. (In a public trace of autocast, `a100_particle_transformer_forward_batch8`, 27 us; its
    casts take 28 us.)
    """
    kernels = graph.select(kind="kernel", phase="forward")
    family = work(graph, kernels).family.astype(str)
    streaming = graph.tasks(kernels.ids[np.isin(family, STREAMING)]) | kernels.where(name=STREAMING_KERNEL)
    if not len(streaming.where(op=r".")):
        return 0
    cpu = streaming.operators()
    launched = cpu.launched()
    if not len(launched):
        return 0
    return int((cpu - launched.launches()).duration_ns.sum() // len(launched))


def unscale_ns(graph: Graph, updates: Groups, update: Update) -> tuple[np.ndarray, int, str]:
    """Return the time of unscaling a step's gradients, a value a step, in how many launches, and a sentence.

    Each gradient is read, multiplied, checked and written: twice its width. Where the number of parameters is
    unknown, by the update's own kernels, which move so many values a parameter.
    """
    if update.elements >= 0:
        nbytes = 2 * update.width * update.elements
        launches = max(ceil(update.tensors / TENSORS_A_LAUNCH), ceil(update.elements / ELEMENTS_A_LAUNCH), 1)
        time = np.full(len(updates), float(streaming_ns(graph, np.array([nbytes]))[0]))
        said = f"Unscaling moves {nbytes / 1e6:,.1f} MB: {update.elements:,} gradients, {update.where}."
        return time + (launches - 1) * floor_ns(graph), launches, said
    rule = RULES.get(update.kind or "")
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
