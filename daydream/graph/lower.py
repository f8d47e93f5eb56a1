"""Lowering: resolve the statements of the program into the edges of a plan.

"All work then on that stream", "the queue has room again", "work launched after
the wait" depend on what was launched before what. They are looked up here, by
program order, after all edits, so a removed kernel is no longer waited for and
an inserted one is.

A window of the program, a range of program-order keys, can be repeated, to let a prediction reach its steady
state. First the tasks are tiled, then the same look-ups link the copies:

    entries   0 ...             | window, copy 0  | window, copy 1    | ...
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from daydream.errors import GraphError
from daydream.graph.plan import Cause, Plan, around, stable_order
from daydream.graph.select import priorities
from daydream.graph.tables import ALL_LANES, CPU, ORDER_STEP

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

#: A half-open range of program-order keys, or one for each rank: ranks do not begin their steps at one point.
Window: TypeAlias = tuple[int, int] | Mapping[int, tuple[int, int]]
#: Arrays of one length: sources, targets, latencies, whether these count from the start, causes.
Edges: TypeAlias = Sequence[np.ndarray]

LONGEST = 6  # steps of a cycle that are named
REASONS = {
    Cause.LANE: "on {lane}, which runs in program order",
    Cause.LAUNCH: "which it launched",
    Cause.SYNC: "a call that waits for it",
    Cause.EVENT: "whose stream waits for it",
    Cause.QUEUE: "a launch that needs its place in the queue",
    Cause.HANDOFF: "on a thread that it wakes",
    Cause.COMMUNICATION: "which communicates with it",
    Cause.GRAPH: "a node after it",
    Cause.LOCK: "which needs the driver's lock",
    Cause.USER: "by an edge that was put in",
}


class CycleError(GraphError):
    """Tasks wait for each other; `edges` are one cycle: a task, the one behind it, and why it is."""

    def __init__(self, message: str, edges: list[tuple[int, int, Cause]]) -> None:
        super().__init__(message)
        self.edges = edges


@dataclass
class Lowered:
    """A plan, and for each of its entries the graph's task and which copy of the window it is in.

    `gap_of` is the task whose gap an entry has: before the next copy that of the task before the window.
    """

    plan: Plan
    task: np.ndarray
    copy: np.ndarray
    gap_of: np.ndarray


def lower(graph: Graph, copies: int = 1, window: Window | None = None) -> Lowered:
    """Return the plan of a graph; with copies > 1, of its program with the window repeated.

    What comes after the window is left out when it is repeated. The structure is kept until the next
    structural edit, so lowering again after changes of duration costs a gather; with a lane that is
    scheduled until any edit, since its key may read what was edited.

    Raises `GraphError` if the graph has a cycle.
    """
    lowered: Lowered = graph.derived(
        plan_key(copies, window), lambda: _lower(graph, copies, window), structure=not graph.scheduled
    )
    duration = graph.columns["duration_ns"][lowered.task]
    gap = graph.columns["gap_ns"][lowered.gap_of]
    return replace(lowered, plan=lowered.plan.with_costs(duration, gap))


def plan_key(copies: int, window: Window | None) -> tuple[object, ...]:
    """Return what a graph keeps the plan of a repeated window by."""
    steps = tuple(sorted(window.items())) if isinstance(window, Mapping) else window
    return "plan", copies, steps if copies > 1 else None


def _lower(graph: Graph, copies: int, window: Window | None) -> Lowered:
    tiles = _Tiles(graph, copies, window)
    edges = [
        _launch_edges(graph, tiles),
        _sync_edges(graph, tiles),
        *_wait_edges(graph, tiles),
        *_queue_edges(graph, tiles),
        _link_edges(graph, tiles),
    ]
    src, dst, latency, from_start, cause = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    task = tiles.task
    copy = tiles.copy
    lane = tiles.lane
    gap_of = tiles.gap_of()
    release = _releases(graph, tiles)
    if (src >= dst).any():
        rank = _topological(graph, task, stable_order(lane, len(graph.lanes)), src, dst, cause)
        sequence = np.argsort(rank)
        task = task[sequence]
        copy = copy[sequence]
        lane = lane[sequence]
        gap_of = gap_of[sequence]
        release = release[sequence]
        src = rank[src]
        dst = rank[dst]
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
        lane, graph.columns["duration_ns"][task], graph.columns["gap_ns"][gap_of], release,
        src, dst, latency, from_start, cause, scheduled=tuple(graph.scheduled), priority=priority,
    )  # fmt: skip
    return Lowered(plan, task, copy, gap_of)


class _Tiles:
    """The program's tasks with the window repeated: an entry a task and copy, in the order of the plan.

    `task`, `copy`, `lane` and `order` (the key of its place in the program) are of each entry. `at` is the
    entry of a task in each copy, or -1: int32, shape (copies, ids). `shift` is the distance between copies in
    program order, by lane.
    """

    def __init__(self, graph: Graph, copies: int, window: Window | None) -> None:
        task = graph.ids
        ahead = 0
        lanes = len(graph.lanes)
        self.shift = np.zeros(lanes, np.int64)
        if copies > 1:
            if window is None:
                raise GraphError("repeating needs a window")
            begin, end = _borders(graph, window)
            self.shift = end - begin
            where = where_in(graph, window)[task]
            ahead = int((where == 0).sum())
            task = np.concatenate([task[where == 0], task[where == 1]])
        self.ahead = ahead
        inside = task[ahead:]
        self.task = np.concatenate([task, np.tile(inside, copies - 1)])
        self.copy = np.zeros(len(self.task), np.int32)
        self.copy[ahead:] = np.repeat(np.arange(copies, dtype=np.int32), len(inside))
        self.keys = graph.columns["order"]
        self.lanes = graph.columns["lane"]
        self.lane = self.lanes[self.task]
        self.order = self.point(self.task, self.copy)
        self.at = np.full((copies, graph.size), -1, np.int32)
        self.at[0, task] = np.arange(len(task), dtype=np.int32)
        for copy in range(1, copies):
            self.at[copy, inside] = self.at[0, inside] + copy * len(inside)
        by_lane = stable_order(self.lane, lanes)
        bounds = np.append(0, np.cumsum(np.bincount(self.lane, minlength=lanes))).tolist()
        self.of_lane = [by_lane[begin:end] for begin, end in pairwise(bounds)]  # entries, ascending
        self.on_device = [number for number, lane in enumerate(graph.lanes) if lane.on_device]

    def launched(self, lane: int) -> np.ndarray:
        """Return the entries on a lane; none if it is of no device."""
        return self.of_lane[lane] if lane in self.on_device else self.of_lane[lane][:0]

    def point(self, task: np.ndarray, copy: np.ndarray) -> np.ndarray:
        """Return the place of a copy of each task in program order; of removed tasks, too."""
        found: np.ndarray = self.keys[task] + copy * self.shift[self.lanes[task]]
        return found

    def gap_of(self) -> np.ndarray:
        """Return the task whose gap each entry has: int64."""
        found = self.task.astype(np.int64)
        for entries in self.of_lane:
            inside = int(np.searchsorted(entries, self.ahead))
            if 0 < inside < len(entries):
                last = np.flatnonzero(self.copy[entries[inside:-1]] != self.copy[entries[inside + 1 :]])
                found[entries[inside:][last]] = self.task[entries[inside - 1]]
        return found


def _releases(graph: Graph, tiles: _Tiles) -> np.ndarray:
    """Return the earliest start of each entry, in ns: int64.

    A thread begins when it was recorded to. That time stands with its first task, and goes with what is first
    now where edits removed that one, or put others before it.
    """
    columns = graph.columns
    held = np.flatnonzero(columns["release_ns"] != 0)
    release = columns["release_ns"][held]
    recorded = release == columns["measured_start_ns"][held]  # a user's own release is of its task
    begins = (release > 0) & recorded & (columns["kind"][held] == CPU)
    first = np.array([entries[0] if len(entries) else -1 for entries in tiles.of_lane], np.int64)
    now = first[columns["lane"][held[begins]]]
    found = np.zeros(len(tiles.task), np.int64)
    at = tiles.at[0, held]
    found[at[at >= 0]] = release[at >= 0]
    np.maximum.at(found, now[now >= 0], release[begins][now >= 0])
    return found


def _launch_edges(graph: Graph, tiles: _Tiles) -> Edges:
    launch = graph.columns["launch"][tiles.task]
    dst = np.flatnonzero(launch >= 0)
    src = tiles.at[tiles.copy[dst], launch[dst]]
    dst = dst[src >= 0]
    src = src[src >= 0]
    return np.broadcast_arrays(src, dst, graph.columns["latency_ns"][tiles.task[dst]], True, Cause.LAUNCH)


def _sync_edges(graph: Graph, tiles: _Tiles) -> Edges:
    table = graph.syncs
    lane_of = graph.columns["lane"]
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)
    # Each call and each lane that it waits for, in every copy.
    lanes = np.array(tiles.on_device, np.int64)[:, None]
    waits = (table["lane"] == ALL_LANES) & (ranks[lane_of[table["task"]]] == ranks[lanes])
    place, row = np.nonzero(waits | (table["lane"] == lanes))
    calls = tiles.at[:, table["task"][row]]
    copies, both = np.nonzero(calls >= 0)
    lanes = lanes[place[both], 0]
    row = row[both]
    calls = calls[copies, both]
    src, _ = around(tiles.launched, tiles.order, lanes, tiles.point(table["point"][row], copies))
    there = src >= 0
    return np.broadcast_arrays(src[there], calls[there], table["latency_ns"][row[there]], False, Cause.SYNC)


def _wait_edges(graph: Graph, tiles: _Tiles) -> Iterator[Edges]:
    table = graph.waits
    if not len(tiles.task):
        return
    # Removed calls keep their place: the order they gave the streams still holds.
    rows = np.tile(np.lexsort((table["target"], table["source"])), len(tiles.at))
    copy = np.repeat(np.arange(len(tiles.at)), len(table))
    record, source, wait, target, latency = (table[name][rows] for name in table)
    made, _ = around(tiles.launched, tiles.order, source, tiles.point(record, copy))
    _, held = around(tiles.launched, tiles.order, target, tiles.point(wait, copy))
    own = (made >= 0) & (held >= 0)
    # A wait belongs to the copy whose work it precedes; other copies have their own.
    own &= (tiles.copy[held] == copy) & (tiles.order[made] < tiles.order[held])
    # It is of the same task in each: one from before the window may fall into a pause of it.
    own &= tiles.task[held] == np.tile(tiles.task[held[: len(table)]], len(tiles.at))
    yield np.broadcast_arrays(made[own], held[own], latency[own], False, Cause.EVENT)


def _queue_edges(graph: Graph, tiles: _Tiles) -> Iterator[Edges]:
    """A launch waits until the launch `depth` places before it on its stream has ended."""
    columns = graph.columns
    for lane, depth in graph.queue_depth.items():
        entries = tiles.launched(lane)
        task = tiles.task[entries]
        # Launched here or before the window; what edits put on a stream without a launch takes no place.
        queued = (
            (columns["launch"][task] >= 0) | (columns["row"][task] >= 0) | (columns["release_ns"][task] > 0)
        )
        entries = entries[queued]
        launch = columns["launch"][task[queued]]
        copy = tiles.copy[entries]
        # A graph launch counts once, also where its call is removed and its work stays.
        other = (launch[1:] != launch[:-1]) | (copy[1:] != copy[:-1])
        last = np.append(other, True)[: len(launch)] | (launch < 0)
        entries = entries[last]
        launch = launch[last]
        copy = copy[last]
        calls = np.where(launch >= 0, tiles.at[copy, launch], -1)
        src = entries[:-depth]
        dst = calls[depth:]
        known = (dst >= 0) & (src < dst)  # work inserted among the nodes of a graph launch parts them
        yield np.broadcast_arrays(src[known], dst[known], 0, False, Cause.QUEUE)


def _link_edges(graph: Graph, tiles: _Tiles) -> Edges:
    """Return the edges of links.

    A link from a step into the next is recorded once where the window begins: its source lies before the
    window. In each further copy the same place of the copy before it takes the source's part:

        before |  window, copy 0  |  copy 1          |
          ...s |d            ...s'|d            ...s'|     recorded: s -> d; in copy 1: s' -> d

    That is as many tasks of its name on its lane before the copy's end.
    """
    table = graph.links
    name = graph.columns["name"]
    handoff = table["cause"] == int(Cause.HANDOFF)
    src = table["src"].copy()
    dst = table["dst"].copy()
    _stand_in(graph, src, handoff & ~graph.alive[src], ahead=False)
    _stand_in(graph, dst, handoff & ~graph.alive[dst], ahead=True)
    there = (src >= 0) & (dst >= 0)
    there[there] &= graph.alive[src[there]] & graph.alive[dst[there]]
    rows = np.flatnonzero(there)
    before = tiles.at[:, src[rows]]
    after = tiles.at[:, dst[rows]]
    leading = (before[0] >= 0) & (before[0] < tiles.ahead) & (after[0] >= tiles.ahead)
    for row in np.flatnonzero(leading & (len(before) > 1)).tolist():
        entries = tiles.of_lane[tiles.lane[before[0, row]]]
        alike = entries[name[tiles.task[entries]] == name[src[rows[row]]]]
        each = int(((alike >= tiles.ahead) & (tiles.copy[alike] == 0)).sum())
        if each:  # what is not done in the window is not waited for again
            places = np.searchsorted(alike, before[0, row]) + np.arange(1, len(before)) * each
            before[1:, row] = alike[places]
    copies, both = np.nonzero((before >= 0) & (after >= 0) & (before != after))
    picked = rows[both]
    return np.broadcast_arrays(
        before[copies, both], after[copies, both],
        table["latency_ns"][picked], table["from_start"][picked] != 0, table["cause"][picked],
    )  # fmt: skip


def _stand_in(graph: Graph, tasks: np.ndarray, dead: np.ndarray, *, ahead: bool) -> None:
    """Let the next (or previous) task of the lane stand in for a removed end of a hand-off.

    A hand-off says "this thread reached this point", whoever runs there.
    """
    order = graph.columns["order"]
    lanes = graph.columns["lane"]
    on_lane = lanes[graph.ids]
    ends = tasks[dead]
    before, behind = around(
        lambda lane: graph.ids[on_lane == lane], order, lanes[ends], order[ends] - (not ahead)
    )
    tasks[dead] = behind if ahead else before


def _borders(graph: Graph, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return the program-order keys between which each lane is repeated; the end is not included."""
    if isinstance(window, Mapping):
        other = next(iter(window.values()))  # lanes of no rank: what edits put between the ranks
        each = [window.get(lane.rank, other) for lane in graph.lanes]
    else:
        each = [window] * len(graph.lanes)
    begin, end = np.array(each, np.int64).reshape(-1, 2).T
    return begin, end


