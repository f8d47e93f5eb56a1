"""The report as one HTML file: no network, nothing beside it; it works from a mail or a folder.

Everything but the timelines is plain HTML, there without the program. The chart library is
uPlot (MIT license, `assets/uPlot.LICENSE`), copied with its license into every page that has a chart.

The templates in `assets` make the HTML of a view, as a page or for a notebook; every text is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daydream import __version__
from daydream.errors import GraphError
from daydream.files.atomic import write_whole
from daydream.lazy import regex
from daydream.predict.explain import Explanation
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay
from daydream.report.blocks import (
    Block,
    Drawing,
    Figures,
    Headline,
    Text,
    answer_text,
    listed,
    printable,
    speedup_of,
    view,
)
from daydream.report.sections import step_sections
from daydream.report.timeline import timelines
from daydream.report.views.memory import memory_change, verdict
from daydream.report.views.ranking import best_of, named
from daydream.report.views.step import (
    bottleneck_text,
    code_of,
    headline,
    opening,
    recorded_step,
    replay_answer,
    replay_figures,
    step_figures,
)
from daydream.simulate.critical_path import Bound
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.rank import Ranking


TITLES = {
    "Difference": "comparison",
    "MemoryReport": "memory",
    "MemoryView": "memory",
    "Replay": "report",
}


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
    write_whole(
        path,
        lambda temporary: Path(temporary).write_text(text, encoding="utf-8", newline="\n"),
        force=force,
    )


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
    elif memory is not None:
        title = "memory"
    blocks: list[Block] = [*_answer(result, ranking, memory)]
    if drawing:
        blocks.append(Drawing("", drawing))
    if replay is None:
        of = getattr(result, "replay", None)  # of a ranking, of a number of workers
        return page_of(title, blocks, _about(of) if of is not None else "")
    return page_of(title, [*blocks, *step_sections(replay, found, ranking, memory)], _about(replay))


def _step_of(result: object) -> tuple[Replay | None, Prediction | None]:
    """Return the replay and the change that a result is about, None for what has no timeline."""
    if isinstance(result, Prediction):
        return result.replay, result
    if isinstance(result, Explanation):
        return result.replay, result.after
    return (result, None) if isinstance(result, Replay) else (None, None)


def _answer(
    result: object, ranking: Ranking | None, memory: MemoryReport | None
) -> Iterator[Block]:
    """Return what the page begins with: the answer and its figures; of a result without a step all of it."""
    if isinstance(result, Replay) and memory is not None:
        for each in view(memory):
            if isinstance(each, Headline | Text) and not getattr(each, "aside", False):
                yield each
        yield Text(replay_answer(result), "the step: ", aside=True)
    elif isinstance(result, Replay):
        yield from opening(Headline(replay_answer(result)), result)
        figures = [*replay_figures(result).figures]
        best = None if ranking is None else best_of(ranking)
        if best is not None:
            figures.append(("best change", speedup_of(best), f"{named(best)}: {answer_text(best)}"))
        yield Figures(figures)
    elif isinstance(result, Prediction):
        yield from opening(headline(result), result.replay)
        yield from code_of(result.code)
        if result.reason is None:
            yield Text(bottleneck_text(result))
        figures = [*step_figures(result).figures]
        if result.memory is not None:
            change, _, likely = memory_change(result.memory).partition(" (")
            fits = [likely.removesuffix(")"), *verdict(result.memory).split(", ")[1:]]
            peak = change.rpartition(" -> ")[2]
            figures.append(("peak memory", peak, "; ".join(filter(None, fits))))
        yield Figures(figures)
        for line in recorded_step(result):
            yield line._replace(aside=True)
    else:
        yield from view(result, verbose=True)


def _about(replay: Replay) -> str:
    trace = replay.graph.trace
    metadata = trace.metadata if trace is not None else {}
    names = dict.fromkeys(str(each.get("name") or "") for each in metadata.get("devices", []))
    tasks = counted(int(replay.graph.alive.sum()), "task")
    said = [trace.origin if trace is not None else "", listed([name for name in names if name])]
    said.append(f"{tasks} on {len(replay.graph.lanes):,} threads and streams")
    return " · ".join(part for part in said if part)


MOST_SPANS = 2_000  # of one timeline: more than a cell is wide in pixels
LANE, HEAD, AROUND, HIGHEST = (
    38,
    90,
    130,
    390,
)  # pixels: a lane, above a chart, around both; a chart


@dataclass(frozen=True)
class TimelineFrame:
    """Both timelines of a what-if, for a notebook to show."""

    html: str = field(repr=False)
    optimization: str

    def _repr_html_(self) -> str:
        return self.html


def timeline_frame(comparison: Prediction, most: int = MOST_SPANS) -> TimelineFrame:
    """Return the timelines of a what-if as an element of HTML, which holds all that it needs.

    Args:
        comparison: the what-if.
        most: spans of each timeline; of more, short neighbours are drawn as one.

    Raises:
        GraphError: the step after the change cannot be predicted.

    """
    if comparison.reason is not None:
        raise GraphError(
            f"{comparison.optimization} cannot be predicted from this trace, because {comparison.reason}: "
            "there is no timeline after it"
        )
    drawn = timelines(comparison.replay, comparison, most)
    height = AROUND + sum(
        min(HEAD + LANE * len(each["lanes"]), HIGHEST) for each in drawn["timelines"]
    )
    page = page_of("timelines", [Drawing("timelines", drawn)], frame=True)
    text = page.replace("&", "&amp;").replace('"', "&quot;")
    frame = (
        f'<iframe sandbox="allow-scripts" title="timelines before and after" srcdoc="{text}" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )
    return TimelineFrame(frame, comparison.optimization)


MOST_AT_ONCE = 15  # rows of a page's table that stand there before the rest is asked for
MOST_NOTES = 4  # likewise
CODE = regex(r"`([^`]+)`")
BETWEEN = regex(r">\s*\n\s*<")  # lines of the template, which are no space


def render(template: str, blocks: Sequence[Block], *, page: bool = True, **more: Any) -> str:
    """Return blocks by a template of `assets`; `more` is what else it names."""
    return str(_templates().get_template(template).render(blocks=blocks, page=page, **more))


def page_of(title: str, blocks: Sequence[Block], about: str = "", *, frame: bool = False) -> str:
    """Return a view as a whole page, which loads nothing, with the programs that its drawings need.

    A `frame` in a notebook has no header and no tables.
    """
    charts = any(isinstance(each, Drawing) and each.name for each in blocks)
    return render(
        "page.jinja",
        blocks,
        title=title,
        about=about,
        frame=frame,
        charts=charts,
        bounds=Bound,
        version=__version__,
    )


def notebook_html(blocks: Sequence[Block]) -> str:
    """Return a view for a notebook: no styles but sides, in the notebook's own colors."""
    return BETWEEN.sub("><", render("blocks.jinja", blocks, page=False)).strip()


@cache
def _templates() -> Any:
    from jinja2 import Environment, FunctionLoader
    from markupsafe import Markup, escape

    assets = files("daydream.report") / "assets"

    def asset(name: str) -> str:
        return (assets / name).read_text("utf-8")

    def shown(value: Any) -> Any:
        text = isinstance(value, str) and not isinstance(value, Markup)
        return printable(value) if text else value

    def prose(text: str) -> Markup:
        """Return a sentence with what stands in backticks as code."""
        return Markup(CODE.sub(r"<code>\1</code>", str(escape(printable(text)))))  # noqa: S704 - escaped

    found = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    found.filters["prose"] = prose
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    found.globals |= {
        "asset": asset,
        "kind_of": lambda block: type(block).__name__,
        "most_rows": MOST_AT_ONCE,
        "most_notes": MOST_NOTES,
    }
    return found


def html(thing: object) -> str:
    """Return a result or a noun as HTML. Raises `TypeError` for anything else."""
    return notebook_html(view(thing, verbose=True))
