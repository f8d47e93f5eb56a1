"""Recorded collectives as those of another number of workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import COLLECTIVES, Cluster
from daydream.costs.network.collectives import bytes_of_message
from daydream.costs.network.networks import machine_of
from daydream.costs.network.trace_collectives import fitted_to_trace, group_sizes
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.text import counted

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
