"""Lowering: resolve the words of the program into the edges of a plan.

"All work then on that stream", "the queue has room again", "work launched after
the wait" depend on what was launched before what. They are looked up here, by
program order, after all edits, so a removed kernel is no longer waited for and
an inserted one is.

A window of steps can be repeated, to let a prediction settle: its tasks are
copied behind one another in program order and the same look-ups link the copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.arrays import unique
from daydream.errors import GraphError
from daydream.graph.cycles import topological
from daydream.graph.plan import Cause, Plan, stable_order
from daydream.graph.query.columns import priorities
from daydream.graph.tables import ALL_LANES, CPU
from daydream.graph.windows import Window, borders, key_of, leading_in, where_in

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


Seams = tuple[np.ndarray, np.ndarray]  # the last task of each lane and copy, and the one whose gap it has


@dataclass
class Lowered:
    """A plan, and for each of its tasks the graph's task and which copy of the window it is in."""

    plan: Plan
    task: np.ndarray
    copy: np.ndarray
    seams: Seams


class _Layout(NamedTuple):
    """Tasks in program order, copies included; `at[copy, task]` is a plan id or -1."""

    task: np.ndarray
    copy: np.ndarray
    order: np.ndarray
    at: np.ndarray
    shift: np.ndarray  # program-order distance between copies, by lane
    before: int  # plan ids ahead of the window
    by_lane: np.ndarray  # plan ids by (lane, id)
    bounds: np.ndarray  # where each lane begins there, and the end
    on_device: dict[int, np.ndarray]  # device lane -> plan ids in lane order
    seams: Seams


Edges = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def lower(graph: Graph, copies: int = 1, window: Window | None = None) -> Lowered:
    """Return the plan of a graph; with copies > 1, of its program with the window repeated.

    `window` is a half-open range of `order` keys, or one by rank; what comes after it is left out
    when it is repeated. The structure is kept until the next structural edit, so
    lowering again after changes of duration costs a gather.
    """
    key = (graph._structure, copies, key_of(window) if copies > 1 else None)
    lowered: Lowered | None = graph._lowered.get(key)
    if lowered is None:
        lowered = graph._lowered[key] = _lower(graph, copies, window)
        return lowered
    plan = lowered.plan
    duration, gap = _costs(graph, lowered.task, lowered.seams)
    if np.array_equal(gap, plan.gap_ns):  # held once, where only durations were changed
        gap = plan.gap_ns
        if np.array_equal(duration, plan.duration_ns):
            return lowered
    return Lowered(plan.with_costs(duration, gap), lowered.task, lowered.copy, lowered.seams)


def _lower(graph: Graph, copies: int, window: Window | None) -> Lowered:
    layout = _lay_out(graph, copies, window)
    edges = [
        _launch_edges(graph, layout),
        _sync_edges(graph, layout),
        _wait_edges(graph, layout),
        _queue_edges(graph, layout),
        _link_edges(graph, layout),
    ]
    src, dst, latency, from_start, cause = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    task, copy, seams = layout.task, layout.copy, layout.seams
    release = _releases(graph, layout)
    if (src >= dst).any():
        rank = topological(graph, layout.task, layout.by_lane, src, dst, cause)
        sequence = np.argsort(rank)
        task, copy, release = task[sequence], copy[sequence], release[sequence]
        src, dst = rank[src], rank[dst]
        seams = rank[seams[0]], rank[seams[1]]
    duration, gap = _costs(graph, task, seams)
    priority = None
    if graph.scheduled:
        priority = np.zeros(len(task), np.int64)
        for lane, key in graph.scheduled.items():
            ids, values = priorities(graph, lane, key)
            by_task = np.zeros(graph.size, np.int64)
            by_task[ids] = values
            here = graph.columns["lane"][task] == lane
            priority[here] = by_task[task[here]]
    plan = Plan.from_edges(
        graph.columns["lane"][task], duration, gap, release, src, dst, latency,
        from_start.astype(bool), cause, scheduled=tuple(sorted(graph.scheduled)), priority=priority,
    )  # fmt: skip
    if task is layout.task:  # else numbered anew
        plan.cache["by_lane"] = layout.by_lane
    return Lowered(plan, task, copy, seams)


