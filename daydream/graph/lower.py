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
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy import ndarray

from daydream.errors import GraphError
from daydream.graph.plan import OF_NO_EDGE, Cause, Plan, around, stable_order
from daydream.graph.select import among, priorities
from daydream.graph.tables import ALL_LANES, CPU, ORDER_STEP, Table, step_rank
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

#: A half-open range of program-order keys, or one for each rank: ranks do not begin their steps at one point.
Window = tuple[int, int] | Mapping[int, tuple[int, int]]
#: Sources, targets, latencies, whether these count from the start, causes: of as many edges, or one for all.
#: Where a source or target is -1 there is no edge.
Edges = tuple[ndarray, ndarray, ndarray | int, ndarray | bool, ndarray | Cause]

LONGEST = 6  # steps of a cycle that are named


class CycleError(GraphError):
    """Tasks wait for each other."""


class Lowered(Struct):
    """A plan, and for each of its entries the graph's task and which copy of the window it is in.

    `gap_of` is the task whose gap an entry has: before the next copy that of the task before the window.
    `doubtful` are the edges, as `Edges`, that count where doubtful waits are released.
    `copies` and `window` are what the plan was made with; a sole copy has no window.
    """

    plan: Plan
    task: ndarray
    copy: ndarray
    gap_of: ndarray
    doubtful: ndarray
    copies: int
    window: Window | None


def lower(graph: Graph, copies: int = 1, window: Window | None = None) -> Lowered:
    """Return the plan of a graph; with copies > 1, of its program with the window repeated.

    What comes after the window is left out when it is repeated. The structure is kept until the next
    structural edit, so lowering again after changes of duration costs a gather; with a lane that is
    scheduled until any edit, since its key may read what was edited.

    Raises `GraphError` if the graph has a cycle.
    """
    window = window if copies > 1 else None
    lowered: Lowered = graph.derived(
        ("plan", copies, repr(window)),
        lambda: _lower(graph, copies, window),
        structure=not graph.scheduled,
    )
    if graph.waits_released:
        kept = lowered
        lowered = graph.derived(("released", copies, repr(window)), lambda: _released(graph, kept))
    times = graph.duration_ns[lowered.task], graph.gap_ns[lowered.gap_of]
    return replace(lowered, plan=lowered.plan.with_costs(*times))


def _lower(graph: Graph, copies: int, window: Window | None) -> Lowered:
    tiles = _Tiles(graph, copies, window)
    launched = np.flatnonzero(graph.launch[tiles.task] >= 0)
    latency = graph.latency_ns[tiles.task[launched]]
    made: list[Edges] = [
        (tiles.calls(launched), launched, latency, True, Cause.LAUNCH),
        _sync_edges(graph, tiles),
        *_wait_edges(graph, tiles),
        *_queue_edges(graph, tiles),
        _link_edges(graph, tiles, graph.links),
    ]
    edges = _joined(*made)
    doubtful = _joined(_link_edges(graph, tiles, graph.doubtful))
    doubtful[4] = Cause.EVENT
    own = [tiles.task, tiles.copy, tiles.lane, tiles.gap_of(), tiles.releases()]
    if (edges[0] >= edges[1]).any():
        rank = _topological(graph, tiles, edges)
        sequence = np.argsort(rank)
        own = [values[sequence] for values in own]
        edges[:2] = rank[edges[:2]]
        doubtful[:2] = rank[doubtful[:2]]
    task, copy, lane, gap_of, release = own
    priority = np.zeros(graph.size, np.int64)
    for number, key in graph.scheduled.items():
        ids, values = priorities(graph, number, key)
        priority[ids] = values
    plan = Plan.from_edges(
        lane,
        graph.duration_ns[task],
        graph.gap_ns[gap_of],
        release,
        *edges,
        scheduled=graph.scheduled,
        priority=priority[task],
    )
    return Lowered(plan, task, copy, gap_of, doubtful, copies, window)


def _joined(*parts: Edges) -> ndarray:
    """Return the edges of all parts that have both ends: int64, shape (5, edges)."""
    edges = np.concatenate(
        [np.stack(np.broadcast_arrays(*each)).reshape(5, -1) for each in parts], axis=1
    )
    return edges.compress((edges[:2] >= 0).all(axis=0), axis=1)


