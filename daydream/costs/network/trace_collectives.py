"""What the collectives of a trace took to transfer, for fitting a cluster to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from daydream.collect.derive.collectives import ENDS_AGREE_NS, host_collectives, match_collectives
from daydream.costs.network.clusters import COLLECTIVES, Cluster
from daydream.costs.network.collectives import bytes_of_message
from daydream.costs.network.fitting import Measurement, calibrate
from daydream.errors import DaydreamError
from daydream.trace.trace import Trace


def measured_in(trace: Trace) -> list[Measurement]:
    """Return the transfers in a trace: one for each collective of known operation, bytes and members.

    With several ranks it is the time from the last arrival to the last end, or the least duration where
    the ends do not agree. What a rank recorded alone holds waiting for the others; the shortest of each
    size is nearest to the transfer, and the one that `calibrate` takes. Where members are missing from
    the trace all of these are upper bounds.
    """
    size_of = group_sizes(trace)
    start, end = trace["start_ns"], trace["start_ns"] + trace["duration_ns"]
    matched = match_collectives(trace)
    shared = {int(row): rows for rows in matched.rows for row in rows}
    found = []
    collectives = np.union1d(np.flatnonzero(trace.is_kind("collective")), host_collectives(trace))
    for row in collectives.tolist():
        rows = shared.get(row, np.array([row]))
        collective, nbytes, group = (
            trace.values(name, [row])[0] for name in ("collective", "bytes", "group")
        )
        members = size_of.get(group, size_of.get(None, 0))
        if row != rows[0] or collective not in COLLECTIVES or not nbytes or members < 2:
            continue
        agree = matched.on_host or np.ptp(end[rows]) <= ENDS_AGREE_NS
        time = end[rows].max() - start[rows].max() if agree else (end[rows] - start[rows]).min()
        found.append(
            Measurement(
                collective, bytes_of_message(collective, nbytes, members), members, float(time)
            )
        )
    return found


def fitted_to_trace(cluster: Cluster, trace: Trace) -> Cluster:
    """Return the cluster with the latency and bandwidth that the collectives of a trace show.

    Raises `DaydreamError` if the trace holds none of known size.
    """
    measured = measured_in(trace)
    if not measured:
        raise DaydreamError(
            "this trace holds no collective of known operation, size and members to fit a cluster to; "
            "name a cluster or give an nccl-tests log"
        )
    return calibrate(cluster, measured, "this trace", upper_bounds=True)


def group_sizes(trace: Trace) -> dict[Any, int]:
    """Return the members of each process group by its name, and under None those of the whole job."""
    sizes: dict[Any, int] = {}
    for group in trace.metadata.get("groups", []):
        if group.get("ranks"):
            sizes[group["name"]] = len(group["ranks"])
    world_size = trace.metadata.get("world_size")
    if isinstance(world_size, int):
        sizes[None] = world_size
    return sizes