def _lay_out(graph: Graph, copies: int, window: Window | None) -> _Layout:
    ids = block = graph.ids
    order, lanes = graph.columns["order"][ids], graph.columns["lane"][ids]
    shift = np.zeros(len(graph.lanes), np.int64)
    ahead, lanes_ahead = ids[:0], lanes[:0]
    if copies > 1:
        if window is None:
            raise GraphError("repeating needs a window")
        begin, end = borders(graph, window)
        shift = end - begin
        one = len(set(zip(begin.tolist(), end.tolist(), strict=True))) == 1  # for all lanes
        where = where_in(graph, window)[ids]
        before, inside = where == 0, where == 1
        ahead, block = ids[before], ids[inside]
        lanes_ahead, lanes = lanes[before], lanes[inside]
        ids = np.concatenate([ahead, *[block] * copies])
        order_ahead, order_block = order[before], order[inside]
        distance = shift[0] if one else shift[lanes]
        order = np.empty(len(ids), np.int64)
        order[: len(ahead)] = order_ahead
        for number in range(copies):
            first = len(ahead) + number * len(block)
            np.add(order_block, number * distance, out=order[first : first + len(block)])
    copy = np.zeros(len(ids), np.int32)
    at = np.full((copies, graph.size), -1, np.int32)
    at[0][ahead] = np.arange(len(ahead), dtype=np.int32)  # one index is quicker than two
    for number in range(copies):
        first = len(ahead) + number * len(block)
        at[number][block] = np.arange(first, first + len(block), dtype=np.int32)
        if number:  # zeros that are not written to take no memory
            copy[first : first + len(block)] = number
    by_lane, bounds, seams = _by_lane(lanes_ahead, lanes, len(graph.lanes), copies)
    on_device = {
        k: by_lane[bounds[k] : bounds[k + 1]] for k, lane in enumerate(graph.lanes) if lane.on_device
    }
    return _Layout(ids, copy, order, at, shift, len(ahead), by_lane, bounds, on_device, seams)


def _by_lane(
    ahead: np.ndarray, block: np.ndarray, count: int, copies: int
) -> tuple[np.ndarray, np.ndarray, Seams]:
    """Return plan ids by (lane, id), where each lane begins there, and where its copies meet.

    `ahead` are the lanes of what lies before the window, `block` those of the window: each is sorted once,
    however often it is repeated.
    """
    sorted_ahead, sorted_block = stable_order(ahead, count), stable_order(block, count)
    of_ahead, of_block = (np.bincount(lanes, minlength=count) for lanes in (ahead, block))
    begin_ahead, begin_block = (np.append(0, np.cumsum(each)) for each in (of_ahead, of_block))
    bounds = np.append(0, np.cumsum(of_ahead + copies * of_block))
    if copies == 1:
        return sorted_block.astype(np.int32), bounds, (sorted_block[:0], sorted_block[:0])
    by_lane = np.empty(len(ahead) + copies * len(block), np.int32)  # there are less than 2**31
    for lane in np.flatnonzero(of_ahead + of_block).tolist():
        first = sorted_ahead[begin_ahead[lane] : begin_ahead[lane + 1]]
        mine = sorted_block[begin_block[lane] : begin_block[lane + 1]]
        at = bounds[lane] + len(first)
        by_lane[bounds[lane] : at] = first
        for number in range(copies):
            to = at + number * len(mine)
            np.add(mine, len(ahead) + number * len(block), out=by_lane[to : to + len(mine)])
    led = np.flatnonzero((of_ahead > 0) & (of_block > 0))
    last = len(ahead) + sorted_block[begin_block[led + 1] - 1]
    ends = np.concatenate([last + number * len(block) for number in range(copies - 1)] or [led[:0]])
    return by_lane, bounds, (ends, np.tile(sorted_ahead[begin_ahead[led + 1] - 1], copies - 1))


def _costs(graph: Graph, task: np.ndarray, seams: Seams) -> tuple[np.ndarray, np.ndarray]:
    """Return durations and gaps; between copies stands the gap that led into the window."""
    duration, gap = graph.columns["duration_ns"][task], graph.columns["gap_ns"][task]
    ends, leading = seams
    gap[ends] = gap[leading]
    return duration, gap


