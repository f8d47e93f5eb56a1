"""Bandwidth that a trace's own work reaches: what new streaming work of the same machine will reach."""

from __future__ import annotations

import numpy as np

from daydream.costs.devices import device_of
from daydream.costs.kernels import floor_ns, work
from daydream.costs.scaling import tiny_call_ns
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection

STREAMING = ("element-wise", "optimizer", "copy")
# Bytes, the first size that the trace has; smaller work is fixed cost more than bandwidth.
LARGE_ENOUGH = (4 * 2**20, 2**20, 64 * 2**10, 16 * 2**10)
GOOD = 0.75  # quantile by bytes on a GPU: most of the traffic is no better than this
COLD = 0.25  # on a CPU, where most operators find in a cache what the one before them left there
# Pinned copies reach about 3/4 of PCIe's nominal rate: 6 of 8 GB/s on PCIe 2 ("How to Optimize Data
# Transfers in CUDA C/C++", NVIDIA, 2012), 12 of 16 on PCIe 3 (`bandwidthTest` on V100, widely reported).
OF_PCIE = 0.75


def memory_bandwidth(graph: Graph, on: str = "gpu") -> float | None:
    """Return GB/s that large element-wise work of this trace reaches on the GPU or CPU, None if unknown.

    Reads and writes both count. From recorded shapes; on a GPU without them from copies
    within its memory, else nine tenths of the table's bandwidth for the device. On a CPU
    from operators that work in place: new memory costs page faults.
    """
    tasks = graph.select(on=on) if on == "gpu" else graph.select(on=on, op=r"_$")
    amounts = work(graph, tasks)
    streaming = np.isin(amounts.family.astype(str), STREAMING)
    nbytes, duration_ns = amounts.nbytes[streaming], tasks.duration_ns[streaming]
    if on == "cpu":
        return _rate(nbytes, duration_ns, 0.0, COLD)
    rate = _rate(nbytes, duration_ns, floor_ns(graph))
    if rate is None:
        inside = tasks.where(kind="memcpy", name=r"DtoD|DeviceToDevice")
        rate = _rate(2 * inside.bytes, inside.duration_ns, floor_ns(graph))
    try:
        limit = device_of(graph).bandwidth
    except NotApplicableError:
        return rate
    return 0.9 * limit if rate is None else min(rate, limit)  # above it a cache served the data


def copies_ns(graph: Graph, nbytes: np.ndarray, on: str = "gpu") -> np.ndarray | None:
    """Return how long copies into other memory take, one by one, ns; None if the bandwidth is unknown.

    A GPU reads and writes the bytes. A CPU reads what it overwrites as well: lines of memory come
    into the cache before they are written to ("Counting Bytes and FLOPS", McCalpin, FAQ of STREAM),
    which work in place has done anyway. There each copy is an operator call, too.
    """
    rate = memory_bandwidth(graph, on)
    if rate is None:
        return None
    if on == "gpu":
        return floor_ns(graph) + 2 * nbytes / rate
    return tiny_call_ns(graph) + 3 * nbytes / rate


def link_bandwidth(graph: Graph, direction: str = "HtoD") -> float | None:
    """Return GB/s of pinned copies to (or from) the device: the trace's own, else by the device's PCIe."""
    copies = pinned(graph.select(kind="memcpy", name=_names(direction)))
    rate = _rate(copies.bytes, copies.duration_ns, 0.0, sizes=LARGE_ENOUGH[:2])
    if rate is not None:
        return rate
    try:
        return OF_PCIE * device_of(graph).pcie
    except NotApplicableError:
        return None


def pinned(copies: Selection) -> Selection:
    """Return the copies between the device and page-locked memory."""
    return copies.where(name=r"(?i)pinned")


def _names(direction: str) -> str:
    return r"HtoD|HostToDevice" if direction == "HtoD" else r"DtoH|DeviceToHost"


def _rate(
    nbytes: np.ndarray,
    duration_ns: np.ndarray,
    floor: float,
    quantile: float = GOOD,
    sizes: tuple[int, ...] = LARGE_ENOUGH,
) -> float | None:
    """Return bytes/ns of the large tasks at a quantile by bytes, their fixed cost taken off."""
    body = duration_ns - np.minimum(floor, duration_ns / 2)
    for least in sizes:
        large = (nbytes >= least) & (body > 0)
        if large.any():
            rates, size = nbytes[large] / body[large], nbytes[large].astype(np.float64)
            order = np.argsort(rates)
            reached = np.cumsum(size[order])
            return float(rates[order][np.searchsorted(reached, quantile * reached[-1])])
    return None
