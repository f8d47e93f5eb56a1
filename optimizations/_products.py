"""Products in narrower numbers: int8 and float8 with the casts around them, and pruned weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import (
    Retimed,
    copies_into_new_ns,
    device_of,
    elements,
    itemsize,
    operators_that,
    parse_shapes,
    retime,
    runs_in_tf32,
    say_evidence,
    take_measured,
    work,
)
from daydream.memory import unchanged
from daydream.model import backward_chains, insert_elementwise, operand_elements, streaming_ns
from daydream.transforms import counted, stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

STAGE = stages.PRECISION

BITS = {"int8": 8}
MASK_BYTES = 1  # of `fake_quantize_per_tensor_affine_cachemask`: a truth value an element, for the gradient
TWO_OF_FOUR = "2:4"
# cuSPARSELt's documentation lists compute capability 8.0 and up; twice the rate of dense tensor cores at most
# ("Accelerating Sparse Deep Neural Networks", NVIDIA, arXiv 2104.08378).
HARDWARE_SPEEDUP = 2.0
# Two values of four, and a 2-bit place for each: bytes of a compressed weight, by bytes of an element.
COMPRESSED = {1: 0.5 + 0.125, 2: 0.5 + 0.0625, 4: 0.5 + 0.03125}
# Rows and columns of a weight are multiples of these: `_DTYPE_SHAPE_CONSTRAINTS` of torch.sparse (2.13).
MULTIPLES = {1: (32, 32), 2: (16, 16), 4: (8, 8)}
FITS = ("float16", "bfloat16", "int8", "float8_e4m3fn")


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

    Args:
        dtype: Type to compute in.
        operands: What is quantized.
        scaling: Scale from this step, or fixed.
        layer (GLOB): Modules, by path: blocks.*; by default all.
    """
    products = linear_products(graph, layer)
    if len(take_measured(graph, products.work)):
        return
    if len(graph.select(phase="backward")):
        _fake(graph, products, operands, scaling)
    elif not products.on_gpu:
        graph.does_not_apply(
            "this is inference on a CPU, where int8 depends on instructions (VNNI, AMX) that no trace tells"
        )
    else:
        _for_inference(graph, products, dtype, operands, scaling)


def _fake(graph: Graph, products: Products, operands: str, scaling: str) -> None:
    """Insert fake quantization before each product, and its gradient's mask in the backward pass."""
    sizes = {"weight": products.weights}
    if operands == "both":
        sizes["input"] = products.inputs
    spent = 0.0
    for what, size in sizes.items():
        steps = _steps(scaling, f"range of {what}", f"fake quantization of {what}", size, products.width)
        steps[f"fake quantization of {what}"] = size * (2 * products.width + MASK_BYTES)
        spent += insert_passes(graph, products.first, steps)
    calls = products.work.group_by("call")
    nodes = backward_chains(calls)
    if len(nodes):
        nbytes = sum(sizes.values()) * (2 * products.width + MASK_BYTES)
        place = {key: number for number, key in enumerate(calls.keys)}
        masks = nbytes[[place[key] for key in nodes.keys]]
        spent += insert_passes(graph, nodes.first(), {"mask of gradient": masks})
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
    before = tasks.duration_ns
    spent = 0.0
    if operands == "weights":
        left, right, written, width = _operands(graph, tasks)
        factor = (width * (left + written) + right) / work(graph, tasks).nbytes.clip(1)
        retimed = retime(graph, tasks, bytes_factor=factor.clip(max=1.0))
        if not (retimed.duration_ns < before).any():
            graph.does_not_apply("no product of these layers is bound by reading its weight")
        tasks.set(duration_ns=retimed.duration_ns)
    else:
        retimed = _narrow(graph, tasks, dtype)
        steps = _steps(scaling, "range of input", "quantization of input", products.inputs, products.width)
        spent = insert_passes(graph, products.first, steps)
    graph.note(
        f"Taken as inference: {counted(len(tasks), 'product')} of {before.sum() / 1e6:,.3f} ms become "
        f"{tasks.total('duration_ns') / 1e6:,.3f} ms; quantizing inputs takes {spent / 1e6:,.3f} ms."
    )
    graph.note(retimed.words())


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

    Args:
        scaling: Scale from this step, or from earlier ones.
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
    before = int(linear.duration_ns.sum())
    calls = linear.group_by("call").first()
    say_evidence(graph, linear)
    sizes = dict(zip(("left operand", "right operand"), operand_elements(calls), strict=False))
    if not len(graph.select(kind="kernel", phase="backward")):
        del sizes["right operand"]
    widths = calls.itemsize
    retimed = _narrow(graph, linear, "float8_e4m3fn")
    spent = 0.0
    for what, size in sizes.items():
        steps = _steps(scaling, f"amax of {what}", f"cast to fp8 of {what}", size, widths)
        spent += insert_passes(graph, calls, steps)
    graph.note(
        f"{len(linear):,} products of {before / 1e6:,.2f} ms become "
        f"{retimed.duration_ns.sum() / 1e6:,.2f} ms in fp8; amax and casts before them take "
        f"{spent / 1e6:,.2f} ms."
    )
    graph.note(retimed.words())


