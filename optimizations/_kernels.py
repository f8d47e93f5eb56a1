"""Other kernels of the same work: TF32, channels last, fused attention, restructured batch norm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from daydream import Graph, GraphError, Groups
from daydream.costs import (
    Operator,
    bound,
    counted_kind,
    device_of,
    is_matrix,
    kernels_are,
    names_fit,
    nodes_that,
    operators_that,
    retime,
    runs_in_tf32,
    say_evidence,
    work,
)
from daydream.memory import unchanged
from daydream.model import (
    DOUBT_OF_CONVOLUTIONS,
    FUSED_ATTENTION_KERNEL,
    FUSED_ATTENTION_OP,
    LAYOUT_CHANGE,
    attention_chains,
    backward_chains,
    changes_layout,
    doubt_of_products,
    find_chains,
    fused_attention_ns,
    remove_with_operators,
    streaming_ns,
    work_tasks,
)
from daydream.transforms import counted, stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

memory = unchanged

STAGE = stages.FUSION

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

    Args:
        unknown_speedup: Speed-up where the GPU is unknown.
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
        lambda tasks: [kind in ("compute", "unknown") for kind in bound(graph, tasks).kind]
    )
    products.need("float32 matrix kernels bound by arithmetic: memory or launches bound all of them")

    old = products.duration_ns
    say_evidence(graph, exact)
    known = work(graph, products).flop > 0
    retimed = retime(graph, products, dtype="tf32")
    new = retimed.duration_ns.clip(max=old)
    modelled = retimed.model != "table"
    if unknown_speedup is not None:
        new[modelled & ~known] = (old / min(unknown_speedup, ratio))[modelled & ~known]
    doubt, (turned, moved) = doubt_of_products(graph, products), changes_layout(graph, products)
    doubt = (doubt**2 + ~known * DOUBT_WITHOUT_SHAPES**2) ** 0.5
    turned_ns = streaming_ns(graph, 2 * moved) if len(turned) else moved
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
def _apply_tf32(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
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


# cuDNN's and MIOpen's kernels that change the layout around a convolution.
TO_NHWC = r"nchwToNhwc|batched_transpose_\d+x\d+"
FROM_NHWC = "nhwcToNchw"
LAYOUT = rf"{FROM_NHWC}|{TO_NHWC}"
CONVOLUTION = r"(?i)conv"
NHWC_KERNEL = r"(?i)nhwc|ndhwc"


def channels_last(graph: Graph) -> None:
    """Predict tensors of convolutions in NHWC order: the kernels that transpose them go.

    Tensor-core convolutions compute in NHWC. On NCHW tensors the library transposes input,
    weight and output (and their gradients) around each of them; in channels-last memory
    nothing is left to transpose. The first such kernel of a step stays: the images still arrive as
    NCHW. Launches go with the kernels, the operators stay.

    Where a convolution's first such kernel turns NHWC into NCHW, its tensors lie in channels-last memory
    already, and the library turns them for a kernel that computes in NCHW: those stay.

    Assumes that every layer between keeps the order: one that does not brings copies back. Not
    modelled: convolutions that run in NCHW kernels today (they may run faster or slower in NHWC), and
    batch normalization and pooling, whose NHWC kernels are others.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels; on a CPU the layout is not modelled", lacks="device")
    around = kernels.where(op=CONVOLUTION) | kernels.where(name=CONVOLUTION)
    around.need("convolution")
    layout = kernels.where(name=LAYOUT)
    layout = layout - layout.where(op=r"^aten::(?!.*conv)")  # a transposition that the program asked for
    if not len(layout):
        graph.does_not_apply(
            "no kernel changes the layout around the convolutions: they run in NHWC already"
            if len(around.where(name=NHWC_KERNEL))
            else "no kernel changes the layout around the convolutions: they run in NCHW kernels, and what "
            "the library's NHWC kernels would take is not in this trace"
        )
    calls = layout.group_by("call")
    turned = calls.where([FROM_NHWC in name for name in calls.first().name]).tasks
    layout = layout - turned
    if not len(layout):
        graph.does_not_apply(
            "the tensors lie in channels-last memory already: the layout is changed for convolutions that "
            "run in NCHW kernels"
        )
    inputs = layout.where(name=TO_NHWC).group_by("rank", "step").first()
    gone = layout - inputs
    gone.need("more than one change of layout per step: only the images are transposed")
    total = int(gone.duration_ns.sum())
    each = len(inputs)
    count = len(gone)
    gone.remove()
    graph.note(
        f"{count:,} layout kernels of {total / 1e6:,.2f} ms go; {each:,} stay, one per step, for the images."
    )


