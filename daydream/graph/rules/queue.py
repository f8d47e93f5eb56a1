"""Rule 8, launch queue: a stream holds a bounded number of launches in flight.

When it is full, the launching call stands blocked until the launch `depth` places
before it has ended; its recorded duration is its own cost plus that wait. Keeping
the wait as work replays perfectly and then answers "a faster GPU gains nothing".
The depth is learned from the trace: the smallest number of launches that no call
ever ran ahead of. About 1,022 on NVIDIA (measured on V100, A100, RTX 3070 Ti);
AMD queues are deeper than any seen filled. Event records and waits take places too, so
a call may find the queue full a few launches below the depth (1,015 to 1,020 seen on an H200).
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder, runs_of
from daydream.graph.plan import stable_order
from daydream.graph.query.numbering import once
from daydream.graph.tables import LONGEST_NS, MEMCPY

NVIDIA_DEPTH = 1022  # assumed where the trace never fills a queue
ROOM = 0.01  # of the depth: places that other commands than launches hold
LEAST_BLOCKED = 2  # calls that must have stood blocked to believe that the queue was full
BLOCKED_SHARE = 0.5  # of the calls that met a full queue
CHANCE = 0.1  # of any moment to lie so close behind the end of some device task
LONG_NS = 50_000  # blocked for certain, where no unblocked call shows the usual cost


def bound_queues(builder: GraphBuilder) -> None:
    """Learn the depth of the launch queue and take the waits for a place out of the launch calls."""
    graph = builder.graph
    runs = [(lane, *_launches(builder, tasks)) for lane, tasks in builder.tasks.streams()]
    seen = [_learn(builder, calls, ends) for _, calls, ends in runs]
    learned = [depth for depth, full in seen if full]
    facts = graph.facts
    facts.queue_learned = bool(learned)
    if learned:
        depth = max(learned)
    elif builder.trace.metadata.get("vendor") == "cuda" and runs:
        depth = max(NVIDIA_DEPTH, *(depth for depth, _ in seen))
    else:
        return
    facts.queue_depth = depth
    for lane, calls, ends in runs:
        graph.queue_depth[lane] = depth
        if learned and len(calls) > depth:
            free = ends[:-depth]  # when the place for calls[depth:] came free
            late = calls[depth:]
            met_full = (late >= 0) & (free > builder.start_ns[late])
            blocked = met_full & (ends[depth:] > builder.end_ns[late])
            early, freed = _full_before(builder, calls, ends, depth)
            stood = np.append(late[blocked], early)
            unblocked = late[(late >= 0) & ~met_full]
            _take_out_waits(builder, stood, np.append(free[blocked], freed), unblocked)


def _full_before(
    builder: GraphBuilder, calls: np.ndarray, ends: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the calls that stood blocked with almost `depth` launches in flight, and until when.

    They took more than twice what their kind takes, and returned just as a launch ended.
    """
    place = np.flatnonzero(calls >= 0)
    mine = calls[place]
    started, returned = builder.start_ns[mine], builder.end_ns[mine]
    in_flight = place - np.searchsorted(ends, started, side="right")
    usual = usual_costs(builder, mine[in_flight < (1 - ROOM) * depth], LONG_NS // 2)
    cost = usual[builder.graph.columns["name"][mine]]
    freed = ends[np.maximum(np.searchsorted(ends, returned, side="right") - 1, 0)]
    stood = (in_flight >= (1 - ROOM) * depth) & (in_flight < depth) & (returned - started > 2 * cost)
    stood &= (freed > started) & (returned - freed <= 2 * cost)
    return mine[stood], freed[stood]


def _launches(builder: GraphBuilder, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the calls that launched on a stream, in order, and when the work of each had ended.

    Unknown calls are -1. Nodes of one graph launch share a correlation id, its call known or not.
    """
    unit = builder.unit_of_task[tasks]
    last = np.append(unit[1:] != unit[:-1], True) | (unit < 0)
    ends = np.maximum.accumulate(builder.end_ns[tasks])
    return builder.graph.columns["launch"][tasks[last]].astype(np.intp), ends[last]


def _learn(builder: GraphBuilder, calls: np.ndarray, ends: np.ndarray) -> tuple[int, bool]:
    """Return the most launches in flight when a call returned, and whether the queue was full then."""
    place = np.flatnonzero(calls >= 0)
    if len(place) < LEAST_BLOCKED:
        return 0, False
    calls, own_end = calls[place], ends[place]
    started, returned = builder.start_ns[calls], builder.end_ns[calls]
    depth = int((place + 1 - np.searchsorted(ends, returned, side="right")).max())
    if depth < 1:
        return 0, False
    # A call that found no place left must have waited for one, and most of its time until then;
    # one that returned after its own work had ended waited for that.
    free = np.where(place >= depth, ends[np.maximum(place - depth, 0)], 0)
    met_full = (free > started) & (returned < own_end)
    usual = usual_costs(builder, calls[free <= started], LONG_NS // 2)
    cost = usual[builder.graph.columns["name"][calls]]
    duration = returned - started
    stood = met_full & (duration > 2 * cost) & (2 * (free - started) > duration)
    if stood.sum() < max(1, BLOCKED_SHARE * met_full.sum()):
        return depth, False
    if stood.sum() >= LEAST_BLOCKED:
        return depth, True
    # One call alone is believed if it returned just as a place came free, and that can hardly be chance.
    near = 2 * int(cost[stood][0])
    chance = len(ends) * near / max(int(ends[-1] - ends[0]), 1)
    return depth, bool((returned - free)[stood][0] <= near and chance <= CHANCE)


def usual_costs(builder: GraphBuilder, calls: np.ndarray, otherwise: int = 0) -> np.ndarray:
    """Return the median duration of calls by code of their name, in ns; `otherwise` for names of none.

    int64; the last is that of tasks without a name.
    """
    columns = builder.graph.columns
    costs = np.full(len(builder.graph.texts["name"]) + 1, otherwise, np.int64)
    names, durations = columns["name"][calls], columns["duration_ns"][calls]
    by_name = stable_order(names, len(costs))
    names, durations = names[by_name], durations[by_name]
    for begin, end in runs_of(names):
        below, above = (end - begin - 1) // 2, (end - begin) // 2
        alike = np.partition(durations[begin:end], (below, above))
        costs[names[begin]] = (alike[below] + alike[above]) // 2
    return costs


def _take_out_waits(
    builder: GraphBuilder, calls: np.ndarray, free: np.ndarray, unblocked: np.ndarray
) -> None:
    """Give blocked calls their own cost: what their kind of call takes when there is room.

    Where none of its kind is known to have met room, it is no more than what was left
    of the call once there was: the first calls of a window may have stood blocked by
    work from before it.
    """
    columns, work = builder.graph.columns, builder.tasks.launched()
    launching = columns["launch"][work].astype(np.intp)
    copied = (columns["kind"][work] == MEMCPY) & (builder.end_ns[work] <= builder.end_ns[launching])
    stood = np.append(launching[copied], calls)  # a copy whose call outlasts it was waited for
    free_to_go = np.ones(builder.graph.size, bool)
    free_to_go[stood] = False
    names = columns["name"][calls]
    unblocked, launching = (once(some[free_to_go[some]], len(free_to_go)) for some in (unblocked, launching))
    sure = usual_costs(builder, unblocked, -1)[names]
    usual = usual_costs(builder, launching, LONGEST_NS)[names]
    rest = np.maximum(builder.end_ns[calls] - free, 0)
    own = np.where(sure >= 0, sure, np.minimum(usual, rest))
    cost = np.minimum(own, columns["duration_ns"][calls])
    columns["duration_ns"][calls] = cost
    columns["measured_start_ns"][calls] = np.maximum(
        columns["measured_start_ns"][calls], builder.end_ns[calls] - cost
    )
    builder.waited[calls] = True
