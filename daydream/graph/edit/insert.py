"""Insertion: one task by its causes, or one beside each task of a selection.

Device work brings its launch, a call of the graph's usual cost. Because lanes keep
program order, work that is inserted beside a task on that task's lane needs no edge:
it runs between the task and its neighbour. On another lane an edge ties it to the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.graph.edit.place import place, place_next_to
from daydream.graph.tables import CODED, COLLECTIVE, CPU, kind_code, nanoseconds, phase_code
from daydream.trace.schema import FIELDS

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

TAKEN_OVER = ("phase", "layer", "step", "op", "repeat")


def insert_one(
    graph: Graph,
    name: str,
    *,
    kind: str,
    lane: str | int,
    duration_ns: float,
    gap_ns: float,
    after: Any,
    before: Any,
    launch_after: Any,
    columns: dict[str, Any],
) -> np.ndarray:
    """Insert a task and return its id, an array of one; see `Graph.insert`."""
    number = kind_code(kind)
    after, before, caller = (_ids(graph, tasks) for tasks in (after, before, launch_after))
    duration, gap = (int(nanoseconds(value)) for value in (duration_ns, gap_ns))
    values = encode(graph, columns)
    lane_id = lane if isinstance(lane, int) else graph.lane_id(lane, on_device=kind != "cpu")
    launch = -1
    if caller:
        call = insert_one(
            graph, "launch", kind="cpu", lane=int(graph.columns["lane"][caller[0]]),
            duration_ns=graph.facts.launch_cost_ns, gap_ns=0, after=caller[:1], before=(), launch_after=None,
            columns={key: value for key, value in columns.items() if key in (*TAKEN_OVER, *CODED)},
        )  # fmt: skip
        launch = int(call[0])
    order = place(graph, lane_id, [*after, launch] if launch >= 0 else after, before)
    near = [*after, *before, launch]
    if "step" not in values and near[0] >= 0:
        values["step"] = int(graph.columns["step"][near[0]])
    task = graph.add(
        1, name=graph.code("name", name), kind=number, lane=lane_id, order=order, duration_ns=duration,
        gap_ns=gap, launch=launch, latency_ns=graph.facts.launch_latency_ns if launch >= 0 else 0, **values,
    )  # fmt: skip
    graph.edits += 1
    graph.link(after, np.repeat(task, len(after)))
    graph.link(np.repeat(task, len(before)), before)
    return task


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
) -> np.ndarray:
    """Insert one task beside each of `tasks`; return the ids of the new ones, in the same order.

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
    tasks.need_some().need_all()
    same_graph(graph, tasks)
    own = graph.columns
    ids, count = tasks.ids, len(tasks)
    kinds = own["kind"][ids].astype(np.int64) if kind is None else np.full(count, kind_code(kind))
    on_device, beside_device = kinds != CPU, own["kind"][ids] != CPU
    # A CPU task's call is itself: beside it the new work is launched, or runs.
    call = np.where(beside_device, own["launch"][ids].astype(np.int64), ids)
    lanes, other = _lanes(graph, tasks, on_device, beside_device, call, lane)

    durations = _one_each(nanoseconds(duration_ns), count, "duration_ns")
    startup = np.where(on_device & (kinds != COLLECTIVE), graph.facts.startup_ns, 0)
    gaps = startup if gap_ns is None else _one_each(nanoseconds(gap_ns, "gap_ns"), count, "gap_ns")
    values = {key: own[key][ids] for key in TAKEN_OVER}
    values |= {key: _one_each(value, count, key) for key, value in encode(graph, columns).items()}

    is_node = (
        beside_device
        & (call >= 0)
        & (np.bincount(own["launch"][own["launch"] >= 0], minlength=graph.size)[call] > 1)
    )
    brings = on_device & (call >= 0) & launched
    new_call = brings & ~is_node
    anchor = _anchors(graph, ids, call, on_device, beside_device & ~is_node, behind=behind)
    # The launch comes before its work: both at one anchor, in this order.
    twice = np.repeat(np.arange(count), np.where(new_call, 2, 1))
    keys = place_next_to(graph, anchor[twice], behind=behind)
    is_launch = np.append(twice[:-1] == twice[1:], False)

    launch = np.where(brings, call, -1)
    if new_call.any():
        launch[new_call] = graph.add(
            int(new_call.sum()),
            name=graph.code("name", "launch"), kind=CPU, lane=own["lane"][call[new_call]],
            order=keys[is_launch], duration_ns=graph.facts.launch_cost_ns,
            **{key: values[key][new_call] for key in (*TAKEN_OVER,)},
        )  # fmt: skip
        own = graph.columns
    latency = np.where(new_call, graph.facts.launch_latency_ns, np.where(brings, own["latency_ns"][ids], 0))
    new = graph.add(
        count, name=graph.code("name", name), kind=kinds, lane=lanes, order=keys[~is_launch],
        duration_ns=durations, gap_ns=gaps, launch=launch, latency_ns=latency, **values,
    )  # fmt: skip
    graph.edits += 1
    # Behind a CPU task, the launch on its thread is tie enough.
    tied = other & ~(~beside_device & brings)
    graph.link(*((ids[tied], new[tied]) if behind else (new[tied], ids[tied])))
    for side, given in (("after", after), ("before", before)):
        if given is not None:
            named = _one_each(np.array(_ids(graph, given), np.int64), count, side)
            graph.link(*((named, new) if side == "after" else (new, named)))
    return new