def _released(graph: Graph, lowered: Lowered) -> Lowered:
    """Return the plan in which what may be a wait is one.

    Doubtful edges against the order of the plan are left out: another order has to be found task by task.
    """
    plan = lowered.plan
    doubtful = lowered.doubtful.compress(lowered.doubtful[0] < lowered.doubtful[1], axis=1)
    late = np.isin(plan.edge_dst, doubtful[1]) & (plan.edge_cause == Cause.LAUNCH)
    latency = np.where(
        late, np.minimum(plan.edge_latency_ns, graph.facts.launch_latency_ns), plan.edge_latency_ns
    )
    doubt = (graph.doubt + graph.gap_doubt)[lowered.task[plan.edge_src]]
    stays = (plan.edge_cause != Cause.OUTSIDE) | (doubt == 0)
    edges = plan.edge_src, plan.edge_dst, latency, plan.edge_from_start, plan.edge_cause
    made = Plan.from_edges(
        plan.lane,
        plan.duration_ns,
        plan.gap_ns,
        plan.release_ns,
        *(np.append(old[stays], new) for old, new in zip(edges, doubtful, strict=True)),
        scheduled=plan.scheduled,
        priority=plan.priority,
    )
    made.cache.update({name: kept for name, kept in plan.cache.items() if name in OF_NO_EDGE})
    return replace(lowered, plan=made)


class _Tiles:
    """The program's tasks with the window repeated: an entry a task and copy, in the order of the plan.

    `task`, `copy`, `lane` and `order` (the key of its place in the program) are of each entry. The first
    `ahead` entries are of what comes before the window; `of_lane` are those of each lane, ascending. `at` is
    the entry of a task in each copy, or -1: int32, shape (copies, ids + 1), its last column of no task.
    """

    def __init__(self, graph: Graph, copies: int, window: Window | None) -> None:
        self.graph = graph
        task = graph.ids
        self.ahead = 0
        self.shift = np.zeros(
            len(graph.lanes), np.int64
        )  # between copies in program order, by lane
        if copies > 1:
            if window is None:
                raise GraphError("repeating needs a window")
            begin, end = _borders(graph, window)
            self.shift = end - begin
            where = where_in(graph, window)[task]
            before = task[where == 0]
            self.ahead = len(before)
            task = np.append(before, task[where == 1])
        inside = task[self.ahead :]
        self.task = np.append(task, np.tile(inside, copies - 1))
        counts = [len(task)] + [len(inside)] * (copies - 1)
        self.copy = np.repeat(np.arange(copies, dtype=np.int32), counts)
        self.lane = graph.lane[self.task]
        self.order = self.point(self.task, self.copy)
        self.at = np.full((copies, graph.size + 1), -1, np.int32)
        self.at[self.copy, self.task] = np.arange(len(self.task))
        ends = np.cumsum(np.bincount(self.lane, minlength=len(graph.lanes)))
        self.of_lane = np.split(stable_order(self.lane, len(graph.lanes)), ends)[:-1]

    def point(self, task: ndarray, copy: ndarray) -> ndarray:
        """Return the place of a copy of each task in program order; of removed tasks, too."""
        return self.graph.order[task] + copy * self.shift[self.graph.lane[task]]

    def calls(self, entries: ndarray) -> ndarray:
        """Return the entry of the call that launched each entry, or -1."""
        return self.at[self.copy[entries], self.graph.launch[self.task[entries]]]

    def around(self, lanes: ndarray, tasks: ndarray) -> tuple[ndarray, ndarray]:
        """Return the last entry of each lane up to a task's place in the program, and the first behind it.

        In each copy, -1 for none: two arrays, shape (copies, tasks).
        """
        points = self.point(tasks, np.arange(len(self.at))[:, None])
        return around(self.of_lane.__getitem__, self.order, lanes, points)

    def gap_of(self) -> ndarray:
        """Return the task whose gap each entry has: int64."""
        found = self.task.copy()
        for entries in self.of_lane:
            ahead = np.searchsorted(entries, self.ahead)
            if ahead:
                inside = entries[ahead:]
                last = inside[:-1][np.diff(self.copy[inside]) > 0]
                found[last] = self.task[entries[ahead - 1]]
        return found

    def releases(self) -> ndarray:
        """Return the earliest start of each entry, in ns: int64.

        A thread begins when it was recorded to. That time stands with its first task, and goes with what is
        first now where edits removed that one, or put others before it.
        """
        graph = self.graph
        release = graph.release_ns
        recorded = release == graph.measured_start_ns  # a user's own release is of its task
        begins = (release > 0) & recorded & (graph.kind == CPU)
        found = np.zeros(len(self.task) + 1, np.int64)  # the last one of removed tasks
        held = np.flatnonzero(release)
        found[self.at[0, held]] = release[held]
        for task in np.flatnonzero(begins):
            first = self.of_lane[graph.lane[task]][:1]
            found[first] = np.maximum(found[first], release[task])
        return found[:-1]


