"""Where a step's time goes: its critical path by cause, phase and layer, and what runs beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from daydream.arrays import distinct_rows, unique
from daydream.costs.kernel_names import family
from daydream.costs.kernels import LATENCY_SHARE, bound, floor_ns
from daydream.errors import NotApplicableError
from daydream.graph.calls import Coverage, device_work, whole_duration_ns
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.selection import Selection
from daydream.graph.tables import COLLECTIVE, CPU, KERNEL
from daydream.results import Live, Record
from daydream.simulate.critical_path import (
    CAUSES,
    Bound,
    Path,
    PathCause,
    by_bound,
    codes_of,
    per_step,
    untraced_device_work,
)
from daydream.simulate.timeline import Timeline

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay

OF_KERNELS = {
    "compute": PathCause.COMPUTE,
    "memory": PathCause.MEMORY,
    "latency": PathCause.SMALL,
    "unknown": PathCause.KERNELS,
}
MOST_PARTS = 5
Parts: TypeAlias = Mapping[str, Mapping[str, int]]
IDLE = "device idle"
SYNC_WAIT = "CPU waits for the device"
QUEUE_WAIT = "CPU waits in launch queue"
HIDDEN = "hidden communication"


class Part(Record):
    """What a share is made of: an operator, or kernels of one family; its time per step."""

    name: str
    ns: int


class Share(Record):
    """One cause: its time on the critical path of a step, the tasks it lies in, and its largest parts.

    Attributes:
        cause: what the time is spent on.
        bound: what the step waits for then: GPU, CPU, copies, communication or other.
        ns: time per step.
        share: that time's part of the step, 0 to 1.
        largest: operators or families of kernels, those first that take longest.
        selection: the tasks in words.
        tasks: how many they are.
    """

    cause: PathCause
    bound: Bound
    ns: int
    share: float
    largest: tuple[Part, ...] = ()
    selection: str = ""
    tasks: int = 0

    selected = Live[Selection]()


@dataclass(frozen=True, eq=False)
class Chain(Path):
    """The critical path of some steps: pieces of time, each with its cause."""

    timeline: Timeline
    steps: tuple[int, ...]
    cause: np.ndarray  # int64, code of a `PathCause`

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

    def of(self, *causes: PathCause) -> np.ndarray:
        """Return a mask of the stretches of these causes."""
        return np.isin(self.cause, [each.code for each in causes])

    def column(self, name: str) -> np.ndarray:
        """Return a column of the graph for each stretch's task."""
        return self.graph.column(name, self.task)

    def tasks(self, ids: np.ndarray, words: str) -> Selection:
        """Return some tasks, in which they may be repeated, as a selection."""
        return Selection(self.graph, ids[:0]).of(unique(ids), words)


def trace_back(timeline: Timeline, copy: int, steps: Sequence[int]) -> Chain:
    """Return the critical path of some covered steps of one copy of a timeline's window."""
    path, graph = timeline.path(copy, steps), timeline.graph
    cause = codes_of(graph, path.task, path.edge)
    # Work of kernels that were traced; memory sets are none, and their bound is not asked.
    chosen = (cause == PathCause.KERNELS.code) & (graph.columns["kind"][path.task] == KERNEL)
    kernels, place = np.unique(path.task[chosen], return_inverse=True)
    if len(kernels):
        them = Selection(graph, kernels)
        try:
            kind = bound(graph, them).kind
        except NotApplicableError:  # without known peaks only the small ones are told from the others
            small = whole_duration_ns(them) < LATENCY_SHARE * floor_ns(graph)
            kind = np.where(small, "latency", "unknown")
        codes = np.array([OF_KERNELS[each].code for each in kind.tolist()])
        cause[chosen] = codes[place.reshape(-1)]
    return Chain(**vars(path), timeline=timeline, steps=tuple(steps), cause=cause)


def shares(chain: Chain) -> list[Share]:
    """Return the causes of the critical path, those first that take longest; together they are the step."""
    found = []
    for code in unique(chain.cause).tolist():
        cause = CAUSES[code]
        mask = chain.cause == code
        tasks = chain.tasks(chain.task[mask], f"{cause.label} on the critical path")
        ns = chain.per_step(mask)
        label, names = labels(chain.graph, chain.task[mask])
        total = np.bincount(label, weights=chain.ns[mask])
        order = np.argsort(-total, kind="stable")[:MOST_PARTS]
        largest = tuple(Part(names[each], round(total[each] / len(chain.steps))) for each in order)
        share = ns / max(chain.step_ns, 1)
        one = Share(cause, cause.bound, ns, share, largest, tasks.words, len(tasks))
        found.append(one.having(selected=tasks))
    return sorted(found, key=lambda share: (-share.ns, share.cause))


