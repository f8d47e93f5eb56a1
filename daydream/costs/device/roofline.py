"""Kernels' times after a change of element type, device or work: a roofline, and what corrects it.

    time(kernel, device, formats) = fixed cost + max(FLOP / (peak x share), bytes / (bandwidth x share))

The share of the peak that a kernel reaches now is its own, of the resource that binds it; of the other, where
the change makes it bind, what good kernels of this trace reach. Where its work is unknown it is taken to be what
fits into its time at the peak: arithmetic of matrix kernels, bytes of all others. `SHARES` are corrections of
what the changed kernel is, before the roofline, `TIMES` and `LIMITS` of the time that it gives, those of one change
between. Each is a function that can be left out; its docstring says what it is worth.

A multiprocessor holds several blocks. While all of a grid's blocks run at once, more of them take no
longer, as long as neither memory nor arithmetic is what they wait for: threads that wait for
memory leave the unit to others ("CUDA C++ Best Practices Guide", NVIDIA, section Occupancy).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from daydream.costs.device.measured import recorded_ns
from daydream.costs.devices import Device, device_of, device_properties, under_load
from daydream.costs.kernels import (
    LATENCY_SHARE,
    TF32_KERNEL,
    block_threads,
    bound,
    counted_tasks,
    filled,
    floor_ns,
    formats_of,
    grid_blocks,
    is_matrix,
    peaks,
    units_of,
    work,
)
from daydream.costs.operators import OVER_LINK, names_fit
from daydream.costs.workload.calls import calls_of
from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.select import for_each, is_among, of_tasks
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN

LEAST_REACHABLE = (
    0.6  # of a peak: a kernel below this on both resources is held up by something else
)
REACHED_BY = 0.75  # "good kernels" are at this quantile of efficiency, by time
UNDER_LOAD = (
    "float16",
    "bfloat16",
    "float8",
    "int8",
)  # formats that `Device.sustained_peak` speaks of
# The least of all GPUs since Volta ("CUDA C++ Programming Guide", table Technical Specifications per
# Compute Capability): resident threads and blocks of a multiprocessor. Devices often tell the former.
RESIDENT_THREADS = 1024
RESIDENT_BLOCKS = 16
REGISTERS = 65536  # of 32 bits in a multiprocessor, same table
# "The accumulator elements typically occupy at least half a thread's total register budget"
# ("Efficient GEMM in CUDA", documentation of CUTLASS).
REGISTERS_AN_ACCUMULATOR = 2
# A thread of torch's element-wise kernels has 4 elements of every tensor (`thread_work_size`), and of four
# tensors in 32 bits that is 64 bytes. One that moves more loops over its work, as the statistics of a
# batch do with a block a channel: there more work need not mean more blocks.
BYTES_A_THREAD = 64
NVJET = regex("nvjet")
PAPER_SPEEDUPS = (
    3.0,
    2.0,
)  # 32 to 16 bits: matrix kernels, all others (Daydream, ATC 2020, section 5.1)
HALF = ("float16", "bfloat16")
IN_FULL = (
    "float32",
    "float64",
    "float32_matrix",
)  # vector units, and matrix units of full precision
ON_MATRIX_UNITS = ("float16", "bfloat16", "tf32", "float8", "int8")
# Matrix units are harder to keep busy than vector units: what a kernel keeps of its share of the peak
# when it moves there. Large 16-bit products of the public trace `h100_qwen_0.5b_inference` reach 0.62 to
# 0.69 of the peak, large 32-bit ones on vector units 0.75 to 0.95; on a T4 (`t4_mlp_amp`, a development pair)
# five of both sorts keep 0.70. Units that are no more than twice as fast (GeForce cards since Ampere) ask
# for no more data than a kernel of half the bytes has.
KEPT_ON_MATRIX_UNITS = 0.75
AS_EASY_TO_FEED = 2.2
# How far the rule of peaks is off for products on matrix units between GPUs of other units: at 90%, over the
# public tables of `measured_tables.py`, 29 to 87% from A100 and H100 to newer ones.
OFF_BETWEEN_UNITS = 0.5
# That are measured, by family and number of sizes.
OPERATIONS = {("matmul", 3): "gemm", ("attention", 5): "attention", ("matmul", 5): "moe"}
ABOVE_PEAK = 1.1  # of vector units: a product this fast does not run there


class Kernel(Struct):
    """Kernels as the roofline sees them; arrays, float64, an entry a kernel.

    Attributes:
        flop: floating-point operations.
        nbytes: bytes read and written.
        fixed_ns: what it takes without any work, ns.
        of_peak: part of the peak of arithmetic that it reaches.
        of_bandwidth: part of the bandwidth that it reaches.
    """

    flop: np.ndarray
    nbytes: np.ndarray
    fixed_ns: np.ndarray | float
    of_peak: np.ndarray | float = 1.0
    of_bandwidth: np.ndarray | float = 1.0


def time(kernel: Kernel, device: Device, formats: np.ndarray) -> np.ndarray:
    """Return what kernels take on a device: their fixed cost, and arithmetic or traffic, whichever is longer.

    Args:
        kernel: what they do, and how well.
        device: a row of the table of GPUs.
        formats: in which number format each computes, None where that is unknown and no FLOP is known; texts.

    Returns:
        ns, shape (kernels,), float64.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        arithmetic = kernel.flop / peaks(formats, device) / kernel.of_peak
        traffic = kernel.nbytes / device.bandwidth / kernel.of_bandwidth
    return kernel.fixed_ns + np.nan_to_num(np.fmax(arithmetic, traffic))


