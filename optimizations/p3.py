"""Parameter servers: gradients are pushed, and what comes back goes in the order in which it is needed."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from math import ceil
from typing import Any, Literal

from daydream.optimizations._gradient_collectives import refuse_ranks

from daydream import Graph, GraphError, Selection
from daydream.costs import elements, parse_shapes
from daydream.memory import Allocations, let_states_shrink
from daydream.model import MIB, Gradients, first_parameter_uses, gradients_of, update_calls, update_of
from daydream.transforms import counted, stages

STAGE = stages.PARALLEL
COMMANDS = {"tictac": {"EXCLUDES": {"ddp", "fsdp", "p3"}}}
OF_JOBS = True

MOST_SLICES = 200_000  # in all steps: about a minute of simulation on one core
# One lane where every worker is a server too
PUSH = "network"
PULL = "network, back"
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
    _exchange(graph, workers, servers, bandwidth, latency_us, update, gradient_mb, slice_mb=slice_mb)


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
    _exchange(graph, workers, servers, bandwidth, latency_us, update, gradient_mb, order=order)


def _exchange(
    graph: Graph,
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
    refuse_ranks(graph)
    gradients = gradients_of(graph, gradient_mb)
    users = first_parameter_uses(graph, gradients)
    place, nbytes = _places(graph, gradients, users), gradients.nbytes.tolist()
    slices = [1] * len(nbytes)
    if slice_mb is not None:
        slices = [max(ceil(each / (slice_mb * MIB)), 1) for each in nbytes]
        if sum(slices) > MOST_SLICES:
            raise GraphError(
                f"slice_mb {slice_mb:g} makes {sum(slices):,.0f} slices of the gradients of this trace, "
                f"more than {MOST_SLICES:,}: give a larger slice_mb"
            )
    waiting, said = _update(graph, gradients, users, place, update)

    of = [one for one, count in enumerate(slices) for _ in range(count)]
    sizes = [nbytes[one] / slices[one] for one in of]
    share = (workers - 1) / workers if not servers else max(1.0, workers / servers)
    transfer: dict[str, Any] = {"gap_ns": 0, "launched": False}
    pushed = graph.insert_after(
        gradients.nodes[of],
        "push",
        kind="collective",
        lane=PUSH,
        duration_ns=[each * share / bandwidth for each in sizes],
        after=gradients.makers[of],
        bytes=[round(each) for each in sizes],
        **transfer,
    )
    steps = pushed.group_by("step", "rank")
    turn, cause = list(range(len(of))), pushed
    if order == "first-use":
        turn.sort(key=lambda one: (steps.number[one], place[one]))
    if slice_mb is None:  # pulls begin when all of a step has come
        cause = steps.last()[steps.number[turn]]
    back = PULL if servers else PUSH
    size = {name: getattr(pushed, name)[turn] for name in ("duration_ns", "bytes")}
    pulled = graph.insert_after(cause, "pull", lane=back, **size, **transfer)
    graph.link(cause, pulled, latency_ns=latency_us * 1e3)
    places = [place[of[one]] for one in turn]
    if slice_mb is not None:
        urgency = dict(zip([*pushed.ids.tolist(), *pulled.ids.tolist()], places * 2, strict=True))
        for lane in {PUSH, back}:
            graph.schedule(lane, key=lambda tasks: [urgency[task] for task in tasks.ids.tolist()])

    # What one task waits for has come with the last of it.
    come = pulled.group_by("step", "rank", [waiting[of[one]] for one in turn])
    place_of = dict(zip(come.number.tolist(), places, strict=True))  # in the order of the groups
    lanes = list(map(PULLED.format, place_of.values()))
    there = graph.insert_after(come.last(), "parameters are there", lane=lanes, duration_ns=0, **transfer)
    graph.link(pulled, there[come.number])
    waits = graph.tasks([task for *_, task in come.keys])
    if (waits.kind == "cpu").all():
        waits.wait_for(lanes)
    else:  # what was launched before the window follows no step of it
        known = waits.where(lambda tasks: tasks.launch >= 0)
        lane_of = dict(zip(waits.ids.tolist(), lanes, strict=True))
        calls = graph.tasks(known.launch)
        calls.wait_for([lane_of[task] for task in known.ids.tolist()], on=known.lane.tolist())
    graph.covers(workers)
    graph.note(
        f"{sum(nbytes) / len(steps) / MIB:,.1f} MiB of gradients per step in "
        f"{counted(round(len(of) / len(steps)), 'slice' if slice_mb else 'transfer')}"
        f"{'' if slice_mb else ' each way'}; {counted(workers, 'worker')}, "
        f"{counted(servers, 'server') if servers else 'each of them a server too'}. {said}"
    )


def _places(graph: Graph, gradients: Gradients, users: Selection) -> list[int]:
    """Return the place of each parameter's first reader among those of its step, by program order."""
    reads = list(zip(gradients.step_and_rank, users.order.tolist(), strict=True))
    of_step: dict[tuple[int, int], list[int]] = {}
    for step, at in sorted(set(reads)):
        of_step.setdefault(step, []).append(at)
    if len({len(each) for each in of_step.values()}) > 1:
        graph.does_not_apply("its steps train different parameters, so what waits for which is not known")
    return [bisect(of_step[step], at) - 1 for step, at in reads]


