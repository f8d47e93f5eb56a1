"""The view of a result: `view(result)` gives the blocks that text, pages, notebooks and Markdown show."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daydream.report.blocks import Block

# By a result's class: the function in `views` whose module is imported when one is shown.
VIEWS = {
    "Replay": "step.replay",
    "Prediction": "step.prediction",
    "Ranking": "ranking.ranking",
    "Curves": "ranking.curves",
    "Explanation": "explanation.explanation",
    "Difference": "difference.difference",
    "Series": "difference.series",
    "Blame": "difference.blame",
    "Confirmation": "difference.confirmation",
    "Sweep": "ranking.sweep",
    "Scaling": "ranking.scaling",
    "Plan": "..plan.view.plan",
    "Choice": "..plan.view.choice",
    "MemoryReport": "memory.report",
    "MemoryView": "memory.uses",
    "Largest": "memory.largest",
    "Info": "info.info",
    "Trace": "nouns.trace",
    "Graph": "nouns.graph",
    "Selection": "nouns.selection",
    "Groups": "nouns.groups",
    "Timeline": "nouns.timeline",
}


def view(result: object, *, verbose: bool = False, **options: Any) -> Sequence[Block]:
    """Return what a result shows; `verbose` with all that it knows.

    Options are those of its function in `views`. Raises `TypeError` for what has no view.
    """
    for each in type(result).__mro__:
        if each.__name__ in VIEWS and each.__module__.startswith("daydream."):
            module, _, name = VIEWS[each.__name__].rpartition(".")
            function = getattr(import_module(f".{module}", "daydream.report.views"), name)
            return list(function(result, verbose=verbose, **options))
    raise TypeError(f"there is no view of {type(result).__name__}")
