"""Parameter servers: gradients are pushed, and what comes back goes in the order in which it is needed."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from daydream import Graph, GraphError, Selection
from daydream.costs import elements, parse_shapes
from daydream.memory import Allocations, let_states_shrink
from daydream.model import MIB, Gradients, first_parameter_uses, gradients_of, update_calls, update_of
from daydream.transforms import counted, stages

STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp"})
COMMANDS = {"tictac": {"EXCLUDES": frozenset({"ddp", "fsdp", "p3"})}}
OF_JOBS = True

MOST_SLICES = 200_000  # in all steps: about a minute of simulation on one core
PUSH, PULL = "network", "network, back"  # one lane where every worker is a server too
PULLED = "parameters {}"  # a lane for what comes back for each task that waits: when all of it has come
OWN_UPDATE = r"^aten::[a-z]\w*_$"  # in place, of one tensor: `_foreach_` and `_fused_` ones take all of them


def p3(
    graph: Graph,
    *,
    workers: int = 4,
    servers: int = 0,
    bandwidth: float = 1.25,
    latency_us: float = 14.0,
    slice_mb: float = 0.19,
    update: Literal["worker", "server"] = "worker",
    gradient_mb: float | None = None,
) -> None:
    """Predict priority-based parameter propagation (Daydream, section 5.1).

    One of `workers` data-parallel workers is predicted from the trace of a single one. Each gradient is
    divided into slices of `slice_mb` MiB. A slice is pushed to a parameter server as soon as the
    gradient is there and pulled back `latency_us` later. Among the slices that are ready those whose
    parameters the forward pass reads first go first.

    With `update` by the server, as in the P3 paper and MXNet's key-value store, parameters come back: the
    next step's forward operator waits for its own only, and the worker's optimizer goes. With `update` by
    the worker summed gradients come back, then their parameters are updated, then read. An optimizer that
    loops over parameters updates those of an operator right before it; one that updates all in the same
    calls (foreach, fused) waits for the last gradient, and the forward pass for it.

    Sizes are the recorded ones, or `gradient_mb` MiB in total where the trace has none. Every worker is a
    server too, and its link of `bandwidth` GB/s carries (workers - 1)/workers of all gradients once as
    pushes and once as pulls. With `servers` machines of their own a slice takes workers/servers times as
    long where that is more than one, and pulls do not hold up pushes.

    Defaults: 4 workers and slices of 50,000 float32 values are those of the P3 paper (Jayarajan et al.,
    2019); 1.25 GB/s are 10 Gbit/s; 14 us is what NCCL reckons with for a step over a network. With
    `update` by the server a worker holds no optimizer states. Not modelled: copies to and from the CPU's
    memory, the servers' own time and memory.

    Args:
        workers: Number of workers.
        servers: Number of parameter servers; 0: as many as workers.
        bandwidth (GB/s): Network bandwidth of a machine.
        latency_us (us): Latency of a message.
        slice_mb (MiB): Size of a slice of gradients.
        update: Where parameters are updated.
        gradient_mb (MiB): Size of all gradients, if the trace lacks it.
    """
    if slice_mb <= 0:
        raise GraphError(f"slice_mb must be above 0, not {slice_mb:g}")
    _exchange(
        graph,
        workers=workers,
        servers=servers,
        bandwidth=bandwidth,
        latency_us=latency_us,
        update=update,
        gradient_mb=gradient_mb,
        slice_mb=slice_mb,
    )


def tictac(
    graph: Graph,
    *,
    workers: int = 4,
    servers: int = 0,
    bandwidth: float = 1.25,
    latency_us: float = 14.0,
    order: Literal["first-use", "ready"] = "first-use",
    update: Literal["worker", "server"] = "worker",
    gradient_mb: float | None = None,
) -> None:
    """Predict parameter servers whose transfers are ordered by first use (Hashemi et al., 2019).

    One of `workers` synchronous workers is predicted from the trace of a single one. Each gradient is
    pushed whole, as soon as it and the link are there. When all have come, and `latency_us` later, the
    parameters are pulled in the order in which the forward pass reads them, and each forward operator
    of the next step (with `update` by the worker: the update of its parameters) waits for its own.
    What the order gains is the difference to `order` ready: pulls as gradients were,
    the last layer first, about the worst of the orders that come without one.

    `servers`, `bandwidth` and `update`, `gradient_mb` and all defaults are those of `p3`, which goes
    further: it divides gradients into slices, orders pushes too and waits for no other parameter. Order
    by first use is the paper's TIC; its TAC, which weighs times as well, is the same for a forward pass
    that is a chain. Memory: with `update` by the server a worker holds no optimizer states. Not modelled:
    copies to and from the CPU's memory, the servers' own time and memory.

    Args:
        workers: Number of workers.
        servers: Number of parameter servers; 0: as many as workers.
        bandwidth (GB/s): Network bandwidth of a machine.
        latency_us (us): Latency of a message.
        order: Order of the transfers.
        update: Where parameters are updated.
        gradient_mb (MiB): Size of all gradients, if the trace lacks it.
    """
    _exchange(
        graph,
        workers=workers,
        servers=servers,
        bandwidth=bandwidth,
        latency_us=latency_us,
        update=update,
        gradient_mb=gradient_mb,
        order=order,
    )


def _exchange(
    graph: Graph,
    *,
    workers: int,
    servers: int,
    bandwidth: float,
    latency_us: float,
    update: str,
    gradient_mb: float | None,
    slice_mb: float | None = None,
    order: str = "",
) -> None:
    """Push each gradient and pull it back: in slices by urgency, or whole in an order."""
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
    place = _places(graph, gradients, users)
    slices = np.ones(len(gradients), np.int64)
    if slice_mb is not None:
        wanted = np.maximum(np.ceil(gradients.nbytes / (slice_mb * MIB)), 1)
        if wanted.sum() > MOST_SLICES:
            raise GraphError(
                f"slice_mb {slice_mb:g} makes {wanted.sum():,.0f} slices of the gradients of this trace, "
                f"more than {MOST_SLICES:,}: give a larger slice_mb"
            )
        slices = wanted.astype(np.int64)
    waiting, said = _update(graph, gradients, users, place, update)

    of = np.repeat(np.arange(len(gradients)), slices)
    size = (gradients.nbytes / slices)[of]
    share = (workers - 1) / workers if not servers else max(1.0, workers / servers)
    time, nbytes = size * share / bandwidth, np.rint(size).astype(np.int64)
    pushed = graph.insert_after(
        gradients.nodes[of],
        "push",
        kind="collective",
        lane=PUSH,
        duration_ns=time,
        gap_ns=0,
        after=gradients.makers[of],
        bytes=nbytes,
        launched=False,
    )
    steps = pushed.group_by("step", "rank")
    turn, cause = np.arange(len(of)), pushed
    if slice_mb is None:  # pulls begin when all of a step has come
        turn = np.lexsort((place, steps.number)) if order == "first-use" else turn
        cause = steps.last()[steps.number[turn]]
    back = PULL if servers else PUSH
    pulled = graph.insert_after(
        cause, "pull", lane=back, duration_ns=time[turn], gap_ns=0, bytes=nbytes[turn], launched=False
    )
    graph.link(cause, pulled, latency_ns=latency_us * 1e3)
    if slice_mb is not None:
        urgency = np.zeros(graph.size, np.int64)
        urgency[pushed.ids] = urgency[pulled.ids] = place[of]
        for lane in {PUSH, back}:
            graph.schedule(lane, key=lambda tasks: urgency[tasks.ids])

    # What one task waits for has come with the last of it.
    waiting = waiting[of[turn]]
    come = pulled.group_by("step", "rank", waiting)
    place_of = dict(zip(waiting.tolist(), place[of[turn]].tolist(), strict=True))
    lanes = [PULLED.format(place_of[task]) for *_, task in come.keys]
    there = graph.insert_after(
        come.last(), "parameters are there", lane=lanes, duration_ns=0, gap_ns=0, launched=False
    )
    graph.link(pulled, there[come.number])
    waits = graph.tasks([task for *_, task in come.keys])
    if (waits.kind == "cpu").all():
        waits.wait_for(lanes)
    else:
        known = np.flatnonzero(waits.launch >= 0)  # what was launched before the window follows no step of it
        calls = graph.tasks(waits.launch[known])
        calls.wait_for([lanes[one] for one in known], on=waits.lane[known].tolist())
    graph.covers(workers)
    sent = round(len(of) / len(steps))
    graph.note(
        f"{gradients.nbytes.sum() / len(steps) / MIB:,.1f} MiB of gradients per step in "
        f"{counted(sent, 'slice') if slice_mb else counted(sent, 'transfer') + ' each way'}; "
        f"{counted(workers, 'worker')}, "
        f"{counted(servers, 'server') if servers else 'each of them a server too'}. {said}"
    )


def _places(graph: Graph, gradients: Gradients, users: Selection) -> np.ndarray:
    """Return the place of each parameter's first reader among those of its step, by program order."""
    order = graph.columns["order"][users.ids]
    found = np.zeros(len(users), np.int64)
    steps = gradients.nodes.group_by("step", "rank")
    for step in range(len(steps)):
        here = steps.number == step
        found[here] = np.unique(order[here], return_inverse=True)[1]
    if len({int(found[steps.number == step].max()) for step in range(len(steps))}) > 1:
        graph.does_not_apply("its steps train different parameters, so what waits for which is not known")
    return found


