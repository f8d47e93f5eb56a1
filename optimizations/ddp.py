"""Data-parallel training: gradients are all-reduced in buckets while the backward pass runs."""

from __future__ import annotations

from typing import Any

from daydream.optimizations._gradient_collectives import refuse_ranks

from daydream import Graph, GraphError
from daydream.costs import copies_ns, network_of
from daydream.memory import Allocations, add_buckets
from daydream.model import MIB, compute_lane, gradients_of
from daydream.transforms import counted, stages

STAGE = stages.PARALLEL
EXCLUDES = {"p3"}
CODE = "model = DistributedDataParallel(model)"

LANE = "all-reduce"


def ddp(
    graph: Graph,
    *,
    workers: int = 8,
    cluster: str | None = None,
    bandwidth: float | None = None,
    latency_us: float = 0.0,
    bucket_mb: float | None = None,
    gradient_as_bucket_view: bool = False,
    gradient_mb: float | None = None,
) -> None:
    """Predict one of `workers` data-parallel workers from the trace of a single one.

    As DistributedDataParallel does it: each gradient is copied into its bucket; a bucket is full at
    `bucket_mb` MiB, by default at 1 MiB the first and 25 the others, and is then all-reduced on a
    stream of its own while the backward pass goes on. Behind the backward pass buckets are waited
    for one by one, and each one's gradients copied back (not with `gradient_as_bucket_view`). Copies
    and collectives bring their launches; a copy goes at the trace's own memory bandwidth.

    The network is `cluster` (machines of the trace's GPU if not given, more nodes as needed), or
    `bandwidth` in GB/s and `latency_us` a step between neighbours of a ring. `gradient_mb` is the
    size of all gradients in MiB, for a trace without them.

    Memory: buckets as large as all gradients are held all the time; with `gradient_as_bucket_view` they
    are what holds the gradients.

    Assumes workers that are equally fast, each with the batch of this trace. Not modelled: what
    else DDP does on the CPU, broadcasts of buffers, kernels that a concurrent transfer slows.

    Args:
        workers: Number of GPUs that train together.
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        bandwidth (GB/s): Link bandwidth per GPU.
        latency_us (us): Latency of a transfer between two neighbors.
        bucket_mb (MiB): Size of a bucket [default: 1, then 25].
        gradient_as_bucket_view: Do not copy gradients back from buckets.
        gradient_mb (MiB): Size of all gradients, if the trace lacks it.
    """
    if workers < 1:
        raise GraphError(f"workers must be 1 or more, not {workers}")
    if workers == 1:
        graph.does_not_apply("one worker has no gradients to exchange")
    refuse_ranks(graph)
    gradients = gradients_of(graph, gradient_mb)
    network = network_of(graph, workers, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    buckets = gradients.buckets(bucket_mb)
    lane = compute_lane(graph)
    how = {"kind": "cpu"} if lane is None else {"kind": "kernel", "lane": lane}
    copies = copies_ns(graph, gradients.nbytes, "gpu" if lane else "cpu")

    ends = gradients.ends().ids[buckets.last]
    waits = graph.insert_after(graph.tasks(ends), "wait for all-reduce", kind="cpu", duration_ns=0)
    ready = buckets.nodes
    makers = buckets.makers
    if copies is not None:
        into = graph.insert_after(gradients.nodes, "copy into bucket", duration_ns=copies, **how)
        ready = makers = into[buckets.last]
    times = [network.time_ns("all_reduce", nbytes) for nbytes in buckets.nbytes.tolist()]
    reduced = graph.insert_after(
        ready,
        "all-reduce",
        kind="collective",
        lane=LANE,
        duration_ns=times,
        gap_ns=0,
        after=makers,
        collective="all_reduce",
        bytes=buckets.nbytes,
        launched=lane is not None,
    )
    last = graph.tasks(dict(zip(ends.tolist(), waits.ids.tolist(), strict=True)).values())
    if lane is None:
        graph.link(reduced, waits)
        last.wait_for(LANE)
    else:
        for stream in dict.fromkeys(graph.select(on="gpu", phase=("backward", "optimizer")).lane.tolist()):
            if stream not in set(reduced.lane.tolist()):
                last.wait_for(LANE, on=stream)
    if copies is not None and not gradient_as_bucket_view:
        each = buckets.number.argsort(kind="stable")  # bucket by bucket, as they are waited for
        number = buckets.number[each]
        back = graph.insert_after(waits[number], "copy from bucket", duration_ns=copies[each], **how)
        if lane is not None:
            graph.link(reduced[number], back)
    graph.covers(workers)
    graph.note(network.describe())
    steps = len(gradients.nodes.group_by("step"))
    graph.note(
        f"{gradients.nbytes.sum() / steps / MIB:,.1f} MiB of gradients per step in "
        f"{counted(round(len(buckets) / steps), 'bucket')}."
    )
    if copies is None:
        graph.note("Copies into and out of the buckets are left out: the trace shows no memory bandwidth.")


def memory(held: Allocations, *, gradient_as_bucket_view: bool, **options: Any) -> None:
    """Hold buckets of all gradients beside them, or in their place."""
    add_buckets(held, as_views=gradient_as_bucket_view)
