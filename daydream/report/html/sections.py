"""Sections of the HTML report: headline, breakdowns, layers, critical path, replay, assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from daydream.predict.basis import RECORDED, UNPROFILED
from daydream.report.html.bounds import legend, variable_of
from daydream.report.html.elements import Cell, Html, Number, element, facts, joined, sortable, table
from daydream.report.html.memory import memory_card
from daydream.report.html.path import StepPath, Total
from daydream.report.text.answer import recorded_step
from daydream.report.text.breakdown import MEANWHILE, meanwhile
from daydream.report.text.breakdown import sections as step_sections
from daydream.report.text.numbers import (
    count,
    error_text,
    percent,
    range_text,
    scale,
    speedup_of,
    time_or_unknown,
    time_text,
)
from daydream.report.text.results import edits_text, graph_facts, likely_text

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay

MOST_NOTES = 4  # that stand there before the rest is asked for
MOST_ROWS = 1_000  # of a table; a trace may hold tens of thousands of names
UNKNOWN = "(unknown)"


class Figures:
    """Times of one report as cells: one unit and one number of digits for all, of a step of this length."""

    def __init__(self, step_ns: int) -> None:
        self.step_ns = max(step_ns, 1)
        self.unit, self.size, self.digits = scale(step_ns)

    def time(self, ns: int, *, bar: bool = False, color: str = "") -> Number:
        """Return a time, as a bar of the step if asked for, in a colour of the page's style."""
        share = ns / self.step_ns if bar else None
        return Number(f"{ns / self.size:,.{self.digits}f}", ns, share, color=color)

    def change(self, ns: int) -> Number:
        """Return a difference: what is saved, and what is added."""
        text = f"{ns / self.size:+,.{self.digits}f}"
        if not float(text.replace(",", "")):
            return Number(text[1:], ns)
        return Number(text, ns, kind="less" if ns < 0 else "more-time")


def cards(replay: Replay, comparison: Prediction | None) -> Html:
    """Return the headline: the step as measured, replayed and predicted, and the speed-up."""
    if comparison is None:
        error = f"{percent(replay.error, signed=True)} on average"
        said = [
            ("measured", time_text(replay.measured_ns), _mean_of(replay)),
            ("replayed", time_text(replay.replayed_ns), error),
            ("worst step", percent(replay.max_error), "off, of those that are covered"),
            *_basis(replay),
        ]
    else:
        error = error_text(comparison.replay_error, replay.error)
        said = [
            *(
                []
                if comparison.measured_ns is None
                else [("measured", time_text(comparison.measured_ns), _how_measured(replay))]
            ),
            ("replayed", time_text(comparison.replayed_ns), error),
            ("predicted", time_or_unknown(comparison.predicted_ns), _likely(comparison)),
            ("speed-up", speedup_of(comparison), _speedups(comparison)),
            *([peak] if (peak := memory_card(comparison)) is not None else []),
        ]
    gray = [] if comparison is None else [element("p", line) for line in recorded_step(comparison)]
    found = element(
        "div",
        *(
            element(
                "div", element("span", what), element("strong", figure), element("span", more),
                class_=f"card {what}",
            )
            for what, figure, more in said
        ),
        class_="cards",
    )  # fmt: skip
    return joined(found, *gray)


def _mean_of(replay: Replay) -> str:
    said = f"mean of {count(len(replay.steps), 'step')}"
    return f"{said}, median {time_text(replay.typical_measured_ns)}" if replay.steps_differ else said


def breakdowns(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]] | None
) -> Html:
    """Return where a step's time goes by cause and by phase, and what goes on meanwhile."""
    whole = sum(before["by_cause"].values()), sum((after or before)["by_cause"].values())
    figures = Figures(max(whole))
    sides, parts = (before, after or before), []
    that_step = [("the step", *whole)]
    titled = [(title, found + that_step) for title, found in step_sections(sides, max(whole))[:2]]
    titled += [(MEANWHILE, found) for found in [meanwhile(sides, max(whole))] if found]
    names = ("before", "after", "change") if after else ("replayed", "share")
    for title, rows in titled:  # layers have a table of their own
        cells: list[list[Cell]] = []
        for name, old, new in rows:
            color = variable_of(name)
            then = [figures.time(new, bar=True, color=color), figures.change(new - old)]
            share = [_share(old, whole[0])]
            cells.append([name, figures.time(old, bar=True, color=color), *(then if after else share)])
        key = legend([name for name, *_ in rows])
        parts.append(element("div", table([f"{title}, {figures.unit}", *names], cells), key))
    return element("div", *parts, class_="pair")


