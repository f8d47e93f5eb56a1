"""CUDA graphs: one call launches the device work of forward, backward and optimizer."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.transforms import stages
from daydream.wording import counted

STAGE = stages.LAUNCH
CODE = "with torch.cuda.graph(torch.cuda.CUDAGraph()): train_step(static_batch)"

OVER_LINK = r"HtoD|DtoH|HostToDevice|DeviceToHost"  # inputs and results are copied outside of a graph
CALL = "cudaGraphLaunch"


def cuda_graphs(
    graph: Graph, *, launch_us: float = 15.0, node_us: float = 0.58, optimizer: bool = True
) -> None:
    """Predict a step that is captured and replayed as CUDA (or HIP) graphs.

    Forward, loss, backward and, with `optimizer` (by default), update are launched by one call; the
    Python, operators and launches that did so go from all threads. The call takes `launch_us`
    on the CPU, and no more than `node_us` lie between nodes that follow each other on a
    stream: 15 us and 0.58 us a node measured on an RTX 5070 Ti (ahrefs/ocannl, issue 488).
    Calls that cannot be captured stay where they are and part the step in several graphs: waits
    of the CPU for the device, copies from and to the CPU, graphs that the step has already.
    A step without such parts is one graph. Untraced CPU time between launches goes too, as Python
    that a replay does not run; a note says how much it is, since file access or sleep would stay.

    Not modelled: capture itself, the copy of inputs to fixed addresses, the memory of a pool
    that is never shared, branches and shapes that change (they cannot be captured), CPU
    tensors in forward or backward (a replay computes them no more).
    """
    if min(launch_us, node_us) < 0:
        raise GraphError(f"launch_us and node_us must be 0 or more, not {launch_us:g} and {node_us:g}")
    phases = ("forward", "loss", "backward", "optimizer")[: 4 if optimizer else 3]
    device = graph.select(on="gpu", phase=phases)
    device.need("device work in the forward or backward pass")
    launched = device.where(lambda tasks: tasks.launch >= 0)
    alone = launched.where(lambda tasks: np.bincount(tasks.launch)[tasks.launch] == 1)
    captured = alone - alone.where(kind="memcpy", name=OVER_LINK)
    if len(alone) < len(launched) / 2:
        graph.does_not_apply("most device work of the step is launched by graphs already")
    captured.need("device work that a graph could hold")
    other = device - captured
    waits = graph.select(kind="cpu", phase=phases).waiting()
    parts = captured.stretches(waits | other.launches())
    before = graph.select(kind="cpu", phase=phases)
    work, untraced = before.total("duration_ns"), before.total("gap_ns")

    captured.set(latency_ns=np.minimum(captured.latency_ns, graph.facts.launch_latency_ns))
    captured.set(gap_ns=np.minimum(captured.gap_ns, round(node_us * 1e3)))
    calls = parts.share_launch(CALL)
    calls.set(duration_ns=launch_us * 1e3, gap_ns=0)
    stays = calls | waits | other.launches()
    if len(other.where(lambda tasks: tasks.op != None)):  # noqa: E711 - a column of texts and None
        stays = stays | other.operators()
    gone = graph.select(kind="cpu", phase=phases) - stays
    if len(gone):
        gone.remove()
    left = graph.select(kind="cpu", phase=phases)
    work, untraced = work - left.total("duration_ns"), untraced - left.total("gap_ns")
    steps = max(len(captured.group_by("step")), 1)
    nodes = len(captured) / len(calls)
    graph.note(f"{counted(round(len(calls) / steps), 'graph')} a step of {nodes:,.0f} nodes in the mean.")
    if untraced > 0:
        graph.note(
            f"Of the CPU time that goes, {untraced / steps / 1e6:,.2f} ms a step "
            f"({untraced / (untraced + max(work, 0)):.0%}) are untraced: taken for Python between launches; "
            "file access, sleep or other work in it would stay."
        )
