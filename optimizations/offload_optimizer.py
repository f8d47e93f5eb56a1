"""Optimizer offload: the CPU keeps the optimizer's state and updates the parameters."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError, NotApplicableError
from daydream.costs import link_bandwidth
from daydream.memory import Allocations, let_go_behind, let_states_shrink
from daydream.model import UPDATE_RULES, update_of
from daydream.transforms import stages

STAGE = stages.MEMORY
EXCLUDES = frozenset({"fused-adam", "fused-optimizer", "foreach-optimizer"})
CODE = '{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}  # of DeepSpeed'

MIB = 2**20
SEGMENT = 2 * MIB  # what torch's allocator takes from the driver at least: less than that frees nothing
STREAM = "offload stream"
STATE_BYTES = 4  # a value of the update on the CPU: float32, whatever the device trains in


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

    100 GB/s are an assumption, 80 % of the 128 GB/s of a socket with six channels of
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
    rates = {way: link_bandwidth(graph, way) if bandwidth is None else bandwidth for way in ("DtoH", "HtoD")}
    if None in rates.values():
        graph.does_not_apply("the link to the CPU is unknown; give --bandwidth in GB/s")
    to_cpu, to_device = (rate for rate in rates.values() if rate)
    lane = str(updates.lane[0]).removeprefix(f"rank {updates.rank[0]} ")
    cpu = graph.select(kind="cpu", phase="optimizer")
    cpu.need("optimizer calls on the CPU")

    backward = graph.select(on="gpu", phase="backward")
    try:
        done = backward.where(lambda tasks: tasks.grad_bytes > 0).need("gradients")
        buckets = done.runs(bucket_mb * MIB, of="grad_bytes")
        last, sizes = buckets.last(), buckets.total("grad_bytes")
    except NotApplicableError:
        last = backward.group_by("step").last()
        sizes = np.full(len(last), update.elements * update.width)
    gradients = graph.insert_after(
        last, "gradients to the CPU", kind="memcpy", lane=STREAM, duration_ns=sizes / to_cpu, bytes=sizes
    )
    values = UPDATE_RULES[update.kind].values * STATE_BYTES
    time = update.elements * values / cpu_bandwidth + update.python_ns()
    on_cpu = cpu.group_by("step").fuse("update on the CPU", duration_ns=time, gap_ns=0)
    updates.where(lambda tasks: graph.alive[tasks.ids]).remove()
    by_step = gradients.group_by("step").last()
    both = np.isin(on_cpu.step, by_step.step)
    graph.link(graph.tasks(by_step.ids[np.isin(by_step.step, on_cpu.step)]), graph.tasks(on_cpu.ids[both]))
    nbytes = update.elements * update.width
    graph.insert_after(
        on_cpu, "parameters back", kind="memcpy", lane=lane, duration_ns=nbytes / to_device, bytes=nbytes
    )
    graph.note(f"The device's memory keeps {state / MIB:,.0f} MiB less of optimizer state.")


def memory(
    held: Allocations,
    *,
    cpu_bandwidth: float = 100.0,
    bandwidth: float | None = None,
    bucket_mb: float = 25.0,
) -> None:
    """Hold no optimizer states on the GPU, and gradients until they are copied."""
    let_states_shrink(held, on="gpu")
    held.remove(held.where(kind="temporary", phase="optimizer", on="gpu"))
    let_go_behind(held, held.where(kind="gradient", phase="backward", on="gpu"), round(bucket_mb * MIB))