def layers(before: StepPath, after: StepPath | None) -> tuple[str, Html]:
    """Return a title and the table of a step's layers, or of its operators where no layers are known."""
    old = before.totals("layer")
    column, one = ("layer", "layer") if set(old) - {None} else ("op", "operator")
    old = before.totals(column)
    new = after.totals(column) if after is not None else {}
    figures = _figures(before, after)
    times = {name: (_of(old, name).path_ns, _of(new, name).path_ns) for name in {**old, **new}}
    names = sorted(times, key=lambda name: _largest_first(*times[name], changed=after is not None))
    rows: list[list[Cell]] = []
    for name in names[:MOST_ROWS]:
        was, now = _of(old, name), _of(new, name)
        path = [figures.time(was.path_ns, bar=True)]
        work = [figures.time(was.device_ns), figures.time(was.cpu_ns)]
        if after is not None:
            path += [figures.time(now.path_ns, bar=True), figures.change(now.path_ns - was.path_ns)]
            work = [figures.time(now.device_ns), figures.time(now.cpu_ns)]
        rows.append([name or UNKNOWN, *path, *work, _count(now.tasks if after is not None else was.tasks)])
    on_path = ["before", "after", "change"] if after is not None else ["on the path"]
    head = [f"{one}, {figures.unit}", *on_path, "device work", "CPU work", "tasks"]
    return one, sortable("layers", head, rows, what=f"{one}s" if len(rows) != 1 else one)


def path_by_task(before: StepPath, after: StepPath | None) -> Html:
    """Return a table of the tasks on the critical path, by name."""
    old, new = before.by_task(), after.by_task() if after is not None else {}
    figures = _figures(before, after)
    none = (0, 0)
    times_of = {name: (old.get(name, none)[1], new.get(name, none)[1]) for name in {**old, **new}}
    names = sorted(times_of, key=lambda name: _largest_first(*times_of[name], changed=after is not None))
    rows: list[list[Cell]] = []
    for name in names[:MOST_ROWS]:
        (tasks, was), (left, now) = old.get(name, none), new.get(name, none)
        times = [figures.time(was, bar=True)]
        if after is not None:
            times += [figures.time(now, bar=True), figures.change(now - was)]
        rows.append([name, *times, _count(left if after is not None else tasks)])
    on_path = ["before", "after", "change"] if after is not None else ["time"]
    return sortable("tasks", [f"task, {figures.unit}", *on_path, "times"], rows, what="tasks")


def path_in_order(path: StepPath) -> Html:
    """Return the critical path from the begin of the step to its end."""
    figures = Figures(path.step_ns)
    rows: list[list[Cell]] = [
        [
            figures.time(part.begin_ns), part.lane, part.phase, part.task, _count(part.tasks),
            figures.time(part.work_ns, bar=True), figures.time(part.delay_ns), part.delay,
        ]
        for part in path.stretches()
    ]  # fmt: skip
    head = [
        "at",
        "lane",
        "phase",
        "most of it",
        "tasks",
        f"work, {figures.unit}",
        "delay",
        "most of the delay",
    ]
    return table(head, rows)


