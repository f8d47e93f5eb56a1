"""`daydream replay`: simulate a trace untouched; the error shows what the graph is worth."""

from __future__ import annotations

import click

from daydream.cli.source import (
    force_option,
    json_option,
    read,
    trace_options,
    trace_words,
    verbose_option,
)
from daydream.cli.written import check_files, html_option, ranking_option, tell, timeline_option, write_files


def _replay(
    trace: str,
    step_marker: str | None,
    steps: str | None,
    output: str | None,
    html: str | None,
    no_ranking: bool,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Simulate a trace unchanged and compare it with what was measured, step by step."""
    import daydream
    from daydream.cli.output import print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.report.view import view

    check_files(output, html, force=force, chakra=True)
    with Progress() as progress:
        recording = read([trace], step_marker, steps, progress, typical=output is None)
        progress("replaying")
        result = daydream.replay(recording)
        written = write_files(
            output, html, result, None, force=force, ranked=not no_ranking, progress=progress
        )
    again = trace_words(trace, step_marker, steps)
    if as_json:
        print_json({"trace": trace, **result.to_json()})
    else:
        print_screen(view(result, verbose=verbose))
    tell(written)
    if not written and not as_json:
        print_next("explain", *again)


command = click.Command(
    "replay",
    callback=_replay,
    help=_replay.__doc__,
    short_help="Simulate a trace unchanged, and say how far off that is.",
    params=[
        *trace_options(),
        timeline_option("measured and replayed", chakra=True),
        html_option(),
        ranking_option(),
        force_option(),
        verbose_option("what the graph is made of and every note about the recording"),
        json_option(),
    ],
)
