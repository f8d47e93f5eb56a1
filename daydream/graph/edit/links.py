"""Edges that are put in between tasks, and taken out again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError, NotApplicableError
from daydream.graph.edit.insert import same_graph
from daydream.graph.plan import Cause

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection


def link(
    graph: Graph,
    src: Selection | Iterable[int],
    dst: Selection | Iterable[int],
    *,
    latency_ns: Any,
    from_start: Any,
    cause: Cause,
) -> None:
    """Let each task of `dst` follow its task of `src`; see `Graph.link`."""
    sources, targets = _ends(graph, src), _ends(graph, dst)
    if not len(sources) and not len(targets):
        return
    if len(sources) != len(targets) and 1 not in {len(sources), len(targets)}:
        raise GraphError(f"cannot link {len(sources)} tasks with {len(targets)}; give one for each")
    graph.links.add(src=sources, dst=targets, latency_ns=latency_ns, from_start=from_start, cause=int(cause))
    graph.edits += 1
    graph.touch()


def _ends(graph: Graph, tasks: Any) -> np.ndarray:
    """Return the ids of one side of a link."""
    if hasattr(tasks, "ids"):  # a selection
        same_graph(graph, tasks)
        return tasks.need_all().ids
    return np.asarray(list(tasks), np.int64)


def unlink(graph: Graph, src: Selection, dst: Selection) -> None:
    """Drop edges; see `Graph.unlink`."""
    rows = np.isin(graph.links["src"], src.ids) & np.isin(graph.links["dst"], dst.ids)
    if not rows.any():
        raise NotApplicableError(f"no edge leads from {src.words} to {dst.words}")
    graph.links.keep(~rows)
    graph.edits += 1
    graph.touch()
