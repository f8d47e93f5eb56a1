"""Simulation: from a graph to the timeline it would run.

`daydream.simulate(graph)` returns a `Timeline`: start and end of every task in ns. Raises `GraphError` for
a graph with a cycle.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from daydream.graph.lower import Window, lower
from daydream.simulate.engine import run
from daydream.simulate.timeline import Timeline

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.contention import Contention


def simulate(
    graph: Graph,
    *,
    copies: int = 1,
    window: Window | None = None,
    contention: Contention | None = None,
) -> Timeline:
    """Return when every task of the graph would run.

    With `copies` > 1 the window (a range of program-order keys, or one by rank) is repeated; see
    `daydream.graph.lower`. With `contention` kernels and transfers that overlap slow each other.

    Returns:
        A `Timeline`: start and end of every task in ns, int64, shape (tasks,).

    Raises:
        GraphError: the graph has a cycle.

    """
    lowered = lower(graph, copies, window)
    settled = True
    if contention is None:
        start, end = run(lowered.plan)
    else:
        plan, start, end, settled = contention.slowed(graph, lowered)
        lowered = replace(lowered, plan=plan)
    return Timeline(graph, lowered, start, end, overlaps_settled=settled)


class _CallablePackage(ModuleType):
    """Lets `daydream.simulate(graph)` be this package's verb: a package cannot share a function's name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Timeline:
        return simulate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
