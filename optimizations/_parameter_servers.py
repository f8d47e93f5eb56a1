"""Workers of parameter servers: what waits for the parameters that come back, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from daydream import Graph, GraphError, Selection
from daydream.costs import elements, parse_shapes
from daydream.model import Gradients, first_parameter_uses, gradients_of, update_calls, update_of

By: TypeAlias = Literal["worker", "server"]
PUSH, PULL = "network", "network, back"  # one lane where every worker is a server too
PULLED = "parameters {}"  # a lane for what comes back for each task that waits: when all of it has come
OWN_UPDATE = r"^aten::[a-z]\w*_$"  # in place, of one tensor: `_foreach_` and `_fused_` ones take all of them


@dataclass(frozen=True)
class Waiting:
    """For each gradient the task that waits for what comes back, and which come for one task together.

    `group` numbers the groups of a step alike in every step. `said` is a sentence for the result.
    """

    tasks: np.ndarray
    group: np.ndarray
    said: str


def to_exchange(
    graph: Graph,
    gradient_mb: float | None,
    *,
    workers: int,
    servers: int,
    bandwidth: float,
    latency_us: float,
) -> tuple[Gradients, Selection, np.ndarray]:
    """Return the gradients, for each the operator that reads its parameter, and that one's place in its step.

    Raises `GraphError` if the network makes no sense, `NotApplicableError` if there is nothing to exchange.
    """
    if workers < 1 or servers < 0 or bandwidth <= 0 or latency_us < 0:
        raise GraphError(
            "workers must be 1 or more, servers and latency_us 0 or more, bandwidth above 0, "
            f"not {workers}, {servers}, {latency_us:g} and {bandwidth:g}"
        )
    if workers == 1:
        graph.does_not_apply("one worker has no gradients to exchange")
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")
    gradients = gradients_of(graph, gradient_mb)
    users = first_parameter_uses(graph, gradients)
    return gradients, users, places(graph, gradients.step_and_rank, users.ids)


def places(graph: Graph, steps: list[tuple[int, int]], users: np.ndarray) -> np.ndarray:
    """Return the place of each operator among those of its step, in the order of the forward pass."""
    order = graph.columns["order"][users]
    found = np.zeros(len(users), np.int64)
    counts = set()
    for step in set(steps):
        here = np.array([one == step for one in steps])
        distinct, found[here] = np.unique(order[here], return_inverse=True)
        counts.add(len(distinct))
    if len(counts) > 1:
        graph.does_not_apply("its steps train different parameters, so what waits for which is not known")
    return found


def update_where(
    graph: Graph, gradients: Gradients, users: Selection, place: np.ndarray, update: By
) -> Waiting:
    """Let the update run where it does, and return what waits for what comes back.

    Servers update: the worker's update goes, and the forward operators that read the
    parameters wait. The worker updates, parameter by parameter: the part of each
    operator's parameters runs right before that operator, and waits for their gradients. The worker
    updates all parameters in the same calls, or which part is whose is not known: the first of
    these waits for all gradients of its step.
    """
    device = graph.select(on="gpu", phase="optimizer")
    calls = update_calls(graph)
    if update == "server" or not len(device | calls):
        _remove(device, calls)
        return Waiting(users.ids, place, "The servers update the parameters; their own time is not modelled.")
    parts = _parts(graph, gradients, device, calls)
    if parts is None:
        return _joint(graph, gradients, users, place, device if len(device) else calls)
    _remove(device, calls)
    steps = np.array(gradients.step_and_rank).T
    _, first, group = np.unique(np.vstack([steps, place]), axis=1, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    on_cpu, on_device = (np.bincount(group, time, len(first)) for time in parts)
    before = graph.tasks(users.ids[first])
    if len(device):
        known = before.launch >= 0
        if known.any():
            graph.insert_before(
                graph.tasks(before.ids[known]), "update of parameters", kind="cpu", phase="optimizer",
                duration_ns=np.maximum(on_cpu[known] - graph.facts.launch_cost_ns, 0),
            )  # fmt: skip
        updates = graph.insert_before(
            before, "update of parameters", kind="kernel", phase="optimizer", duration_ns=on_device
        )
    else:
        updates = graph.insert_before(before, "update of parameters", phase="optimizer", duration_ns=on_cpu)
    said = "The worker updates the parameters of an operator when they have come, right before they are read."
    return Waiting(updates.ids[group], place, said)


def wait_for_parameters(graph: Graph, waiting: np.ndarray, lanes: list[str]) -> None:
    """Let each task wait for the parameters that came last on its lane."""
    if (graph.columns["kind"][waiting] == 0).all():
        graph.tasks(waiting).wait_for(lanes)
        return
    calls = graph.columns["launch"][waiting]
    known = calls >= 0  # what was launched before the window follows no step of it
    streams = graph.tasks(waiting[known]).lane.tolist()
    names = [lane for lane, there in zip(lanes, known.tolist(), strict=True) if there]
    graph.tasks(calls[known]).wait_for(names, on=streams)


def _remove(device: Selection, calls: Selection) -> None:
    for gone in (device, calls):
        if len(gone):
            gone.remove()


def _joint(
    graph: Graph, gradients: Gradients, users: Selection, place: np.ndarray, updates: Selection
) -> Waiting:
    """Return the first task of each step's update, for all of its gradients; without one, the users."""
    order = graph.columns["order"]
    waiting, group = users.ids.copy(), place.copy()
    of_step = {key: tasks.ids for key, tasks in updates.group_by("step", "rank").items()}
    steps = np.array(gradients.step_and_rank)
    for key in np.unique(steps, axis=0).tolist():
        here = np.flatnonzero((steps == key).all(axis=1))
        ids = of_step.get(tuple(key), np.empty(0, np.int64))
        ids = ids[order[ids] > order[gradients.nodes.ids[here]].max()]
        if len(ids):
            waiting[here], group[here] = ids[np.argmin(order[ids])], 0
    return Waiting(
        waiting, group,
        "The worker updates all parameters together, as far as the trace shows, so the update waits for the "
        "last gradient and the forward pass for the update; `--update server` shows what the order gains.",
    )  # fmt: skip


