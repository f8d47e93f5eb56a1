"""`daydream calibrate`: time a trace's operators on this machine, for better predictions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.options import CHOSEN, FlagTaker
from daydream.cli.output import help_of
from daydream.cli.source import (
    force_option,
    json_option,
    read,
    stdout_for_the_result,
    trace_options,
    trace_words,
)

if TYPE_CHECKING:
    from daydream.calibration import Calibration
    from daydream.transforms.registry import Optimization

FLAG = "--optimization"
SHOWN = 4  # operators by name, of those left out for one reason


class Calibrate(FlagTaker):
    """A command that takes the options of the optimization it is given."""

    flag = FLAG

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of what is asked for: with `--tool` that of `calibrate_tool.py`."""
        from daydream.cli import calibrate_tool

        if calibrate_tool.wanted(args):
            return calibrate_tool.command.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _calibrate(
    trace: str,
    step_marker: str | None,
    steps: str | None,
    optimization: str | None,
    output: str,
    device: str | None,
    total_limit: float,
    call_limit: float,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    r"""Time the operators of a trace on this machine, for better predictions.

    \b
    daydream calibrate --trace trace.parquet --optimization amp -o times.parquet
    daydream whatif amp --trace trace.parquet --table times.parquet

    Each distinct operator call (name, shapes, element type) runs for a moment, those first that
    took most of the time: with --optimization as recorded and as that change would have it, and the
    change's own options can be given too. Without it, only as recorded: run on another GPU, that
    gives the times for `whatif gpu`. Needs torch, and no model and no data.

    \b
    daydream calibrate --tool ./mine.py train.py

    With --tool the operators that a tool changes are timed in the script that it changes, before and
    with it; `daydream calibrate --tool FILE --help` tells more.
    """
    from daydream.calibration import calibrate
    from daydream.cli.failures import of_optimizations
    from daydream.cli.output import check, print_json, print_next
    from daydream.cli.progress import Progress
    from daydream.cli.whatif_options import option_values, typed_options

    ctx = click.get_current_context()
    chosen: list[Optimization] = ctx.meta.get(CHOSEN) or []
    values = option_values(chosen, options)
    check(output, force=force)
    with Progress() as progress, stdout_for_the_result():
        recording = read([trace], step_marker, steps, progress)
        with of_optimizations(ctx, optimization or "calibrate"):
            result = calibrate(
                recording, chosen, values, device=device,
                total_limit_s=total_limit, call_limit_s=call_limit, progress=progress,
            )  # fmt: skip
        result.save(output, force=force)
    if as_json:
        print_json({"trace": trace, "optimization": optimization, "output": output, **result.to_json()})
    else:
        click.echo(_text(result))
    click.echo(f"wrote {output} ({Path(output).stat().st_size:,} bytes)", err=True)
    if optimization is not None and not as_json:
        again = trace_words(trace, step_marker, steps)
        print_next("whatif", optimization, *typed_options(values), *again, "--table", output)


def _text(result: Calibration) -> str:
    """Return what was measured and what was not, a line for each reason."""
    count = f"{len(result.measured):,} of {result.asked:,} operator calls"
    lines = [f"{count} timed on {_device(result)} in {result.seconds:.1f} s"]
    for reason, calls in sorted(result.reasons().items(), key=lambda pair: -len(pair[1])):
        names = sorted({call.op for call in calls})
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"  left out {len(calls):,}: {reason} ({', '.join(names[:SHOWN])}{more})")
    return "\n".join(lines)


def _device(result: Calibration) -> str:
    return "the CPU" if result.device == "cpu" else result.device


def _positive(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 < value < float("inf"):
        raise click.BadParameter("give a number of seconds above 0.", ctx, param)
    return value


command = Calibrate(
    "calibrate",
    callback=_calibrate,
    help=help_of(_calibrate),
    short_help="Time a trace's operators on this machine, for better predictions.",
    params=[
        *trace_options(),
        click.Option(
            [FLAG], metavar="NAME[+NAME...]", help="Measure what this change asks for, before and after it."
        ),
        click.Option(
            ["--tool"], metavar="FILE", expose_value=False,
            help="Time what this tool changes, in the script that follows, instead of a trace's operators.",
        ),
        click.Option(
            ["-o", "--output"], default="table.parquet", show_default=True, metavar="FILE",
            help="Where the times are written.",
        ),
        click.Option(
            ["--device"], type=click.Choice(["cpu", "cuda"]), help="By default where the trace's work ran."
        ),
        click.Option(
            ["--total-limit"], type=float, default=120.0, show_default=True, callback=_positive,
            metavar="SECONDS", help="Leave out what is not reached by then.",
        ),
        click.Option(
            ["--call-limit"], type=float, default=0.2, show_default=True, callback=_positive,
            metavar="SECONDS", help="How long one call is repeated, at most.",
        ),
        force_option(),
        json_option(),
    ],
)  # fmt: skip
