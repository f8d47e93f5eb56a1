"""`daydream sweep` and `daydream scaling`: one change with many values of its options, or of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import click

from daydream.cli.commands import (
    MEASURED,
    SOME,
    Change,
    Changes,
    Option,
    Parsed,
    command,
    is_known,
    numbers_of,
    refused,
)
from daydream.cli.output import Output
from daydream.cli.source import TraceRequest, usage_error, working
from daydream.errors import DaydreamError, GraphError
from daydream.lazy import regex
from daydream.transforms.registry import typed

SWITCHES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
MOST_WORKERS = 1 << 20
RANGE = regex(r"(\d+)(?:\.{2,3}|-|:)(\d+)")  # how other tools write one


class Sweep(Changes):
    """A command with the options of what it sweeps, which `--set` may give instead; none is required."""

    optional = True

    def named(self, ctx: click.Context, args: list[str]) -> tuple[str | None, list[str]]:
        """Return what names the change: a word, or `--set NAME.OPTION=LIST`."""
        spec, rest = super().named(ctx, args)
        if spec is None or not is_known(spec):
            parser = self.make_parser(ctx)
            parser.ignore_unknown_options = True
            options = [
                each.partition("=")[0]
                for each in parser.parse_args(list(args))[0].get("varied", ())
            ]
            names = [
                each.rpartition(".")[0].strip().replace("_", "-") for each in options if "." in each
            ]
            if names:
                return "+".join(dict.fromkeys(names)), args
        return spec, rest


@command(
    click.Argument(["traces"], nargs=-1, metavar="TRACE..."),
    Option(
        "--set",
        "varied",
        multiple=True,
        required=True,
        metavar="OPTION=LIST",
        help="An option and its values: 1,2,4,...,64 or a,b; may be repeated.",
    ),
    "output",
    "html",
    "force",
    cls=Sweep,
    types={"top": SOME},
    options_metavar="NAME[+NAME...] [OPTIONS]",
)
def sweep(
    change: Change | None,
    request: TraceRequest,
    out: Output,
    varied: tuple[str, ...],
    *,
    table: str | None = None,
    contention: str = MEASURED,
    capacity: int | None = None,
    engine: Any = "local",
    sort: Literal["throughput", "step", "speedup", "order"] | None = None,
    top: int = 12,
) -> None:
    r"""Predict every combination of some options' values, and sort.

    \b
    daydream sweep ddp t.parquet --set workers=2,4,...,64 --set bucket-mb=10,25

    NAME is what `daydream whatif` takes; --set NAME.OPTION=... names it, too. In a list `...`
    continues the numbers before it. Options that stay are given as in a what-if. Scenarios that do
    not apply are listed with the reason.

    Args:
        output (FILE): Write all scenarios: .csv or .parquet.
        sort: Sort by throughput, step time, speedup, or as asked for [default: throughput].
        top: Rows to show; --json and -o have all.
    """
    if change is None:
        raise usage_error("name an optimization, such as ddp; `daydream whatif --list` shows them")
    from daydream.predict import sweep as sweeps

    fixed = change.values or {}
    values = _values(change, varied)
    (often, count), *_ = Counter(request.traces).most_common(1) or [("", 0)]
    if count > 1:
        raise usage_error(f"the trace {often} is given twice")
    out.check_files(".csv", ".parquet")
    written = []
    with working() as progress:
        recordings = {each.trace: each.load(progress, typical=True) for each in request.each}
        progress("replaying")
        found = sweeps.sweep(
            recordings,
            change.optimizations,
            values,
            table=table,
            contention=contention,
            engine=engine,
            sort=sort,
            capacity=capacity,
            progress=progress,
            **fixed,
        )
        if out.output is not None:
            progress(f"writing {out.output}")
            found.save(out.output, force=out.force)
            written = [f"wrote {out.output}"]
        written += replace(out, output=None).write_files(found, progress)
    words = []
    if found.scenarios and not written:  # the what-if of the first that may fit
        best = next(iter(found.possible), found.scenarios[0])
        same = {"table": table, "contention": None if contention == MEASURED else contention}
        named = "+".join(each.name for each in change.optimizations)
        options = typed({**fixed, **best.options, **same})
        words = ["whatif", named, *options, *replace(request, traces=(best.trace,)).words]
    out.answer(found, written=written, then=words, top=top)
    if not found.scenarios:
        raise DaydreamError("no scenario could be answered; the reasons are listed")


# What --set means ----------------------------------------------------------------------------------


def _values(change: Change, varied: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each option that varies. What cannot be is a usage error."""
    from daydream.predict.sweep import checked
    from daydream.transforms.compose import goes_by, option_names

    named = option_names(change.optimizations)
    fixed = change.values or {}
    values: dict[str, list[Any]] = {}
    for text in varied:
        typed, equals, listed = text.partition("=")
        name = goes_by(named, typed.strip().lstrip("-").replace("-", "_"))
        wrong = None
        if not equals:
            wrong = f"{text!r} is not of the form option=value,value"
        elif name not in named:
            wrong = f"unknown option {typed!r}; choose from {', '.join(named) or 'none'}"
        elif name in values or name in fixed:
            wrong = f"{typed} is given twice"
        else:
            try:
                values[name] = values_of(listed, named[name][1].type)
            except ValueError as error:
                wrong = f"{typed}: {error}"
        if wrong is not None:
            raise click.BadParameter(wrong, click.get_current_context(), param_hint="--set")
    with refused():
        checked(change.optimizations, values, fixed)
    return values


