"""The report as one HTML file: no network, nothing beside it; it works from a mail or a folder.

Everything but the timelines is plain HTML, there without the program. The chart library is
uPlot (MIT licence, `assets/uPlot.LICENSE`), copied into every page with its licence.
"""

from __future__ import annotations

import os
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from daydream.files.atomic import write_whole
from daydream.predict.breakdown import parts_of_change, parts_of_replay
from daydream.report.html import bounds, roofline, sections
from daydream.report.html import memory as memory_section
from daydream.report.html.elements import Html, data, element, joined
from daydream.report.html.path import StepPath, step_path
from daydream.report.html.ranking import HELP as RANKING_HELP
from daydream.report.html.ranking import whatifs
from daydream.report.html.spans import measured_window
from daydream.report.html.timelines import timelines
from daydream.report.text.answer import answer_lines
from daydream.report.text.breakdown import moved_bound
from daydream.report.text.layout import printable
from daydream.report.text.numbers import count, listed, time_text
from daydream.report.text.results import replay_answer

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.prediction import Prediction
    from daydream.predict.rank import Ranking
    from daydream.predict.replay import Replay

# The page may run what stands in it and load nothing at all.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
PROGRAMS = ("uPlot.iife.min.js", "spans.js", "timeline.js", "report.js")
MEMORY_PROGRAM = "memory.js"
PATH_HELP = (
    "The chain of causes that decides when the step completes: it adds up to the step. Only what is on it "
    "can make the step faster."
)
ON_PATH_HELP = (
    "A cause or a phase takes what it has of the critical path: work that something hides is not counted."
)
LAYER_HELP = (
    "Time on the critical path adds up to the step; device and CPU work is all there is, hidden or not."
)
LAYER_CHANGE = " The largest changes come first. Work and tasks are those after the change."
WITH_MOUSE = (
    "Drag to zoom in, double-click to see all, Shift-drag to move; Ctrl-wheel zooms, arrow keys do both."
)
WITH_FINGERS = "Two fingers zoom, one moves sideways; the buttons do so too."


def write(
    path: str | os.PathLike[str],
    replay: Replay,
    comparison: Prediction | None = None,
    *,
    ranking: Ranking | None = None,
    memory: MemoryReport | None = None,
    force: bool = False,
) -> None:
    """Write the report of a replay, or of a what-if with its replay, as an HTML file.

    With a `ranking` of the same replay it holds every other what-if, with a `memory` report of its trace
    what is held over time, and by whom. Raises `OutputError` if the file
    exists and `force` is not given, or cannot be written.
    """
    text = page(replay, comparison, ranking, memory)

    def fill(temporary: str) -> None:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)

    write_whole(path, fill, force=force)


def page(
    replay: Replay,
    comparison: Prediction | None = None,
    ranking: Ranking | None = None,
    memory: MemoryReport | None = None,
) -> str:
    """Return the report of a replay, or of a what-if with its replay, as a whole page."""
    title = f"what if: {comparison.optimization}" if comparison is not None else "replay"
    before, after = _paths(replay, comparison)
    one, layers = sections.layers(before, after)
    body = joined(
        element(
            "header", element("p", "daydream", class_="brand"), element("h1", title), _options(comparison),
            _about(replay), _answer(replay, comparison),
        ),
        sections.cards(replay, comparison),
        _section("notes", "Assumptions and notes", "", sections.assumptions(replay, comparison)),
        _section(
            "timeline", "Timeline", "",
            element("p", WITH_MOUSE, class_="help with-mouse"),
            element("p", WITH_FINGERS, class_="help with-fingers"),
            element("div", id="timelines"),
        ),
        _section("memory", "Memory", memory_section.HELP, memory_section.memory(memory, comparison))
        if memory else "",
        _section(
            "breakdown", "Where a step's time goes", f"The mean of the steps. {ON_PATH_HELP}",
            _breakdowns(replay, comparison),
        ),
        _section("roofline", "Roofline", roofline.HELP, drawn)
        if (drawn := roofline.picture(replay.graph)) else "",
        _section("whatifs", "Ranked what-ifs", RANKING_HELP, whatifs(ranking)) if ranking is not None else "",
        _section(
            "by-layer", f"By {one}",
            f"{_which(before, after)} {LAYER_HELP}{LAYER_CHANGE if after else ''}", layers,
        ),
        _section(
            "path", "Critical path", f"{_which(before, after)} {PATH_HELP}",
            sections.path_by_task(before, after), _in_order(before, after),
        ),
        _section(
            "replay", "How well the replay fits", "",
            element("div", id="steps-chart"), sections.steps(replay, comparison),
            sections.replay_facts(replay),
        ),
        _footer(),
    )  # fmt: skip
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", f"daydream {title}"),
        f"<style>{asset('uPlot.min.css')}{bounds.style()}{asset('report.css')}</style></head><body>",
        element("main", body),
        data("timeline-data", timelines(replay, comparison)),
        data("steps-data", _step_times(replay, comparison)),
        *([data("memory-data", _memory_chart(replay))] if memory else []),
        f"<!--\nuPlot\n{asset('uPlot.LICENSE')}-->",
        *(f"<script>{asset(name)}</script>" for name in (*PROGRAMS, *([MEMORY_PROGRAM] if memory else []))),
        "</body></html>\n",
    ])  # fmt: skip


