"""The critical path of some steps as pieces of time, each with its cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.query.device import device_work
from daydream.graph.tables import CPU, KINDS, UNTRACED_HEAD, UNTRACED_NODES
from daydream.simulate.causes import CAUSES, OF_EDGE, OF_KIND, PathCause
from daydream.simulate.timeline import per_step
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.simulate.timeline import Timeline

DATA = PHASES.index("data")
NOT_TRACED = (UNTRACED_NODES, UNTRACED_HEAD)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The critical path of some steps as columns of equal length: a piece is work, or a delay.

    All pieces add up to the steps. Steps that follow each other share a window: what led to the end of the
    last decided what they took together.
    """

    windows: np.ndarray  # begin and end of each window in ns, and the rank: a row a window
    window: np.ndarray  # which of the windows each piece is in: int32
    task: np.ndarray  # int64, the graph's task that the time belongs to; a gap belongs to the task before it
    begin_ns: np.ndarray  # int64
    ns: np.ndarray  # int64
    edge: np.ndarray  # int8: -1 for work, else what bound the task delayed: a `Cause`


def pieces_of(timeline: Timeline, copy: int, steps: Sequence[int]) -> Pieces:
    """Return the critical path of some covered steps of one copy of a timeline's window.

    Kept with the timeline, since causes are asked for by several: arrays are to be read only.
    """
    wanted = copy, tuple(steps)
    if wanted not in timeline.pieces:
        timeline.pieces[wanted] = _pieces_of(timeline, copy, steps)
    found: Pieces = timeline.pieces[wanted]
    return found


def _pieces_of(timeline: Timeline, copy: int, steps: Sequence[int]) -> Pieces:
    parts: list[tuple[np.ndarray, ...]] = []
    windows = []
    # A trace of one rank may say which it is; its rows, and so its lanes, do not.
    ranks = {lane.rank for lane in timeline.graph.lanes}
    alone = ranks.pop() if len(ranks) == 1 else None
    for number, each in enumerate(timeline.stretches(copy, steps, keep=False)):
        path, work, delay = each.path, each.work_ns, each.delay_ns
        end = each.begin_ns + int(work.sum() + delay.sum())
        rank = timeline.graph.steps[each.steps[0]].get("rank", 0) if alone is None else alone
        windows.append((each.begin_ns, end, rank))
        start, task = np.maximum(timeline.start_ns[path.task], each.begin_ns), timeline.task[path.task]
        busy, late = np.flatnonzero(work), np.flatnonzero(delay)
        why = path.cause[late]
        behind = task[np.where(why == Cause.LANE, np.maximum(late - 1, 0), late)]
        of_work = np.full(len(busy), -1, np.int8)
        parts.append((np.full(len(busy), number, np.int32), task[busy], start[busy], work[busy], of_work))
        mine = np.full(len(late), number, np.int32)
        parts.append((mine, behind, start[late] - delay[late], delay[late], why))
    nothing = [np.empty(0, dtype) for dtype in (np.int32, np.int64, np.int64, np.int64, np.int8)]
    columns = [np.concatenate(column) for column in zip(nothing, *parts, strict=True)]
    return Pieces(np.array(windows, np.int64).reshape(-1, 3), *columns)


def codes_of(graph: Graph, task: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Return the code of each piece's `PathCause`, int64; what bounds a kernel is left open."""
    columns = graph.columns
    kind, work = columns["kind"][task], edge < 0
    by_kind = np.array([OF_KIND[name].code for name in KINDS])
    if not (device_work(graph) & graph.alive).any():
        by_kind[CPU] = PathCause.OPERATORS.code
    found = by_kind[kind]
    blocking = np.zeros(graph.size, bool)
    blocking[graph.syncs["task"]] = True
    waits = blocking[task] & (kind == CPU)
    found[waits & work] = PathCause.SYNC.code
    by_edge = np.full(max(Cause) + 2, -1)  # the last is of work
    for each, cause in OF_EDGE.items():
        by_edge[each] = cause.code
    bound = by_edge[edge]
    found = np.where(bound >= 0, bound, found)
    found[untraced_device_work(graph, task) & work] = PathCause.UNTRACED_DEVICE.code
    lane = edge == Cause.LANE
    between = PathCause.BETWEEN
    if not has_cpu(graph):  # nobody knows why the device pauses, within a stream and between two
        between = PathCause.PAUSES
        found[edge == Cause.EVENT] = between.code
    found[lane] = np.where(kind[lane] != CPU, between.code, PathCause.UNTRACED.code)
    loads = (columns["phase"][task] == DATA) & (kind == CPU) & (work | lane) & ~waits
    found[loads] = PathCause.LOADING.code
    return found


def has_cpu(graph: Graph) -> bool:
    """Return whether any CPU work was recorded: else nobody knows why the device pauses."""
    return bool((graph.columns["kind"] == CPU).any())


def ns_by_cause(timeline: Timeline, copy: int, steps: Sequence[int]) -> dict[PathCause, int]:
    """Return what the time of some steps is spent on, in ns a step; what bounds a kernel is left open.

    It adds up to the mean of the steps. Kept with the timeline, too.
    """
    wanted = copy, tuple(steps)
    if wanted not in timeline.causes:
        timeline.causes[wanted] = _ns_by_cause(timeline, copy, steps)
    return dict(timeline.causes[wanted])


def _ns_by_cause(timeline: Timeline, copy: int, steps: Sequence[int]) -> dict[PathCause, int]:
    pieces = pieces_of(timeline, copy, steps)
    codes = codes_of(timeline.graph, pieces.task, pieces.edge)
    total = np.bincount(codes, pieces.ns, len(CAUSES)).astype(np.int64)  # exact: below 2**53 ns, 100 days
    return per_step(dict(zip(CAUSES, total.tolist(), strict=True)), len(steps))


def untraced_device_work(graph: Graph, task: np.ndarray) -> np.ndarray:
    """Return a mask of those tasks that stand for device work that the profiler left out."""
    names = np.array([text in NOT_TRACED for text in graph.texts["name"]] + [False])
    if not names.any():
        return np.zeros(len(task), bool)
    found: np.ndarray = names[graph.columns["name"][task]] & (graph.columns["row"][task] < 0)
    return found