def steps_in(graph: Graph, window: Window) -> dict[int, tuple[int, int]]:
    """Return the first and the last step, by rank, that a window holds."""
    found: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(graph.steps):
        rank = step.get("rank", 0)
        key = int(step["start_ns"]) * ORDER_STEP
        begin, end = window.get(rank, (0, 0)) if isinstance(window, Mapping) else window
        if begin <= key < end:
            found[rank] = (found.get(rank, (number, number))[0], number)
    return found


def where_in(graph: Graph, window: Window) -> np.ndarray:
    """Return where each task lies: 0 before the window of its rank, 1 in it, 2 behind it; int8, shape (ids,).

    The first task of a step may begin where the window does. What an edit puts right before it stands ahead
    of that key and belongs to the step all the same: at a border, where nothing recorded lies between, a
    task that was not recorded goes by its step.
    """
    columns = graph.columns
    order = columns["order"]
    lane = columns["lane"]
    begin, end = _borders(graph, window)
    found = (order >= begin[lane]).astype(np.int8) + (order >= end[lane])
    made = (columns["measured_start_ns"] < 0) & ((columns["row"] < 0) | (columns["repeat"] > 0))
    made &= columns["step"] >= 0
    if not made.any():
        return found
    ranks = np.array([each.rank for each in graph.lanes], np.int64)
    for rank, (first, last) in steps_in(graph, window).items():
        mine = ranks[lane] == rank
        for side, of_next in ((0, columns["step"] >= first), (1, columns["step"] > last)):
            here = mine & (found == side)
            edge = order.max(where=here & ~made, initial=-1)
            found[here & made & of_next & (order > edge)] += 1
    return found


