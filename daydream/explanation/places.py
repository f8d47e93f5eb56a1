"""Where a cost lies in the program: operator, layer, phase and source line, as far as the trace knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.display import as_json
from daydream.explanation.causes import labels
from daydream.graph.graph import Graph
from daydream.graph.query.calls import call_rows
from daydream.trace.schema import UNKNOWN

MOST = 0.5


@dataclass(frozen=True)
class Place:
    """What holds the largest part of a cost, that part, and where it is; None where unknown."""

    label: str | None = None  # the operator on the CPU, the family of a kernel
    share: float = 0.0  # of the cost
    layer: str | None = None
    phase: str | None = None
    source: str | None = None  # line of the program

    def to_json(self) -> dict[str, Any]:
        """Return the place as `explain --json` prints it."""
        return as_json(self, "label label_share=share layer phase source")


def place_of(graph: Graph, tasks: np.ndarray, weights: np.ndarray) -> Place:
    """Return where the largest part of a cost lies; `weights` is each task's part of it."""
    if not len(tasks) or weights.sum() <= 0:
        return Place()
    code, names = labels(graph, tasks)
    total = np.bincount(code, weights=weights)
    largest = int(np.argmax(total))
    share = float(total[largest] / weights.sum())
    tasks, weights = tasks[code == largest], weights[code == largest]
    layer, phase = (_most(graph.column(name, tasks), weights) for name in ("layer", "phase"))
    return Place(names[largest], share, layer, phase, _source(graph, tasks, weights))


def _most(values: np.ndarray, weights: np.ndarray) -> str | None:
    """Return the value that holds more than half of the weight, None if there is none or it is unknown."""
    names, place = np.unique(np.where(values == None, "", values).astype(str), return_inverse=True)  # noqa: E711
    total = np.bincount(place.reshape(-1), weights=weights)
    first = int(np.argmax(total))
    return str(names[first]) or None if total[first] > MOST * weights.sum() else None


def _source(graph: Graph, tasks: np.ndarray, weights: np.ndarray) -> str | None:
    """Return the source line of the operator call that holds most of the cost."""
    trace = graph.trace
    if trace is None or not trace.text("stack"):
        return None
    rows = call_rows(graph, tasks, inner=True)
    codes = np.where(rows >= 0, trace["stack"][np.maximum(rows, 0)], UNKNOWN)
    return _most(np.array([*trace.text("stack"), None], dtype=object)[codes], weights)
