"""What a page shows of a step beyond its view: timelines, layers, the critical path, every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.memory.prediction import changed, worst_device
from daydream.memory.report import at_peak
from daydream.memory.views import HeldOverTime, held_over_time
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
)
from daydream.report.format import printable, time_text
from daydream.report.html import roofline
from daydream.report.html.path import StepPath, Total, step_path
from daydream.report.html.render import data, element, joined
from daydream.report.html.spans import measured_window
from daydream.report.html.timelines import timelines
from daydream.report.views.breakdown import (
    COLORS,
    MEANWHILE,
    SIDES,
    STEP,
    columns,
    meanwhile,
    moved_bound,
    sections,
    times_row,
)
from daydream.report.views.memory import holders_table, memory_change, memory_headline, verdict
from daydream.report.views.ranking import changes, reasons_table, without_gain
from daydream.report.views.step import edits_text, graph_facts, likely_text
from daydream.simulate.critical_path import PathCause

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.prediction import Prediction
    from daydream.predict.rank import Ranking
    from daydream.predict.replay import Replay
    from daydream.report.html.spans import Window
    from daydream.trace.trace import Trace

MOST_ROWS = 1_000  # of a table; a trace may hold tens of thousands of names
MOST_POINTS = 4_000  # of one line: more than pixels, and each keeps the highest value it stands for
UNKNOWN = "(unknown)"
WITH_MOUSE = "Drag to zoom in, double-click to see all, Shift-drag to move; Ctrl-wheel zooms, arrow keys do both."
WITH_FINGERS = "Two fingers zoom, one moves sideways; the buttons do so too."
ON_PATH = "A cause or a phase takes what it has of the critical path: work that something hides is not counted."
PATH = (
    "The chain of causes that decides when the step completes: it adds up to the step. Only what is on it "
    "can make the step faster."
)
LAYERS = "Time on the critical path adds up to the step; device and CPU work is all there is, hidden or not."
CHANGED_LAYERS = " The largest changes come first. Work and tasks are those after the change."
MEMORY = "Allocated memory as the program asks for it. The chart moves with the timelines."
RANKED = (
    "Every optimization that applies, with its options at their defaults, each simulated alone."
)


def step_sections(
    replay: Replay,
    found: Prediction | None,
    ranking: Ranking | None = None,
    memory: MemoryReport | None = None,
) -> list[Block]:
    """Return the sections of a replay's page, or of a what-if's with its replay."""
    before, after = _paths(replay, found)
    which = _which(before, after)
    blocks: list[Block] = [
        Title("Assumptions and notes", "notes"), *_assumptions(replay, found),
        Title("Timeline", "timeline"),
        Drawing(
            joined(
                element("p", WITH_MOUSE, class_="help with-mouse"),
                element("p", WITH_FINGERS, class_="help with-fingers"),
                element("div", id="timelines"),
                data("timeline-data", timelines(replay, found)),
            )
        ),
    ]  # fmt: skip
    if memory is not None:
        blocks += _memory(replay, memory, found)
    blocks += [
        Title("Where a step's time goes", "breakdown", f"The mean of the steps. {ON_PATH}"),
        *_parts(replay, found),
    ]
    if drawn := roofline.picture(replay.graph):
        blocks += [Title("Roofline", "roofline", roofline.HELP), Drawing(drawn)]
    if ranking is not None:
        blocks += _ranked(ranking)
    one, layers = _layers(before, after)
    blocks += [
        Title(f"By {one}", "by-layer", f"{which} {LAYERS}{CHANGED_LAYERS if after else ''}"), layers,
        Title("Critical path", "path", f"{which} {PATH}"), _by_task(before, after),
    ]  # fmt: skip
    for title, path in (("In order, after", after), ("In order, before", before)):
        if path is not None:
            blocks += [Title(title), _in_order(path)]
    chart = joined(element("div", id="steps-chart"), data("steps-data", _step_times(replay, found)))
    return [
        *blocks, Title("How well the replay fits", "replay"), Drawing(chart), _steps(replay, found),
        Facts(graph_facts(replay, replay.to_json())),
    ]  # fmt: skip


def _assumptions(replay: Replay, found: Prediction | None) -> list[Block]:
    """Return what was changed, what the range is made of, and every note: those on the change come first."""
    if found is None:
        return [Notes(replay.notes, "")] if replay.notes else [Text("none")]
    options = ", ".join(
        f"{k.replace('_', '-')} {v}" for k, v in found.options.items() if v is not None
    )
    facts = [("options", options), ("changed", edits_text(found)), ("range", likely_text(found))]
    own = [note for note in found.notes if note not in replay.notes]
    return [Facts([each for each in facts if each[1]]), Notes([*own, *found.notes], "")]


def _paths(replay: Replay, found: Prediction | None) -> tuple[StepPath, StepPath | None]:
    """Return the critical path of the step that the breakdowns are about, before and after."""
    if found is None:
        return step_path(replay.timeline, replay.settled.copy, replay.settled.typical()[0]), None
    before, after = found.shown_steps()
    return (
        step_path(replay.timeline, replay.settled.copy, before),
        step_path(found.timeline, found.after.copy, after),
    )


def _which(before: StepPath, after: StepPath | None) -> str:
    """Return which step the layers and the critical path are about."""
    said = f"{before.name}, {time_text(before.step_ns)}"
    if after is None:
        return f"{said}: the median step of the replay."
    other = "" if after.name == before.name else f" ({after.name})"
    return (
        f"{said} before the change and {time_text(after.step_ns)} after it{other}: "
        "the step nearest to the headline, which is about all of them."
    )


def _parts(replay: Replay, found: Prediction | None) -> list[Block]:
    """Return where a step's time goes by cause and by phase, and what goes on meanwhile."""
    sides = [replay.breakdown()] if found is None else list(found.breakdowns())
    total = [sum(side["by_cause"].values()) for side in sides]
    beside = meanwhile(sides, max(total))
    titled = [(title, [*rows, (STEP, total)]) for title, rows in sections(sides, max(total))[:2]]
    tables = []
    for title, rows in [
        *titled,
        *([(MEANWHILE, beside)] if beside else []),
    ]:  # layers have their own table
        heads = columns(title, SIDES if found else ("replayed",))
        cells = [times_row(name, ns) for name, ns in rows]
        if found is None:
            heads.append(Column("share", Kind.PERCENT))
            shares = [ns[0] / max(total[0], 1) for _, ns in rows]
            cells = [
                row._replace(cells=(*row.cells, share))
                for row, share in zip(cells, shares, strict=True)
            ]
        tables.append(Table(heads, cells, max(total)))
    used = {row.color for row in tables[0].rows}
    bounds = dict.fromkeys(cause.bound for cause in PathCause if COLORS[cause.label] in used)
    key = (
        element(
            "span",
            element("i", "", style=f"background: var({_variable(bound.value)})"),
            bound.awaited,
        )
        for bound in bounds
    )
    legend = element("div", element("span", "the step waits for"), *key, class_="legend")
    moved = moved_bound(*sides) if found is not None else ""
    return [*([Text(moved)] if moved else []), Beside(tables), Drawing(legend)]


