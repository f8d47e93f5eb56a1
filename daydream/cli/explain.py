"""`daydream explain`: why the step takes its time, and what would remove it."""

from __future__ import annotations

import contextlib

import click

from daydream.cli.source import (
    capacity_option,
    force_option,
    json_option,
    read,
    stdout_for_the_result,
    trace_options,
    trace_words,
    verbose_option,
)
from daydream.cli.written import html_option


def _explain(
    trace: str,
    step_marker: str | None,
    steps: str | None,
    whatif: str | None,
    capacity: int | None,
    html: str | None,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Say why a step takes its time: what bounds it, and what it could do without.

    First what bounds it, then the largest avoidable costs, each with the what-if that removes it,
    what that would save, by simulation, and the line of code that does it. Then the chain of causes
    after the steps as shares: kernels by what bounds them, CPU work, communication, copies, data
    loading, synchronization. Where the trace has memory: the peak, and whether it fits.
    """
    import daydream
    from daydream.cli.failures import of_optimizations, with_advice
    from daydream.cli.output import print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.predict.explain import explain
    from daydream.report.view import view
    from daydream.report.views.explanation import explain_json
    from daydream.transforms.compose import parse

    ctx = click.get_current_context()
    with Progress() as progress, stdout_for_the_result():
        recording = read([trace], step_marker, steps, progress, typical=True)
        progress("replaying")
        replay = daydream.replay(recording)
        again = trace_words(trace, step_marker, steps)
        with contextlib.ExitStack() as refusing:
            if whatif is not None:
                refusing.enter_context(of_optimizations(ctx, whatif))
                refusing.enter_context(with_advice(replay.graph, parse(whatif), again))
            explanation = explain(replay, whatif, capacity=capacity, progress=progress)
        if html is not None:
            from daydream.cli.written import write_html

            said = write_html(html, explanation, force=force, ranked=False, progress=progress)
            click.echo(said, err=True)
    if as_json:
        print_json({"trace": trace, **explain_json(explanation)})
        return
    print_screen(view(explanation, verbose=verbose))
    best = next((cost.best for cost in explanation.worth_it if cost.best is not None), None)
    if best is not None:
        print_next(*best.command[1:], *again)
    elif whatif is None:
        print_next("rank", *again)


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
        capacity_option(),
        html_option(),
        force_option(),
        verbose_option("all costs, what goes on off the critical path and every note"),
        json_option(),
    ],
)  # fmt: skip
