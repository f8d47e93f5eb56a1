"""Spans as text in an HTML file: columns of bytes, packed, in base64; `spans.js` reads them back."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.tables import KINDS
from daydream.report.format import printable, shortened
from daydream.report.html.spans import WHY, Spans, Window, coarsened
from daydream.trace.schema import PHASES

MOST_SPANS = 150_000  # of one timeline: two of them, packed, take about 3 MB
LONGEST_NAME = 300
LONGEST = 2**30  # units of time that a window may have: the columns are 32 bits wide


class Names:
    """The names and layers that spans point to, each once: two graphs number them differently."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def codes(self, codes: np.ndarray, texts: Sequence[str]) -> np.ndarray:
        """Return a graph's codes as those of this collection, -1 for unknown."""
        used, place = np.unique(codes, return_inverse=True)
        mine = [self._code(texts[code]) if code >= 0 else -1 for code in used.tolist()]
        return np.array(mine, np.int64)[place.reshape(-1)]

    def _code(self, text: str) -> int:
        shown = shortened(printable(text), LONGEST_NAME)
        code = self._codes.setdefault(shown, len(self.texts))
        if code == len(self.texts):
            self.texts.append(shown)
        return code


def packed(
    title: str, graph: Graph, window: Window, spans: Spans, names: Names, most: int = MOST_SPANS
) -> dict[str, Any]:
    """Return a timeline as an object for JSON, of `most` spans; `names` gathers what it points to."""
    unit = 1
    while window.length_ns > LONGEST * unit:
        unit *= 10
    shown = coarsened(spans, window.typical, most)
    lanes = np.unique(shown.lane)
    first = np.searchsorted(shown.lane, lanes)
    start = np.maximum(shown.start_ns, 0)
    duration = np.minimum(shown.start_ns + shown.duration_ns, window.length_ns) - start
    start = start // unit
    since = np.diff(start, prepend=0)
    since[first] = start[first]
    columns = {
        "since": since,
        "duration": duration // unit,
        "name": names.codes(shown.name, graph.texts["name"]),
        "layer": names.codes(shown.layer, graph.texts["layer"]),
        "kind": shown.kind,
        "phase": shown.phase,
        "wait": shown.wait_ns // unit,
        "why": shown.why,
        "whole": np.where(shown.duration_ns > duration, shown.duration_ns // unit, -1),
        "before": np.where(shown.former_ns < 0, -1, shown.former_ns // unit),
        "count": shown.count,
        "flags": shown.flags,
    }
    return {
        "title": title,
        "unit_ns": unit,
        "length": window.length_ns // unit,
        "lanes": [printable(graph.lanes[number].name) for number in lanes.tolist()],
        "first": [*first.tolist(), len(shown)],
        "steps": [
            [
                printable(_step_name(graph, step)),
                begin // unit,
                end // unit,
                graph.steps[step].get("rank", 0),
            ]
            for step, begin, end in window.steps
        ],
        "typical": [edge // unit for edge in window.typical],
        "tasks": int(shown.count.sum()),
        "joined": int((shown.count > 1).sum()),
        "columns": {name: _text(column) for name, column in columns.items()},
    }


def legend() -> dict[str, Any]:
    """Return what the codes of kinds, phases and causes of waits mean."""
    return {"kinds": list(KINDS), "phases": list(PHASES), "why": WHY}


def _step_name(graph: Graph, number: int) -> str:
    step = graph.steps[number]
    several = len({each.get("rank", 0) for each in graph.steps}) > 1
    return f"rank {step.get('rank', 0)} {step['name']}" if several else str(step["name"])


def _text(column: np.ndarray) -> str:
    """Return 32-bit numbers, low bytes first and apart from high ones, which packs better."""
    words = np.clip(column, -1, 2**31 - 1).astype("<i4")
    planes = words.view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)).decode()