def labels(graph: Graph, tasks: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return what each task is called in a sentence, as codes and the texts they point into.

    That is its operator on the CPU, the family of a kernel, the name of all else.
    """
    in_trace = graph.columns["row"][tasks] >= 0
    columns = [graph.columns[name][tasks] for name in ("name", "op", "kind")]
    first, place = distinct_rows([*columns, in_trace])
    texts = []
    names = (graph.column(name, tasks[first]) for name in ("kind", "name", "op"))
    for what, name, op, recorded in zip(*names, in_trace[first], strict=True):
        if what == "cpu":
            texts.append(op or name or "CPU work")
        elif recorded and what in {"kernel", "collective"}:
            texts.append(family(name or what))
        else:
            texts.append(name or what)
    distinct = list(dict.fromkeys(texts))
    code = np.array([distinct.index(text) for text in texts], np.int64)
    return code[place], distinct


class Waits(NamedTuple):
    """CPU calls that stand blocked within the steps: the task, the time of each, per call."""

    task: np.ndarray
    ns: np.ndarray
    steps: int

    def per_step(self, mask: np.ndarray | slice = slice(None)) -> int:
        """Return the time some of them stand blocked, per step."""
        return round(float(self.ns[mask].sum()) / self.steps)


class Launching(Record):
    """Launch calls of a step.

    Attributes:
        calls_per_step: how many.
        total_ns: time in them per step.
        queue_wait_ns: how much of it is waiting for room in the launch queue.
        selection: the calls in words.
        tasks: how many they are in all steps.
    """

    calls_per_step: float
    total_ns: int
    queue_wait_ns: int
    selection: str
    tasks: int

    selected = Live[Selection]()


class Behind(Record):
    """What the critical path does while collectives run, and for how long per step."""

    cause: PathCause
    ns: int


class Communication(Record):
    """Collectives of a step: those of its own rank, and those of others that the step waits for.

    Attributes:
        total_ns: how long at least one runs, per step.
        exposed_ns: how much of that is on the critical path.
        hidden_ns: what runs beside the critical path.
        behind: what the critical path does meanwhile, longest first: why the rest is hidden.
        selection: the collectives in words.
        tasks: how many they are in all steps.
    """

    total_ns: int
    exposed_ns: int
    hidden_ns: int
    behind: tuple[Behind, ...]
    selection: str
    tasks: int

    selected = Live[Selection]()


def waits(chain: Chain, cause: Cause) -> Waits:
    """Return the CPU calls that stand blocked for a cause within the steps, clipped to them.

    The profiler's own wait, behind all launches of the window and like no wait before, is left out.
    """
    graph, timeline = chain.graph, chain.timeline
    plan, start = timeline.plan, timeline.start_ns
    edges = np.flatnonzero(plan.edge_cause == cause)
    src, dst = plan.edge_src[edges], plan.edge_dst[edges]
    delay = np.where(plan.edge_from_start[edges], 0, plan.duration_ns[src]) + plan.edge_latency_ns[edges]
    held = unique(dst[start[src] + delay == start[dst]])
    held = held[(graph.columns["kind"][timeline.task[held]] == CPU) & (timeline.waits_of(held) > 0)]
    on_device = graph.alive & device_work(graph)
    last_launch = graph.columns["order"][on_device].max(initial=0)
    at_end = graph.columns["order"][timeline.task[held]] > last_launch
    names = graph.columns["name"][timeline.task[held]]
    held = held[~at_end | np.isin(names, names[~at_end])]
    found = list(_within(chain, held, waiting=True))
    task = timeline.task[np.concatenate([entries for entries, _ in found])]
    return Waits(task, np.concatenate([inside for _, inside in found]), len(chain.steps))


def launching(chain: Chain) -> Launching | None:
    """Return what launch calls take within the steps; None if nothing is launched."""
    graph, timeline = chain.graph, chain.timeline
    calls = np.zeros(graph.size, bool)
    launch = graph.columns["launch"][graph.alive & device_work(graph)]
    calls[launch[launch >= 0]] = True
    found = list(_within(chain, np.flatnonzero(calls[timeline.task])))
    inside = np.concatenate([entries for entries, _ in found])
    if not len(inside):
        return None
    queue = waits(chain, Cause.QUEUE)
    waited = queue.per_step(calls[queue.task])
    steps = len(chain.steps)
    total_ns = round(sum(int(ns.sum()) for _, ns in found) / steps) + waited
    tasks = chain.tasks(timeline.task[inside], "launch calls of the steps")
    made = Launching(len(inside) / steps, total_ns, waited, tasks.words, len(tasks))
    return made.having(selected=tasks)


def busy_ns(chain: Chain) -> float | None:
    """Return how long the device runs recorded work, per step; None without a device."""
    timeline = chain.timeline
    on_device = np.flatnonzero(device_work(timeline.graph)[timeline.task])
    untraced = untraced_device_work(timeline.graph, timeline.task[on_device])
    on_device = on_device[~untraced]
    if not len(on_device):
        return None
    busy = 0.0
    for (entries, _), (begin, end, _) in zip(_within(chain, on_device), chain.windows, strict=True):
        busy += float(Coverage(timeline.start_ns[entries], timeline.end_ns[entries]).within(begin, end))
    return busy / len(chain.steps)


def communication(chain: Chain) -> Communication | None:
    """Return what collectives take and what hides them; None if the steps have none."""
    graph, timeline = chain.graph, chain.timeline
    transfers = np.flatnonzero(graph.columns["kind"][timeline.task] == COLLECTIVE)
    exposed = chain.of(PathCause.COMMUNICATION)
    total, tasks, behind = 0.0, [], np.zeros(len(CAUSES))
    for number, (entries, _) in enumerate(_within(chain, transfers)):
        begin, end, _ = chain.windows[number]
        cover = Coverage(timeline.start_ns[entries], timeline.end_ns[entries])
        mine = chain.window == number
        # The critical path may go through a collective of another rank.
        waited = mine & exposed
        first, last = chain.begin_ns[waited], chain.begin_ns[waited] + chain.ns[waited]
        running = Coverage(
            np.append(timeline.start_ns[entries], first), np.append(timeline.end_ns[entries], last)
        )
        total += float(running.within(begin, end))
        tasks += [timeline.task[entries], chain.task[waited]]
        covered = cover.within(chain.begin_ns[mine], chain.begin_ns[mine] + chain.ns[mine])
        behind += np.bincount(chain.cause[mine], weights=covered, minlength=len(CAUSES))
    found = chain.tasks(np.concatenate([transfers[:0], *tasks]), "collectives of the steps")
    if not len(found):
        return None
    steps = len(chain.steps)
    behind[PathCause.COMMUNICATION.code] = 0
    order = [code for code in np.argsort(-behind, kind="stable").tolist() if behind[code] > 0]
    total_ns, exposed_ns = round(total / steps), chain.per_step(exposed)
    meanwhile = tuple(Behind(CAUSES[code], round(behind[code] / steps)) for code in order)
    hidden_ns = max(total_ns - exposed_ns, 0)
    answer = Communication(total_ns, exposed_ns, hidden_ns, meanwhile, found.words, len(found))
    return answer.having(selected=found)


def _within(
    chain: Chain, entries: np.ndarray, *, waiting: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each step, its rank's entries that run (or stand waiting) in it, and for how long."""
    timeline = chain.timeline
    lanes = timeline.graph.lanes
    ranks = np.array([-1 if lane.background else lane.rank for lane in lanes], np.int64)
    rank = ranks[timeline.graph.columns["lane"][timeline.task[entries]]]
    start = timeline.start_ns[entries]
    begin = start - timeline.waits_of(entries) if waiting else start
    end = start if waiting else timeline.end_ns[entries]
    for opens, closes, own in chain.windows.tolist():
        inside = np.minimum(end, closes) - np.maximum(begin, opens)
        there = (inside > 0) & (rank == own)
        yield entries[there], inside[there]


def parts_of(timeline: Timeline, copy: int, steps: Collection[int]) -> dict[str, dict[str, int]]:
    """Return where the time of some steps goes: ns a step, by cause, bound, phase and layer.

    Each of these adds up to the mean of the steps. `by_cause` has the keys of `PathCause`, `by_bound` those
    of `Bound`.

    `beside` is what goes on meanwhile and adds up to nothing: the device's idle time, CPU calls that
    stand blocked, communication that something hides. It holds no zeros, but all that applies.
    """
    if not steps:  # a change has left them no work
        return {"by_cause": {}, "by_bound": {}, "by_phase": {}, "by_layer": {}, "beside": {}}
    chain = trace_back(timeline, copy, list(steps))
    total = np.zeros(len(CAUSES), np.int64)
    np.add.at(total, chain.cause, chain.ns)
    by_cause = per_step(
        {CAUSES[code]: int(total[code]) for code in np.argsort(-total, kind="stable")}, len(steps)
    )
    busy, calls, transfers = busy_ns(chain), launching(chain), communication(chain)
    beside = {
        IDLE: 0 if busy is None else round(chain.step_ns - busy),
        SYNC_WAIT: waits(chain, Cause.SYNC).per_step(),
        QUEUE_WAIT: 0 if calls is None else calls.queue_wait_ns,
        HIDDEN: 0 if transfers is None else transfers.hidden_ns,
    }
    return {
        "by_cause": {cause.value: ns for cause, ns in by_cause.items()},
        "by_bound": {bound.value: ns for bound, ns in by_bound(by_cause).items()},
        "by_phase": timeline.breakdown(copy, *steps)["by_phase"],
        "by_layer": timeline.by_layer(copy, *steps),
        "beside": {name: ns for name, ns in beside.items() if ns > 0},
    }


def parts_of_replay(replay: Replay) -> dict[str, dict[str, int]]:
    """Return the parts of a step as it replays, the mean over the steps; they are kept with the replay."""
    if replay.parts is None:
        replay.parts = parts_of(replay.timeline, replay.settled.copy, replay.settled.step_times())
    return {key: dict(parts) for key, parts in replay.parts.items()}


def parts_of_change(comparison: Prediction) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the parts of a step before and after a change, the mean over the steps."""
    after = comparison.after
    return parts_of_replay(comparison.replay), parts_of(after.timeline, after.copy, after.step_times())


def parts_json(parts: Parts) -> dict[str, Mapping[str, int]]:
    """Return the parts of a step as `--json` prints them."""
    return {
        "ns_by_cause": parts["by_cause"],
        "ns_by_bound": parts["by_bound"],
        **{key: parts[key] for key in ("by_phase", "by_layer")},
    }
