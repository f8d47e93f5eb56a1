"""A view as it is piped, for tests that read it."""

from daydream.report.blocks import view
from daydream.report.text import text_of


def view_text(result, **options):
    """Return the text of a result's view."""
    return text_of(view(result, **options))
