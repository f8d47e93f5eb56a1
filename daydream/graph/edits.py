"""Edits of what is there: tasks split, moved with the causes that they had, done again, and arranged.

Groups of tasks can be arranged one after another, each on the lanes of a rank of its own: order on a lane
is program order, so giving groups new keys of it says what every rank does first. The order must be one in
which the work can be done: what a group needs comes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import distinct_rows
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import pieces_of
from daydream.graph.insert import place_next_to
from daydream.graph.plan import Cause, around
from daydream.graph.select import among, lanes_for
from daydream.graph.tables import COLUMNS, CPU, Lane

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.graph.selection import Selection

NEW = ("order", "launch", "release_ns", "measured_start_ns", "repeat", "lane", "alive")


def keep_waits(graph: Graph, going: np.ndarray, *, drop: bool = True) -> None:
    """Turn waits between streams that the places of these tasks resolve into edges, before they move."""
    order, table, moving = graph.columns["order"], graph.waits, among(graph, going)
    src, _ = _around(graph, table["source"], table["record"])
    _, dst = _around(graph, table["target"], table["wait"])
    resolved = (src >= 0) & (dst >= 0) & (moving[src] | moving[dst]) & (order[src] < order[dst])
    latency = table["latency_ns"][resolved]
    graph.link(src[resolved], dst[resolved], latency_ns=latency, cause=Cause.EVENT)
    if drop:
        table.keep(~resolved)


def _around(graph: Graph, lanes: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last task of each lane up to a task's place in the program, and the first behind it."""
    order, ids = graph.columns["order"], graph.ids
    own = graph.columns["lane"][ids]
    return around(lambda lane: ids[own == lane], order, lanes, order[points])


def split(tasks: Selection, parts: int, *, launched: bool) -> Selection:
    """Divide each task; see `Selection.split`."""
    tasks.to_edit()
    if not isinstance(parts, int | np.integer) or parts < 1:
        raise GraphError(f"a task is split into 1 or more parts, not {parts!r}")
    graph, ids = tasks.graph, tasks.ids
    columns = graph.columns
    whole, extra = np.divmod(columns["duration_ns"][ids], parts)
    gap = columns["gap_ns"][ids]
    graph.write("duration_ns", ids, whole + (extra > 0))
    # One call launches them all, unless each brings its own.
    alike = ("name", "row") if launched else ("name", "row", "launch", "latency_ns")
    pieces = [tasks]
    for part in range(1, parts):
        piece = graph.insert_after(
            pieces[-1], "part", duration_ns=whole + (extra > part), gap_ns=0, launched=launched
        )
        for name in alike:
            graph.write(name, piece.ids, columns[name][ids])
        for name in graph.overrides:
            graph.write(name, piece.ids, graph.overrides[name][ids])
        pieces.append(piece)
    between = np.where(columns["kind"][ids] != CPU, graph.facts.startup_ns, 0) if launched else 0
    for piece in pieces[:-1]:
        graph.write("gap_ns", piece.ids, between)
    graph.write("gap_ns", pieces[-1].ids, gap)
    last = np.arange(graph.size)
    last[ids] = pieces[-1].ids
    src = graph.links["src"]  # what followed the end of a task follows its last part
    graph.links.put("src", np.where(graph.links["from_start"] != 0, src, last[src]))
    return tasks.of(np.concatenate([piece.ids for piece in pieces]), f"parts of {tasks.words}")


def move(tasks: Selection, lane: str, *, follows: bool, held_for: bool) -> Selection:
    """Put the tasks on another lane; see `Selection.move`."""
    graph, ids = tasks.to_edit().need_all().graph, tasks.ids
    columns, syncs = graph.columns, graph.syncs
    on_device = columns["kind"][ids] != CPU
    if on_device.any() != on_device.all():
        raise GraphError("CPU tasks and device work cannot go to one lane; move them one after the other")
    old = columns["lane"][ids].astype(np.int64)
    lanes = lanes_for(graph, lane, old, on_device=bool(on_device.all()))
    going = ids[lanes != old]
    if not len(going):
        raise NotApplicableError(f"these tasks are on {lane!r} already")
    moving = among(graph, going)
    by_lane = graph.ids[np.argsort(columns["lane"][graph.ids], kind="stable")]
    earlier, later = by_lane[:-1], by_lane[1:]
    parted = (columns["lane"][earlier] == columns["lane"][later]) & (moving[earlier] != moving[later])
    earlier, later = earlier[parted], later[parted]
    keep_waits(graph, going, drop=False)
    if follows:
        graph.link(earlier[moving[later]], later[moving[later]])
    if held_for:
        graph.link(earlier[moving[earlier]], later[moving[earlier]])
        last, _ = _around(graph, syncs["lane"], syncs["point"])
        moved = (last >= 0) & moving[last] & graph.alive[syncs["task"]]
        graph.link(last[moved], syncs["task"][moved])  # calls that waited for the lane
    graph.write("lane", ids, lanes)
    return tasks.of(ids, tasks.words)


