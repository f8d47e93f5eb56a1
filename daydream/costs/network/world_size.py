"""Collectives and workers: how many a trace has, its collectives for another number or GPU, and what they took.

An optimization that must know asks `workers_of`; what the recorded collectives took to transfer is what a cluster
is fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daydream.collect.derive.collectives import ENDS_AGREE_NS, host_collectives, match_collectives
from daydream.costs.device.measured_tables import COLLECTIVES as MEASURED
from daydream.costs.device.measured_tables import measured_ratio
from daydream.costs.devices import Device, device_of
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster
from daydream.costs.network.fitting import Measurement, calibrate
from daydream.costs.network.nccl import COLLECTIVES, bytes_of_message
from daydream.costs.network.networks import machine_of
from daydream.errors import DaydreamError, GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.text import counted
from daydream.trace.recorded_steps import shared_already
from daydream.trace.trace import Trace

IN_A_NODE = 8  # GPUs, of the machines on which NCCL was measured
# How far the model's ratio between two machines may be off at 90%: by NCCL's tables of A100, H100, H200, B200 and
# B300, pair by pair, 0.06 to 0.64, in the middle 0.28. Where L40S on PCIe are one side, 2 take what the model says
# within that, 4 and 8 up to 4 and 16 times as long: the way between the CPUs, which the model has not.
MODEL_OFF = 0.5
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
        if "fake_world" in graph.recorded.metadata:
            raise NotApplicableError(str(shared_already(graph.recorded)))
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


def moved_transfers(graph: Graph, transfers: Selection, there: Device) -> np.ndarray:
    """Return how many times as long transfers within a node take among GPUs of another kind.

    As NCCL was measured to on both, else as our model of NCCL says of the machines that both stand in as a rule.
    What leaves a node goes over a network that may stay: nothing is known of it.

    Args:
        graph: the graph of the trace.
        transfers: collectives.
        there: the other GPU.

    Returns:
        ratios, half-widths at 90%, and 1 where it was measured: shape (3, transfers), float64, NaN where unknown.
    """
    found, here = np.full((3, len(transfers)), np.nan), device_of(graph)
    sizes = group_sizes(graph.recorded)
    for group in graph.recorded.metadata.get("groups", []):
        if len({rank // IN_A_NODE for rank in group.get("ranks") or ()}) > 1:
            sizes[group["name"]] = 0
    members = np.array([sizes.get(each, sizes.get(None, 0)) for each in transfers.group])
    usable = (members > 1) & (members <= IN_A_NODE) & (transfers.bytes > 0)
    for name in COLLECTIVES:
        mine = np.flatnonzero(usable & (transfers.collective == name))
        pairs = zip(members[mine].tolist(), transfers.bytes[mine].tolist(), strict=True)
        asked = [(many, bytes_of_message(name, each, many)) for many, each in pairs]
        if not asked:
            continue
        took = transfers.duration_ns[mine]
        halves = np.array(asked) // (1, 2)  # elements in 16 bits
        measured = name in MEASURED and measured_ratio(here, there, name, "bfloat16", halves, took)
        if measured:
            found[:, mine] = *measured, np.ones(len(mine))
        elif here.machine and there.machine and here.machine != there.machine:
            found[:, mine] = _modelled_ratio(here.machine, there.machine, name, asked)
    return found


def _modelled_ratio(here: str, there: str, name: str, asked: list[tuple[int, int]]) -> np.ndarray:
    """Return what `moved_transfers` does of one collective, by the model of two machines."""
    before, after = (
        np.array([find_cluster(machine).time_ns(name, nbytes, many) for many, nbytes in asked])
        for machine in (here, there)
    )
    off = np.full(len(asked), MODEL_OFF)
    if here.startswith("pcie") != there.startswith("pcie"):
        more = (np.array(asked)[:, 0] / 2.0) ** 2  # times as long on PCIe
        off = np.maximum(off, more - 1 if there.startswith("pcie") else 1 - 1 / more)
    return np.array([after / before, off, 0 * off])


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
