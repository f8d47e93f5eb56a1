"""Work of tasks and what bounds them: FLOP, bytes, achieved share of the device's peaks.

How many values kernels pass over, by their names and grids: torch's element-wise and multi-tensor kernels.

An element-wise kernel has a block for so many elements of its result (ATen's `CUDALoops.cuh`: 4 a thread
unless its name says otherwise, since torch 2.7 twice as many of vectorized ones). A multi-tensor kernel's
functor names how many lists it reads and which it writes.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from msgspec import Struct

from daydream.arrays import percentile, take, unique
from daydream.costs.devices import Device, device_of, device_properties
from daydream.costs.operators import MATRIX_CLASSES, MATRIX_FAMILIES, kernels_are
from daydream.costs.workload.calls import work_by_row
from daydream.graph.calls import whole_duration_ns
from daydream.graph.graph import Graph
from daydream.graph.select import for_each, of_tasks, read_column
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU, KERNEL, kind_code
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

TF32_KERNEL = regex(r"tf32|tfloat32|s1688gemm|s1688cudnn|s161616?gemm_f32|xf32", re.IGNORECASE)
TENSOR_KERNEL = regex(
    r"tensorop|[hs]884|[hs]1688|[hs]16816|[hs]161616|xmma|sm90_|sm100_|wgmma|hmma|imma|mma_|nvjet|flash|fmha|MFMA|_MI\d",
    re.IGNORECASE,
)
FLOOR_PERCENTILE = 5
LARGEST_FLOOR_NS = 5_000  # an empty kernel takes 1 to 3 us on the GPUs of the public traces
# Of the peaks: a kernel whose FLOP and bytes were counted and that stays below on both waits for something
# else. NVIDIA speaks of latency from 0.6 of what its units can do (Nsight Compute, Speed Of Light); FLOP and
# bytes of memory leave out other instructions and caches, so half of that.
HELD_UP = 0.3
NUMBERS = regex(r"b?float|u?int[48]")  # that devices multiply
UNTOLD = ("transfer", None)  # families that no operator has
LATENCY_SHARE = 1.5  # a kernel of less than this many floors is mostly fixed cost


class Work(Struct, frozen=True):
    """Work of tasks, an entry a task in the order of the selection.

    Attributes:
        flop: floating-point operations, int64, -1 where unknown.
        nbytes: bytes read and written, int64, -1 where unknown.
        family: matmul, convolution, attention, recurrent, normalization, softmax, loss, element-wise,
            reduction, gather, pooling, optimizer, copy or transfer, None where unknown; texts (object).
        call: the trace's row of the operator call, int64, -1 for none.
        code: the family as a place in `families`, of which the last is None; int8, -1 where unknown.
    """

    flop: np.ndarray
    nbytes: np.ndarray
    call: np.ndarray
    code: np.ndarray
    families: tuple[str | None, ...]

    @property
    def family(self) -> np.ndarray:
        """The family of each: texts (object)."""
        return np.array(self.families, dtype=object)[self.code]

    def is_of(self, *families: str | None) -> np.ndarray:
        """Return a mask of the tasks of some families: bool, shape (tasks,)."""
        return np.array([family in families for family in self.families])[self.code]


def work(graph: Graph, selection: Selection) -> Work:
    """Return FLOP and bytes of the selected tasks, from the shapes that the trace recorded.

    What a GPU counted goes before that, where the trace has it (`counters.py`). An edit that made
    the work more counts (`leave_grown`). Kernels of one operator call share its work; pieces of a CPU
    operator likewise, by time. Copies and memsets have the bytes that the trace says.

    Args:
        graph: the graph of the trace.
        selection: CPU tasks or device work.

    Returns:
        `Work`, arrays in the order of the selection.
    """
    rows = graph.row[selection.ids]
    if not len(rows):
        return _unknown(len(rows))
    found = work_of_rows(graph.recorded, rows)
    factors: tuple[Any, Any] = 1.0, 1.0
    if graph.resized:
        from daydream.costs.resize.growth import grown_by

        factors = grown_by(graph, selection)[:2]
    kind = graph.kind[selection.ids]
    on_cpu = kind == CPU
    part = np.where(on_cpu, _part_of_row(graph, selection.ids), 1.0) if on_cpu.any() else 1.0
    if graph.resized or on_cpu.any():
        for amounts, factor in zip((found.flop, found.nbytes), factors, strict=True):
            known = amounts >= 0
            amounts[known] = np.rint(amounts * factor * part)[known].astype(np.int64)
    moved = np.flatnonzero((kind == kind_code("memcpy")) | (kind == kind_code("memset")))
    recorded = read_column(graph, "bytes", selection.ids[moved])
    moved = moved[recorded >= 0]
    recorded = recorded[recorded >= 0]
    found.flop[moved], found.nbytes[moved], found.code[moved] = (
        0,
        recorded,
        found.families.index(UNTOLD[0]),
    )
    return found


def work_of_rows(trace: Trace, rows: np.ndarray) -> Work:
    """Return the recorded work of rows of a trace, device or operator; -1 stands for no row."""
    flop, nbytes, family, owner, families = work_by_row(trace)
    if not len(flop):
        return _unknown(len(rows))
    there = rows >= 0
    columns = [column[rows] for column in (flop, nbytes, owner, family)]
    if not there.all():
        for column in columns:
            column[~there] = UNKNOWN
    found = Work(columns[0], columns[1], columns[2], columns[3], (*families, *UNTOLD))
    if trace.metadata.get("counters"):
        from daydream.costs.workload.counters import counted_work

        for values, column in zip((found.flop, found.nbytes), counted_work(trace), strict=True):
            here = there & (column[rows] >= 0)
            values[here] = column[rows[here]]
    return found


def is_matrix(graph: Graph, tasks: Selection) -> np.ndarray:
    """Return a mask of products, convolutions, attention and recurrent layers.

    By the shapes of their calls, and where these do not tell a kernel's work (libraries sum parts and change
    layouts in kernels of their own) by the class of its name, if its type is one of numbers: kernels of
    indices and masks may have a product's name.

    Args:
        graph: the graph of the trace.
        tasks: kernels, or operators of the CPU.

    Returns:
        shape (tasks,), bool.
    """
    amounts = work(graph, tasks)
    by_shapes = amounts.is_of(*MATRIX_FAMILIES)
    told = ~amounts.is_of(*UNTOLD) & (~by_shapes | (amounts.flop > 0))
    numbers = of_tasks(tasks, "dtype", lambda dtype: NUMBERS.match(dtype or "float"), bool)
    return np.where(told, by_shapes, kernels_are(tasks, *MATRIX_CLASSES) & numbers)


def counted_tasks(graph: Graph, selection: Selection) -> np.ndarray:
    """Return whether FLOP (first) and bytes (second) of each task were counted: bool, shape (2, tasks)."""
    found = np.zeros((2, len(selection)), bool)
    if graph.recorded.metadata.get("counters") and len(selection):
        rows = graph.row[selection.ids]
        from daydream.costs.workload.counters import counted_work

        for column, mine in zip(counted_work(graph.recorded), found, strict=True):
            mine[:] = (rows >= 0) & (column[np.maximum(rows, 0)] >= 0)
    return found


def _unknown(count: int) -> Work:
    flop, nbytes, call = (np.full(count, UNKNOWN, np.int64) for _ in range(3))
    return Work(flop, nbytes, call, np.full(count, UNKNOWN, np.int8), UNTOLD)


def _part_of_row(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return how much of its row's CPU time each task is: an operator's time is cut by what it calls."""
    rows = graph.row
    duration = graph.duration_ns
    mine = graph.alive & (rows >= 0) & (graph.kind == CPU)
    # A repetition of a call is a call of its own.
    key = rows + graph.repeat.astype(np.int64) * (int(rows.max(initial=0)) + 1)
    size = int(key.max(initial=0)) + 1
    total = np.bincount(key[mine], duration[mine], size)
    count = np.bincount(key[mine], minlength=size)
    here = np.where(rows[ids] >= 0, key[ids], 0)
    even = 1 / np.maximum(count[here], 1)
    return np.where(total[here] > 0, duration[ids] / np.maximum(total[here], 1), even)


