"""Tensor parallelism: several GPUs share the matrix products of every transformer block."""

from __future__ import annotations

from typing import Any

import numpy as np
from daydream.optimizations._tensor_parallel_blocks import COLUMN, ROW, Divided, divided_work

from daydream import Graph, GraphError
from daydream.costs import network_of, retime, scaled_time
from daydream.memory import Allocations, divide, nearest
from daydream.model import call_rows, joint_update, trained_parameters
from daydream.transforms import counted, listed, stages

STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp", "fsdp", "p3", "pipeline", "tictac"})
CODE = "torch.distributed.tensor.parallel.parallelize_module(model, mesh, plan)"

LANE = "all-reduce"


def tensor_parallel(
    graph: Graph, *, degree: int = 2, cluster: str | None = None, bandwidth: float | None = None,
    latency_us: float = 0.0,
) -> None:  # fmt: skip
    """Predict one of `degree` GPUs that share each transformer block, on the batch of the trace.

    As Megatron-LM does it: the linear layers that open attention and the feed-forward part keep
    1/degree of their outputs on each GPU, those that close them 1/degree of their inputs; heads and
    activations between are divided, norms and residuals are not. Each part ends with an all-reduce of its
    output, and in the backward pass with one of its input's gradient: two and two a block. All work
    waits for them. Where the last layer and an embedding are as wide, they and the loss are
    divided, with an all-reduce after the embedding and after the gradient of the last layer's input, and a
    small one for the loss; logits that no loss follows are gathered. The optimizer updates what a GPU has.

    Kernels get a time for their part of FLOP and bytes, and keep their fixed cost, their launches, the
    tiles of products, and what an unfilled GPU leaves idle; without device work operators keep their
    overhead. The network is `cluster` (machines of the trace's GPU if not given), or `bandwidth` in
    GB/s and `latency_us` a step between neighbours of a ring.

    Not modelled: sequence parallelism, an all-reduce hidden behind the weights' gradient, fused
    projections where the trace has three, smaller tiles that libraries pick for narrower
    products (so that those of small models gain less here than they would).

    Memory: a GPU holds its part of the divided layers, with gradients and states, and of what lies
    between them; inputs of a part, its output and all else it holds as a whole.

    Args:
        degree: Number of GPUs that share each layer.
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        bandwidth (GB/s): Link bandwidth per GPU.
        latency_us (us): Latency of a transfer between two neighbors.
    """
    if degree < 1:
        raise GraphError(f"degree must be 1 or more, not {degree}")
    if degree == 1:
        graph.does_not_apply("a degree of 1 leaves every product whole")
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")
    divided = divided_work(graph, degree)
    network = network_of(graph, degree, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    tasks, on_device = divided.tasks, len(graph.select(kind="kernel")) > 0
    if on_device:
        times = retime(graph, tasks, flop_factor=divided.flop, bytes_factor=divided.nbytes)
    else:
        times = scaled_time(graph, tasks, divided.flop)
    updated = _update_of_parts(graph, divided, degree)
    shared = divided.flop < 1
    before, after = (time[shared].sum() for time in (tasks.duration_ns, times.duration_ns))
    whole = tasks.duration_ns[~shared].sum()
    tasks.set(duration_ns=times.duration_ns)

    behind = graph.tasks([one.task for one in divided.sums])
    taken = [network.time_ns(one.collective, one.nbytes) for one in divided.sums]
    sums: dict[str, Any] = {
        "duration_ns": taken,
        "collective": [one.collective for one in divided.sums],
        "bytes": [one.nbytes for one in divided.sums],
    }
    if on_device:  # on the stream of the work, as that waits for it
        inserted = graph.insert_after(behind, LANE, kind="collective", gap_ns=0, **sums)
    else:
        waits = graph.insert_after(behind, "wait for all-reduce", duration_ns=0)
        inserted = graph.insert_after(
            behind, LANE, kind="collective", lane=LANE, launched=False, before=waits, **sums
        )
    inserted.set(name=[one.collective.replace("_", "-") for one in divided.sums])
    _say(graph, divided, degree)
    graph.note(
        f"Of the work of all passes in the trace, {before / 1e6:,.3f} ms are divided and take "
        f"{after / 1e6:,.3f} ms, {whole / 1e6:,.3f} ms stay; sums take {sum(taken) / 1e6:,.3f} ms."
    )
    graph.note(updated)
    graph.note(network.describe())


def _update_of_parts(graph: Graph, divided: Divided, degree: int) -> str:
    """Let the optimizer update a GPU's parts of the divided layers; return what to say of it."""
    optimizer = graph.select(phase="optimizer")
    if not len(optimizer):
        return "The trace has no optimizer step."
    trained = trained_parameters(graph)
    share = trained.part(divided.layers)[1]
    joint, time = joint_update(graph, 1.0, 1 - share * (1 - 1 / degree))
    own = optimizer.where(lambda each: np.isin(each.layer.astype(str), list(divided.layers)))
    own = own.where(kind="kernel" if len(graph.select(kind="kernel")) else "cpu")
    if len(joint):
        joint.set(duration_ns=time)
    if len(own):
        own.set(duration_ns=scaled_time(graph, own, 1 / degree).duration_ns)
    return f"{share:.0%} of the parameters are divided; the optimizer updates the others on every GPU."


def _say(graph: Graph, divided: Divided, degree: int) -> None:
    heads, few = divided.heads, [one for one in divided.key_heads if one % degree]
    graph.note(
        f"{counted(divided.regions, 'part')} of {counted(divided.blocks, 'transformer block')} are divided "
        f"among {degree} GPUs; heads of attention: {listed([str(one) for one in sorted(heads)])}."
    )
    if few:
        graph.note(
            f"Keys and values have {listed([str(one) for one in sorted(few)])} heads; what GPUs would hold "
            "of them more than once is not counted."
        )
    if divided.vocabulary is None:
        graph.note("No last layer as large as an embedding: what lies outside the blocks stays whole.")


def memory(
    held: Allocations, *, degree: int = 2, cluster: str | None = None, bandwidth: float | None = None,
    latency_us: float = 0.0,
) -> None:  # fmt: skip
    """Hold one GPU's part of the divided layers and of what lies between them."""
    found = divided_work(held.graph, degree)
    rows = np.zeros(len(held.trace), bool)
    calls = call_rows(held.graph, found.tasks.ids[found.flop < 1])
    rows[calls[calls >= 0]] = True
    products = np.zeros(len(held.trace), bool)
    products[list(found.kinds)] = True
    product = nearest(held, products)
    kind = np.array([found.kinds.get(row, "") for row in product.tolist()])
    forward = held.where(phase="forward")
    whole = np.where(forward, kind == ROW, kind == COLUMN) & ~held.where(kind="gradient")

    which = held.where(kind=("activation", "temporary")) & (nearest(held, rows) >= 0) & ~whole
    layer = np.array([path in found.layers for path in held.texts("layer")], bool)
    which |= layer & held.where(kind=("parameter", "gradient", "optimizer_state"))
    which |= layer & held.where(phase="optimizer")
    divide(held, which, degree)
