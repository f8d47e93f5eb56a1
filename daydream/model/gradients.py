"""Gradients of parameters: the work that makes each, its bytes, the buckets they are reduced in, their first uses.

The rule of buckets is that of torch's DistributedDataParallel (torch/nn/parallel/distributed.py and
`compute_bucket_assignment_by_size` of its reducer): in the order in which the backward pass
completes gradients, those of one element type fill a bucket until it holds its size or more; what
is left is the last bucket. Sizes are thresholds: a gradient is never divided.

A gradient is complete right behind the backward node that made it. That node and the forward operator that read the
parameter share an autograd sequence number.

Parameters by layer: who has some, their part of all, and what a joint update of fewer or more takes.

The parts of a model that are compiled: all of it in one call, or each module that matches by itself.

Autograd's walks over its graph, before a backward pass and behind it.

Before the first node runs, the engine counts what each one waits for; behind the last one the
graph is freed. Both visit all nodes, neither is an operator: in a trace they are untraced CPU time,
0.15 and 0.25 us a node (of 54 to 1,042 nodes, torch 2.13.0, one thread of an x86 server). A model
with fewer layers has fewer nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from daydream.arrays import last_before, places, run_starts, take, unique
from daydream.costs.device.call_scaling import scaled_time
from daydream.costs.kernels import updated_mb, weight_products
from daydream.costs.workload.calls import forward_rows
from daydream.costs.workload.operator import itemsize
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import instances, shapes_in
from daydream.graph.graph import Graph
from daydream.graph.select import in_program_order
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU, KERNEL, phase_code
from daydream.model.optimizers import ACCUMULATE as NODE_OF_GRADIENT
from daydream.model.optimizers import update_of

MIB = 2**20
MOST_MB = 2**28  # 281 TB of gradients: bytes that a task can hold
# Of DistributedDataParallel where no size is given
FIRST_BUCKET_MB = 1.0
BUCKET_MB = 25.0
ACCUMULATE = re.compile(r"^(torch::autograd::)?AccumulateGrad$")  # the call in its node


def gradient_bytes(graph: Graph, ids: np.ndarray) -> np.ndarray:
    """Return the bytes of parameter gradients that are complete when each task ends, 0 for none.

    A gradient is complete with the last backward work that ran, or was launched, before
    its `AccumulateGrad` node ended; its size is the node's recorded input, else that of
    its layer's parameters. Without such nodes it is complete with the last backward task
    of the parameter's layer. Raises `NotApplicableError` where the trace tells no sizes.
    """

    def of_tasks() -> np.ndarray:
        found = np.zeros(graph.size, np.int64)
        _, producers, size = gradients(graph)
        np.add.at(found, producers, size)
        return found

    return graph.derived("grad_bytes", of_tasks, structure=True)[ids]


def gradients(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the parameter gradients one by one, in program order: node, maker, bytes.

    The node is the task with which a gradient is complete, its maker the device work that
    produced it (the node itself on a CPU); see `gradient_bytes`.
    """
    nodes, rows = _accumulating(graph)
    shapes = graph.recorded.values("shapes", rows)
    types = graph.recorded.values("dtype", rows)
    sizes = []
    for shape, dtype in zip(shapes, types, strict=True):
        tensors = shapes_in(shape or "")
        sizes.append(prod(tensors[0]) * (itemsize(dtype) or -1) if tensors else -1)
    size = np.array(sizes, np.int64)
    if (size < 0).any():
        nodes, size = _last_of_layers(graph, nodes)
    if not len(nodes):
        backward = graph.ids[graph.phase[graph.ids] == phase_code("backward")]
        work = backward[(graph.kind[backward] != CPU) & (graph.layer[backward] >= 0)]
        nodes, size = _last_of_layers(graph, work if len(work) else backward)
        if not len(nodes):
            raise NotApplicableError("this trace has no backward tasks that belong to a layer")
    order = np.lexsort((nodes, graph.order[nodes]))
    return nodes[order], _makers(graph, nodes[order]), size[order]