def number_formats(selection: Selection, device: Device) -> np.ndarray:
    """Return in which format each task computes, as `Device.tflops` names it; None for unknown types.

    Matrix kernels use the device's matrix units, 32-bit ones TF32 where their name says
    so; all others the 32-bit vector units, whatever the type they store.
    """
    return formats_of(
        selection.dtype, selection.name, is_matrix(selection.graph, selection), device
    )


def formats_of(
    dtypes: np.ndarray, names: np.ndarray, matrix: np.ndarray, device: Device
) -> np.ndarray:
    """Return the number format of each kernel from its element type, name and family."""
    found = np.full(len(dtypes), None, dtype=object)
    known = dtypes != None  # noqa: E711 - a column of texts and None
    found[known] = "float32"
    double = dtypes == "float64"
    found[double] = "float64"
    chosen = np.flatnonzero(matrix & known)
    pairs = list(zip(dtypes[chosen].tolist(), names[chosen].tolist(), strict=True))
    format_of = {  # many kernels, few names
        (dtype, name): device.matrix_format(dtype, tf32=bool(TF32_KERNEL.search(name or "")))
        for dtype, name in set(pairs)
    }
    found[chosen] = [format_of[pair] for pair in pairs]
    return found


def peaks(formats: np.ndarray, device: Device) -> np.ndarray:
    """Return peak FLOP/ns of each format, NaN where the device has no units for it."""
    return for_each(formats, lambda name: device.tflops.get(name or "", np.nan) * 1e3, np.float64)


