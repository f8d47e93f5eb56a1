"""The collectives of a replay: which ranks met in each, and how far their ends spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.collect.derive.collectives import match_collectives
from daydream.graph.tables import COLLECTIVE

if TYPE_CHECKING:
    from daydream.predict.replay import Recording


def collectives(result: Recording) -> list[dict[str, Any]]:
    """Return every collective: its place in order, name, bytes, ranks, and how far its ends spread."""
    graph, timeline = result.graph, result.settled.timeline
    columns = graph.columns
    recorded = (timeline.copy == 0) & (columns["row"][timeline.task] >= 0)
    chosen = np.flatnonzero(recorded & (columns["kind"][timeline.task] == COLLECTIVE))
    if not len(chosen):
        return []
    tasks = timeline.task[chosen]
    ends = graph.column("start_ns", tasks) + graph.column("measured_duration_ns", tasks)
    names, ranks, sizes = (graph.column(name, tasks) for name in ("name", "rank", "bytes"))
    place = {row: number for number, row in enumerate(columns["row"][tasks].tolist())}
    met = match_collectives(graph.recorded).rows
    groups = [[place.pop(row) for row in rows.tolist() if row in place] for rows in met]
    groups = [*filter(None, groups), *([alone] for alone in place.values())]
    groups.sort(key=lambda group: int(ends[group].max()))
    return [
        {
            "index": index,
            "name": str(names[at[0]]),
            "bytes": int(sizes[at[0]]) if sizes[at[0]] >= 0 else None,
            "ranks": ranks[at].tolist(),
            "measured_end_spread_ns": int(np.ptp(ends[at])),
            "replayed_end_spread_ns": int(np.ptp(timeline.end_ns[chosen[at]])),
        }
        for index, at in enumerate(groups)
    ]