def steps(replay: Replay, comparison: Prediction | None) -> Html:
    """Return every covered step: measured, replayed and, where it is told, predicted."""
    several = len({step.rank for step in replay.steps}) > 1
    figures = Figures(max(step.measured_ns for step in replay.steps))
    after = comparison.after if comparison is not None else None
    rows: list[list[Cell]] = []
    for number_, step in zip(replay.recording.settled.step_times(0), replay.steps, strict=True):
        cells: list[Cell] = [
            f"rank {step.rank} {step.name}" if several else step.name,
            figures.time(step.measured_ns, bar=True), figures.time(step.replayed_ns, bar=True),
            Number(percent(step.error, signed=True), step.error),
        ]  # fmt: skip
        if after is not None:
            predicted = after.times.get((after.copy, number_))
            cells.append(figures.time(predicted, bar=True) if predicted is not None else "")
        rows.append(cells)
    head = [f"step, {figures.unit}", "measured", "replayed", "error"]
    if after is not None:
        head.append("predicted")
    return sortable("steps", head, rows, what="steps")


def replay_facts(replay: Replay) -> Html:
    """Return what the graph was made of, and how far off single tasks start."""
    return facts(graph_facts(replay, replay.to_json()))


def options(comparison: Prediction) -> list[tuple[str, str]]:
    """Return the names and values of the options."""
    given = comparison.options.items()
    return [(name.replace("_", "-"), str(value)) for name, value in given if value is not None]


def assumptions(replay: Replay, comparison: Prediction | None) -> Html:
    """Return what was changed, what the range is made of, and every note: those on the change come first."""
    if comparison is None:
        return _notes(list(dict.fromkeys(replay.notes))) or element("p", "none")
    said = list(dict.fromkeys(comparison.notes))
    own = [note for note in said if note not in replay.notes]
    edits, likely = edits_text(comparison), likely_text(comparison)
    return joined(
        facts([("changed", edits), ("range", likely)]),
        _notes([*own, *(note for note in said if note not in own)]),
    )


def _notes(said: Sequence[str]) -> Html:
    """Return notes as a list, of many those at the end folded away."""
    if not said:
        return Html()
    shown = said if len(said) <= MOST_NOTES + 1 else said[:MOST_NOTES]
    rest = said[len(shown) :]
    listed = element("ul", *(element("li", note) for note in shown))
    if not rest:
        return listed
    more = element("ul", *(element("li", note) for note in rest))
    return joined(listed, element("details", element("summary", f"{len(rest)} more notes"), more))


def _how_measured(replay: Replay) -> str:
    """Return which steps the measured time is the mean of."""
    return "without a profiler" if replay.basis == UNPROFILED else _mean_of(replay)


def _likely(comparison: Prediction) -> str:
    """Return the range of the prediction, or why there is none."""
    low, high = comparison.predicted_low_ns, comparison.predicted_high_ns
    if low is None or high is None:
        return comparison.reason or ""
    return f"90 % interval {range_text(low, high)}"


def _speedups(comparison: Prediction) -> str:
    """Return the range of the speed-up: that of the prediction, turned over."""
    before, low, high = comparison.replayed_ns, comparison.predicted_low_ns, comparison.predicted_high_ns
    if low is None or not high:
        return ""
    slow = f"{before / high:,.2f}"
    return f"{slow} to {before / low:,.2f}x" if low else f"at least {slow}x"


def _basis(replay: Replay) -> list[tuple[str, str, str]]:
    if replay.basis == RECORDED:
        return []
    error = "" if replay.basis_error is None else f", error {percent(replay.basis_error, signed=True)}"
    return [(replay.basis, time_text(replay.basis_ns), f"what predictions start from{error}")]


def _figures(before: StepPath, after: StepPath | None) -> Figures:
    return Figures(max(path.step_ns for path in (before, after) if path is not None))


def _largest_first(before_ns: int, after_ns: int, *, changed: bool) -> tuple[int, int]:
    """Return a key that sorts by the size of the change, if there is one, and then by time."""
    return -abs(after_ns - before_ns) if changed else 0, -max(before_ns, after_ns)


def _of(totals: Mapping[str | None, Total], name: str | None) -> Total:
    return totals.get(name, Total())


def _share(part: int, whole: int) -> Number:
    share = part / whole if whole else 0.0
    return Number(f"{100 * share:.1f} %", share)


def _count(value: int) -> Number:
    return Number(f"{value:,}", value)
