"""What a page shows of a step beyond its view: timelines, kernels, layers, ranks, the critical path, all steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daydream.arrays import run_starts, unique
from daydream.costs.kernels import bound
from daydream.errors import NotApplicableError
from daydream.graph.plan import Cause
from daydream.graph.select import coded
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU, KERNEL, step_rank
from daydream.memory.prediction import changed, worst_device
from daydream.memory.report import at_peak, held_over_time
from daydream.predict.breakdown import parts_of
from daydream.predict.memory import held_now
from daydream.report.blocks import (
    Beside,
    Block,
    Column,
    Drawing,
    Facts,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    Title,
    printable,
    time_text,
)
from daydream.report.roofline import roofline
from daydream.report.timeline import measured_window, timelines
from daydream.report.views.breakdown import (
    BY_LAYER,
    COLORS,
    SIDES,
    breakdown,
    columns,
    moved_bound,
    times_row,
)
from daydream.report.views.memory import (
    device_name,
    holders_table,
    memory_change,
    memory_headline,
    verdict,
)
from daydream.report.views.ranking import changes, reasons_table, without_gain
from daydream.report.views.step import (
    edits_text,
    graph_facts,
    likely_text,
    options_text,
    replayed_figure,
    steps_table,
)
from daydream.simulate.critical_path import PathCause
from daydream.simulate.timeline import Timeline
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.prediction import Prediction
    from daydream.predict.rank import Ranking
    from daydream.predict.replay import Replay

MOST_ROWS = 1_000  # of a table; a trace may hold tens of thousands of names
MOST_POINTS = 4_000  # of one line: more than pixels, and each keeps the highest value it stands for
MOST_RANKS = 8  # side by side
MOST_STRETCHES = 40  # that are shown for themselves; what lies between them is summed up
UNKNOWN = "(unknown)"
ON_PATH = (
    "Mean of the steps. Only time on the critical path counts, the red line in the timeline: hidden work does "
    "not."
)
PATH = (
    "The chain of causes that decides when the step completes. It adds up to the step, and only what is on it "
    "can make the step faster."
)
LAYERS = "Time on the critical path adds up to the step; device and CPU work is all there is, hidden or not."
RANKS = "Mean step of each rank by what it waits for. The others wait for the slowest rank."
MEMORY = "Allocated memory over time. The chart moves with the timelines."
RANKED = "Every optimization that applies, with default options, each simulated alone."


class Total(NamedTuple):
    """What the tasks of a group take in one step, and how many of them are on the critical path."""

    path_ns: int = 0
    device_ns: int = 0
    cpu_ns: int = 0
    tasks: int = 0
    on_path: int = 0

    @property
    def mean_us(self) -> float:
        """The device time divided by the number of tasks, us."""
        return self.device_ns / max(self.tasks, 1) / 1000


class Stretch(NamedTuple):
    """A part of the critical path on one lane and in one phase, or several short ones."""

    lane: str
    phase: str
    begin_ns: int  # since the step's begin
    task: str  # what takes longest in it
    tasks: int
    work_ns: int
    delay_ns: int
    delay: str  # what most of the delay is


class StepPath:
    """The critical path of one step of a timeline; its work and delays add up to the step.

    Attributes:
        task: the graph's tasks on the path, in order.
        work_ns, delay_ns, ns: the work of each, the delay before it, and both; int64, shape (tasks,).
        cause: the `Cause` of each delay.
        name, step_ns: the step's name, and how long it takes.
    """

    def __init__(self, timeline: Timeline, copy: int, step: int) -> None:
        self.timeline = timeline
        self.copy = copy
        self.step = step
        path = timeline.path_to(copy, step)
        self.task = timeline.task[path.task]
        self.cause = path.cause
        self.work_ns = path.task_ns
        self.delay_ns = path.delay_ns
        self.ns: np.ndarray = path.task_ns + path.delay_ns
        self.name = str(timeline.graph.steps[step]["name"])
        self.step_ns = int(self.ns.sum())

    @property
    def inside(self) -> np.ndarray:
        """The timeline's entries of the step, as a mask."""
        timeline = self.timeline
        of_step = timeline.graph.columns["step"][timeline.task] == self.step
        return (timeline.copy == self.copy) & of_step

    def totals(self, column: str) -> dict[str | None, Total]:
        """Return by layer, operator or name what tasks take: on the path, on the device, on the CPU."""
        timeline = self.timeline
        graph = timeline.graph
        ours = self.inside
        task = timeline.task[ours]
        codes, texts = coded(graph, column, task)
        on_path, _ = coded(graph, column, self.task)
        device = graph.columns["kind"][task] != CPU
        time = timeline.plan.duration_ns[ours]
        sums = np.zeros((5, len(texts) + 1), np.int64)  # unknown (-1) is the last
        np.add.at(sums[0], on_path, self.ns)
        np.add.at(sums[1], codes[device], time[device])
        np.add.at(sums[2], codes[~device], time[~device])
        np.add.at(sums[3], codes, 1)
        np.add.at(sums[4], on_path, 1)
        found = np.flatnonzero(sums.any(axis=0)).tolist()
        return {[*texts, None][code]: Total(*sums[:, code].tolist()) for code in found}

    def stretches(self) -> list[Stretch]:
        """Return the path in order, by lane and phase; of many stretches the short ones summed up."""
        if not len(self.task):
            return []
        columns = self.timeline.graph.columns
        lane = columns["lane"][self.task]
        phase = columns["phase"][self.task]
        first = np.flatnonzero(run_starts(lane) | run_starts(phase))
        if len(first) > MOST_STRETCHES:
            long = np.zeros(len(first), bool)
            time = np.add.reduceat(self.ns, first)
            long[np.argsort(-time, kind="stable")[:MOST_STRETCHES]] = True
            first = first[np.append(True, long[1:] | long[:-1])]
        return [self._stretch(b, e) for b, e in pairwise([*first.tolist(), len(self.task)])]

    def _stretch(self, begin: int, end: int) -> Stretch:
        graph = self.timeline.graph
        part = slice(begin, end)
        task = self.task[part]
        delay = self.delay_ns[part]
        lanes = unique(graph.columns["lane"][task])
        phases = unique(graph.columns["phase"][task])
        names, texts = coded(graph, "name", task)
        by_name = np.bincount(names + 1, self.ns[part], len(texts) + 1)
        cause = int(np.bincount(self.cause[part], delay, len(Cause)).argmax())
        why = Cause(cause).label
        if cause == Cause.LANE:
            why = "start-up" if graph.lanes[lanes[0]].on_device else PathCause.UNTRACED.label
        return Stretch(
            graph.lanes[lanes[0]].name if len(lanes) == 1 else f"{len(lanes)} threads and streams",
            ["", *PHASES][phases[0] + 1] if len(phases) == 1 else "several",
            int(self.ns[:begin].sum()),
            ["", *texts][int(by_name.argmax())],
            end - begin,
            int(self.work_ns[part].sum()),
            int(delay.sum()),
            why if delay.any() else "",
        )


