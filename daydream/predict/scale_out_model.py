"""One trace on any number of workers: the step of each, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daydream.costs.network.networks import Network, network_of
from daydream.costs.network.world_size import Message, RecordedCollectives, times
from daydream.display import plain
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE
from daydream.memory.prediction import MemoryChange, MemoryPrediction, unchanged
from daydream.predict.bottleneck import waited_for_ns
from daydream.predict.contention_option import MEASURED, Choice, Option
from daydream.predict.memory import answer_of
from daydream.predict.prediction import Prediction, predict
from daydream.predict.replay import Replay
from daydream.simulate.causes import Bound
from daydream.simulate.ranks.many_ranks import job
from daydream.simulate.steady import SETTLED
from daydream.transforms.compose import Edit, apply, memory_changes, parse
from daydream.transforms.registry import find

NAME = "scaling"  # of what is predicted
ENDLESS = 1e9  # times the bandwidth: what a collective still takes is latency


@dataclass(frozen=True)
class Scaled:
    """A step of so many workers, and where the time beyond that of one goes, in ns.

    `overhead_ns` is what exchanging gradients costs where nothing has to be transferred (copies into
    buckets, launches), `exposed_ns` the transfers that nothing hides, `waiting_ns` what slower workers
    add. `communication_ns` are all transfers of a step, hidden or not. `bound` is the largest part of
    the step (the worker's own on GPU, CPU or copies, or one of those above), `bound_share` its share;
    `lost_to` the largest of those above, transfers being bandwidth or latency.
    """

    workers: int
    nodes: int | None
    step_ns: int
    throughput: float
    efficiency: float
    communication_ns: int
    overhead_ns: int
    exposed_ns: int
    waiting_ns: int
    bound: Bound
    bound_share: float
    lost_to: Bound | None
    memory: MemoryPrediction | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as `scaling --json` prints it."""
        return {name: plain(value) for name, value in vars(self).items()}


class Model:
    """One trace on any number of workers."""

    def __init__(
        self,
        before: Replay,
        options: dict[str, Any],
        jitter: float,
        straggler: float,
        seed: int,
        contention: Option = MEASURED,
        capacity: int | None = None,
    ) -> None:
        self.before = before
        self.capacity = capacity
        self.contention = contention
        self.chosen: Choice | None = None
        self.jitter, self.straggler, self.seed = jitter, straggler, seed
        self.way = _Recorded(before, options) if _has_collectives(before.graph) else _Ddp(before, options)
        several = len({lane.rank for lane in before.graph.lanes}) > 1
        if several and (jitter or straggler > 1):
            raise NotApplicableError(
                "the trace holds several ranks, which wait for each other as recorded; "
                "jitter and a straggler are for the trace of one"
            )
        alone = self._predicted(self.way.edit(1))
        self.alone_ns = alone.simulated_ns
        self.own = _own_parts(alone)
        self.described = ""
        self.said: list[str] = []
        self._silent_ns: int | None = None

    def row(self, workers: int) -> Scaled:
        """Return what so many workers would do."""
        changes = self.way.memory(workers)
        return replace(self._row(workers), memory=answer_of(self.before.graph, changes, self.capacity).memory)

    def _row(self, workers: int) -> Scaled:
        if workers == 1:
            share = self.own[_most(self.own)] / max(sum(self.own.values()), 1)
            return Scaled(1, None, self.alone_ns, 1.0, 1.0, 0, 0, 0, 0, _most(self.own), share, None)
        after = self._predicted(self.way.edit(workers))
        graph, network = after.graph, self.way.network(after, workers)
        step_ns = self._no_less(after.simulated_ns, self.alone_ns)
        silent_ns = self._no_less(self._silent(graph), self.alone_ns)
        exposed_ns, waiting_ns = max(step_ns - silent_ns, 0), self._waiting(after, workers)
        self.described, self.chosen = network.describe(), after.contention or self.chosen
        said = [network.describe(), *after.notes, *self.way.notes]
        self.said = [note for note in dict.fromkeys(said) if note not in self.before.notes]
        whole = step_ns + waiting_ns
        latency = _latency_share(network, self.way.messages(graph))
        lost = {
            Bound.OVERHEAD: float(silent_ns - self.alone_ns),
            Bound.NETWORK_LATENCY: exposed_ns * latency,
            _bottleneck(network): exposed_ns * (1 - latency),
            Bound.SLOWER_WORKERS: float(waiting_ns),
        }
        own = self.alone_ns / max(sum(self.own.values()), 1)
        parts = {**{what: ns * own for what, ns in self.own.items()}, **lost}
        return Scaled(
            workers=workers,
            nodes=None if network.cluster is None else network.cluster.nodes,
            step_ns=whole,
            throughput=workers * self.alone_ns / whole if whole else float("inf"),
            efficiency=self.alone_ns / whole if whole else 1.0,
            communication_ns=_transfers_ns(graph, self.way.transfers(graph)),
            overhead_ns=silent_ns - self.alone_ns,
            exposed_ns=exposed_ns,
            waiting_ns=waiting_ns,
            bound=_most(parts),
            bound_share=parts[_most(parts)] / max(sum(parts.values()), 1),
            lost_to=_most(lost) if any(lost.values()) else None,
        )

    def _predicted(self, edit: Edit | None, start: Graph | None = None) -> Prediction:
        if edit is None:
            return Prediction.unchanged(self.before)
        return predict(self.before, edit, start=start, contention=self.contention)

    def _no_less(self, ns: int, least: int) -> int:
        """Return a step that has more to do than another, without what is only settling to 0.1 %."""
        return max(ns, least) if ns >= (1 - 2 * SETTLED) * least else ns

    def _silent(self, graph: Graph) -> int:
        """Return the step if transfers took no time, which is the same for any number of workers."""
        if self._silent_ns is None:
            self._silent_ns = self._predicted(_without(self.way.transfers(graph)), graph).simulated_ns
        return self._silent_ns

    def _waiting(self, after: Prediction, workers: int) -> int:
        """Return what a step takes longer because some of the workers do."""
        if not self.jitter and self.straggler == 1:
            return 0
        slow = {0: self.straggler} if self.straggler > 1 else {}
        found = job(
            after.graph, workers, jitter=self.jitter, stragglers=slow, seed=self.seed,
            settled_copy=after.after.copy,
            contention=None if after.contention is None else after.contention.between(
                self.before.graph, after.graph
            ),
        )  # fmt: skip
        return max(round(after.simulated_ns * (found.slowdown - 1)), 0)


class _Ddp:
    """The trace of a worker without others: gradients are exchanged as `ddp` does it."""

    recorded = 1

    def __init__(self, before: Replay, options: dict[str, Any]) -> None:
        self.before = before
        self.ddp = parse(find("ddp"))
        self.given = options
        self.options: dict[str, Any] = dict(options)
        self.notes: list[str] = []

    def edit(self, workers: int) -> Edit | None:
        """Return what makes the recorded graph that of one of so many workers; None where it is that."""
        if workers == self.recorded:
            return None
        return Edit(NAME, lambda graph: apply(self.ddp, graph, {**self.given, "workers": workers}))

    def memory(self, workers: int) -> list[MemoryChange]:
        """Return what so many workers make of the memory of one."""
        if workers == self.recorded:
            return []
        return memory_changes(self.ddp, {**self.given, "workers": workers})

    def network(self, after: Prediction, workers: int) -> Network:
        """Return what joins so many workers."""
        used = after.options
        self.options = {name: value for name, value in used.items() if name != "workers"}
        return network_of(
            after.graph,
            workers,
            cluster=used["cluster"],
            bandwidth=used["bandwidth"],
            latency_us=used["latency_us"],
        )

    def transfers(self, graph: Graph) -> np.ndarray:
        """Return the collectives of all workers, as task ids."""
        return graph.select(kind="collective").ids

    def messages(self, graph: Graph) -> list[Message]:
        """Return operation and bytes of each transfer."""
        sizes = graph.column("bytes", self.transfers(graph)).tolist()
        return [("all_reduce", nbytes) for nbytes in sizes]


class _Recorded:
    """The trace of one or more of several workers: what they exchanged is resized."""

    def __init__(self, before: Replay, options: dict[str, Any]) -> None:
        wrong = [name for name, value in options.items() if name != "cluster" and value is not None]
        if wrong:
            raise GraphError(f"{wrong[0]} has no meaning for a trace that has its collectives already")
        self.before = before
        self.options = {"cluster": options.get("cluster")}
        self.collectives = RecordedCollectives(before.graph, self.options["cluster"])
        self.recorded = self.collectives.workers
        self.notes = self.collectives.notes

    def edit(self, workers: int) -> Edit | None:
        """Return what makes the recorded graph that of one of so many workers; None where it is that."""
        if workers == self.recorded:
            return None
        if workers == 1:
            return _without(self.collectives.all)

        def resize(graph: Graph) -> None:
            self.collectives.resize(graph, workers)

        return Edit(NAME, resize)

    def memory(self, workers: int) -> list[MemoryChange]:
        """Return nothing: each worker holds what it holds now, whatever their number."""
        return [MemoryChange(NAME, unchanged if workers > 1 else None)]

    def network(self, after: Prediction, workers: int) -> Network:  # noqa: ARG002 - the cluster's own
        """Return what joins so many workers."""
        return Network(workers, self.collectives.cluster.holding(workers), None)

    def transfers(self, graph: Graph) -> np.ndarray:  # noqa: ARG002 - the same in every copy
        """Return the collectives of all workers, as task ids."""
        return self.collectives.all

    def messages(self, graph: Graph) -> list[Message]:  # noqa: ARG002 - the same in every copy
        """Return operation and bytes of each transfer that is known."""
        return self.collectives.messages


def _without(transfers: np.ndarray) -> Edit:
    """Return the edit after which transfers take no time."""

    def make(graph: Graph) -> None:
        graph.tasks(transfers).set(duration_ns=0)

    return Edit(NAME, make)


def _has_collectives(graph: Graph) -> bool:
    return bool((graph.columns["kind"][graph.alive] == COLLECTIVE).any())


def _transfers_ns(graph: Graph, transfers: np.ndarray) -> int:
    """Return the time of a worker's collectives in a step, in the mean of the covered ones."""
    covered = [number for number, step in enumerate(graph.steps) if step.get("covered")]
    inside = np.isin(graph.columns["step"][transfers], covered)
    return round(int(graph.columns["duration_ns"][transfers[inside]].sum()) / len(covered))


def _own_parts(after: Prediction) -> dict[Bound, float]:
    """Return what a step of one worker waits for, in ns, by the chain of causes behind it."""
    parts = waited_for_ns(after.after)
    return dict(parts) if parts else {Bound.NOTHING: 0}


def _most(parts: dict[Bound, float]) -> Bound:
    return max(parts, key=lambda what: parts[what])


def _latency_share(network: Network, messages: Sequence[Message]) -> float:
    """Return what part of the transfers would be left if the network's bandwidth had no end."""
    if network.cluster is not None:
        whole = sum(times(network.cluster, messages, network.workers))
        left = sum(times(network.cluster.scaled(bandwidth=ENDLESS), messages, network.workers))
    else:
        assert network.link is not None  # noqa: S101 - one of the two is there
        endless = replace(network, link=network.link.scaled(bandwidth=ENDLESS))
        whole = sum(network.time_ns(*message) for message in messages)
        left = sum(endless.time_ns(*message) for message in messages)
    return min(left / whole, 1.0) if whole else 1.0


def _bottleneck(network: Network) -> Bound:
    if network.cluster is None:
        return Bound.BANDWIDTH
    beyond = network.workers > network.cluster.gpus_per_node
    slower = network.cluster.inter.bandwidth < network.cluster.intra.bandwidth
    return Bound.INTER_NODE if beyond and slower else Bound.INTRA_NODE
