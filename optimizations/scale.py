"""The generic question: what if some of the work were N times, or infinitely, faster?"""

from __future__ import annotations

from daydream import Graph
from daydream.transforms import stages

STAGE = stages.HARDWARE


def scale(
    graph: Graph,
    *,
    factor: float,
    on: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    op: str | None = None,
    layer: str | None = None,
    phase: str | None = None,
) -> None:
    """Multiply the durations of the selected tasks by a factor; 0 removes their time.

    `on` is cpu or gpu; `kind` a kind of task (cpu, kernel, memcpy, memset, collective);
    `name` and `op` are regular expressions on task and operator names, `layer` a shell
    pattern, `phase` a phase. What all of them select is scaled. For CPU tasks selected as
    such, the untraced time after them is scaled too; waits are never scaled: they come
    out of the simulation.
    """
    tasks = graph.select(on=on, kind=kind, name=name, op=op, layer=layer, phase=phase)
    tasks.scale(factor, gaps="cpu" in (on, kind))