def _sync_edges(graph: Graph, tiles: _Tiles) -> Edges:
    table = graph.syncs
    ranks = graph.ranks
    # Each call and each lane that it waits for.
    lanes = np.flatnonzero([lane.on_device for lane in graph.lanes])[:, None]
    of_rank = ranks[graph.lane[table["task"]]] == ranks[lanes]
    place, row = np.nonzero((table["lane"] == lanes) | ((table["lane"] == ALL_LANES) & of_rank))
    src, _ = tiles.around(lanes[place, 0], table["point"][row])
    return src, tiles.at[:, table["task"][row]], table["latency_ns"][row], False, Cause.SYNC


def _wait_edges(graph: Graph, tiles: _Tiles) -> Iterator[Edges]:
    table = graph.waits
    if not len(tiles.task):
        return
    # Removed calls keep their place: the order they gave the streams still holds.
    rows = np.lexsort((table["target"], table["source"]))
    record, source, wait, target, latency = (table[name][rows] for name in table)
    made, _ = tiles.around(source, record)
    _, held = tiles.around(target, wait)
    # A wait belongs to the copy whose work it precedes; other copies have their own.
    own = tiles.copy[held] == np.arange(len(held))[:, None]
    own &= (made >= 0) & (tiles.order[made] < tiles.order[held])
    # It is of the same task in each: one from before the window may fall into a pause of it.
    own &= tiles.task[held] == tiles.task[held[0]]
    yield np.where(own, made, -1), held, latency, False, Cause.EVENT


def _queue_edges(graph: Graph, tiles: _Tiles) -> Iterator[Edges]:
    """A launch waits until the launch `depth` places before it on its stream has ended."""
    # Launched here or before the window; what edits put on a stream without a launch takes no place.
    queued = (graph.launch >= 0) | (graph.row >= 0) | (graph.release_ns > 0)
    for lane, depth in graph.queue_depth.items():
        entries = tiles.of_lane[lane]
        entries = entries[queued[tiles.task[entries]]]
        # A graph launch counts once, also where its call is removed and its work stays.
        call = graph.launch[tiles.task[entries]]
        same = (np.diff(call) == 0) & (np.diff(tiles.copy[entries]) == 0) & (call[1:] >= 0)
        entries = np.delete(entries, np.flatnonzero(same))
        src = entries[:-depth]
        dst = tiles.calls(entries[depth:])
        # Work inserted among the nodes of a graph launch parts them.
        yield np.where(src < dst, src, -1), dst, 0, False, Cause.QUEUE