Extra = tuple[
    Column, str | Mapping[str | None, str]
]  # a column, and what of a `Total` or of a name it shows


def step_sections(
    replay: Replay,
    found: Prediction | None,
    ranking: Ranking | None = None,
    memory: MemoryReport | None = None,
) -> Iterator[Block]:
    """Return the sections of a replay's page, or of a what-if's with its replay; notes come last."""
    settled = replay.settled
    step, then = (settled.typical()[0], None) if found is None else found.shown_steps()
    before = StepPath(replay.timeline, settled.copy, step)
    sides = [before]
    only = len(replay.steps) == 1
    which = f"{before.name}, {time_text(before.step_ns)}: the {'only' if only else 'median'} step."
    if found is not None and then is not None:
        after = StepPath(found.timeline, found.after.copy, then)
        other = "" if after.name == before.name else f" ({after.name})"
        times = f"{time_text(before.step_ns)} before, {time_text(after.step_ns)} after the change"
        sides = [before, after]
        which = f"{before.name}{other}, {times}."
    held = () if memory is None else _memory(replay, memory, found)
    yield Title("Timeline", "timeline")
    yield Drawing("timelines", timelines(replay, found))
    if found is None:
        yield from held
    yield Title("Where the time goes", "breakdown", ON_PATH)
    yield from _parts(replay, found)
    if ranking is not None:
        yield from _ranked(ranking)
    yield from _kernels(sides, which)
    yield from _layers(sides, which)
    yield from _ranks(replay)
    if found is not None:
        yield from held
    yield from roofline(replay.graph)
    yield Title("Critical path", "path", f"{which} {PATH}")
    on_path = [_chosen(each, "name", "on_path") for each in sides]
    yield _largest("tasks", "task", on_path, "path_ns", [(Kind.COUNT("times"), "on_path")])
    for place, each in enumerate(sides):
        yield Title(f"In order, {SIDES[place]}" if then is not None else "In order")
        heads = [
            Column("thread or stream"),
            Column("phase"),
            Kind.TIME("at"),
            Column("most of it"),
            Kind.COUNT("tasks"),
            Kind.TIME("work", bar=True),
            Kind.TIME("delay"),
            Column("most of the delay"),
        ]
        yield Table(heads, list(map(Row, each.stretches())), each.step_ns)
    yield Title("How well the replay fits", "replay")
    steps = steps_table(replay, replay.steps, found.after if found else None)._replace(name="steps")
    chart: dict[str, Any] = {"names": [printable(step.name) for step in replay.steps]}
    for at, column in enumerate(steps.columns):
        if column.kind is Kind.TIME and (found is not None or column.title != "predicted"):
            values: list[Any] = [row.cells[at] for row in steps.rows]
            chart[column.title] = [None if ns is None else ns / 1e6 for ns in values]
    yield Drawing("steps-chart", chart)
    yield steps
    yield Facts(graph_facts(replay, replay.to_json()))
    yield Title("Assumptions and notes", "notes")
    if found is None:
        yield Notes(replay.notes, "") if replay.notes else Text("none")
        return
    facts = [
        ("options", options_text(found, usual=True)),
        ("changed", edits_text(found)),
        ("range", likely_text(found)),
    ]
    yield Facts([each for each in facts if each[1]])
    own = [note for note in found.notes if note not in replay.notes]
    yield Notes([*own, *found.notes], "")