def _accumulating(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the last CPU task and the row of each `AccumulateGrad` node."""
    trace = graph.recorded
    cpu = graph.ids[graph.kind[graph.ids] == CPU]
    if not len(trace):
        return cpu[:0], cpu[:0]
    call = instances(graph, cpu, ACCUMULATE.pattern)
    cpu = cpu[call >= 0]
    call = call[call >= 0]
    calls, last = np.unique(call[::-1], return_index=True)
    return cpu[::-1][last], calls % len(trace)


def _last_of_layers(graph: Graph, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last of these tasks of each layer in each step, and the bytes of the layer's gradients."""
    sizes = dict.fromkeys(graph.texts["layer"], 0)
    for parameter in graph.recorded.metadata.get("parameters", []):
        if parameter.get("layer") in sizes:
            sizes[parameter["layer"]] += int(parameter.get("gradient_bytes") or 0)
    if not any(sizes.values()):
        raise NotApplicableError(
            "the sizes of this trace's gradients are unknown: it has neither recorded shapes of "
            "AccumulateGrad nor parameters; record it with `daydream collect`"
        )
    tasks = tasks[graph.layer[tasks] >= 0]
    tasks = in_program_order(graph, tasks)[::-1]
    key = graph.layer[tasks].astype(np.int64) * (2**31) + graph.step[tasks]
    tasks = tasks[np.unique(key, return_index=True)[1]]
    return tasks, np.array([*sizes.values()], np.int64)[graph.layer[tasks]]


def _makers(graph: Graph, tasks: np.ndarray) -> np.ndarray:
    """Return, for CPU tasks, the last backward device work launched before each ended; else the tasks."""
    ranks = np.array([lane.rank for lane in graph.lanes] or [0], np.int64)
    ids = graph.ids
    compute = ids[(graph.kind[ids] == KERNEL) & (graph.phase[ids] == phase_code("backward"))]
    mine = np.flatnonzero(graph.kind[tasks] == CPU)
    before = last_before(
        ranks[graph.lane[compute]],
        graph.order[compute],
        ranks[graph.lane[tasks[mine]]],
        graph.order[tasks[mine]] + 8,
    )
    mine = mine[before >= 0]
    maker = compute[before[before >= 0]]
    same = graph.step[maker] == graph.step[tasks[mine]]
    chosen = tasks.copy()
    chosen[mine[same]] = maker[same]
    return chosen


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
    nbytes: Any

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
        self.number = place[number]
        self.last = self.last[order]
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
            bucket = count
            count = count + 1
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
        gradient_mb = None
        hint = ""
    else:
        hint = "; or say with --gradient-mb how many MiB they are in total"
    graph.select(phase="backward").need("backward pass")
    try:
        nodes, makers, nbytes = gradients(graph)
    except NotApplicableError as error:
        nodes, _ = _accumulating(graph)
        nodes = in_program_order(graph, nodes)
        makers = _makers(graph, nodes)
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
    nodes = nodes[kept]
    makers = makers[kept]
    nbytes = nbytes[kept]
    if gradient_mb is not None:
        if not 0 < gradient_mb <= MOST_MB:
            raise GraphError(
                f"gradient_mb must be above 0 and at most {MOST_MB:,}, not {gradient_mb:g}"
            )
        _, place = places(graph.step[nodes])
        nbytes = np.rint(gradient_mb * MIB / np.bincount(place)[place]).astype(np.int64)
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
    for step in unique(graph.step[nodes]).tolist():
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


def first_parameter_uses(graph: Graph, gradients: Gradients) -> Selection:
    """Return, for each gradient, the forward task of its step that first needs the parameter.

    By the forward operator of the backward node that made the gradient; without sequence numbers the layer
    tells. Where neither does it is the first forward task of the step, which is never too late.

    Args:
        graph: the graph of the trace.
        gradients: gradients of the parameters.

    Returns:
        tasks, one a gradient in their order; device work where there is any, else CPU tasks.

    Raises:
        NotApplicableError: a step with gradients has no forward work.
    """
    forward = graph.ids[graph.phase[graph.ids] == phase_code("forward")]
    device = forward[graph.kind[forward] != CPU]
    users = device if len(device) else forward
    nodes = gradients.nodes.ids
    begun = _operator_starts(graph, gradients)
    found = np.full(len(nodes), -1)
    cpu = forward[(graph.kind[forward] == CPU) & (graph.measured_start_ns[forward] >= 0)]
    cpu = cpu[np.argsort(graph.measured_start_ns[cpu], kind="stable")]
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)
    place = graph.step.astype(np.int64) * (ranks.max() + 1) + ranks[graph.lane]
    for each in unique(place[nodes]).tolist():
        here = np.flatnonzero(place[nodes] == each)
        mine = users[place[users] == each]
        calls = cpu[place[cpu] == each]
        if not len(mine):
            raise NotApplicableError(
                "a step of this trace has gradients but no forward work that needs them"
            )
        at = np.searchsorted(graph.measured_start_ns[calls], begun[here])
        known = (begun[here] >= 0) & (at < len(calls))
        use = np.searchsorted(graph.order[mine], graph.order[calls[at[known]]])
        found[here] = mine[0]
        found[here[known]] = mine[np.minimum(use, len(mine) - 1)]
        for one in here[~known & (graph.layer[nodes[here]] >= 0)].tolist():
            same = mine[graph.layer[mine] == graph.layer[nodes[one]]]
            found[one] = same[0] if len(same) else mine[0]
    return gradients.nodes.of(found, "first uses of parameters", ordered=True)


