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
    first = timeline.copy == 0
    measured_work = graph.columns["row"][timeline.task] >= 0
    chosen = np.flatnonzero((graph.columns["kind"][timeline.task] == COLLECTIVE) & first & measured_work)
    if not len(chosen):
        return []
    tasks = timeline.task[chosen]
    ranks = graph.column("rank", tasks)
    trace_start, trace_duration = graph.column("start_ns", tasks), graph.column("measured_duration_ns", tasks)
    measured = trace_start + trace_duration
    name, sizes = graph.column("name", tasks), graph.column("bytes", tasks)
    place = dict(zip(graph.columns["row"][tasks].tolist(), range(len(tasks)), strict=True))
    met = [] if graph.trace is None else match_collectives(graph.trace).rows
    groups = [[place[row] for row in rows.tolist() if row in place] for rows in met]
    alone = set(range(len(tasks))).difference(*groups)
    groups = [group for group in groups if group] + [[one] for one in sorted(alone)]
    groups.sort(key=lambda group: int(measured[group].max()))
    rows = []
    for index, at in enumerate(groups):
        rows.append(
            {
                "index": index,
                "name": str(name[at[0]]),
                "bytes": int(sizes[at[0]]) if sizes[at[0]] >= 0 else None,
                "ranks": [int(rank) for rank in ranks[at]],
                "measured_end_spread_ns": int(np.ptp(measured[at])),
                "replayed_end_spread_ns": int(np.ptp(timeline.end_ns[chosen[at]])),
            }
        )
    return rows