def pruning(
    graph: Graph,
    *,
    sparsity: str = TWO_OF_FOUR,
    layer: str | None = None,
    masks: bool = True,
    product_speedup: float = 1.5,
) -> None:
    """Predict linear layers whose weights are pruned: `sparsity` 2:4, or a fraction of zeros such as 0.9.

    Zeros anywhere make no dense kernel faster: libraries multiply by them. What a fraction changes is the
    mask: while training a kernel multiplies each weight by its mask before it is used (reads
    both, writes the masked weight). `masks` false leaves it out, as where zeros are stored once.

    Zeros in two of every four places let sparse tensor cores skip half of a product: NVIDIA GPUs of compute
    capability 8.0 and up, in 16 or 8 bits or TF32. There the forward product gains, and while
    training the one for the input's gradient, as torch prunes in tiles of 4 x 4 that serve both; the
    weight's gradient stays dense. A product becomes at most `product_speedup` times as fast, never
    more than 2, the hardware's limit, and never faster than its memory traffic, of which only the weight
    shrinks (to 9/16 in 16 bits). 1.5 is what torch's own layer leaves: 1.3 over forward and
    backward, a third of which stays dense (ViT-L on an A100, pytorch.org, "Accelerating Neural Network
    Training with Semi-Structured (2:4) Sparsity"). While training each weight is pruned and compressed anew,
    for both directions, one kernel that reads it and writes both. Weights whose sizes are no multiples of 8
    (32 bits), 16 or 32 (8 bits) stay dense. On a CPU and on other GPUs only masks change.

    `layer` takes those layers alone whose path matches, for example `blocks.*`.

    With a table of `daydream calibrate --tool` the masked layers take what was measured in place.

    Not modelled: sparse convolutions and attention, AMD's sparse matrix units, what zeros do to accuracy.

    Args:
        sparsity: 2:4, or the share of weights that are zero.
        layer (GLOB): Modules, by path: blocks.*; by default all.
        masks: Count the time of applying masks.
        product_speedup: Speed-up of a sparse product.
    """
    share = _share(sparsity)
    if not 1 <= product_speedup <= HARDWARE_SPEEDUP:
        raise GraphError(f"product_speedup must be 1 to 2, the hardware's limit, not {product_speedup:g}")
    products = linear_products(graph, layer)
    trains = len(graph.select(phase="backward")) > 0
    if len(take_measured(graph, products.work)):
        return
    reason = f"{share:.0%} zeros anywhere make no dense kernel faster" if share else _why_not(graph, products)
    if reason is None:
        _on_sparse_units(graph, products, layer, product_speedup, trains=trains)
        return
    if not trains or not masks:
        graph.does_not_apply(f"{reason}, and zeros that are stored once need no mask")
    nbytes = 3 * products.weights * products.width  # a kernel reads weight and mask, and writes the product
    spent = insert_passes(graph, products.first, {"mask of weight": nbytes})
    graph.note(f"No product gets faster: {reason}. Masks of weights take {spent / 1e6:,.3f} ms.")


def _share(sparsity: str) -> float | None:
    """Return the fraction of zeros, None for 2:4. Raises `GraphError` for anything else."""
    if sparsity == TWO_OF_FOUR:
        return None
    try:
        share = float(sparsity)
    except ValueError:
        share = float("nan")
    if not 0 < share < 1:
        raise GraphError(f"sparsity must be 2:4 or a fraction between 0 and 1, not {sparsity!r}")
    return share


def _why_not(graph: Graph, products: Products) -> str | None:
    """Return why 2:4 zeros make nothing faster here; None if they do."""
    if not products.on_gpu:
        return "a CPU has no units for 2:4 zeros"
    device = device_of(graph)  # raises where it is not known: so is what 2:4 zeros give there
    if device.name.startswith(("MI", "Radeon")):
        return f"the sparse matrix units of a {device.name} are not modelled"
    if "tf32" not in device.tflops:  # NVIDIA's tensor cores have TF32 and 2:4 zeros since one generation
        return f"a {device.name} has no sparse tensor cores (compute capability 8.0 and up)"
    if not len(_sparse(graph, products.work)):
        return "these products do not run on tensor cores in 16 or 8 bits or TF32, or their sizes do not fit"
    return None


