"""Results and nouns in notebooks: their views as HTML, in the notebook's own colors."""

from __future__ import annotations

from daydream.report.html.render import notebook_html
from daydream.report.view import view


def html(thing: object) -> str:
    """Return a result or a noun as HTML. Raises `TypeError` for anything else."""
    return notebook_html(view(thing, verbose=True))
