"""Edits of what is there: tasks split, moved with the causes that they had, done again, and arranged.

Groups of tasks can be arranged one after another, each on the lanes of a rank of its own: order on a lane
is program order, so giving groups new keys of it says what every rank does first. The order must be one in
which the work can be done: what a group needs comes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import distinct_rows, first_of
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

NEW = ("order", "launch", "release_ns", "measured_start_ns", "repeat", "lane", "gap_ns", "alive")


def keep_waits(graph: Graph, going: np.ndarray, *, drop: bool = True) -> None:
    """Turn waits between streams that the places of these tasks resolve into edges, before they move."""
    order = graph.order
    table = graph.waits
    moving = among(graph, going)
    src, _ = _around(graph, table["source"], table["record"])
    _, dst = _around(graph, table["target"], table["wait"])
    resolved = (src >= 0) & (dst >= 0) & (moving[src] | moving[dst]) & (order[src] < order[dst])
    latency = table["latency_ns"][resolved]
    graph.link(src[resolved], dst[resolved], latency_ns=latency, cause=Cause.EVENT)
    if drop:
        table.keep(~resolved)


def _around(graph: Graph, lanes: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last task of each lane up to a task's place in the program, and the first behind it."""
    order = graph.order
    ids = graph.ids
    own = graph.lane[ids]
    return around(lambda lane: ids[own == lane], order, lanes, order[points])


def follow_instead(graph: Graph, tasks: np.ndarray, others: np.ndarray) -> None:
    """Let what follows the ends of tasks follow those of others, one for each."""
    moved = np.arange(graph.size)
    moved[tasks] = others
    src = graph.links["src"]
    graph.links.put("src", np.where(graph.links["from_start"] != 0, src, moved[src]))


def split(tasks: Selection, parts: int, *, launched: bool) -> Selection:
    """Divide each task; see `Selection.split`."""
    tasks.to_edit()
    if not isinstance(parts, int | np.integer) or parts < 1:
        raise GraphError(f"a task is split into 1 or more parts, not {parts!r}")
    graph = tasks.graph
    ids = tasks.ids
    whole, extra = np.divmod(graph.duration_ns[ids], parts)
    graph.write("duration_ns", ids, whole + (extra > 0))
    words = f"parts of {tasks.words}"
    if parts == 1:
        return tasks.of(ids, words)
    between = np.where(graph.kind[ids] != CPU, graph.facts.startup_ns, 0) * launched
    gaps = np.tile(between, (parts - 1, 1))
    gaps[-1] = graph.gap_ns[ids]
    graph.write("gap_ns", ids, between)
    same = np.tile(ids, parts - 1)
    part = np.arange(1, parts)[:, None]
    more = graph.insert_after(
        tasks.of(same, tasks.words, ordered=True),
        "part",
        duration_ns=(whole + (extra > part)).reshape(-1),
        gap_ns=gaps.reshape(-1),
        launched=launched,
    )
    # One call launches them all, unless each brings its own.
    alike = ("name", "row") if launched else ("name", "row", "launch", "latency_ns")
    values = {name: graph.columns[name] for name in alike} | graph.overrides
    for name, whole_column in values.items():
        graph.write(name, more.ids, whole_column[same])
    follow_instead(graph, ids, more.ids[-len(ids) :])
    return tasks.of(np.append(ids, more.ids), words)


