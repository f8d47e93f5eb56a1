"""Edits of what is there: remove, fuse, share a launch, split, move, stop waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError, NoMatchError, NotApplicableError
from daydream.graph.edit.insert import lanes_for
from daydream.graph.edit.place import place_next_to
from daydream.graph.plan import Cause
from daydream.graph.query.calls import pieces_of
from daydream.graph.query.columns import keep_durations
from daydream.graph.tables import ALL_LANES, CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.graph.selection import Selection


def remove(graph: Graph, ids: np.ndarray) -> None:
    """Remove tasks; see `Graph.remove`."""
    graph.alive[ids] = False
    launches = graph.columns["launch"]
    calls = launches[ids]
    calls = calls[calls >= 0]
    still = np.zeros(graph.size, bool)
    still[launches[graph.alive & (launches >= 0)]] = True
    calls = np.unique(calls[~still[calls]])
    graph.alive[calls] = False
    graph.alive[pieces_of(graph, calls)[0]] = False
    graph.edits += 1
    graph.touch()


def fuse(groups: Groups, name: str, duration_ns: Any, columns: dict[str, Any]) -> Selection:
    """Put one task in the place of each group; see `Groups.fuse`."""
    tasks = groups.tasks.need_some().need_all()
    graph = tasks.graph
    first = groups.first()
    first.set(duration_ns=duration_ns, name=name, **columns)
    rest = tasks - first
    if len(rest):
        graph.remove(rest.ids)
    return first


def share_launch(groups: Groups, name: str) -> Selection:
    """Let one call launch all the work of each group; see `Groups.share_launch`."""
    graph = groups.tasks.need_some().need_all().graph
    columns = graph.columns
    ids = groups._ids
    if (columns["kind"][ids] == CPU).any():
        raise GraphError("only device work is launched; select kernels or copies")
    call = columns["launch"][groups.first().ids].astype(np.int64)
    if (call < 0).any():
        raise NotApplicableError("some of this work was launched before the window, no call to share")
    if len(np.unique(call)) < len(call):
        raise GraphError("two groups share a call already; put them in one group")
    _keep_waits(graph, ids)
    old = np.unique(columns["launch"][ids])
    columns.own("launch")[ids] = np.repeat(call, groups.sizes)
    columns.own("name")[call] = graph.code("name", name)
    still = np.unique(columns["launch"][graph.alive & (columns["launch"] >= 0)])
    graph.alive[np.setdiff1d(old[old >= 0], still)] = False
    # The calls' own places stay; the work goes right behind them, in its own order.
    columns.own("order")[ids] = place_next_to(graph, np.repeat(call, groups.sizes), behind=True)
    graph.edits += 1
    graph.touch()
    return groups.tasks.of(call, "shared launches", ordered=True)


def _keep_waits(graph: Graph, going: np.ndarray, *, drop: bool = True) -> None:
    """Turn waits between streams that the places of these tasks resolve into edges, before they move."""
    order, lanes, table = graph.columns["order"], graph.columns["lane"], graph.waits
    moving = np.zeros(graph.size, bool)
    moving[going] = True
    resolved = np.zeros(len(table), bool)
    for source, target in set(zip(table["source"].tolist(), table["target"].tolist(), strict=True)):
        rows = np.flatnonzero((table["source"] == source) & (table["target"] == target))
        work, later = (graph.ids[lanes[graph.ids] == lane] for lane in (source, target))
        before = np.searchsorted(order[work], order[table["record"][rows]], side="right") - 1
        behind = np.searchsorted(order[later], order[table["wait"][rows]], side="right")
        there = (before >= 0) & (behind < len(later))
        rows, src, dst = rows[there], work[before[there]], later[behind[there]]
        chosen = (moving[src] | moving[dst]) & (order[src] < order[dst])
        graph.link(src[chosen], dst[chosen], latency_ns=table["latency_ns"][rows[chosen]], cause=Cause.EVENT)
        resolved[rows[chosen]] = True
    if drop:
        table.keep(~resolved)


def split(tasks: Selection, parts: int, *, launched: bool) -> Selection:
    """Divide each task; see `Selection.split`."""
    tasks.need_some()
    if not isinstance(parts, int | np.integer) or parts < 1:
        raise GraphError(f"a task is split into 1 or more parts, not {parts!r}")
    graph = tasks.graph
    graph.edits += 1
    if parts == 1:
        return tasks
    columns = graph.columns
    ids = tasks.ids
    keep_durations(graph)
    whole, extra = np.divmod(columns["duration_ns"][ids], parts)
    gap = columns["gap_ns"][ids].copy()
    on_device = columns["kind"][ids] != CPU
    columns.own("duration_ns")[ids] = whole + (extra > 0)
    new: list[Selection] = []
    for part in range(1, parts):
        beside = new[-1] if new else tasks
        new.append(
            graph.insert_after(
                beside, "part", duration_ns=whole + (extra > part), gap_ns=0, launched=launched,
            )
        )  # fmt: skip
        columns = graph.columns
        for name in ("name", "row", "release_ns"):
            columns.own(name)[new[-1].ids] = columns[name][ids]
        columns.own("release_ns")[new[-1].ids] = 0
        for name in graph.overrides:
            graph.override(name)[new[-1].ids] = graph.override(name)[ids]
        if not launched:  # one call launched them all
            columns.own("launch")[new[-1].ids] = columns["launch"][ids]
            columns.own("latency_ns")[new[-1].ids] = columns["latency_ns"][ids]
    columns.own("gap_ns")[new[-1].ids] = gap
    between = np.where(on_device, graph.facts.startup_ns, 0) if launched else 0
    for piece in (tasks, *new[:-1]):
        columns.own("gap_ns")[piece.ids] = between
    _hand_on(tasks, ids, new[-1].ids)
    graph.touch()
    every = np.concatenate([ids, *(piece.ids for piece in new)])
    return tasks.of(every, f"parts of {tasks.words}")


def _hand_on(tasks: Selection, ids: np.ndarray, last: np.ndarray) -> None:
    """Let what followed the end of some tasks follow their last parts."""
    graph = tasks.graph
    to = np.arange(graph.size)
    to[ids] = last
    links = graph.links.columns
    graph.links.columns = {
        **links, "src": np.where(links["from_start"] != 0, links["src"], to[links["src"]]),
    }  # fmt: skip


def move(tasks: Selection, lane: str, *, follows: bool, held_for: bool) -> Selection:
    """Put the tasks on another lane; see `Selection.move`."""
    tasks.need_some().need_all()
    graph = tasks.graph
    columns = graph.columns
    ids = tasks.ids
    on_device = columns["kind"][ids] != CPU
    if on_device.any() != on_device.all():
        raise GraphError("CPU tasks and device work cannot go to one lane; move them one after the other")
    old = columns["lane"][ids].astype(np.int64)
    lanes = lanes_for(graph, lane, old, on_device=bool(on_device.all()))
    going = ids[lanes != old]
    if not len(going):
        raise NotApplicableError(f"these tasks are on {lane!r} already")
    before, after = _neighbours(tasks, going)
    bound = _bound(tasks, going)
    _keep_waits(graph, going, drop=False)
    columns.own("lane")[ids] = lanes
    if follows:
        graph.link(before[before >= 0], going[before >= 0])
    if held_for:
        graph.link(going[after >= 0], after[after >= 0])
        graph.link(*bound)
    graph.edits += 1
    graph.touch()
    return tasks.of(ids, tasks.words)


def _neighbours(tasks: Selection, going: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks before and after each moving one on its old lane; -1 for none, or one that moves."""
    graph = tasks.graph
    by_lane = graph.ids[np.argsort(graph.columns["lane"][graph.ids], kind="stable")]
    lanes = graph.columns["lane"][by_lane]
    moving = np.zeros(graph.size, bool)
    moving[going] = True
    same = lanes[1:] == lanes[:-1]
    before, after = np.full(graph.size, -1), np.full(graph.size, -1)
    earlier, later = by_lane[:-1][same], by_lane[1:][same]
    enters = moving[later] & ~moving[earlier]
    leaves = moving[earlier] & ~moving[later]
    before[later[enters]] = earlier[enters]
    after[earlier[leaves]] = later[leaves]
    return before[going], after[going]


