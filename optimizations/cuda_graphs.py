"""CUDA graphs: one call launches the device work of forward, backward and optimizer."""

from __future__ import annotations

from daydream import Graph, GraphError
from daydream.memory import Allocations, hold_throughout
from daydream.model import Captured, capture, capture_parts, in_replays, mostly_replayed, start_as_nodes
from daydream.transforms import counted, stages

STAGE = stages.LAUNCH
CODE = "with torch.cuda.graph(torch.cuda.CUDAGraph()): train_step(static_batch)"

OVER_LINK = r"HtoD|DtoH|HostToDevice|DeviceToHost"  # inputs and results are copied outside of a graph
CALL = "cudaGraphLaunch"
WITH_GRAPHS = ("cuda", "rocm")
LEAST_SAID_NS = 10_000


def cuda_graphs(
    graph: Graph, *, launch_us: float = 15.0, node_us: float = 0.58, optimizer: bool = True
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
    uses, file access, waiting (daydream/model/captured.py).

    Memory: inputs and gradients lie at fixed addresses, so that they are held all the time, inputs
    besides the batch they are copied from. What the graphs' own pool reserves is never shared.

    Not modelled: capture itself, the time of copying inputs to fixed addresses, branches and shapes that
    change (they cannot be captured), CPU tensors in forward or backward (a replay computes them no more).
    """
    if min(launch_us, node_us) < 0:
        raise GraphError(f"launch_us and node_us must be 0 or more, not {launch_us:g} and {node_us:g}")
    phases = ("forward", "loss", "backward", "optimizer")[: 4 if optimizer else 3]
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
    other = device - captured
    waits = graph.select(kind="cpu").waiting().on_lanes_of(captured.launches())
    parts = capture_parts(graph, captured, waits | waits.waited_for() | other.launches())
    nodes = len(captured) / len(parts)
    stays = waits | other.launches()
    if len(other.where(lambda tasks: tasks.op != None)):  # noqa: E711 - a column of texts and None
        stays = stays | other.operators()
    start_as_nodes(captured, round(node_us * 1e3))
    taken = capture(graph, parts, name=CALL, launch_ns=round(launch_us * 1e3), stays=stays, phases=phases)
    many = max(len(captured.group_by("step")), 1)
    graph.note(f"{counted(round(len(parts) / many), 'graph')} per step, of {nodes:,.0f} nodes on average.")
    _say(graph, taken)


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


def memory(
    held: Allocations, *, launch_us: float = 15.0, node_us: float = 0.58, optimizer: bool = True
) -> None:
    """Hold inputs and gradients all the time."""
    hold_throughout(held, held.where(kind="input", on="gpu"), besides=True)
    hold_throughout(held, held.where(kind="gradient", on="gpu"), besides=False)
