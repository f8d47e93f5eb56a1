"""How many thread blocks a GPU runs at once, and what a larger grid saves because of it.

A multiprocessor holds several blocks. While all of a grid's blocks run at once, more of them take no
longer, as long as neither memory nor arithmetic is what they wait for: threads that wait for
memory leave the unit to others ("CUDA C++ Best Practices Guide", NVIDIA, section Occupancy).
"""

from __future__ import annotations

import numpy as np

from daydream.costs.devices import Device, device_properties
from daydream.costs.kernels import Work, block_threads, filled, grid_blocks, units_of
from daydream.costs.workload.tiles import output_tiles, tile_elements
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.trace.schema import UNKNOWN

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
        self, graph: Graph, selection: Selection, task_work: Work, matrix: np.ndarray, source: Device
    ) -> None:
        names = selection.name
        self.units = units_of(graph, source)
        self.matrix = matrix
        recorded, threads = grid_blocks(graph, selection), block_threads(graph, selection)
        self.by_bytes = task_work.flop <= 0  # copies have no arithmetic that could tell how they grow
        # The grid of a persistent kernel does not tell its work.
        tiles = output_tiles(graph, names, task_work.call)
        blocks = np.where((recorded > 0) & matrix, np.maximum(recorded, tiles), recorded)
        recorded_blocks = blocks
        if graph.resized:
            from daydream.costs.resize.prior_resizes import grown_by

            flop, nbytes, results = grown_by(graph, selection)
            blocks = blocks * self.growth(flop, nbytes, results)
        self.blocks = np.where(recorded > 0, blocks, UNKNOWN)
        self.resident = self._resident(graph, names, task_work, recorded, threads)
        # With as many blocks as the device holds at once, or more, when the trace was recorded.
        self.full = recorded_blocks >= self.units * self.resident

    def work(self, flop: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """Return by how much each kernel's work grows, of products that is their arithmetic."""
        return np.where(self.by_bytes, nbytes, np.where(self.matrix, flop, np.maximum(flop, nbytes)))

    def growth(self, flop: np.ndarray, nbytes: np.ndarray, results: np.ndarray) -> np.ndarray:
        """Return by how much the blocks grow: as the results of products where known, else as the work."""
        return np.where(np.isnan(results), self.work(flop, nbytes), results)

    def filled(self, factor: np.ndarray | float, *, resident: bool = False) -> np.ndarray:
        """Return how much of the device so many times the blocks fill; 1 where the grid is unknown.

        Of the blocks that it works on at its best: one a unit, or all that it holds (`resident`).
        """
        places = self.units * (self.resident if resident else 1)
        return filled(self.blocks * factor, places, in_waves=self.matrix)

    def busy(self, factor: np.ndarray | float) -> np.ndarray:
        """Return on how many of the units so many times the blocks run, 1 for all."""
        return filled(self.blocks * factor, self.units, in_waves=np.array(False))

    def busy_elsewhere(self, units: int) -> np.ndarray:
        """Return on how many of another GPU's units the blocks run, 1 for all."""
        return filled(self.blocks, units, in_waves=np.array(False))

    def _resident(
        self, graph: Graph, names: np.ndarray, task_work: Work, blocks: np.ndarray, threads: np.ndarray
    ) -> np.ndarray:
        """Return how many blocks a unit holds; 1 where nothing says that more work means more of them."""
        properties = device_properties(graph)
        most = properties.get("threads_per_multiprocessor") or RESIDENT_THREADS
        registers = properties.get("registers_per_multiprocessor") or REGISTERS
        by_threads = np.clip(most // np.maximum(threads, 1), 1, RESIDENT_BLOCKS)
        tile = tile_elements(graph, names, task_work.call, blocks)
        by_registers = np.maximum(registers // np.maximum(REGISTERS_AN_ACCUMULATOR * tile, 1), 1)
        of_products = np.where(tile > 0, np.minimum(by_threads, by_registers), 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = task_work.nbytes / (self.blocks * threads)  # bytes a thread
        of_others = np.where((task_work.nbytes > 0) & (each <= BYTES_A_THREAD), by_threads, 1)
        found = np.where(self.matrix, of_products, of_others)
        return np.where((blocks > 0) & (threads > 0), found, 1)