def floor_ns(graph: Graph) -> float:
    """Return what the smallest kernels of this graph take: the fixed cost of any kernel, as recorded."""
    kernels = Selection(graph, np.flatnonzero((graph.kind == KERNEL) & graph.alive))
    duration = recorded_duration_ns(kernels)
    duration = duration[duration > 0]
    if not len(duration):
        return 0.0
    return float(min(percentile(duration, FLOOR_PERCENTILE), LARGEST_FLOOR_NS))


def recorded_duration_ns(tasks: Selection) -> np.ndarray:
    """Return what tasks took before the first edit of any duration; of tasks made since, what they take."""
    found: np.ndarray = tasks.duration_ns
    kept = tasks.graph.recorded_ns
    if kept is not None:
        there = tasks.ids < len(kept)
        found[there] = kept[tasks.ids[there]]
    return found


def grid_blocks(graph: Graph, selection: Selection) -> np.ndarray:
    """Return the thread blocks of each kernel's grid, -1 where it was not recorded."""
    return _volume(graph, selection, "grid")


def block_threads(graph: Graph, selection: Selection) -> np.ndarray:
    """Return the threads of a block of each kernel, -1 where they were not recorded."""
    return _volume(graph, selection, "block")


def _volume(graph: Graph, selection: Selection, column: str) -> np.ndarray:
    texts = selection.graph.recorded.text(column)
    volumes = [
        int(np.prod([int(part) for part in text.split(",")], dtype=np.int64)) for text in texts
    ]
    rows = graph.row[selection.ids]
    if not texts:
        return np.full(len(rows), UNKNOWN, np.int64)
    return take(np.array(volumes), take(graph.recorded[column], rows))


def units_of(graph: Graph, device: Device) -> int:
    """Return the multiprocessors (compute units) that the trace reports, else the table's."""
    return int(device_properties(graph).get("multiprocessors") or device.units)


def filled(blocks: np.ndarray, units: int | np.ndarray, *, in_waves: np.ndarray) -> np.ndarray:
    """Return how much of the device a grid fills; 1 where the grid is unknown.

    `in_waves`: one block a unit at a time, as large matrix tiles run, so that 1.2 waves
    take as long as 2. Else blocks follow one another without a seam, and only a grid of
    fewer blocks than units leaves the device unfilled.
    """
    waves = np.maximum(blocks / units, 1.0)
    waves = np.where(in_waves, np.ceil(waves - 1e-9), waves)
    return np.where(blocks > 0, blocks / (waves * units), 1.0)


