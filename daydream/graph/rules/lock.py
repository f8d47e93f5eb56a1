"""The driver's lock: a call that has to wait until a call of another thread lets go of the driver.

A copy from or to pageable memory, such as `.item()`, is done by the driver inside the
call: it holds the context until the device has delivered. Calls of other threads
that need the context stand until it returns, whatever they ask for:

    thread A  |cudaMemcpyAsync, 2 bytes to pageable memory: until the device is done ......|
    thread B          |cudaMemcpyAsync of pinned memory, which need not wait for anything ...|
    its copy                                                                                |320 MB

No trace records the lock. But a call that waited for it began while the other stood,
returned just behind it, and its own work reached the device only then. Its time is a
wait until the other call returns, and what it takes itself. Kept as work it would be
a floor under the step that no faster device could lower. Synchronizing calls let go of
the lock while they wait, so they hold up nobody.
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import unique
from daydream.graph.builder import GraphBuilder
from daydream.graph.plan import Cause
from daydream.graph.rules.synchronization import CLOCK_SKEW_NS, blocking_copies, is_sync

LONG_NS = 50_000  # shorter calls are not worth a wait
BEHIND_NS = 100_000  # from the return of the call that held the lock to the other's: 59 us, A100
OFTEN = 0.8  # of the calls of a name on a thread that began meanwhile, that must have stood
LEAST = 2


def wait_for_lock(builder: GraphBuilder) -> None:
    """Let calls that stood until a blocking copy of another thread returned wait for that copy's call."""
    holders = np.array([call for call, *_ in blocking_copies(builder)], np.int64)
    if not len(holders):
        return
    holders = holders[np.argsort(builder.end_ns[holders], kind="stable")]
    calls = builder.calls_named(lambda name: not is_sync(name))
    calls = calls[~builder.waited[calls]]
    lanes = builder.graph.columns["lane"]
    for lane in unique(lanes[holders]).tolist():
        mine = holders[lanes[holders] == lane]
        for other in unique(lanes[calls]).tolist():
            if other != lane and builder.thread_ids[other][:2] == builder.thread_ids[lane][:2]:
                _link(builder, calls[(lanes[calls] == other) & ~builder.waited[calls]], mine)


def _link(builder: GraphBuilder, calls: np.ndarray, holders: np.ndarray) -> None:
    """Link the calls of a thread to the blocking calls of another during which they stood."""
    graph = builder.graph
    columns = graph.columns
    start, end = builder.start_ns[calls], builder.end_ns[calls]
    begun, returned = builder.start_ns[holders], builder.end_ns[holders]
    at = np.minimum(np.searchsorted(returned, start, side="right"), len(holders) - 1)
    met = (begun[at] <= start) & (start < returned[at])
    stood = met & (end - start >= LONG_NS) & (end >= returned[at]) & (end - returned[at] <= BEHIND_NS)
    stood &= (2 * (returned[at] - start) >= end - start) & ~_reached_the_device(builder, calls, returned[at])
    for name in unique(columns["name"][calls[stood]]).tolist():
        alike = columns["name"][calls] == name
        chosen = np.flatnonzero(alike & stood)
        if len(chosen) < max(LEAST, OFTEN * int((alike & met).sum())):
            continue
        waiting, holding = calls[chosen], at[chosen]
        columns["duration_ns"][waiting] = end[chosen] - returned[holding]
        columns["measured_start_ns"][waiting] = returned[holding]
        builder.waited[waiting] = True
        graph.link(holders[holding], waiting, cause=Cause.LOCK)


def _reached_the_device(builder: GraphBuilder, calls: np.ndarray, returned: np.ndarray) -> np.ndarray:
    """Tell which calls had work running on the device before the lock was free."""
    columns, work = builder.graph.columns, builder.tasks.launched()
    first = np.full(builder.graph.size, np.iinfo(np.int64).max)
    np.minimum.at(first, columns["launch"][work].astype(np.intp), builder.start_ns[work])
    reached: np.ndarray = first[calls] < returned - CLOCK_SKEW_NS
    return reached
