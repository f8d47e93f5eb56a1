"""CUDA graphs: one call launches the device work of forward, backward and optimizer."""

from __future__ import annotations

from typing import Literal

from daydream.optimizations._captured_graphs import LAUNCH_US, NODE_US, launch_as_graphs

from daydream import Graph, GraphError
from daydream.costs import OVER_LINK
from daydream.memory import Allocations, hold_throughout
from daydream.model import GUARDS, in_replays, mostly_replayed
from daydream.transforms import stages

STAGE = stages.LAUNCH
CODE = "with torch.cuda.graph(torch.cuda.CUDAGraph()): train_step(static_batch)"

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


def memory(
    held: Allocations,
    *,
    launch_us: float = LAUNCH_US,
    node_us: float = NODE_US,
    optimizer: bool = True,
    layer: str | None = None,
    phase: Phase | None = None,
) -> None:
    """Hold inputs and gradients of what is captured all the time."""
    if layer is not None:
        held.note(f"Fixed copies of what layers {layer!r} read and return are not counted.")
    if layer is None and phase in (None, "forward"):
        hold_throughout(held, held.where(kind="input", on="gpu"), besides=True)
    if phase in (None, "backward"):
        hold_throughout(held, held.where(kind="gradient", on="gpu", layer=layer), besides=False)