def _update(
    graph: Graph, gradients: Gradients, users: Selection, place: np.ndarray, update: str
) -> tuple[np.ndarray, str]:
    """Let the update run where it does; return the task that waits for each gradient's parameter, and why.

    Servers update: the worker's update goes, and the forward operators that read the
    parameters wait. The worker updates, parameter by parameter: the part of each
    operator's parameters runs right before that operator, and waits for their gradients. The worker
    updates all parameters in the same calls, or which part is whose is not known: the first of
    these waits for all gradients of its step.
    """
    device, calls = graph.select(on="gpu", phase="optimizer"), update_calls(graph)
    by_server = update == "server" or not len(device | calls)
    parts = None if by_server else _parts(graph, gradients, device, calls)
    if not by_server and parts is None:
        waiting = users.ids.copy()
        steps = gradients.nodes.group_by("step", "rank")
        by_step = (device if len(device) else calls).group_by("step", "rank")
        for number, (key, nodes) in enumerate(steps.items()):
            updates = by_step[key] if key in by_step.keys else device[:0]
            following = int(updates.next_after(nodes).max(initial=0))
            if following < len(updates):
                waiting[steps.number == number] = updates.ids[following]
        return waiting, (
            "The worker updates all parameters together, as far as the trace shows, so the update waits for "
            "the last gradient and the forward pass for the update; `--update server` shows what the order "
            "gains."
        )
    for gone in (device, calls):
        if len(gone):
            gone.remove()
    if parts is None:
        return users.ids, "The servers update the parameters; their own time is not modelled."
    reads = users.group_by("step", "rank", place)
    before = reads.first()
    on_cpu, on_device = (np.bincount(reads.number, time, len(reads)) for time in parts)
    if len(device) and len(called := before.where(lambda tasks: tasks.launch >= 0)):
        left = np.maximum(on_cpu - graph.facts.launch_cost_ns, 0)[before.launch >= 0]
        graph.insert_before(called, "update of parameters", kind="cpu", phase="optimizer", duration_ns=left)
    updates = graph.insert_before(
        before,
        "update of parameters",
        kind="kernel" if len(device) else None,
        phase="optimizer",
        duration_ns=on_device if len(device) else on_cpu,
    )
    return updates.ids[reads.number], (
        "The worker updates the parameters of an operator when they have come, right before they are read."
    )


def _parts(
    graph: Graph, gradients: Gradients, device: Selection, calls: Selection
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return CPU and device time of the update of each gradient's parameter; None if they cannot be told.

    They can where the update is a loop over parameters: an operator that runs once for each, on tensors of
    their sizes, begins each part. Of parameters of one size the order is that of first use.
    """
    steps = np.array(gradients.step_and_rank)
    first = calls.where(op=OWN_UPDATE).group_by("step", "rank", "call").first()
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


def memory(held: Allocations, *, update: str = "worker", **options: Any) -> None:
    """Hold no optimizer states where servers update."""
    if update == "server":
        held.remove(held.where(kind="temporary", phase="optimizer"))
        let_states_shrink(held)