def _operator_starts(graph: Graph, gradients: Gradients) -> np.ndarray:
    """Return when the forward operator of each gradient's backward node began, -1 if not known.

    The node is that of the last numbered backward operator that began before the gradient's on its thread.
    """
    trace = graph.recorded
    rows = graph.row[gradients.nodes.ids].astype(np.int64)
    if not len(trace):
        return np.full(len(rows), -1)
    numbered = (trace["sequence"] >= 0) & trace.is_kind("operator")
    numbered = np.flatnonzero(numbered & (trace["phase"] == trace.code("phase", "backward")))
    thread = np.asarray(trace["rank"], np.int64) * (int(trace["tid"].max()) + 2) + trace["tid"]
    start = trace["start_ns"]
    before = last_before(thread[numbered], start[numbered], thread[rows], start[rows] - 1)
    maker = forward_rows(trace, take(numbered, before))
    return np.where((rows >= 0) & (maker >= 0), start[maker], -1)


ZERO_GRAD = r"^Optimizer\.zero_grad"


class Trained(Struct, frozen=True):
    """What each layer trains.

    Attributes:
        tensors: layer -> its tensors.
        elements: layer -> their elements (or bytes; only ratios count).
    """

    tensors: dict[str, int]
    elements: dict[str, int]

    def part(self, layers: set[str]) -> tuple[float, float]:
        """Return which part of all tensors, and of all elements, these layers hold, 0 to 1."""
        tensors, elements = (
            sum(many for layer, many in each.items() if layer in layers) / (sum(each.values()) or 1)
            for each in (self.tensors, self.elements)
        )
        return tensors, elements


def trained_parameters(graph: Graph) -> Trained:
    """Return the parameters that the trace trains, by layer; empty where it tells none.

    From the run's parameters, else from the gradients that are accumulated. Without either,
    layers that the optimizer updates one by one count as one tensor each, of equal size.
    """
    metadata = graph.recorded.metadata
    tensors: dict[str, int] = {}
    elements: dict[str, int] = {}
    for parameter in metadata.get("parameters") or []:
        layer = parameter.get("layer")
        if layer is not None and parameter.get("requires_grad", True):
            tensors[layer] = tensors.get(layer, 0) + 1
            elements[layer] = elements.get(layer, 0) + prod(parameter["shape"])
    if tensors:
        return Trained(tensors, elements)
    nodes = (
        graph.select(kind="cpu", phase="backward").group_by("layer", within=NODE_OF_GRADIENT).last()
    )
    if len(nodes):
        steps = max(len(set(zip(nodes.rank.tolist(), nodes.step.tolist(), strict=True))), 1)
        groups = nodes.group_by("layer")
        counts = zip(groups.keys, groups.sizes.tolist(), strict=True)
        tensors = {layer: max(round(size / steps), 1) for layer, size in counts}
        backward = graph.select(phase="backward")
        try:
            sizes = backward.where(lambda tasks: tasks.grad_bytes > 0).group_by("layer")
            elements = dict(zip(sizes.keys, sizes.total("grad_bytes").tolist(), strict=True))
        except NotApplicableError:
            elements = {}
        return Trained(tensors, elements if set(elements) >= set(tensors) else tensors)
    updated = graph.select(phase="optimizer").group_by("layer").keys
    return Trained(dict.fromkeys(updated, 1), dict.fromkeys(updated, 1))


