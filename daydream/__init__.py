"""daydream: what would this optimization give my training step?

    import daydream

    trace = daydream.load("trace.json.gz")
    print(daydream.replay(trace).error)
    print(daydream.whatif(trace, "amp").speedup)

Names are loaded when they are first used, so that importing daydream costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daydream.api import load, replay, whatif
    from daydream.collect import collect
    from daydream.comparison import Comparison
    from daydream.difference import Difference, compare
    from daydream.errors import (
        DaydreamError,
        GraphError,
        NoMatchError,
        NotApplicableError,
        OutputError,
        TraceError,
        UnknownOptimizationError,
    )
    from daydream.explanation import Explanation, explain
    from daydream.graph.build import build
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection
    from daydream.ranking import Ranking, rank
    from daydream.scaling import Scaling, scaling
    from daydream.scenarios import Sweep, sweep
    from daydream.sensitivity import curves
    from daydream.simulate import simulate
    from daydream.simulate.replay import Replay
    from daydream.simulate.timeline import Timeline
    from daydream.trace import Trace

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "daydream.comparison",
    "DaydreamError": "daydream.errors",
    "Difference": "daydream.difference",
    "Explanation": "daydream.explanation",
    "Graph": "daydream.graph.graph",
    "GraphError": "daydream.errors",
    "NoMatchError": "daydream.errors",
    "NotApplicableError": "daydream.errors",
    "OutputError": "daydream.errors",
    "Ranking": "daydream.ranking",
    "Replay": "daydream.simulate.replay",
    "Scaling": "daydream.scaling",
    "Selection": "daydream.graph.selection",
    "Sweep": "daydream.scenarios",
    "Timeline": "daydream.simulate.timeline",
    "Trace": "daydream.trace",
    "TraceError": "daydream.errors",
    "UnknownOptimizationError": "daydream.errors",
    "build": "daydream.graph.build",
    "collect": "daydream.collect",
    "compare": "daydream.difference",
    "curves": "daydream.sensitivity",
    "explain": "daydream.explanation",
    "load": "daydream.api",
    "rank": "daydream.ranking",
    "replay": "daydream.api",
    "scaling": "daydream.scaling",
    "simulate": "daydream.simulate",
    "sweep": "daydream.scenarios",
    "whatif": "daydream.api",
}

__all__ = [
    "Comparison",
    "DaydreamError",
    "Difference",
    "Explanation",
    "Graph",
    "GraphError",
    "NoMatchError",
    "NotApplicableError",
    "OutputError",
    "Ranking",
    "Replay",
    "Scaling",
    "Selection",
    "Sweep",
    "Timeline",
    "Trace",
    "TraceError",
    "UnknownOptimizationError",
    "build",
    "collect",
    "compare",
    "curves",
    "explain",
    "load",
    "rank",
    "replay",
    "scaling",
    "simulate",
    "sweep",
    "whatif",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'daydream' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
