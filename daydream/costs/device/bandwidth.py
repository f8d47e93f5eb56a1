"""Bandwidth that a trace's own work reaches: what new streaming work of the same machine will reach.

Recorded work over recorded time: what edits made of either says nothing of the machine.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.device.call_scaling import tiny_call_ns
from daydream.costs.devices import device_of
from daydream.costs.kernels import floor_ns, recorded_duration_ns, work_of_rows
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.query.numbering import distinct
from daydream.graph.query.readings import reading
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU

STREAMING = ("element-wise", "optimizer", "copy")
# Bytes, the first size that the trace has; smaller work is fixed cost more than bandwidth.
LARGE_ENOUGH = (4 * 2**20, 2**20, 64 * 2**10, 16 * 2**10)
GOOD = 0.75  # quantile by bytes on a GPU: most of the traffic is no better than this
COLD = 0.25  # on a CPU, where most operators find in a cache what the one before them left there
# Pinned copies reach about 3/4 of PCIe's nominal rate: 6 of 8 GB/s on PCIe 2 ("How to Optimize Data
# Transfers in CUDA C/C++", NVIDIA, 2012), 12 of 16 on PCIe 3 (`bandwidthTest` on V100, widely reported).
OF_PCIE = 0.75
# Operators that read tensors once and write a new one, with next to no arithmetic.
INTO_NEW = r"^aten::(add|sub|mul|div|neg|sqrt|clone)$"


@reading
def memory_bandwidth(graph: Graph, on: str = "gpu") -> float | None:
    """Return GB/s that large element-wise work of this trace reaches on the GPU or CPU, None if unknown.

    Reads and writes both count. From recorded shapes; on a GPU without them from copies
    within its memory, else nine tenths of the table's bandwidth for the device. On a CPU
    from operators that work in place: new memory costs page faults.

    Args:
        graph: the graph of the trace.
        on: `gpu` or `cpu`.

    Returns:
        GB/s (1e9 B/s), or None.
    """
    tasks = _recorded(graph, on)
    if on == "cpu":
        tasks = tasks.where(op=r"_$")
    nbytes, duration_ns = _streaming(tasks)
    if on == "cpu":
        return _rate(nbytes, duration_ns, 0.0, COLD)
    floor = floor_ns(graph)
    rate = _rate(nbytes, duration_ns, floor)
    if rate is None:
        inside = tasks.where(kind="memcpy", name=r"DtoD|DeviceToDevice")
        rate = _rate(2 * _recorded_bytes(inside), recorded_duration_ns(inside), floor)
    try:
        limit = device_of(graph).bandwidth
    except NotApplicableError:
        return rate
    return 0.9 * limit if rate is None else min(rate, limit)  # above it a cache served the data


def copies_ns(graph: Graph, nbytes: np.ndarray, on: str = "gpu") -> np.ndarray | None:
    """Return how long copies into other memory take, one by one.

    A GPU reads and writes the bytes. A CPU reads what it overwrites as well: lines of memory come
    into the cache before they are written to ("Counting Bytes and FLOPS", McCalpin, FAQ of STREAM),
    which work in place has done anyway. There each copy is an operator call, too.

    Args:
        graph: the graph of the trace.
        nbytes: bytes of each copy, shape (copies,), int64 or float64.
        on: `gpu` or `cpu`.

    Returns:
        ns of each copy, shape (copies,), float64; None if the bandwidth is unknown.
    """
    rate = memory_bandwidth(graph, on)
    if rate is None:
        return None
    if on == "gpu":
        return floor_ns(graph) + 2 * nbytes / rate
    return tiny_call_ns(graph) + 3 * nbytes / rate


def copies_into_new_ns(graph: Graph, nbytes: np.ndarray, on: str = "gpu") -> np.ndarray | None:
    """Return how long copies into memory that was just allocated take, one by one.

    On a CPU the first touch of a page is a fault, and whether malloc has pages at hand depends on the
    program. So it goes by what the trace's own large operators with new results take on average; where it
    has none, by `copies_ns`, as on a GPU, which keeps the memory that it frees.

    Args:
        graph: the graph of the trace.
        nbytes: bytes of each copy, shape (copies,), int64 or float64.
        on: `gpu` or `cpu`.

    Returns:
        ns of each copy, shape (copies,), float64; None if the bandwidth is unknown.
    """
    if on == "cpu":
        moved, duration_ns = _streaming(_recorded(graph, on).where(op=INTO_NEW))
        for least in LARGE_ENOUGH[1:]:  # the largest alone are few
            large = moved >= least
            if large.any() and duration_ns[large].sum() > 0:
                rate = moved[large].sum() / duration_ns[large].sum()
                found: np.ndarray = tiny_call_ns(graph) + 2 * nbytes / rate
                return found
    return copies_ns(graph, nbytes, on)


def _recorded(graph: Graph, on: str) -> Selection:
    """Return the recorded tasks, removed ones too, and those that somebody put in by hand."""
    columns = graph.columns
    recorded = (columns["row"] >= 0) & (columns["repeat"] == 0)
    if graph.recorded_ns is not None:  # parts that a task was split into are no recorded ones
        recorded[len(graph.recorded_ns) :] = False
    mine = recorded | (columns["row"] < 0) & graph.alive
    return Selection(graph, np.flatnonzero(mine & ((columns["kind"] != CPU) == (on == "gpu"))))


def _streaming(tasks: Selection) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes and ns, both as recorded, of the calls and kernels that do streaming work."""
    graph = tasks.graph
    if graph.trace is None:
        return np.empty(0, np.int64), np.empty(0)
    rows, which = distinct(graph.columns["row"][tasks.ids])
    duration = np.bincount(which, recorded_duration_ns(tasks), len(rows))
    amounts = work_of_rows(graph.trace, rows)
    streaming = amounts.is_of(*STREAMING)
    return amounts.nbytes[streaming], duration[streaming]


def _recorded_bytes(copies: Selection) -> np.ndarray:
    rows = copies.graph.columns["row"][copies.ids]
    if copies.graph.trace is None:
        return copies.bytes
    found: np.ndarray = np.where(rows >= 0, copies.graph.trace["bytes"][np.maximum(rows, 0)], copies.bytes)
    return found


def link_bandwidth(graph: Graph, direction: str = "HtoD") -> float | None:
    """Return GB/s of pinned copies to (or from) the device: the trace's own, else by the device's PCIe.

    Args:
        graph: the graph of the trace.
        direction: `HtoD` (to the device) or `DtoH`.

    Returns:
        GB/s (1e9 B/s) in one direction, or None where neither is known.
    """
    copies = pinned(_recorded(graph, "gpu").where(kind="memcpy", name=_names(direction)))
    rate = _rate(_recorded_bytes(copies), recorded_duration_ns(copies), 0.0, sizes=LARGE_ENOUGH[:2])
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
