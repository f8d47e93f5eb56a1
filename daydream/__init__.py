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

from daydream import hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from daydream.collect import collect
    from daydream.collect.load import load
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
    from daydream.predict.difference import Difference, compare
    from daydream.predict.prediction import Comparison
    from daydream.predict.ranking import Ranking, rank
    from daydream.predict.replay import Replay, replay
    from daydream.predict.scale_out import Scaling, scaling
    from daydream.predict.sensitivity import curves
    from daydream.predict.sweep import Sweep, sweep
    from daydream.predict.whatif import whatif
    from daydream.simulate import simulate
    from daydream.simulate.timeline import Timeline
    from daydream.trace.trace import Trace

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "daydream.predict.prediction",
    "DaydreamError": "daydream.errors",
    "Difference": "daydream.predict.difference",
    "Explanation": "daydream.explanation",
    "Graph": "daydream.graph.graph",
    "GraphError": "daydream.errors",
    "NoMatchError": "daydream.errors",
    "NotApplicableError": "daydream.errors",
    "OutputError": "daydream.errors",
    "Ranking": "daydream.predict.ranking",
    "Replay": "daydream.predict.replay",
    "Scaling": "daydream.predict.scale_out",
    "Selection": "daydream.graph.selection",
    "Sweep": "daydream.predict.sweep",
    "Timeline": "daydream.simulate.timeline",
    "Trace": "daydream.trace.trace",
    "TraceError": "daydream.errors",
    "UnknownOptimizationError": "daydream.errors",
    "build": "daydream.graph.build",
    "collect": "daydream.collect",
    "compare": "daydream.predict.difference",
    "curves": "daydream.predict.sensitivity",
    "explain": "daydream.explanation",
    "load": "daydream.collect.load",
    "rank": "daydream.predict.ranking",
    "replay": "daydream.predict.replay",
    "scaling": "daydream.predict.scale_out",
    "simulate": "daydream.simulate",
    "sweep": "daydream.predict.sweep",
    "whatif": "daydream.predict.whatif",
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


# Who answers what lower floors ask of higher ones; imported when asked.
_ANSWERS = {
    "html": ("daydream.report.notebook", "html"),
    "figure": ("daydream.report.figures", "plot"),
    "fixed_order": ("daydream.simulate.policy", "fix_order"),
    "real_change": ("daydream.transforms.real_change", "real_change"),
}


def _answer(hook: str) -> Callable[..., Any]:
    def answer(*args: Any, **options: Any) -> Any:
        module, name = _ANSWERS[hook]
        return getattr(importlib.import_module(module), name)(*args, **options)

    return answer


for _hook in _ANSWERS:
    hooks.give(_hook, _answer(_hook))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'daydream' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