def _sparse(graph: Graph, tasks: Selection) -> Selection:
    """Return those products that sparse tensor cores can take, by element type and sizes of the weight.

    These are multiples of what libraries ask for. Of a product n x k by k x m: 2 n k m FLOP, n k inputs, k m
    weights.
    """
    inputs, weights, _ = operand_elements(tasks)
    columns = inputs, weights, work(graph, tasks).flop, tasks.itemsize
    narrow = runs_in_tf32(graph, tasks) | tasks.is_in(tasks.where(dtype=FITS))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tasks[[few and _has_fitting_weight(*row) for few, row in zip(narrow.tolist(), rows, strict=True)]]


def _has_fitting_weight(inputs: float, weights: float, flop: float, itemsize: int) -> bool:
    rows, columns = MULTIPLES.get(itemsize, MULTIPLES[4])
    outer = flop / 2 / inputs if min(inputs, weights, flop) > 0 else 0
    return outer > 0 and outer % rows == 0 and weights / outer % columns == 0


def _on_sparse_units(
    graph: Graph, products: Products, layer: str | None, product_speedup: float, *, trains: bool
) -> None:
    forward = _sparse(graph, products.work)
    backward = graph.select(kind="kernel", phase="backward", layer=layer, op=linear_operators())
    from daydream.optimizations._layers import gradient_parts

    of_inputs = gradient_parts(graph, backward).inputs
    backward = backward[of_inputs >= 1]
    gaining = forward | _sparse(graph, backward)
    before = gaining.duration_ns
    weights = operand_elements(gaining)[1] * gaining.itemsize
    saved = (weights - _compressed(gaining, weights)) / work(graph, gaining).nbytes.clip(1)
    new = retime(graph, gaining, flop_factor=1 / HARDWARE_SPEEDUP, bytes_factor=(1 - saved).clip(0.5, 1.0))
    gaining.set(duration_ns=new.duration_ns.clip(before / product_speedup))
    graph.note(
        f"{counted(len(gaining), 'product')} on sparse tensor cores: {before.sum() / 1e6:,.3f} ms become "
        f"{gaining.total('duration_ns') / 1e6:,.3f} ms; accuracy with half of the weights is not predicted."
    )
    if not trains:
        return
    mine = products.first.is_in(forward)
    first = products.first[mine]
    weights = (products.weights * products.width)[mine]
    nbytes = weights + 2 * _compressed(first, weights)
    spent = insert_passes(graph, first, {"prune and compress weight": nbytes})
    graph.note(f"Pruning and compressing weights anew takes {spent / 1e6:,.3f} ms.")


def _compressed(tasks: Selection, nbytes: Any) -> Any:
    """Return the bytes of a weight that are left when it is compressed."""
    return nbytes * [COMPRESSED.get(width, 1.0) for width in tasks.itemsize.tolist()]


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
    inputs: Any
    weights: Any
    width: Any
    on_gpu: bool


def linear_operators() -> str:
    """Return a pattern of the operators that multiply by a matrix."""
    return operators_that(lambda op: op.is_linear)


def linear_products(graph: Graph, layer: str | None) -> Products:
    """Return the forward products of linear layers, in layers that match.

    Raises `NotApplicableError` where there are none with recorded shapes.
    """
    on_gpu = len(graph.select(on="gpu")) > 0
    work = graph.select(kind="kernel" if on_gpu else "cpu", phase=("forward", "loss"), layer=layer)
    work = work.where(op=linear_operators())
    inputs, weights, _ = operand_elements(work)
    known = work[(inputs > 0) & (weights > 0)]
    known.need(
        f"forward products of linear layers{f' in {layer!r}' if layer else ''} with recorded shapes "
        "(record with record_shapes=True)"
    )
    first = known.group_by("call").first()
    inputs, weights, _ = operand_elements(first)
    return Products(known, first, inputs, weights, first.itemsize, on_gpu)


def _operands(graph: Graph, tasks: Selection) -> tuple[Any, Any, Any, Any]:
    """Return the elements of a product's operands and result, and the bytes of one."""
    left, right, _ = operand_elements(tasks)
    width = tasks.itemsize
    return left, right, (work(graph, tasks).nbytes / width - left - right).clip(0), width


def _narrow(graph: Graph, tasks: Selection, dtype: str) -> Retimed:
    """Let products read operands of a byte an element; return the times that they have then.

    The result keeps its type: its bytes do not shrink with those of the operands.
    """
    left, right, written, width = _operands(graph, tasks)
    factor = (left + right + width * written) / (left + right + written).clip(1)
    retimed = retime(graph, tasks, dtype=dtype, bytes_factor=factor)
    tasks.set(duration_ns=retimed.duration_ns, dtype=dtype)
    return retimed