class Bound(Struct, frozen=True):
    """What bounds each task, with the evidence; an entry a task in the order of the selection.

    Attributes:
        kind: compute, memory, latency or unknown; texts (object).
        compute_share: achieved part of the peak rate, float64, NaN where unknown.
        memory_share: achieved part of the peak bandwidth, float64, NaN where unknown; above 1 where a cache
            serves the data.
        filled: how much of the device the grid fills, 0 to 1, float64.
        floor_ns: what the smallest kernels of the trace take, ns.
    """

    kind: np.ndarray
    compute_share: np.ndarray
    memory_share: np.ndarray
    filled: np.ndarray
    floor_ns: float


def bound(graph: Graph, selection: Selection, *, device: Device | None = None) -> Bound:
    """Return what bounds the selected kernels: compute, memory or latency.

    Latency: not much longer than the smallest kernels of the trace, or far below both peaks by counters,
    unless those show that it is the L2 cache that gives no more (`workload/counters.py`): then it is memory.
    Else whichever of the two the kernel's work would take longer on at peak rate.

    Args:
        graph: the graph of the trace.
        selection: kernels.
        device: the device they ran on; by default the trace's own.

    Returns:
        `Bound`, arrays in the order of the selection.

    Raises:
        NotApplicableError: the device is not in the table.
    """
    device = device or device_of(graph)
    task_work = work(graph, selection)
    rate = peaks(number_formats(selection, device), device)
    duration = np.maximum(selection.duration_ns, 1)
    floor = floor_ns(graph)
    compute = np.where(task_work.flop >= 0, task_work.flop / rate / duration, np.nan)
    memory = np.where(task_work.nbytes >= 0, task_work.nbytes / device.bandwidth / duration, np.nan)
    kind = np.full(len(selection), "unknown", dtype=object)
    both = np.fmax(np.nan_to_num(compute), np.nan_to_num(memory)) > 0
    kind[both & (np.nan_to_num(compute) >= np.nan_to_num(memory))] = "compute"
    kind[both & (np.nan_to_num(compute) < np.nan_to_num(memory))] = "memory"
    kind[whole_duration_ns(selection) < LATENCY_SHARE * floor] = "latency"
    counted = counted_tasks(graph, selection).all(axis=0)
    held_up = counted & both & (np.fmax(np.nan_to_num(compute), np.nan_to_num(memory)) < HELD_UP)
    if held_up.any():
        from daydream.costs.workload.counters import bound_by_l2

        through_cache = bound_by_l2(graph, selection, device.bandwidth)
        kind[held_up] = np.where(through_cache, "memory", "latency")[held_up]
    return Bound(
        kind,
        compute,
        memory,
        filled(
            grid_blocks(graph, selection),
            units_of(graph, device),
            in_waves=is_matrix(graph, selection),
        ),
        floor,
    )


ELEMENTWISE = regex(
    r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<(?:\(int\))?(\d+), (?:\(int\))?(\d+)"
)
VECTORIZED = regex(r"(?:vectorized|unrolled)_elementwise_kernel<(?:\(int\))?(\d+)")
# Of torch's element-wise kernels: threads a block, elements a thread
THREADS = 128
EACH = 4
# Since torch 2.7 vectorized kernels have 8 elements a thread (`elems_per_thread`). It shows by vectors of 8
# (on Hopper and Blackwell), unrolled kernels that name how many elements they have, or CUDA 12.8: torch 2.6
# was built for 12.6 at most.
EACH_SINCE_2_7 = 8
SINCE_2_7 = regex(
    r"vectorized_elementwise_kernel<8,|unrolled_elementwise_kernel<.*std::array<char ?\*, \d+ul>, \d+,"
)
CUDA_SINCE_2_7 = 12_070
FUSED = regex(r"Fused\w+MathFunctor<\w+, (?:\(int\))?(\d+)")
# Of a functor: the type, the lists, how many of them it reads, which one it writes.
MULTI_TENSOR = regex(
    r"multi_tensor_apply.*Functor<[\w:]+, (?:\(int\))?\d+, (?:\(int\))?(\d+), (?:\(int\))?\d+>"
)
WEIGHT_GRADIENT = r"gemm\w*_nt(?:_|\b)|wgrad"
FLOAT = 4  # bytes of a parameter
LEAST_SHARE = 0.1  # of the longest kind of pass: shorter ones are over counters of steps


