"""A fused optimizer: one kernel updates all parameters."""

from __future__ import annotations

from daydream import Graph, NoMatchError


def fused_adam(graph: Graph, *, memory_speedup: float = 1.0) -> None:
    """Predict a fused optimizer step: one launch instead of hundreds.

    All update kernels of a step become one, which takes their time together divided by
    `memory_speedup` (Daydream, section 5.1: the sum, so 1); their launches and the CPU
    time of the optimizer go, one launch stays. Works the same for any optimizer made of
    many small kernels. Not modelled: the traffic that fusing saves, so the GPU side is
    an upper bound; raise `memory_speedup` where the update reads its data several times.
    """
    updates = graph.select(kind="kernel", phase="optimizer")
    updates.need("optimizer kernels: no `Optimizer.step` range holds any")
    steps = [kernels for kernels in updates.split("step") if len(kernels) > 1]
    if not steps:
        raise NoMatchError("the optimizer runs one kernel a step: it is fused already")
    for kernels in steps:
        fused = kernels.head(1)
        fused.set(duration_ns=kernels.total("duration_ns") / memory_speedup)
        (kernels - fused).remove()
        step = int(fused.step[0])
        still_launched = graph.select(on="gpu", phase="optimizer", step=step).launches()
        (graph.select(kind="cpu", phase="optimizer", step=step) - still_launched).remove()
