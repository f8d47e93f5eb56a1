"""Insertion: one task by its causes, or one next to each task of a selection.

Device work brings its launch, a call of the graph's usual cost. Because lanes keep
program order, work that is inserted next to a task on that task's lane needs no edge:
it runs between the task and its neighbor. On another lane an edge ties it to the task.

Keys of program order are whole numbers, with room between those of recorded tasks.
Where insertions have used the room up, all later tasks move on: the order of what
is there stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from daydream.arrays import distinct, take, turns
from daydream.errors import GraphError
from daydream.graph.calls import row_numbers
from daydream.graph.select import in_program_order, is_text, lanes_for, one_each, same_graph
from daydream.graph.tables import COLLECTIVE, CPU, ORDER_STEP, kind_code, nanoseconds, phase_code
from daydream.trace.schema import FIELDS

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

TAKEN_OVER = ("phase", "layer", "step", "op", "repeat")


def insert_next_to(
    graph: Graph,
    tasks: Selection,
    name: str,
    *,
    behind: bool,
    duration_ns: Any,
    kind: str | None = None,
    lane: str | Sequence[str] | None = None,
    gap_ns: Any = None,
    launched: bool = True,
    after: Any = None,
    before: Any = None,
    **columns: Any,
) -> Selection:
    """Insert one task beside each of `tasks`; return the new ones, in the same order.

    A new task has its neighbour's kind and lane unless others are given (a lane that is new
    is made, one for each rank), and takes over phase, layer, step and op. Lanes, durations, gaps
    and other columns are one value or one for each.

    Device work brings its launch: a call of the graph's usual cost on the thread that
    launched the neighbour, right behind (or before) that call; beside a node of a CUDA
    graph it is one more node of the graph. Not with `launched=False`, nor beside work whose
    launch was not recorded.

    On the neighbour's own lane the new work runs between it and the next (or previous) task.
    On another lane an edge lets it follow (or precede) its neighbour and delays nothing
    else: `before` (or `after`) names tasks, one for all or one for each, that wait for it (or
    that it waits for). `gap_ns` is the start-up cost of the trace for device work, 0 for others.
    """
    tasks.to_edit().need_all()
    same_graph(graph, tasks)
    ids = tasks.ids
    count = len(tasks)
    kinds = graph.kind[ids] if kind is None else np.full(count, kind_code(kind))
    on_device = kinds != CPU
    beside_device = graph.kind[ids] != CPU
    # A CPU task's call is itself: beside it the new work is launched, or runs.
    call = np.where(beside_device, graph.launch[ids], ids)
    own = graph.lane[ids]
    to_thread = ~on_device & beside_device
    if lane is not None:
        lanes = lanes_for(graph, lane, own, on_device=bool(on_device.all()))
    elif (on_device & ~beside_device).any():
        raise GraphError("device work inserted next to CPU tasks needs its lane: name the stream")
    elif (to_thread & (call < 0)).any():
        raise GraphError(
            "CPU work goes to the thread that launched its neighbour; some of these have no launch"
        )
    else:
        lanes = np.where(to_thread, graph.lane[call], own)

    durations = one_each(nanoseconds(duration_ns), count, "duration_ns")
    startup = np.where(on_device & (kinds != COLLECTIVE), graph.facts.startup_ns, 0)
    gaps = startup if gap_ns is None else one_each(nanoseconds(gap_ns, "gap_ns"), count, "gap_ns")
    values = {key: graph.columns[key][ids] for key in TAKEN_OVER}
    values |= {key: one_each(value, count, key) for key, value in encode(graph, columns).items()}

    launches = np.bincount(graph.launch + 1, minlength=graph.size + 1)[1:]
    is_node = beside_device & (call >= 0) & (launches[call] > 1)
    brings = on_device & (call >= 0) & launched
    new_call = brings & ~is_node
    anchor = ids.copy()
    beside = beside_device & ~is_node & (call >= 0)
    anchor[beside] = _anchors(graph, ids[beside], call[beside], on_device[beside], behind=behind)
    # The launch comes before its work: both at one anchor, in this order.
    twice = np.repeat(np.arange(count), np.where(new_call, 2, 1))
    keys = place_next_to(graph, anchor[twice], behind=behind)
    is_launch = np.append(twice[:-1] == twice[1:], False)

    launch = np.where(brings, call, -1)
    if new_call.any():
        launch[new_call] = graph.add(
            new_call.sum(),
            name=graph.code("name", "launch"),
            kind=CPU,
            lane=graph.lane[call[new_call]],
            order=keys[is_launch],
            duration_ns=graph.facts.launch_cost_ns,
            **{key: values[key][new_call] for key in TAKEN_OVER},
        )
    latency = np.where(
        new_call, graph.facts.launch_latency_ns, np.where(brings, graph.latency_ns[ids], 0)
    )
    new = graph.add(
        count,
        name=graph.code("name", name),
        kind=kinds,
        lane=lanes,
        order=keys[~is_launch],
        duration_ns=durations,
        gap_ns=gaps,
        launch=launch,
        latency_ns=latency,
        **values,
    )
    # Behind a CPU task, the launch on its thread is tie enough.
    tied = (lane is not None) & (lanes != own) & (beside_device | ~brings)
    graph.link(*((ids[tied], new[tied]) if behind else (new[tied], ids[tied])))
    for side, given in (("after", after), ("before", before)):
        if given is not None:
            named = one_each(ids_of(graph, given), count, side)
            graph.link(*((named, new) if side == "after" else (new, named)))
    return tasks.of(new, name, ordered=True)


def encode(graph: Graph, columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns with texts as codes. Raises `GraphError` for one that cannot be given."""
    coded = {}
    for key, value in columns.items():
        if is_text(key) and key != "lane":
            code = {"phase": phase_code, "kind": kind_code}.get(key, partial(graph.code, key))
            one = value is None or isinstance(value, str)
            coded[key] = code(value) if one else np.array([code(each) for each in value], np.int64)
        elif key == "release_ns":
            coded[key] = nanoseconds(value, key)
        elif key == "step" or (key in FIELDS and not is_text(key)):
            coded[key] = np.asarray(value, np.int64)
        else:
            raise GraphError(
                f"cannot give tasks {key!r}; see `Selection.set` for what can be given"
            )
    return coded


