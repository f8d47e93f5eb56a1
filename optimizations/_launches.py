"""Launches: CUDA graphs, and calls that no longer wait for the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from daydream import Graph, GraphError, Groups, Selection
from daydream.costs import OVER_LINK
from daydream.memory import unchanged
from daydream.model import (
    GUARDS,
    Captured,
    capture,
    capture_parts,
    in_replays,
    mostly_replayed,
    start_as_nodes,
)
from daydream.transforms import counted, stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

STAGE = stages.LAUNCH

CALL = "cudaGraphLaunch"
# Measured on an RTX 5070 Ti (ahrefs/ocannl, issue 488)
LAUNCH_US = 15.0
NODE_US = 0.58
LEAST_SAID_NS = 10_000


def launch_as_graphs(
    graph: Graph,
    captured: Selection,
    other: Selection,
    *,
    phases: Sequence[str],
    launch_us: float,
    node_us: float,
    layer: str | None = None,
    apart: Sequence[Sequence[str]] | None = None,
) -> None:
    """Let graphs launch some device work, and note how many there are and what CPU time goes.

    Args:
        graph: the graph of the trace.
        captured: device work that was launched by calls of its own.
        other: other device work: its launches stay, and part the graphs.
        phases: phases whose CPU work goes.
        launch_us: what the launch of a graph takes on the CPU, us.
        node_us: most time between two nodes that follow each other on a stream, us.
        layer: a shell pattern; each outermost module that matches has graphs of its own.
        apart: groups of phases that have graphs of their own, by default one of all.

    """
    waits = graph.select(kind="cpu").waiting().on_lanes_of(captured.launches())
    by = waits | waits.waited_for() | other.launches()
    parts = _parts(graph, captured, by, layer, apart or [phases])
    nodes = len(captured) / len(parts)
    stays = waits | other.launches()
    if len(other.where(lambda tasks: tasks.op != None)):  # noqa: E711 - a column of texts and None
        stays = stays | other.operators()
    start_as_nodes(captured, round(node_us * 1e3))
    taken = capture(graph, parts, name=CALL, launch_ns=round(launch_us * 1e3), stays=stays, phases=phases)
    many = max(len(captured.group_by("step")), 1)
    graph.note(
        f"{counted(round(len(parts) / many), 'graph')} per step, {counted(round(nodes), 'node')} each."
    )
    _say(graph, taken)


def _parts(
    graph: Graph, captured: Selection, by: Selection, layer: str | None, apart: Sequence[Sequence[str]]
) -> Groups:
    """Return the work in groups that one graph each launches."""
    if layer is None and len(apart) == 1:
        return capture_parts(graph, captured, by)
    number: dict[int, int] = {}
    modules = [captured] if layer is None else captured.group_by(block=layer)
    count = 0
    for module in modules:
        for phases in apart:
            held = module.where(phase=tuple(phases))
            if not len(held):
                continue
            for part in capture_parts(graph, held, by | (captured - held).launches()):
                number |= dict.fromkeys(part.ids.tolist(), count)
                count += 1
    parts = captured.group_by([number.get(task, -1) for task in captured.ids.tolist()])
    if len(parts.first().launches()) < len(parts):
        graph.does_not_apply(
            f"some calls launched work of several of the layers {layer!r} at once, as compiled code does: "
            "none of them can be a graph by itself"
        )
    return parts


def _say(graph: Graph, taken: Captured) -> None:
    """Note how much of the CPU time that goes is untraced, and how much between captured launches stays."""
    steps = max(sum(bool(step.get("covered")) for step in graph.steps), 1)
    if taken.untraced > 0:
        graph.note(
            f"Of the CPU time that goes, {taken.untraced / steps / 1e6:,.2f} ms per step "
            f"({taken.untraced / (taken.untraced + max(taken.work, 0)):.0%}) are untraced: taken for Python "
            "between launches."
        )
    if taken.stays > LEAST_SAID_NS * steps:
        graph.note(
            f"{taken.stays / steps / 1e6:,.2f} ms per step of CPU time between captured launches stay: calls "
            "and pauses of over 1 ms and allocations are first uses, file access or waiting."
        )


WITH_GRAPHS = ("cuda", "rocm")
STEP = ("forward", "loss", "backward", "optimizer")
Phase = Literal["forward", "backward", "optimizer"]


def cuda_graphs(
    graph: Graph,
    *,
    launch_us: float = LAUNCH_US,
    node_us: float = NODE_US,
    optimizer: bool = True,
    layer: str | None = None,
    phase: Phase | None = None,
) -> None:
    """Predict a step that is captured and replayed as CUDA (or HIP) graphs.

    Forward, loss, backward and, with `optimizer` (by default), update are launched by one call; the
    Python, operators and launches that did so go from all threads. The call takes `launch_us`
    on the CPU, and no more than `node_us` lie between nodes that follow each other on a
    stream: 15 us and 0.58 us a node measured on an RTX 5070 Ti (ahrefs/ocannl, issue 488).
    Calls that cannot be captured stay where they are and part the step in several graphs: waits
    of the CPU for the device and the events they wait for, copies from and to the CPU, graphs that the
    step has already.
    A step without such parts is one graph. Untraced CPU time between two launches of a graph goes too, as
    Python that a replay does not run; a note says how much it is. What lies before a graph's first launch
    and after its last stays, and so do pauses and calls of over 1 ms and allocations: loading, first
    uses, file access, waiting (daydream/model/captured.py). Guards and wrappers that `compile` puts before
    its calls go: a replay calls no model.

    With `layer`, a shell pattern, or `phase` parts of the step are captured, and the rest is launched as
    before: with `layer` forward and backward of each outermost module that matches are a graph each, as
    `torch.cuda.make_graphed_callables` makes them; with `phase` only that phase is. Together they are,
    say, the forward pass of some layers only.

    Memory: inputs and gradients lie at fixed addresses, so that they are held all the time, inputs
    besides the batch they are copied from. What the graphs' own pool reserves is never shared.

    Not modelled: capture itself, the time of copying inputs to fixed addresses, branches and shapes that
    change (they cannot be captured), CPU tensors in forward or backward (a replay computes them no more).

    Args:
        launch_us (us): CPU time of launching a graph.
        node_us (us): Time between two nodes of a graph.
        optimizer: Capture the optimizer, too.
        layer (GLOB): Capture only these modules, by path: blocks.*.
        phase: Capture only this phase.
    """
    if min(launch_us, node_us) < 0:
        raise GraphError(f"launch_us and node_us must be 0 or more, not {launch_us:g} and {node_us:g}")
    phases = _phases(optimizer=optimizer, layer=layer, phase=phase)
    vendor = "" if graph.trace is None else graph.trace.metadata.get("vendor", "")
    if vendor not in ("", "cpu", *WITH_GRAPHS):
        graph.does_not_apply(f"graphs that are captured and replayed are of CUDA and ROCm, not of {vendor}")
    device = graph.select(on="gpu", phase=phases)
    device.need("device work in the forward or backward pass", lacks="device")
    replayed = in_replays(device)
    if mostly_replayed(device):
        graph.does_not_apply("most device work of the step is launched by graphs already")
    launched = device.where(lambda tasks: tasks.launch >= 0)
    captured = launched - replayed - launched.where(kind="memcpy", name=OVER_LINK)
    captured.need("device work that a graph could hold")
    if layer is not None:
        blocks = captured.group_by(block=layer).tasks
        captured = blocks.need(f"device work of layers {layer!r}; layers are recorded by `daydream collect`")
    if not len(replayed):
        _remove_guards(graph, phases, layer)
    launch_as_graphs(
        graph,
        captured,
        graph.select(on="gpu", phase=STEP if phase or layer else phases) - captured,
        phases=phases,
        launch_us=launch_us,
        node_us=node_us,
        layer=layer,
        apart=None if layer is None else [[each] for each in phases],
    )


def _remove_guards(graph: Graph, phases: tuple[str, ...], layer: str | None) -> None:
    """Take away what compiled code does before each call: a replay calls no model."""
    guards = graph.select(kind="cpu", phase=phases, name=GUARDS)
    guards = guards if layer is None else guards.group_by(block=layer).tasks
    if len(guards):
        guards.remove()


def _phases(*, optimizer: bool, layer: str | None, phase: str | None) -> tuple[str, ...]:
    """Return the phases that are captured."""
    if phase == "optimizer" and layer is not None:
        raise GraphError("a layer's graphs are of its forward and backward pass; leave out phase or layer")
    if phase == "optimizer" and not optimizer:
        raise GraphError("phase=optimizer captures the update, and optimizer=False leaves it out; give one")
    if phase is not None:
        return (phase,)
    if layer is not None:
        return ("forward", "backward")
    return STEP if optimizer else STEP[:3]


def _memory_cuda_graphs(held: Allocations, *, layer: str | None, phase: Phase | None, **options: Any) -> None:
    """Hold inputs and gradients of what is captured all the time."""
    from daydream.memory import hold_throughout  # asked only where memory was recorded

    if layer is not None:
        held.note(f"Fixed copies of what layers {layer!r} read and return are not counted.")
    if layer is None and phase in (None, "forward"):
        hold_throughout(held, held.where(kind="input", on="gpu"), besides=True)
    if phase in (None, "backward"):
        hold_throughout(held, held.where(kind="gradient", on="gpu", layer=layer), besides=False)


ALLOCATION = r"(?i)malloc|free"  # waits that no line of the program asked for


def remove_sync(graph: Graph, *, which: str | None = None) -> None:
    """Predict a step whose blocking calls do not wait for the device.

    `which` is a regular expression on the operator or the call that waits: `item|local_scalar`,
    `nonzero`, `DeviceSynchronize`, `aten::copy_`. Without it every wait of the steps goes: an
    upper bound. Waits of memory allocation go only where `which` matches the call's own name.
    The copies themselves and what the calls cost by themselves stay. Only times change: a value
    that the program reads (a loss that is printed, a size that shapes the next operator) has to
    come later, or from the CPU.
    A copy from pageable memory waits because the driver stages it; see pinned-memory.

    Args:
        which (REGEX): Waiting calls to remove; by default all.
    """
    waits = graph.select(kind="cpu").waiting()
    allocation = graph.select(kind="cpu", name=ALLOCATION)
    last_launch = int(graph.select(on="gpu").need("device work to wait for", lacks="device").order.max())
    # The profiler's own wait ends the window, and watchdogs wait on threads that nothing waits for.
    background = [lane.name for lane in graph.lanes if lane.background]
    waits = waits.where(lambda tasks: tasks.order < last_launch) - waits.where(lane=background)
    waits.need("calls that wait for the device, but at the end of the window")
    if which is None:
        waits = (waits - allocation).need("calls that wait for the device, but for memory allocation")
    else:
        waits = (waits - allocation).where(op=which) | waits.where(name=which)
        waits.need(f"waiting call whose name or operator matches {which!r}")
    waits.stop_waiting()
    steps = max(len(waits.group_by("step")), 1)
    calls = waits.group_by("row").first() if (waits.row >= 0).all() else waits
    common = Counter(op or name for op, name in zip(calls.op.tolist(), calls.name.tolist(), strict=True))
    listed = ", ".join(f"{name} {count / steps:.3g}" for name, count in common.most_common(4))
    graph.note(f"Waits removed per step: {listed}.")


COMMANDS = {
    "cuda-graphs": {
        "CODE": "with torch.cuda.graph(torch.cuda.CUDAGraph()): train_step(static_batch)",
        "memory": _memory_cuda_graphs,
    },
    "remove-sync": {
        "CODE": "losses.append(loss.detach())  # .item() when the loop is over",
        "memory": unchanged,
    },
}
