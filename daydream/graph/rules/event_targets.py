"""Rule 6, where the device recorded which stream waits, but not for which event.

The record of an event from before the window, or of a library's own event, is not named
(`wait_on_cuda_event_record_corr_id` is -1; cuDNN forks to side streams and joins them so).
The waiting stream is known, so only the other is to be found: the one that got work last
of those whose work the waiting stream has not waited for yet. One whose work still ran when
the waiting stream's next work started cannot be it. Where collectives run, a wait may be for
one of them, and program order decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.builder import GraphBuilder

if TYPE_CHECKING:
    from daydream.graph.rules.events import Wait


def wait_on_known_streams(
    builder: GraphBuilder, waits: list[Wait], allowed: Callable[[GraphBuilder, int, int], bool]
) -> set[int]:
    """Draw the waits of streams that the device's own rows name; return their calls.

    Args:
        builder: the graph under construction.
        waits: the waits without a recorded event.
        allowed: tells whether the recorded times allow one task to follow another.
    """
    order = builder.graph.columns["order"]
    targets = {} if builder.collectives else builder.sync_streams("Stream Wait Event")
    if not targets and all(stream >= 0 for _, stream in builder.lanes_of_stream):
        return set()
    joined: dict[tuple[int, int], int] = {}  # (stream, stream that waited for it) -> order waited up to
    found: set[int] = set()
    waits = sorted(waits, key=lambda each: int(order[each.call]))
    correlations = builder.correlation(np.array([wait.call for wait in waits], np.int64)).tolist()
    for wait, correlation in zip(waits, correlations, strict=True):
        target = builder.lane_of(wait.call, targets.get(correlation, -1))
        if target not in builder.side_work:
            continue
        ahead = builder.side_work[target]
        place = int(np.searchsorted(order[ahead], order[wait.call]))
        if place == len(ahead):
            continue
        for source in _open_work(builder, wait.call, target, joined):
            if allowed(builder, source, int(ahead[place])):
                lane = int(builder.graph.columns["lane"][source])
                joined[lane, target] = int(order[source])
                builder.add_wait(wait.call, lane, wait.call, target)
                found.add(wait.call)
                break
    return found


def _open_work(
    builder: GraphBuilder, call: int, target: int, joined: dict[tuple[int, int], int]
) -> list[int]:
    """Return the last task of each other stream that has work not waited for, the latest launched first."""
    order, lanes = builder.graph.columns["order"], builder.graph.lanes
    last = []
    for lane, tasks in builder.side_work.items():
        if lane == target or lanes[lane].rank != lanes[target].rank:
            continue
        place = int(np.searchsorted(order[tasks], order[call])) - 1
        if place >= 0 and order[tasks[place]] > joined.get((lane, target), -(2**62)):
            last.append(int(tasks[place]))
    return sorted(last, key=lambda task: -int(order[task]))