@contextmanager
def _apply_channels_last(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: parameters in channels-last memory, and images as they come in."""
    import torch

    def to_channels_last(_module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            one.contiguous(memory_format=torch.channels_last) if getattr(one, "ndim", 0) == 4 else one
            for one in arguments
        )

    model.to(memory_format=torch.channels_last)
    hook = model.register_forward_pre_hook(to_channels_last)
    try:
        yield
    finally:
        hook.remove()
        model.to(memory_format=torch.contiguous_format)


def flash_attention(graph: Graph) -> None:
    """Predict attention that never writes its scores: one kernel a call and direction.

    Product of queries and keys, scale, mask, softmax, dropout and product with the values become
    one kernel, as `scaled_dot_product_attention` runs it; so do the two gradients of each
    product around the softmax's gradient. Its time: two products forward, five backward (it
    computes the scores again) at the FLOP rate of the trace's own products, or queries, keys, values, mask
    and output at its own bandwidth. Without recorded shapes: as long as the chain's products alone,
    backward 5/4 of them. Launches and CPU time of the other operators go.

    Not modelled: the half of the scores that a causal mask would skip, copies of heads that fused
    attention does not need, what a kernel loses on short sequences or wide heads. In float32, or with a
    mask of its own, torch runs its memory-efficient kernel, which works the same way.

    Refused where it is found in the backward pass alone, as of compiled code: fused attention needs what its
    own forward pass keeps.

    Memory: scores are never stored, but for one value of 32 bits a row. They are told by their shapes;
    where heads are as wide as a sequence is long, queries, keys and values look the same, and what is
    left is too little.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels; on a CPU the fused attention is not modelled", lacks="device")
    fused = kernels.where(op=FUSED_ATTENTION_OP) | kernels.where(name=FUSED_ATTENTION_KERNEL)
    if len(fused):
        graph.does_not_apply(f"attention runs in fused kernels already ({len(fused):,} of them)")
    both = dict(zip(("forward", "backward"), attention_chains(graph), strict=True))
    if not len(both["forward"]) and not len(both["backward"]):
        graph.does_not_apply(
            "no attention found: no softmax with a batched matrix product before and after it"
        )
    if not len(both["forward"]) and len(kernels.where(phase="forward")):
        graph.does_not_apply(
            "attention was found in the backward pass alone: forward it lies in kernels that do more, "
            "and fused attention replaces both"
        )
    times = {name: fused_attention_ns(graph, both[name], backward=name == "backward") for name in both}
    for direction, chains in both.items():
        if not len(chains):
            if len(kernels.where(phase=direction)):
                graph.note(f"No attention was found in the {direction} pass; it stays as it is.")
            continue
        before = int(chains.tasks.duration_ns.sum())
        time, known = times[direction]
        rest = chains.tasks - chains.first()
        operator = "aten::_scaled_dot_product_flash_attention"
        chains.first().set(duration_ns=time, name="flash attention", op=operator)
        remove_with_operators(rest)
        graph.note(
            f"{counted(len(chains), 'chain')} of attention {direction}: {before / 1e6:,.2f} ms become "
            f"{time.sum() / 1e6:,.2f} ms; {known:,} by shapes, the others by the time of their own products."
        )


def _memory_flash_attention(held: Allocations) -> None:
    """Store no scores of attention."""
    from daydream.memory import drop_scores  # asked only where memory was recorded

    drop_scores(held)


