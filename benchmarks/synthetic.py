"""A synthetic training run as a plan: two CPU threads that launch onto two streams, of any length."""

from __future__ import annotations

import numpy as np

from daydream.graph.plan import Cause, Plan

MAIN, AUTOGRAD, COMPUTE, LINK = 0, 1, 2, 3
QUEUE_DEPTH = 1022  # launches in flight that a CUDA stream holds
PLAIN_CPU = 0.3  # share of CPU tasks that launch nothing
COLLECTIVE_EVERY = 400


def synthetic(tasks: int, sync_every: int = 2000, seed: int = 0) -> Plan:
    """Return a plan of about so many tasks with a synchronization and a thread change after so many kernels.

    Launches bind their kernels, a full queue binds the launch, a collective follows its kernel
    on a link of its own. Durations are log-normal. Program order is a topological order.
    """
    random = np.random.default_rng(seed)
    lane: list[int] = []
    duration: list[int] = []
    edges: list[tuple[int, int, int, bool, Cause]] = []
    kernels: list[int] = []
    thread = MAIN
    plain, launches, work = (
        random.lognormal(np.log(ns), 0.7, tasks).astype(int).tolist() for ns in (3_000, 5_000, 6_000)
    )
    chance = random.random(tasks)

    def add(where: int, ns: int) -> int:
        lane.append(where)
        duration.append(ns)
        return len(lane) - 1

    while (n := len(lane)) < tasks:
        if chance[n] < PLAIN_CPU:
            add(thread, plain[n])
            continue
        call = add(thread, launches[n])
        if len(kernels) >= QUEUE_DEPTH:
            edges.append((kernels[-QUEUE_DEPTH], call, 0, False, Cause.QUEUE))
        collective = len(kernels) % COLLECTIVE_EVERY == COLLECTIVE_EVERY - 1
        kernel = add(LINK if collective else COMPUTE, work[n])
        edges.append((call, kernel, 4_000, True, Cause.LAUNCH))
        if collective:
            edges.append((kernels[-1], kernel, 1_000, False, Cause.COMMUNICATION))
        kernels.append(kernel)
        if len(kernels) % sync_every == 0:
            synchronize = add(thread, 2_000)
            edges.append((kernel, synchronize, 500, False, Cause.SYNC))
            thread = AUTOGRAD if thread == MAIN else MAIN
            edges.append((synchronize, add(thread, 2_000), 500, False, Cause.HANDOFF))
    lanes = np.array(lane)
    gap = np.where((random.random(len(lane)) < 0.3) & (lanes <= AUTOGRAD), 1_000, 0)
    src, dst, latency, from_start, cause = (np.array(column) for column in zip(*edges, strict=True))
    return Plan.from_edges(
        lanes, duration, gap, np.zeros(len(lane), int), src, dst, latency, from_start, cause
    )
