"""Which call of an operator a task belongs to, what a device runs, and which work runs at once.

A CPU task lies within the row it is a piece of, device work within the call that launched it. Operators
nest: `aten::layer_norm` calls `aten::native_layer_norm`, which launches the kernel. So a task has an
innermost call and an outermost one, and any regular expression on operator names picks one between. What
edits inserted belongs to no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from daydream.arrays import distinct, take, unique
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.tables import CPU, Lane
from daydream.lazy import regex

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection


def call_rows(
    graph: Graph, ids: ndarray, name: str | None = None, *, inner: bool = False
) -> ndarray:
    """Return the trace's row of the call of an operator that each task belongs to.

    Args:
        graph: the graph of the trace.
        ids: tasks, shape (tasks,), int64 (`selection.ids`).
        name: regular expression that the operator's name must match; ranges that the program named
            (`record_function`, NVTX) count only when they are asked for by name.
        inner: the innermost such call; else the outermost.

    Returns:
        shape (tasks,), int64; -1 for none.

    Raises:
        GraphError: the name is not a regular expression.
    """
    key = "call", name, inner
    if key not in graph._of_trace:
        trace = graph.recorded
        parent = trace["parent"]
        wanted = trace.is_kind("operator")
        if name is not None:
            try:
                match = re.compile(name).search
            except re.error as error:
                raise GraphError(f"{name!r} is not a regular expression ({error})") from None
            fits = np.array([bool(match(text)) for text in trace.text("name")] + [False])
            parent = _with_hand_offs(graph)
            wanted = trace.is_kind("operator", "annotation") & fits[trace["name"]]
        around = enclosing(parent, wanted, np.arange(len(trace)), inner=inner)
        graph._of_trace[key] = np.append(around, -1)  # the last: of no row
    return graph._of_trace[key][graph.row[ids]]


def _with_hand_offs(graph: Graph) -> ndarray:
    """Return the row around each row; around what the autograd thread runs is the range that waits for it.

    A thread that calls `backward()` stands still until the autograd thread is done, so a range
    that the program put around the call holds that work, too.
    """
    if "hand_offs" not in graph._of_trace:
        trace = graph.recorded
        parent = np.array(trace["parent"], np.int64)
        backward = trace["phase"] == trace.code("phase", "backward")
        other_phase = (trace["phase"] >= 0) & ~backward
        host = trace.is_kind("operator", "annotation", "runtime")
        is_range = trace.is_kind("annotation")
        rank = trace["rank"]
        tid = trace["tid"]
        start = trace["start_ns"]
        end = start + trace["duration_ns"]
        for each in unique(rank[is_range]):
            here = rank == each
            ranges = is_range & here
            caller = host & here & other_phase
            tids, counts = np.unique(tid[caller if caller.any() else ranges], return_counts=True)
            main = tid == tids[counts.argmax()]
            waiting = np.flatnonzero(ranges & main)
            top = np.flatnonzero(host & here & backward & (parent < 0) & ~main)
            latest = np.searchsorted(start[waiting], start[top], side="right") - 1
            around = take(waiting, latest)
            while (over := (around >= 0) & ((end[around] <= start[top]) | ~is_range[around])).any():
                around[over] = parent[around[over]]
            parent[top] = around
        graph._of_trace["hand_offs"] = parent
    return graph._of_trace["hand_offs"]


def enclosing(parent: ndarray, wanted: ndarray, rows: ndarray, *, inner: bool) -> ndarray:
    """Return the outermost (or innermost) wanted row among each row and those around it, -1 for none."""
    found = np.full(len(rows), -1)
    active = np.flatnonzero(rows >= 0)
    up = rows[active]
    while len(active):
        hit = wanted[up]
        found[active[hit]] = up[hit]
        up = np.where(hit & inner, -1, parent[up])
        active = active[up >= 0]
        up = up[up >= 0]
    return found


def instances(
    graph: Graph, ids: ndarray, name: str | None = None, *, inner: bool = False
) -> ndarray:
    """Return a number for the call each task belongs to, -1 for none; a repeated call has its own."""
    return row_numbers(graph, ids, call_rows(graph, ids, name, inner=inner))


def row_numbers(graph: Graph, ids: ndarray, rows: ndarray | None = None) -> ndarray:
    """Return a number for the row of each task, -1 for none; a repeated row has its own.

    By default that is the row that it is a piece of.
    """
    rows = graph.row[ids] if rows is None else rows
    repeat = graph.repeat[ids].astype(np.int64)
    return np.where(rows >= 0, rows + repeat * len(graph.recorded), -1)


def operators(tasks: Selection) -> Selection:
    """Return the CPU tasks of the operator calls that did this work and no other.

    For device work: every call of an operator whose device work, that of its inner calls
    included, is all selected; with it go its inner calls, its launches and its
    synchronizations. An operator that also launched something else stays whole. For CPU
    tasks: the call that each is a piece of, inner calls included, under the same condition
    on its device work. Raises `NotApplicableError` where the trace records no operators.
    """
    graph = tasks.graph
    trace = tasks.graph.recorded
    parent = trace["parent"]
    is_operator = trace.is_kind("operator")
    if not is_operator.any():
        raise NotApplicableError(
            "this trace records no operators, so whose CPU time goes is not known"
        )
    measured = graph.alive & (graph.row >= 0)
    picked = [tasks.ids[:0]]
    for number in unique(graph.repeat[tasks.ids]):
        ids = np.flatnonzero(measured & (graph.repeat == number))
        rows = graph.row[ids]
        device = graph.kind[ids] != CPU
        chosen = np.isin(ids, tasks.ids)
        others = _around(parent, rows[device & ~chosen])
        own = _around(parent, rows[device & chosen])
        call = enclosing(parent, is_operator, rows[~device & chosen], inner=True)
        own[call[call >= 0]] = True
        nearest = enclosing(parent, is_operator & own & ~others, rows[~device], inner=True)
        picked.append(ids[~device][nearest >= 0])
    return tasks.of(np.concatenate(picked), f"operators of {tasks.words}")


def pieces_of(graph: Graph, calls: ndarray) -> tuple[ndarray, ndarray]:
    """Return the other pieces of some runtime calls, and the place of each one's call among them.

    A blocking call is cut into the call and its return, a long one into the time before it
    submits its work and the rest; the pieces are CPU tasks of one row.
    """
    known = np.flatnonzero(graph.of_rows("runtime")[calls])[::-1]
    found, number = distinct(row_numbers(graph, np.arange(graph.size)))
    place = np.full(len(found), -1)
    place[number[calls[known]]] = known  # of several pieces of one call, the first
    of = np.where(graph.alive & (graph.kind == CPU), place[number], -1)
    of[calls] = -1
    ids = np.flatnonzero(of >= 0)
    return ids, of[ids]


def _around(parent: ndarray, rows: ndarray) -> ndarray:
    """Return a mask of rows and of all that enclose them."""
    around = np.zeros(len(parent), bool)
    while len(rows):
        around[rows] = True
        rows = parent[rows]
        rows = unique(rows[(rows >= 0) & ~around[rows]])
    return around


@lru_cache(maxsize=1 << 14)  # a few thousand texts make a trace, and every optimization reads them
def shapes_in(text: str) -> list[list[int]]:
    """Return the shapes of tensors in a recorded text, those within lists of tensors too.

    `[[32, 64], [64], []]` holds a matrix, a vector, and an argument that is no tensor (or a scalar).
    """
    try:
        return [*_flat(json.loads(text))]
    except ValueError:
        return []


def _flat(found: Any) -> Iterator[list[int]]:
    for each in found if isinstance(found, list) else ():
        if isinstance(each, list) and each:
            yield from [each] if all(isinstance(size, int) for size in each) else _flat(each)


def shape_rows(graph: Graph, ids: ndarray) -> ndarray:
    """Return the row of each task, or of the innermost call around it, that recorded shapes; else -1."""
    trace = graph.recorded
    return enclosing(trace["parent"], trace["shapes"] >= 0, graph.row[ids], inner=True)


# Allocation may or may not wait for the device (cudaFree usually, cudaMalloc seldom): judged call by call.
MAY_SYNC = regex(
    r"^(cuda|cu|hip)(Free|Malloc|Mem(Alloc|Free|Unmap|Release|Create|Map)|Host(Alloc|Free|Register|Unregister)|ModuleLoad|ModuleUnload|FreeHost)"
)
GRAPH_LAUNCH = "GraphLaunch"  # cudaGraphLaunch, hipGraphLaunch, cuGraphLaunch and their versions

LAUNCH = regex(r"^(cuda|cu|hip)(ExtLaunch|Ext|Module)*Launch\w*Kernel|^mtia\w*[Ll]aunch")


def device_work(graph: Graph) -> ndarray:
    """Return a mask over tasks of those that a device runs; collectives on CPU threads (gloo) are none."""
    mask = graph.kind != CPU
    host = np.array([lane.host for lane in graph.lanes], bool)
    if host.any():
        mask &= ~host[graph.lane]
    return mask


def has_device_work(graph: Graph) -> bool:
    """Tell whether a device runs anything."""
    return device_work(graph)[graph.alive].any()


def fused_parts(graph: Graph) -> ndarray:
    """Return a mask of the parts of fused work: what a map of debug handles gives several owners.

    Returns:
        A mask of the tasks: bool, shape (tasks of the graph,).
    """
    handles = graph.recorded.handles
    if handles is None:
        return np.zeros(graph.size, bool)
    several = np.array([*(len(handles[each]) > 1 for each in handles), False])
    return several[take(graph.recorded["handle"], graph.row)]


def whole_duration_ns(tasks: Selection) -> ndarray:
    """Return how long the kernel of each task runs: of a part of fused work that of all parts together.

    int64, shape (tasks,), in ns.
    """
    graph = tasks.graph
    parts = fused_parts(graph)
    mine = graph.alive & parts & (graph.repeat == 0)
    of_row = np.zeros(len(graph.recorded) + 1, np.int64)
    np.add.at(of_row, graph.row[mine], graph.duration_ns[mine])
    return np.where(parts[tasks.ids], of_row[tasks.row], tasks.duration_ns)


def in_replays(tasks: Selection) -> Selection:
    """Return those of some device tasks that a replayed CUDA (or HIP) graph runs: its call launched them.

    What nsys records of a graph as a whole is one task; work between its nodes that was not traced counts.
    """
    graph = tasks.graph
    call = graph.launch[tasks.ids]
    replays = graph.named(lambda name: GRAPH_LAUNCH in name, call)
    found = (call >= 0) & replays & device_work(graph)[tasks.ids]
    return tasks[found]


def mostly_replayed(tasks: Selection) -> bool:
    """Tell whether most of some device work, by number or by time, runs inside replays of graphs."""
    inside = in_replays(tasks)
    return 2 * len(inside) > len(tasks) or 2 * inside.total("duration_ns") > tasks.total(
        "duration_ns"
    )


def unrecorded_launches(graph: Graph) -> bool:
    """Tell whether calls of the trace launched kernels, of which it has none."""
    if has_device_work(graph):
        return False
    return graph.named(LAUNCH.search)[graph.alive].any()


class Coverage:
    """The time that any of some intervals covers: `start_ns` and `end_ns` bound its pieces, in order."""

    def __init__(self, start_ns: ndarray, end_ns: ndarray) -> None:
        lasting = end_ns > start_ns
        order = np.argsort(start_ns[lasting], kind="stable")
        start = start_ns[lasting][order]
        end = np.maximum.accumulate(end_ns[lasting][order])
        first = np.append(True, start[1:] > end[:-1])[: len(start)]
        self.start_ns = start[first]
        self.end_ns = end[np.roll(first, -1)]  # of those ahead of the next first
        self.before_ns = np.append(
            0, np.cumsum(self.end_ns - self.start_ns)
        )  # covered ahead of each piece
        self._ends_ns = np.append(
            -(2**62), self.end_ns
        )  # of the piece that has begun; of none, before all

    def until(self, time_ns: ndarray) -> ndarray:
        """Return how much is covered before each time."""
        begun = np.searchsorted(self.start_ns, time_ns, side="right")
        return self.before_ns[begun] - np.maximum(self._ends_ns[begun] - time_ns, 0)

    def within(self, start_ns: ndarray, end_ns: ndarray) -> ndarray:
        """Return how much of each span is covered."""
        return self.until(end_ns) - self.until(start_ns)


def sharing(lanes: Sequence[Lane]) -> list[tuple[ndarray, ndarray]]:
    """Return, for each device, masks of the lanes whose kernels run on it and of those with its transfers.

    Of a rank with several devices the lanes of no device (a link that an edit made) carry transfers
    of all of them. Pools of CPU threads are on no device.
    """
    rank = np.array([lane.rank for lane in lanes], np.int64)
    device = np.array([lane.device for lane in lanes], np.int64)
    on_device = np.array([lane.on_device and not lane.host for lane in lanes], bool)
    found = []
    for each in unique(rank[on_device]):
        mine = on_device & (rank == each)
        for number in (named := unique(device[mine & (device >= 0)]).tolist() or [-1]):
            own = mine & (device == number)
            transfers = own | (mine & (device < 0))
            found.append((transfers if number == named[0] else own, transfers))
    return found


# Calls of what torch.compile (its piece, its region, its node) and ExecuTorch made of a model.
COMPILED_CALL = r"CompiledFxGraph|CompiledFunction|^Torch-Compiled Region|^Method::execute$"


class WholeCalls(NamedTuple):
    """Device work of calls that run many layers as one.

    `inside` and `unplaced` are masks of the tasks, bool: what such calls launch, and what of it has no layer
    but the call's. `layers` are the codes of the calls' layers, `around` of those that hold others besides
    what is in their paths, as a model does; `where` says what runs most of the unplaced work.
    """

    inside: ndarray
    unplaced: ndarray
    layers: frozenset[int]
    around: frozenset[int]
    where: str


def whole_calls(graph: Graph) -> WholeCalls | None:
    """Return the device work of replays and compiled calls; None where all of it has a layer of its own."""
    return graph.derived("whole_calls", lambda: _whole_calls(graph))


def within(path: str, outer: str) -> bool:
    """Tell whether a layer is another one, or inside it."""
    return path == outer or path.startswith(f"{outer}.")


def _whole_calls(graph: Graph) -> WholeCalls | None:
    device = np.flatnonzero(device_work(graph) & graph.alive)
    layer = graph.layer[device]
    duration = graph.duration_ns[device]
    row = call_rows(graph, device, COMPILED_CALL)
    replayed = np.isin(device, in_replays(graph.tasks(device)).ids)
    of_call = take(graph.recorded["layer"], row)
    call = np.where(row >= 0, of_call, graph.layer[graph.launch[device]])
    inside = (row >= 0) | replayed
    unplaced = inside & ((layer < 0) | (layer == call))
    if not unplaced.any():
        return None
    texts = graph.texts["layer"]
    pairs = {*zip(call[inside].tolist(), layer[inside].tolist(), strict=True)}
    around = {
        one for one, other in pairs if min(one, other) >= 0 and not within(texts[other], texts[one])
    }
    layers_of_calls = frozenset(one for one, _ in pairs if one >= 0)
    mostly = 2 * duration[unplaced & replayed].sum() > duration[unplaced].sum()
    masks = np.zeros((2, graph.size), bool)
    masks[:, device] = inside, unplaced
    where = "CUDA graphs" if mostly else "compiled calls"
    return WholeCalls(masks[0], masks[1], layers_of_calls, frozenset(around), where)