def move(tasks: Selection, lane: str, *, follows: bool, held_for: bool) -> Selection:
    """Put the tasks on another lane; see `Selection.move`."""
    graph = tasks.to_edit().need_all().graph
    ids = tasks.ids
    on_device = graph.kind[ids] != CPU
    if on_device.any() != on_device.all():
        raise GraphError("CPU tasks and device work cannot go to one lane; move them one after the other")
    old = graph.lane[ids].astype(np.int64)
    lanes = lanes_for(graph, lane, old, on_device=bool(on_device.all()))
    going = ids[lanes != old]
    if not len(going):
        raise NotApplicableError(f"these tasks are on {lane!r} already")
    moving = among(graph, going)
    by_lane = graph.ids[np.argsort(graph.lane[graph.ids], kind="stable")]
    earlier = by_lane[:-1]
    later = by_lane[1:]
    parted = (graph.lane[earlier] == graph.lane[later]) & (moving[earlier] != moving[later])
    earlier = earlier[parted]
    later = later[parted]
    leaves = moving[earlier]
    keep_waits(graph, going, drop=False)
    if follows:
        graph.link(earlier[~leaves], later[~leaves])
    if held_for:
        graph.link(earlier[leaves], later[leaves])
        syncs = graph.syncs
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
        graph.write("repeat", tasks.ids, graph.repeat[tasks.ids])  # counts as an edit
        return tasks.of(tasks.ids[:0], "repetitions")
    if before is not None and (before.graph is not graph or len(before) != len(groups)):
        raise GraphError(f"{len(groups)} groups need as many tasks to come before, not {len(before)}")
    ids, group = _with_launches(graph, groups, apart=before is not None)
    lane, gap, launch = (graph.columns[name][ids].astype(np.int64) for name in ("lane", "gap_ns", "launch"))
    if before is None:
        anchor = np.zeros(len(groups), np.int64)
        anchor[group] = ids  # of what is assigned to one group, the last stays
    else:
        anchor = before.ids  # or what launches it: the CPU task on whose thread the copies run
        calls = graph.launch[anchor]
        anchor = np.where((graph.kind[anchor] != CPU) & (calls >= 0), calls, anchor)
        thread = graph.lane[anchor[group]]
        other = (graph.kind[ids] == CPU) & (lane != thread)
        # Behind a thread's last task of the group it idles, and that is not part of the work.
        from_end, _ = distinct_rows([group[::-1], lane[::-1]])
        idles = len(ids) - 1 - from_end
        gap[idles[other[idles]]] = 0
        lane = lane if stay else np.where(other, thread, lane)
    # Where the call of each is among them: that of its own group, if several have it.
    both = np.append(ids, launch)
    first, place = distinct_rows([both] if before is None else [np.tile(group, 2), both])
    call = np.where(launch >= 0, first[place[len(ids) :]], 0)

    number, entry = np.divmod(np.arange(times * len(ids)), len(ids))
    sequence = np.argsort(group[entry], kind="stable")  # pass after pass of each group
    number = number[sequence]
    entry = entry[sequence]
    copies = np.empty((times, len(ids)), np.int64)
    copies[number, entry] = graph.size + np.arange(len(entry))
    order = place_next_to(graph, anchor[group[entry]], behind=before is None)
    source = ids[entry]
    given = {name: graph.columns[name][source] for name in COLUMNS if name not in NEW}
    given |= {name: graph.overrides[name][source] for name in graph.overrides}
    highest = graph.repeat[graph.alive].astype(np.int64).max(initial=0)
    new = graph.add(
        len(source),
        order=order,
        repeat=highest + 1 + number,
        measured_start_ns=-1,
        lane=lane[entry],
        gap_ns=gap[entry],
        launch=np.where(launch[entry] >= 0, copies[number, call[entry]], -1),
        **given,
    )
    _copy_tables(graph, ids, group, copies)
    return tasks.of(new, "repetitions", ordered=True)


