"""Collectives and workers: how many a trace has, its collectives for another number, and what they took.

An optimization that must know asks `workers_of`; what the recorded collectives took to transfer is what a cluster
is fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from daydream.collect.derive.collectives import ENDS_AGREE_NS, host_collectives, match_collectives
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import (
    COLLECTIVES,
    PROTOCOLS,
    RINGS,
    Cluster,
    Link,
    bytes_of_message,
)
from daydream.costs.network.networks import machine_of
from daydream.errors import DaydreamError, GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.text import counted
from daydream.trace.trace import Trace

LEAST_BYTES = 1 << 20  # bandwidth decides what longer messages take
TELLING = 8  # sizes a factor apart that tells latency from bandwidth
LEAST_SHARE = 0.1  # of a time is its transfer, however short
SIMPLE = PROTOCOLS[0]
Message = tuple[str, int]  # operation, and bytes as `Cluster.time_ns` wants them


class RecordedCollectives:
    """The collectives of all workers in a trace that one or more of them recorded.

    With another number of workers each takes longer or shorter by the difference that the cluster makes
    between the two numbers, fitted to the trace. What was recorded beyond that (waiting, kernels
    beside it) stays. A collective moves as many bytes as before, by `bytes_of_message` of the
    recorded number; those of smaller groups and of unknown operation or size stay as they are.

    Raises `NotApplicableError` if the trace does not tell how many workers there were or what they exchanged.
    """

    def __init__(self, graph: Graph, cluster: str | None) -> None:
        sizes = group_sizes(graph.recorded)
        self.workers = sizes.get(None, 0)
        if self.workers < 2 or not len(graph.recorded):
            raise NotApplicableError(
                "the trace has collectives but does not say of how many workers; record it with the "
                "distributed information of the profiler"
            )
        tasks = graph.select(kind="collective")
        tasks = graph.tasks(tasks.ids[graph.row[tasks.ids] >= 0])
        size = np.array(
            [sizes.get(group, self.workers) for group in tasks.group.tolist()], np.int64
        )
        tasks = graph.tasks(tasks.ids[size == self.workers])
        known = np.isin(tasks.collective.astype(str), COLLECTIVES) & (tasks.bytes > 0)
        self.all = tasks.ids
        self.ids = tasks.ids[known]
        if not len(self.ids):
            raise NotApplicableError(
                "the trace has neither the operation nor the bytes of its collectives"
            )
        self.cluster = fitted_to_trace(find_cluster(cluster or machine_of(graph)), graph.recorded)
        self.messages = [
            (collective, bytes_of_message(collective, nbytes, self.workers))
            for collective, nbytes in zip(
                tasks.collective[known].tolist(), tasks.bytes[known].tolist(), strict=True
            )
        ]
        self.notes = [
            (
                f"{counted(self.workers, 'worker')} were recorded; with other numbers each collective is "
                "scaled by the cluster's model, fitted to the trace."
            )
        ]
        others = len(
            graph.select(kind="collective").where(lambda rows: rows.duration_ns > 0)
        ) - len(self.ids)
        if others > 0:
            self.notes.append(
                f"{counted(others, 'collective')} of other groups or of unknown size stay as recorded."
            )

    def resize(self, graph: Graph, workers: int) -> None:
        """Change a copy of the graph to another number of workers."""
        cluster = self.cluster.holding(max(workers, self.workers))
        before = self._times(cluster, self.workers)
        tasks = graph.tasks(self.ids)
        tasks.set(
            duration_ns=np.maximum(tasks.duration_ns + self._times(cluster, workers) - before, 0)
        )

    def _times(self, cluster: Cluster, workers: int) -> np.ndarray:
        return np.array(times(cluster, self.messages, workers), np.int64)


def times(cluster: Cluster, messages: Sequence[Message], workers: int) -> list[int]:
    """Return what each message takes among so many workers, in ns."""
    known = {message: cluster.time_ns(*message, workers) for message in set(messages)}
    return [known[message] for message in messages]


def workers_of(graph: Graph, workers: int | None) -> int:
    """Return the number of workers that was given, else that of the recorded job.

    Raises:
        NotApplicableError: neither is known, or there is only one.
        GraphError: they contradict each other.
    """
    if workers is not None and workers < 1:
        raise GraphError(f"workers must be 1 or more, not {workers}")
    found = workers
    collectives = graph.select(kind="collective")
    if (collectives.row >= 0).any():
        size = graph.recorded.metadata.get("world_size")
        recorded = size if isinstance(size, int) and size > 1 else None
        if recorded is not None and workers not in {None, recorded}:
            raise GraphError(
                f"workers is {workers}, but the trace is of a job of {recorded}; leave it out"
            )
        found = recorded if found is None else found
    if found is None:
        raise NotApplicableError(
            "how many workers the collectives have is not known; give --workers"
        )
    if found == 1:
        raise NotApplicableError("one worker has nothing to exchange")
    return found


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
            "name a cluster"
        )
    return calibrate(cluster, measured, "this trace")


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


@dataclass(frozen=True)
class Measurement:
    """One measured collective: bytes as in `collectives.py`, members, transfer in ns."""

    collective: str
    nbytes: int
    world_size: int
    time_ns: float


def calibrate(cluster: Cluster, measurements: Sequence[Measurement], origin: str) -> Cluster:
    """Return a cluster whose figures are fitted to measurements; `origin` says whose these are.

    Those of groups that fit in a node give `intra`, larger ones `inter`; what was not measured stays
    as described. Raises `DaydreamError` if nothing can be learned from them.
    """
    useful = [
        one for one in measurements if one.world_size > 1 and one.time_ns > 0 and one.nbytes > 0
    ]
    inside = [one for one in useful if one.world_size <= cluster.gpus_per_node]
    across = [one for one in useful if one.world_size > cluster.gpus_per_node]
    fitted = cluster
    if inside:
        fitted = replace(fitted, intra=_fit(inside, cluster))
    if across:
        fitted = replace(fitted, inter=_fit(across, fitted))
    if fitted is cluster:
        raise DaydreamError(
            f"{origin} holds no collective of two or more members with a known size; "
            "a link cannot be fitted to it"
        )
    groups = ", ".join(str(size) for size in sorted({one.world_size for one in useful}))
    kept = "" if across or cluster.nodes == 1 else f"; beyond a node {cluster.source}"
    return replace(
        fitted,
        source=f"fitted to {counted(len(useful), 'measurement')} of {groups} GPUs in {origin}{kept}",
    )


def _fit(measurements: list[Measurement], cluster: Cluster) -> Link:
    """Return the slowest link that no time contradicts, each counted by its relative error.

    The least time of each size counts, of sizes that bandwidth decides where there are any. Sizes that
    hardly differ cannot tell latency from bandwidth: the latency is then the described one.
    """
    best: dict[tuple[str, int, int], float] = {}
    for one in measurements:
        key = (one.collective, one.nbytes, one.world_size)
        best[key] = min(one.time_ns, best.get(key, one.time_ns))
    long = {key: time for key, time in best.items() if key[1] >= LEAST_BYTES} or best
    terms = np.array([_terms(*key, cluster) for key in long])
    times = np.array(list(long.values()))
    within = next(iter(long))[2] <= cluster.gpus_per_node
    given = (cluster.intra if within else cluster.inter).latency_ns
    target = np.maximum(times - SIMPLE.base_ns - terms[:, 2], LEAST_SHARE * times)
    if np.ptp(np.log(terms[:, 1])) >= np.log(TELLING):
        latency, slope = _highest_below(terms[:, :2] / target[:, None])
        if latency >= 0 and slope > 0:
            return Link(1 / slope, latency)
    left = np.maximum(target - given * terms[:, 0], LEAST_SHARE * target)
    return Link(1 / float((left / terms[:, 1]).min()), given)


def _highest_below(rows: np.ndarray) -> tuple[float, float]:
    """Return x >= 0 with rows @ x <= 1 and the largest sum of rows @ x: a vertex of the bounds."""
    bounds = np.concatenate([rows, np.eye(2)])
    sides = np.concatenate([np.ones(len(rows)), np.zeros(2)])
    one, other = np.triu_indices(len(bounds), 1)
    pairs, right = (
        np.stack([bounds[one], bounds[other]], axis=1),
        np.stack([sides[one], sides[other]], axis=1),
    )
    meet = np.abs(np.linalg.det(pairs)) > 0
    found = np.linalg.solve(pairs[meet], right[meet][:, :, None])[:, :, 0]
    allowed = (found >= -1e-12).all(axis=1) & (rows @ found.T <= 1 + 1e-9).all(axis=0)
    latency, slope = max(
        np.maximum(found[allowed], 0).tolist(), key=lambda x: float((rows @ x).sum())
    )
    return latency, slope


def _terms(
    collective: str, nbytes: int, members: int, cluster: Cluster
) -> tuple[float, float, float]:
    """Return what multiplies the latency and the time for a byte in a formula, and what else it takes."""
    nodes = ceil(members / cluster.gpus_per_node)
    if collective in RINGS:
        rounds = RINGS[collective]
        moved = (rounds * (members - 1) + SIMPLE.tail) * nbytes / members
        if nodes == 1:
            return rounds * (members - 1) + 1, moved, 0.0
        return (
            rounds * (nodes - 1),
            moved,
            (rounds * (members - nodes) + 1) * cluster.intra.latency_ns,
        )
    if collective == "all_to_all":
        if nodes == 1:
            return 1, (members - 1) / members * nbytes, 0.0
        return 1, (nodes - 1) / nodes * (members / nodes) * nbytes, 0.0
    return max((nodes if nodes > 1 else members) - 1, 1), float(nbytes), 0.0
