"""`--html`: the report of a replay or a what-if as one file for a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from daydream.comparison import Comparison
    from daydream.simulate.replay import Replay

SUFFIXES = (".html", ".htm")


def html_option() -> click.Option:
    """Return `--html` for a command that has a report."""
    return click.Option(
        ["--html"],
        metavar="FILE",
        help="Write a report for the browser: one file that needs no network.",
    )


def check_html(output: str | None, *, force: bool, trace: str) -> None:
    """Raise `OutputError` or a usage error if the report could not be written there."""
    if output is None:
        return
    from daydream.cli.output import check

    if not output.lower().endswith(SUFFIXES):
        said = f"{output!r} ends in neither {' nor '.join(SUFFIXES)}"
        raise click.BadParameter(said, click.get_current_context(), param_hint="--html")
    check(output, force=force, sources=[trace])


def write_html(output: str, replay: Replay, comparison: Comparison | None, *, force: bool) -> None:
    """Write the file. Raises `OutputError` if that fails."""
    from daydream.report.html_page import write

    write(output, replay, comparison, force=force)
