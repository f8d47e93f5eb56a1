"""Another CPU: the CPU's own work takes less or more time, waits come out of the simulation."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.HARDWARE
memory = unchanged


def cpu(graph: Graph, *, speedup: float) -> None:
    """Predict the step with a CPU that is `speedup` times as fast.

    Operators, Python, calls into the driver and the untraced time between them take 1/speedup
    of their time, on every thread. Waits, for the device or for another thread, are not scaled: they
    come out of the simulation. Device work, launch latencies and collectives stay.

    Assumes that all CPU work gains alike: give the ratio of single-thread rates for a trace with
    device work; without, memory bandwidth and number of cores count too. Untraced time that is
    a wait for a disk, a network or another process is scaled with the rest.

    Args:
        speedup: How many times as fast the CPU is.
    """
    if not speedup > 0:
        raise GraphError(f"speedup must be more than 0, not {speedup:g}")
    if speedup == 1:
        graph.does_not_apply("a speedup of 1 leaves the CPU as it is")
    tasks = graph.select(kind="cpu").need("work on the CPU")
    # Rounded up: a task is never more than `speedup` times as short, however many are under a nanosecond.
    time, gaps = (np.ceil(ns / speedup * (1 - 1e-12)) for ns in (tasks.duration_ns, tasks.gap_ns))
    tasks.set(duration_ns=time, gap_ns=gaps)