def _update(
    graph: Graph, gradients: Gradients, users: Selection, place: list[int], update: str
) -> tuple[list[int], str]:
    """Let the update run where it does; return the task that waits for each gradient's parameter, and why.

    Servers update: the worker's update goes, and the forward operators that read the
    parameters wait. The worker updates, parameter by parameter: the part of each
    operator's parameters runs right before that operator, and waits for their gradients. The worker
    updates all parameters in the same calls, or which part is whose is not known: the first of
    these waits for all gradients of its step.
    """
    device = graph.select(on="gpu", phase="optimizer")
    calls = update_calls(graph)
    by_server = update == "server" or not len(device | calls)
    parts = None if by_server else _parts(graph, gradients, place, device, calls)
    if not by_server and parts is None:
        by_step = (device if len(device) else calls).group_by("step", "rank")
        first: dict[tuple[int, int], list[int]] = {}
        for key, nodes in gradients.nodes.group_by("step", "rank").items():
            updates = by_step[key] if key in by_step.keys else device[:0]
            first[key] = updates.ids[updates.next_after(nodes).max(initial=0) :][:1].tolist()
        waiting = [
            (first[key] or [user])[0]
            for key, user in zip(gradients.step_and_rank, users.ids.tolist(), strict=True)
        ]
        return waiting, (
            "The worker updates all parameters together, as far as the trace shows, so the update waits for "
            "the last gradient and the forward pass for the update; `--update server` shows what the order "
            "gains."
        )
    for gone in (device, calls):
        if len(gone):
            gone.remove()
    if parts is None:
        return users.ids.tolist(), "The servers update the parameters; their own time is not modelled."
    reads = users.group_by("step", "rank", place)
    before = reads.first()
    on_cpu, on_device = ([part[key] for key in reads.keys] for part in parts)
    if len(device):
        spent = dict(zip(before.ids.tolist(), on_cpu, strict=True))
        called = before.where(lambda tasks: tasks.launch >= 0)
        left = [max(spent[task] - graph.facts.launch_cost_ns, 0) for task in called.ids.tolist()]
        if left:
            graph.insert_before(
                called, "update of parameters", kind="cpu", phase="optimizer", duration_ns=left
            )
    updates = graph.insert_before(
        before,
        "update of parameters",
        kind="kernel" if len(device) else None,
        phase="optimizer",
        duration_ns=on_device if len(device) else on_cpu,
    )
    return updates.ids[reads.number].tolist(), (
        "The worker updates the parameters of an operator when they have come, right before they are read."
    )


Part = tuple[int, int, int]  # step, rank, and the place of a parameter


def _parts(
    graph: Graph, gradients: Gradients, place: list[int], device: Selection, calls: Selection
) -> tuple[Counter[Part], Counter[Part]] | None:
    """Return CPU and device time of the update of each place's parameters; None if they cannot be told.

    They can where the update is a loop over parameters: an operator that runs once for each, on tensors of
    their sizes, begins each part. Of parameters of one size the order is that of first use.
    """
    own = calls.where(op=OWN_UPDATE).group_by("step", "rank", "call").first().group_by("step", "rank")
    launched = device.where(lambda tasks: tasks.launch >= 0)
    work = [
        (calls, calls.order, calls.duration_ns + calls.gap_ns),
        (launched, graph.tasks(launched.launch).order, launched.duration_ns),
    ]
    size = gradients.nbytes // update_of(graph).width
    of_step: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # size, last first, place
    for turn, (key, *parameter) in enumerate(zip(gradients.step_and_rank, size.tolist(), place, strict=True)):
        of_step.setdefault(key, []).append((parameter[0], -turn, parameter[1]))
    begins = {}
    for key, parameters in of_step.items():
        updates = own[key] if key in own.keys else calls[:0]
        begun: dict[str, list[tuple[int, int]]] = {}
        sizes = [elements((parse_shapes(text) or [()])[0]) for text in updates.shapes]
        for op, *begin in zip(updates.op, updates.order.tolist(), sizes, strict=True):
            begun.setdefault(op, []).append((begin[0], begin[1]))
        # Gradients come in the order of the backward pass: of one size, the last one is the first parameter.
        wanted = sorted(parameters)
        loops = []
        for runs in begun.values():
            by_size = sorted((nbytes, at) for at, nbytes in runs)
            if [nbytes for nbytes, _ in by_size] == [nbytes for nbytes, *_ in wanted]:
                loops.append(sorted(zip([at for _, at in by_size], [one[2] for one in wanted], strict=True)))
        if not loops:
            return None
        begins[key] = min(loops)
    found: tuple[Counter[Part], Counter[Part]] = Counter(), Counter()
    for time, (tasks, order, spent) in zip(found, work, strict=True):
        rows = zip(tasks.step.tolist(), tasks.rank.tolist(), order.tolist(), spent.tolist(), strict=True)
        for step, rank, at, ns in rows:
            if starts := begins.get((step, rank)):
                part = max(bisect(starts, (at, MOST_SLICES)) - 1, 0)
                time[step, rank, starts[part][1]] += ns
    return found


def memory(held: Allocations, *, update: str = "worker", **options: Any) -> None:
    """Hold no optimizer states where servers update."""
    if update == "server":
        held.remove(held.where(kind="temporary", phase="optimizer"))
        let_states_shrink(held)