def _steps(scaling: str, first: str, then: str, size: Any, width: Any) -> dict[str, Any]:
    """Return the bytes of the passes over a tensor that round it to a byte an element: names, bytes.

    Dynamic scaling reads it for its range first.
    """
    return {**({first: size * width} if scaling == "dynamic" else {}), then: size * (width + 1)}


def insert_passes(graph: Graph, tasks: Selection, passes: Mapping[str, Any]) -> float:
    """Insert element-wise operators that move so many bytes before each task; return the ns of all.

    On a CPU half of the bytes are taken to be a new result.
    """
    spent = 0.0
    for name, nbytes in passes.items():
        on_cpu = (tasks.kind == "cpu").all()
        time = copies_into_new_ns(graph, nbytes / 2, "cpu") if on_cpu else streaming_ns(graph, nbytes)
        if time is None:
            raise NotApplicableError(
                f"what a {name} takes is not known: this trace has no element-wise work to go by"
            )
        insert_elementwise(graph, tasks, name, time)
        spent += float(time.sum())
    return spent


def _hold_rounded(held: Allocations, *, operands: str, layer: str | None, **options: Any) -> None:
    """Keep rounded operands and their masks for the backward pass, or hold weights in 8 bits."""
    from daydream.memory import in_phase, kept_calls

    products = kept_calls(held, linear_operators(), layer)
    if not len(products):
        raise NotApplicableError("no memory of this trace is due to linear layers")
    rows = products.calls.keys[:, -1]
    if not in_phase(held, "backward").any():
        layers = set(held.trace.values("layer", rows.tolist())) - {None}
        narrower = held.where(kind="parameter")
        sizes = []
        for number in narrower.nonzero()[0].tolist():
            known: Any = held.parameter(number) if held["parameter"][number] >= 0 else {"layer": None}
            narrower[number] = known["layer"] in layers and len(known["shape"]) > 1
            if narrower[number]:
                sizes.append(int(held["bytes"][number]) // (itemsize(known["dtype"]) or 4))
        held.resize(narrower, sizes)
        return
    width = [itemsize(dtype) or 4 for dtype in held.trace.values("dtype", rows.tolist())]
    shapes = [_two_operands(text) for text in held.trace.values("shapes", rows.tolist())]
    if operands == "both":
        products.drop_inputs(held, [left > 0 for left, _ in shapes])
    for kept in (0, 1) if operands == "both" else (1,):
        products.add(held, [pair[kept] * each for pair, each in zip(shapes, width, strict=True)])
        products.add(held, [pair[kept] * MASK_BYTES for pair in shapes])


def _two_operands(shapes: str | None) -> tuple[int, int]:
    """Return the elements of a call's input and weight, its arguments that are no vectors; 0 if unknown."""
    sizes = [elements(one) for one in parse_shapes(shapes) or [] if len(one) > 1]
    return (sizes[0], sizes[1]) if len(sizes) > 1 else (0, 0)


def _hold_casts(held: Allocations, **options: Any) -> None:
    from daydream.memory import hold_8_bits  # asked only where memory was recorded

    hold_8_bits(held)


def _rounds(
    *, dtype: str = "int8", operands: str = "both", scaling: str = "dynamic", layer: str | None = None
) -> Any:
    """Return what rounds the operands of a running model's linear layers."""
    from daydream.instrument.tools import FakeQuantization, chosen

    return FakeQuantization(
        BITS[dtype],
        training=scaling == "dynamic",
        activations=operands == "both",
        where=chosen("^aten::linear$", layer),
    )


def _masks(*, sparsity: str = TWO_OF_FOUR, layer: str | None = None) -> Any:
    """Return what masks the weights of a running model; its kernels stay dense."""
    from daydream.instrument.tools import Pruning, chosen

    share = _share(sparsity)
    return Pruning(TWO_OF_FOUR if share is None else share, where=chosen("^aten::linear$", layer))


COMMANDS = {
    "quantize": {
        "EXCLUDES": {"fp8"},
        "CODE": "torchao.quantization.quantize_(model, Int8DynamicActivationInt8WeightConfig())",
        "memory": _hold_rounded,
        "tool": _rounds,
    },
    "fp8": {
        "EXCLUDES": {"amp"},
        "CODE": "torchao.float8.convert_to_float8_training(model)",
        "memory": _hold_casts,
    },
    "pruning": {
        "CODE": "torch.sparse.to_sparse_semi_structured(weight)",
        "memory": unchanged,
        "tool": _masks,
    },
}