def encode(graph: Graph, columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns with texts as codes. Raises `GraphError` for one that cannot be given."""
    from daydream.graph.query.columns import is_text

    coded: dict[str, Any] = {}
    for key, value in columns.items():
        if key == "phase":
            coded[key] = (
                phase_code(value) if value is None or isinstance(value, str) else _codes(value, phase_code)
            )
        elif is_text(key) and key not in ("kind", "lane", "name"):
            coded[key] = _codes(value, lambda text, key=key: graph.code(key, text))
        elif key == "release_ns":
            coded[key] = nanoseconds(value, key)
        elif key == "step" or (key in FIELDS and not is_text(key)):
            coded[key] = np.asarray(value, np.int64)
        else:
            raise GraphError(f"cannot give tasks {key!r}; see `Selection.set` for what can be given")
    return coded


def _codes(value: Any, code: Any) -> Any:
    if value is None or isinstance(value, str):
        return code(value)
    return np.array([code(each) for each in value], np.int64)


def _lanes(
    graph: Graph,
    tasks: Selection,
    on_device: np.ndarray,
    beside_device: np.ndarray,
    call: np.ndarray,
    name: str | Sequence[str] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lane of each new task, and whether it is another lane than its neighbour's."""
    own = graph.columns["lane"][tasks.ids].astype(np.int64)
    if name is not None:
        names = np.array([name] if isinstance(name, str) else list(name), dtype=object)
        names = _one_each(names, len(own), "lane")
        lanes = own.copy()
        for each in dict.fromkeys(names.tolist()):
            here = names == each
            lanes[here] = lanes_for(graph, each, own[here], on_device=bool(on_device.all()))
        return lanes, lanes != own
    if (on_device & ~beside_device).any():
        raise GraphError("device work inserted next to CPU tasks needs its lane: name the stream")
    lanes = np.where(~on_device & beside_device, graph.columns["lane"][call], own)
    if (~on_device & beside_device & (call < 0)).any():
        raise GraphError(
            "CPU work goes to the thread that launched its neighbour; some of these have no launch"
        )
    return lanes, np.zeros(len(lanes), bool)


def lanes_for(graph: Graph, name: str, beside: np.ndarray, *, on_device: bool) -> np.ndarray:
    """Return the lane of this name for work beside these lanes, one for each rank where there are several."""
    from daydream.graph.query.columns import lanes_named

    by_rank = {graph.lanes[number].rank: number for number in lanes_named(graph, name)}
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)
    several = len(set(ranks.tolist())) > 1
    for rank in np.unique(ranks[beside]).tolist():
        if rank not in by_rank:
            full = f"rank {rank} {name}" if several and not name.startswith("rank ") else name
            by_rank[rank] = graph.lane_id(full, on_device=on_device, rank=rank)
    lanes = np.array([by_rank[rank] for rank in ranks[beside].tolist()], np.int64)
    for number in np.unique(lanes).tolist():
        if graph.lanes[number].on_device != on_device:
            kind = "a CPU thread" if on_device else "a lane of the device"
            raise GraphError(f"{graph.lanes[number].name!r} is {kind}")
    return lanes


def _anchors(
    graph: Graph,
    ids: np.ndarray,
    call: np.ndarray,
    on_device: np.ndarray,
    launched: np.ndarray,
    *,
    behind: bool,
) -> np.ndarray:
    """Return the task beside which each new one goes in program order.

    Behind device work that is the last of the work and of the pieces of its call (a blocking
    copy returns after it), before it the first piece of its call.
    """
    columns = graph.columns
    anchor = ids.copy()
    use = launched & (call >= 0)
    if not use.any():
        return anchor
    wanted = np.zeros(int(columns["row"].max()) + 2, bool)
    wanted[columns["row"][call[use]]] = True
    wanted[-1] = False  # of no row
    cpu = graph.ids[(columns["kind"][graph.ids] == CPU) & wanted[columns["row"][graph.ids]]]
    rows, repeat = columns["row"][cpu].astype(np.int64), columns["repeat"][cpu].astype(np.int64)
    piece = np.lexsort((np.arange(len(cpu)), rows, repeat))
    key = rows * (2**16) + repeat
    edge = np.full(graph.size, -1)
    edge[cpu] = cpu
    if len(piece):
        cut = np.flatnonzero(np.append(True, key[piece][1:] != key[piece][:-1]))
        sizes = np.diff(np.append(cut, len(piece)))
        ends = cut + sizes - 1 if behind else cut
        edge[cpu[piece]] = np.repeat(cpu[piece][ends], sizes)
    calls = call[use]
    end = np.where(edge[calls] >= 0, edge[calls], calls)
    if behind:
        end = np.where(columns["order"][end] > columns["order"][ids[use]], end, ids[use])
    anchor[use] = np.where(on_device[use] | behind, end, calls)
    return anchor


def _one_each(values: Any, count: int, what: str) -> np.ndarray:
    array = np.asarray(values)
    if array.shape not in ((), (1,), (count,)):
        raise GraphError(f"{what}: {array.size} values for {count} tasks; give one, or one for each")
    return np.broadcast_to(array, count)


def same_graph(graph: Graph, tasks: Selection) -> None:
    """Raise `GraphError` if tasks of another graph were given."""
    if tasks.graph is not graph:
        raise GraphError("a task of another graph was given; select it from this one")


def _ids(graph: Graph, tasks: Any) -> list[int]:
    """Return the ids of tasks given as a selection, an id, or several of either."""
    if tasks is None:
        return []
    alone = isinstance(tasks, int | np.integer) or hasattr(tasks, "ids")
    listed: Iterable[Any] = [tasks] if alone else tasks
    ids: list[int] = []
    for task in listed:
        if hasattr(task, "ids"):  # a selection
            same_graph(graph, task)
            ids.extend(task.ids.tolist())
        else:
            ids.append(int(task))
    for task in ids:
        if not 0 <= task < graph.size or not graph.alive[task]:
            raise GraphError(f"task {task} is not in the graph; it may have been removed")
    return ids
