"""Parts of a device's peaks that a trace's good kernels reach: what others may reach with more work.

How many thread blocks a GPU runs at once, and what a larger grid saves because of it.

A multiprocessor holds several blocks. While all of a grid's blocks run at once, more of them take no
longer, as long as neither memory nor arithmetic is what they wait for: threads that wait for
memory leave the unit to others ("CUDA C++ Best Practices Guide", NVIDIA, section Occupancy).

The roofline: kernels' times after a change of element type, device or work.

A kernel's time above the fixed cost of any kernel is
`max(FLOP / (peak x ec), bytes / (bandwidth x em))`. The efficiency of the resource that
binds now is the kernel's own. That of the other one, where the change makes it bind, is
what good kernels of this trace reach on it. Where the work is unknown, the time goes
with peak rates (matrix kernels) or with bytes and bandwidth (all others).
"""

from __future__ import annotations

import re

import numpy as np

from daydream.costs.devices import Device, device_of, device_properties, under_load
from daydream.costs.kernel_names import OVER_LINK, names_fit
from daydream.costs.kernels import (
    LATENCY_SHARE,
    TF32_KERNEL,
    Work,
    block_threads,
    filled,
    floor_ns,
    formats_of,
    grid_blocks,
    is_matrix,
    peaks,
    units_of,
    work,
)
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


def reachable(share: np.ndarray, duration_ns: np.ndarray, where: np.ndarray, floor: float) -> float:
    """Return the part of a peak that good kernels of a sort reach, at least what nothing holds up reaches."""
    long = where & (share > 0) & (duration_ns > 3 * LATENCY_SHARE * floor)
    if not long.any():
        return LEAST_REACHABLE
    order = np.argsort(share[long])
    weight = np.cumsum(duration_ns[long][order])
    found = share[long][order][np.searchsorted(weight, REACHED_BY * weight[-1])]
    return float(np.clip(found, LEAST_REACHABLE, 1.0))


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