def _variable(bound: str) -> str:
    return f"--bound-{bound.lower()}"


def bound_colors() -> str:
    """Return the colors of what a step waits for as the page's style defines them, on light and on dark."""
    bounds = dict.fromkeys(cause.bound for cause in PathCause)
    light, dark = (
        " ".join(f"{_variable(bound.value)}: {getattr(bound, which)};" for bound in bounds)
        for which in ("light", "dark")
    )
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _ranked(ranking: Ranking) -> list[Block]:
    beside = [(name, ", ".join(names)) for name, names in without_gain(ranking)]
    table = changes(ranking, verbose=True, name="ranked")
    tables = [each for each in table if isinstance(each, Table)]
    step = f"the {ranking.replay.basis} step, {time_text(ranking.replayed_ns)} now"
    blocks: list[Block] = [
        Title("Ranked what-ifs", "whatifs", f"{RANKED} All are of {step}."),
        *tables,
    ]
    blocks += [] if tables else [Text("None would make the step shorter.")]
    blocks += [each for each in table if isinstance(each, Text) and each.head.startswith("cannot")]
    return [*blocks, Facts(beside), *reasons_table(ranking)]


def _layers(before: StepPath, after: StepPath | None) -> tuple[str, Table]:
    """Return a title and the table of a step's layers, or of its operators where no layers are known."""
    old = before.totals("layer")
    column, one = ("layer", "layer") if set(old) - {None} else ("op", "operator")
    old = before.totals(column)
    new = after.totals(column) if after is not None else {}
    times = {name: (_of(old, name).path_ns, _of(new, name).path_ns) for name in {**old, **new}}
    rows = []
    for name in _largest_first(times, changed=after is not None):
        now = _of(new if after is not None else old, name)
        path = times_row(name or UNKNOWN, times[name][: 2 if after is not None else 1]).cells
        rows.append(Row((*path, now.device_ns, now.cpu_ns, now.tasks)))
    heads = columns(one, SIDES if after is not None else ("on the path",))
    heads += [
        Column("device work", Kind.TIME),
        Column("CPU work", Kind.TIME),
        Column("tasks", Kind.COUNT),
    ]
    return one, Table(heads, rows, _whole(before, after), name="layers")


