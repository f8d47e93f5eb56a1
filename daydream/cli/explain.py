"""`daydream explain`: why the step takes its time, and what would remove it."""

from __future__ import annotations

import click

from daydream.cli.source import json_option, read, stdout_for_the_result, trace_options


def _explain(
    trace: str, step_marker: str | None, steps: str | None, whatif: str | None, as_json: bool
) -> None:
    """Say why a step takes its time: what bounds it, and what it could do without.

    The chain of causes behind the steps is told as shares: kernels by what bounds them, CPU
    work, communication, copies, data loading, synchronization. Then come the largest avoidable
    costs, each with the what-if that removes it and what that would save, by simulation.
    """
    from daydream.cli.output import quoted
    from daydream.cli.progress import Progress
    from daydream.cli.results import print_json
    from daydream.explanation import explain
    from daydream.report.explain import command as typed
    from daydream.report.explain import explain_json, explain_text

    with Progress() as progress, stdout_for_the_result():
        recording = read([trace], step_marker, steps, progress)
        progress("replaying")
        explanation = explain(recording, whatif, progress=progress)
    if as_json:
        print_json({"trace": trace, **explain_json(explanation)})
        return
    click.echo(explain_text(explanation))
    best = next((cost.best for cost in explanation.worth_it if cost.best is not None), None)
    if best is not None:
        click.echo(f"next: {typed(best)} --trace {quoted(trace)}", err=True)


command = click.Command(
    "explain",
    callback=_explain,
    help=_explain.__doc__,
    short_help="Say why the step takes its time, and what would remove it.",
    params=[
        *trace_options(),
        click.Option(
            ["--whatif"], metavar="NAME[+NAME...]",
            help="Explain the step after this change, with its options at their defaults.",
        ),
        json_option(),
    ],
)  # fmt: skip
