"""Durations when every task's work is multiplied: another batch size or sequence length.

On a GPU, work below one wave of blocks grows into the idle units first, and the fixed
cost of a kernel stays. On a CPU, a call's time is `overhead + work / rate`: the
overhead stays. It is the line through the smallest and the largest calls of the same
operator in the trace, where those differ enough. Else it is what the call takes longer
than its work would at the best rate of the trace, at least what the trace's tiny calls
take and at most what its dearest tiny calls take; a recurrent layer has an overhead for each
of its time steps, so no such limit. What an element-wise operator takes longer than it would at
the rate of the slowest functions is overhead in any case, unless it is large: libraries that
generate code look it up with each call.

Bandwidth that a trace's own work reaches: what new streaming work of the same machine will reach.

Recorded work over recorded time: what edits made of either says nothing of the machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from daydream.arrays import distinct, distinct_rows, first_of, lookup, places, run_starts, unique
from daydream.costs.device.retime import Retimed, retime
from daydream.costs.devices import device_of
from daydream.costs.kernels import floor_ns, recorded_duration_ns, work, work_of_rows
from daydream.costs.operators import MATRIX_FAMILIES, TO_DEVICE, TO_HOST, operator
from daydream.costs.workload.calls import calls_of
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU
from daydream.lazy import regex

TINY_BYTES = 16 * 1024  # moved in well under a microsecond
TINY_FLOP = 32 * 1024
WIDE_ENOUGH = 4.0  # largest over smallest work of an operator, for a line through them
DEAREST = 0.9  # quantile of tiny calls' times that an overhead may reach
BEST = 0.95  # quantile of rates, of the usual times of calls
# Of element-wise operators, GB/s: exp and the derivative of gelu, the slowest that are vectorized, reach 9.7
# and 14 on one thread of an x86 server (torch 2.13.0, float32, 1 MB each way); random numbers are slower.
# Results larger than malloc's usual threshold come on fresh pages: their time is one of size.
LEAST_RATE = 8.0
SMALL_BYTES = 256 * 1024
PACKED = 3.0  # times that an operand is moved which is packed first: read, written, read
USUAL_OVERHEAD_NS = 5_000.0  # of an operator call, where the trace holds no tiny one
SHORT_NS = 20_000  # calls of unknown work below this are taken for overhead
BOOKKEEPING = regex(  # of autograd, modules and optimizers around the operators that work
    r"^autograd::engine::|^torch::autograd::AccumulateGrad$|Backward\d*$|^(Optimizer|nn\.Module|ProfilerStep|enumerate)"
)


def works(name: str) -> bool:
    """Return whether a call does work of its own: it is no view, and nothing that only allocates or asks."""
    return operator(name).traits.isdisjoint(("view", "no-work")) and not BOOKKEEPING.search(name)


def scaled_time(
    graph: Graph,
    selection: Selection,
    work_factor: float | np.ndarray,
    *,
    weights: np.ndarray | None = None,
) -> Retimed:
    """Return durations when the work of each task is multiplied by a factor.

    Device tasks go by `retime`. CPU tasks keep their overhead; those that only call
    others, make views or allocate keep their time. The coverage names `cpu line` (overhead
    from the operator's own calls of several sizes), `cpu overhead` (from the trace's tiny
    calls) and `unchanged`.

    Args:
        graph: the graph of the trace.
        selection: device work, CPU tasks, or both.
        work_factor: one for all, or one a task: shape (tasks,), float64.
        weights: bytes of a product's operand that stays, shape (tasks,), float64: a CPU's library reads it,
            packs it and reads it packed, however many rows are multiplied with it.

    Returns:
        `Retimed`, arrays in the order of the selection.
    """
    selection.need("tasks to scale")
    factor = np.broadcast_to(np.asarray(work_factor, np.float64), len(selection))
    old = selection.duration_ns
    new = old.astype(np.int64)
    on_cpu = graph.kind[selection.ids] == CPU
    models = np.full(len(old), "unchanged", dtype=object)
    device = np.flatnonzero(~on_cpu)
    if len(device):
        part = Selection(graph, selection.ids[device], selection.words)
        retimed = retime(graph, part, flop_factor=factor[device], bytes_factor=factor[device])
        new[device] = retimed.duration_ns
        models[device] = retimed.model
    host = np.flatnonzero(on_cpu)
    if len(host):
        part = Selection(graph, selection.ids[host], selection.words)
        overhead, model = cpu_overheads(graph, part)
        if weights is not None:
            rate = _call_table(graph).rate
            moved = PACKED * weights[host] / rate if rate else 0.0
            overhead = np.minimum(overhead + moved, old[host])
        body = np.maximum(old[host] - overhead, 0)
        new[host] = np.rint(old[host] + body * (factor[host] - 1)).astype(np.int64)
        models[host] = model
    return Retimed(new, models, old)


def cpu_overheads(graph: Graph, selection: Selection) -> tuple[np.ndarray, np.ndarray]:
    """Return, for CPU tasks, the time that does not grow with their work, and the model it comes from."""
    old = selection.duration_ns.astype(np.float64)
    overhead = old.copy()
    model = np.full(len(old), "unchanged", dtype=object)
    trace = graph.recorded
    rows = graph.row[selection.ids]
    if not len(trace):
        return overhead, model
    table = _call_table(graph)
    at = lookup(table.row, rows)
    known = at >= 0
    # A call's overhead is spread over its pieces by their time.
    part = np.zeros(len(old))
    part[known] = np.minimum(
        table.overhead_ns[at[known]] / np.maximum(table.time_ns[at[known]], 1.0), 1.0
    )
    overhead[known] = old[known] * part[known]
    model[known] = np.where(table.fitted[at[known]], "cpu line", "cpu overhead")
    names = selection.name
    launches = calls_of(trace).launches_work | calls_of(trace).wraps
    for index in np.flatnonzero(~known & (rows >= 0) & (old > SHORT_NS)).tolist():
        if not launches[rows[index]] and works(names[index] or ""):
            overhead[index] = min(old[index], table.typical_ns)
            model[index] = "cpu overhead"
    return overhead, model


def tiny_call_ns(graph: Graph) -> float:
    """Return what an operator call with next to no work takes on the CPU, ns: the median of the trace's."""
    return _call_table(graph).typical_ns if graph.recorded else USUAL_OVERHEAD_NS