class Grids:
    """The blocks of some kernels as they are now, and how many the device holds. An entry a kernel."""

    def __init__(
        self,
        graph: Graph,
        selection: Selection,
        task_work: Work,
        matrix: np.ndarray,
        source: Device,
    ) -> None:
        names = selection.name
        self.units = units_of(graph, source)
        self.matrix = matrix
        recorded, threads = grid_blocks(graph, selection), block_threads(graph, selection)
        self.by_bytes = (
            task_work.flop <= 0
        )  # copies have no arithmetic that could tell how they grow
        # The grid of a persistent kernel does not tell its work.
        from daydream.costs.resize.new_shapes import output_tiles

        tiles = output_tiles(graph, names, task_work.call)
        blocks = np.where((recorded > 0) & matrix, np.maximum(recorded, tiles), recorded)
        if graph.resized:
            from daydream.costs.resize.growth import grown_by

            flop, nbytes, results = grown_by(graph, selection)
            blocks = blocks * self.growth(flop, nbytes, results)
        self.blocks = np.where(recorded > 0, blocks, UNKNOWN)
        self.resident = self._resident(graph, names, task_work, recorded, threads)

    def work(self, flop: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """Return by how much each kernel's work grows, of products that is their arithmetic."""
        return np.where(
            self.by_bytes, nbytes, np.where(self.matrix, flop, np.maximum(flop, nbytes))
        )

    def growth(self, flop: np.ndarray, nbytes: np.ndarray, results: np.ndarray) -> np.ndarray:
        """Return by how much the blocks grow: as the results of products where known, else as the work."""
        return np.where(np.isnan(results), self.work(flop, nbytes), results)

    def filled(self, factor: np.ndarray | float, *, resident: bool = False) -> np.ndarray:
        """Return how much of the device so many times the blocks fill; 1 where the grid is unknown.

        Of the blocks that it works on at its best: one a unit, or all that it holds (`resident`).
        """
        places = self.units * (self.resident if resident else 1)
        return filled(self.blocks * factor, places, in_waves=self.matrix)

    def busy(self, factor: np.ndarray | float, *, units: int | None = None) -> np.ndarray:
        """Return on how many of the units (of another GPU) so many times the blocks run, 1 for all."""
        return filled(self.blocks * factor, units or self.units, in_waves=np.array(False))

    def _resident(
        self,
        graph: Graph,
        names: np.ndarray,
        task_work: Work,
        blocks: np.ndarray,
        threads: np.ndarray,
    ) -> np.ndarray:
        """Return how many blocks a unit holds; 1 where nothing says that more work means more of them."""
        properties = device_properties(graph)
        most = properties.get("threads_per_multiprocessor") or RESIDENT_THREADS
        registers = properties.get("registers_per_multiprocessor") or REGISTERS
        by_threads = np.clip(most // np.maximum(threads, 1), 1, RESIDENT_BLOCKS)
        from daydream.costs.resize.new_shapes import tile_elements

        tile = tile_elements(graph, names, task_work.call, blocks)
        by_registers = np.maximum(registers // np.maximum(REGISTERS_AN_ACCUMULATOR * tile, 1), 1)
        of_products = np.where(tile > 0, np.minimum(by_threads, by_registers), 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = task_work.nbytes / (self.blocks * threads)  # bytes a thread
        of_others = np.where((task_work.nbytes > 0) & (each <= BYTES_A_THREAD), by_threads, 1)
        found = np.where(self.matrix, of_products, of_others)
        return np.where((blocks > 0) & (threads > 0), found, 1)


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
KEPT_ON_MATRIX_UNITS, AS_EASY_TO_FEED = 0.75, 2.2
ABOVE_PEAK = 1.1  # of vector units: a product this fast does not run there


def is_tf32_kernel(names: np.ndarray | Selection) -> np.ndarray:
    """Mask of the names, or of the tasks with names, of kernels that multiply in TF32."""
    return names_fit(names, TF32_KERNEL.search)


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
    named = is_tf32_kernel(tasks) | names_fit(tasks, NVJET.search)
    device = device_or_none(graph)
    if device is None or "tf32" not in device.tflops or "float32_matrix" in device.tflops:
        return wide & named
    amounts = work(graph, tasks)
    rate = amounts.flop / np.maximum(tasks.duration_ns, 1)
    fast = amounts.is_of("matmul") & (rate > ABOVE_PEAK * device.peak("float32"))
    return wide & (named | fast)


def device_or_none(graph: Graph) -> Device | None:
    """Return the device of the graph's kernels, None if its peaks are unknown."""
    try:
        return device_of(graph)
    except NotApplicableError:
        return None


class Change:
    """Kernels, what changes for them, and what is known of them. All arrays have an entry a kernel."""

    def __init__(
        self,
        graph: Graph,
        selection: Selection,
        *,
        dtype: str | None,
        target: Device | None,
        flop_factor: float | np.ndarray,
        bytes_factor: float | np.ndarray,
        grid_factor: float | np.ndarray = np.nan,
        assumed: str | None = None,
    ) -> None:
        self.graph, self.selection, self.dtype = graph, selection, dtype
        self.names, self.dtypes = selection.name, selection.dtype
        self.old = selection.duration_ns.astype(np.float64)
        self.work = work(graph, selection)
        self.source = device_or_none(graph)
        self.matrix = is_matrix(graph, selection)
        if assumed is not None:
            unknown = self.matrix & (self.dtypes == None)  # noqa: E711 - a column of texts and None
            self.dtypes = np.where(unknown, assumed, self.dtypes)
        self.tf32 = runs_in_tf32(graph, selection)
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
        self.flop_factor = np.broadcast_to(np.asarray(flop_factor, np.float64), len(self.old))
        self.bytes_factor = np.asarray(bytes_factor, np.float64) * self.narrower
        self.grid_factor = np.broadcast_to(np.asarray(grid_factor, np.float64), len(self.old))
        self.affected = (
            self.typed | (self.flop_factor != 1) | (self.bytes_factor != 1) | self.other_device
        )
        self.floor = np.minimum(floor_ns(graph), self.old)
        self.body = self.old - self.floor
        # The work of these may have grown, and nothing else changed.
        grown = (self.flop_factor >= 1) & (self.bytes_factor >= 1) & ~self.typed
        self.more = grown & (not self.other_device)

    def predict(self) -> tuple[np.ndarray, np.ndarray]:
        """Return new durations, and the model behind each: roofline, ratio, paper or unchanged."""
        if self.source is None or self.target is None:
            new, used = self._by_constants()
        else:
            new, used = self._by_peaks(self.source, self.target)
        used[~self.affected] = "unchanged"
        less = (
            (self.flop_factor <= 1)
            & (self.bytes_factor <= 1)
            & ~self.typed
            & (not self.other_device)
        )
        new = np.where(less, np.minimum(new, self.old), new)  # less work never takes longer
        new = np.where(self.more, np.maximum(new, self.old), new)  # nor does more take less
        return np.where(self.affected, new, self.old), used

    def _by_peaks(self, source: Device, target: Device) -> tuple[np.ndarray, np.ndarray]:
        formats = formats_of(self.dtypes, self.names, self.matrix, source)
        if "tf32" in source.tflops:
            formats[self.tf32 & self.matrix] = "tf32"
        new_formats = self._new_formats(target)
        rate, new_rate = peaks(formats, source), peaks(new_formats, target)
        held = under_load(source, target)
        new_rate = new_rate * np.where(is_among(new_formats, UNDER_LOAD), held.of_peak, 1.0)
        slower = np.nan_to_num(rate / new_rate, nan=1.0)
        streaming = self.bytes_factor * source.bandwidth / (target.bandwidth * held.of_bandwidth)

        # What arithmetic and traffic take at the peaks, and the part of each that a kernel reaches: of the one
        # that binds now its own.
        flop_ns = np.nan_to_num(np.where(self.work.flop > 0, self.work.flop / rate, 0.0))
        bytes_ns = np.where(self.work.nbytes > 0, self.work.nbytes / source.bandwidth, 0.0)
        new_flop_ns, new_bytes_ns = flop_ns * self.flop_factor * slower, bytes_ns * streaming
        now, by_flop = np.maximum(flop_ns, bytes_ns), flop_ns >= bytes_ns
        body = np.maximum(self.body, 1e-3)  # a kernel at the floor has no body
        own, floor = now / body, floor_ns(self.graph)
        arithmetic, traffic = (
            reachable(own, self.old, where, floor) for where in (by_flop, ~by_flop)
        )
        compute = np.where(by_flop, own, np.maximum(flop_ns / body, arithmetic))
        memory = np.where(by_flop, np.maximum(bytes_ns / body, traffic), own)
        steps_up = is_among(formats, IN_FULL) & is_among(new_formats, ON_MATRIX_UNITS)
        kept = np.where(steps_up & (slower * AS_EASY_TO_FEED < 1), KEPT_ON_MATRIX_UNITS, 1.0)
        # Algorithms that need fewer FLOP (Winograd) stay behind on the vector units.
        compute = np.where(steps_up, np.minimum(compute, 1.0) * kept, compute)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.fmax(
                np.where(new_flop_ns > 0, new_flop_ns / compute, 0.0),
                np.where(new_bytes_ns > 0, new_bytes_ns / memory, 0.0),
            )
        at_peak = np.maximum(new_flop_ns, new_bytes_ns)
        at_peak /= np.maximum(1.0, now / np.maximum(self.old, 1.0))

        known, room, new_floor = now > 0, np.array(1.0), self.floor
        resized = (self.flop_factor != 1) | (self.bytes_factor != self.narrower)
        if self.other_device:
            room = self._idle_units(source, target)
            if source.floor_ns is not None and target.floor_ns is not None:
                new_floor = self.floor * (target.floor_ns / max(floor, 1.0))
        elif resized.any():  # a small grid grows by less than its work: new blocks find idle units
            grids = Grids(self.graph, self.selection, self.work, self.matrix, source)
            blocks = grids.growth(
                self.flop_factor, self.bytes_factor / self.narrower, self.grid_factor
            )
            room = grids.filled(1.0) / grids.filled(blocks)
        terms = terms * room
        ratio = np.where(self.matrix, self.flop_factor * slower / kept, streaming) * room
        if resized.any() and not self.other_device:
            most = np.where(is_among(formats, UNDER_LOAD), source.sustained_peak or 1.0, 1.0)
            limit = (
                np.minimum(arithmetic, most),
                np.minimum(traffic, source.sustained_bandwidth or 1.0),
            )
            now_and_then = (flop_ns, bytes_ns), (new_flop_ns, new_bytes_ns)
            beside = self._beside(grids, blocks, limit, *now_and_then)
            terms = np.where(known & self.more & (grids.resident > 1), beside, terms)
        new = np.where(known, np.maximum(new_floor + terms, at_peak), new_floor + self.body * ratio)
        over_link: np.ndarray = names_fit(self.names, re.compile(OVER_LINK).search)
        over_link &= self.work.family == "transfer"
        new = np.where(over_link, self.old * self.bytes_factor * source.pcie / target.pcie, new)
        return new, np.where(known & ~over_link, "roofline", "ratio").astype(object)

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

    def _idle_units(self, source: Device, target: Device) -> np.ndarray:
        """Return what kernels take because they leave another part of the units idle there.

        A grid of fewer blocks than units has the rates of the units that it runs on: a GPU of fewer
        and stronger ones serves it better than its peaks say. Kernels bring the same blocks, attention too:
        one for some queries of a head. For products and convolutions libraries choose tiles that fill
        the other device as well, and a kernel of so many blocks for every unit was made for the device.
        """
        grids = Grids(self.graph, self.selection, self.work, self.matrix, source)
        part = grids.busy(1.0) / grids.busy(1.0, units=target.units)
        keeps = (~self.matrix | (self.work.family == "attention")) & (
            grids.blocks % grids.units != 0
        )
        return np.where(keeps, part, 1.0)

    def _beside(
        self,
        grids: Grids,
        blocks: np.ndarray,
        limit: tuple[np.ndarray | float, ...],
        now: tuple[np.ndarray, np.ndarray],
        after: tuple[np.ndarray, np.ndarray],
    ) -> np.ndarray:
        """Return what kernels of more work take above the floor, ns, where units hold several blocks.

        New blocks run beside those that are there, each as long as now, while the device has places.
        So they take no longer, until a resource gives what it does to good kernels, or to this one
        already. `now` and `after` are arithmetic and traffic at peak, ns.
        """
        waves = grids.filled(1.0, resident=True) / grids.filled(blocks, resident=True)
        found = self.body * grids.work(self.flop_factor, self.bytes_factor) * waves
        # Arithmetic is each unit's own, and the last wave leaves some idle; memory is there for all.
        places = (
            (grids.filled(1.0), grids.filled(blocks)),
            (grids.busy(1.0), grids.busy(blocks)),
        )
        for share, old_ns, new_ns, (used, then) in zip(limit, now, after, places, strict=True):
            already = old_ns / (np.maximum(self.body, 1e-3) * used)
            found = np.maximum(found, new_ns / np.maximum(share, already) / then)
        return found

    def _by_constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Return durations where the GPU is unknown: the paper's constants, and factors above the floor."""
        factor = np.where(self.matrix, self.flop_factor, self.bytes_factor / self.narrower)
        new = self.floor + self.body * factor
        half = (
            self.typed & (self.dtypes == "float32") & is_among(self.new_dtypes, HALF) & ~self.tf32
        )
        new = np.where(half, new / np.where(self.matrix, *PAPER_SPEEDUPS), new)
        return new, np.where(half, "paper", "ratio").astype(object)