def _bound(tasks: Selection, going: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (work, call) where a call waits for one lane and the last work on it moves away."""
    graph = tasks.graph
    columns = graph.columns
    order, lanes = columns["order"], columns["lane"]
    work, calls = [], []
    table = graph.syncs
    for lane in np.unique(lanes[going]).tolist():
        rows = np.flatnonzero((table["lane"] == lane) & graph.alive[table["task"]])
        mates = graph.ids[lanes[graph.ids] == lane]
        place = np.searchsorted(order[mates], order[table["point"][rows]], side="right") - 1
        rows, place = rows[place >= 0], place[place >= 0]
        moved = np.isin(mates[place], going)
        work.append(mates[place][moved])
        calls.append(table["task"][rows][moved])
    return (np.concatenate(work), np.concatenate(calls)) if work else (going[:0], going[:0])


def waiting(tasks: Selection) -> Selection:
    """Return the calls among these that wait for device work."""
    return tasks.of(tasks.ids[np.isin(tasks.ids, tasks.graph.syncs["task"])], f"{tasks.words}, waiting")


def stop_waiting(tasks: Selection) -> Selection:
    """Let these calls no longer wait for device work; see `Selection.stop_waiting`."""
    graph = tasks.graph
    calls = tasks.need_some()
    columns = graph.columns
    rows = columns["row"][calls.ids].astype(np.int64) * 2**16 + columns["repeat"][calls.ids]
    rows = rows[columns["row"][calls.ids] >= 0]
    task = graph.syncs["task"]
    # A blocking call is a call and its return; the return, a task of the same row, waits.
    theirs = columns["row"][task].astype(np.int64) * 2**16 + columns["repeat"][task]
    dropped = np.isin(task, calls.ids) | (np.isin(theirs, rows) & (columns["row"][task] >= 0))
    dropped &= graph.alive[task]
    if not dropped.any():
        raise NoMatchError(f"none of these calls waits for device work: {tasks.words}")
    graph.syncs.keep(~dropped)
    graph.edits += 1
    graph.touch()
    return calls


def start_waiting(tasks: Selection, lane: str | None) -> Selection:
    """Let these calls wait for the device; see `Selection.start_waiting`."""
    graph = tasks.graph
    ids = tasks.need_some().need_all().ids
    if (graph.columns["kind"][ids] != CPU).any():
        raise GraphError("only CPU tasks wait for the device; device work follows what it is linked to")
    lanes = ALL_LANES if lane is None else lanes_for(graph, lane, graph.columns["lane"][ids], on_device=True)
    graph.syncs.add(task=ids, lane=lanes, point=ids, latency_ns=0)
    graph.edits += 1
    graph.touch()
    return tasks