def _topological(
    graph: Graph, task: np.ndarray, by_lane: np.ndarray, src: np.ndarray, dst: np.ndarray, cause: np.ndarray
) -> np.ndarray:
    """Return a topological rank for every entry of a plan, as near to program order as its edges allow.

    `task` is the task of each entry and `by_lane` all entries by (lane, entry), both int64, shape (entries,);
    `src`, `dst` and `cause` are the edges between lanes. Raises `CycleError` where there is none.
    """
    count = len(task)
    lanes = graph.columns["lane"][task]
    fixed = ~np.isin(lanes, list(graph.scheduled))
    neighbours = (lanes[by_lane[1:]] == lanes[by_lane[:-1]]) & fixed[by_lane[1:]]
    src = np.concatenate([src, by_lane[:-1][neighbours]])
    dst = np.concatenate([dst, by_lane[1:][neighbours]])
    cause = np.append(cause, np.full(int(neighbours.sum()), int(Cause.LANE)))
    left = np.bincount(dst, minlength=count).tolist()
    by_source = np.argsort(src, kind="stable")
    starts = np.searchsorted(src[by_source], np.arange(count + 1)).tolist()
    children = dst[by_source].tolist()
    ready = [entry for entry, causes in enumerate(left) if not causes]
    rank = np.full(count, -1, np.int64)
    done = 0
    while ready:
        entry = heapq.heappop(ready)
        rank[entry] = done
        done += 1
        for child in children[starts[entry] : starts[entry + 1]]:
            left[child] -= 1
            if not left[child]:
                heapq.heappush(ready, child)
    if done < count:
        raise _cycle_error(graph, task, rank < 0, src, dst, cause)
    return rank


