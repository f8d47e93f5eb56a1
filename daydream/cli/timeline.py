"""`-o`: the timelines of a replay or a what-if as a file for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay

SUFFIXES = (".json", ".json.gz")


def timeline_option(what: str) -> click.Option:
    """Return `-o` for a command that can show these timelines."""
    return click.Option(
        ["-o", "--output"],
        metavar="FILE",
        help=f"Write the timelines ({what}) as .json or .json.gz for https://ui.perfetto.dev.",
    )


def check_timeline(output: str | None, *, force: bool) -> None:
    """Raise `OutputError` or a usage error if the timeline could not be written there."""
    if output is None:
        return
    from daydream.cli.output import check

    if not output.endswith(SUFFIXES):
        said = f"{output!r} ends in neither {' nor '.join(SUFFIXES)}"
        raise click.BadParameter(said, click.get_current_context(), param_hint="-o")
    check(output, force=force)


def write_timeline(output: str, replay: Replay, comparison: Prediction | None, *, force: bool) -> None:
    """Write the file. Raises `OutputError` if that fails."""
    from daydream.report.perfetto.file import write

    write(output, replay, comparison, force=force)
