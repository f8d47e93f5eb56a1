"""The report's two timelines as data: measured and replayed, or replayed and predicted.

Columns of bytes, packed, in base64; `spans.js` reads them back.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS, step_rank
from daydream.report.format import printable, shortened
from daydream.report.timeline import (
    Spans,
    Window,
    measured_in,
    measured_window,
    simulated_in,
    simulated_window,
    step_name,
)
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.simulate.timeline import Timeline

MOST_SPANS = 32_000  # of one timeline: two of them, packed, take about 0.7 MB
LONGEST_NAME = 300
LONGEST = 2**30  # units of time that a window may have: the columns are 32 bits wide


def timelines(
    replay: Replay, comparison: Prediction | None, most: int = MOST_SPANS
) -> dict[str, Any]:
    """Return both timelines of a replay, or of a what-if with its replay, as an object for JSON.

    Each has at most `most` spans: of more, short neighbors are one.
    """
    graph = replay.graph
    settled = replay.settled
    names: dict[str, int] = {}

    def simulated(title: str, timeline: Timeline, copy: int, typical: int) -> dict[str, Any]:
        window = simulated_window(timeline, copy, typical)
        before = None if timeline.graph is graph else graph
        spans = simulated_in(timeline, copy, window, before)
        return packed(title, timeline.graph, window, spans, names, most)

    if comparison is None:
        step = settled.typical()[0]
        window = measured_window(graph, step)
        first = packed("measured", graph, window, measured_in(graph, window), names, most)
        second = simulated("replayed", replay.timeline, 0, step)
    else:
        after = comparison.after
        step, then = comparison.shown_steps()
        first = simulated("replayed", replay.timeline, settled.copy, step)
        second = simulated("predicted", after.timeline, after.copy, then)
    return {
        "kinds": list(KINDS),
        "phases": list(PHASES),
        "why": {int(cause): cause.label for cause in Cause},
        "names": list(names),
        "timelines": [first, second],
        "changes": comparison is not None,
    }


def packed(
    title: str,
    graph: Graph,
    window: Window,
    spans: Spans,
    names: dict[str, int],
    most: int = MOST_SPANS,
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
        "name": _coded(names, shown.name, graph.texts["name"]),
        "layer": _coded(names, shown.layer, graph.texts["layer"]),
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
                printable(step_name(graph, step)),
                begin // unit,
                end // unit,
                step_rank(graph.steps[step]),
            ]
            for step, begin, end in window.steps
        ],
        "typical": [edge // unit for edge in window.typical],
        "tasks": int(shown.count.sum()),
        "joined": int((shown.count > 1).sum()),
        "columns": {name: _text(column) for name, column in columns.items()},
    }


def _coded(names: dict[str, int], codes: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return a graph's codes as places in `names`, which two graphs share; -1 for unknown."""
    used, place = np.unique(codes, return_inverse=True)
    shown = [
        shortened(printable(texts[code]), LONGEST_NAME) if code >= 0 else None for code in used
    ]
    mine = [-1 if name is None else names.setdefault(name, len(names)) for name in shown]
    return np.array(mine, np.int64)[place.reshape(-1)]


def _text(column: np.ndarray) -> str:
    """Return 32-bit numbers, low bytes first and apart from high ones, which packs better."""
    words = np.clip(column, -1, 2**31 - 1).astype("<i4")
    planes = words.view(np.uint8).reshape(-1, 4).T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 6)).decode()


def coarsened(spans: Spans, detail: tuple[int, int], most: int) -> Spans:
    """Return at most `most` spans: short neighbors on a lane become one, within `detail` only at need.

    What counts as short doubles until the rest fits.
    """
    if len(spans) <= most:
        return spans
    kept = (spans.start_ns + spans.duration_ns > detail[0]) & (spans.start_ns < detail[1])
    if kept.sum() > most // 2:
        kept[:] = False
    longest = int((spans.start_ns + spans.duration_ns).max())
    short_ns = 1_000
    merged = spans
    while len(merged) > most and short_ns < longest:
        merged = _joined(spans, ~kept, short_ns)
        short_ns *= 2
    return merged


def _joined(spans: Spans, may: np.ndarray, short_ns: int) -> Spans:
    """Return the spans with runs of those that are shorter than this, and no further apart, as one each."""
    end = spans.start_ns + spans.duration_ns
    short = may & (spans.duration_ns < short_ns)
    joins = short[1:] & short[:-1] & (spans.start_ns[1:] - end[:-1] < short_ns)
    for column in (spans.lane, spans.kind, spans.start_ns // (8 * short_ns)):
        joins &= column[1:] == column[:-1]
    first = np.flatnonzero(np.append(True, ~joins))
    count = np.add.reduceat(spans.count, first)
    merged = spans.take(first)
    return merged.but(
        duration_ns=np.maximum.reduceat(end, first) - merged.start_ns,
        name=np.where(count > 1, -1, merged.name),
        former_ns=np.where(count > 1, -1, merged.former_ns),
        flags=np.bitwise_or.reduceat(spans.flags, first),
        count=count,
    )
