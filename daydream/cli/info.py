"""`daydream info`: what is in a trace, and is it good enough."""

from __future__ import annotations

import click

from daydream.cli.source import json_option, read, step_options


def _info(trace: str, step_marker: str | None, steps: str | None, as_json: bool) -> None:
    """Say what a trace holds, and whether that is good enough.

    TRACE is a parquet trace or anything `daydream import` accepts. The trace is
    replayed as well: how well that works says most about what it can tell.
    """
    from daydream.cli.output import quoted
    from daydream.cli.progress import Progress
    from daydream.cli.results import next_question, print_json
    from daydream.report.overview import overview
    from daydream.report.overview_text import info_text

    with Progress() as progress:
        recording = read([trace], step_marker, steps, progress)
        progress("replaying")
        found = overview(recording)
    if as_json:
        print_json({"trace": trace, **found.to_json()})
        return
    click.echo(info_text(found))
    if found.replay is not None:
        click.echo(f"next: daydream whatif {next_question(found.graph)} --trace {quoted(trace)}", err=True)


command = click.Command(
    "info",
    callback=_info,
    help=_info.__doc__,
    short_help="Say what a trace holds, and whether that is good enough.",
    params=[click.Argument(["trace"], metavar="TRACE"), *step_options(), json_option()],
)