def _options(comparison: Prediction | None) -> Html:
    options = sections.options(comparison) if comparison is not None else []
    said = ", ".join(f"{name} {value}" for name, value in options)
    return element("p", said, class_="options") if said else Html()


def _answer(replay: Replay, comparison: Prediction | None) -> Html:
    """Return the sentences that the text report leads with."""
    said = [replay_answer(replay)] if comparison is None else answer_lines(comparison)
    first, *others = said
    return joined(
        element("p", element("strong", first), class_="answer"), *(element("p", each) for each in others)
    )


def _about(replay: Replay) -> Html:
    trace = replay.graph.trace
    metadata = trace.metadata if trace is not None else {}
    names = dict.fromkeys(str(each.get("name") or "") for each in metadata.get("devices", []))
    said = [str(metadata.get("source") or "")]
    said += [listed([name for name in names if name])] if any(names) else []
    said.append(f"{count(int(replay.graph.alive.sum()), 'task')} on {count(len(replay.graph.lanes), 'lane')}")
    return element("p", " · ".join(part for part in said if part), class_="about")


def _section(name: str, title: str, said: str, *parts: str) -> Html:
    return element(
        "section", element("h2", title), element("p", said, class_="help") if said else "", *parts, id=name
    )


def _paths(replay: Replay, comparison: Prediction | None) -> tuple[StepPath, StepPath | None]:
    """Return the critical path of the step that the breakdowns are about, before and after."""
    if comparison is None:
        return step_path(replay.timeline, replay.settled.copy, replay.settled.typical()[0]), None
    before, after = comparison.shown_steps()
    return (
        step_path(replay.timeline, replay.settled.copy, before),
        step_path(comparison.timeline, comparison.after.copy, after),
    )


def _which(before: StepPath, after: StepPath | None) -> str:
    """Return which step the breakdowns, the layers and the critical path are about."""
    said = f"{before.name}, {time_text(before.step_ns)}"
    if after is None:
        return f"{said}: the median step of the replay."
    then = time_text(after.step_ns)
    other = "" if after.name == before.name else f" ({after.name})"
    return (
        f"{said} before the change and {then} after it{other}: "
        "the step nearest to the headline, which is about all of them."
    )


def _breakdowns(replay: Replay, comparison: Prediction | None) -> Html:
    if comparison is None:
        return sections.breakdowns(parts_of_replay(replay), None)
    before, after = parts_of_change(comparison)
    moved = moved_bound(before, after)
    said = [element("p", moved, class_="remark")] if moved else []
    return joined(*said, sections.breakdowns(before, after))


def _in_order(before: StepPath, after: StepPath | None) -> Html:
    said = (
        [("In order", before)]
        if after is None
        else [("In order, after", after), ("In order, before", before)]
    )
    return joined(
        *(
            element("details", element("summary", title), sections.path_in_order(path))
            for title, path in said
        )
    )  # fmt: skip


def _memory_chart(replay: Replay) -> dict[str, Any]:
    trace = replay.graph.trace
    if trace is None:
        return {"length": 0, "lines": []}
    return memory_section.chart(trace, measured_window(replay.graph, replay.settled.typical()[0]))


def _step_times(replay: Replay, comparison: Prediction | None) -> dict[str, Any]:
    """Return the covered steps in ms for the chart of steps."""
    covered = [number for number, step in enumerate(replay.graph.steps) if step.get("covered")]
    said: dict[str, Any] = {
        "names": [printable(step.name) for step in replay.steps],
        "measured": [step.measured_ns / 1e6 for step in replay.steps],
        "replayed": [step.replayed_ns / 1e6 for step in replay.steps],
    }
    if comparison is not None:
        after = comparison.after
        times = [after.times.get((after.copy, step)) for step in covered]
        said["predicted"] = [None if ns is None else ns / 1e6 for ns in times]
    return said


def _footer() -> Html:
    from daydream import __version__

    return element("footer", f"daydream {__version__} · charts by uPlot, MIT licence, which is in this file")


def asset(name: str) -> str:
    """Return the text of a file that ships beside the report."""
    return (files("daydream.report") / "assets" / name).read_text("utf-8")
