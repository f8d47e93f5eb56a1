"""TicTac: parameters come from the servers in the order in which the forward pass needs them."""

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

from daydream import Graph
from daydream.memory import Allocations, let_states_shrink
from daydream.model import MIB
from daydream.transforms import counted, stages

STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp", "fsdp", "p3"})
OF_JOBS = True


def tictac(
    graph: Graph, *, workers: int = 4, servers: int = 0, bandwidth: float = 1.25, latency_us: float = 14.0,
    order: Literal["first-use", "ready"] = "first-use", update: Literal["worker", "server"] = "worker",
    gradient_mb: float | None = None,
) -> None:  # fmt: skip
    """Predict parameter servers whose transfers are ordered by first use (Hashemi et al., 2019).

    One of `workers` synchronous workers is predicted from the trace of a single one. Each gradient is
    pushed whole, as soon as it and the link are there. When all have come, and `latency_us` later, the
    parameters are pulled in the order in which the forward pass reads them, and each forward operator
    of the next step (with `update` by the worker: the update of its parameters) waits for its own.
    What the order gains is the difference to `order` ready: pulls as gradients were,
    the last layer first, about the worst of the orders that come without one.

    `servers`, `bandwidth` and `update`, `gradient_mb` and all defaults are those of `p3`, which goes
    further: it divides gradients into slices, orders pushes too and waits for no other parameter. Order
    by first use is the paper's TIC; its TAC, which weighs times as well, is the same for a forward pass
    that is a chain. Memory: with `update` by the server a worker holds no optimizer states. Not modelled:
    copies to and from the CPU's memory, the servers' own time and memory.

    Args:
        workers: Number of workers.
        servers: Number of parameter servers; 0: as many as workers.
        bandwidth (GB/s): Network bandwidth of a machine.
        latency_us (us): Latency of a message.
        order: Order of the transfers.
        update: Where parameters are updated.
        gradient_mb (MiB): Size of all gradients, if the trace lacks it.
    """
    gradients, users, place = to_exchange(
        graph, gradient_mb, workers=workers, servers=servers, bandwidth=bandwidth, latency_us=latency_us
    )
    waiting = update_where(graph, gradients, users, place, update)

    share = (workers - 1) / workers if not servers else max(1.0, workers / servers)
    time = gradients.nbytes * share / bandwidth
    pushed = graph.insert_after(
        gradients.nodes, "push", kind="collective", lane=PUSH, duration_ns=time, gap_ns=0,
        after=gradients.makers, bytes=gradients.nbytes, launched=False,
    )  # fmt: skip
    keys = np.stack([gradients.nodes.step, gradients.nodes.rank])
    step = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    last = np.zeros(step.max() + 1, np.int64)
    last[step] = np.arange(len(step))  # of what goes to one place, the last stays
    turn = np.lexsort((place, step)) if order == "first-use" else np.arange(len(step))
    all_there = graph.tasks(pushed.ids[last[step[turn]]])
    pulled = graph.insert_after(
        all_there, "pull", lane=PULL if servers else PUSH, duration_ns=time[turn], gap_ns=0,
        bytes=gradients.nbytes[turn], launched=False,
    )  # fmt: skip
    graph.link(all_there, pulled, latency_ns=latency_us * 1e3)

    # What one task waits for has come with the last of it.
    _, first, number = np.unique(
        np.stack([step, waiting.group])[:, turn], axis=1, return_index=True, return_inverse=True
    )
    end = np.zeros(len(first), np.int64)
    end[number.reshape(-1)] = np.arange(len(turn))
    lanes = [PULLED.format(one) for one in waiting.group[turn[first]].tolist()]
    graph.insert_after(
        graph.tasks(pulled.ids[end]), "parameters are there", lane=lanes, duration_ns=0, gap_ns=0,
        launched=False,
    )  # fmt: skip
    wait_for_parameters(graph, waiting.tasks[turn[first]], lanes)
    steps = len(last)
    graph.note(
        f"{gradients.nbytes.sum() / steps / MIB:,.1f} MiB of gradients per step in "
        f"{counted(round(len(pushed) / steps), 'transfer')} each way; {counted(workers, 'worker')}, "
        f"{counted(servers, 'server') if servers else 'each of them a server too'}. {waiting.said}"
    )


def memory(
    held: Allocations, *, workers: int = 4, servers: int = 0, bandwidth: float = 1.25,
    latency_us: float = 14.0, order: Literal["first-use", "ready"] = "first-use",
    update: Literal["worker", "server"] = "worker", gradient_mb: float | None = None,
) -> None:  # fmt: skip
    """Hold no optimizer states where servers update."""
    if update == "server":
        held.remove(held.where(kind="temporary", phase="optimizer"))
        let_states_shrink(held)
