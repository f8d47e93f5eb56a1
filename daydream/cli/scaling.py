"""`daydream scaling`: the trace of one worker on many."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import click

from daydream.cli.options import contention_option, numbers_of
from daydream.cli.source import (
    capacity_option,
    force_option,
    json_option,
    read,
    stdout_for_the_result,
    trace_options,
    trace_words,
)
from daydream.lazy import regex

DEFAULT = "1,2,4,8,...,1024"
PLOTS = (".png", ".svg", ".html")
MOST_WORKERS = 1 << 20
RANGE = regex(r"(\d+)(?:\.{2,3}|-|:)(\d+)")  # how other tools write one


def numbers_in(text: str) -> list[int]:
    """Return the numbers of a list such as `1,2,4,...,64`: `...` goes on as the numbers before it do.

    Raises `ValueError` with what is wrong.
    """
    return [int(number) for number in numbers_of(text, _number)]


def _number(text: str) -> Fraction:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST_WORKERS:
        meant = RANGE.fullmatch(text)
        hint = f"; a list is written {_as_list(*map(int, meant.groups()))}" if meant else ""
        raise ValueError(f"{text!r} is not a number of workers from 1 to {MOST_WORKERS:,}{hint}")
    return Fraction(text)


def _as_list(first: int, last: int) -> str:
    """Return a range as `--workers` takes it, by factors of two if they lead to its end."""
    times = last // max(first, 1)
    doubled = last == times * first and times & (times - 1) == 0
    following = (2 * first, 4 * first) if doubled else (first + 1, first + 2)
    return ",".join(map(str, [first, *following, "...", last])) if following[1] < last else f"{first},{last}"


def _workers(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        return numbers_in(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _plot(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.endswith(PLOTS):
        raise click.BadParameter(f"{value!r} ends in none of {', '.join(PLOTS)}", ctx, param)
    return value


class Scaling(click.Command):
    """A command that takes the options of `ddp` but for the number of workers."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options and those of the optimization."""
        from daydream.cli.whatif_options import click_options

        own = super().get_params(ctx)
        return [*own, *click_options([_ddp()], own)]


def _ddp() -> Any:
    from daydream.transforms.registry import find

    ddp = find("ddp")
    return replace(ddp, options=tuple(option for option in ddp.options if option.name != "workers"))


def _scaling(
    trace: str,
    step_marker: str | None,
    steps: str | None,
    workers: list[int],
    jitter: float,
    straggler: float,
    seed: int,
    contention: str,
    capacity: int | None,
    plot: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict throughput and efficiency on many GPUs from the trace of one.

    Each worker trains on as much data as the one that was recorded, and gradients are exchanged
    as by `whatif ddp`, whose options are this command's too. Throughput is that of all workers,
    relative to the one; efficiency is its share of what as many times one would give. A trace
    that one of several workers recorded has its collectives already: they are resized, and of
    these options --cluster alone counts.

    With --jitter and --straggler the workers are simulated side by side, each waiting for the
    last in every collective.
    """
    import daydream
    from daydream.cli.output import check, print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.cli.whatif_options import option_values, typed_options
    from daydream.errors import GraphError
    from daydream.predict.contention_option import MEASURED
    from daydream.predict.scaling import scaling
    from daydream.report.scaling_plot import check_plot, draw
    from daydream.report.view import view

    if plot is not None:
        check_plot(plot)
        check(plot, force=force)
    values = option_values([_ddp()], options)
    with Progress() as progress, stdout_for_the_result():
        recording = read([trace], step_marker, steps, progress, typical=True)
        progress("replaying")
        replay = daydream.replay(recording)
        try:
            found = scaling(
                replay, workers, jitter=jitter, straggler=straggler, seed=seed, contention=contention,
                capacity=capacity, progress=progress, **values,
            )  # fmt: skip
        except GraphError as error:
            if type(error) is not GraphError:
                raise  # nothing to scale, with the reason
            raise click.UsageError(str(error), click.get_current_context()) from error
        if plot is not None:
            progress(f"writing {plot}")
            draw(found, plot, force=force)
    if as_json:
        print_json({"trace": trace, **found.to_json()})
    else:
        print_screen(view(found))
    if plot is not None:
        click.echo(f"wrote {plot}", err=True)
    elif not as_json:
        again = typed_options({"contention": None if contention == MEASURED else contention})
        again += trace_words(trace, step_marker, steps)
        if found.recorded_workers == 1:
            print_next("whatif", "ddp", "--workers", str(max(*workers, 2)), *typed_options(values), *again)
        else:
            print_next("whatif", "network", "--bandwidth-factor", "2", *again)


command = Scaling(
    "scaling",
    callback=_scaling,
    help=_scaling.__doc__,
    short_help="Predict one GPU's trace on many: throughput, efficiency, what bounds it.",
    params=[
        *trace_options(),
        click.Option(
            ["--workers"], callback=_workers, default=DEFAULT, show_default=True, metavar="LIST",
            help="Numbers of GPUs; ... continues the numbers before it.",
        ),
        click.Option(
            ["--jitter"], type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="SHARE",
            help="How much a worker's step varies: 0.02 is a standard deviation of 2 %.",
        ),
        click.Option(
            ["--straggler"], type=click.FloatRange(1), default=1.0, metavar="FACTOR",
            help="One of the workers takes this many times as long for everything but transfers.",
        ),
        click.Option(["--seed"], type=click.IntRange(0), default=0, metavar="N", help="Of the jitter."),
        contention_option(),
        capacity_option(),
        click.Option(
            ["--plot"], metavar="FILE", callback=_plot,
            help="Draw it too: .png, .svg or .html. Needs matplotlib.",
        ),
        force_option(),
        json_option(),
    ],
)  # fmt: skip