def _by_task(before: StepPath, after: StepPath | None) -> Table:
    """Return the tasks on the critical path, by name."""
    old, new = before.by_task(), after.by_task() if after is not None else {}
    none = (0, 0)
    times = {name: (old.get(name, none)[1], new.get(name, none)[1]) for name in {**old, **new}}
    rows = []
    for name in _largest_first(times, changed=after is not None):
        number, _ = (new if after is not None else old).get(name, none)
        rows.append(
            Row((*times_row(name, times[name][: 2 if after is not None else 1]).cells, number))
        )
    heads = [
        *columns("task", SIDES if after is not None else ("time",)),
        Column("times", Kind.COUNT),
    ]
    return Table(heads, rows, _whole(before, after), name="tasks")


def _largest_first(times: Mapping[Any, tuple[int, int]], *, changed: bool) -> list[Any]:
    """Return names by the size of the change, if there is one, and then by time."""

    def place(name: Any) -> tuple[int, int]:
        before_ns, after_ns = times[name]
        return -abs(after_ns - before_ns) if changed else 0, -max(before_ns, after_ns)

    return sorted(times, key=place)[:MOST_ROWS]


def _in_order(path: StepPath) -> Table:
    """Return the critical path from the begin of the step to its end."""
    heads = [
        Column("lane"), Column("phase"), Column("at", Kind.TIME), Column("most of it"),
        Column("tasks", Kind.COUNT),
        Column("work", Kind.TIME, bar=True), Column("delay", Kind.TIME), Column("most of the delay"),
    ]  # fmt: skip
    rows = [
        Row(
            (
                part.lane,
                part.phase,
                part.begin_ns,
                part.task,
                part.tasks,
                part.work_ns,
                part.delay_ns,
                part.delay,
            )
        )
        for part in path.stretches()
    ]
    return Table(heads, rows, path.step_ns)


def _steps(replay: Replay, found: Prediction | None) -> Table:
    """Return every covered step: measured, replayed and, where it is told, predicted."""
    several = len({step.rank for step in replay.steps}) > 1
    after = found.after if found is not None else None
    rows = []
    for number, step in zip(replay.recording.settled.step_times(0), replay.steps, strict=True):
        name = f"rank {step.rank} {step.name}" if several else step.name
        then = None if after is None else after.times.get((after.copy, number))
        rows.append(Row((name, step.measured_ns, step.replayed_ns, step.error, then)))
    names = ("measured", "replayed")
    heads = [
        Column("step"), *(Column(name, Kind.TIME, bar=True) for name in names), Column("error", Kind.ERROR),
        Column("predicted", Kind.TIME, bar=True),
    ]  # fmt: skip
    return Table(heads, rows, max(step.measured_ns for step in replay.steps), name="steps")