class _Table(NamedTuple):
    row: np.ndarray
    time_ns: np.ndarray
    overhead_ns: np.ndarray
    fitted: np.ndarray
    typical_ns: float
    rate: float  # bytes a ns, of the best calls that are no products; 0 if there are none


def _call_table(graph: Graph) -> _Table:
    """Return every CPU operator call of known work with its time and overhead.

    Repetitions by edits tell nothing more of the recorded calls.
    """
    trace = graph.recorded
    ids = graph.select(kind="cpu").ids
    host = Selection(graph, ids[(graph.row[ids] >= 0) & (graph.repeat[ids] == 0)])
    task_rows = graph.row[host.ids]
    task_work = work(graph, host)
    known = task_work.call >= 0
    known &= (task_work.flop >= 0) | (task_work.nbytes >= 0)
    rows, which = places(task_rows[known])
    count = len(rows)
    time = np.bincount(which, host.duration_ns[known], count)
    flop = np.bincount(which, np.maximum(task_work.flop[known], 0), count)
    nbytes = np.bincount(which, np.maximum(task_work.nbytes[known], 0), count)
    family = task_work.family[np.flatnonzero(known)[first_of(which, count)]].astype(str)
    matrix = np.isin(family, MATRIX_FAMILIES)
    amount = np.where(matrix & (flop > 0), flop, np.maximum(nbytes, flop))
    tiny = (nbytes <= TINY_BYTES) & (flop <= TINY_FLOP)
    typical = float(np.median(time[tiny])) if tiny.any() else USUAL_OVERHEAD_NS
    dearest = float(np.quantile(time[tiny], DEAREST)) if tiny.any() else USUAL_OVERHEAD_NS
    recurrent = matrix & (family == "recurrent")
    limit = np.where(recurrent, time, dearest)
    names = trace["name"][rows]
    usual = _usual(names, amount, time)
    usual = np.maximum(usual - typical, usual / 2)  # a call's rate is that of its work
    # A recurrent layer goes by the products outside such layers, its own time where there are none.
    needed = time.copy()
    rates = {}
    for kind, members, judges in (
        ("products", matrix, matrix & ~recurrent),
        ("bytes", ~matrix, ~matrix),
    ):
        there = judges & (amount > 0) & (usual > 0)
        rates[kind] = float(np.quantile(amount[there] / usual[there], BEST)) if there.any() else 0.0
        if rates[kind]:
            needed[members] = amount[members] / rates[kind]
    above = np.maximum(time - needed, typical)
    overhead = np.minimum(time, np.minimum(above, limit))
    slow = np.array(["random" in operator(text).traits for text in trace.text("name")], bool)
    vectorized = (family == "element-wise") & ~slow[names] & (nbytes <= SMALL_BYTES)
    overhead = np.where(vectorized, np.maximum(overhead, time - nbytes / LEAST_RATE), overhead)
    fitted = np.zeros(count, bool)
    for name in unique(names).tolist():
        members = names == name
        found = _intercept(amount[members], time[members])
        if found is not None:
            overhead[members] = min(found, float(time[members].min()))
            fitted[members] = True
    return _Table(rows, time, overhead, fitted, typical, rates["bytes"])


