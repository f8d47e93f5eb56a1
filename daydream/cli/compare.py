"""`daydream compare`: two traces side by side, or a prediction and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from daydream.cli.options import CHOSEN, FlagTaker
from daydream.cli.output import help_of
from daydream.cli.source import (
    cache_option,
    json_option,
    read,
    stdout_for_the_result,
    step_options,
    trace_words,
    verbose_option,
)

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.transforms.registry import Optimization

SHOWN = 3


class Compare(FlagTaker):
    """A command that takes the options of the optimizations that `--whatif` names."""

    flag = "--whatif"


def _compare(
    before: str,
    after: str,
    step_marker: str | None,
    steps: str | None,
    whatif: str | None,
    top: int | None,
    verbose: bool,
    as_json: bool,
    as_markdown: bool,
    **options: Any,
) -> None:
    r"""Compare the steps of two traces: what changed, and what did not.

    \b
    daydream compare before.json.gz after.json.gz
    daydream compare before.json.gz after.json.gz --whatif amp

    BEFORE and AFTER are parquet traces or anything `daydream import` accepts. Layers,
    operators and kernels are matched by layer and operator, then by name. With --whatif the
    change is predicted from BEFORE, and the prediction is compared with AFTER, which was
    recorded when the change had been made.
    """
    import daydream
    from daydream.cli.output import print_json, print_screen
    from daydream.cli.progress import Progress
    from daydream.errors import GraphError
    from daydream.predict.compare import compare
    from daydream.report.view import view

    if as_json and as_markdown:
        raise click.UsageError("give either --json or --markdown", click.get_current_context())
    with Progress() as progress, stdout_for_the_result():
        replays: list[Replay] = []
        for trace in (before, after):
            recording = read([trace], step_marker, steps, progress, typical=True)
            progress(f"replaying {trace}")
            try:
                replays.append(daydream.replay(recording))
            except GraphError as error:  # of two traces, say which
                raise GraphError(f"{trace}: {error}") from None
        first: Replay | Prediction = replays[0]
        if whatif is not None:
            progress(f"predicting {whatif}")
            first = _predicted(replays[0], options, trace_words(before, step_marker, steps))
        found = compare(first, replays[1], names=(before, after))
    if as_json:
        print_json(found.to_json())
    elif as_markdown:
        from daydream.report.markdown import markdown

        click.echo(markdown(view(found)), nl=False)
    else:
        print_screen(view(found, top=top or SHOWN, verbose=verbose))


def _predicted(replay: Replay, options: dict[str, Any], trace: list[str]) -> Prediction:
    """Return the prediction; a value that an optimization cannot work with is a usage error."""
    import daydream
    from daydream.cli.failures import of_optimizations, with_advice
    from daydream.cli.whatif_options import option_values

    ctx = click.get_current_context()
    chosen: list[Optimization] = ctx.meta[CHOSEN]
    name = "+".join(each.name for each in chosen)
    with of_optimizations(ctx, name), with_advice(replay.graph, chosen, trace):
        return daydream.whatif(replay, chosen, **option_values(chosen, options))


command = Compare(
    "compare",
    callback=_compare,
    help=help_of(_compare),
    short_help="Compare two traces, or a prediction with what was measured.",
    params=[
        click.Argument(["before"], metavar="BEFORE"),
        click.Argument(["after"], metavar="AFTER"),
        *step_options(),
        cache_option(),
        click.Option(
            ["--whatif"], metavar="NAME[+NAME...]",
            help="Predict this change from BEFORE, and compare the prediction with AFTER. Takes its options.",
        ),
        click.Option(
            ["--top"], type=click.IntRange(1), metavar="N",
            help=f"How many rows of each part to show, by default {SHOWN}; --json has all.",
        ),
        verbose_option("phases, layers and kernels, and what runs meanwhile"),
        json_option(),
        click.Option(
            ["--markdown", "as_markdown"], is_flag=True,
            help="Print Markdown for a pull request: before, predicted and after, and what changed most.",
        ),
    ],
)  # fmt: skip
