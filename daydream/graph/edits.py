"""Edits of what is there: tasks split, and moved with the causes that they had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError, NotApplicableError
from daydream.graph.plan import Cause, around
from daydream.graph.select import among, lanes_for
from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection


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
