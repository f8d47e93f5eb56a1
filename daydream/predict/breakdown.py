"""Where a step's time goes: its critical path by cause, phase and layer, and what runs beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import asdict
from numpy import ndarray

from daydream.arrays import distinct_rows, places, unique
from daydream.costs.kernels import LATENCY_SHARE, bound, floor_ns
from daydream.costs.operators import family
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
    sums,
    untraced_device_work,
)
from daydream.simulate.timeline import Timeline
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from typing_extensions import Self

    from daydream.simulate.steady_state import SteadyState

OF_KERNELS = {
    "compute": PathCause.COMPUTE,
    "memory": PathCause.MEMORY,
    "latency": PathCause.SMALL,
    "unknown": PathCause.KERNELS,
}
NAMED_BY = ("name", "op", "kind")
MOST_PARTS = 5
Parts = Mapping[str, Mapping[str, int]]


class OfTasks(Record, kw_only=True):
    """What is told of some tasks.

    Attributes:
        selection: the tasks in words.
        tasks: how many they are, in all steps.
    """

    selection: str = ""
    tasks: int = 0

    selected = Live[Selection]()

    def of(self, tasks: Selection) -> Self:
        """Return the record with the tasks that it is about."""
        self.selection = tasks.words
        self.tasks = len(tasks)
        return self.having(selected=tasks)


class Part(Record):
    """What a share is made of: an operator, or kernels of one family; its time per step."""

    name: str
    ns: int


class Share(OfTasks):
    """One cause: its time on the critical path of a step, the tasks it lies in, and its largest parts.

    Attributes:
        cause: what the time is spent on.
        bound: what the step waits for then: GPU, CPU, copies, communication or other.
        ns: time per step.
        share: that time's part of the step, 0 to 1.
        largest: operators or families of kernels, those first that take longest.
    """

    cause: PathCause
    bound: Bound
    ns: int
    share: float
    largest: tuple[Part, ...] = ()


class Launching(OfTasks):
    """Launch calls of a step.

    Attributes:
        calls_per_step: how many.
        total_ns: time in them per step.
        queue_wait_ns: how much of it is waiting for room in the launch queue.
    """

    calls_per_step: float
    total_ns: int
    queue_wait_ns: int


class Behind(Record):
    """What the critical path does while collectives run, and for how long per step."""

    cause: PathCause
    ns: int


class Communication(OfTasks):
    """Collectives of a step: those of its own rank, and those of others that the step waits for.

    Attributes:
        total_ns: how long at least one runs, per step.
        exposed_ns: how much of that is on the critical path.
        hidden_ns: what runs beside the critical path.
        behind: what the critical path does meanwhile, longest first: why the rest is hidden.
    """

    total_ns: int
    exposed_ns: int
    hidden_ns: int
    behind: tuple[Behind, ...]


class Chain(Path, frozen=True, eq=False):
    """The critical path of some steps: pieces of time, each with its cause."""

    timeline: Timeline
    steps: tuple[int, ...]
    cause: ndarray  # int64, code of a `PathCause`

    @property
    def graph(self) -> Graph:
        """The graph that was simulated."""
        return self.timeline.graph

    @property
    def number(self) -> int:
        """How many steps there are; 1 where a change has left them no work."""
        return len(self.steps) or 1

    @property
    def step_ns(self) -> float:
        """Mean time of the steps."""
        return self.ns.sum() / self.number

    def per_step(self, ns: ndarray) -> int:
        """Return some times of all steps together, per step."""
        return round(ns.sum() / self.number)

    def of(self, *causes: PathCause) -> ndarray:
        """Return a mask of the stretches of these causes."""
        return np.isin(self.cause, [each.code for each in causes])

    def tasks(self, ids: ndarray, words: str) -> Selection:
        """Return some tasks, in which they may be repeated, as a selection."""
        return Selection(self.graph, ids[:0]).of(unique(ids), words)

    @property
    def shift_ns(self) -> ndarray:
        """By how much the times of each window move if one window follows the other, from 0 on."""
        begin, end, _ = self.windows.T
        return np.cumsum(end - begin) - end

    def within(self, entries: ndarray, *, waiting: bool = False) -> ndarray:
        """Return what of some entries runs (or stands waiting) in the windows of its rank.

        Returns:
            entry, begin and end, in ns as if one window followed the other: int64, shape (3, n).
        """
        timeline = self.timeline
        ranks = np.array(
            [-1 if lane.background else lane.rank for lane in self.graph.lanes], np.int64
        )
        rank = ranks[timeline.plan.lane[entries]]
        begin = timeline.start_ns[entries]
        end = timeline.end_ns[entries]
        if waiting:
            begin, end = begin - timeline.waits_of(entries), begin
        found = [np.empty((3, 0), np.int64)]
        for (opens, closes, own), shift in zip(
            self.windows.tolist(), self.shift_ns.tolist(), strict=True
        ):
            inside = np.stack(
                [entries, np.maximum(begin, opens) + shift, np.minimum(end, closes) + shift]
            )
            found.append(inside[:, (inside[1] < inside[2]) & (rank == own)])
        return np.concatenate(found, axis=1)

    def shares(self) -> list[Share]:
        """Return the causes of the path, those first that take longest; together they are the step."""
        found = []
        for code in unique(self.cause).tolist():
            cause = CAUSES[code]
            mask = self.cause == code
            task = self.task[mask]
            ns = self.per_step(self.ns[mask])
            _, parts = labels(self.graph, task, self.ns[mask])
            largest = tuple(
                Part(name, round(each / self.number)) for name, each in parts[:MOST_PARTS]
            )
            share = Share(cause, cause.bound, ns, ns / max(self.step_ns, 1), largest)
            found.append(share.of(self.tasks(task, f"{cause.label} on the critical path")))
        return sorted(found, key=lambda share: (-share.ns, share.cause))

    def waits(self, cause: Cause) -> tuple[ndarray, ndarray, ndarray]:
        """Return the CPU calls that stand blocked for a cause within the steps: entry, task and ns of each.

        The profiler's own wait, behind all launches of the window and like no wait before, is left out.
        """
        timeline = self.timeline
        graph = self.graph
        plan = timeline.plan
        start = timeline.start_ns
        edges = np.flatnonzero(plan.edge_cause == cause)
        src = plan.edge_src[edges]
        dst = plan.edge_dst[edges]
        held = unique(dst[start[src] + plan.edge_delay_ns[edges] == start[dst]])
        held = held[(graph.kind[timeline.task[held]] == CPU) & (timeline.waits_of(held) > 0)]
        task = timeline.task[held]
        name = graph.name[task]
        at_end = graph.order[task] > graph.order[graph.alive & device_work(graph)].max(initial=0)
        held = held[
            ~at_end | np.isin(name, name[~at_end], kind="table")
        ]  # sorting would load numpy.ma
        entry, begin, end = self.within(held, waiting=True)
        return entry, timeline.task[entry], end - begin

    def waits_ns(self, cause: Cause) -> int:
        """Return how long CPU calls stand blocked for a cause, per step."""
        return self.per_step(self.waits(cause)[-1])

    def launching(self) -> Launching | None:
        """Return what launch calls take within the steps; None if nothing is launched."""
        graph = self.graph
        task = self.timeline.task
        calls = graph.launch[graph.alive & device_work(graph)]
        entry, begin, end = self.within(np.flatnonzero(np.isin(task, calls, kind="table")))
        if not len(entry):
            return None
        waited_ns = self.waits_ns(Cause.QUEUE)
        found = Launching(
            len(entry) / self.number, self.per_step(end - begin) + waited_ns, waited_ns
        )
        return found.of(self.tasks(task[entry], "launch calls of the steps"))

    def busy_ns(self) -> float | None:
        """Return how long the device runs recorded work, per step; None without a device."""
        graph = self.graph
        task = self.timeline.task
        on_device = np.flatnonzero(device_work(graph)[task])
        on_device = on_device[~untraced_device_work(graph, task[on_device])]
        if not len(on_device):
            return None
        _, begin, end = self.within(on_device)
        return Coverage(begin, end).before_ns[-1] / self.number

    def communication(self) -> Communication | None:
        """Return what collectives take and what hides them; None if the steps have none."""
        task = self.timeline.task
        exposed = self.of(PathCause.COMMUNICATION)
        entry, start, stop = self.within(np.flatnonzero(self.graph.kind[task] == COLLECTIVE))
        # The critical path may go through a collective of another rank.
        found = self.tasks(np.append(task[entry], self.task[exposed]), "collectives of the steps")
        if not len(found):
            return None
        begins = self.begin_ns + self.shift_ns[self.window]
        ends = begins + self.ns
        running = Coverage(np.append(start, begins[exposed]), np.append(stop, ends[exposed]))
        behind = Counter(sums(CAUSES, self.cause, Coverage(start, stop).within(begins, ends)))
        del behind[PathCause.COMMUNICATION]
        total_ns = self.per_step(running.before_ns[-1])
        exposed_ns = self.per_step(self.ns[exposed])
        meanwhile = tuple(
            Behind(cause, round(ns / self.number)) for cause, ns in behind.most_common() if ns > 0
        )
        return Communication(total_ns, exposed_ns, max(total_ns - exposed_ns, 0), meanwhile).of(
            found
        )


def trace_back(state: SteadyState, of: Iterable[int] | None = None) -> Chain:
    """Return the critical path of the steps of a steady state, or of some steps of the same pass."""
    steps = tuple(state.step_times() if of is None else of)
    graph = state.timeline.graph
    path = state.timeline.path(state.copy, steps)
    cause = codes_of(graph, path.task, path.edge)
    # Work of kernels that were traced; memory sets are none, and their bound is not asked.
    chosen = (cause == PathCause.KERNELS.code) & (graph.kind[path.task] == KERNEL)
    tasks, place = places(path.task[chosen])
    if len(tasks):
        kernels = Selection(graph, tasks)
        try:
            kind = bound(graph, kernels).kind
        except (
            NotApplicableError
        ):  # without known peaks only the small ones are told from the others
            small = whole_duration_ns(kernels) < LATENCY_SHARE * floor_ns(graph)
            kind = np.where(small, "latency", "unknown")
        cause[chosen] = np.array([OF_KERNELS[each].code for each in kind.tolist()])[place]
    return Chain(**asdict(path), timeline=state.timeline, steps=steps, cause=cause)


def labels(
    graph: Graph, tasks: ndarray, ns: ndarray
) -> tuple[ndarray, Sequence[tuple[str, float]]]:
    """Return what each task is called in a sentence: its place among the names, and the names.

    That is its operator on the CPU, the family of a kernel, the name of all else. The names come with the
    sum of their tasks' times, the largest first.
    """
    recorded = graph.row[tasks] >= 0
    first, place = distinct_rows([*(graph.columns[name][tasks] for name in NAMED_BY), recorded])
    columns = (graph.column(name, tasks[first]) for name in NAMED_BY)
    names = []
    total = Counter[str]()
    for name, op, kind, known, time in zip(
        *columns, recorded[first], np.bincount(place, ns), strict=True
    ):
        text = name or kind
        if kind == "cpu":
            text = op or name or "CPU work"
        elif known and kind in {"kernel", "collective"}:
            text = family(text)
        names.append(text)
        total[text] += time
    order = {name: number for number, (name, _) in enumerate(total.most_common())}
    return np.array([order[name] for name in names])[place], total.most_common()


def parts_of(state: SteadyState, of: Iterable[int] | None = None) -> dict[str, dict[str, int]]:
    """Return where the time of its steps goes, or of some: ns a step, by cause, bound, phase and layer.

    Each of these adds up to the mean of the steps. `by_cause` has the keys of `PathCause`, `by_bound` those
    of `Bound`.

    What has no phase or layer is `unknown`; layers come longest first.

    `beside` is what goes on meanwhile and adds up to nothing: the device's idle time, CPU calls that
    stand blocked, communication that something hides. It holds no zeros, but all that applies.
    """
    chain = trace_back(state, of)
    graph = chain.graph
    number = len(chain.steps)
    task = chain.timeline.task[chain.entry]  # a gap is of the task behind it here
    by_cause = per_step(dict(Counter(sums(CAUSES, chain.cause, chain.ns)).most_common()), number)
    layers = ["unknown", *graph.texts["layer"]]
    by_layer = Counter(sums(layers, graph.layer[task] + 1, chain.ns))
    busy = chain.busy_ns()
    transfers = chain.communication()
    beside = {
        "device idle": 0 if busy is None else round(chain.step_ns - busy),
        "CPU waits for the device": chain.waits_ns(Cause.SYNC),
        "CPU waits in launch queue": chain.waits_ns(Cause.QUEUE),
        "hidden communication": 0 if transfers is None else transfers.hidden_ns,
    }
    return {
        "by_cause": {cause.value: ns for cause, ns in by_cause.items()},
        "by_bound": {bound.value: ns for bound, ns in by_bound(by_cause).items()},
        "by_phase": per_step(sums(("unknown", *PHASES), graph.phase[task] + 1, chain.ns), number),
        "by_layer": per_step(dict(by_layer.most_common()), number),
        "beside": {name: ns for name, ns in beside.items() if ns > 0},
    }


def parts_json(parts: Parts) -> dict[str, Mapping[str, int]]:
    """Return the parts of a step as `--json` prints them."""
    return {
        "ns_by_cause": parts["by_cause"],
        "ns_by_bound": parts["by_bound"],
        "by_phase": parts["by_phase"],
        "by_layer": parts["by_layer"],
    }