def _parts(
    graph: Graph, gradients: Gradients, device: Selection, calls: Selection
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return CPU and device time of the update of each gradient's parameter; None if they cannot be told.

    They can where the update is a loop over parameters: an operator that runs once for each, on tensors of
    their sizes, begins each part. Of parameters of one size the order is that of first use.
    """
    steps = np.array(gradients.step_and_rank)
    single = calls.where(op=OWN_UPDATE)
    if not len(single):
        return None
    first = single.group_by("step", "rank", "call").first()
    sizes = np.array([_first_size(text) for text in first.shapes.tolist()], np.int64)
    order, width = graph.columns["order"], update_of(graph).width
    on_cpu, on_device = np.zeros(len(gradients)), np.zeros(len(gradients))
    columns = graph.columns
    time = (columns["duration_ns"] + columns["gap_ns"]).astype(np.float64)
    launch = columns["launch"][device.ids].astype(np.int64)
    for key in np.unique(steps, axis=0).tolist():
        here = np.flatnonzero((steps == key).all(axis=1))
        mine = (first.step == key[0]) & (first.rank == key[1])
        begins = _begins(order[first.ids[mine]], first.op[mine], sizes[mine], gradients.nbytes[here] // width)
        if begins is None:
            return None
        starts, owner = begins
        owner = here[owner]
        cpu = calls.ids[(calls.step == key[0]) & (calls.rank == key[1])]
        kernels = (device.step == key[0]) & (device.rank == key[1]) & (launch >= 0)
        for ids, at, total, spent in (
            (cpu, order[cpu], on_cpu, time[cpu]),
            (device.ids[kernels], order[launch[kernels]], on_device, device.duration_ns[kernels]),
        ):
            if len(ids):
                part = np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)
                np.add.at(total, owner[part], spent)
    return on_cpu, on_device


def _begins(
    order: np.ndarray, op: np.ndarray, sizes: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return where the part of each parameter begins, and the gradient that it belongs to."""
    found = None
    for name in dict.fromkeys(op.tolist()):
        here = np.flatnonzero(op == name)
        here = here[np.argsort(order[here], kind="stable")]
        if len(here) != len(wanted) or not np.array_equal(np.sort(sizes[here]), np.sort(wanted)):
            continue
        if found is None or order[here[0]] < order[found[0]]:
            found = here
    if found is None:
        return None
    # Gradients come in the order of the backward pass: of one size, the last one is the first parameter.
    owner = np.empty(len(found), np.int64)
    by_size = np.lexsort((-np.arange(len(wanted)), wanted))
    owner[np.lexsort((np.arange(len(found)), sizes[found]))] = by_size
    return order[found], owner


def _first_size(text: str | None) -> int:
    arguments = parse_shapes(text) or [()]
    return elements(arguments[0]) if arguments else 0
