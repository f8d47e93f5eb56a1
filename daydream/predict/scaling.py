"""Scaling: the trace of one worker on many, by data-parallel training with as much work for each.

The trace of a job that was recorded with several workers already scales too: its own collectives are
resized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import field
from numpy import ndarray

from daydream.costs.contention import MEASURED, Choice, ContentionOption, between
from daydream.costs.network.networks import Network, network_of
from daydream.costs.network.world_size import Message, RecordedCollectives, times
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.tables import COLLECTIVE, covered_steps
from daydream.lazy import NotebookFigure
from daydream.memory.prediction import MemoryChange, MemoryPrediction, unchanged
from daydream.predict.basis import most_of, waited_for_ns
from daydream.predict.memory import answer_of
from daydream.predict.prediction import Prediction, predict
from daydream.predict.replay import OfStep, Replay, Source, as_replay
from daydream.results import Record
from daydream.simulate.critical_path import Bound
from daydream.simulate.ranks import slowdown_of
from daydream.simulate.steady_state import SETTLED
from daydream.transforms.compose import Edit, apply, memory_changes, parse
from daydream.transforms.registry import Options

if TYPE_CHECKING:
    import pandas as pd

    from daydream.graph.graph import Graph

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
NAME = "scaling"  # of what is predicted
ENDLESS = 1e9  # times the bandwidth: what a collective still takes is latency


class Scaled(Record):
    """A step of so many workers, and where the time beyond that of one goes, in ns.

    Attributes:
        workers: how many.
        nodes: how many machines they are on; None where that is not known.
        step_ns: the step.
        throughput: how many times that of one worker.
        efficiency: that of each worker, relative to one alone.
        communication_ns: all transfers of a step, hidden or not.
        overhead_ns: what exchanging gradients costs where nothing has to be transferred (copies, launches).
        exposed_ns: transfers that nothing hides.
        waiting_ns: what slower workers add.
        bound: the largest part of the step (its own on GPU, CPU or copies, or one of the last three).
        bound_share: that part of the step.
        lost_to: the largest of the last three, transfers being bandwidth or latency.
        memory: peak memory of a worker.
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


