"""The critical path of the covered steps as causes: what a step's time is spent on, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daydream.costs.kernels import LATENCY_SHARE, bound, floor_ns
from daydream.errors import NotApplicableError
from daydream.graph.graph import KINDS, Graph
from daydream.graph.plan import Cause
from daydream.graph.query.device import device_work
from daydream.graph.rules import device_graphs
from daydream.graph.selection import Selection
from daydream.predict.sensitivity import family
from daydream.simulate.timeline import Timeline
from daydream.trace.schema import PHASES

COMPUTE = "compute-bound kernels"
MEMORY = "memory-bound kernels"
SMALL = "small kernels"
KERNELS = "kernels of unknown bound"
BETWEEN = "between device tasks"
COPIES = "copies"
COMMUNICATION = "exposed communication"
CPU = "launch-bound CPU"
OPERATORS = "CPU operators"  # where there is no device to launch to
UNTRACED = "untraced CPU time"
UNTRACED_DEVICE = "untraced device work"
LOADING = "data loading"
SYNC = "synchronization"
QUEUE = "queue wait"
LATENCY = "latency between lanes"
INSERTED = "inserted edges"
RECORDING = "before the recording"

GROUPS = {  # cause -> who it makes the step wait for
    COMPUTE: "GPU",
    MEMORY: "GPU",
    SMALL: "GPU",
    KERNELS: "GPU",
    BETWEEN: "GPU",
    COPIES: "copies",
    COMMUNICATION: "communication",
    CPU: "CPU",
    OPERATORS: "CPU",
    UNTRACED: "CPU",
    LOADING: "CPU",
    SYNC: "CPU",
    QUEUE: "CPU",
    LATENCY: "CPU",
    INSERTED: "other",
    RECORDING: "other",
    UNTRACED_DEVICE: "other",
}
NAMES = tuple(GROUPS)
CODES = {name: code for code, name in enumerate(NAMES)}
BY_BOUND = {"compute": COMPUTE, "memory": MEMORY, "latency": SMALL, "unknown": KERNELS}
BY_KIND = {"cpu": CPU, "kernel": KERNELS, "memcpy": COPIES, "memset": KERNELS, "collective": COMMUNICATION}
BY_EDGE = {
    Cause.LAUNCH: LATENCY,
    Cause.SYNC: SYNC,
    Cause.EVENT: LATENCY,
    Cause.QUEUE: QUEUE,
    Cause.HANDOFF: LATENCY,
    Cause.COMMUNICATION: COMMUNICATION,
    Cause.GRAPH: BETWEEN,
    Cause.USER: INSERTED,
    Cause.RELEASE: RECORDING,
    Cause.LOCK: SYNC,
}
KERNEL = KINDS.index("kernel")
DATA = PHASES.index("data")
MOST_PARTS = 5
NOT_TRACED = (device_graphs.UNTRACED, device_graphs.UNTRACED_HEAD)


@dataclass(frozen=True)
class Part:
    """What a share is made of: an operator, or kernels of one family."""

    name: str
    ns: int


@dataclass(frozen=True, eq=False)
class Share:
    """One cause: its time on the critical path of a step, the tasks it lies in, and its largest parts."""

    cause: str
    ns: int
    share: float
    tasks: Selection
    largest: tuple[Part, ...]

    @property
    def group(self) -> str:
        """Who the step waits for: GPU, CPU, copies, communication or other."""
        return GROUPS[self.cause]


@dataclass(frozen=True, eq=False)
class Chain:
    """The critical path of some steps: stretches of time, each with its cause.

    A stretch is the work of a task, or the delay before one. All add up to the steps. Steps that follow each
    other share a window: what led to the end of the last decided what they took together.
    """

    timeline: Timeline
    steps: tuple[int, ...]
    windows: np.ndarray  # begin and end of each window, and the rank
    window: np.ndarray  # which of the windows each stretch is in
    task: np.ndarray  # the graph's task that the time belongs to; a gap belongs to the task before it
    begin_ns: np.ndarray
    ns: np.ndarray
    cause: np.ndarray  # code of a name

    @property
    def graph(self) -> Graph:
        """The graph that was simulated."""
        return self.timeline.graph

    @property
    def step_ns(self) -> float:
        """Mean time of the steps."""
        return float(self.ns.sum()) / len(self.steps)

    def per_step(self, mask: np.ndarray) -> int:
        """Return the time of some stretches, per step."""
        return round(float(self.ns[mask].sum()) / len(self.steps))

    def of(self, *causes: str) -> np.ndarray:
        """Return a mask of the stretches of these causes."""
        return np.isin(self.cause, [CODES[name] for name in causes])

    def column(self, name: str) -> np.ndarray:
        """Return a column of the graph for each stretch's task."""
        return self.graph.column(name, self.task)

    def tasks(self, mask: np.ndarray, words: str) -> Selection:
        """Return the tasks of some stretches as a selection."""
        some = Selection(self.graph, np.empty(0, np.int64), words)
        return some.of(np.unique(self.task[mask]), words)


