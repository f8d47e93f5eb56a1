"""Simulation: from a graph to the timeline it would run.

`simulate` uses the default engine (`scan`); `reference` is Algorithm 1 as a readable
definition, `policy` serves lanes with a scheduling policy. All agree exactly.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from daydream.errors import GraphError
from daydream.simulate.timeline import Timeline

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

ENGINES = ("scan", "reference", "policy")


def simulate(
    graph: Graph, *, engine: str = "scan", copies: int = 1, window: tuple[int, int] | None = None
) -> Timeline:
    """Return when every task of the graph would run.

    With `copies` > 1 the window (a range of program-order keys) is repeated; see
    `daydream.graph.lower`.
    """
    from daydream.graph.graph import ORDER_STEP
    from daydream.graph.lower import lower
    from daydream.simulate import policy, reference, scan

    engines = {"scan": scan.run, "reference": reference.run, "policy": policy.run}
    if engine not in engines:
        raise GraphError(f"unknown engine {engine!r}; choose from {', '.join(engines)}")
    lowered = lower(graph, copies, window)
    start, end = engines[engine](lowered.plan)
    repeats_from = 0
    if window is not None:
        starts = [int(step["start_ns"]) * ORDER_STEP for step in graph.steps]
        repeats_from = next((number for number, begin in enumerate(starts) if begin >= window[0]), 0)
    return Timeline(graph, lowered, start, end, repeats_from=repeats_from)


class _CallablePackage(ModuleType):
    """Lets `daydream.simulate(graph)` be this package's verb: a package cannot share a function's name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Timeline:
        return simulate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
