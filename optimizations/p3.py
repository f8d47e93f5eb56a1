"""P3: gradients travel in slices, and those that the next forward pass needs first go first."""

from __future__ import annotations

from typing import Literal

import numpy as np
from daydream.optimizations._parameter_servers import (
    PULL,
    PULLED,
    PUSH,
    to_exchange,
    update_where,
    wait_for_parameters,
)

from daydream import Graph, GraphError
from daydream.memory import Allocations, let_states_shrink
from daydream.model import MIB
from daydream.transforms import counted, stages

STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp"})
OF_JOBS = True

MOST_SLICES = 200_000  # in all steps: about a minute of simulation on one core


def p3(
    graph: Graph, *, workers: int = 4, servers: int = 0, bandwidth: float = 1.25, latency_us: float = 14.0,
    slice_mb: float = 0.19, update: Literal["worker", "server"] = "worker", gradient_mb: float | None = None,
) -> None:  # fmt: skip
    """Predict priority-based parameter propagation (Daydream, section 5.1).

    One of `workers` data-parallel workers is predicted from the trace of a single one. Each gradient is
    divided into slices of `slice_mb` MiB. A slice is pushed to a parameter server as soon as the
    gradient is there and pulled back `latency_us` later. Among the slices that are ready those whose
    parameters the forward pass reads first go first.

    With `update` by the server, as in the P3 paper and MXNet's key-value store, parameters come back: the
    next step's forward operator waits for its own only, and the worker's optimizer goes. With `update` by
    the worker summed gradients come back, then their parameters are updated, then read. An optimizer that
    loops over parameters updates those of an operator right before it; one that updates all in the same
    calls (foreach, fused) waits for the last gradient, and the forward pass for it.

    Sizes are the recorded ones, or `gradient_mb` MiB in total where the trace has none. Every worker is a
    server too, and its link of `bandwidth` GB/s carries (workers - 1)/workers of all gradients once as
    pushes and once as pulls. With `servers` machines of their own a slice takes workers/servers times as
    long where that is more than one, and pulls do not hold up pushes.

    Defaults: 4 workers and slices of 50,000 float32 values are those of the P3 paper (Jayarajan et al.,
    2019); 1.25 GB/s are 10 Gbit/s; 14 us is what NCCL reckons with for a step over a network. With
    `update` by the server a worker holds no optimizer states. Not modelled: copies to and from the CPU's
    memory, the servers' own time and memory.

    Args:
        workers: Number of workers.
        servers: Number of parameter servers; 0: as many as workers.
        bandwidth (GB/s): Network bandwidth of a machine.
        latency_us (us): Latency of a message.
        slice_mb (MiB): Size of a slice of gradients.
        update: Where parameters are updated.
        gradient_mb (MiB): Size of all gradients, if the trace lacks it.
    """
    if slice_mb <= 0:
        raise GraphError(f"slice_mb must be above 0, not {slice_mb:g}")
    gradients, users, place = to_exchange(
        graph, gradient_mb, workers=workers, servers=servers, bandwidth=bandwidth, latency_us=latency_us
    )
    slices = np.maximum(np.ceil(gradients.nbytes / (slice_mb * MIB)), 1)
    if slices.sum() > MOST_SLICES:
        raise GraphError(
            f"slice_mb {slice_mb:g} makes {slices.sum():,.0f} slices of the gradients of this trace, more "
            f"than {MOST_SLICES:,}: give a larger slice_mb"
        )
    slices = slices.astype(np.int64)
    waiting = update_where(graph, gradients, users, place, update)
    of = np.repeat(np.arange(len(gradients)), slices)
    share = (workers - 1) / workers if not servers else max(1.0, workers / servers)
    time = (gradients.nbytes / slices)[of] * share / bandwidth
    nbytes = np.rint((gradients.nbytes / slices)[of]).astype(np.int64)
    pushed = graph.insert_after(
        graph.tasks(gradients.nodes.ids[of]), "push", kind="collective", lane=PUSH, duration_ns=time,
        gap_ns=0, after=graph.tasks(gradients.makers.ids[of]), bytes=nbytes, launched=False,
    )  # fmt: skip
    pulled = graph.insert_after(
        pushed, "pull", lane=PULL if servers else PUSH, duration_ns=time, gap_ns=0, bytes=nbytes,
        launched=False,
    )  # fmt: skip
    graph.link(pushed, pulled, latency_ns=latency_us * 1e3)
    urgency = np.zeros(graph.size, np.int64)
    urgency[pushed.ids] = urgency[pulled.ids] = place[of]
    for lane in (PUSH, PULL) if servers else (PUSH,):
        graph.schedule(lane, key=lambda tasks: urgency[tasks.ids])

    # What one task waits for has come with the last of its slices.
    keys = np.stack([gradients.nodes.step[of], gradients.nodes.rank[of], waiting.group[of]])
    _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, group.reshape(-1), np.arange(len(of)))
    lanes = [PULLED.format(number) for number in waiting.group[of[first]].tolist()]
    come = graph.insert_after(
        graph.tasks(pulled.ids[last]), "parameters are there", duration_ns=0, gap_ns=0, launched=False,
        lane=lanes,
    )  # fmt: skip
    graph.link(pulled, graph.tasks(come.ids[group.reshape(-1)]))
    wait_for_parameters(graph, waiting.tasks[of[first]], lanes)
    steps = len(set(gradients.nodes.step.tolist()))
    graph.note(
        f"{gradients.nbytes.sum() / steps / MIB:,.1f} MiB of gradients per step in {len(of) / steps:,.0f} "
        f"slices; {counted(workers, 'worker')}, "
        f"{counted(servers, 'server') if servers else 'each of them a server too'}. {waiting.said}"
    )


def memory(
    held: Allocations, *, workers: int = 4, servers: int = 0, bandwidth: float = 1.25,
    latency_us: float = 14.0, slice_mb: float = 0.19, update: Literal["worker", "server"] = "worker",
    gradient_mb: float | None = None,
) -> None:  # fmt: skip
    """Hold no optimizer states where servers update."""
    if update == "server":
        held.remove(held.where(kind="temporary", phase="optimizer"))
        let_states_shrink(held)
