"""How the nouns show themselves in a notebook."""

from __future__ import annotations

from typing import Any

from daydream import lazy


class NotebookTables:
    """Something that a notebook draws as HTML tables."""

    def _repr_html_(self) -> str:
        return str(lazy.ask("html", self))


class NotebookFigure(NotebookTables):
    """Something that there is a figure of, too."""

    def plot(self, **options: Any) -> Any:
        """Return a `matplotlib.figure.Figure`; a step's timeline takes `step`, a number.

        Raises `DaydreamError` if matplotlib is not installed: it comes with the extra `notebook`.
        """
        return lazy.ask("figure", self, **options)