def joint_update(graph: Graph, tensors: float, elements: float) -> tuple[Selection, np.ndarray]:
    """Return the tasks that update parameters of all layers at once, and their durations at another number.

    The work of kernels, and of operators of a trace without device work, goes with the elements. The
    overhead of operators, and Python's walks over the parameters, also that which zeroes the gradients, go
    with the tensors. Updates of one layer are not among the tasks.

    Args:
        graph: the graph of the trace.
        tensors: how many times the tensors.
        elements: how many times their elements.

    Returns:
        the tasks; and ns, shape (tasks,), float64.
    """
    host = graph.select(kind="cpu", phase="optimizer") | graph.select(kind="cpu", within=ZERO_GRAD)
    kernels = graph.select(kind="kernel", phase="optimizer")
    tasks = (host | kernels).where(lambda each: each.layer == None)  # noqa: E711 - an array, one by one
    time = tasks.duration_ns.astype(np.float64)
    cpu = tasks.kind == "cpu"
    working = ~cpu if len(kernels) else cpu & (tasks.op != None)  # noqa: E711
    time[cpu] *= tensors
    if working.any():
        work = graph.tasks(tasks.ids[working])
        fixed = scaled_time(graph, work, 0.0).duration_ns
        whole = scaled_time(graph, work, elements).duration_ns
        calls = np.where(
            cpu[working], tensors, 1.0
        )  # on a CPU a tensor each, on a device a few for all
        time[working] = fixed * calls + (whole - fixed)
    return tasks, time


class CompiledPart(Struct, frozen=True):
    """What one compiled call holds.

    Attributes:
        tasks: tasks of the eager step that it takes the place of.
        parameters: parameter tensors that it uses.
    """

    tasks: Selection
    parameters: int


def compiled_parts(graph: Graph, tasks: Selection, layers: str | None) -> list[CompiledPart]:
    """Return what is compiled, a part for each compiled call.

    Args:
        graph: the graph of the trace.
        tasks: what could be compiled.
        layers: a shell pattern: each outermost module that matches is compiled by itself. None: all as one.

    Raises:
        NotApplicableError: no task is of such a layer.

    """
    if layers is None:
        return [CompiledPart(tasks, max(update_of(graph).tensors, 0))]
    blocks = tasks.group_by(block=layers)
    blocks.tasks.need(
        f"forward or backward work of layers {layers!r}; layers are recorded by `daydream collect`, and "
        "`*` is any text"
    )
    ids = np.split(blocks.by_group.ids, np.cumsum(blocks.sizes)[:-1])
    trained = trained_parameters(graph).tensors
    found = []
    for key, mine in zip(blocks.keys, ids, strict=True):
        inside = f"{key}."
        own = sum(
            many for layer, many in trained.items() if layer == key or layer.startswith(inside)
        )
        if len(mine):
            found.append(CompiledPart(blocks.tasks.of(np.sort(mine), tasks.words), own))
    return found


NODE = r"^autograd::engine::evaluate_function"
BETWEEN = ("data", "loss", "optimizer", "other")  # phases that part one backward pass from the next


def graph_walks(graph: Graph) -> Selection:
    """Return the CPU tasks whose gap holds such a walk: the one before each pass, and its last one.

    Only of threads that run the forward pass too. A GPU's nodes run on a thread of their own, and the
    caller's walks are in what it waits.
    """
    host = graph.select(kind="cpu").ids
    nodes = np.isin(host, graph.select(kind="cpu", name=NODE).ids)
    lane = graph.lane[host]
    phase = graph.phase[host]
    forward = unique(lane[phase == phase_code("forward")])
    found = []
    for each in forward.tolist():
        mine = np.flatnonzero(lane == each)
        between = np.isin(phase[mine], [phase_code(name) for name in BETWEEN])
        number = np.cumsum(between)
        first = np.flatnonzero(nodes[mine])
        _, place = np.unique(number[first], return_index=True)
        begins = first[place]
        inside = np.flatnonzero(
            np.isin(number, number[begins]) & (phase[mine] == phase_code("backward"))
        )
        last = inside[run_starts(number[inside][::-1])[::-1]]
        found += [host[mine[begins[begins > 0] - 1]], host[mine[last]]]
    ids = unique(np.concatenate(found)) if found else host[:0]
    return graph.tasks(ids.tolist())


def scale_autograd_walks(graph: Graph, factor: float) -> None:
    """Let autograd's walks over its graph take so many times as long, as over so many times the nodes.

    Before a backward pass it counts what each node waits for, behind it frees the graph: gaps of the CPU
    thread.
    """
    tasks = graph_walks(graph)
    if len(tasks):
        tasks.set(gap_ns=np.rint(tasks.gap_ns * factor).astype(np.int64))


def autograd_node_count(tasks: Selection) -> int:
    """Return how many of these tasks are calls of autograd's nodes."""
    return len(tasks.where(kind="cpu").where(name=NODE))
