"""daydream: how much faster would this make my training step?

    import daydream

    trace = daydream.load("trace.json.gz")
    print(daydream.replay(trace).error)
    print(daydream.whatif(trace, "amp").speedup)

What to call, each with a `help` of its own:

    load              a trace from any file that `daydream import` accepts, or a folder of ranks
    collect           record training steps: `with daydream.collect("trace.parquet"):` around them
    handler           the same by torch.profiler: what it calls when a trace is ready

    replay            the step simulated unchanged, and how far that is from what was measured
    explain           why the step takes its time, and what would shorten it
    rank              every change that applies, sorted by what it saves
    whatif            the step after one change, or several: "amp+fused-adam", or a function of yours
    sweep, scaling    every combination of options' values; many workers from the trace of one
    compare           two traces, or a prediction and what came of it; compare_series many runs
    blame             what each rank, stage and kind of work costs a job
    memory_of         the peak of each device, and who holds it
    curves            how the step depends on the speed of each part

    build, simulate   the graph of a trace, to edit yourself, and the timeline of a graph
    run_tool, tool    analyses over the events of a trace, shipped ones or yours

Results are records (`.speedup`, `.predicted_ns`, `.to_json()`); a notebook shows them as tables. After
`%load_ext daydream` a cell that begins with `%%daydream` is recorded. Every error is a `DaydreamError`.

Names are loaded when they are first used, so that importing daydream costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from daydream import lazy

if TYPE_CHECKING:
    from daydream.collect import collect, load
    from daydream.collect.event_log import EventLog
    from daydream.costs.counters.attaching import attach_counters
    from daydream.costs.counters.quantities import counters_table
    from daydream.errors import (
        DaydreamError,
        FileError,
        GraphError,
        HandleError,
        NoMatchError,
        NotApplicableError,
        OutputError,
        TraceError,
        UnknownOptimizationError,
    )
    from daydream.graph.build import build
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.graph.selection import Selection
    from daydream.handles.builder import DebugHandleMapBuilder
    from daydream.memory.report import memory_of
    from daydream.predict.compare import Difference, compare, compare_series
    from daydream.predict.curves import blame, curves
    from daydream.predict.explain import Explanation, explain
    from daydream.predict.prediction import Prediction, whatif
    from daydream.predict.rank import Ranking, rank
    from daydream.predict.replay import Replay, replay
    from daydream.predict.scaling import Scaling, scaling
    from daydream.predict.sweep import Sweep, sweep
    from daydream.simulate import simulate
    from daydream.simulate.timeline import Timeline
    from daydream.tools.run import run_tool
    from daydream.tools.tool import tool
    from daydream.trace.handle_map import DebugHandleMap, Handle
    from daydream.trace.trace import Trace
    from daydream.trainers.handler import handler
    from daydream.transforms.registry import Optimization

__version__ = "0.1.0"

_HOMES = lazy.imports_of(__file__)

__all__ = [
    "DaydreamError",
    "DebugHandleMap",
    "DebugHandleMapBuilder",
    "Difference",
    "EventLog",
    "Explanation",
    "FileError",
    "Graph",
    "GraphError",
    "Groups",
    "Handle",
    "HandleError",
    "NoMatchError",
    "NotApplicableError",
    "Optimization",
    "OutputError",
    "Prediction",
    "Ranking",
    "Replay",
    "Scaling",
    "Selection",
    "Sweep",
    "Timeline",
    "Trace",
    "TraceError",
    "UnknownOptimizationError",
    "attach_counters",
    "blame",
    "build",
    "collect",
    "compare",
    "compare_series",
    "counters_table",
    "curves",
    "explain",
    "handler",
    "load",
    "memory_of",
    "rank",
    "replay",
    "run_tool",
    "scaling",
    "simulate",
    "sweep",
    "tool",
    "whatif",
]


lazy.give(
    {
        "html": ("daydream.report.page", "html"),
        "interactive": ("daydream.report.page", "timeline_frame"),
        "figure": ("daydream.report.figures", "plot"),
        "fixed_order": ("daydream.simulate.engine", "fix_order"),
        "block_of_layers": ("daydream.model.blocks", "block_of_layers"),
        "gradient_bytes": ("daydream.model.gradients", "gradient_bytes"),
        "itemsize": ("daydream.costs.workload.operator", "itemsize"),
        "real_change": ("daydream.transforms.real_change", "real_change"),
        "environment": ("daydream.world", "environment"),
        "refusal": ("daydream.world", "refusal"),
        "fake_world": ("daydream.world.script", "make_world"),
        "emulated": ("daydream.world.emulate_rows", "emulate_script"),
    }
)


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%%daydream`: what `%load_ext daydream` calls."""
    importlib.import_module("daydream.integrations.magic").load_ipython_extension(shell)


__getattr__, __dir__ = lazy.names(__name__, _HOMES, rooms=("instrument",))
