"""Parameter gradients in the order they are ready, and the buckets they are reduced in.

The rule of buckets is that of torch's DistributedDataParallel (torch/nn/parallel/distributed.py and
`compute_bucket_assignment_by_size` of its reducer): in the order in which the backward pass
completes gradients, those of one element type fill a bucket until it holds its size or more; what
is left is the last bucket. Sizes are thresholds: a gradient is never divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from daydream.costs.kernels import updated_mb, weight_products
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.graph.tables import phase_code
from daydream.model.gradients import accumulated, gradients

MIB = 2**20
MOST_MB = 2**28  # 281 TB of gradients: bytes that a task can hold
FIRST_BUCKET_MB, BUCKET_MB = 1.0, 25.0  # of DistributedDataParallel where no size is given


@dataclass(frozen=True)
class Gradients:
    """Gradients one by one, step after step, in the order they are ready.

    Of a step with several backward passes those of the last one: gradients are exchanged once a step.

    Attributes:
        nodes: the task that completes each on the CPU.
        makers: the work that produced it (the node itself on a CPU).
        nbytes: bytes of each, shape (gradients,), int64.
    """

    nodes: Selection
    makers: Selection
    nbytes: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", np.asarray(self.nbytes, np.int64))

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def step_and_rank(self) -> list[tuple[int, int]]:
        """Step and rank of each gradient."""
        return list(zip(self.nodes.step.tolist(), self.nodes.rank.tolist(), strict=True))

    def ends(self) -> Selection:
        """Return, for each gradient, the last backward task on the thread of its step's gradients.

        Behind it run the callbacks of the backward pass, in which DDP waits.
        """
        graph = self.nodes.graph
        last = dict(
            zip(self.step_and_rank, self.nodes.ids.tolist(), strict=True)
        )  # the last one stays
        calls = graph.select(kind="cpu", phase="backward").group_by("step", "lane")
        behind = dict(zip(calls.keys, calls.last().ids.tolist(), strict=True))
        found = {}
        for place, node in last.items():
            launch = int(graph.launch[node])
            key = (
                place[0],
                str(graph.column("lane", np.array([launch if launch >= 0 else node]))[0]),
            )
            found[place] = behind.get(key, node)  # a gradient without a CPU task ends with its work
        return self.nodes.of(
            np.array([found[place] for place in self.step_and_rank]), "ends", ordered=True
        )

    def buckets(self, bucket_mb: float | None = None) -> Buckets:
        """Return the buckets in which `DistributedDataParallel` reduces them.

        Args:
            bucket_mb: MiB of each; by default 1 MiB for the first and 25 for the others, as torch has it.

        Raises:
            GraphError: the size is not above 0.
        """
        if bucket_mb is not None and bucket_mb <= 0:
            raise GraphError(f"bucket_mb must be above 0, not {bucket_mb:g}")
        sizes = (FIRST_BUCKET_MB, BUCKET_MB) if bucket_mb is None else (bucket_mb,)
        return Buckets(
            self, assign(self.nbytes.tolist(), self._keys(), [size * MIB for size in sizes])
        )

    def _keys(self) -> list[tuple[int, int, str | None]]:
        types = self.nodes.dtype.tolist()
        known = set(types) - {None}
        usual = (
            known.pop() if len(known) == 1 else None
        )  # what the others are too, where they do not tell
        return [
            (*place, dtype or usual) for place, dtype in zip(self.step_and_rank, types, strict=True)
        ]


class Buckets:
    """Buckets of gradients, in the order they are full.

    Attributes:
        number: the bucket of each gradient, shape (gradients,), int64.
        last: place of the gradient that completes each bucket, shape (buckets,), int64.
        nbytes: bytes of each bucket, shape (buckets,), int64.
        nodes: the task that completes each on the CPU.
        makers: the work that produced its last gradient.
    """

    def __init__(self, of: Gradients, number: np.ndarray) -> None:
        count = int(number.max(initial=-1)) + 1
        self.last = np.full(count, -1)  # the gradient that completes each bucket
        self.last[number] = np.arange(
            len(number)
        )  # of what is assigned to one place, the last stays
        order = np.argsort(self.last)
        place = np.empty(count, np.int64)
        place[order] = np.arange(count)
        self.number, self.last = place[number], self.last[order]
        self.nbytes = np.bincount(self.number, of.nbytes, count).astype(np.int64)
        self.nodes = of.nodes.of(of.nodes.ids[self.last], "last gradients of buckets", ordered=True)
        self.makers = of.makers.of(
            of.makers.ids[self.last], "last gradients of buckets", ordered=True
        )

    def __len__(self) -> int:
        return len(self.last)


def assign(
    nbytes: Sequence[int], keys: Sequence[tuple[int, int, str | None]], sizes: Sequence[float]
) -> np.ndarray:
    """Return the bucket of each gradient; each key (step, rank, element type) has its own.

    The sizes are those of the first buckets, the last one of all that follow.
    """
    number = []
    opened: dict[
        tuple[int, int, str | None], tuple[int, int, float]
    ] = {}  # (bucket, which of its key, filled)
    count = 0
    # A loop over gradients: where a bucket ends depends on where the one before it did.
    for amount, key in zip(nbytes, keys, strict=True):
        bucket, place, filled = opened.get(key, (-1, 0, 0))
        if bucket < 0:
            bucket, count = count, count + 1
        number.append(bucket)
        filled += amount
        full = filled >= sizes[min(place, len(sizes) - 1)]
        opened[key] = (-1, place + 1, 0) if full else (bucket, place, filled)
    return np.array(number, np.int64)


def gradients_of(
    graph: Graph, gradient_mb: float | Literal["no option"] | None = "no option"
) -> Gradients:
    """Return the gradients of a trace, in the order they are ready.

    Where no operators were recorded, the products that compute gradients of weights stand for them, and
    the update's grids tell how much it is.

    Args:
        graph: the graph of the trace.
        gradient_mb: MiB of all of them, for a trace that does not tell, if the caller has such an option; the
            `AccumulateGrad` nodes then share it equally.

    Raises:
        NotApplicableError: their sizes are unknown, or there is no backward pass.
    """
    if gradient_mb == "no option":
        gradient_mb, hint = None, ""
    else:
        hint = "; or say with --gradient-mb how many MiB they are in total"
    graph.select(phase="backward").need("backward pass")
    try:
        nodes, makers, nbytes = gradients(graph)
    except NotApplicableError as error:
        nodes, makers = accumulated(graph)
        if not len(nodes) and not graph.recorded.is_kind("operator").any():
            nodes = makers = weight_products(graph)
            gradient_mb = updated_mb(graph) if gradient_mb is None else gradient_mb
        if gradient_mb is None or not len(nodes):
            raise NotApplicableError(f"{error}{hint if len(nodes) else ''}") from None
        nbytes = np.zeros(len(nodes), np.int64)
    else:
        if gradient_mb is not None:
            raise GraphError("gradient_mb was given, but the trace has the sizes of its gradients")
    known = graph.step[nodes] >= 0
    kept = np.flatnonzero(known)[_of_last_pass(graph, nodes[known])]
    nodes, makers, nbytes = nodes[kept], makers[kept], nbytes[kept]
    if gradient_mb is not None:
        if not 0 < gradient_mb <= MOST_MB:
            raise GraphError(
                f"gradient_mb must be above 0 and at most {MOST_MB:,}, not {gradient_mb:g}"
            )
        steps, place = np.unique(graph.step[nodes], return_inverse=True)
        nbytes = np.rint(gradient_mb * MIB / np.bincount(place, minlength=len(steps)))[
            place
        ].astype(np.int64)
    if not nbytes.any():
        raise NotApplicableError("this trace has no gradients of parameters")
    ready = nbytes > 0
    return Gradients(graph.tasks(nodes[ready]), graph.tasks(makers[ready]), nbytes[ready])


def _of_last_pass(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """Return a mask of the gradients of each step's last backward pass.

    Passes are parted by forward work. Where a step's parts differ in length they are no passes (a
    forward pass that is computed again, for one), and all its gradients count.
    """
    forward = graph.ids[
        np.isin(graph.phase[graph.ids], [phase_code("forward"), phase_code("loss")])
    ]
    part = np.searchsorted(graph.order[forward], graph.order[nodes])
    kept = np.ones(len(nodes), bool)
    for step in np.unique(graph.step[nodes]).tolist():
        here = np.flatnonzero(graph.step[nodes] == step)
        passes, sizes = np.unique(part[here], return_counts=True)
        if len(passes) > 1 and (sizes == sizes[0]).all():
            kept[here] = part[here] == passes[-1]
    return kept


def compute_lane(graph: Graph) -> str | None:
    """Return the stream of most backward kernels (all, without phases), without its rank; None on a CPU."""
    kernels = graph.select(kind="kernel", phase="backward")
    kernels = kernels if len(kernels) else graph.select(kind="kernel")
    if not len(kernels):
        return None
    lanes = kernels.group_by("lane")
    lane = str(lanes.keys[int(np.argmax(lanes.total("duration_ns")))])
    rank = int(lanes[lane].rank[0])
    return lane.removeprefix(f"rank {rank} ")
