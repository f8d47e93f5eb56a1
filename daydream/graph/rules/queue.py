"""Launch queue: a stream holds a bounded number of launches in flight.

When it is full, the launching call is blocked until the launch `depth` places
before it has ended; its recorded duration is its own cost plus that wait. Keeping
the wait as work replays perfectly and then answers "a faster GPU gains nothing".
The depth is learned from the trace: the smallest number of launches that hardly a call
ever ran ahead of. About 1,022 on NVIDIA (measured on V100, A100, RTX 3070 Ti);
AMD queues are deeper than any seen filled. Event records and waits take places too, so
a call may find the queue full a few launches below the depth (1,015 to 1,020 seen on an H200).
"""

from __future__ import annotations

import numpy as np

from daydream.graph.draft import Draft
from daydream.graph.rules.thresholds import (
    LEAST_BLOCKED,
    NVIDIA_QUEUE_DEPTH,
    QUEUE_AHEAD_SHARE,
    QUEUE_BLOCKED_SHARE,
    QUEUE_FULL_SHARE,
    UNKNOWN_LAUNCH_NS,
)
from daydream.graph.tables import MEMCPY


def bound_queues(draft: Draft) -> None:
    """Learn the depth of the launch queue and take the waits for a place out of the launch calls."""
    launches = {}  # by stream the calls that launched on it, -1 for unknown, and when their work had ended
    for lane, tasks in draft.streams():
        unit = draft.unit[tasks]  # one for the nodes of a graph launch, its call known or not
        last = np.append(unit[1:] != unit[:-1], True) | (unit < 0)
        ends = np.maximum.accumulate(draft.end_ns[tasks])
        launches[lane] = draft.launch[tasks[last]].astype(np.intp), ends[last]
    seen = [_learn(draft, calls, ends) for calls, ends in launches.values()]
    learned = [depth for depth, full in seen if full]
    draft.facts.queue_learned = bool(learned)
    if learned:
        depth = max(learned)
    elif draft.trace.metadata.get("vendor") == "cuda" and launches:
        depth = max(NVIDIA_QUEUE_DEPTH, *(depth for depth, _ in seen))
    else:
        return
    draft.facts.queue_depth = depth
    for lane, (calls, ends) in launches.items():
        draft.queue_depth[lane] = depth
        if learned and len(calls) > depth:
            _take_out_waits(draft, calls, ends, depth)


def _learn(draft: Draft, calls: np.ndarray, ends: np.ndarray) -> tuple[int, bool]:
    """Return the most launches in flight when a call returned, and whether the queue was full then."""
    place = np.flatnonzero(calls >= 0)
    if len(place) < LEAST_BLOCKED:
        return 0, False
    calls = calls[place]
    own_end = ends[place]
    started = draft.start_ns[calls]
    returned = draft.end_ns[calls]
    in_flight = place + 1 - np.searchsorted(ends, returned, side="right")
    depth = int(in_flight.max())
    if depth < 1:
        return 0, False
    counts = np.bincount(np.maximum(in_flight, 0))
    ahead = counts[::-1].cumsum()[::-1] - counts  # of each number in flight
    few = (ahead <= QUEUE_AHEAD_SHARE * counts) & (
        np.arange(len(counts)) >= QUEUE_FULL_SHARE * depth
    )
    depth = int(few.argmax())
    # A call that found no place left must have waited for one, and most of its time until then;
    # one that returned after its own work had ended waited for that.
    free = np.where(place >= depth, ends[place - depth], 0)
    met_full = (free > started) & (returned < own_end)
    cost = draft.usual_costs(calls[free <= started], UNKNOWN_LAUNCH_NS)[draft.name[calls]]
    duration = returned - started
    blocked = met_full & (duration > 2 * cost) & (2 * (free - started) > duration)
    least = max(LEAST_BLOCKED, QUEUE_BLOCKED_SHARE * met_full.sum())
    return depth, bool(blocked.sum() >= least)


def _take_out_waits(draft: Draft, calls: np.ndarray, ends: np.ndarray, depth: int) -> None:
    """Give the blocked calls of a stream their own cost: what their kind of call takes when there is room.

    Where none of its kind is known to have met room, it is no more than what was left
    of the call once there was: the first calls of a window may have been blocked by
    work from before it.
    """
    free = ends[:-depth]
    late = calls[depth:]  # when the place for each of these came free
    met_full = (late >= 0) & (free > draft.start_ns[late])
    blocked = met_full & (ends[depth:] > draft.end_ns[late])
    unblocked = late[(late >= 0) & ~met_full]
    # With almost `depth` launches in flight those were blocked, too, that took over twice what their kind
    # takes, and returned just as a launch ended.
    place = np.flatnonzero(calls >= 0)
    early = calls[place]
    started = draft.start_ns[early]
    returned = draft.end_ns[early]
    in_flight = place - np.searchsorted(ends, started, side="right")
    almost = in_flight >= QUEUE_FULL_SHARE * depth
    cost = draft.usual_costs(early[~almost], UNKNOWN_LAUNCH_NS)[draft.name[early]]
    freed = ends[np.maximum(np.searchsorted(ends, returned, side="right") - 1, 0)]
    held = almost & (in_flight < depth) & (returned - started > 2 * cost)
    held &= (freed > started) & (returned - freed <= 2 * cost)
    calls = np.append(late[blocked], early[held])
    free = np.append(free[blocked], freed[held])

    work = draft.launched()
    launching = draft.launch[work].astype(np.intp)
    copied = (draft.kind[work] == MEMCPY) & (draft.end_ns[work] <= draft.end_ns[launching])
    waited = np.append(calls, launching[copied])  # a copy whose call outlasts it was waited for
    usual = draft.usual_costs(np.setdiff1d(unblocked, waited), -1)[draft.name[calls]]
    rest = np.maximum(draft.end_ns[calls] - free, 0)
    cost = np.minimum(np.where(usual >= 0, usual, rest), draft.duration_ns[calls])
    draft.wait_first(calls, draft.end_ns[calls] - cost)