def repeat(groups: Groups, times: int, before: Selection | None, *, stay: bool = False) -> Selection:
    """Copy the work of each group; see `Groups.repeat`."""
    tasks = groups.tasks.to_edit().need_all()
    graph = tasks.graph
    if not isinstance(times, int | np.integer) or times < 0:
        raise GraphError(f"work is repeated 0 or more times, not {times!r}")
    if times == 0:
        graph.write("repeat", tasks.ids, graph.columns["repeat"][tasks.ids])  # counts as an edit
        return tasks.of(tasks.ids[:0], "repetitions")
    ids, group = _with_launches(graph, groups, apart=before is not None)
    columns = graph.columns
    by_group = np.lexsort((ids, columns["order"][ids], group))
    ids, group = ids[by_group], group[by_group]
    ends = np.append(np.flatnonzero(group[1:] != group[:-1]), len(group) - 1)
    if before is None:
        anchor = ids[ends]
    else:
        if before.graph is not graph or len(before) != len(groups):
            raise GraphError(f"{len(groups)} groups need as many tasks to come before, not {len(before)}")
        anchor = before.ids  # or what launches it: the CPU task on whose thread the copies run
        launch = columns["launch"][anchor]
        anchor = np.where((columns["kind"][anchor] != CPU) & (launch >= 0), launch, anchor)
    sequence = np.argsort(np.tile(group, times), kind="stable")  # pass after pass of each group
    number = np.repeat(np.arange(times), len(ids))[sequence]
    source, where = np.tile(ids, times)[sequence], np.tile(group, times)[sequence]
    order = place_next_to(graph, anchor[where], behind=before is None)
    given = {name: graph.columns[name][source] for name in COLUMNS if name not in NEW}
    given |= {name: graph.overrides[name][source] for name in graph.overrides}
    highest = graph.columns["repeat"][graph.alive].astype(np.int64).max(initial=0)
    lane = columns["lane"][source].astype(np.int64)
    if before is not None:
        other = (columns["kind"][source] == CPU) & (lane != columns["lane"][anchor][where])
        # Behind a thread's last task of the group it idles, and that is not part of the work.
        given["gap_ns"] = np.where(other & _last_on_lane(number, where, lane), 0, given["gap_ns"])
        lane = lane if stay else np.where(other, columns["lane"][anchor][where], lane)
    new = graph.add(
        len(source), order=order, repeat=highest + 1 + number, measured_start_ns=-1, lane=lane, **given
    )
    owner = np.full(graph.size, -1)
    owner[ids[::-1]] = group[::-1]  # of a call that several groups have, the first
    copies = np.full((times, graph.size), -1)
    copies[number[::-1], source[::-1]] = new[::-1]
    launch = columns["launch"][source].astype(np.int64)
    turn = (number * len(groups) + where) * graph.size
    by_source = np.argsort(turn + source)
    place = np.searchsorted((turn + source)[by_source], turn + launch)
    call = by_source[np.minimum(place, len(source) - 1)]
    own_call = (turn + source)[call] == turn + launch  # else that of another group, or of none
    launched_by = np.where(own_call, new[call], copies[number, launch])
    graph.write("launch", new, np.where(launch < 0, -1, launched_by))
    _copy_tables(graph, copies, owner)
    return tasks.of(new, "repetitions", ordered=True)