def _link_edges(graph: Graph, tiles: _Tiles, table: Table) -> Edges:
    """Return the edges of links, or of doubtful ones.

    A link from a step into the next is recorded once where the window begins: its source lies before the
    window. In each further copy the same place of the copy before it takes the source's part:

        before |  window, copy 0  |  copy 1          |
          ...s |d            ...s'|d            ...s'|     recorded: s -> d; in copy 1: s' -> d

    That is as many tasks of its name on its lane before the copy's end.

    A hand-off says "this thread reached this point", whoever runs there: for an end of it that was removed
    the task before (or behind) it on its lane stands in.
    """
    name = graph.name
    lane = graph.lane
    src = table["src"].copy()
    dst = table["dst"].copy()
    for side, ends in enumerate((src, dst)):
        gone = np.flatnonzero((table["cause"] == Cause.HANDOFF) & ~graph.alive[ends])
        ends[gone] = around_points(graph, lane[ends[gone]], ends[gone])[side]
    before = tiles.at[:, src]
    after = tiles.at[:, dst]
    leading = (before[0] >= 0) & (before[0] < tiles.ahead) & (after[0] >= tiles.ahead)
    for row in np.flatnonzero(leading).tolist():
        entries = tiles.of_lane[lane[src[row]]]
        alike = entries[name[tiles.task[entries]] == name[src[row]]]
        each = ((alike >= tiles.ahead) & (tiles.copy[alike] == 0)).sum()
        if each:  # what is not done in the window is not waited for again
            places = np.searchsorted(alike, before[0, row]) + np.arange(1, len(before)) * each
            before[1:, row] = alike[places]
    before[before == after] = -1
    return before, after, table["latency_ns"], table["from_start"], table["cause"]


def _borders(graph: Graph, window: Window) -> tuple[ndarray, ndarray]:
    """Return the program-order keys between which each lane is repeated; the end is not included."""
    windows = window if isinstance(window, Mapping) else {0: window}
    other = next(iter(windows.values()))  # of lanes of no rank: what edits put between the ranks
    each = [windows.get(lane.rank, other) for lane in graph.lanes]
    begin, end = np.array(each, np.int64).reshape(-1, 2).T
    return begin, end


def steps_in(graph: Graph, window: Window) -> dict[int, tuple[int, int]]:
    """Return the first and the last step, by rank, that a window holds."""
    found = dict[int, tuple[int, int]]()
    for number, step in enumerate(graph.steps):
        rank = step_rank(step)
        key = int(step["start_ns"]) * ORDER_STEP
        begin, end = window.get(rank, (0, 0)) if isinstance(window, Mapping) else window
        if begin <= key < end:
            found[rank] = (found.get(rank, (number, number))[0], number)
    return found


def where_in(graph: Graph, window: Window) -> ndarray:
    """Return where each task lies: 0 before the window of its rank, 1 in it, 2 behind it; int8, shape (ids,).

    The first task of a step may begin where the window does. What an edit puts right before it stands ahead
    of that key and belongs to the step all the same: at a border, where nothing recorded lies between, a
    task that was not recorded goes by its step.
    """
    order = graph.order
    lane = graph.lane
    begin, end = _borders(graph, window)
    found = (order >= begin[lane]).astype(np.int8) + (order >= end[lane])
    made = (graph.measured_start_ns < 0) & ((graph.row < 0) | (graph.repeat > 0))
    made &= graph.step >= 0
    if not made.any():
        return found
    for rank, (first, last) in steps_in(graph, window).items():
        mine = graph.ranks[lane] == rank
        for side, of_next in ((0, graph.step >= first), (1, graph.step > last)):
            here = mine & (found == side)
            edge = order.max(where=here & ~made, initial=-1)
            found[here & made & of_next & (order > edge)] += 1
    return found


def _topological(graph: Graph, tiles: _Tiles, edges: ndarray) -> ndarray:
    """Return a topological rank for every entry of a plan, as near to program order as its edges allow.

    `edges` are those between lanes. Raises `CycleError` where there is none.
    """
    src, dst, *_, cause = edges
    lanes = [
        entries for number, entries in enumerate(tiles.of_lane) if number not in graph.scheduled
    ]
    src = np.concatenate([src, *(entries[:-1] for entries in lanes)])
    dst = np.concatenate([dst, *(entries[1:] for entries in lanes)])
    cause = np.append(cause, np.full(len(src) - len(cause), Cause.LANE))
    count = len(tiles.task)
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
    if done == count:
        return rank
    # One cycle among the entries that are stuck.
    stuck = rank < 0
    inside = np.flatnonzero(stuck[src] & stuck[dst])
    into = dict(zip(dst[inside].tolist(), inside.tolist(), strict=True))  # an edge into each, any
    entry = int(np.argmax(stuck))
    walk = {}  # the edge into each entry that was passed
    while entry not in walk:
        walk[entry] = into[entry]
        entry = int(src[into[entry]])
    cycle = list(walk.values())[list(walk).index(entry) :][::-1]
    named = []
    for edge in cycle[:LONGEST]:
        after = tiles.task[dst[edge]]
        lane = graph.lanes[graph.lane[after]].name
        why = Cause(cause[edge]).reason.format(lane=lane)
        named.append(f"{task_name(graph, after)} ({why})")
    more = f", and on through {len(cycle) - LONGEST} more" if len(cycle) > LONGEST else ""
    first = task_name(graph, tiles.task[src[cycle[0]]])
    words = f"{first} comes before {', before '.join(named)}{more}"
    raise CycleError(f"the graph has a cycle of {len(cycle)} tasks: {words}")


