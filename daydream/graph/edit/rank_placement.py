"""Arrangement: groups of tasks one behind another, each on the lanes of a rank of its own.

Order on a lane is program order, so giving groups new keys of it says what every rank does first. The
order must be one in which the work can be done: what a group needs comes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError, NotApplicableError
from daydream.graph.tables import Lane

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.graph.selection import Selection


def arrange(groups: Groups, ranks: Any) -> Selection:
    """Put groups one behind another, each on the lanes of its rank; see `Groups.arrange`."""
    tasks = groups.by_group.need_some().need_all()
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
    graph.edits += 1
    graph.touch()
    return tasks


def with_copies(groups: Groups, times: int) -> tuple[Selection, np.ndarray, list[Any]]:
    """Return the tasks, the number of each task's group and the keys of groups and `times` copies of each.

    Keys are (key, number), 0 for the group itself.

    Copies run on the lanes of what they copy. Raises `NotApplicableError` where some device work was launched
    by a call outside of its group.
    """
    own = groups.by_group
    copies = groups.repeat(times, stay=True)
    if len(copies) != len(own) * times:
        raise NotApplicableError("some of the work to be copied was launched by calls outside of it")
    keys = [(key, 0) for key in groups.keys]
    keys += [(key, number) for key in groups.keys for number in range(1, times + 1)]
    sizes = np.concatenate([groups.sizes, np.repeat(groups.sizes, times)])
    tasks = own.of(np.concatenate([own.ids, copies.ids]), own.words, ordered=True)
    return tasks, np.repeat(np.arange(len(keys)), sizes), keys


def _place(graph: Graph, ids: np.ndarray) -> None:
    """Give tasks new places in this order, in the range of program order that they took."""
    order = graph.columns.own("order")
    begin, end = int(order[ids].min()), int(order[ids].max())
    if end - begin < len(ids):
        order[order > end] += len(ids) - (end - begin)
        end = begin + len(ids)
    order[ids] = begin + np.arange(len(ids)) * ((end - begin) // len(ids))


def _lanes(graph: Graph, tasks: Selection, highest: int) -> np.ndarray:
    """Return the lane of each rank (rows) for each lane (columns); CPU work goes to the first one's."""
    lanes = graph.columns["lane"][tasks.ids].astype(np.int64)
    used = np.unique(lanes)
    device = np.array([graph.lanes[lane].on_device for lane in used.tolist()], bool)
    table = np.tile(np.arange(len(graph.lanes)), (highest + 1, 1))
    on_cpu = ~np.isin(lanes, used[device])
    thread = int(lanes[on_cpu][0]) if on_cpu.any() else -1
    table[0, used[~device]] = thread
    for rank in range(1, highest + 1):
        if (~device).any():
            table[rank, used[~device]] = _lane(graph, thread, rank)
        for lane in used[device].tolist():
            table[rank, lane] = _lane(graph, lane, rank)
    return table


def _lane(graph: Graph, like: int, rank: int) -> int:
    """Return the lane of a rank that is like one of rank 0, made if it is new."""
    old = graph.lanes[like]
    name = f"rank {rank} {old.name.removeprefix('rank 0 ')}"
    known = [number for number, lane in enumerate(graph.lanes) if lane.name == name]
    if known:
        return known[0]
    new = graph.add_lane(Lane(name, rank, old.on_device, old.device, old.background))
    if like in graph.queue_depth:
        graph.queue_depth[new] = graph.queue_depth[like]
    return new


def _move(graph: Graph, rank_of: np.ndarray, lanes: np.ndarray) -> None:
    """Put tasks on their lanes, and let what they wait for be on those of their rank."""
    columns = graph.columns
    moved = np.flatnonzero(rank_of >= 0)
    columns.own("lane")[moved] = lanes[rank_of[moved], columns["lane"][moved]]
    tables = (
        (graph.syncs, "task", "lane"),
        (graph.waits, "record", "source"),
        (graph.waits, "wait", "target"),
    )
    for table, task, lane in tables:
        rank, named = rank_of[table[task]], table[lane].copy()
        mine = (rank >= 0) & (named >= 0)
        named[mine] = lanes[rank[mine], named[mine]]
        table.columns[lane] = named