def trace_back(timeline: Timeline, copy: int, steps: Sequence[int]) -> Chain:
    """Return the critical path of some covered steps of one copy of a timeline's window."""
    parts: list[tuple[np.ndarray, ...]] = []
    windows = []
    # A trace of one rank may say which it is; its rows, and so its lanes, do not.
    ranks = {lane.rank for lane in timeline.graph.lanes}
    alone = ranks.pop() if len(ranks) == 1 else None
    for number, each in enumerate(timeline.stretches(copy, steps)):
        path, work, delay = each.path, each.work_ns, each.delay_ns
        own = timeline.task[path.task]
        before = np.append(own[:1], own[:-1])
        gap = path.cause == Cause.LANE
        end = each.begin_ns + int(work.sum() + delay.sum())
        rank = timeline.graph.steps[each.steps[0]].get("rank", 0) if alone is None else alone
        windows.append((each.begin_ns, end, rank))
        begin = np.maximum(timeline.start_ns[path.task], each.begin_ns)
        window = np.full(len(own), number)
        parts.append((window, own, begin, work, np.full(len(own), -1)))
        parts.append((window, np.where(gap, before, own), begin - delay, delay, path.cause.astype(np.int64)))
    nothing = (np.zeros(0, np.int64),) * 5  # a change may have left the steps no work
    window, task, begin, ns, edge = (np.concatenate(column) for column in zip(nothing, *parts, strict=True))
    there = ns != 0
    window, task, begin, ns, edge = window[there], task[there], begin[there], ns[there], edge[there]
    cause = _causes(timeline.graph, task, edge)
    return Chain(
        timeline, tuple(steps), np.array(windows, np.int64).reshape(-1, 3), window, task, begin, ns, cause
    )


def shares(chain: Chain) -> list[Share]:
    """Return the causes of the critical path, those first that take longest; together they are the step."""
    found = []
    for code in np.unique(chain.cause).tolist():
        name = NAMES[code]
        mask = chain.cause == code
        tasks = chain.tasks(mask, f"{name} on the critical path")
        ns = chain.per_step(mask)
        found.append(Share(name, ns, ns / max(chain.step_ns, 1), tasks, tuple(_largest(chain, mask))))
    return sorted(found, key=lambda share: (-share.ns, share.cause))


def labels(graph: Graph, tasks: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return what each task is called in a sentence, as codes and the texts they point into.

    That is its operator on the CPU, the family of a kernel, the name of all else.
    """
    columns = graph.columns
    kind, row = columns["kind"][tasks].astype(np.int64), columns["row"][tasks]
    key = (columns["name"][tasks].astype(np.int64) + 1) * (len(graph.texts["op"]) + 1) + columns["op"][tasks]
    key = (key * len(KINDS) + kind) * 2 + (row >= 0)
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    some = tasks[first]
    texts = [
        _label(*each)
        for each in zip(
            graph.column("kind", some), graph.column("name", some), graph.column("op", some), row[first] >= 0,
            strict=True,
        )
    ]  # fmt: skip
    distinct = list(dict.fromkeys(texts))
    code = np.array([distinct.index(text) for text in texts], np.int64)
    return code[place.reshape(-1)], distinct


def _label(kind: str, name: str | None, op: str | None, recorded: object) -> str:
    if kind == "cpu":
        return op or name or "CPU work"
    return family(name or kind) if recorded and kind in {"kernel", "collective"} else name or kind


def untraced_device_work(graph: Graph) -> np.ndarray:
    """Return a mask of the tasks that stand for device work that the profiler left out."""
    names = [number for number, text in enumerate(graph.texts["name"]) if text in NOT_TRACED]
    return np.isin(graph.columns["name"], names) & (graph.columns["row"] < 0)


def _largest(chain: Chain, mask: np.ndarray) -> list[Part]:
    code, names = labels(chain.graph, chain.task[mask])
    total = np.bincount(code, weights=chain.ns[mask])
    order = np.argsort(-total, kind="stable")[:MOST_PARTS]
    return [Part(names[each], round(total[each] / len(chain.steps))) for each in order]


def _causes(graph: Graph, task: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Return the code of each stretch's cause; `edge` is -1 for work, else what bound the task delayed."""
    columns = graph.columns
    kind = columns["kind"][task]
    found = np.array([CODES[BY_KIND[name]] for name in KINDS])[kind]
    kernels = np.unique(task[(kind == KERNEL) & (edge < 0)])
    if len(kernels):
        names = np.zeros(graph.size, np.int64)
        names[kernels] = _bounds(graph, kernels)
        chosen = (kind == KERNEL) & (edge < 0)
        found[chosen] = names[task[chosen]]
    if not device_work(graph)[graph.alive].any():
        found[kind == 0] = CODES[OPERATORS]
    waits = np.isin(task, graph.syncs["task"]) & (kind == 0)
    found[waits & (edge < 0)] = CODES[SYNC]
    for cause, name in BY_EDGE.items():
        found[edge == cause] = CODES[name]
    found[untraced_device_work(graph)[task] & (edge < 0)] = CODES[UNTRACED_DEVICE]
    lane = edge == Cause.LANE
    found[lane] = np.where(kind[lane] > 0, CODES[BETWEEN], CODES[UNTRACED])
    loads = (columns["phase"][task] == DATA) & (kind == 0) & ((edge < 0) | lane) & ~waits
    found[loads] = CODES[LOADING]
    return found


def _bounds(graph: Graph, kernels: np.ndarray) -> np.ndarray:
    """Return what bounds each kernel; without known peaks only the small ones are told from the others."""
    chosen = Selection(graph, kernels)
    try:
        kind = bound(graph, chosen).kind
    except NotApplicableError:
        small = chosen.duration_ns < LATENCY_SHARE * floor_ns(graph)
        kind = np.where(small, "latency", "unknown")
    return np.array([CODES[BY_BOUND[each]] for each in kind.tolist()])