def _with_launches(graph: Graph, groups: Groups, *, apart: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks and their groups, with the calls that launch them (and the pieces of these calls).

    Group by group in program order. Groups that go `apart` from their places each need a call of their own:
    one call launches all parts of a fused kernel, which may be of several groups.
    """
    ids = groups._ids
    group = np.repeat(np.arange(len(groups)), groups.sizes)
    launch = graph.launch[ids].astype(np.int64)
    launched = launch >= 0
    # What was launched before the window cannot be launched again.
    kept = (graph.kind[ids] == CPU) | launched | (graph.row[ids] < 0)
    calls = launch[launched]
    owner = group[launched]
    pieces, of = pieces_of(graph, calls)
    ids = np.concatenate([ids[kept], calls, pieces])
    group = np.concatenate([group[kept], owner, owner[of]])
    once, _ = distinct_rows([group, ids] if apart else [ids])
    ids = ids[once]
    group = group[once]
    by_group = np.lexsort((ids, graph.order[ids], group))
    return ids[by_group], group[by_group]


def _copy_tables(graph: Graph, ids: np.ndarray, group: np.ndarray, copies: np.ndarray) -> None:
    """Copy the rows of each table whose tasks were all copied; links only within a group.

    `copies` are the copies of each task, a row each time; of a task that several groups have those in the
    first one count.
    """
    place = first_of(ids, graph.size)
    for table, *names in (
        (graph.syncs, "task", "point"),
        (graph.waits, "record", "wait"),
        (graph.links, "src", "dst"),
    ):
        one, other = (place[table[name]] for name in names)
        both = (one >= 0) & (other >= 0)
        if table is graph.links:
            both &= group[one] == group[other]
        new = {name: np.tile(table[name][both], len(copies)) for name in table}
        ends = (copies[:, end[both]].reshape(-1) for end in (one, other))
        table.add(**new | dict(zip(names, ends, strict=True)))


def arrange(groups: Groups, ranks: Any) -> Selection:
    """Put groups one behind another, each on the lanes of its rank; see `Groups.arrange`."""
    tasks = groups.by_group.to_edit().need_all()
    graph = tasks.graph
    rank = np.asarray(ranks, np.int64)
    if rank.shape != (len(groups),) or (rank < 0).any():
        raise GraphError(f"{len(groups)} groups need as many ranks, each 0 or more, not {ranks}")
    if (tasks.rank != 0).any():
        raise GraphError("the tasks are of several ranks already; one rank's work is arranged")
    step = tasks.step
    for one in np.unique(step).tolist():
        _place(graph, tasks.ids[step == one])
    # What the tasks wait for is on the lanes of their rank, too.
    rank_of = np.full(graph.size, -1)
    rank_of[tasks.ids] = np.repeat(rank, groups.sizes)
    lanes = _lanes(graph, tasks, int(rank.max()))
    graph.write("lane", tasks.ids, lanes[rank_of[tasks.ids], graph.lane[tasks.ids]])
    for table, task, lane in (
        (graph.syncs, "task", "lane"),
        (graph.waits, "record", "source"),
        (graph.waits, "wait", "target"),
    ):
        rank = rank_of[table[task]]
        named = table[lane]
        table.put(lane, np.where((rank >= 0) & (named >= 0), lanes[rank, named], named))
    return tasks


def _place(graph: Graph, ids: np.ndarray) -> None:
    """Give tasks new places in this order, in the range of program order that they took."""
    order = graph.order.copy()
    begin = int(order[ids].min())
    end = int(order[ids].max())
    if end - begin < len(ids):
        order[order > end] += len(ids) - (end - begin)
        end = begin + len(ids)
    order[ids] = begin + np.arange(len(ids)) * ((end - begin) // len(ids))
    graph.columns.put("order", order)


def _lanes(graph: Graph, tasks: Selection, highest: int) -> np.ndarray:
    """Return the lane of each rank (rows) for each lane (columns); CPU work goes to the first one's.

    Lanes of other ranks are like those of rank 0, and made if they are new.
    """
    lanes = graph.lane[tasks.ids].tolist()
    used = sorted(set(lanes), key=lambda lane: (graph.lanes[lane].on_device, lane))  # threads first
    thread = next((lane for lane in lanes if not graph.lanes[lane].on_device), -1)
    table = np.tile(np.arange(len(graph.lanes)), (highest + 1, 1))
    for rank in range(highest + 1):
        for lane in used:
            like = lane if graph.lanes[lane].on_device else thread
            old = graph.lanes[like]
            name = f"rank {rank} {old.name.removeprefix('rank 0 ')}" if rank else old.name
            if name not in graph._lane_ids:
                new = graph.add_lane(Lane(name, rank, old.on_device, old.device, old.background))
                if like in graph.queue_depth:
                    graph.queue_depth[new] = graph.queue_depth[like]
            table[rank, lane] = graph._lane_ids[name]
    return table
