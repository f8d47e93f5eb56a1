"""`daydream rank`: every optimization that applies, sorted by what it would save."""

from __future__ import annotations

from typing import Literal

import click

from daydream.cli.source import (
    capacity_option,
    json_option,
    read,
    stdout_for_the_result,
    table_option,
    trace_options,
    trace_words,
    verbose_option,
)

SHOWN = 5
PAIRS = 3


def _rank(
    trace: str,
    step_marker: str | None,
    steps: str | None,
    table: str | None,
    by: Literal["time", "memory"],
    capacity: int | None,
    top: int | None,
    pairs: int,
    no_curves: bool,
    every: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Predict every optimization that applies, alone and in pairs, and sort by what it would save.

    Below each stands the line of a training script that makes the change. "then" says what most
    of the step waits for after it, "needs" what it takes besides code: other hardware, more
    GPUs, or other work, which is a step that computes something else (another batch, other
    layers, another algorithm) and is to be judged by what it trains, too.

    With -v it shows for every layer, operator, kernel family, link and CPU cost how the step
    depends on its speed: what a step would take if it took half its time or none, and from where
    on making it faster stops paying.
    """
    import daydream
    from daydream.cli.output import print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.memory.lifetimes import none_recorded
    from daydream.predict.curves import curves, drawable
    from daydream.predict.rank import rank
    from daydream.predict.suggest import typed
    from daydream.report.view import view
    from daydream.report.views.ranking import best_of

    with Progress() as progress, stdout_for_the_result():
        recording = read([trace], step_marker, steps, progress, typical=True)
        progress("replaying")
        replay = daydream.replay(recording, table=table)
        if by == "memory" and recording.memory is None:
            raise none_recorded(recording)
        # A screen shows few ranges, and says only that there are curves.
        whole = as_json or verbose or by == "memory"
        ranking = rank(
            replay,
            pairs=pairs,
            with_curves=whole and not no_curves,
            by=by,
            capacity=capacity,
            every=every,
            progress=progress,
        )
        undrawn = not whole and not no_curves and drawable(replay)
        if undrawn and not ranking.optimizations:  # then the screen is as with -v
            ranking.curves = curves(replay)
    if as_json:
        print_json({"trace": trace, **ranking.to_json()})
        return
    again = trace_words(trace, step_marker, steps)
    print_screen(view(ranking, top=top or SHOWN, verbose=verbose, undrawn=undrawn))
    best = best_of(ranking)
    if best is None:
        side = "gpu" if ranking.bound == "GPU" else "cpu"
        print_next(*f"whatif scale --on {side} --factor 0.5".split(), *again)
    else:
        words = [best.optimization, *typed(best.options), *again]
        print_next("whatif", *words, *([] if table is None else ["--table", table]))


command = click.Command(
    "rank",
    callback=_rank,
    help=_rank.__doc__,
    short_help="Sort every optimization that applies by what it would save.",
    params=[
        *trace_options(),
        table_option(),
        click.Option(
            ["--by"], type=click.Choice(["time", "memory"]), default="time", show_default=True,
            help="Sort by the step's time, or by the peak of memory, of traces that record it.",
        ),
        capacity_option(),
        click.Option(
            ["--top"], type=click.IntRange(1), metavar="N",
            help=f"How many rows of each table to show, by default {SHOWN}; --json has all.",
        ),
        click.Option(
            ["--pairs"], type=click.IntRange(0, 20), default=PAIRS, show_default=True, metavar="N",
            help="How many of the best pairs to keep; 0 tries none.",
        ),
        click.Option(["--no-curves"], is_flag=True, help="Leave out how the step depends on each part."),
        click.Option(
            ["--all", "every"], is_flag=True,
            help="Rank what the recorded script cannot have, too: changes of papers, or for another device.",
        ),
        verbose_option("how the step depends on each part, what was left out and why, and all notes"),
        json_option(),
    ],
)  # fmt: skip