def _parts(replay: Replay, found: Prediction | None) -> Iterator[Block]:
    """Return where a step's time goes by cause and by phase, and what goes on meanwhile."""
    sides = [replay.breakdown()] if found is None else list(found.breakdowns())
    table = breakdown(*sides, names=SIDES if found else replayed_figure(replay)[:1])
    used = {row.color for row in table.rows}
    bounds = dict.fromkeys(cause.bound for cause in PathCause if COLORS[cause.label] in used)
    if len(sides) > 1 and (moved := moved_bound(*sides)):
        yield Text(moved)
    yield Beside([part for part in table.split() if part.columns[0].title != BY_LAYER])
    yield Drawing("legend", list(bounds))


def _ranked(ranking: Ranking) -> Iterator[Block]:
    shown = list(changes(ranking, verbose=True, name="ranked"))
    tables: list[Block] = [each for each in shown if isinstance(each, Table)]
    step = f"the {ranking.replay.basis} step, {time_text(ranking.replayed_ns)} now"
    yield Title("Ranked what-ifs", "whatifs", f"{RANKED} All are of {step}.")
    yield from tables or [Text("None would make the step shorter.")]
    for each in shown:
        if isinstance(each, Text) and each.head.startswith("cannot"):
            yield each
    yield Facts([(name, ", ".join(names)) for name, names in without_gain(ranking)])
    yield from reasons_table(ranking)


# Kernels, layers, ranks


def _chosen(path: StepPath, column: str, needs: str) -> dict[str | None, Total]:
    """Return the totals of a step by name, of which something is not zero."""
    return {name: each for name, each in path.totals(column).items() if getattr(each, needs)}


def _largest(
    name: str,
    title: str,
    sides: Sequence[Mapping[str | None, Total]],
    of: str,
    extra: Sequence[Extra],
) -> Table:
    """Return what each name takes of a step, the largest change first; `extra` is of the last side."""
    names = dict.fromkeys(each for side in sides for each in side)
    times = {each: [getattr(side.get(each, Total()), of) for side in sides] for each in names}
    largest = sorted(times, key=lambda n: (-abs(times[n][-1] - times[n][0]), -max(times[n])))
    whole = max(sum(ns[place] for ns in times.values()) for place in range(len(sides)))
    rows = []
    for each in largest[:MOST_ROWS]:
        now = sides[-1].get(each, Total())
        cells = times_row(each or UNKNOWN, times[each], whole).cells
        more = (
            getattr(now, part) if isinstance(part, str) else part.get(each, "") for _, part in extra
        )
        rows.append(Row((*cells, *more)))
    heads = columns(title, SIDES if len(sides) > 1 else ("time",))
    return Table([*heads, *(column for column, _ in extra)], rows, whole, name=name)


def _kernels(sides: Sequence[StepPath], which: str) -> Iterator[Block]:
    """Return the device work of a step by name, with what bounds most of each kernel's time."""
    totals = [_chosen(each, "name", "device_ns") for each in sides]
    if not totals[0]:
        return
    extra: list[Extra] = [
        (Kind.COUNT("count"), "tasks"),
        (Kind.COUNT("mean, us"), "mean_us"),
        (Column("bound by"), _bounds(sides[-1])),
    ]
    text = f"{which} Device work, on the critical path or hidden."
    yield Title("Kernels", "kernel-table", text)
    yield _largest("kernels", "kernel", totals, "device_ns", extra)


def _bounds(path: StepPath) -> dict[str | None, str]:
    graph = path.timeline.graph
    task = path.timeline.task[path.inside]
    kernels = Selection(graph, unique(task[graph.columns["kind"][task] == KERNEL]))
    try:
        kinds = bound(graph, kernels).kind.tolist()
    except NotApplicableError:
        return {}
    total: Counter[tuple[str | None, str]] = Counter()
    for name, kind, ns in zip(kernels.name, kinds, kernels.duration_ns.tolist(), strict=True):
        total[name, kind] += ns
    return {name: kind for (name, kind), _ in reversed(total.most_common())}


