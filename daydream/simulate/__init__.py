"""Simulation: from a graph to the timeline it would run.

`simulate` uses the default engine (`scan`); `reference` is Algorithm 1 as a readable
definition, `policy` serves lanes with a scheduling policy. All agree exactly.

`daydream.simulate(graph)` returns a `Timeline`: start and end of every task in ns. Raises `GraphError` for
an engine that is unknown or a graph with a cycle.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from daydream.errors import GraphError
from daydream.simulate.timeline import Timeline

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.windows import Window
    from daydream.simulate.contention import Contention

ENGINES = ("scan", "reference", "policy")


def simulate(
    graph: Graph,
    *,
    engine: str = "scan",
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
        GraphError: the engine is unknown, or the graph has a cycle.

    """
    from daydream.graph.lower import lower
    from daydream.graph.windows import steps_in
    from daydream.simulate import policy, reference, scan

    engines = {"scan": scan.run, "reference": reference.run, "policy": policy.run}
    if engine not in engines:
        raise GraphError(f"unknown engine {engine!r}; choose from {', '.join(engines)}")
    lowered = lower(graph, copies, window)
    run = engines[engine]
    repeats = {} if window is None else steps_in(graph, window)
    if contention is None:
        start, end = run(lowered.plan)
        return Timeline(graph, lowered, start, end, repeats=repeats)
    plan, start, end, settled = contention.slowed(graph, lowered, run, copies, window)
    slowed = replace(lowered, plan=plan)
    return Timeline(graph, slowed, start, end, repeats=repeats, overlaps_settled=settled)


class _CallablePackage(ModuleType):
    """Lets `daydream.simulate(graph)` be this package's verb: a package cannot share a function's name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Timeline:
        return simulate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
