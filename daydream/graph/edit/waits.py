"""Waits that edits add: a call, or a stream from a call on, waits for what was launched on a lane before.

Both are looked up in program order when the graph is lowered, so that they hold across steps
and for work that is inserted later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.query.columns import lanes_named
from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection


def wait_for(calls: Selection, lane: str | Sequence[str], on: str | Sequence[str] | None) -> Selection:
    """Let calls, or streams, wait for the work on a lane; see `Selection.wait_for`."""
    graph = calls.need_some().need_all().graph
    if (graph.columns["kind"][calls.ids] != CPU).any():
        raise GraphError("device work waits by links; the calls that wait for a lane are CPU tasks")
    source = _lanes(graph, calls, lane)
    if on is None:
        graph.syncs.add(task=calls.ids, lane=source, point=calls.ids, latency_ns=0)
    else:
        graph.waits.add(
            record=calls.ids, source=source, wait=calls.ids, target=_lanes(graph, calls, on), latency_ns=0
        )
    graph.edits += 1
    graph.touch()
    return calls


def _lanes(graph: Graph, calls: Selection, names: str | Sequence[str]) -> np.ndarray:
    """Return the number of the lane of this name of each call's rank."""
    each = [names] * len(calls) if isinstance(names, str) else list(names)
    if len(each) != len(calls):
        raise GraphError(f"{len(each)} lanes for {len(calls)} calls; give one, or one for each")
    known: dict[tuple[str, int], int] = {}
    for name in dict.fromkeys(each):
        numbers = lanes_named(graph, name)
        ranks = {graph.lanes[number].rank: number for number in numbers}
        if not numbers or not all(graph.lanes[number].on_device for number in numbers):
            raise GraphError(f"no device lane {name!r} to wait for; the lanes are on `graph.lanes`")
        known |= {(name, rank): number for rank, number in ranks.items()}
    try:
        return np.array([known[key] for key in zip(each, calls.rank.tolist(), strict=True)], np.int64)
    except KeyError as error:
        raise GraphError(f"rank {error.args[0][1]} has no lane {error.args[0][0]!r}") from None