def _step_times(replay: Replay, found: Prediction | None) -> dict[str, Any]:
    """Return the covered steps in ms for the chart of steps."""
    covered = [number for number, step in enumerate(replay.graph.steps) if step.get("covered")]
    said: dict[str, Any] = {
        "names": [printable(step.name) for step in replay.steps],
        "measured": [step.measured_ns / 1e6 for step in replay.steps],
        "replayed": [step.replayed_ns / 1e6 for step in replay.steps],
    }
    if found is not None:
        times = [found.after.times.get((found.after.copy, step)) for step in covered]
        said["predicted"] = [None if ns is None else ns / 1e6 for ns in times]
    return said


def _whole(before: StepPath, after: StepPath | None) -> int:
    return max(path.step_ns for path in (before, after) if path is not None)


def _of(totals: Mapping[str | None, Total], name: str | None) -> Total:
    return totals.get(name, Total())


# Memory


def _memory(replay: Replay, report: MemoryReport, found: Prediction | None) -> list[Block]:
    """Return the chart, and who holds the peak of each device: as recorded, and after a change."""
    trace = replay.graph.trace
    chart: dict[str, Any] = {"length": 0, "lines": []}
    if trace is not None:
        chart = memory_chart(trace, measured_window(replay.graph, replay.settled.typical()[0]))
    drawn = joined(element("div", id="memory-chart"), data("memory-data", chart))
    blocks: list[Block] = [Title("Memory", "memory", MEMORY), Drawing(drawn)]
    devices = sorted(report.devices, key=lambda each: each.device == "cpu")
    for place, device in enumerate(devices):
        recorded = memory_headline(device)
        blocks.append(Title(recorded if found is None else f"As recorded: {recorded}"))
        blocks.append(holders_table(device, MOST_ROWS, lines=True, name=f"holders-{place}"))
    if found is None:
        return blocks
    answer, title = found.memory_answer, f"After {found.optimization}: "
    if answer.unsaid is not None:
        return [*blocks, Title(f"{title}{answer.unsaid}")]
    if answer.memory is None or trace is None or found.memory_changes is None:
        return blocks
    blocks.append(Title(f"{title}peak {memory_change(answer.memory)}{verdict(answer.memory)}"))
    held = changed(held_now(trace, replay.graph), found.memory_changes())
    then = at_peak(held, *worst_device(held))
    return [*blocks, holders_table(then, MOST_ROWS, lines=True, name=f"holders-{len(devices)}")]


def memory_chart(trace: Trace, window: Window) -> dict[str, Any]:
    """Return the lines of the chart: times in ms from the window's begin, amounts in MiB."""
    lines = []
    for one in held_over_time(trace):
        begin = int(np.searchsorted(one.time_ns, window.begin_ns, side="right")) - 1
        end = int(np.searchsorted(one.time_ns, window.end_ns, side="right"))
        time = (
            np.clip(one.time_ns[max(begin, 0) : end], window.begin_ns, window.end_ns)
            - window.begin_ns
        )
        time, held = _thinned(time, one.held_bytes[max(begin, 0) : end], window.length_ns)
        lines.append({
            "name": _name(one), "ms": (time / 1e6).tolist(), "mib": np.round(held / 2**20, 3).tolist()
        })  # fmt: skip
    return {"length": window.length_ns / 1e6, "lines": lines}


def _name(one: HeldOverTime) -> str:
    return f"rank {one.rank} {one.device}" if one.rank else one.device


def _thinned(time: np.ndarray, held: np.ndarray, length_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points: of each stretch of time the highest, and the last."""
    if len(time) <= MOST_POINTS:
        return time, held
    stretch = time * (MOST_POINTS // 2) // max(length_ns, 1)
    last = np.append(stretch[1:] != stretch[:-1], True)
    first = np.flatnonzero(np.append(True, last[:-1]))
    highest = np.zeros(len(time), bool)
    order = np.lexsort((held, stretch))  # of each stretch the highest comes last
    highest[order[np.append(first[1:], len(time)) - 1]] = True
    keep = last | highest
    return time[keep], held[keep]
