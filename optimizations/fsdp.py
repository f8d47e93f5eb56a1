"""Sharded data-parallel training (ZeRO): optimizer state, gradients and parameters divided among workers."""

from __future__ import annotations

from typing import Any

import numpy as np
from daydream.optimizations.ddp import ddp

from daydream import Graph, GraphError, Selection
from daydream.costs.achieved import copies_ns
from daydream.costs.buckets import MIB, Gradients, compute_lane, gradients_of
from daydream.costs.networks import Network, network_of
from daydream.costs.scaling import scaled_time
from daydream.costs.units import Units, units_of
from daydream.transforms import stages
from daydream.wording import counted

STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp", "p3", "tictac"})

LANE = "shards"  # one lane: collectives of one group run one behind the other


def fsdp(
    graph: Graph, *, stage: int = 3, workers: int = 8, layers: str | None = None,
    unit_mb: float | None = None, cluster: str | None = None, bandwidth: float | None = None,
    latency_us: float = 0.0, gradient_mb: float | None = None,
) -> None:  # fmt: skip
    """Predict one of `workers` workers that shard by ZeRO's `stage`, from the trace of a single one.

    1: gradients are all-reduced as by `ddp`, each worker updates its share of the parameters, and
    behind the update all are gathered. 2: parameters are gathered unit by unit before the
    forward pass of each, gradients reduce-scattered unit by unit. 3: parameters are gathered for the
    backward pass once more. In all three the update's work is divided by `workers`, its calls stay.

    2 and 3 are those of torch's `fully_shard` (2.13.0; `reshard_after_forward` False and True): one
    unit is gathered ahead, a copy on the compute stream takes it over; gradients are copied, then
    scattered, one unit at a time. A unit is a block that the model repeats (an outermost module, if
    it repeats none), or one whose path matches `layers`; what is in none is the root, gathered first
    and once, scattered last. Without layers units are runs of gradients of `unit_mb` MiB (25, as DDP's
    buckets). Copies read and write a unit at the trace's own memory bandwidth; parameters are as
    large as gradients.

    The network is `cluster` (machines of the trace's GPU if not given, more nodes as needed), or
    `bandwidth` in GB/s and `latency_us` a step between neighbours of a ring. `gradient_mb` is the
    size of all gradients in MiB, for a trace that does not tell. Not modelled: hooks in Python, copies of
    shards, memory, frozen parameters, norms over all workers, other than the last of several backward
    passes of a step, kernels that a transfer slows.
    """
    if stage not in (1, 2, 3) or workers < 1:
        raise GraphError(f"stage must be 1, 2 or 3 and workers 1 or more, not {stage} and {workers}")
    if stage == 1 and (layers is not None or unit_mb is not None):
        raise GraphError("layers and unit_mb are of stages 2 and 3; stage 1 reduces gradients in buckets")
    if workers == 1:
        graph.does_not_apply("one worker has nothing to share")
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")
    gradients = gradients_of(graph, gradient_mb)
    network = network_of(graph, workers, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    updates = graph.select(on="gpu", phase="optimizer")
    updates = updates if len(updates) else graph.select(kind="cpu", phase="optimizer")
    updates.need("optimizer")
    units = None if stage == 1 else units_of(graph, gradients, layers, unit_mb)
    steps = len(np.unique(gradients.nodes.step))

    share = scaled_time(graph, updates, 1 / workers).duration_ns
    saved = (updates.total("duration_ns") - share.sum()) / len(np.unique(updates.step))
    if units is None:
        ddp(
            graph, workers=workers, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us,
            gradient_mb=gradient_mb,
        )  # fmt: skip
        _gather_behind(updates, gradients.nbytes.sum() / steps, network)
    else:
        lane = compute_lane(graph)
        known = copies_ns(graph, units.nbytes, "gpu" if lane else "cpu")
        copy = np.zeros(len(units)) if known is None else known
        _scatter(units, copy, gradients, network, lane)
        _gather(units, copy, network, lane, again=stage == 3)
        graph.note(network.describe())
        graph.note(
            f"{units.nbytes.sum() / steps / MIB:,.1f} MiB of parameters in "
            f"{counted(round(len(units) / steps), 'unit')}: {units.what}."
        )
        if known is None:
            graph.note("Copies beside the transfers are left out: the trace shows no memory bandwidth.")
    updates.set(duration_ns=share)  # last: the update's own rate is what copies go by
    graph.note(f"To update 1/{workers} of the parameters takes {saved / 1e6:,.3f} ms a step less.")


def _gather(units: Units, copy: np.ndarray, network: Network, lane: str | None, *, again: bool) -> None:
    """Gather each unit before its passes, from when the unit before it has been taken over."""
    graph = units.node.graph
    order, launch = graph.columns["order"], graph.columns["launch"]
    of = np.concatenate([np.arange(len(units)), np.flatnonzero(~units.root & again)])
    backward = np.arange(len(of)) >= len(units)
    use = np.where(backward, units.backward.ids[of], units.forward.ids[of])
    turn = np.lexsort((~units.root[of], order[use], backward, units.step[of]))
    turn = turn[(launch[use[turn]] >= 0) | (lane is None)]  # else launched before the window
    of, backward, use = of[turn], backward[turn], use[turn]
    opens = np.append(True, np.diff(2 * units.step[of] + backward) != 0)  # the first of a pass
    last = np.append(opens[1:], True)
    # A pass asks for its first unit when it begins; a backward pass may begin with the root.
    begins = units.backward.ids[np.lexsort((order[units.backward.ids], units.step))]
    begins = begins[np.unique(np.sort(units.step), return_index=True)[1]]
    begin = np.where(backward[opens], begins[units.step[of[opens]]], use[opens])

    asked = graph.insert_before(graph.tasks(begin), "ask for parameters", kind="cpu", duration_ns=0)
    taken = graph.insert_before(graph.tasks(use), "copy parameters", duration_ns=copy[of], **_on(lane))
    for behind, place in ((asked, opens), (graph.tasks(taken.ids[~last]), ~opens)):
        if len(behind):
            nbytes = units.nbytes[of[place]] / network.workers
            graph.insert_after(
                behind, "all-gather", kind="collective", lane=LANE, gap_ns=0, launched=lane is not None,
                before=graph.tasks(taken.ids[place]), duration_ns=_times(network, "all_gather", nbytes),
                collective="all_gather", bytes=nbytes,
            )  # fmt: skip
    if lane is not None:  # the first of a step is gathered when the update is done
        graph.tasks(asked.ids[~backward[opens]]).wait_for(lane, on=LANE)


def _scatter(
    units: Units, copy: np.ndarray, gradients: Gradients, network: Network, lane: str | None
) -> None:
    """Scatter the gradients of each unit when they are there and the unit before it is done."""
    graph = units.node.graph
    ends = graph.tasks(np.unique(gradients.ends().ids))
    end = graph.insert_after(ends, "wait for reduce-scatters", kind="cpu", duration_ns=0)
    into = graph.insert_after(units.node, "copy gradients", duration_ns=copy, **_on(lane))
    scattered = graph.insert_after(
        into, "reduce-scatter", kind="collective", lane=LANE, gap_ns=0, collective="reduce_scatter",
        duration_ns=_times(network, "reduce_scatter", units.nbytes), bytes=units.nbytes,
        launched=lane is not None,
    )  # fmt: skip
    same = np.flatnonzero(units.step[1:] == units.step[:-1])
    graph.link(graph.tasks(scattered.ids[same]), graph.tasks(into.ids[same + 1]))
    end.wait_for(LANE) if lane is None else end.wait_for(LANE, on=lane)


def _gather_behind(updates: Selection, nbytes: float, network: Network) -> None:
    """Gather all parameters behind each step's update; what comes then waits."""
    graph = updates.graph
    lane = compute_lane(graph)
    last = updates.group_by("step").last()
    end = graph.insert_after(last, "wait for parameters", kind="cpu", duration_ns=0)
    share = nbytes / network.workers
    graph.insert_after(
        last, "all-gather", kind="collective", lane=LANE, gap_ns=0, collective="all_gather", bytes=share,
        duration_ns=network.time_ns("all_gather", share), launched=lane is not None,
    )  # fmt: skip
    end.wait_for(LANE) if lane is None else end.wait_for(LANE, on=lane)


def _on(lane: str | None) -> dict[str, Any]:
    return {"kind": "cpu"} if lane is None else {"kind": "kernel", "lane": lane}


def _times(network: Network, collective: str, nbytes: np.ndarray) -> list[int]:
    return [network.time_ns(collective, each) for each in nbytes.tolist()]
