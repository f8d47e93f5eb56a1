"""The report as one HTML file: no network, nothing beside it; it works from a mail or a folder.

Everything but the timelines is plain HTML, there without the program. The chart library is
uPlot (MIT license, `assets/uPlot.LICENSE`), copied with its license into every page that has a chart.
"""

from __future__ import annotations

import os
from importlib.resources import files
from typing import TYPE_CHECKING

from daydream.files.atomic import write_whole
from daydream.predict.basis import whole_recording
from daydream.predict.explain import Explanation
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay
from daydream.report.blocks import Block, Drawing, Figures, Headline, Text
from daydream.report.format import listed
from daydream.report.html.render import Html, element, page_html
from daydream.report.html.step import bound_colors, step_sections
from daydream.report.view import view
from daydream.report.views.memory import memory_change, verdict
from daydream.report.views.step import (
    about_steps,
    bottleneck_text,
    code_of,
    headline,
    recorded_step,
    replay_answer,
    replay_figures,
    step_figures,
)
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.rank import Ranking

# The page may run what stands in it and load nothing at all.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
PROGRAMS = ("uPlot.iife.min.js", "spans.js", "timeline.js", "report.js")
MEMORY_PROGRAM = "memory.js"
TITLES = {"Difference": "comparison", "MemoryReport": "memory", "MemoryView": "memory"}


def write(
    path: str | os.PathLike[str],
    result: object,
    *,
    ranking: Ranking | None = None,
    memory: MemoryReport | None = None,
    force: bool = False,
) -> None:
    """Write the page of a result, as `page` returns it, as an HTML file.

    Raises `OutputError` if the file exists and `force` is not given, or cannot be written.
    """
    text = page(result, ranking, memory)

    def fill(temporary: str) -> None:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)

    write_whole(path, fill, force=force)


def page(
    result: object,
    ranking: Ranking | None = None,
    memory: MemoryReport | None = None,
    drawing: str = "",
) -> str:
    """Return a result as a whole page.

    Those of a replay, a what-if and an explanation have timelines, too. With a `ranking` of the same replay
    they hold every other what-if, with a `memory` report of its trace what is held over time, and by whom.
    A `drawing` is SVG of the result, below it.
    """
    replay, found = _step_of(result)
    name = type(result).__name__
    title = TITLES.get(name, name.lower())
    if isinstance(result, Prediction):
        title = f"what if: {result.optimization}"
    if memory is not None and isinstance(result, Replay):
        title = "memory"
    blocks: list[Block] = [*_answer(result), *([Drawing(drawing)] if drawing else [])]
    if replay is not None:
        blocks += step_sections(replay, found, ranking, memory)
    programs: tuple[str, ...] = PROGRAMS if replay is not None else PROGRAMS[-1:]
    programs += (MEMORY_PROGRAM,) if replay is not None and memory is not None else ()
    header = element(
        "header", element("p", "daydream", class_="brand"), element("h1", title),
        _about(replay) if replay is not None else "",
    )  # fmt: skip
    return "\n".join(
        [
            head(f"daydream {title}"),
            element("main", header, page_html(blocks), _footer(charts=replay is not None)),
            *scripts(programs),
            "</body></html>\n",
        ]
    )


def head(title: str, style: str = "") -> str:
    """Return a page up to its body, with its policy and style."""
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", title),
        f"<style>{asset('uPlot.min.css')}{bound_colors()}{asset('report.css')}{style}</style></head><body>",
    ])  # fmt: skip


def scripts(names: tuple[str, ...]) -> list[str]:
    """Return programs of a page, with the license of uPlot where it is one of them."""
    license_ = [f"<!--\nuPlot\n{asset('uPlot.LICENSE')}-->"] if names[0].startswith("uPlot") else []
    return [*license_, *(f"<script>{asset(name)}</script>" for name in names)]


def asset(name: str) -> str:
    """Return the text of a file that ships beside the report."""
    return (files("daydream.report") / "assets" / name).read_text("utf-8")


def _step_of(result: object) -> tuple[Replay | None, Prediction | None]:
    """Return the replay and the change that a result is about, None for what has no timeline."""
    if isinstance(result, Prediction):
        return result.replay, result
    if isinstance(result, Explanation):
        return result.replay, result.after
    return (result, None) if isinstance(result, Replay) else (None, None)


def _answer(result: object) -> list[Block]:
    """Return what the page begins with: the answer and its figures; of a result without a step all of it."""
    if isinstance(result, Replay):
        said = map(Text, whole_recording(result.graph.trace))
        return [
            Headline(replay_answer(result)),
            *said,
            *about_steps(result),
            replay_figures(result),
        ]
    if isinstance(result, Prediction):
        said = map(Text, whole_recording(result.replay.graph.trace))
        bottleneck = [Text(bottleneck_text(result))] if result.reason is None else []
        gray = [
            each._replace(aside=True) for each in recorded_step(result) if isinstance(each, Text)
        ]
        figures = step_figures(result).figures
        if result.memory is not None:
            change, _, likely = memory_change(result.memory).partition(" (")
            fits = [
                *([likely.removesuffix(")")] if likely else []),
                *verdict(result.memory).split(", ")[1:],
            ]
            figures = [*figures, ("peak memory", change.rpartition(" -> ")[2], "; ".join(fits))]
        return [
            headline(result), *said, *about_steps(result.replay), *code_of(result.code), *bottleneck,
            Figures(figures), *gray,
        ]  # fmt: skip
    return list(view(result, verbose=True))


def _about(replay: Replay) -> Html:
    trace = replay.graph.trace
    metadata = trace.metadata if trace is not None else {}
    names = dict.fromkeys(str(each.get("name") or "") for each in metadata.get("devices", []))
    tasks, lanes = int(replay.graph.alive.sum()), len(replay.graph.lanes)
    said = [str(metadata.get("source") or ""), listed([name for name in names if name])]
    said.append(f"{counted(tasks, 'task')} on {counted(lanes, 'lane')}")
    return element("p", " · ".join(part for part in said if part), class_="about")


def _footer(*, charts: bool) -> Html:
    from daydream import __version__

    said = " · charts by uPlot, MIT license, which is in this file" if charts else ""
    return element("footer", f"daydream {__version__}{said}")
