"""Why the step takes its time: the chain of causes that led to its end, and what its parts are spent on.

`critical_path` walks back from a task of a plan. A `Path` is that chain for some steps, as pieces of time
that add up to them; `PathCause` names what a piece is spent on, and `Bound` what that makes the step wait
for. Text, JSON, HTML and figures take keys, labels and colors from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from numpy import ndarray

from daydream.graph.calls import has_device_work
from daydream.graph.plan import Cause, Plan
from daydream.graph.select import among
from daydream.graph.tables import CPU, KINDS, UNTRACED_HEAD, UNTRACED_NODES
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from typing_extensions import Self

    from daydream.graph.graph import Graph
    from daydream.simulate.steady_state import SteadyState

DATA = PHASES.index("data")
NOT_TRACED = (UNTRACED_NODES, UNTRACED_HEAD)

Name = TypeVar("Name", bound=str)  # of a part of a step


class Word(str, Enum):
    """A word of these: a member is its key in JSON, and people read its label."""

    label: str
    __str__ = str.__str__  # the key, in every version of Python

    def __new__(cls, key: str, *_: Any) -> Self:
        """Return a member; `__init__` gives it what else it has."""
        member = str.__new__(cls, key)
        member._value_ = key
        return member


class Bound(Word):
    """What a step waits for. The value is its key in JSON.

    The first five are what causes make a step wait for (`PathCause.bound`): their shares of the critical
    path add up to the step. `explain` may find what no single share tells: that CPU and GPU take turns, that
    each alone takes as long, that most was not recorded. The last ones are what a step of several workers
    waits for beyond its own work.
    """

    def __init__(
        self, key: str, label: str = "", light: str = "#c2c8d0", dark: str = "#4b545f"
    ) -> None:
        """Make a member: its key, its label if that is another, its colors on light and on dark."""
        self.label = label or key
        self.light = light
        self.dark = dark

    GPU = "GPU", "GPU-bound", "#7bc08f", "#2f7f4a"
    CPU = "CPU", "CPU-bound", "#8fb3dd", "#3f6ea5"
    COPIES = "copies", "copies", "#eab56b", "#a46c1c"
    COMMUNICATION = "communication", "communication", "#c79ad9", "#7f4f96"
    OTHER = "other", "other causes"

    LOADING = "data loading", "", "#b9a3e0", "#6a4fa3"
    OUTSIDE = "waits outside the trace", "", "#d7c6a0", "#7a6a3c"
    TURNS = "turns", "bound by CPU and GPU in turns"
    BOTH = "CPU and GPU", "CPU- and GPU-bound"
    UNRECORDED = "unrecorded", "unknown: most was not recorded"
    NOTHING = "nothing"

    OVERHEAD = "copies and launches"
    SLOWER_WORKERS = "slower workers"
    NETWORK_LATENCY = "network latency"
    BANDWIDTH = "bandwidth"
    INTER_NODE = "inter-node bandwidth"
    INTRA_NODE = "intra-node bandwidth"

    @property
    def awaited(self) -> str:
        """What stands behind "it waits for": `the GPU`, `copies`."""
        return f"the {self.value}" if self in {Bound.GPU, Bound.CPU} else self.label


ON_CPU = (
    Bound.CPU,
    Bound.LOADING,
    Bound.OUTSIDE,
)  # what a thread does, or waits for beside the device


class PathCause(Word):
    """What time on the critical path is spent on. The value is its key in JSON; `code` numbers them."""

    def __init__(
        self, key: str, bound: Bound = Bound.OTHER, gloss: str = "", label: str = ""
    ) -> None:
        """Make a member: its key, what it makes the step wait for, a word on what it is, its label."""
        self.label = label or key
        self.bound = bound
        self.gloss = gloss
        self.code = len(type(self).__members__)

    COMPUTE = "compute-bound kernels", Bound.GPU, "limited by arithmetic"
    MEMORY = "memory-bound kernels", Bound.GPU, "limited by bandwidth"
    SMALL = "small kernels", Bound.GPU, "mostly fixed cost"
    KERNELS = (
        "kernels of unknown bound",
        Bound.GPU,
        "no shapes or counters",
        "kernels (bound unknown)",
    )
    BETWEEN = "between device tasks", Bound.GPU, "the pause before the next"
    COPIES = "copies", Bound.COPIES
    COMMUNICATION = "exposed communication", Bound.COMMUNICATION, "nothing hides it"
    CPU = "launch-bound CPU", Bound.CPU, "the device waits for launches"
    OPERATORS = "CPU operators", Bound.CPU  # where there is no device to launch to
    UNTRACED = "untraced CPU time", Bound.CPU, "Python between operators"
    LOADING = "data loading", Bound.LOADING
    SYNC = "synchronization", Bound.CPU, "returning from a wait"
    QUEUE = "queue wait", Bound.CPU, "the launch queue is full"
    LATENCY = "latency between lanes", Bound.CPU, "of threads and streams"
    INSERTED = "inserted edges", Bound.OTHER, "waits that the change adds"
    RECORDING = "before the recording", Bound.OTHER, "work launched earlier"
    UNTRACED_DEVICE = "untraced device work", Bound.OTHER, "it ran, unrecorded"
    OUTSIDE = "waits outside the trace", Bound.OUTSIDE, "a worker, disk or timer"
    PAUSES = "pauses of unknown cause", Bound.OTHER, "no CPU was recorded"

    @property
    def explained(self) -> str:
        """The label with a word on what it is, where it does not tell: `small kernels (too short ...)`."""
        whole = f"{self.label} ({self.gloss})" if self.gloss else self.label
        return whole.replace(") (", ": ")  # in one pair of brackets


#: By kind, what a task's work is; what bounds a kernel takes its shapes, see `daydream.predict.breakdown`.
OF_KIND = {
    "cpu": PathCause.CPU,
    "kernel": PathCause.KERNELS,
    "memcpy": PathCause.COPIES,
    "memset": PathCause.KERNELS,
    "collective": PathCause.COMMUNICATION,
}
#: What the delay is that comes before a task; the gap of the task before it on its lane is told by the lane.
OF_EDGE = {
    Cause.LAUNCH: PathCause.LATENCY,
    Cause.SYNC: PathCause.SYNC,
    Cause.EVENT: PathCause.LATENCY,
    Cause.QUEUE: PathCause.QUEUE,
    Cause.HANDOFF: PathCause.LATENCY,
    Cause.COMMUNICATION: PathCause.COMMUNICATION,
    Cause.USER: PathCause.INSERTED,
    Cause.RELEASE: PathCause.RECORDING,
    Cause.LOCK: PathCause.SYNC,
    Cause.OUTSIDE: PathCause.OUTSIDE,
}
CAUSES = tuple(PathCause)  # by code


def by_bound(ns_by_cause: dict[PathCause, int]) -> dict[Bound, int]:
    """Return how long a step waits for what, in ns, from its causes."""
    found = Counter[Bound]()
    for cause, ns in ns_by_cause.items():
        found[cause.bound] += ns
    return found


class CriticalPath(NamedTuple):
    """The chain of tasks that decided when a sink ended, first to last.

    `delay_ns[k]` is what passed before task `k` started, counted from the end (or the
    start) of task `k - 1`: a gap, an edge's latency, or, for the first task, its start.
    `task_ns[k]` is the task's duration, or 0 if the next one counts from its start. All
    of both add up exactly to the sink's end, counted from the time that the chain goes back to.
    """

    task: ndarray  #: int64, task ids
    cause: ndarray  #: int8, the `Cause` that bound each start; `RELEASE` for the first task
    delay_ns: ndarray  #: int64, negative only where a latency is
    task_ns: ndarray  #: int64


def critical_path(
    plan: Plan,
    start: ndarray,
    end: ndarray,
    sink: int | None = None,
    *,
    since: int = 0,
    bound: tuple[ndarray, ndarray] | None = None,
) -> CriticalPath:
    """Return the chain of causes behind the end of `sink` (default: the first of the tasks that end last).

    With `since` the chain goes back no further than to the task that runs at that time, and what lies before
    it does not count. `bound` is the `binding` of these times, for who asks for several chains.

    Where several causes bind equally, an edge goes before the order on the lane, and that
    before the release; among edges the least cause, then the one whose source ran first.
    """
    if not len(plan):
        empty = np.empty(0, np.int64)
        return CriticalPath(empty, empty.astype(np.int8), empty, empty)
    before, by = binding(plan, start, end) if bound is None else bound
    ahead = (np.where(start[: len(before)] > since, before, -1) if since else before).data
    chain = []
    each = np.argmax(end) if sink is None else sink
    while each >= 0:
        chain.append(each)
        each = ahead[each]
    task = np.array(chain[::-1], np.int64)
    edge = by[task]
    edge[0] = -1
    by_edge = np.flatnonzero(edge >= 0)
    cause = np.full(len(task), Cause.LANE, np.int8)
    cause[0] = Cause.RELEASE
    cause[by_edge] = plan.edge_cause[edge[by_edge]]
    begin = start[task]
    stop = end[task]
    counts_from_start = by_edge[plan.edge_from_start[edge[by_edge]]] - 1
    stop[counts_from_start] = begin[counts_from_start]
    begin, stop = np.maximum([begin, stop], since)
    return CriticalPath(task, cause, begin - np.append(since, stop[:-1]), stop - begin)


def binding(
    plan: Plan, start: ndarray, end: ndarray, stop: int | None = None
) -> tuple[ndarray, ndarray]:
    """Return what bound the start of each task: the task before it, and the edge that led from there.

    Both are -1 where nothing did, the edge also where it was the order on the lane: int64, shape (tasks,).
    With `stop` only the tasks with lower ids are looked at, which no later one holds up.
    """
    stop = len(plan) if stop is None else stop
    # On a scheduled lane the order is the one that came out.
    order = np.lexsort((end + plan.gap_ns, start, plan.lane)) if plan.scheduled else None
    ahead = plan.before_on_lane(order)[:stop]
    before = np.where((ahead >= 0) & (end[ahead] + plan.gap_ns[ahead] == start[:stop]), ahead, -1)
    by = np.full(stop, -1)
    edges = slice(plan.edge_ptr[stop])
    src = plan.edge_src[edges]
    dst = plan.edge_dst[edges]
    edge = np.flatnonzero(start[src] + plan.edge_delay_ns[edges] == start[dst])
    edge = edge[np.lexsort((src[edge], plan.edge_cause[edge], dst[edge]))][
        ::-1
    ]  # the first is written last
    by[dst[edge]] = edge
    before[dst[edge]] = src[edge]
    return before, by


class Path(Struct, frozen=True, eq=False):
    """The critical path of some steps as columns of equal length: a piece is work, or a delay.

    All pieces add up to the steps. Steps that follow each other share a window: what led to the end of the
    last decided what they took together.
    """

    windows: ndarray  # begin and end of each window in ns, and the rank: a row a window
    window: ndarray  # which of the windows each piece is in: int64, as all that follow
    entry: ndarray  # the entry of the timeline that works, or is delayed
    task: ndarray  # the graph's task that the time belongs to; a gap belongs to the task before it
    begin_ns: ndarray
    ns: ndarray
    edge: ndarray  # -1 for work, else what bound the task delayed: a `Cause`


def codes_of(graph: Graph, task: ndarray, edge: ndarray) -> ndarray:
    """Return the code of each piece's `PathCause`, int64; what bounds a kernel is left open."""
    kind = graph.kind[task]
    on_cpu = kind == CPU
    work = edge < 0
    lane = edge == Cause.LANE
    by_kind = np.array([OF_KIND[name].code for name in KINDS])
    if not has_device_work(graph) or {"emulated", "fake_world"} & {*graph.recorded.metadata} == {
        "fake_world"
    }:
        by_kind[CPU] = PathCause.OPERATORS.code
    by_edge = np.array([OF_EDGE.get(each, PathCause.UNTRACED).code for each in Cause])
    found = np.where(work, by_kind[kind], by_edge[edge])
    waits = among(graph, graph.syncs["task"])[task] & on_cpu
    found[waits & work] = PathCause.SYNC.code
    own = graph.of_rows("annotation")[task]  # a range's own time is in no operator
    found[own & on_cpu & work] = PathCause.UNTRACED.code
    found[untraced_device_work(graph, task) & work] = PathCause.UNTRACED_DEVICE.code
    between = PathCause.BETWEEN
    if not has_cpu(graph):  # nobody knows why the device pauses, within a stream and between two
        between = PathCause.PAUSES
        found[edge == Cause.EVENT] = between.code
    found[lane & ~on_cpu] = between.code
    outside = among(graph, graph.links["src"][graph.links["cause"] == Cause.OUTSIDE])
    found[outside[task] & (work | lane)] = PathCause.OUTSIDE.code
    loads = (graph.phase[task] == DATA) & on_cpu & (work | lane) & ~waits
    found[loads] = PathCause.LOADING.code
    return found


