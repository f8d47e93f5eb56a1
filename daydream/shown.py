"""How the nouns show themselves in a notebook."""

from __future__ import annotations


class Shown:
    """Something that a notebook draws as HTML tables."""

    def _repr_html_(self) -> str:
        # The one way from a noun to the reports, a later stage: only what draws for a notebook takes it.
        from daydream.report.notebook import html

        return html(self)