def _releases(graph: Graph, layout: _Layout) -> np.ndarray:
    """Return the earliest start of each task of the plan, in ns: int64, shape (tasks,).

    A thread begins when it was recorded to. That time stands with its first task, and goes with what is first
    now where edits removed that one, or put others before it.
    """
    columns, bounds = graph.columns, layout.bounds
    held = np.flatnonzero(columns["release_ns"] != 0)
    release = columns["release_ns"][held]
    recorded = release == columns["measured_start_ns"][held]  # a user's own release is of its task
    begins = (release > 0) & recorded & (columns["kind"][held] == CPU)
    used = np.flatnonzero(bounds[1:] > bounds[:-1])
    first = np.full(len(graph.lanes), -1)
    first[used] = layout.by_lane[bounds[used]]
    now = first[columns["lane"][held[begins]]]
    found = np.zeros(len(layout.task), np.int64)  # few are held: what is not written to takes no memory
    at = layout.at[0, held]
    found[at[at >= 0]] = release[at >= 0]
    np.maximum.at(found, now[now >= 0], release[begins][now >= 0])
    return found


def _launch_edges(graph: Graph, layout: _Layout) -> Edges:
    launch = graph.columns["launch"][layout.task]
    dst = np.flatnonzero(launch >= 0)
    src = layout.at[layout.copy[dst].astype(np.intp), launch[dst].astype(np.intp)]
    dst, src = dst[src >= 0], src[src >= 0]
    return _edges(src, dst, graph.columns["latency_ns"][layout.task[dst]], True, Cause.LAUNCH)


def _last_before(layout: _Layout, lane: int, order: np.ndarray, *, at_it: bool = False) -> np.ndarray:
    """Return, for each program point, the last device task of a lane launched before (or at) it, or -1."""
    tasks = layout.on_device.get(lane, np.empty(0, np.int64))
    if not len(tasks):
        return np.full(len(order), -1)
    place = np.searchsorted(layout.order[tasks], order, side="right" if at_it else "left") - 1
    return np.where(place >= 0, tasks[np.maximum(place, 0)], -1)


def _copied(layout: _Layout, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, plan id) for every copy of the tasks that a table's rows name."""
    copies, rows = np.nonzero(layout.at[:, tasks] >= 0)
    return rows, layout.at[copies, tasks[rows]]


def _sync_edges(graph: Graph, layout: _Layout) -> Edges:
    rows, calls = _copied(layout, graph.syncs["task"])
    waited = graph.syncs["lane"][rows]
    point = graph.syncs["point"][rows]
    point = graph.columns["order"][point] + layout.copy[calls] * layout.shift[graph.columns["lane"][point]]
    sources, targets, latencies = [], [], []
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)
    call_rank = ranks[graph.columns["lane"][layout.task[calls]]] if len(calls) else np.empty(0, np.int64)
    for lane in layout.on_device:
        mine = (waited == lane) | ((waited == ALL_LANES) & (call_rank == ranks[lane]))
        src = _last_before(layout, lane, point[mine], at_it=True)
        sources.append(src[src >= 0])
        targets.append(calls[mine][src >= 0])
        latencies.append(graph.syncs["latency_ns"][rows[mine]][src >= 0])
    return _edges(_join(sources), _join(targets), _join(latencies), False, Cause.SYNC)


def _wait_edges(graph: Graph, layout: _Layout) -> Edges:
    table = graph.waits
    if not len(table):
        return _edges(_join([]), _join([]), 0, False, Cause.EVENT)
    order = graph.columns["order"]
    shift = layout.shift[graph.columns["lane"][table["wait"]]]
    # Removed calls keep their place: the order they gave the streams still holds.
    copies = layout.at.shape[0]
    sources, targets, latencies = [], [], []
    for copy in range(copies):
        record, wait = order[table["record"]] + copy * shift, order[table["wait"]] + copy * shift
        for lane in unique(table["source"]).tolist():
            rows = np.flatnonzero(table["source"] == lane)
            src = _last_before(layout, lane, record[rows], at_it=True)
            for target in unique(table["target"][rows]).tolist():
                chosen = (table["target"][rows] == target) & (src >= 0)
                tasks = layout.on_device.get(target, np.empty(0, np.int64))
                place = np.searchsorted(layout.order[tasks], wait[rows[chosen]], side="right")
                there = place < len(tasks)
                dst = tasks[place[there]]
                # A wait belongs to the copy whose work it precedes; other copies have their own.
                own = (layout.copy[dst] == copy) & (layout.order[src[chosen][there]] < layout.order[dst])
                # It is of the same task in each: one from before the window may fall into a pause of it.
                recorded = order[table["wait"]][rows[chosen]][there]
                first = tasks[np.searchsorted(layout.order[tasks], recorded, side="right")]
                own &= layout.task[first] == layout.task[dst]
                sources.append(src[chosen][there][own])
                targets.append(dst[own])
                latencies.append(table["latency_ns"][rows[chosen]][there][own])
    return _edges(_join(sources), _join(targets), _join(latencies), False, Cause.EVENT)