def values_of(text: str, kind: type) -> list[Any]:
    """Return the values of a list as an option of this type takes them: numbers, yes or no, or texts.

    Raises `ValueError` for what is no such value.
    """

    def number(part: str) -> Fraction:
        try:
            value = Fraction(str(float(part)) if "/" in part else part)
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{part!r} is not a number") from None
        if kind is int and value.denominator > 1:
            raise ValueError(f"{part!r} is not a whole number")
        return value

    if kind in (int, float):
        return [kind(each) for each in numbers_of(text, number)]
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{text!r} has an empty value")
    if kind is not bool:
        return parts
    for part in parts:
        if part.lower() not in SWITCHES:
            raise ValueError(f"{part!r} is neither yes nor no")
    return [SWITCHES[part.lower()] for part in parts]


# Scaling -------------------------------------------------------------------------------------------


def workers_of(text: str) -> list[int]:
    """Return the numbers of workers in a list such as `1,2,4,...,64`.

    Raises `ValueError` with what is wrong.
    """

    def number(part: str) -> Fraction:
        if part.isascii() and part.isdigit() and 1 <= int(part) <= MOST_WORKERS:
            return Fraction(part)
        hint = ""
        if meant := RANGE.fullmatch(part):  # by factors of two if they lead to its end
            first, last = map(int, meant.groups())
            times = last // max(first, 1)
            doubled = last == times * first and times & (times - 1) == 0
            following = (2 * first, 4 * first) if doubled else (first + 1, first + 2)
            shown = [first, *following, "...", last] if following[1] < last else [first, last]
            hint = f"; a list is written {','.join(map(str, shown))}"
        raise ValueError(f"{part!r} is not a number of workers from 1 to {MOST_WORKERS:,}{hint}")

    return [int(each) for each in numbers_of(text, number)]


def _plot(text: str) -> str:
    from daydream.report.figures import PLOTS

    if not text.endswith(PLOTS):
        raise ValueError(f"{text!r} ends in none of {', '.join(PLOTS)}")
    return text


class Scaling(Changes):
    """A command with the options of `ddp` but for the number of workers."""

    flag = "ddp"

    def named(self, ctx: click.Context, args: list[str]) -> tuple[str | None, list[str]]:  # noqa: ARG002
        """Return `ddp`, and all arguments."""
        return self.flag, args

    def found(self, ctx: click.Context, spec: str) -> list[Any]:
        """Return `ddp` without its number of workers."""
        (ddp,) = super().found(ctx, spec)
        return [replace(ddp, options=tuple(each for each in ddp.options if each.name != "workers"))]


@command(
    "html",
    "force",
    cls=Scaling,
    types={
        "workers": Parsed(workers_of),
        "jitter": click.FloatRange(0, 1, max_open=True),
        "straggler": click.FloatRange(1),
        "seed": click.IntRange(0),
        "plot": Parsed(_plot),
    },
)
def scaling(
    change: Change,
    request: TraceRequest,
    out: Output,
    *,
    workers: Any = "1,2,4,8,...,1024",
    jitter: float = 0.0,
    straggler: float = 1.0,
    seed: int = 0,
    contention: str = MEASURED,
    capacity: int | None = None,
    plot: str | None = None,
) -> None:
    """Predict throughput and efficiency on many GPUs from the trace of one.

    Each worker trains on as much data as the recorded one (weak scaling), and gradients are exchanged
    as by `whatif ddp`. Throughput is that of all workers, relative to one; efficiency is its share of
    perfect scaling. In a trace that one of several workers recorded, the collectives are resized, and
    of the options of ddp --cluster alone counts. With --jitter and --straggler all workers are
    simulated, each waiting for the last in every collective.

    Args:
        workers (LIST): Numbers of GPUs; ... continues the numbers before it.
        jitter (SHARE): Standard deviation of a worker's step: 0.02 is 2%.
        straggler (FACTOR): How many times as long one worker takes, except for transfers.
        seed: Random seed for --jitter.
        plot (FILE): Draw it too: .png, .svg or .html. Needs matplotlib.
    """
    from daydream.predict import scaling as scales
    from daydream.report.figures import check_plot, draw

    values = change.values or {}
    out.check_files()
    if plot is not None:
        check_plot(plot)
        out.check(plot)
    with working() as progress:
        replay = request.replay(progress)
        try:
            found = scales.scaling(
                replay,
                workers,
                jitter=jitter,
                straggler=straggler,
                seed=seed,
                contention=contention,
                capacity=capacity,
                progress=progress,
                **values,
            )
        except GraphError as error:
            if type(error) is not GraphError:
                raise  # nothing to scale, with the reason
            raise usage_error(str(error)) from error
        if plot is not None:
            progress(f"writing {plot}")
            draw(found, plot, force=out.force)
        written = [*([f"wrote {plot}"] if plot else []), *out.write_files(found, progress)]
    words = ["whatif", "network", "--bandwidth-factor", "2"]
    if found.recorded_workers == 1:
        words = ["whatif", "ddp", "--workers", str(max(*workers, 2)), *typed(values)]
    words += typed({"contention": None if contention == MEASURED else contention})
    then = [] if written else [*words, *request.words]
    out.answer(found, {"trace": request.trace}, written=written, then=then)
