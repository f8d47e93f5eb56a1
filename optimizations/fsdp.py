"""Sharded data-parallel training (ZeRO): optimizer state, gradients and parameters divided among workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from daydream.optimizations._gradient_collectives import FAKE_WORLD, refuse_ranks
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
EXCLUDES = {"ddp", "p3"}
CODE = "torch.distributed.fsdp.fully_shard(model)"

LANE = "shards"  # one lane: collectives of one group run one behind the other
INTO = "copies of shards"  # the stream that a worker's own shards are copied on
LISTS = re.compile(r"^aten::_(foreach|fused)_")


class Calls(NamedTuple):
    """CPU time that the calls around a unit take, and those around each of its parameters, ns."""

    unit: int
    parameter: int

    def of(self, parameters: int) -> int:
        """Return the time of a unit with so many parameters, ns."""
        return self.unit + self.parameter * parameters


# Hooks and calls of torch 2.13.0 on an x86 server CPU, one thread: what `benchmarks/sharding_calls.py`
# of b281a3aa finds on parameters of 16 values. On a GPU the calls of streams and events come on top.
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
    refuse_ranks(graph)
    gradients = gradients_of(graph, gradient_mb)
    network = network_of(graph, workers, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    device, calls = graph.select(on="gpu", phase="optimizer"), graph.select(kind="cpu", phase="optimizer")
    updates = (device if len(device) else calls).need("optimizer")
    steps = len(set(gradients.nodes.step.tolist()))
    share = scaled_time(graph, updates, 1 / workers).duration_ns
    saved = (updates.total("duration_ns") - share.sum()) / len(updates.group_by("step"))
    if stage == 1:
        link = {"cluster": cluster, "bandwidth": bandwidth, "latency_us": latency_us}
        ddp(graph, workers=workers, gradient_mb=gradient_mb, **link)
        last = updates.group_by("step").last()
        end = graph.insert_after(last, "wait for parameters", kind="cpu", duration_ns=0)
        each = gradients.nbytes.sum() / steps / workers
        _transfer(last, "all-gather", [each] * len(last), network)
        end.wait_for(LANE, on=compute_lane(graph))
    else:
        units, what = _units(graph, gradients, layers, unit_mb, workers)
        lane = compute_lane(graph)
        hidden = lane is not None if overlap is None else overlap
        sharding = Sharding(graph, units, network, lane, hidden, forward_prefetch, python)
        dispatch = _dispatch_ns(graph, calls, gradients) if python else {}
        sharding.scatter(gradients)
        sharding.gather(again=stage == 3)
        graph.covers(workers)
        graph.note(network.describe())
        graph.note(
            f"{gradients.nbytes.sum() / steps / MIB:,.1f} MiB of parameters in "
            f"{counted(round(len(units) / steps), 'unit')}: {what}."
        )
        if sharding.copies is None:
            graph.note(
                "Copies before and after the transfers are left out: the trace shows no memory bandwidth."
            )
        if not hidden:
            graph.note("Each transfer is waited for where it is asked for: nothing runs meanwhile.")
    updates.set(duration_ns=share)  # last: the update's own rate is what copies go by
    if stage > 1 and python:
        if dispatch:
            slower = graph.tasks(list(dispatch))
            slower.set(duration_ns=slower.duration_ns + list(dispatch.values()))
        hooks = graph.select(name=r"^ask for ").total("duration_ns") + sum(dispatch.values())
        spent = f"{hooks / steps / 1e6:,.3f} ms"
        graph.note(f"Hooks and calls on shards take {spent} of the CPU per step, as on an x86 server.")
    graph.note(f"To update 1/{workers} of the parameters takes {saved / 1e6:,.3f} ms less per step.")
    graph.note(FAKE_WORLD.format(workers))


class Unit(NamedTuple):
    """Parameters that are gathered and scattered together, in one step.

    Units are in the order in which their gradients are complete: `last` is the place of the last one. The
    root holds what is in no other unit: it is there from the first task of the forward pass to the last of
    the backward pass, as with torch's `fully_shard`. `forward` is the first task of the forward pass that
    reads a unit's parameters, `backward` the first one of its backward pass; `nbytes` are those of its
    parameters when the first size of each is filled up to a multiple of the workers.
    """

    last: int
    turn: int  # 1 of the root, 2 of the unit that begins the forward pass where there is a root, else 0
    step: int
    forward: int
    backward: int
    nbytes: int
    parameters: int


def _units(
    graph: Graph, gradients: Gradients, layers: str | None, unit_mb: float | None, workers: int
) -> tuple[list[Unit], str]:
    """Return the units, and what they are.

    Modules that match `layers`, else runs of `unit_mb` MiB, else what the trace tells: the blocks that the
    model repeats, else its outermost modules, else runs of 25 MiB. A backward pass of a unit begins after
    the gradient before its first one.
    """
    label, what = _labels(graph, gradients, layers, unit_mb)
    users, nbytes = first_parameter_uses(graph, gradients), _padded_bytes(gradients, workers)
    reads = list(zip(users.order.tolist(), users.ids.tolist(), strict=True))
    of_step: dict[tuple[int, int], dict[int, list[int]]] = {}
    for place, (step, one) in enumerate(zip(gradients.step_and_rank, label, strict=True)):
        of_step.setdefault(step, {}).setdefault(one, []).append(place)
    found = []
    for number, units in enumerate(of_step.values()):
        first = {one: min(reads[place] for place in mine) for one, mine in units.items()}
        opening = [one for one, read in first.items() if read == min(first.values())]
        begin, end = min(mine[0] for mine in units.values()), max(mine[-1] for mine in units.values())
        for one, mine in units.items():
            # Of a unit that nothing with parameters runs before, no gradient goes on: torch's hook on it
            # never runs, and it is scattered when the backward pass is over, behind the root.
            turn = 1 if one < 0 else 2 if opening == [one] and -1 in units else 0
            last = end if turn else mine[-1]
            forward = min(first.values()) if one < 0 else first[one]
            backward = _begin(graph, gradients, mine[0], opens=mine[0] == begin)
            size = sum(nbytes[place] for place in mine)
            found.append(Unit(last, turn, number, forward[1], backward, size, len(mine)))
    return sorted(found), what


def _labels(
    graph: Graph, gradients: Gradients, layers: str | None, unit_mb: float | None
) -> tuple[list[int], str]:
    """Return a number for the unit of each gradient, -1 for the root, and what the units are."""
    if layers is not None and unit_mb is not None:
        raise GraphError("layers and unit_mb were both given; units are made by one of the two")
    if unit_mb is None:
        repeated = [block for family in repeated_blocks(graph) for block in family]
        of_layer, _ = block_of_layers(graph, layers if layers is not None else repeated or "*")
        label = of_layer[graph.columns["layer"][gradients.nodes.ids]].tolist()
        if max(label) >= 0:
            return label, f"layers {layers!r}" if layers is not None else "blocks" if repeated else "modules"
        if layers is not None:
            raise NotApplicableError(
                f"no layer that matches {layers!r} has gradients; layers are recorded by `daydream collect`"
            )
    size = BUCKET_MB if unit_mb is None else unit_mb
    return gradients.buckets(size).number.tolist(), f"runs of {size:g} MiB"


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


def _padded_bytes(gradients: Gradients, workers: int) -> list[int]:
    """Return the bytes of each gradient when its first size is filled up to a multiple of the workers.

    So torch divides parameters (2.13.0, `_get_dim0_padded_size`). As they are where shapes are not known.
    """
    graph, found = gradients.nodes.graph, gradients.nbytes.tolist()
    rows = call_rows(graph, gradients.nodes.ids, ACCUMULATE.pattern).tolist()
    known = [place for place, row in enumerate(rows) if row >= 0 and graph.trace is not None]
    texts = graph.recorded.values("shapes", [rows[place] for place in known]) if known else []
    for place, text in zip(known, texts, strict=True):
        shapes = shapes_in(text) if text is not None else []
        if shapes and shapes[0][0]:
            first = shapes[0][0]
            found[place] = found[place] // first * (-(-first // workers) * workers)
    return found


def _dispatch_ns(graph: Graph, calls: Selection, gradients: Gradients) -> dict[int, int]:
    """Return how much longer CPU tasks of an update take on sharded parameters, ns by task.

    By the operators that Python calls; those that others call know nothing of shards.
    """
    rows = call_rows(graph, calls.ids, r"^aten::(?!item$)")
    if graph.trace is None or not (rows >= 0).any():
        return {}
    groups = calls.group_by(rows)
    first, names = groups.first(), graph.trace.values("name", groups.keys)
    lists = first[[LISTS.match(name or "") is not None for name in names]]
    if not len(lists):
        return dict.fromkeys(first.ids.tolist(), UPDATE_CALL)
    steps, opens = gradients.nodes.step.tolist(), lists.group_by("step").first()
    return {
        task: UPDATE_IN_LISTS * steps.count(step)
        for task, step in zip(opens.ids.tolist(), opens.step.tolist(), strict=True)
    }


class Use(NamedTuple):
    """A pass that needs the parameters of a unit, in the order in which they are gathered."""

    step: int
    backward: bool
    order: int
    in_root: bool  # False first: the root
    unit: int
    task: int


@dataclass
class Sharding:
    """The units, what is known of them, and where transfers and copies go."""

    graph: Graph
    units: list[Unit]
    network: Network
    lane: str | None
    overlap: bool
    ahead: bool
    python: bool

    def __post_init__(self) -> None:
        on, workers = "cpu" if self.lane is None else "gpu", self.network.workers
        self.nbytes = [unit.nbytes for unit in self.units]
        self.copies = copies_into_new_ns(self.graph, self.nbytes, on)
        self.shards = copies_into_new_ns(self.graph, [nbytes / workers for nbytes in self.nbytes], on)

    def gather(self, *, again: bool) -> None:
        """Gather each unit before its passes."""
        graph, columns = self.graph, self.graph.columns
        uses = sorted(
            Use(unit.step, backward, int(columns["order"][task]), unit.turn != 1, number, task)
            for number, unit in enumerate(self.units)
            for backward, task in ((False, unit.forward), (True, unit.backward))
            if (not backward or (again and unit.turn != 1))
            and (self.lane is None or columns["launch"][task] >= 0)  # else launched before the window
        )
        of = [use.unit for use in uses]
        # A pass asks for its first unit when it begins; a backward pass may begin with the root.
        opens = [not at or use[:2] != uses[at - 1][:2] for at, use in enumerate(uses)]
        taken = self._copy([use.task for use in uses], "copy parameters", of)
        asked = [0] * len(uses)
        for early in (False, True):
            these = [
                at for at, use in enumerate(uses) if early == (not opens[at] and (use.backward or self.ahead))
            ]
            beside, calls = [], []
            for at in these:  # early ones when the one before has been taken over
                use, task = uses[at], taken[at - 1 if early else at]
                if use.backward and opens[at]:
                    begins = [unit.backward for unit in self.units if unit.step == use.step]
                    first = min(begins, key=columns["order"].__getitem__)
                    task = task if first == use.task else first
                beside.append(task)
                hook = BACKWARD if use.backward else FORWARD
                calls.append(hook.of(self.units[use.unit].parameters) * self.python)
            if these:
                insert = graph.insert_after if early else graph.insert_before
                new = insert(graph.tasks(beside), "ask for parameters", kind="cpu", duration_ns=calls)
                for at, task in zip(these, new.ids.tolist(), strict=True):
                    asked[at] = task
        ask = ready = graph.tasks(asked)
        if not self.overlap:
            done = graph.insert_after(ask, "wait for parameters", kind="cpu", duration_ns=0)
        if self.shards is not None:
            where = {} if self.lane is None else {"lane": INTO, "kind": "kernel"}
            ready = graph.insert_after(ask, "copy shard", duration_ns=self.shards[of], **where)
        nbytes = [self.nbytes[one] / self.network.workers for one in of]
        gathered = _transfer(ready, "all-gather", nbytes, self.network, before=taken)
        begun = (ready if self.shards is not None else gathered).ids.tolist()
        # Memory of the unit before the last one is free in the forward pass, of the last one in the backward.
        for at, use in enumerate(uses):
            before = at - (1 if use.backward else 2)
            if before >= 0 and uses[before].step == use.step:
                graph.link([taken[before]], [begun[at]])
        if self.lane is not None:  # the first of a step is gathered when the update is done, or each in turn
            starts = [not self.overlap or (opens[at] and not use.backward) for at, use in enumerate(uses)]
            ask[starts].wait_for(self.lane, on=INTO if self.shards is not None else LANE)
        if not self.overlap:
            done.wait_for(LANE, on=self.lane)

    def scatter(self, gradients: Gradients) -> None:
        """Scatter the gradients of each unit when they are there and the unit before it is done."""
        graph = self.graph
        ends = graph.tasks(sorted(set(gradients.ends().ids.tolist())))
        end = graph.insert_after(ends, "wait for reduce-scatters", kind="cpu", duration_ns=0)
        nodes = gradients.nodes.ids[[unit.last for unit in self.units]].tolist()
        into = graph.tasks(self._copy(nodes, "copy gradients", range(len(nodes)), behind=True))
        calls = [SCATTER.of(unit.parameters) * self.python for unit in self.units]
        graph.insert_before(into, "ask for gradients", kind="cpu", duration_ns=calls)
        if not self.overlap:
            end = end | graph.insert_after(into, "wait for gradients", kind="cpu", duration_ns=0)
        scattered = _transfer(into, "reduce-scatter", self.nbytes, self.network)
        for (at, unit), (behind, other) in pairwise(enumerate(self.units)):
            if unit.step == other.step:
                graph.link(scattered[at], into[behind])
        end.wait_for(LANE, on=self.lane)

    def _copy(
        self,
        beside: list[int],
        name: str,
        of: Any,
        *,
        behind: bool = False,
    ) -> list[int]:
        where = {"kind": "cpu"} if self.lane is None else {"kind": "kernel", "lane": self.lane}
        insert = self.graph.insert_after if behind else self.graph.insert_before
        time = 0 if self.copies is None else self.copies[of]
        return insert(self.graph.tasks(beside), name, duration_ns=time, **where).ids.tolist()


def _transfer(
    beside: Selection, name: str, nbytes: list[Any], network: Network, before: Any = None
) -> Selection:
    collective = name.replace("-", "_")
    return beside.graph.insert_after(
        beside,
        name,
        kind="collective",
        lane=LANE,
        gap_ns=0,
        launched=compute_lane(beside.graph) is not None,
        before=before,
        duration_ns=[network.time_ns(collective, each) for each in nbytes],
        collective=collective,
        bytes=nbytes,
    )


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