def _queue_edges(graph: Graph, layout: _Layout) -> Edges:
    """A launch waits until the launch `depth` places before it on its stream has ended."""
    columns = graph.columns
    sources, targets = [], []
    for lane, depth in graph.queue_depth.items():
        tasks = layout.on_device.get(lane, np.empty(0, np.int64))
        ids = layout.task[tasks]
        # Launched here or before the window; what edits put on a stream without a launch takes no place.
        queued = (columns["launch"][ids] >= 0) | (columns["row"][ids] >= 0) | (columns["release_ns"][ids] > 0)
        tasks = tasks[queued]
        launch = columns["launch"][ids[queued]]
        calls = np.where(launch >= 0, layout.at[layout.copy[tasks], launch], -1)
        # A graph launch counts once, also where its call is removed and its work stays.
        unit = np.where(launch >= 0, layout.copy[tasks] * graph.size + launch, -1)
        last = np.append(unit[1:] != unit[:-1], True) | (unit < 0)
        ends, calls = tasks[last], calls[last]
        src, dst = ends[:-depth], calls[depth:]
        known = (dst >= 0) & (src < dst)  # work inserted among the nodes of a graph launch parts them
        sources.append(src[known])
        targets.append(dst[known])
    return _edges(_join(sources), _join(targets), 0, False, Cause.QUEUE)


def _link_edges(graph: Graph, layout: _Layout) -> Edges:
    table = graph.links
    handoff = table["cause"] == int(Cause.HANDOFF)
    src, dst = table["src"].copy(), table["dst"].copy()
    _stand_in(graph, src, handoff & ~graph.alive[src], ahead=False)
    _stand_in(graph, dst, handoff & ~graph.alive[dst], ahead=True)
    there = (src >= 0) & (dst >= 0)
    there[there] &= graph.alive[src[there]] & graph.alive[dst[there]]
    rows = np.flatnonzero(there)
    sources, targets, chosen = [], [], []
    for at in layout.at:
        a, b = at[src[rows]], at[dst[rows]]
        both = (a >= 0) & (b >= 0) & (a != b)
        sources.append(a[both])
        targets.append(b[both])
        chosen.append(rows[both])
    if len(layout.at) > 1:
        columns = graph.columns
        lane, name = columns["lane"][layout.task], columns["name"][layout.task]
        a, b, led = leading_in(src[rows], dst[rows], layout.at, lane, name, layout.before)
        sources.append(a)
        targets.append(b)
        chosen.append(rows[led])
    picked = _join(chosen)
    return _edges(
        _join(sources), _join(targets), table["latency_ns"][picked], table["from_start"][picked] != 0,
        table["cause"][picked],
    )  # fmt: skip


def _stand_in(graph: Graph, tasks: np.ndarray, dead: np.ndarray, *, ahead: bool) -> None:
    """Let the next (or previous) task of the lane stand in for a removed end of a hand-off.

    A hand-off says "this thread reached this point", whoever runs there.
    """
    rows = np.flatnonzero(dead)
    if not len(rows):
        return
    order, lanes = graph.columns["order"], graph.columns["lane"]
    by_lane = graph.ids[stable_order(lanes[graph.ids], len(graph.lanes))]
    bounds = np.searchsorted(lanes[by_lane], np.arange(len(graph.lanes) + 1))
    of = lanes[tasks[rows]]
    for lane in unique(of).tolist():
        mine = rows[of == lane]
        mates = by_lane[bounds[lane] : bounds[lane + 1]]
        keys, reached = order[mates], order[tasks[mine]]
        place = np.searchsorted(keys, reached, side="right" if ahead else "left")
        if not ahead and len(mates):  # of equal keys the lowest id
            place = np.where(place > 0, np.searchsorted(keys, keys[place - 1]), len(mates))
        tasks[mine] = np.append(mates, -1)[place]


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _edges(src: np.ndarray, dst: np.ndarray, latency: object, from_start: object, cause: object) -> Edges:
    count = len(src)
    return (
        src.astype(np.int64),
        dst.astype(np.int64),
        np.broadcast_to(np.asarray(latency, np.int64), count),
        np.broadcast_to(np.asarray(from_start, bool), count),
        np.broadcast_to(np.asarray(cause, np.int8), count),
    )
