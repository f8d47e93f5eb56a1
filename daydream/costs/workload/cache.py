"""The roof of the L2 cache: what counters say passes it, against what passed it at best.

Vendors give no bandwidth of L2 that could be cited for all devices, so its roof is the highest rate that a
kernel of the same recording reached. A kernel is held to be bound by it only where it also moves
more through L2 than the device's memory could ever deliver: then it does not wait for latency.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.workload.counters import counted_quantity
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL

L2 = "l2_bytes"
LEAST_NS = 10_000  # kernels that last shorter show the cost of starting, not a rate
NEAR_ROOF = 0.6  # of the highest rate: Nsight Compute speaks of a bottleneck from here


def counted_l2_bytes(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return the bytes of each kernel to and from L2, float64, shape (kernels,), NaN where not counted."""
    found = np.full(len(kernels), np.nan)
    if graph.trace is not None and graph.trace.metadata.get("counters") and len(kernels):
        rows = graph.columns["row"][kernels.ids]
        found = np.where(rows >= 0, counted_quantity(graph.trace, L2)[np.maximum(rows, 0)], np.nan)
    return found


def reached_l2(graph: Graph) -> float | None:
    """Return the highest rate through L2 of this recording's kernels, GB/s; None where none was counted."""
    kernels = Selection(graph, np.flatnonzero((graph.columns["kind"] == KERNEL) & graph.alive))
    nbytes = counted_l2_bytes(graph, kernels)
    known = np.isfinite(nbytes) & (kernels.duration_ns >= LEAST_NS)
    return float((nbytes[known] / kernels.duration_ns[known]).max()) if known.any() else None


def bound_by_l2(graph: Graph, kernels: Selection, bandwidth: float) -> np.ndarray:
    """Return a mask of the kernels near the roof of L2, and above that of memory (`bandwidth`, GB/s)."""
    nbytes = counted_l2_bytes(graph, kernels)
    highest = reached_l2(graph) if np.isfinite(nbytes).any() else None
    if highest is None:
        return np.zeros(len(kernels), bool)
    rate = np.nan_to_num(nbytes) / np.maximum(kernels.duration_ns, 1)
    found: np.ndarray = rate >= max(NEAR_ROOF * highest, bandwidth)
    return found