def _with_launches(graph: Graph, groups: Groups, *, apart: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks and their groups, with the calls that launch them (and the pieces of these calls).

    Groups that go `apart` from their places each need a call of their own: one call launches all parts of a
    fused kernel, which may be of several groups.
    """
    columns = graph.columns
    ids, group = groups._ids, np.repeat(np.arange(len(groups)), groups.sizes)
    launch = columns["launch"][ids].astype(np.int64)
    # What was launched before the window cannot be launched again.
    lost = (columns["kind"][ids] != CPU) & (launch < 0) & (columns["row"][ids] >= 0)
    ids, group, launch = ids[~lost], group[~lost], launch[~lost]
    calls, owner = launch[launch >= 0], group[launch >= 0]
    first, _ = distinct_rows([owner, calls] if apart else [calls])
    calls, owner = calls[first], owner[first]
    pieces, of = pieces_of(graph, calls)
    pieces, owner = np.append(calls, pieces), np.append(owner, owner[of])
    there, wanted = (group * graph.size + ids, owner * graph.size + pieces) if apart else (ids, pieces)
    there = np.sort(there)
    missing = there[np.searchsorted(there[:-1], wanted)] != wanted
    return np.concatenate([ids, pieces[missing]]), np.concatenate([group, owner[missing]])


def _last_on_lane(*keys: np.ndarray) -> np.ndarray:
    """Return a mask of the last entry of each combination of keys."""
    first, _ = distinct_rows([key[::-1] for key in keys])
    mask = np.zeros(len(keys[0]), bool)
    mask[len(mask) - 1 - first] = True
    return mask


def _copy_tables(graph: Graph, copies: np.ndarray, group: np.ndarray) -> None:
    """Copy the rows of each table whose tasks were all copied; links only within a group."""
    for table, names in (
        (graph.syncs, ("task", "point")),
        (graph.waits, ("record", "wait")),
        (graph.links, ("src", "dst")),
    ):
        ends = {name: copies[:, table[name]] for name in names}
        both = np.all([end >= 0 for end in ends.values()], axis=0)
        if table is graph.links:
            both &= group[table["src"]] == group[table["dst"]]
        _, rows = np.nonzero(both)  # copy by copy
        new = {name: table[name][rows] for name in table}
        table.add(**{**new, **{name: end[both] for name, end in ends.items()}})


def arrange(groups: Groups, ranks: Any) -> Selection:
    """Put groups one behind another, each on the lanes of its rank; see `Groups.arrange`."""
    tasks = groups.by_group.to_edit().need_all()
    graph = tasks.graph
    rank = np.asarray(ranks, np.int64)
    if rank.shape != (len(groups),) or (rank < 0).any():
        raise GraphError(f"{len(groups)} groups need as many ranks, each 0 or more, not {ranks}")
    if (tasks.rank != 0).any():
        raise GraphError("the tasks are of several ranks already; one rank's work is arranged")
    rank_of = np.full(graph.size, -1)
    rank_of[tasks.ids] = np.repeat(rank, groups.sizes)
    step = graph.columns["step"][tasks.ids]
    for one in np.unique(step).tolist():
        _place(graph, tasks.ids[step == one])
    lanes = _lanes(graph, tasks, int(rank.max()))
    _move(graph, rank_of, lanes)
    return tasks


def _place(graph: Graph, ids: np.ndarray) -> None:
    """Give tasks new places in this order, in the range of program order that they took."""
    order = graph.columns["order"].copy()
    begin, end = int(order[ids].min()), int(order[ids].max())
    if end - begin < len(ids):
        order[order > end] += len(ids) - (end - begin)
        end = begin + len(ids)
    order[ids] = begin + np.arange(len(ids)) * ((end - begin) // len(ids))
    graph.columns.put("order", order)


def _lanes(graph: Graph, tasks: Selection, highest: int) -> np.ndarray:
    """Return the lane of each rank (rows) for each lane (columns); CPU work goes to the first one's."""
    lanes = graph.columns["lane"][tasks.ids]
    used = sorted(np.unique(lanes).tolist(), key=lambda lane: graph.lanes[lane].on_device)  # threads first
    thread = next((lane for lane in lanes.tolist() if not graph.lanes[lane].on_device), -1)
    table = np.tile(np.arange(len(graph.lanes)), (highest + 1, 1))
    for rank in range(highest + 1):
        for lane in used:
            table[rank, lane] = _lane(graph, lane if graph.lanes[lane].on_device else thread, rank)
    return table


def _lane(graph: Graph, like: int, rank: int) -> int:
    """Return the lane of a rank that is like one of rank 0, made if it is new."""
    if rank == 0:
        return like
    old = graph.lanes[like]
    name = f"rank {rank} {old.name.removeprefix('rank 0 ')}"
    if name in graph._lane_ids:
        return graph._lane_ids[name]
    new = graph.add_lane(Lane(name, rank, old.on_device, old.device, old.background))
    if like in graph.queue_depth:
        graph.queue_depth[new] = graph.queue_depth[like]
    return new


def _move(graph: Graph, rank_of: np.ndarray, lanes: np.ndarray) -> None:
    """Put tasks on their lanes, and let what they wait for be on those of their rank."""
    columns = graph.columns
    moved = np.flatnonzero(rank_of >= 0)
    graph.write("lane", moved, lanes[rank_of[moved], columns["lane"][moved]])
    tables = (
        (graph.syncs, "task", "lane"),
        (graph.waits, "record", "source"),
        (graph.waits, "wait", "target"),
    )
    for table, task, lane in tables:
        rank, named = rank_of[table[task]], table[lane].copy()
        mine = (rank >= 0) & (named >= 0)
        named[mine] = lanes[rank[mine], named[mine]]
        table.put(lane, named)
