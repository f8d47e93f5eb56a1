"""Another host link: copies between CPU and device at another bandwidth."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import TO_DEVICE, TO_HOST, link_bandwidth
from daydream.memory import unchanged
from daydream.transforms import counted, stages

STAGE = stages.HARDWARE
memory = unchanged

WAYS = {"HtoD": TO_DEVICE, "DtoH": TO_HOST}


def pcie(graph: Graph, *, bandwidth: float, recorded: float | None = None) -> None:
    """Predict copies between CPU and device over a link of `bandwidth` GB/s in each direction.

    A copy's time on the link is its bytes at the `recorded` bandwidth, by default that which the
    trace's pinned copies reach in its direction, else 3/4 of the device's PCIe rate. That part
    of its time changes; the rest, a fixed cost and for pageable memory the staging by
    the CPU, stays. Both are what copies reach, not what the link is sold for: about 12 GB/s on
    PCIe 3, 24 on PCIe 4, 48 on PCIe 5 (3/4 of 16, 32 and 64).

    Not modelled: several devices that share a link, kernels and collectives that cross it.
    """
    for name, value in (("bandwidth", bandwidth), ("recorded", recorded)):
        if value is not None and not value > 0:
            raise GraphError(f"{name} must be more than 0 GB/s, not {value:g}")
    copies = graph.select(kind="memcpy", name=tuple(WAYS.values()))
    copies.need("copies between CPU and device", lacks="device")
    copies.where(lambda tasks: tasks.bytes > 0).need("copies whose bytes are known")
    said = []
    for way, pattern in WAYS.items():
        mine = copies.where(lambda tasks: tasks.bytes > 0, name=pattern)
        if not len(mine):
            continue
        rate = recorded or link_bandwidth(graph, way)
        if rate is None:
            graph.does_not_apply("the bandwidth of the trace's link is not known; give --recorded in GB/s")
        if rate == bandwidth:
            continue
        on_link = np.minimum(mine.bytes / rate, mine.duration_ns)
        mine.set(duration_ns=mine.duration_ns - on_link + on_link * rate / bandwidth)
        said.append(f"{counted(len(mine), 'copy', 'copies')} {way} from {rate:,.1f} to {bandwidth:,.1f} GB/s")
    if not said:
        graph.does_not_apply(f"the trace's link has {bandwidth:g} GB/s already")
    graph.note(f"{'; '.join(said)}.")