@contextmanager
def _apply_flash_attention(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real where `scaled_dot_product_attention` is called: it runs fused kernels only."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        yield


CHAIN = r"CBR"
COUNTER = r"^aten::add_?$"  # counts the batches that a layer has seen


def _is_norm(op: Operator) -> bool:
    return op.family == "normalization" and "batch_norm" in op.name and "_backward" not in op.name


def _is_activation(op: Operator) -> bool:
    return "activation" in op.traits or op.name in ("clamp", "threshold")


def _words() -> dict[str, str]:
    return {
        "C": operators_that(lambda op: op.family == "convolution" and "_backward" not in op.name),
        "B": operators_that(_is_norm),
        "R": operators_that(_is_activation),
    }


def restructured_batchnorm(graph: Graph) -> None:
    """Predict batch normalization that is split and fused with its neighbours (Daydream, section 5.2).

    Its first half, the statistics, goes into the convolution before it, its second half into the
    activation and the convolution after. So in every chain of convolution, normalization and
    activation, forward and backward, the activation's kernels go with their launches and the
    CPU time of their operators, and those of the normalization take half: they move half the
    bytes. A normalization with anything else on either side (a sum of branches, say) stays.

    Memory: what a normalization hands to its activation is not stored.

    Not modelled: what the convolutions lose by doing this besides, and the copies that real
    implementations make: the paper found its own prediction too good. On a CPU the same holds.
    """
    work = work_tasks(graph)
    work.where(within=operators_that(_is_norm)).need("batch normalization")
    chains = _chains(graph)
    if not len(chains):
        graph.does_not_apply("no batch normalization is between a convolution and an activation")
    backward = backward_chains(chains)
    norms = chains.tasks.where(within=operators_that(_is_norm)) | backward.tasks.where(
        within=nodes_that(_is_norm)
    )
    activations = chains.tasks.where(within=operators_that(_is_activation)) | backward.tasks.where(
        within=nodes_that(_is_activation)
    )
    every = len(work.group_by(within=operators_that(_is_norm)))

    say_evidence(graph, norms.where(kind="kernel"))
    by_counters = counted_kind(graph, norms)
    # Half the bytes are half the time of what moves bytes; counters may tell otherwise.
    halved = norms[(by_counters != "compute") & (by_counters != "latency")]
    stay = len(norms) - len(halved)
    if len(halved):
        halved.scale(0.5)
    remove_with_operators(activations)
    graph.note(f"{len(chains):,} of {every:,} batch normalizations are between convolution and activation.")
    if stay:
        graph.note(f"Normalization that counters show not to be bound by memory stays: {stay:,} kernels.")
    if not len(graph.select(phase="backward")):
        graph.note("Without a backward pass a normalization can be folded into its convolution altogether.")
    elif not len(backward):
        graph.note("Which backward work is theirs is not known (no sequence numbers), so it stays.")


def _memory_restructured_batchnorm(held: Allocations) -> None:
    """Store nothing between a normalization and its activation."""
    from daydream.memory import fuse  # asked only where memory was recorded

    fuse(held, _chains(held.graph), _words(), first_stays=True)


def _chains(graph: Graph) -> Groups:
    """Return the work of convolutions with a normalization and an activation behind them."""
    counters = (
        work_tasks(graph)
        .where(op=COUNTER)
        .where(
            lambda tasks: (
                (tasks.dtype == "int64") | ((tasks.input_elements >= 0) & (tasks.input_elements <= 2))
            )
        )
    )
    return find_chains(graph, _words(), CHAIN, unseen=counters, one_kernel=False)


COMMANDS = {
    "tf32": {
        "STAGE": stages.PRECISION,
        "EXCLUDES": {"amp", "autocast", "fp8"},  # they take the same kernels to 16 or 8 bits
        "CODE": 'torch.set_float32_matmul_precision("high")',
        "apply": _apply_tf32,
    },
    "channels-last": {
        "CODE": "model = model.to(memory_format=torch.channels_last)",
        "apply": _apply_channels_last,
    },
    "flash-attention": {
        "STAGE": stages.WORK,
        "CODE": "torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        "memory": _memory_flash_attention,
        "apply": _apply_flash_attention,
    },
    "restructured-batchnorm": {
        "EXCLUDES": {"compile"},
        "PAPER_ONLY": True,  # a compiler fuses these passes with its own kernels: see compile
        "memory": _memory_restructured_batchnorm,
    },
}
