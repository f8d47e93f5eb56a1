"""Lowering: resolve the words of the program into the edges of a plan.

"All work then on that stream", "the queue has room again", "work launched after
the wait" depend on what was launched before what. They are looked up here, by
program order, after all edits, so a removed kernel is no longer waited for and
an inserted one is.

A window of steps can be repeated, to let a prediction settle: its tasks are
copied behind one another in program order and the same look-ups link the copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from daydream.arrays import unique
from daydream.graph.cycles import topological
from daydream.graph.layout import Layout, Repeats, Seams
from daydream.graph.plan import Cause, Plan, stable_order
from daydream.graph.query.columns import priorities
from daydream.graph.tables import ALL_LANES, CPU
from daydream.graph.windows import key_of

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.windows import Window


Edges = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass
class Lowered:
    """A plan, and for each of its tasks the graph's task and which copy of the window it is in.

    `repeats` says how they follow from the first of them; where they were numbered anew, all are the first.
    """

    plan: Plan
    task: np.ndarray
    copy: np.ndarray
    seams: Seams
    repeats: Repeats


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
    plan, repeats, task = lowered.plan, lowered.repeats, lowered.task[: lowered.repeats.tasks]
    same = [
        repeats.as_in(getattr(plan, name), graph.columns[name][task]) for name in ("duration_ns", "gap_ns")
    ]
    if all(same):
        return lowered
    duration, gap = costs(graph, task, repeats, lowered.seams)
    # A gap is held once, where only durations were changed.
    return replace(lowered, plan=plan.with_costs(duration, None if same[1] else gap))


def _lower(graph: Graph, copies: int, window: Window | None) -> Lowered:
    layout = Layout(graph, copies, window)
    edges = [
        _launch_edges(graph, layout),
        _sync_edges(graph, layout),
        _wait_edges(graph, layout),
        _queue_edges(graph, layout),
        _link_edges(graph, layout),
    ]
    src, dst, latency, from_start, cause = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    repeats, seams = layout.repeats, layout.seams()
    task, lane = repeats.of_tasks(layout.task), repeats.of_tasks(layout.lane)
    copy = repeats.numbers()
    release = _releases(graph, layout, len(task))
    if (src >= dst).any():
        rank = topological(graph, task, stable_order(lane, len(graph.lanes)), src, dst, cause)
        sequence = np.argsort(rank)
        task, lane, copy, release = task[sequence], lane[sequence], copy[sequence], release[sequence]
        src, dst = rank[src], rank[dst]
        seams, repeats = (rank[seams[0]], rank[seams[1]]), Repeats(len(task), 0, 1)
    priority = None
    if graph.scheduled:
        priority = np.zeros(len(task), np.int64)
        for number, key in graph.scheduled.items():
            ids, values = priorities(graph, number, key)
            by_task = np.zeros(graph.size, np.int64)
            by_task[ids] = values
            here = lane == number
            priority[here] = by_task[task[here]]
    plan = Plan.from_edges(
        lane, *costs(graph, task[: repeats.tasks], repeats, seams), release, src, dst, latency, from_start,
        cause, scheduled=tuple(sorted(graph.scheduled)), priority=priority,
    )  # fmt: skip
    return Lowered(plan, task, copy, seams, repeats)


def costs(graph: Graph, task: np.ndarray, repeats: Repeats, seams: Seams) -> tuple[np.ndarray, np.ndarray]:
    """Return durations and gaps of a plan, in ns; `task` are the tasks of the program.

    Between copies stands the gap that led into the window.
    """
    duration, gap = (repeats.of_tasks(graph.columns[name][task]) for name in ("duration_ns", "gap_ns"))
    ends, leading = seams
    gap[ends] = gap[leading]
    return duration, gap


def _releases(graph: Graph, layout: Layout, tasks: int) -> np.ndarray:
    """Return the earliest start of each task of the plan, in ns: int64, shape (tasks,).

    A thread begins when it was recorded to. That time stands with its first task, and goes with what is first
    now where edits removed that one, or put others before it.
    """
    columns = graph.columns
    held = np.flatnonzero(columns["release_ns"] != 0)
    release = columns["release_ns"][held]
    recorded = release == columns["measured_start_ns"][held]  # a user's own release is of its task
    begins = (release > 0) & recorded & (columns["kind"][held] == CPU)
    first = np.array([places[0] if len(places) else -1 for places in layout.of_lane], np.int64)
    now = first[columns["lane"][held[begins]]]
    found = np.zeros(tasks, np.int64)  # few are held: what is not written to takes no memory
    at = layout.at[held]
    found[at[at >= 0]] = release[at >= 0]
    np.maximum.at(found, now[now >= 0], release[begins][now >= 0])
    return found


def _launch_edges(graph: Graph, layout: Layout) -> Edges:
    launch = graph.columns["launch"][layout.task]
    dst = np.flatnonzero(launch >= 0)
    src = layout.at[launch[dst]]
    dst, src = dst[src >= 0], src[src >= 0]
    latency = graph.columns["latency_ns"][layout.task[dst]]
    ahead, block, copies = layout.repeats.ahead, layout.repeats.block, range(1, layout.repeats.copies)
    again = np.flatnonzero((src >= ahead) & (dst >= ahead))
    return _edges(
        np.concatenate([src, *[src[again] + copy * block for copy in copies]]),
        np.concatenate([dst, *[dst[again] + copy * block for copy in copies]]),
        np.concatenate([latency, *[latency[again] for _ in copies]]), True, Cause.LAUNCH,
    )  # fmt: skip


def _last_before(layout: Layout, lane: int, order: np.ndarray) -> np.ndarray:
    """Return, for each program point, the last device task of a lane launched before or at it, or -1."""
    tasks, keys = layout.launched(lane)
    if not len(tasks):
        return np.full(len(order), -1)
    place = np.searchsorted(keys, order, side="right") - 1
    return np.where(place >= 0, tasks[np.maximum(place, 0)], -1)


def _sync_edges(graph: Graph, layout: Layout) -> Edges:
    ids = layout.ids(graph.syncs["task"])
    copies, rows = np.nonzero(ids >= 0)  # every copy of the calls
    calls, waited = ids[copies, rows], graph.syncs["lane"][rows]
    point = graph.syncs["point"][rows]
    point = graph.columns["order"][point] + copies * layout.shift[graph.columns["lane"][point]]
    sources, targets, latencies = [], [], []
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)
    call_rank = ranks[graph.columns["lane"][graph.syncs["task"][rows]]]
    for lane in layout.on_device:
        mine = (waited == lane) | ((waited == ALL_LANES) & (call_rank == ranks[lane]))
        src = _last_before(layout, lane, point[mine])
        sources.append(src[src >= 0])
        targets.append(calls[mine][src >= 0])
        latencies.append(graph.syncs["latency_ns"][rows[mine]][src >= 0])
    return _edges(_join(sources), _join(targets), _join(latencies), False, Cause.SYNC)


def _wait_edges(graph: Graph, layout: Layout) -> Edges:
    table = graph.waits
    # Removed calls keep their place: the order they gave the streams still holds.
    order, repeats = graph.columns["order"], layout.repeats
    copies = np.arange(repeats.copies)[:, None]
    sources, targets, latencies = [], [], []
    pairs = {(int(a), int(b)) for a, b in zip(table["source"], table["target"], strict=True)}
    for source, target in sorted(pairs):
        rows = np.flatnonzero((table["source"] == source) & (table["target"] == target))
        further = copies * layout.shift[graph.columns["lane"][table["wait"][rows]]]
        record, wait = ((order[table[name][rows]] + further).reshape(-1) for name in ("record", "wait"))
        (before, made), (after, starts) = layout.launched(source), layout.launched(target)
        last, place = (
            np.searchsorted(keys, at, side="right") for keys, at in ((made, record), (starts, wait))
        )
        there = np.flatnonzero((last > 0) & (place < len(after)))
        last, place, (copy, row) = last[there] - 1, place[there], np.divmod(there, len(rows))
        at, of_copy = repeats.places(after[place])
        # A wait belongs to the copy whose work it precedes; other copies have their own.
        own = (of_copy == copy) & (made[last] < starts[place])
        # It is of the same task in each: one from before the window may fall into a pause of it.
        recorded = np.searchsorted(starts, order[table["wait"][rows[row]]], side="right")
        own &= repeats.places(after[recorded])[0] == at
        sources.append(before[last[own]])
        targets.append(after[place[own]])
        latencies.append(table["latency_ns"][rows[row[own]]])
    return _edges(_join(sources), _join(targets), _join(latencies), False, Cause.EVENT)


def _queue_edges(graph: Graph, layout: Layout) -> Edges:
    """A launch waits until the launch `depth` places before it on its stream has ended."""
    columns, repeats = graph.columns, layout.repeats
    sources, targets = [], []
    for lane, depth in graph.queue_depth.items():
        if lane not in layout.on_device:
            continue
        places = layout.of_lane[lane]
        tasks = layout.task[places]
        launch = columns["launch"][tasks]
        # Launched here or before the window; what edits put on a stream without a launch takes no place.
        queued = (launch >= 0) | (columns["row"][tasks] >= 0) | (columns["release_ns"][tasks] > 0)
        places, launch = places[queued], launch[queued]
        # A graph launch counts once, also where its call is removed and its work stays.
        last = np.append(launch[1:] != launch[:-1], True) | (launch < 0)
        places, launch = places[last], launch[last]
        calls = np.where(launch >= 0, layout.at[launch], -1)
        again = repeats.ids(calls[np.searchsorted(places, repeats.ahead) :])[1:]
        ends, calls = repeats.all_ids(places), np.concatenate([calls, *again])
        src, dst = ends[:-depth], calls[depth:]
        known = (dst >= 0) & (src < dst)  # work inserted among the nodes of a graph launch parts them
        sources.append(src[known])
        targets.append(dst[known])
    return _edges(_join(sources), _join(targets), 0, False, Cause.QUEUE)


def _link_edges(graph: Graph, layout: Layout) -> Edges:
    table = graph.links
    handoff = table["cause"] == int(Cause.HANDOFF)
    src, dst = table["src"].copy(), table["dst"].copy()
    _stand_in(graph, src, handoff & ~graph.alive[src], ahead=False)
    _stand_in(graph, dst, handoff & ~graph.alive[dst], ahead=True)
    there = (src >= 0) & (dst >= 0)
    there[there] &= graph.alive[src[there]] & graph.alive[dst[there]]
    rows = np.flatnonzero(there)
    before, after = layout.ids(src[rows]), layout.ids(dst[rows])
    copies, both = np.nonzero((before >= 0) & (after >= 0) & (before != after))
    begin, end, led = layout.leading_in(graph.columns["name"], src[rows], dst[rows])
    picked = rows[np.append(both, led)]
    return _edges(
        np.append(before[copies, both], begin), np.append(after[copies, both], end),
        table["latency_ns"][picked], table["from_start"][picked] != 0, table["cause"][picked],
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