class Scaling(OfStep, NotebookFigure, eq=False):
    """Steps by number of workers, throughput and efficiency being relative to one.

    Attributes:
        recorded_workers: how many workers there were when the trace was made.
        alone_ns: the step of one worker.
        network: what joins the workers.
        options: how gradients are exchanged, and how workers differ.
        contention: of kernels and transfers, in the last row.
        rows: one for each number of workers.
        notes: what a reader should know before trusting the figures.

    Example::

        scaling = daydream.scaling("examples/mlp_cpu.json.gz", [1, 8, 64], cluster="dgx-a100")
        for row in scaling.rows:
            print(row.workers, row.step_ns, row.throughput, row.efficiency)

    """

    recorded_workers: int
    alone_ns: int
    network: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    contention: Choice | None = None
    rows: list[Scaled] = field(name="workers", default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        last = self.rows[-1]
        return (
            f"<Scaling to {last.workers:,} workers: {last.throughput:,.1f} times the throughput, "
            f"efficiency {last.efficiency:.1%}>"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each number of workers."""
        import pandas as pd

        return pd.DataFrame([row.to_json() for row in self.rows])

    @property
    def waits(self) -> bool:
        """Whether any of the workers waits for slower ones."""
        return self.options["jitter"] or self.options["straggler"] > 1


def scaling(
    source: Replay | Graph | Source,
    workers: Sequence[int] = WORKERS,
    *,
    jitter: float = 0.0,
    straggler: float = 1.0,
    seed: int = 0,
    contention: ContentionOption = MEASURED,
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Scaling:
    """Return the step, throughput and efficiency of each number of workers, predicted from a trace of one.

    `options` are those of the optimization `ddp`: `cluster`, `bandwidth`, `bucket_mb`, ... `jitter` is
    the standard deviation of a worker's step from its mean, as a share of it, drawn from `seed`;
    `straggler` how many times as long one of the workers takes for everything. A trace that has
    collectives already takes `cluster` only. `contention` and `capacity` are as in `whatif`.

    Returns:
        A `Scaling`: a row for each number of workers, times in ns per step.

    Raises:
        GraphError: the trace covers no step, or a number makes no sense.
        NotApplicableError: the sizes of the gradients are unknown.

    """
    if not workers or any(
        isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in workers
    ):
        raise GraphError(f"workers are whole numbers of 1 or more, not {list(workers)}")
    if not 0 <= jitter < 1 or not 1 <= straggler < np.inf:
        raise GraphError(
            f"jitter is a share from 0 to 1 and a straggler takes 1 or more times as long, "
            f"not {jitter:g} and {straggler:g}"
        )
    chosen = sorted({int(number) for number in workers})
    before = as_replay(source)
    recorded = (before.graph.kind[before.graph.alive] == COLLECTIVE).any()
    model = _RecordedJob(before.graph, options) if recorded else _Ddp(options)
    waits = jitter or straggler > 1
    if waits and len({lane.rank for lane in before.graph.lanes}) > 1:
        raise NotApplicableError(
            "the trace holds several ranks, which wait for each other as recorded; "
            "jitter and a straggler are for the trace of one"
        )

    def predicted(count: int) -> Prediction:
        if count == model.recorded:
            return Prediction.unchanged(before)
        return predict(before, model.edit(count), contention=contention)

    alone = predicted(1)
    alone_ns = alone.simulated_ns
    found = Scaling(**before.basis_figures, recorded_workers=model.recorded, alone_ns=alone_ns)
    found.having(replay=before).notes = list(before.notes)
    waited_for = waited_for_ns(alone.after)  # in a step of one worker
    own = {
        what: ns * (alone_ns / max(sum(waited_for.values()), 1)) for what, ns in waited_for.items()
    }
    silent_ns = None  # the step if transfers took no time, the same for any number of workers
    for number, count in enumerate(chosen):
        if progress is not None:
            progress(f"predicting {count:,} workers", number / len(chosen))
        memory = answer_of(before.graph, model.memory(count), capacity).memory
        if count == 1:
            found.rows.append(
                Scaled(1, None, alone_ns, 1.0, 1.0, 0, 0, 0, 0, *most_of(own), None, memory)
            )
            continue
        after = predicted(count)
        graph = after.graph
        network, transfers, messages = model.exchange(after, count)
        if silent_ns is None:
            silent = predict(before, _silent(transfers), start=graph, contention=contention)
            silent_ns = _at_least(alone_ns, silent.simulated_ns)
        step_ns, waiting_ns = _at_least(alone_ns, after.simulated_ns), 0
        if waits:
            slowdown = slowdown_of(
                graph,
                count,
                jitter,
                straggler,
                seed,
                settled_copy=after.after.copy,
                contention=between(after.contention, before.graph, graph),
            )
            waiting_ns = max(round(after.simulated_ns * (slowdown - 1)), 0)
        exposed_ns, whole = max(step_ns - silent_ns, 0), step_ns + waiting_ns
        limit, latency = _limit(network, messages)
        lost = {
            Bound.OVERHEAD: silent_ns - alone_ns,
            Bound.NETWORK_LATENCY: exposed_ns * latency,
            limit: exposed_ns * (1 - latency),
            Bound.SLOWER_WORKERS: waiting_ns,
        }
        bound, share = most_of({**own, **lost})
        covered = covered_steps(graph)
        inside = transfers[covered[graph.step[transfers]]]
        found.rows.append(
            Scaled(
                workers=count,
                nodes=None if network.cluster is None else network.cluster.nodes,
                step_ns=whole,
                throughput=count * alone_ns / whole if whole else float("inf"),
                efficiency=alone_ns / whole if whole else 1.0,
                communication_ns=round(graph.duration_ns[inside].sum() / covered.sum()),
                overhead_ns=silent_ns - alone_ns,
                exposed_ns=exposed_ns,
                waiting_ns=waiting_ns,
                bound=bound,
                bound_share=share,
                lost_to=max(lost, key=lambda what: lost[what]) if any(lost.values()) else None,
                memory=memory,
            )
        )
        found.network = network.describe()
        found.contention = after.contention or found.contention
        found.notes = list(
            dict.fromkeys([*before.notes, network.describe(), *after.notes, *model.notes])
        )
    found.notes.append(
        "Each worker has as much work as the one that was recorded, whatever their number."
    )
    found.options = {**model.options, "jitter": jitter, "straggler": straggler, "seed": seed}
    return found


class _Ddp:
    """The trace of a worker without others: gradients are exchanged as `ddp` does it."""

    recorded = 1
    notes: Sequence[str] = ()

    def __init__(self, options: Options) -> None:
        self.ddp = parse("ddp")
        self.options = options

    def edit(self, workers: int) -> Edit:
        """Return what makes the recorded graph that of one of so many workers."""
        return Edit(
            NAME, lambda graph: apply(self.ddp, graph, {**self.options, "workers": workers})
        )

    def memory(self, workers: int) -> list[MemoryChange]:
        """Return what so many workers make of the memory of one."""
        return memory_changes(self.ddp, {**self.options, "workers": workers}) if workers > 1 else []

    def exchange(self, after: Prediction, workers: int) -> tuple[Network, ndarray, list[Message]]:
        """Return what joins so many workers, their collectives as task ids, and what each transfers."""
        graph = after.graph
        used = after.options
        self.options = {name: value for name, value in used.items() if name != "workers"}
        network = network_of(
            graph,
            workers,
            cluster=used["cluster"],
            bandwidth=used["bandwidth"],
            latency_us=used["latency_us"],
        )
        transfers = graph.select(kind="collective").ids
        sizes = graph.column("bytes", transfers).tolist()
        return network, transfers, [("all_reduce", nbytes) for nbytes in sizes]


class _RecordedJob:
    """The trace of one or more of several workers: what they exchanged is resized."""

    def __init__(self, graph: Graph, options: Options) -> None:
        wrong = [name for name, value in options.items() if name != "cluster" and value is not None]
        if wrong:
            raise GraphError(
                f"{wrong[0]} has no meaning for a trace that has its collectives already"
            )
        self.options = {"cluster": options.get("cluster")}
        self.collectives = RecordedCollectives(graph, self.options["cluster"])
        self.recorded = self.collectives.workers
        self.notes = self.collectives.notes

    def edit(self, workers: int) -> Edit:
        """Return what makes the recorded graph that of one of so many workers."""
        if workers == 1:
            return _silent(self.collectives.all)
        return Edit(NAME, partial(self.collectives.resize, workers=workers))

    def memory(self, workers: int) -> list[MemoryChange]:
        """Return nothing: each worker holds what it holds now, whatever their number."""
        return [MemoryChange(NAME, unchanged if workers > 1 else None)]

    def exchange(
        self,
        after: Prediction,  # noqa: ARG002 - the cluster's own, the same in every copy
        workers: int,
    ) -> tuple[Network, ndarray, list[Message]]:
        """Return what joins so many workers, their collectives as task ids, and what is known of each."""
        network = Network(workers, self.collectives.cluster.holding(workers), None)
        return network, self.collectives.all, self.collectives.messages


def _silent(transfers: ndarray) -> Edit:
    """Return the edit after which transfers take no time."""

    def make(graph: Graph) -> None:
        graph.tasks(transfers).set(duration_ns=0)

    return Edit(NAME, make)


def _at_least(least: int, ns: int) -> int:
    """Return a step that has more to do than another, without differences of steady states (0.1%)."""
    return max(ns, least) if ns >= (1 - 2 * SETTLED) * least else ns


def _limit(network: Network, messages: Sequence[Message]) -> tuple[Bound, float]:
    """Return what bounds transfers, and what part of them would be left if the bandwidth had no end."""
    cluster = network.cluster
    limit = Bound.BANDWIDTH
    if cluster is not None:
        beyond = network.workers > cluster.gpus_per_node
        slower = cluster.inter.bandwidth < cluster.intra.bandwidth
        limit = Bound.INTER_NODE if beyond and slower else Bound.INTRA_NODE
        endless = cluster.scaled(bandwidth=ENDLESS)
        whole, left = (sum(times(each, messages, network.workers)) for each in (cluster, endless))
    else:
        assert network.link is not None  # noqa: S101 - one of the two is there
        unlimited = replace(network, link=network.link.scaled(bandwidth=ENDLESS))
        whole, left = (sum(each.time_ns(*one) for one in messages) for each in (network, unlimited))
    return limit, min(left / whole, 1.0) if whole else 1.0