def _anchors(
    graph: Graph, ids: ndarray, calls: ndarray, on_device: ndarray, *, behind: bool
) -> ndarray:
    """Return the task beside which each new one next to launched work goes in program order.

    Behind device work that is the last of the work and of the pieces of its call (a blocking
    copy returns after it), before it the first piece of its call.
    """
    rows = row_numbers(graph, np.arange(graph.size))
    found, number = distinct(rows)
    cpu = graph.ids[graph.kind[graph.ids] == CPU]
    pieces = np.append(calls, cpu if behind else cpu[::-1])
    outermost = np.empty_like(found)
    outermost[number[pieces]] = pieces  # the last write wins
    end = np.where(rows[calls] >= 0, outermost[number[calls]], calls)
    if behind:
        return np.where(graph.order[end] > graph.order[ids], end, ids)
    return np.where(on_device, end, calls)


def ids_of(graph: Graph, tasks: Any) -> ndarray:
    """Return the ids of tasks given as a selection, an id, or several of either: int64."""
    if hasattr(tasks, "ids"):  # a selection
        same_graph(graph, tasks)
        return tasks.need_all().ids
    if not isinstance(tasks, int | np.integer | ndarray):
        parts = (ids_of(graph, each) for each in tasks or ())
        return np.concatenate([np.empty(0, np.int64), *parts])
    ids = np.array(tasks, np.int64, ndmin=1)
    inside = (ids >= 0) & (ids < graph.size)
    gone = ids[~take(graph.alive, np.where(inside, ids, -1), False)]
    if len(gone):
        raise GraphError(f"task {gone[0]} is not in the graph; it may have been removed")
    return ids


def place(graph: Graph, lane: int, causes: ndarray, followers: ndarray) -> Any:
    """Return the key of a new task: behind its causes, else before its followers, else last of its lane."""
    order = graph.order
    if len(causes):
        launched = np.flatnonzero(np.isin(graph.launch, causes))
        tasks = in_program_order(graph, np.append(causes, launched))
        if lane not in graph.lane[tasks]:  # behind what was put there before
            there = np.flatnonzero((graph.lane == lane) & (order <= order[tasks[-1]] + 1))
            tasks = in_program_order(graph, np.append(tasks, there))
        return place_next_to(graph, tasks[-1:], behind=True)
    if len(followers):
        return place_next_to(graph, in_program_order(graph, followers)[:1], behind=False)
    return order[graph.lane == lane].max(initial=-ORDER_STEP) + ORDER_STEP


def place_next_to(graph: Graph, anchors: ndarray, *, behind: bool) -> ndarray:
    """Return a key for a new task beside each anchor (ids; one may stand there several times).

    The keys lie between the anchor's and its neighbour's; those of one anchor ascend in the
    order given. Where there is no room, all that is behind moves on.
    """
    order = graph.order
    sequence = np.argsort(order, kind="stable")
    position = np.empty_like(sequence)
    position[sequence] = np.arange(len(sequence))
    places = position[anchors]
    count = np.bincount(places, minlength=len(order))
    wanted = count[:-1] if behind else count[1:]  # between each task and the next
    push = np.where(wanted > 0, np.maximum(wanted + 1 - np.diff(order[sequence]), 0), 0)
    if push.any():
        order = order.copy()
        order[sequence[1:]] += np.cumsum(push)
        graph.columns.put("order", order)
    turn = turns(places)
    return order[anchors] + 1 + turn if behind else order[anchors] - count[places] + turn