def _cycle_error(
    graph: Graph, task: np.ndarray, stuck: np.ndarray, src: np.ndarray, dst: np.ndarray, cause: np.ndarray
) -> CycleError:
    """Return the error that names one cycle among the stuck entries of a plan."""
    inside = np.flatnonzero(stuck[src] & stuck[dst])
    into = dict(zip(dst[inside].tolist(), inside.tolist(), strict=True))  # an edge into each, any
    entry = int(np.flatnonzero(stuck)[0])
    walk: dict[int, int] = {}  # the edge into each entry that was passed
    while entry not in walk:
        walk[entry] = into[entry]
        entry = int(src[into[entry]])
    cycle = list(walk.values())[list(walk).index(entry) :][::-1]
    edges = [(int(task[src[edge]]), int(task[dst[edge]]), Cause(int(cause[edge]))) for edge in cycle]
    named = []
    for _, after, why in edges[:LONGEST]:
        lane = graph.lanes[graph.columns["lane"][after]].name
        named.append(f"{task_name(graph, after)} ({REASONS[why].format(lane=lane)})")
    more = f", and on through {len(cycle) - LONGEST} more" if len(cycle) > LONGEST else ""
    first = task_name(graph, edges[0][0])
    words = f"{first} comes before {', before '.join(named)}{more}"
    return CycleError(f"the graph has a cycle of {len(cycle)} tasks: {words}", edges)


def task_name(graph: Graph, task: int) -> str:
    """Return a task's name for a message, shortened."""
    name = graph.texts["name"][graph.columns["name"][task]]
    return repr(name if len(name) <= 60 else name[:57] + "...")