def elements_a_thread(graph: Graph) -> int:
    """Return how many elements a thread of torch's vectorized kernels works out at least, by its version."""
    if any(SINCE_2_7.search(name) for name in graph.texts["name"]):
        return EACH_SINCE_2_7
    versions = graph.recorded.metadata.get("versions") or {}
    cuda = str(versions.get("cuda_runtime_version") or "")
    return EACH_SINCE_2_7 if cuda.isdigit() and int(cuda) > CUDA_SINCE_2_7 else EACH


def elements_a_block(name: str, each: int = EACH) -> int:
    """Return how many elements of the result a block of an element-wise kernel works out, 0 for others.

    Args:
        name: a kernel's.
        each: elements a thread of vectorized kernels.
    """
    found = VECTORIZED.search(name)
    if found:
        return THREADS * max(each, int(found[1]))
    found = ELEMENTWISE.search(name)
    return int(found[1]) * int(found[2]) if found else 0


def values_moved(name: str) -> int:
    """Return how many values a multi-tensor kernel reads and writes for each element, 0 for others.

    A fused update reads all of its lists and writes all but the gradients.
    """
    found = FUSED.search(name)
    if found:
        return 2 * int(found[1]) - 1
    found = MULTI_TENSOR.search(name)
    return int(found[1]) + 1 if found else 0


def value_ns(update: Selection) -> float | None:
    """Return what a multi-tensor update takes a step for each value that it moves of all parameters, ns.

    By the kernels that move them fastest: others pass several times. None where there are no such kernels.
    """
    kinds = [group for group in update.group_by("name") if values_moved(group.name[0] or "")]
    steps = max(len(unique(update.step)), 1)
    time = np.array([group.total("duration_ns") / steps for group in kinds])
    values = np.array([values_moved(group.name[0] or "") for group in kinds])
    counted = time >= LEAST_SHARE * time.max(initial=0)
    return float((time[counted] / values[counted]).min()) if counted.any() else None


def updated_by_grids(update: Selection, blocks: np.ndarray) -> tuple[int, int]:
    """Return tensors and elements that one step updates, by the element-wise kernels of its loop, else -1.

    Each kind of kernel runs at least once for each tensor. Small tensors are counted as whole blocks.
    """
    names = [name or "" for name in update.name.tolist()]
    each = elements_a_thread(update.graph)
    known = {name: elements_a_block(name, each) for name in set(names)}
    elements = np.array([known[name] for name in names], np.int64) * np.maximum(blocks, 0)
    steps = max(len(unique(update.step)), 1)
    found = []
    for name, block in known.items():
        mine = elements[np.array([one == name for one in names])]
        if mine.max() == elements.max(initial=0) > block:
            found.append((int(mine.sum()) // steps, len(mine) // steps))
    return min(found)[::-1] if found else (-1, -1)


def updated_mb(graph: Graph) -> float | None:
    """Return how many MiB of parameters one step updates, by the grids of its kernels, else None."""
    update = graph.select(kind="kernel", phase="optimizer")
    elements = updated_by_grids(update, grid_blocks(graph, update))[1] if len(update) else -1
    return None if elements < 0 else elements * FLOAT / 2**20


def weight_products(graph: Graph) -> np.ndarray:
    """Return the backward kernels that compute gradients of weights, in program order.

    cuBLAS names the layouts of both factors: of torch's row-major linear layers the forward product is `tn`,
    the gradient of the input `nn`, that of the weight `nt`. cuDNN's convolutions say `wgrad`.
    """
    kernels = graph.select(kind="kernel", phase="backward").where(lambda tasks: tasks.launch >= 0)
    return kernels.where(name=WEIGHT_GRADIENT).ids