def task_name(graph: Graph, task: int) -> str:
    """Return a task's name for a message, shortened."""
    name = graph.texts["name"][graph.name[task]]
    return repr(name if len(name) <= 60 else name[:57] + "...")


def keep_waits(graph: Graph, going: ndarray, *, drop: bool = True) -> None:
    """Turn waits between streams that the places of these tasks resolve into edges, before they move."""
    order = graph.order
    table = graph.waits
    moving = among(graph, going)
    src, _ = around_points(graph, table["source"], table["record"])
    _, dst = around_points(graph, table["target"], table["wait"])
    resolved = (src >= 0) & (dst >= 0) & (moving[src] | moving[dst]) & (order[src] < order[dst])
    latency = table["latency_ns"][resolved]
    graph.link(src[resolved], dst[resolved], latency_ns=latency, cause=Cause.EVENT)
    if drop:
        table.keep(~resolved)


def around_points(graph: Graph, lanes: ndarray, points: ndarray) -> tuple[ndarray, ndarray]:
    """Return the last task of each lane up to a task's place in the program, and the first behind it."""
    order = graph.order
    ids = graph.ids
    own = graph.lane[ids]
    return around(lambda lane: ids[own == lane], order, lanes, order[points])


def follow_instead(graph: Graph, tasks: ndarray, others: ndarray) -> None:
    """Let what follows the ends of tasks follow those of others, one for each."""
    moved = np.arange(graph.size)
    moved[tasks] = others
    src = graph.links["src"]
    graph.links.put("src", np.where(graph.links["from_start"] != 0, src, moved[src]))


def problems(graph: Graph, *, cycles: bool = True) -> list[str]:
    """Return what is wrong: negative times, lost launches, work on the wrong kind of lane, cycles.

    Whoever simulates the graph next meets its cycles anyway, and may leave them out.
    """
    on_cpu = graph.kind == CPU
    lane = graph.lane
    launch = graph.launch
    launched = launch >= 0
    there = launched & graph.alive[launch]
    known = (lane >= 0) & (lane < len(graph.lanes))
    on_device = np.array([each.on_device for each in graph.lanes] + [False])
    on_device = on_device[np.where(known, lane, -1)]
    checks = [
        *(
            (graph.columns[name] < 0, "task", f"with a negative {name}, {{first}} first.")
            for name in ("duration_ns", "gap_ns", "release_ns")
        ),
        (
            launched & ~there,
            "device task",
            "without the call that launched them, {first} first; removing work removes its launch.",
        ),
        (
            there & ~on_cpu[launch],
            "device task",
            "launched by device work, {first} first; only CPU tasks launch.",
        ),
        (
            launched & on_cpu,
            "CPU task",
            "with a launch, {first} first; only device work is launched.",
        ),
        (
            there & ~on_cpu & (graph.order < graph.order[launch]),
            "device task",
            "ahead of their launch in program order, {first} first; calls in between would not see them.",
        ),
        (~known, "task", "on a lane that is not there, {first} first; make it with `lane_id`."),
        (known & on_cpu & on_device, "CPU task", "on a lane of the device, {first} first."),
        (known & ~on_cpu & ~on_device, "device task", "on a CPU thread, {first} first."),
    ]
    found = []
    for mask, kind, issue in checks:
        tasks = np.flatnonzero(mask & graph.alive)
        if len(tasks):
            first = task_name(graph, tasks[0])
            found.append(f"{counted(len(tasks), kind)} {issue.format(first=first)}")
    if cycles and not found:
        try:
            lower(graph)
        except GraphError as error:
            found.append(f"{error}.")
    return found
