"""Time of a fused chain: what kernels that follow each other take as one."""

from __future__ import annotations

import numpy as np

from daydream.arrays import distinct_rows, run_starts, turns, unique
from daydream.costs.kernels import floor_ns, work
from daydream.costs.workload.operator import itemsize
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection
from daydream.graph.tables import ALL_LANES

LARGEST = 64  # operators of one kernel: `max_fusion_size` of torch's Inductor


def fusible_chains(graph: Graph, fusible: Selection) -> Groups:
    """Return kernels that may become one: next to each other on a stream, of one phase, two at least.

    All other device work of the stream parts them, products and collectives with it, and so do a wait of
    their thread for the device and waits between streams: what comes behind needs the result of what is
    before. A fused kernel holds no more than `LARGEST` of them.

    Args:
        graph: the graph of the trace.
        fusible: kernels that a compiler could fuse with their neighbours.

    Returns:
        `Groups`, a group a chain.
    """
    parted = fusible.stretches(graph.select(on="gpu") - fusible, on_lane=True)
    ids = parted.by_group.ids
    number = np.repeat(np.arange(len(parted)), parted.sizes)
    order = graph.order[ids]
    lane = graph.lane[ids]
    phase = graph.phase[ids]
    begun = run_starts(number) | run_starts(phase)
    for each in unique(lane).tolist():
        points = np.sort(graph.order[parting_calls(graph, each)])
        here = (lane[1:] == each) & (lane[:-1] == each)
        crossed = np.searchsorted(points, order[1:]) != np.searchsorted(points, order[:-1])
        begun[1:] |= here & crossed
    run = np.cumsum(begun)
    first, which = distinct_rows([run, turns(run) // LARGEST])
    chains = Groups(parted.by_group, which, list(range(len(first))))
    return chains.where(chains.sizes > 1)


def parting_calls(graph: Graph, lane: int) -> np.ndarray:
    """Return the calls that part a stream's work: waits of CPU threads for it, and between it and others."""
    syncs = graph.syncs
    waits = graph.waits
    if not graph.lanes[lane].on_device:
        return np.empty(0, np.int64)
    calls = [
        syncs["task"][(syncs["lane"] == lane) | (syncs["lane"] == ALL_LANES)],
        waits["wait"][waits["target"] == lane],
    ]
    found: np.ndarray = unique(np.concatenate(calls))
    return found[graph.alive[found]]


def fused_chain_ns(graph: Graph, chains: Groups) -> np.ndarray:
    """Return the time of each chain of kernels as one kernel, never more than its parts take together.

    What a kernel writes and the next one reads stays in registers. So of the bytes that all
    parts move, twice each intermediate goes, and the time above the fixed cost of a kernel with
    it. A chain with a part of unknown bytes takes as long as its longest part: exact where
    all parts are unary and of one size.

    Args:
        graph: the graph of the trace.
        chains: kernels in program order, a group for each that becomes one.

    Returns:
        ns, shape (chains,), float64.
    """
    parts = chains.by_group
    number = np.repeat(np.arange(len(chains)), chains.sizes)
    nbytes = work(graph, parts).nbytes
    widths = np.array([itemsize(dtype) or 0 for dtype in parts.dtype.tolist()], np.int64)
    read = np.minimum(parts.input_elements * widths, nbytes)
    known = (nbytes > 0) & (read > 0)
    share = bytes_left(number, np.where(known, nbytes, 0), read, len(chains))
    starts = np.append(0, np.cumsum(chains.sizes))[:-1]

    floor = np.minimum(floor_ns(graph), parts.duration_ns)
    body = np.bincount(number, parts.duration_ns - floor, len(chains))
    least = np.maximum.reduceat(floor, starts) if len(starts) else floor
    longest = np.maximum.reduceat(parts.duration_ns, starts) if len(starts) else parts.duration_ns
    whole = np.bincount(number, known, len(chains)) == chains.sizes
    time: np.ndarray = np.where(whole, least + share * body, longest)
    return np.minimum(time, chains.total("duration_ns"))


def bytes_left(
    number: np.ndarray,
    nbytes: np.ndarray,
    read: np.ndarray,
    chains: int,
) -> np.ndarray:
    """Return which part of its bytes each chain moves as one kernel; 1 for one without any.

    Parts stand in program order, `number` says whose each is; `read` are those of their bytes that
    go in. Twice what a part writes and the next one reads is not moved.
    """
    known = (nbytes > 0) & (read > 0)
    written = np.where(known, nbytes - np.minimum(read, nbytes), 0)
    goes_in = np.where(known, np.minimum(read, nbytes), 0)
    kept = np.where(number[1:] == number[:-1], 2 * np.minimum(written[:-1], goes_in[1:]), 0)
    moved = np.bincount(number, nbytes, chains)
    return 1 - np.bincount(number[1:], kept, chains) / np.maximum(moved, 1)
