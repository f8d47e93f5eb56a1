"""Parts of a device's peaks that a trace's good kernels reach: what others may reach with more work."""

from __future__ import annotations

import numpy as np

from daydream.costs.devices import Device
from daydream.costs.kernels import (
    LATENCY_SHARE,
    floor_ns,
    formats_of,
    peaks,
    recorded_duration_ns,
    work_of_rows,
)
from daydream.graph.graph import Graph
from daydream.graph.query.texts import is_among
from daydream.graph.selection import Selection

LEAST_REACHABLE = 0.6  # of a peak: a kernel below this on both resources is held up by something else
REACHED_BY = 0.75  # "good kernels" are at this quantile of efficiency, by time
UNDER_LOAD = ("float16", "bfloat16", "float8", "int8")  # formats that `Device.sustained` speaks of


def good_share(share: np.ndarray, duration_ns: np.ndarray, where: np.ndarray, floor: float) -> float | None:
    """Return the share of a peak that the good ones of some kernels reach, None if all are short."""
    long = where & (share > 0) & (duration_ns > 3 * LATENCY_SHARE * floor)
    if not long.any():
        return None
    order = np.argsort(share[long])
    weight = np.cumsum(duration_ns[long][order])
    return float(share[long][order][np.searchsorted(weight, REACHED_BY * weight[-1])])


def reachable(share: np.ndarray, duration_ns: np.ndarray, where: np.ndarray, floor: float) -> float:
    """Return what good kernels of a sort reach, but at least what kernels reach that nothing holds up."""
    found = good_share(share, duration_ns, where, floor)
    return float(np.clip(found or LEAST_REACHABLE, LEAST_REACHABLE, 1.0))


def reachable_when_full(
    graph: Graph, selection: Selection, matrix: np.ndarray, full: np.ndarray, device: Device
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of peak arithmetic and of bandwidth that each kernel may reach on a full device.

    What good kernels of its family reach where the recorded grid was `full`, else good kernels that the
    same resource binds; not more than is known to hold under load. As recorded: what edits
    made of a kernel's time or work is no evidence.
    """
    rows = graph.columns["row"][selection.ids]
    count = len(rows)
    if graph.trace is None:
        return np.full(count, LEAST_REACHABLE), np.full(count, LEAST_REACHABLE)
    work = work_of_rows(graph.trace, rows)
    codes = np.where(rows >= 0, graph.trace["dtype"][np.maximum(rows, 0)], -1)
    dtypes = np.array([*graph.trace.text("dtype"), None], dtype=object)[codes]
    formats = formats_of(dtypes, selection.name, matrix, device)
    duration, floor = recorded_duration_ns(selection).astype(np.float64), floor_ns(graph)
    body = np.maximum(duration - np.minimum(floor, duration), 1e-3)
    flop_ns = np.nan_to_num(np.where(work.flop > 0, work.flop / peaks(formats, device), 0.0))
    bytes_ns = np.where(work.nbytes > 0, work.nbytes / device.bandwidth, 0.0)
    share, by_flop = np.maximum(flop_ns, bytes_ns) / body, flop_ns >= bytes_ns

    arithmetic, traffic = device.sustained or (1.0, 1.0)
    most = np.where(is_among(formats, UNDER_LOAD), arithmetic, 1.0)
    families = work.family.astype(str)
    found = []
    for bound, limit in ((by_flop, most), (~by_flop, np.full(count, traffic))):
        reached = np.full(count, reachable(share, duration, bound, floor))
        for family in np.unique(families).tolist():
            best = good_share(share, duration, bound & full & (families == family), floor)
            if best is not None:
                reached[families == family] = best
        found.append(np.minimum(reached, limit))
    return found[0], found[1]
