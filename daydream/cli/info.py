"""`daydream info`: what is in a trace, and is it good enough."""

from __future__ import annotations

import click

from daydream.cli.source import (
    cache_option,
    counters_option,
    json_option,
    read,
    step_options,
    trace_words,
    verbose_option,
)


def _info(
    trace: str | None,
    named: str | None,
    step_marker: str | None,
    steps: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Say what a trace holds, and whether that is good enough.

    TRACE is a parquet trace or anything `daydream import` accepts. The trace is
    replayed as well: how well that works says most about what it can tell.
    """
    from daydream.cli.output import print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.report.overview import overview
    from daydream.report.view import view

    if trace is None and named is None:
        raise click.UsageError("missing argument 'TRACE'", click.get_current_context())
    if trace is not None and named is not None:
        raise click.UsageError("the trace is given twice, as --trace too", click.get_current_context())
    trace = trace or named or ""
    with Progress() as progress:
        recording = read([trace], step_marker, steps, progress)
        progress("replaying")
        found = overview(recording)
    if as_json:
        print_json({"trace": trace, **found.to_json()})
        return
    again = trace_words(trace, step_marker, steps)
    print_screen(view(found, verbose=verbose))
    if found.replay is not None:
        print_next("explain", *again)


command = click.Command(
    "info",
    callback=_info,
    help=_info.__doc__,
    short_help="Say what a trace holds, and whether that is good enough.",
    params=[
        click.Argument(["trace"], required=False, metavar="TRACE"),
        click.Option(["--trace", "named"], metavar="TRACE", help="The same, as other commands take it."),
        counters_option(),
        *step_options(),
        cache_option(),
        verbose_option("all that the trace holds, and every note"),
        json_option(),
    ],
)
