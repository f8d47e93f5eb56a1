"""The generic question: what if some of the work were N times, or infinitely, faster?"""

from __future__ import annotations

from daydream import Graph
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.HARDWARE
memory = unchanged


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
    only_gaps: bool | None = None,
) -> None:
    """Multiply the durations of the selected tasks by a factor; 0 removes their time.

    `on` is cpu or gpu; `kind` a kind of task (cpu, kernel, memcpy, memset, collective);
    `name` and `op` are regular expressions on task and operator names, `layer` a shell
    pattern, `phase` a phase. What all of them select is scaled by `factor`. For CPU tasks selected as
    such, the untraced time after them is scaled too, or with `only_gaps` nothing else; waits
    are never scaled: they come out of the simulation. Transfers that the CPU's threads run (gloo) are
    communication: `on` does not select them, `kind` does.

    Args:
        factor: What durations are multiplied by; 0 removes them.
        on (SIDE): cpu or gpu.
        kind (KIND): cpu, kernel, memcpy, memset or collective.
        name (REGEX): Tasks, by name.
        op (REGEX): Tasks, by operator.
        layer (GLOB): Tasks, by module: blocks.*.
        phase (PHASE): forward, loss, backward, optimizer or data.
        only_gaps: Scale only untraced time after tasks.
    """
    if factor == 1:
        graph.does_not_apply("a factor of 1 leaves every task as it is")
    tasks = graph.select(on=on, kind=kind, name=name, op=op, layer=layer, phase=phase)
    if on == "cpu" and kind is None:
        tasks = tasks - tasks.where(kind="collective")
    if only_gaps:
        tasks = tasks.where(lambda each: each.gap_ns > 0).need("untraced time after these tasks")
        tasks.set(gap_ns=tasks.gap_ns * factor)
        return
    tasks.scale(factor, gaps="cpu" in (on, kind))