def device_or_none(graph: Graph) -> Device | None:
    """Return the device of the graph's kernels, None if its peaks are unknown."""
    try:
        return device_of(graph)
    except NotApplicableError:
        return None


def runs_in_tf32(graph: Graph, tasks: Selection) -> np.ndarray:
    """Return a mask of 32-bit products that run in TF32 already: by name, else by their rate.

    `nvjet` is a library of kernels for tensor cores alone. A product that is faster than the vector units'
    peak runs elsewhere; a convolution may be for another reason (Winograd's needs fewer FLOP).

    Args:
        graph: the graph of the trace.
        tasks: kernels.

    Returns:
        shape (tasks,), bool.
    """
    wide = of_tasks(tasks, "dtype", lambda dtype: dtype == "float32", bool)
    named = names_fit(tasks, lambda name: TF32_KERNEL.search(name) or NVJET.search(name))
    device = device_or_none(graph)
    if device is None or "tf32" not in device.tflops or "float32_matrix" in device.tflops:
        return wide & named
    amounts = work(graph, tasks)
    rate = amounts.flop / np.maximum(tasks.duration_ns, 1)
    fast = amounts.is_of("matmul") & (rate > ABOVE_PEAK * device.peak("float32"))
    return wide & (named | fast)


class Change:
    """Kernels before and after a change. All arrays have an entry a kernel.

    Corrections change `after`, what the kernels are then, or `new`, what they take, ns, and `model`, the name
    of what tells it; `doubt` is by which part of the time it may be off.
    """

    here: Device  # that the kernels run on, and that they will run on
    there: Device
    formats: np.ndarray  # number formats of both; texts (object)
    new_formats: np.ndarray
    known: np.ndarray  # mask of those whose work is known
    now: Kernel
    after: Kernel
    flop_ns: np.ndarray  # what arithmetic and traffic take now at the peaks
    bytes_ns: np.ndarray
    reachable: tuple[float, float]  # parts of both peaks

    def __init__(
        self,
        graph: Graph,
        selection: Selection,
        *,
        dtype: str | None = None,
        target: Device | None = None,
        flop_factor: float | np.ndarray = 1.0,
        bytes_factor: float | np.ndarray = 1.0,
        grid_factor: float | np.ndarray = np.nan,
        assumed: str | None = None,
    ) -> None:
        self.graph = graph
        self.selection = selection
        self.dtype = dtype
        self.names = selection.name
        self.dtypes = selection.dtype
        self.old = selection.duration_ns.astype(np.float64)
        self.work = work(graph, selection)
        self.matrix = is_matrix(graph, selection)
        if assumed is not None:
            unknown = self.matrix & (self.dtypes == None)  # noqa: E711 - a column of texts and None
            self.dtypes = np.where(unknown, assumed, self.dtypes)
        self.tf32 = runs_in_tf32(graph, selection)
        self.source = device_or_none(graph)
        self.target = target or self.source
        self.other_device = target is not None and target != self.source
        if self.source is None and self.other_device:
            device_of(graph)  # raises, and says why
        floating = names_fit(self.dtypes, lambda dtype: dtype.startswith(("float", "bfloat")))
        self.typed = floating & (dtype is not None)
        if dtype == "tf32":  # only products change
            self.typed &= self.matrix & ~self.tf32
        to_type = "float32" if dtype == "tf32" else dtype or ""
        self.new_dtypes = np.where(self.typed, to_type, self.dtypes)
        size, new_size = (
            for_each(types, lambda one: itemsize(one) or 1, np.float64)
            for types in (self.dtypes, self.new_dtypes)
        )
        self.narrower = np.where(self.typed, new_size / size, 1.0)
        self.flop_factor, self.bytes_factor, self.grid_factor = (
            np.broadcast_to(np.asarray(factor, np.float64), len(self.old))
            for factor in (flop_factor, bytes_factor, grid_factor)
        )
        self.resized = (self.flop_factor != 1) | (self.bytes_factor != 1)
        self.affected = self.typed | self.resized | self.other_device
        self.least = floor_ns(graph)  # of any kernel
        self.floor = np.minimum(self.least, self.old)
        self.body = self.old - self.floor
        self.new, self.doubt = self.old.copy(), np.full(len(self.old), np.nan)
        self.model = np.full(len(self.old), "unchanged", dtype=object)

    def predict(self, corrections: Sequence[Correction] = ()) -> None:
        """Find new durations, and the model behind each: roofline, ratio, paper or unchanged."""
        if self.source is None or self.target is None:
            self._by_constants()
        else:
            self.here = self.source
            self.there = self.target
            self._by_peaks(self.here, self.there)
            for correct in (*TIMES, *corrections, *LIMITS):
                correct(self)
        more_never_takes_less(self)
        self.new = np.where(self.affected, self.new, self.old)
        self.model[~self.affected] = "unchanged"

    def _by_peaks(self, source: Device, target: Device) -> None:
        self.formats = formats_of(self.dtypes, self.names, self.matrix, source)
        if "tf32" in source.tflops:
            self.formats[self.tf32 & self.matrix] = "tf32"
        self.new_formats = self._new_formats(target)
        self.now = self._as_recorded(source, target)
        by_flop_factor = (
            self.matrix & ~self.known
        )  # of unknown format, so its arithmetic is in no unit
        self.after = Kernel(
            self.now.flop * self.flop_factor,
            self.now.nbytes
            * np.where(by_flop_factor, self.flop_factor, self.bytes_factor * self.narrower),
            self.floor,
            self.now.of_peak,
            self.now.of_bandwidth,
        )
        for correct in SHARES:
            correct(self)
        self.new = time(self.after, target, self.new_formats)
        self.model = np.where(self.known, "roofline", "ratio").astype(object)

    def _as_recorded(self, source: Device, target: Device) -> Kernel:
        """Return kernels that take on their device what was recorded, each at a share of the peaks."""
        rate = peaks(self.formats, source)
        new_rate = peaks(self.new_formats, target)
        flop = np.where(np.isfinite(rate), np.maximum(self.work.flop, 0), 0)
        nbytes = np.maximum(self.work.nbytes, 0)
        self.known = (flop + nbytes > 0) & ((flop == 0) | np.isfinite(new_rate))
        multiplies = self.matrix & np.isfinite(rate + new_rate)
        guessed = np.where(multiplies, self.body * rate, 0), np.where(multiplies, 0, self.body)
        flop = np.where(self.known, flop, guessed[0])
        nbytes = np.where(self.known, nbytes, guessed[1] * source.bandwidth)

        self.flop_ns = np.nan_to_num(flop / rate)
        self.bytes_ns = nbytes / source.bandwidth
        by_flop = self.flop_ns >= self.bytes_ns
        body = np.maximum(self.body, 1e-3)  # a kernel at the floor has no body
        own = np.maximum(self.flop_ns, self.bytes_ns) / body
        arithmetic, traffic = self.reachable = (
            reachable(own, self.old, self.known & by_flop, self.least),
            reachable(own, self.old, self.known & ~by_flop, self.least),
        )
        return Kernel(
            flop,
            nbytes,
            self.floor,
            np.where(by_flop, own, np.maximum(self.flop_ns / body, arithmetic)),
            np.where(by_flop, np.maximum(self.bytes_ns / body, traffic), own),
        )

    def _new_formats(self, target: Device) -> np.ndarray:
        """Return the formats after the change; raises if the device has no units for one."""
        new = formats_of(self.new_dtypes, self.names, self.matrix, target)
        chosen = self.typed & self.matrix
        if self.dtype == "tf32":
            new[chosen] = "tf32"
        elif self.dtype == "float32":  # what TF32 kernels become when products must be exact
            new[chosen] = target.matrix_format("float32")
        for number_format in sorted({one for one in new[chosen].tolist() if one is not None}):
            target.peak(number_format)
        return new

    def _by_constants(self) -> None:
        """Find durations where the GPU is unknown: the paper's constants, and factors above the floor."""
        factor = np.where(self.matrix, self.flop_factor, self.bytes_factor)
        half = (
            self.typed & (self.dtypes == "float32") & is_among(self.new_dtypes, HALF) & ~self.tf32
        )
        new = self.floor + self.body * factor
        self.new = np.where(half, new / np.where(self.matrix, *PAPER_SPEEDUPS), new)
        self.model = np.where(half, "paper", "ratio").astype(object)

    @cached_property
    def grids(self) -> Grids:
        """The blocks of the kernels as they are now."""
        return Grids(self)


