"""Offload: what waits for the backward pass or the update is encoded, or in the CPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Literal

from daydream import Graph, GraphError, NotApplicableError
from daydream.costs import Operator, floor_ns, link_bandwidth, nodes_that, operators_that
from daydream.memory import (
    BEFORE,
    Allocations,
    block_of_rows,
    calls_that_made,
    in_phase,
    input_of_parts,
    let_go_behind,
    let_states_shrink,
    parts_of,
    put_away,
    until_next_call,
)
from daydream.model import MIB, UPDATE_RULES, input_bytes, makers_and_users, update_of
from daydream.transforms import stages

STAGE = stages.MEMORY

ENCODED = (
    r"^aten::(relu_?|clamp_min_?|max_pool2d)$",
    r"(Relu|Threshold|ClampMin|MaxPool\w*)Backward\d*$",
    "ReLU or max pooling",
)
OFFLOAD = "vdnn offload"
PREFETCH = "vdnn prefetch"
STREAM = "offload stream"
SEGMENT = 2 * MIB  # what torch's allocator takes from the driver at least: less than that frees nothing
STATE_BYTES = 4  # a value of the update on the CPU: float32, whatever the device trains in


def gist(graph: Graph, *, ratio: float = 2.0) -> None:
    """Predict the encoding of stored activations (Daydream, section 5.2).

    Behind each ReLU and max pooling of the forward pass a kernel encodes its output, `ratio`
    times smaller; before the backward pass of that layer another one decodes it. Both bring
    their launches. The layer's own kernel reads and writes a feature map once, so encoding
    (read it, write 1/ratio) and decoding take (1 + 1/ratio) / 2 of its time above the fixed
    cost of a kernel. A ratio of 2 is the half-width floats of Gist's delayed precision
    reduction, 32 its one bit a value of a ReLU whose sign is all that is needed.

    Memory: from the next call of the forward pass to the layer's backward pass such an output takes
    1/`ratio` of its bytes.

    Not modelled: sparse formats, whose ratio depends on the data; decoding inside the
    consumer's kernel; what lossy encodings do to convergence.

    Args:
        ratio: How many times smaller an encoded activation is.
    """
    if ratio < 1:
        raise GraphError(f"ratio must be 1 or more, not {ratio:g}")
    work = graph.select(kind="kernel", phase=("forward", "backward"))
    work.need("kernels in the forward and backward pass", lacks="device")
    calls, nodes = makers_and_users(work, *ENCODED)
    made = calls.last()
    floor = floor_ns(graph)
    fixed = made.duration_ns.clip(max=floor)
    time = fixed + (made.duration_ns - fixed) * (1 + 1 / ratio) / 2
    nbytes = input_bytes(calls)

    graph.insert_after(made, "encode", duration_ns=time)
    graph.insert_before(nodes.first(), "decode", duration_ns=time)
    if (nbytes > 0).all():
        saved = nbytes.sum() * (1 - 1 / ratio) / len(made.group_by("step"))
        graph.note(f"Feature maps take {saved / MIB:,.0f} MiB less between the passes.")
    else:
        graph.note("How much memory that saves is not known: the trace has no shapes.")


def vdnn(
    graph: Graph,
    *,
    layers: Literal["conv", "all"] = "conv",
    within: str = "*",
    ahead: int = 1,
    bandwidth: float | None = None,
) -> None:
    """Predict the offloading of feature maps to CPU memory (Daydream, section 5.2).

    The input of each convolution (with `layers` all, of linear layers too) is copied to the CPU while
    the layer computes, from the start of its first kernel on; the next such layer starts when that copy is
    done, as the memory is freed then (Rhu et al., 2016). In the backward pass it comes back from when the
    layer `ahead` places before its use begins; the layer that needs it waits, so a late prefetch stalls.
    Copies go at `bandwidth` GB/s on two lanes of their own, prefetches in the order they are needed; by
    default at the rate of the trace's pinned copies, else 3/4 of the device's PCIe. The last layer's
    input stays, as its backward pass comes first.

    Memory: these inputs are gone from where the next such layer starts to where they are copied back.

    Not modelled: kernels that the copies slow, the larger batch that the memory allows.

    Args:
        layers: Offload inputs of convolutions only, or of all.
        within (GLOB): Modules, by path: blocks.*, or several: blocks.0,blocks.2.
        ahead: Layers to prefetch ahead.
        bandwidth (GB/s): Bandwidth between CPU and GPU.
    """
    if ahead < 1:
        raise GraphError(f"ahead must be 1 or more, not {ahead}")
    if bandwidth is not None and bandwidth <= 0:
        raise GraphError(f"bandwidth must be above 0 GB/s, not {bandwidth:g}")
    work = graph.select(on="gpu", phase=("forward", "backward"))
    work.need("device work in the forward and backward pass", lacks="device")
    if within != "*":
        work = work.group_by(block=within.split(",")).tasks
    fits, words = _layers(layers)
    calls, nodes = makers_and_users(work, operators_that(fits), nodes_that(fits), words)
    nbytes = input_bytes(calls)
    if (nbytes < 0).any():
        graph.does_not_apply("the trace does not say how large feature maps are; record it with shapes")
    first = calls.first()
    use = nodes.first()
    steps = first.group_by("step")
    end = {step: place for place, step in enumerate(steps.number.tolist())}  # the last layer of each step
    last = [end[step] for step in steps.number.tolist()]
    offloaded = [place for place, layer in enumerate(last) if place < layer]
    if not offloaded:
        graph.does_not_apply("no step has two such layers, and the input of the last one stays")
    to_cpu, to_device = _rates(graph, bandwidth)
    needed = offloaded[::-1]  # of one start the copy that is needed first goes first
    begins = use[[min(place + ahead, last[place]) for place in needed]]
    computing = first[offloaded]
    offloads = graph.insert_after(
        computing,
        "offload",
        kind="memcpy",
        lane=OFFLOAD,
        duration_ns=nbytes[offloaded] / to_cpu,
        bytes=nbytes[offloaded],
        before=first[[place + 1 for place in offloaded]],
    )
    prefetches = graph.insert_after(
        begins,
        "prefetch",
        kind="memcpy",
        lane=PREFETCH,
        duration_ns=nbytes[needed] / to_device,
        bytes=nbytes[needed],
        before=use[needed],
    )
    for beside, copies in ((computing, offloads), (begins, prefetches)):
        graph.unlink(beside, copies)  # they run beside that work, not behind it
        graph.link(beside, copies, from_start=True)
    graph.schedule(PREFETCH, key="order")
    saved = nbytes[offloaded].sum() / len(steps)
    graph.note(f"Up to {saved / MIB:,.0f} MiB of feature maps per step wait outside of the device's memory.")


def _layers(layers: str) -> tuple[Callable[[Operator], bool], str]:
    """Return which operators are of these layers, and what they are called."""
    if layers == "conv":
        return lambda op: op.formula == "convolution", "convolutions"
    return lambda op: op.formula == "convolution" or op.is_linear, "convolutions or linear layers"


def offload_optimizer(
    graph: Graph, *, cpu_bandwidth: float = 100.0, bandwidth: float | None = None, bucket_mb: float = 25.0
) -> None:
    """Predict ZeRO-Offload-like training: gradients go to the CPU, updated parameters come back.

    Gradients are copied in buckets of `bucket_mb` as the backward pass completes them (all
    after it where the trace does not say which task completes one). The main thread waits
    for the last, updates every parameter by a fused pass over float32 values at
    `cpu_bandwidth` GB/s, and copies the parameters back on the compute stream, so the next
    forward pass waits for them. Copies go at `bandwidth` GB/s, by default that of the trace's
    pinned copies, else 3/4 of the device's PCIe rate. The device's update goes.

    100 GB/s are an assumption, 80% of the 128 GB/s of a socket with six channels of
    DDR4-2666: give what your CPU reaches.

    Memory: optimizer states leave the GPU, and each gradient when a bucket of later ones is complete;
    at most they stay until the update. Of state that is not told from what else was held before the
    recording the range is from none of it to all that there may be.

    Not modelled: an update that overlaps its copies, a
    one-step delay, other ranks that share the CPU.

    Args:
        cpu_bandwidth (GB/s): Memory bandwidth of the CPU.
        bandwidth (GB/s): Bandwidth between CPU and GPU.
        bucket_mb (MiB): Size of a transfer.
    """
    if min(cpu_bandwidth, bucket_mb, 1.0 if bandwidth is None else bandwidth) <= 0:
        raise GraphError("cpu_bandwidth, bandwidth and bucket_mb must be above 0")
    updates = graph.select(on="gpu", phase="optimizer")
    updates.need("optimizer work on the device", lacks="device")
    update = update_of(graph)
    if update.elements < 0 or update.kind is None:
        graph.does_not_apply(
            "the trace does not say which optimizer it has, or of how many parameters; "
            "record it with `daydream collect`"
        )
    state = (UPDATE_RULES[update.kind].reads - 2) * STATE_BYTES * update.elements
    if state < SEGMENT:
        graph.does_not_apply(f"{update.kind} keeps {state / MIB:,.2f} MiB of state: offloading frees nothing")
    to_cpu, to_device = _rates(graph, bandwidth)
    lane = str(updates.lane[0]).removeprefix(f"rank {updates.rank[0]} ")
    cpu = graph.select(kind="cpu", phase="optimizer")
    cpu.need("optimizer calls on the CPU")

    backward = graph.select(on="gpu", phase="backward")
    try:
        done = backward.where(lambda tasks: tasks.grad_bytes > 0).need("gradients")
        buckets = done.runs(bucket_mb * MIB, of="grad_bytes")
        last = buckets.last()
        sizes = buckets.total("grad_bytes").tolist()
    except NotApplicableError:
        last = backward.group_by("step").last()
        sizes = [update.elements * update.width] * len(last)
    gradients = graph.insert_after(
        last,
        "gradients to the CPU",
        kind="memcpy",
        lane=STREAM,
        duration_ns=[nbytes / to_cpu for nbytes in sizes],
        bytes=sizes,
    )
    values = UPDATE_RULES[update.kind].values * STATE_BYTES
    time = update.elements * values / cpu_bandwidth + update.python_ns()
    on_cpu = cpu.group_by("step").fuse("update on the CPU", duration_ns=time, gap_ns=0)
    updates.where(lambda tasks: graph.alive[tasks.ids]).remove()
    by_step = gradients.group_by("step").last()
    copied = {*by_step.step.tolist()}
    updated = {*on_cpu.step.tolist()}
    graph.link(by_step.where(step=updated), on_cpu.where(step=copied))
    nbytes = update.elements * update.width
    graph.insert_after(
        on_cpu, "parameters back", kind="memcpy", lane=lane, duration_ns=nbytes / to_device, bytes=nbytes
    )
    graph.note(f"The device's memory keeps {state / MIB:,.0f} MiB less of optimizer state.")


def _rates(graph: Graph, bandwidth: float | None) -> list[float]:
    """Return the rates of copies to the CPU and back, GB/s."""
    rates = [bandwidth or link_bandwidth(graph, way) for way in ("DtoH", "HtoD")]
    known = [rate for rate in rates if rate]
    if len(known) < len(rates):
        graph.does_not_apply("the link to the CPU is unknown; give --bandwidth in GB/s")
    return known


def _hold_encoded(held: Allocations, *, ratio: float) -> None:
    """Let outputs of ReLU and max pooling be encoded between the two passes."""
    call = calls_that_made(held, ENCODED[0])
    backward = parts_of(held, (call >= 0) & in_phase(held, "backward"), held["step"], call)
    made = (call >= 0) & in_phase(held, "forward") & held.where(kind="activation")
    forward = parts_of(held, made, held["step"], call)
    rows = (forward.of >= 0).nonzero()[0]
    back = backward.begins(forward.keys, BEFORE)[forward.of[rows]]
    put_away(held, rows, until_next_call(held, rows), back, left=1 / ratio)


def _hold_no_inputs(held: Allocations, *, layers: str, within: str, ahead: int, **options: Any) -> None:
    """Let the inputs of layers be gone between the two passes."""
    call = calls_that_made(held, operators_that(_layers(layers)[0]))
    if within != "*":
        call[block_of_rows(held, within.split(","))[0] < 0] = -1
    forward, backward = (
        parts_of(held, (call >= 0) & in_phase(held, phase), held["step"], call)
        for phase in ("forward", "backward")
    )
    mate = backward.find(forward.keys)
    inputs = input_of_parts(held, forward)
    layer = sorted(
        (*key[:3], first, place)
        for place, (key, first) in enumerate(zip(forward.keys.tolist(), forward.first.tolist(), strict=True))
        if mate[place] >= 0
    )
    away = []
    for _, of_step in groupby(layer, lambda each: each[:3]):
        places = [place for *_, place in of_step]
        for at, place in enumerate(places[:-1]):
            use = mate[places[min(at + ahead, len(places) - 1)]]
            if inputs[place] >= 0:
                away.append((inputs[place], forward.first[places[at + 1]], backward.first[use]))
    if away:
        rows, gone, back = zip(*away, strict=True)
        put_away(held, rows, gone, back)


def _hold_no_states(held: Allocations, *, bucket_mb: float, **options: Any) -> None:
    """Hold no optimizer states on the GPU, and gradients until they are copied."""
    let_states_shrink(held, on="gpu")
    held.remove(held.where(kind="temporary", phase="optimizer", on="gpu"))
    let_go_behind(held, held.where(kind="gradient", phase="backward", on="gpu"), round(bucket_mb * MIB))


COMMANDS = {
    "gist": {"CODE": "torch.autograd.graph.saved_tensors_hooks(encode, decode)", "memory": _hold_encoded},
    "vdnn": {"CODE": "torch.autograd.graph.save_on_cpu(pin_memory=True)", "memory": _hold_no_inputs},
    "offload-optimizer": {
        "CODE": '{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}  # of DeepSpeed',
        "memory": _hold_no_states,
    },
}
