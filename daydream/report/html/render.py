"""Views as HTML by the templates in `assets`, every text escaped: as a page, or for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from daydream import __version__
from daydream.lazy import regex
from daydream.report.blocks import Block, Drawing
from daydream.report.format import printable
from daydream.report.view import view
from daydream.simulate.critical_path import Bound

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