Correction: TypeAlias = Callable[[Change], None]


def reachable(share: np.ndarray, duration_ns: np.ndarray, where: np.ndarray, floor: float) -> float:
    """Return the part of a peak that good kernels of a sort reach, at least what nothing holds up reaches."""
    long = where & (share > 0) & (duration_ns > 3 * LATENCY_SHARE * floor)
    if not long.any():
        return LEAST_REACHABLE
    order = np.argsort(share[long])
    weight = np.cumsum(duration_ns[long][order])
    found = share[long][order][np.searchsorted(weight, REACHED_BY * weight[-1])]
    return float(np.clip(found, LEAST_REACHABLE, 1.0))


class Grids:
    """The blocks of some kernels as they are now, and how many the device holds. An entry a kernel."""

    def __init__(self, change: Change) -> None:
        graph = change.graph
        selection = change.selection
        amounts = change.work
        self.matrix, self.units = change.matrix, units_of(graph, change.here)
        recorded = grid_blocks(graph, selection)
        threads = block_threads(graph, selection)
        self.by_bytes = amounts.flop <= 0  # copies have no arithmetic that could tell how they grow
        # The grid of a persistent kernel does not tell its work.
        from daydream.costs.resize.new_shapes import output_tiles

        tiles = output_tiles(graph, change.names, amounts.call)
        blocks = np.where((recorded > 0) & self.matrix, np.maximum(recorded, tiles), recorded)
        if graph.resized:
            from daydream.costs.resize.growth import grown_by

            flop, nbytes, results = grown_by(graph, selection)
            blocks = blocks * self._growth(flop, nbytes, results)
        self.blocks = np.where(recorded > 0, blocks, UNKNOWN)
        self.new_blocks = self.blocks * self._growth(
            change.flop_factor, change.bytes_factor, change.grid_factor
        )
        self.resident = self._resident(change, recorded, threads)

    def work(self, flop: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """Return by how much each kernel's work grows, of products that is their arithmetic."""
        return np.where(
            self.by_bytes, nbytes, np.where(self.matrix, flop, np.maximum(flop, nbytes))
        )

    def _growth(self, flop: np.ndarray, nbytes: np.ndarray, results: np.ndarray) -> np.ndarray:
        """Return by how much the blocks grow: as the results of products where known, else as the work."""
        return np.where(np.isnan(results), self.work(flop, nbytes), results)

    def filled(self, blocks: np.ndarray, *, resident: bool = False) -> np.ndarray:
        """Return how much of the device so many blocks fill; 1 where the grid is unknown.

        Of the blocks that it works on at its best: one a unit, or all that it holds (`resident`).
        """
        places = self.units * (self.resident if resident else 1)
        return filled(blocks, places, in_waves=self.matrix)

    def busy(self, blocks: np.ndarray, units: int | None = None) -> np.ndarray:
        """Return on how many of the units (of another GPU) so many blocks run, 1 for all."""
        return filled(blocks, units or self.units, in_waves=np.array(False))

    def _resident(self, change: Change, blocks: np.ndarray, threads: np.ndarray) -> np.ndarray:
        """Return how many blocks a unit holds; 1 where nothing says that more work means more of them."""
        graph = change.graph
        amounts = change.work
        properties = device_properties(graph)
        most = properties.get("threads_per_multiprocessor") or RESIDENT_THREADS
        registers = properties.get("registers_per_multiprocessor") or REGISTERS
        by_threads = np.clip(most // np.maximum(threads, 1), 1, RESIDENT_BLOCKS)
        from daydream.costs.resize.new_shapes import tile_elements

        tile = tile_elements(graph, change.names, amounts.call, blocks)
        by_registers = np.maximum(registers // np.maximum(REGISTERS_AN_ACCUMULATOR * tile, 1), 1)
        of_products = np.where(tile > 0, np.minimum(by_threads, by_registers), 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = amounts.nbytes / (self.blocks * threads)  # bytes a thread
        of_others = np.where((amounts.nbytes > 0) & (each <= BYTES_A_THREAD), by_threads, 1)
        found = np.where(self.matrix, of_products, of_others)
        return np.where((blocks > 0) & (threads > 0), found, 1)


def harder_to_feed(change: Change) -> None:
    """Matrix units are harder to keep busy; algorithms of fewer FLOP (Winograd) stay behind on vector units.

    Without it the mean error of 19 changes of type in ten series is 16.4%, not 15.8%.
    """
    slower = peaks(change.formats, change.here) / peaks(change.new_formats, change.there)
    kept = np.where(slower * AS_EASY_TO_FEED < 1, KEPT_ON_MATRIX_UNITS, 1.0)
    now = change.now.of_peak
    steps_up = is_among(change.formats, IN_FULL) & is_among(change.new_formats, ON_MATRIX_UNITS)
    change.after.of_peak = np.where(steps_up, np.minimum(now, 1.0) * kept, now)


def peaks_under_load(change: Change) -> None:
    """Devices hold different parts of their peaks under load.

    Without it the mean error of six pairs of GPUs is 21.2%, not 10.8%.
    """
    of_peak, of_bandwidth = _held(change)
    _reach(change.after, of_peak, of_bandwidth)


def _held(change: Change) -> tuple[np.ndarray, float]:
    of_matrix, of_bandwidth = under_load(change.here, change.there)
    of_peak = np.where(is_among(change.new_formats, UNDER_LOAD), of_matrix, 1.0)
    return of_peak * change.there.clock / change.here.clock, of_bandwidth


def _reach(kernel: Kernel, of_peak: np.ndarray, of_bandwidth: np.ndarray | float) -> None:
    kernel.of_peak = kernel.of_peak * of_peak
    kernel.of_bandwidth = kernel.of_bandwidth * of_bandwidth


def fixed_cost_there(change: Change) -> None:
    """The fixed cost of a kernel is that of the other device, where both are published."""
    here = change.here.floor_ns
    there = change.there.floor_ns
    if change.other_device and here is not None and there is not None:
        change.after.fixed_ns = change.floor * (there / max(change.least, 1.0))


def idle_units(change: Change) -> None:
    """Kernels of few blocks leave another part of the units idle on another device.

    A grid of fewer blocks than units has the rates of the units that it runs on: a GPU of fewer
    and stronger ones serves it better than its peaks say. Kernels bring the same blocks, attention too:
    one for some queries of a head. For products and convolutions libraries choose tiles that fill
    the other device as well, and a kernel of so many blocks for every unit was made for the device.
    Without it the mean error of six pairs of GPUs is 14.7%, not 10.8%.
    """
    if not change.other_device:
        return
    grids = change.grids
    part = grids.busy(grids.blocks, change.there.units) / grids.busy(grids.blocks)
    brings = ~change.matrix | (change.work.family == "attention")
    part = np.where(brings & (grids.blocks % grids.units != 0), part, 1.0)
    _reach(change.after, part, part)


def units_to_fill(change: Change) -> None:
    """A small grid takes longer by less than its work grows: new blocks find idle units.

    Without it the mean error of 39 other sizes in twelve series is 19.5%, not 6.0%.
    """
    if change.resized.any() and not change.other_device:
        grids = change.grids
        part = grids.filled(grids.new_blocks) / grids.filled(grids.blocks)
        _reach(change.after, part, part)


def blocks_beside(change: Change) -> None:
    """Where units hold several blocks, new ones run beside those that are there, each as long as now.

    So they take no longer, until a resource gives what it does to good kernels, or to this one already.
    Without it batches of a ViT (-0.8%) come out at +2.1%, of DeepLab (+7.3%) at +8.5%, of a mixture of experts
    (+14.3%) at +33.7%, and 300 times as many particles (+4.0%) at +312%.
    """
    if change.other_device or not change.resized.any():
        return
    grids = change.grids
    source = change.here
    after = change.after
    blocks = grids.new_blocks
    body = np.maximum(change.body, 1e-3)
    waves = grids.filled(grids.blocks, resident=True) / grids.filled(blocks, resident=True)
    found = change.body * waves
    found = found * grids.work(change.flop_factor, change.bytes_factor)
    most = np.where(is_among(change.formats, UNDER_LOAD), source.sustained_peak or 1.0, 1.0)
    of_peak, of_bandwidth = change.reachable
    # Arithmetic is each unit's own, and the last wave leaves some idle; memory is there for all.
    resources = (
        (
            np.minimum(of_peak, most),
            change.flop_ns,
            peaks(change.new_formats, source),
            after.flop,
            grids.filled,
        ),
        (
            min(of_bandwidth, source.sustained_bandwidth or 1.0),
            change.bytes_ns,
            source.bandwidth,
            after.nbytes,
            grids.busy,
        ),
    )
    for share, now_ns, rate, amount, places in resources:
        already = now_ns / (body * places(grids.blocks))
        new_ns = np.nan_to_num(amount / rate)
        found = np.maximum(found, new_ns / np.maximum(share, already) / places(blocks))
    more = (change.flop_factor >= 1) & (change.bytes_factor >= 1) & ~change.typed
    chosen = change.known & more & (grids.resident > 1)
    change.new = np.where(chosen, change.after.fixed_ns + found, change.new)


def no_faster_than_peaks(change: Change) -> None:
    """No kernel is faster than the peaks allow, but for one that is faster already."""
    best = Kernel(change.after.flop, change.after.nbytes, 0.0, *_held(change))
    best_ns = time(best, change.there, change.new_formats)
    best_now = np.maximum(change.flop_ns, change.bytes_ns) / np.maximum(change.old, 1.0)
    change.new = np.maximum(
        change.new, np.where(change.known, best_ns / np.maximum(1.0, best_now), 0.0)
    )


def as_measured(change: Change) -> None:
    """Products, attention and experts go with what the nearest measured sizes take on both devices.

    docs/costs.md has the errors. Attention's backward goes as its forward; what a library has for the new device
    and this one has not is in the tables, so there, and of experts, the range covers the peaks, too.
    """
    if not change.other_device:
        return
    from daydream.costs.device.measured_tables import measured_ratio

    alike = (change.formats == change.new_formats) & is_among(change.formats, ON_MATRIX_UNITS)
    alike &= change.matrix & ~change.resized
    if change.here.tflops != change.there.tflops:
        change.doubt[alike] = OFF_BETWEEN_UNITS
    call = change.work.call
    calls = calls_of(change.graph.recorded)
    which = calls.which[call] if len(calls.which) else call
    sizes = np.array([*(len(each.sizes) for each in calls.amounts), 0])[which]
    alike &= change.known & (call >= 0)
    for ((family, many), operation), dtype in product(OPERATIONS.items(), ON_MATRIX_UNITS):
        mine = change.work.is_of(family) & (sizes == many) & (change.formats == dtype)
        mine = np.flatnonzero(mine & alike)
        if not len(mine):
            continue
        asked = [calls.amounts[place].sizes for place in which[mine].tolist()]
        took = recorded_ns(change.graph)[call[mine]]
        found = measured_ratio(change.here, change.there, operation, dtype, asked, took)
        if found is None:
            continue
        new = change.old[mine] * found[0]
        apart = np.abs(change.new[mine] / new - 1) if many > 3 else 0.0
        change.doubt[mine] = np.maximum(found[1], apart)
        change.new[mine] = new
        change.model[mine] = "measured"


def host_link(change: Change) -> None:
    """Copies between host and device go with the rate of their link."""
    over_link = names_fit(change.names, re.compile(OVER_LINK).search)
    over_link &= change.work.is_of("transfer")
    rates = change.here.pcie / change.there.pcie
    change.new = np.where(
        over_link, change.old * change.bytes_factor * change.narrower * rates, change.new
    )
    change.model[over_link] = "ratio"


def held_up(change: Change) -> None:
    """What counters show to wait for neither arithmetic nor memory takes as long in any element type."""
    graph = change.graph
    kernels = change.selection
    counted = counted_tasks(graph, kernels).all(axis=0) & change.typed
    if counted.any():
        waits = counted & (bound(graph, kernels, device=change.here).kind == "latency")
        change.new[waits] = change.old[waits]
        change.model[waits] = "latency"


def more_never_takes_less(change: Change) -> None:
    """Less work never takes longer, nor does more take less."""
    same = ~change.typed & (not change.other_device)
    less = same & (change.flop_factor <= 1) & (change.bytes_factor <= 1)
    more = same & (change.flop_factor >= 1) & (change.bytes_factor >= 1)
    change.new = np.where(less, np.minimum(change.new, change.old), change.new)
    change.new = np.where(more, np.maximum(change.new, change.old), change.new)


SHARES: tuple[Correction, ...] = (
    harder_to_feed,
    peaks_under_load,
    fixed_cost_there,
    idle_units,
    units_to_fill,
)
TIMES: tuple[Correction, ...] = (blocks_beside, as_measured)
LIMITS: tuple[Correction, ...] = (no_faster_than_peaks, host_link, held_up)
