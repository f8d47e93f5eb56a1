"""Work that a GPU counted: instruction counters of a profiler, where a trace has them.

They stand in `trace.metadata["counters"]`: a list of `{"name": kernel, "flop": int or None, "bytes": int or
None}` in launch order; `amounts` has all else that was counted (`counters/quantities.tsv`). An entry with rank
and correlation is of that launch, whatever was cut from the trace since. Else the n-th kernel of a name has
the n-th entry of that name, if there are as many of both. `attach_counters` writes such a list.

The roof of the L2 cache: what counters say passes it, against what passed it at best.

Vendors give no bandwidth of L2 that could be cited for all devices, so its roof is the highest rate that a
kernel of the same recording reached. A kernel is held to be bound by it only where it also moves
more through L2 than the device's memory could ever deliver: then it does not wait for latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

_known: WeakKeyDictionary[Trace, tuple[Any, np.ndarray]] = WeakKeyDictionary()


def counted_work(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return FLOP and bytes that were counted for each row, -1 where nothing was."""
    return counted_amounts(trace, "flop"), counted_amounts(trace, "bytes")


def counted_amounts(trace: Trace, key: str) -> np.ndarray:
    """Return `flop` or `bytes` of each row as they were counted, int64, -1 where they were not."""
    entries = trace.metadata.get("counters") or []
    values = [UNKNOWN if entry.get(key) is None else int(entry[key]) for entry in entries]
    return np.array([*values, UNKNOWN], np.int64)[entry_of_rows(trace)]


def counted_quantity(trace: Trace, name: str) -> np.ndarray:
    """Return one of the quantities (`counters/quantities.tsv`) of each row, float64, NaN where not counted."""
    entries = trace.metadata.get("counters") or []
    values = [(entry.get("amounts") or {}).get(name, np.nan) for entry in entries]
    return np.array([*values, np.nan], np.float64)[entry_of_rows(trace)]


def entry_of_rows(trace: Trace) -> np.ndarray:
    """Return the place among `metadata["counters"]` of each row, int64; -1 for none. Worked out once."""
    entries = trace.metadata.get("counters") or []
    kept = _known.get(trace)
    if kept is None or kept[0] is not entries:
        kept = _known[trace] = (entries, _places(trace, entries))
    return kept[1]


def _places(trace: Trace, entries: list[Mapping[str, Any]]) -> np.ndarray:
    found = np.full(len(trace), UNKNOWN, np.int64)
    rows = np.flatnonzero(trace.is_kind("kernel")) if entries else np.zeros(0, np.int64)
    rows = rows[
        np.argsort(trace["correlation"][rows], kind="stable")
    ]  # numbered as they are launched
    launch = {
        (entry.get("rank"), entry["correlation"]): place
        for place, entry in enumerate(entries)
        if entry.get("correlation") is not None
    }
    if launch:
        keys = zip(trace["rank"][rows].tolist(), trace["correlation"][rows].tolist(), strict=True)
        found[rows] = [launch.get(key, UNKNOWN) for key in keys]
        return found
    named: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        named.setdefault(entry["name"], []).append(place)
    code_of = {text: code for code, text in enumerate(trace.text("name"))}
    for name, places in named.items():
        mine = rows[trace["name"][rows] == code_of[name]] if name in code_of else rows[:0]
        if len(mine) == len(places):
            found[mine] = places
    return found


L2 = "l2_bytes"
LEAST_NS = 10_000  # kernels that last shorter show the cost of starting, not a rate
NEAR_ROOF = 0.6  # of the highest rate: Nsight Compute speaks of a bottleneck from here


def counted_l2_bytes(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return the bytes of each kernel to and from L2, float64, shape (kernels,), NaN where not counted."""
    found = np.full(len(kernels), np.nan)
    if graph.recorded.metadata.get("counters") and len(kernels):
        rows = graph.row[kernels.ids]
        found = np.where(
            rows >= 0, counted_quantity(graph.recorded, L2)[np.maximum(rows, 0)], np.nan
        )
    return found


def reached_l2(graph: Graph) -> float | None:
    """Return the highest rate through L2 of this recording's kernels, GB/s; None where none was counted."""
    kernels = Selection(graph, np.flatnonzero((graph.kind == KERNEL) & graph.alive))
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
    return rate >= max(NEAR_ROOF * highest, bandwidth)


def conflict_share(amounts: Mapping[str, float | int], units: int) -> float | None:
    """Return which part of a kernel's cycles bank conflicts take, 0 to 1; None if it was not counted.

    Args:
        amounts: what was counted of a launch, by the names of `counters/quantities.tsv`.
        units: multiprocessors (compute units) of the device. Each has its own shared memory.
    """
    if "shared_conflict_share" in amounts:
        return min(float(amounts["shared_conflict_share"]), 1.0)
    whole = amounts.get("unit_cycles") or amounts.get("cycles", 0) * units
    if "shared_conflict_cycles" not in amounts or whole <= 0:
        return None
    return min(float(amounts["shared_conflict_cycles"] / whole), 1.0)
