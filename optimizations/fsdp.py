"""Sharded data-parallel training (ZeRO): optimizer state, gradients and parameters divided among workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from daydream.optimizations.ddp import ddp

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import Network, copies_into_new_ns, network_of, scaled_time
from daydream.memory import Allocations, add_buckets, let_states_shrink, shard
from daydream.model import (
    ACCUMULATE,
    BUCKET_MB,
    MIB,
    Gradients,
    block_of_layers,
    call_rows,
    compute_lane,
    first_parameter_uses,
    gradients_of,
    repeated_blocks,
    shapes_in,
)
from daydream.transforms import counted, stages

STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp", "p3", "tictac"})
CODE = "torch.distributed.fsdp.fully_shard(model)"

LANE = "shards"  # one lane: collectives of one group run one behind the other
INTO = "copies of shards"  # the stream that a worker's own shards are copied on
LISTS = re.compile(r"^aten::_(foreach|fused)_")


class Calls(NamedTuple):
    """CPU time that the calls around a unit take, and those around each of its parameters, ns."""

    unit: int
    parameter: int

    def of(self, parameters: np.ndarray) -> np.ndarray:
        """Return the time of units with so many parameters, ns."""
        each: np.ndarray = self.unit + self.parameter * parameters
        return each


# Hooks and calls of torch 2.13.0 on an x86 server CPU, one thread: what `benchmarks/sharding_calls.py` finds
# on parameters of 16 values. On a GPU the calls of streams and events come on top.
FORWARD, BACKWARD = Calls(370_000, 21_000), Calls(205_000, 13_000)  # with a gather, before either pass
SCATTER = Calls(270_000, 21_000)
# An update calls operators on sharded parameters (`DTensor`): with all in one call so much a parameter, else
# so much a call (114 us a parameter in the 8 calls of Adam).
UPDATE_IN_LISTS, UPDATE_CALL = 13_500, 14_000


def fsdp(
    graph: Graph,
    *,
    stage: int = 3,
    workers: int = 8,
    layers: str | None = None,
    unit_mb: float | None = None,
    overlap: bool | None = None,
    forward_prefetch: bool = False,
    python: bool = True,
    cluster: str | None = None,
    bandwidth: float | None = None,
    latency_us: float = 0.0,
    gradient_mb: float | None = None,
) -> None:
    """Predict one of `workers` workers that shard by ZeRO's `stage`, from the trace of a single one.

    1: gradients are all-reduced as by `ddp`, each worker updates its share of the parameters, and
    after the update all are gathered. 2: parameters are gathered unit by unit before the
    forward pass of each, gradients reduce-scattered unit by unit. 3: parameters are gathered for the
    backward pass once more. In all three the update's work is divided by `workers`, its calls stay.

    2 and 3 are those of torch's `fully_shard` (2.13.0; `reshard_after_forward` False and True). A unit
    is gathered when the CPU comes to its forward pass (with `forward_prefetch`, as by torch's
    `set_modules_to_forward_prefetch`, to that of the unit before) and the unit before the last one has
    been taken over; in the backward pass one unit ahead. A copy on the compute stream takes it over;
    gradients are copied, then scattered, one unit at a time. Without `overlap` nothing runs during a
    transfer: so it is in torch on a CPU, which has no streams, and that is the default there.

    A unit is a block that the model repeats (an outermost module, if it repeats none), or one whose
    path matches `layers`; what is in none is the root, gathered first and once, scattered last. Without
    layers units are runs of gradients of `unit_mb` MiB (25, as DDP's buckets). Parameters are as large
    as gradients, padded as torch pads them. Copies read and write a unit, or the worker's shard of it, at
    the trace's own memory bandwidth. `python` adds what torch's hooks and the update's calls on sharded
    parameters cost on the CPU, as measured on an x86 server (`optimizations/fsdp.py`).

    The network is `cluster` (machines of the trace's GPU if not given, more nodes as needed), or
    `bandwidth` in GB/s and `latency_us` a step between neighbours of a ring. `gradient_mb` is the
    size of all gradients in MiB, for a trace without them.

    Memory: a worker holds its share of optimizer states, from stage 2 on of gradients and parameters;
    units are whole while they are used, and what gathers or scatters one is held besides. Units are told
    by layers there. State that is not told from what else was held before the recording makes a range.

    Not modelled: frozen parameters,
    norms over all workers, other than the last of several backward passes of a step, kernels that a
    transfer slows.

    Args:
        stage: ZeRO stage: 1, 2 or 3.
        workers: Number of GPUs that train together.
        layers (GLOB): Modules that are units, by path: blocks.*.
        unit_mb (MiB): Size of a unit, where layers are unknown [default: 25].
        overlap: Transfer while computing [default: on GPUs].
        forward_prefetch: Gather a unit ahead in the forward pass.
        python: Count the CPU time of FSDP's hooks.
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        bandwidth (GB/s): Link bandwidth per GPU.
        latency_us (us): Latency of a transfer between two neighbors.
        gradient_mb (MiB): Size of all gradients, if the trace lacks it.
    """
    if stage not in (1, 2, 3) or workers < 1:
        raise GraphError(f"stage must be 1, 2 or 3 and workers 1 or more, not {stage} and {workers}")
    if stage == 1 and (layers, unit_mb, overlap, forward_prefetch) != (None, None, None, False):
        raise GraphError(
            "layers, unit_mb, overlap and forward_prefetch are of stages 2 and 3; stage 1 reduces gradients "
            "in buckets"
        )
    if overlap is False and forward_prefetch:
        raise GraphError("forward_prefetch is of transfers during compute; without overlap there are none")
    if workers == 1:
        graph.does_not_apply("one worker has nothing to share")
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")
    gradients = gradients_of(graph, gradient_mb)
    network = network_of(graph, workers, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    updates = graph.select(on="gpu", phase="optimizer")
    updates = updates if len(updates) else graph.select(kind="cpu", phase="optimizer")
    updates.need("optimizer")
    units = None if stage == 1 else _units(graph, gradients, layers, unit_mb)
    steps = len(np.unique(gradients.nodes.step))

    share = scaled_time(graph, updates, 1 / workers).duration_ns
    saved = (updates.total("duration_ns") - share.sum()) / len(np.unique(updates.step))
    if units is None:
        ddp(
            graph,
            workers=workers,
            cluster=cluster,
            bandwidth=bandwidth,
            latency_us=latency_us,
            gradient_mb=gradient_mb,
        )
        _gather_behind(updates, gradients.nbytes.sum() / steps, network)
    else:
        lane = compute_lane(graph)
        sharding = _Sharding(
            units,
            np.bincount(units.number, _padded_bytes(gradients, workers)),
            np.bincount(units.number),
            network,
            lane,
            overlap=lane is not None if overlap is None else overlap,
            ahead=forward_prefetch,
            python=python,
        )
        calls = graph.select(kind="cpu", phase="optimizer")
        dispatch = _dispatch_ns(graph, calls, gradients) * python
        sharding.scatter(gradients)
        sharding.gather(again=stage == 3)
        graph.covers(workers)
        graph.note(network.describe())
        graph.note(
            f"{units.nbytes.sum() / steps / MIB:,.1f} MiB of parameters in "
            f"{counted(round(len(units) / steps), 'unit')}: {units.what}."
        )
        if sharding.copies is None:
            graph.note(
                "Copies before and after the transfers are left out: the trace shows no memory bandwidth."
            )
        if not sharding.overlap:
            graph.note("Each transfer is waited for where it is asked for: nothing runs meanwhile.")
    updates.set(duration_ns=share)  # last: the update's own rate is what copies go by
    if units is not None and python:
        if dispatch.any():
            calls.set(duration_ns=calls.duration_ns + dispatch)
        hooks = graph.select(name=r"^ask for ").total("duration_ns") + dispatch.sum()
        spent = f"{hooks / steps / 1e6:,.3f} ms"
        graph.note(f"Hooks and calls on shards take {spent} of the CPU per step, as on an x86 server.")
    graph.note(f"To update 1/{workers} of the parameters takes {saved / 1e6:,.3f} ms less per step.")


@dataclass(frozen=True)
class Units:
    """The units of all steps, one after the other in the order in which their gradients are complete.

    `forward` is the first task of the forward pass that reads a unit's parameters, `backward` the
    first one of its backward pass, `node` the one that completes its last gradient. The `root`
    holds what is in no other unit: it is there from the first task of the forward pass to the
    last of the backward pass, as with torch's `fully_shard`. `step` numbers the steps from 0, `number`
    is the unit of each gradient.
    """

    forward: Selection
    backward: Selection
    node: Selection
    nbytes: np.ndarray
    root: np.ndarray
    step: np.ndarray
    number: np.ndarray
    what: str

    def __len__(self) -> int:
        return len(self.nbytes)


def _units(
    graph: Graph, gradients: Gradients, layers: str | None = None, unit_mb: float | None = None
) -> Units:
    """Return the units: modules that match `layers`, else runs of `unit_mb` MiB, else what the trace tells.

    That is the blocks that the model repeats, else its outermost modules, else runs of 25 MiB. A
    backward pass of a unit begins after the gradient before its first one.
    """
    label, what = _labels(graph, gradients, layers, unit_mb)
    order = graph.columns["order"]
    users = first_parameter_uses(graph, gradients).ids
    steps = gradients.nodes.group_by("step", "rank")
    found = []
    for step in range(len(steps)):
        here = np.flatnonzero(steps.number == step)
        units = {one: here[label[here] == one] for one in dict.fromkeys(label[here].tolist())}
        reads = {one: users[mine][np.argmin(order[users[mine]])] for one, mine in units.items()}
        earliest = min(reads.values(), key=lambda task: order[task])
        opening = [one for one, task in reads.items() if task == earliest]
        for one, mine in units.items():
            # Of a unit that nothing with parameters runs before, no gradient goes on: torch's hook on it
            # never runs, and it is scattered when the backward pass is over, behind the root.
            root, head = one < 0, one >= 0 and opening == [one] and -1 in units
            last = here[-1] if root or head else mine[-1]
            backward = _begin(graph, gradients, mine[0], opens=mine[0] == here[0])
            found.append((last, root + 2 * head, earliest if root else reads[one], backward, step, one))
    found.sort()
    last, turn, forward, backward, step, one = np.array(found).T
    place = {key: number for number, key in enumerate(zip(step.tolist(), one.tolist(), strict=True))}
    number = np.array([place[key] for key in zip(steps.number.tolist(), label.tolist(), strict=True)])
    nbytes = np.bincount(number, gradients.nbytes).astype(np.int64)
    nodes = gradients.nodes[last]
    return Units(graph.tasks(forward), graph.tasks(backward), nodes, nbytes, turn == 1, step, number, what)


def _labels(
    graph: Graph, gradients: Gradients, layers: str | None, unit_mb: float | None
) -> tuple[np.ndarray, str]:
    """Return a number for the unit of each gradient, -1 for the root, and what the units are."""
    if layers is not None and unit_mb is not None:
        raise GraphError("layers and unit_mb were both given; units are made by one of the two")
    code = graph.columns["layer"][gradients.nodes.ids]
    if unit_mb is None and (layers is not None or (code >= 0).any()):
        repeated = [block for family in repeated_blocks(graph) for block in family]
        label = block_of_layers(graph, layers if layers is not None else repeated or "*")[0][code]
        if (label >= 0).any():
            return label, f"layers {layers!r}" if layers is not None else "blocks" if repeated else "modules"
        if layers is not None:
            raise NotApplicableError(
                f"no layer that matches {layers!r} has gradients; layers are recorded by `daydream collect`"
            )
    size = BUCKET_MB if unit_mb is None else unit_mb
    return gradients.buckets(size).number, f"runs of {size:g} MiB"


def _begin(graph: Graph, gradients: Gradients, first: int, *, opens: bool) -> int:
    """Return the first backward task after the gradient that comes before a unit's first one.

    Before the first gradient of a step none comes: the backward pass begins after the forward pass.
    """
    lane, on_cpu = compute_lane(graph), str(gradients.nodes.lane[0])
    where = {"kind": "kernel", "lane": lane} if lane is not None else {"kind": "cpu", "lane": on_cpu}
    tasks = graph.select(phase="backward", **where)
    own = gradients.makers[first]
    before = gradients.makers[max(first - 1, 0)]
    if opens and len(ahead := graph.select(phase=("forward", "loss"))):
        before = ahead[max(int(ahead.next_after(own)[0]) - 1, 0)]
    begins = tasks[min(int(tasks.next_after(before)[0]), len(tasks) - 1)]
    return int((begins if begins.order[0] <= own.order[0] else own).ids[0])


def _padded_bytes(gradients: Gradients, workers: int) -> np.ndarray:
    """Return the bytes of each gradient when its first size is filled up to a multiple of the workers.

    So torch divides parameters (2.13.0, `_get_dim0_padded_size`). As they are where shapes are not known.
    """
    found = gradients.nbytes.copy()
    graph = gradients.nodes.graph
    rows = call_rows(graph, gradients.nodes.ids, ACCUMULATE.pattern)
    if graph.trace is None:
        return found
    known = np.flatnonzero(rows >= 0)
    for place, text in zip(known.tolist(), graph.trace.values("shapes", rows[known].tolist()), strict=True):
        shapes = shapes_in(text) if text is not None else []
        if shapes and shapes[0][0]:
            first = shapes[0][0]
            found[place] = found[place] // first * (-(-first // workers) * workers)
    return found


def _dispatch_ns(graph: Graph, calls: Selection, gradients: Gradients) -> np.ndarray:
    """Return how much longer each CPU task of an update takes on sharded parameters, ns.

    By the operators that Python calls; those that others call know nothing of shards.
    """
    found = np.zeros(len(calls), np.int64)
    rows = call_rows(graph, calls.ids, r"^aten::(?!item$)")
    if graph.trace is None or not (rows >= 0).any():
        return found
    called, first = np.unique(rows, return_index=True)
    called, first = called[called >= 0], first[called >= 0]
    names = graph.trace.values("name", called.tolist())
    lists = np.array([bool(LISTS.match(name or "")) for name in names], bool)
    found[first] = np.where(lists, 0, UPDATE_CALL)
    if lists.any():
        parameters = np.bincount(gradients.nodes.step, minlength=int(calls.step.max()) + 1)
        _, opens = np.unique(calls.step[first[lists]], return_index=True)
        opens = first[lists][opens]
        found[:] = 0
        found[opens] = UPDATE_IN_LISTS * parameters[calls.step[opens]]
    return found


class _Sharding:
    """Units of a graph, what is known of them, and where transfers and copies go."""

    def __init__(
        self,
        units: Units,
        nbytes: np.ndarray,
        parameters: np.ndarray,
        network: Network,
        lane: str | None,
        *,
        overlap: bool,
        ahead: bool,
        python: bool,
    ) -> None:
        self.graph, self.units, self.nbytes, self.parameters = units.node.graph, units, nbytes, parameters
        self.network, self.lane, self.overlap, self.ahead, self.python = network, lane, overlap, ahead, python
        on = "cpu" if lane is None else "gpu"
        self.copies = copies_into_new_ns(self.graph, nbytes, on)
        self.shards = copies_into_new_ns(self.graph, nbytes / network.workers, on)

    def gather(self, *, again: bool) -> None:
        """Gather each unit before its passes."""
        graph, units = self.graph, self.units
        of, backward, use = self._uses(again=again)
        step = units.step[of]
        opens = np.append(True, np.diff(2 * step + backward) != 0)  # the first of a pass
        # A pass asks for its first unit when it begins; a backward pass may begin with the root.
        order = graph.columns["order"]
        begins = units.backward.ids[np.lexsort((order[units.backward.ids], units.step))]
        begins = begins[np.unique(np.sort(units.step), return_index=True)[1]]

        taken = self._copy(graph.tasks(use), "copy parameters", self.copies, of)
        early = ~opens & (backward | self.ahead)  # asked for when the one before it has been taken over
        ask = np.empty(len(of), np.int64)
        hooks = [passes.of(self.parameters[of]) for passes in (FORWARD, BACKWARD)]
        calls = np.where(backward, hooks[1], hooks[0]) * self.python
        first = np.where(backward & opens & (begins[step] != use), begins[step], taken.ids)
        for these, place in ((np.flatnonzero(~early), first), (np.flatnonzero(early), np.roll(taken.ids, 1))):
            if len(these):
                beside = graph.insert_before if place is first else graph.insert_after
                ask[these] = beside(
                    graph.tasks(place[these]), "ask for parameters", kind="cpu", duration_ns=calls[these]
                ).ids
        asked = graph.tasks(ask)
        done = (
            None
            if self.overlap
            else graph.insert_after(asked, "wait for parameters", kind="cpu", duration_ns=0)
        )
        ready = asked
        if self.shards is not None:
            where = {} if self.lane is None else {"lane": INTO, "kind": "kernel"}
            ready = graph.insert_after(asked, "copy shard", duration_ns=self.shards[of], **where)
        nbytes = self.nbytes[of] / self.network.workers
        gathered = graph.insert_after(
            ready,
            "all-gather",
            kind="collective",
            lane=LANE,
            gap_ns=0,
            launched=self.lane is not None,
            before=taken,
            duration_ns=_times(self.network, "all_gather", nbytes),
            collective="all_gather",
            bytes=nbytes,
        )
        # Memory of the unit before the last one is free in the forward pass, of the last one in the backward.
        held = np.arange(len(of)) - np.where(backward, 1, 2)
        own = np.maximum.accumulate(np.where(opens, np.arange(len(of)), 0))
        frees = np.flatnonzero((held >= own) | backward & (step[np.maximum(held, 0)] == step))
        if len(frees):
            begun = ready if self.shards is not None else gathered
            graph.link(taken[held[frees]], begun[frees])
        if self.lane is not None:  # the first of a step is gathered when the update is done, or each in turn
            starts = asked[opens & ~backward] if self.overlap else asked
            starts.wait_for(self.lane, on=INTO if self.shards is not None else LANE)
        if done is not None:
            self._stand_still(done)

    def scatter(self, gradients: Gradients) -> None:
        """Scatter the gradients of each unit when they are there and the unit before it is done."""
        graph, units = self.graph, self.units
        ends = graph.tasks(np.unique(gradients.ends().ids))
        end = graph.insert_after(ends, "wait for reduce-scatters", kind="cpu", duration_ns=0)
        every = np.arange(len(units))
        into = self._copy(units.node, "copy gradients", self.copies, every, behind=True)
        graph.insert_before(
            into, "ask for gradients", kind="cpu", duration_ns=SCATTER.of(self.parameters) * self.python
        )
        done = (
            None
            if self.overlap
            else graph.insert_after(into, "wait for gradients", kind="cpu", duration_ns=0)
        )
        scattered = graph.insert_after(
            into,
            "reduce-scatter",
            kind="collective",
            lane=LANE,
            gap_ns=0,
            collective="reduce_scatter",
            duration_ns=_times(self.network, "reduce_scatter", self.nbytes),
            bytes=self.nbytes,
            launched=self.lane is not None,
        )
        same = np.flatnonzero(units.step[1:] == units.step[:-1])
        if len(same):
            graph.link(scattered[same], into[same + 1])
        self._stand_still(end if done is None else end | done)

    def _uses(self, *, again: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return, as they are gathered, the unit, whether for its backward pass, and the first task of it."""
        units, columns = self.units, self.graph.columns
        of = np.concatenate([np.arange(len(units)), np.flatnonzero(~units.root & again)])
        backward = np.arange(len(of)) >= len(units)
        use = np.where(backward, units.backward.ids[of], units.forward.ids[of])
        turn = np.lexsort((~units.root[of], columns["order"][use], backward, units.step[of]))
        known = (columns["launch"][use[turn]] >= 0) | (self.lane is None)  # else launched before the window
        turn = turn[known]
        return of[turn], backward[turn], use[turn]

    def _copy(
        self,
        beside: Selection,
        name: str,
        durations: np.ndarray | None,
        of: np.ndarray,
        *,
        behind: bool = False,
    ) -> Selection:
        where: dict[str, Any] = (
            {"kind": "cpu"} if self.lane is None else {"kind": "kernel", "lane": self.lane}
        )
        insert = self.graph.insert_after if behind else self.graph.insert_before
        return insert(beside, name, duration_ns=0 if durations is None else durations[of], **where)

    def _stand_still(self, calls: Selection) -> None:
        """Let the CPU, or the GPU's compute, wait for the transfers that were asked for before."""
        calls.wait_for(LANE) if self.lane is None else calls.wait_for(LANE, on=self.lane)


def _gather_behind(updates: Selection, nbytes: float, network: Network) -> None:
    """Gather all parameters after each step's update; what comes then waits."""
    graph = updates.graph
    lane = compute_lane(graph)
    last = updates.group_by("step").last()
    end = graph.insert_after(last, "wait for parameters", kind="cpu", duration_ns=0)
    share = nbytes / network.workers
    graph.insert_after(
        last,
        "all-gather",
        kind="collective",
        lane=LANE,
        gap_ns=0,
        collective="all_gather",
        bytes=share,
        duration_ns=network.time_ns("all_gather", share),
        launched=lane is not None,
    )
    end.wait_for(LANE) if lane is None else end.wait_for(LANE, on=lane)


def _times(network: Network, collective: str, nbytes: np.ndarray) -> list[int]:
    return [network.time_ns(collective, each) for each in nbytes.tolist()]


def memory(
    held: Allocations, *, stage: int, workers: int, layers: str | None, overlap: bool | None, **options: Any
) -> None:
    """Hold one worker's share, and units whole while they are used."""
    if stage == 1:
        let_states_shrink(held, workers)
        add_buckets(held, as_views=False)
        return
    units = layers or [block for family in repeated_blocks(held.graph) for block in family] or "*"
    shard(held, units, workers, again=stage == 3, ahead=overlap is not False)
