"""Pinned memory: copies to the device run at full rate and no longer block the CPU."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import PAGEABLE, TO_DEVICE, link_bandwidth
from daydream.memory import unchanged
from daydream.transforms import counted, stages

STAGE = stages.INPUT
CODE = 'DataLoader(dataset, pin_memory=True); batch.to("cuda", non_blocking=True)'
memory = unchanged


def pinned_memory(graph: Graph, *, bandwidth: float | None = None) -> None:
    """Predict `pin_memory=True` with `non_blocking=True` for the copies to the device.

    A copy from pageable memory is staged by the driver, so the CPU waits in the call until
    the stream is done, and again in the synchronization after it. From pinned memory it is
    an asynchronous launch of the trace's usual cost, at `bandwidth` GB/s: by default that of
    the trace's own pinned copies, else 3/4 of the device's PCIe rate. No copy gets slower.

    Not modelled: the copy into pinned memory, which the loader's pin thread does during the
    step, and the memory it takes. Copies back to the CPU still wait: their values are read.
    """
    copies = graph.select(kind="memcpy", name=TO_DEVICE)
    copies.need("copies to the device", lacks="device")
    copies = copies.where(name=PAGEABLE)
    if not len(copies):
        graph.does_not_apply("every copy to the device comes from pinned memory already")
    if bandwidth is not None and bandwidth <= 0:
        raise GraphError(f"bandwidth must be above 0 GB/s, not {bandwidth:g}")
    rate = link_bandwidth(graph, "HtoD") if bandwidth is None else bandwidth
    if rate is None:
        graph.does_not_apply("the trace has no pinned copies and an unknown device; give --bandwidth in GB/s")

    known = copies.bytes >= 0
    time = np.where(known, copies.bytes / rate, copies.duration_ns)
    copies.set(duration_ns=np.minimum(time, copies.duration_ns), name="Memcpy HtoD (Pinned -> Device)")
    calls = copies.launches()
    inside = graph.select(kind="cpu").where(lambda tasks: np.isin(tasks.call, calls.call[calls.call >= 0]))
    waits = (inside | calls).waiting()
    if len(waits):
        waits.stop_waiting()
    # A blocking call has its return as a second task, and the operator's own synchronization comes behind it.
    if len(waits - calls):
        (waits - calls).remove()
    if len(calls):
        calls.set(duration_ns=np.minimum(calls.duration_ns, graph.facts.launch_cost_ns))
    source = "as asked" if bandwidth else "as pinned copies of this trace or its device do"
    graph.note(f"{counted(len(copies), 'copy', 'copies')} to the device at {rate:,.4g} GB/s, {source}.")