def has_cpu(graph: Graph) -> bool:
    """Return whether any CPU work was recorded: else nobody knows why the device pauses."""
    return (graph.kind == CPU).any()


def ns_by_cause(state: SteadyState) -> dict[PathCause, int]:
    """Return what the settled steps spend their time on, in ns a step; what bounds a kernel is left open.

    It adds up to the mean of the steps.
    """
    path = state.path()
    codes = codes_of(state.timeline.graph, path.task, path.edge)
    return per_step(sums(CAUSES, codes, path.ns), len(state.step_times()))


def untraced_device_work(graph: Graph, task: ndarray) -> ndarray:
    """Return a mask of those tasks that stand for device work that the profiler left out."""
    return graph.named(NOT_TRACED.__contains__, task) & (graph.row[task] < 0)


def sums(names: Sequence[Name], code: ndarray, ns: ndarray) -> dict[Name, int]:
    """Return the sum of some times by name, in ns; `code` is the place of each one's name."""
    total = np.bincount(code, ns, len(names)).astype(np.int64)  # exact: below 2**53 ns, 100 days
    return dict(zip(names, total.tolist(), strict=True))


def per_step(total: Mapping[Name, int], steps: int) -> dict[Name, int]:
    """Return the parts of a step in whole ns, which add up to the mean step; no parts of nothing."""
    found = {name: round(ns / steps) for name, ns in total.items() if ns}
    if found:
        largest = max(found, key=lambda name: found[name])
        found[largest] += round(sum(total.values()) / steps) - sum(found.values())
    return found