def _usual(name: np.ndarray, amount: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return for each call the median time of those with its name and work.

    Single calls are timed too short, above all where the cost of recording was taken out of them.
    """
    _, alike = distinct_rows([name, amount])
    order = np.argsort(alike, kind="stable")
    usual = np.empty_like(time)
    bounds = np.flatnonzero(run_starts(alike[order]))
    for members in np.split(order, bounds[1:]) if len(order) else []:
        usual[members] = np.median(time[members])
    return usual


def _intercept(amount: np.ndarray, time: np.ndarray) -> float | None:
    """Return the time at no work, by the smallest and the largest calls; None if they are too alike."""
    sizes = unique(amount[amount > 0])
    if len(sizes) < 2 or sizes[-1] < WIDE_ENOUGH * sizes[0]:
        return None
    least, most = (float(np.median(time[amount == size])) for size in (sizes[0], sizes[-1]))
    if most <= least:
        return least
    return max(least - sizes[0] * (most - least) / (sizes[-1] - sizes[0]), 0.0)


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


def copies_ns(graph: Graph, nbytes: npt.ArrayLike, on: str = "gpu") -> np.ndarray | None:
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
        return floor_ns(graph) + 2 * np.asarray(nbytes) / rate
    return tiny_call_ns(graph) + 3 * np.asarray(nbytes) / rate


def copies_into_new_ns(graph: Graph, nbytes: npt.ArrayLike, on: str = "gpu") -> np.ndarray | None:
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
                return tiny_call_ns(graph) + 2 * np.asarray(nbytes) / rate
    return copies_ns(graph, nbytes, on)


def _recorded(graph: Graph, on: str) -> Selection:
    """Return the recorded tasks, removed ones too, and those that somebody put in by hand."""
    recorded = (graph.row >= 0) & (graph.repeat == 0)
    if graph.recorded_ns is not None:  # parts that a task was split into are no recorded ones
        recorded[len(graph.recorded_ns) :] = False
    mine = recorded | (graph.row < 0) & graph.alive
    return Selection(graph, np.flatnonzero(mine & ((graph.kind != CPU) == (on == "gpu"))))


def _streaming(tasks: Selection) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes and ns, both as recorded, of the calls and kernels that do streaming work."""
    graph = tasks.graph
    if not len(graph.recorded):
        return np.empty(0, np.int64), np.empty(0)
    rows, which = distinct(graph.row[tasks.ids])
    duration = np.bincount(which, recorded_duration_ns(tasks), len(rows))
    amounts = work_of_rows(graph.recorded, rows)
    streaming = amounts.is_of(*STREAMING)
    return amounts.nbytes[streaming], duration[streaming]


def _recorded_bytes(copies: Selection) -> np.ndarray:
    rows = copies.graph.row[copies.ids]
    if not len(copies.graph.recorded):
        return copies.bytes
    return np.where(rows >= 0, copies.graph.recorded["bytes"][np.maximum(rows, 0)], copies.bytes)


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
    return TO_DEVICE if direction == "HtoD" else TO_HOST


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
            rates = nbytes[large] / body[large]
            size = nbytes[large].astype(np.float64)
            order = np.argsort(rates)
            reached = np.cumsum(size[order])
            return float(rates[order][np.searchsorted(reached, quantile * reached[-1])])
    return None