def _layers(sides: Sequence[StepPath], which: str) -> Iterator[Block]:
    """Return a step's layers, nested and as a table; its operators where no layers are known."""
    known = set(sides[0].totals("layer")) - {None}
    one, column = ("layer", "layer") if known else ("operator", "op")
    totals = [each.totals(column) for each in sides]
    extra: list[Extra] = [
        (Kind.TIME("device work"), "device_ns"),
        (Kind.TIME("CPU work"), "cpu_ns"),
        (Kind.COUNT("tasks"), "tasks"),
    ]
    title = Title(f"By {one}", "by-layer", f"{which} {LAYERS}")
    of = "device_ns" if any(each.device_ns for each in totals[-1].values()) else "cpu_ns"
    work = {name or UNKNOWN: getattr(each, of) for name, each in totals[-1].items()}
    drawn = [Drawing("icicle", work)] if known else []
    yield title
    yield from drawn
    yield _largest("layers", one, totals, "path_ns", extra)


def _ranks(replay: Replay) -> Iterator[Block]:
    """Return where the time of each rank goes, side by side; nothing of one rank."""
    of_rank: dict[int, list[int]] = {}
    for step in replay.settled.step_times():
        of_rank.setdefault(step_rank(replay.graph.steps[step]), []).append(step)
    if len(of_rank) == 1:
        return
    shown = dict(sorted(of_rank.items())[:MOST_RANKS])
    sides = [parts_of(replay.settled, steps) for steps in shown.values()]
    names = [f"rank {rank}" for rank in shown]
    more = f" The first {MOST_RANKS} of {len(of_rank)} ranks." if of_rank.keys() - shown else ""
    table = breakdown(*sides, names=names, change="", only_causes=True)
    yield Title("Ranks side by side", "ranks", RANKS + more)
    yield table


# Memory


def _memory(replay: Replay, report: MemoryReport, found: Prediction | None) -> Iterator[Block]:
    """Return the chart, and who holds the peak of each device: as recorded, and after a change."""
    trace = replay.graph.trace
    chart: dict[str, Any] = {"length": 0, "lines": []}  # ms from the window's begin, MiB
    if trace is not None:
        window = measured_window(replay.graph, replay.settled.typical()[0])
        chart["length"] = window.length_ns / 1e6
        for one in held_over_time(trace):
            begin = int(np.searchsorted(one.time_ns, window.begin_ns, side="right")) - 1
            end = int(np.searchsorted(one.time_ns, window.end_ns, side="right"))
            part = slice(max(begin, 0), end)
            time = np.clip(one.time_ns[part], window.begin_ns, window.end_ns) - window.begin_ns
            time, amounts = _thinned(time, one.held_bytes[part], window.length_ns)
            mib = np.round(amounts / 2**20, 3).tolist()
            line = {"name": device_name(one), "ms": (time / 1e6).tolist(), "mib": mib}
            chart["lines"].append(line)
    yield Title("Memory", "memory", MEMORY)
    yield Drawing("memory-chart", chart)
    devices = sorted(report.devices, key=lambda each: each.device == "cpu")
    for place, device in enumerate(devices):
        yield Title(f"{'' if found is None else 'As recorded: '}{memory_headline(device)}")
        yield holders_table(
            device,
            MOST_ROWS,
            lines=True,
            name=f"holders-{place}",
        )
    if found is None:
        return
    answer = found.memory_answer
    title = f"After {found.optimization}: "
    if answer.unsaid is not None:
        yield Title(f"{title}{answer.unsaid}")
        return
    if answer.memory is None or trace is None:
        return
    yield Title(f"{title}peak {memory_change(answer.memory)}{verdict(answer.memory)}")
    held = changed(held_now(trace, replay.graph), found.memory_changes())
    then = at_peak(held, *worst_device(held))
    yield holders_table(
        then,
        MOST_ROWS,
        lines=True,
        name=f"holders-{len(devices)}",
    )


def _thinned(time: np.ndarray, held: np.ndarray, length_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points: of each stretch of time the highest, and the last."""
    if len(time) <= MOST_POINTS:
        return time, held
    stretch = time * (MOST_POINTS // 2) // max(length_ns, 1)
    last = np.append(stretch[1:] != stretch[:-1], True)
    highest = np.zeros(len(time), bool)
    order = np.lexsort((held, stretch))  # of each stretch the highest comes last
    highest[order[last]] = True
    keep = last | highest
    return time[keep], held[keep]
