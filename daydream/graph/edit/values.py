"""New values in the columns of tasks: times scaled, and whatever else is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.graph.edit.insert import encode
from daydream.graph.query.columns import keep_durations
from daydream.graph.tables import CODED, CPU, LONGEST_NS, kind_code, nanoseconds

if TYPE_CHECKING:
    from daydream.graph.selection import Selection

TIMES = ("duration_ns", "gap_ns", "latency_ns", "release_ns")


def scale(tasks: Selection, factor: Any, *, gaps: bool) -> Selection:
    """Multiply durations; see `Selection.scale`."""
    graph, ids = tasks.need_some().graph, tasks.ids
    factors = _factors(factor, len(ids))
    keep_durations(graph)
    for name in ("duration_ns", "gap_ns") if gaps else ("duration_ns",):
        scaled = graph.columns[name][ids] * factors
        if scaled.max() >= LONGEST_NS:
            raise GraphError(
                f"a factor of {factors.max():g} makes tasks longer than can be counted in nanoseconds"
            )
        graph.columns.own(name)[ids] = np.floor(scaled + 0.5).astype(np.int64)
    graph.edits += 1
    return tasks


def _factors(factor: Any, count: int) -> np.ndarray:
    try:
        factors = np.asarray(factor, np.float64)
    except (TypeError, ValueError):
        raise GraphError(f"a factor must be a number, not {factor!r}") from None
    if factors.shape not in ((), (count,)):
        raise GraphError(f"{factors.size} factors for {count} tasks; give one, or one for each")
    if not (np.isfinite(factors).all() and (factors >= 0).all()):
        raise GraphError(f"a factor must be 0 or more, not {factor}")
    return factors


def set_columns(tasks: Selection, columns: dict[str, Any]) -> Selection:
    """Give tasks new values; see `Selection.set`."""
    graph, ids = tasks.need_some().graph, tasks.ids
    for name, value in columns.items():
        if np.ndim(value) and np.shape(value) != ids.shape:
            raise GraphError(
                f"{name}: {np.size(value)} values for {len(ids)} tasks; give one, or one for each"
            )
        if name in TIMES:
            if name == "duration_ns":
                keep_durations(graph)
            graph.columns.own(name)[ids] = nanoseconds(value, name)
            if name in ("duration_ns", "gap_ns"):
                graph.modelled.append(ids)
        elif name in ("kind", "name"):
            code = kind_code if name == "kind" else lambda text: graph.code("name", text)
            given = code(value) if isinstance(value, str) else [code(text) for text in value]
            if name == "kind" and ((np.asarray(given) > 0) != (graph.columns["kind"][ids] != CPU)).any():
                raise GraphError("CPU tasks cannot become device work, nor the other way round")
            graph.columns.own(name)[ids] = given
        else:
            encoded = encode(graph, {name: value})[name]
            target = graph.columns.own(name) if name in (*CODED, "phase", "step") else graph.override(name)
            target[ids] = encoded
        if name not in ("duration_ns", "gap_ns"):
            graph.touch()
    graph.edits += 1
    return tasks
