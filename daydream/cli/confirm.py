"""`daydream confirm`: predict a change from a run, then make it in that run and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.options import CHOSEN, OptionTaker
from daydream.cli.output import help_of
from daydream.cli.source import (
    force_option,
    json_option,
    stdout_for_the_result,
    table_option,
    verbose_option,
)

if TYPE_CHECKING:
    from daydream.collect.launcher.runner import Collected
    from daydream.costs.device.table import KernelTable
    from daydream.trace.trace import Trace
    from daydream.transforms.registry import Optimization


class Confirm(OptionTaker):
    """A command whose first word is an optimization, and which takes that one's options."""

    theirs_first = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the optimizations' name off the front, then parse with their options."""
        named = bool(args) and not args[0].startswith("-")
        # A word alone is the script: as an optimization's file it would be imported, and train.
        if named and (len(args) > 1 or not args[0].endswith(".py")):
            name, *args = args
            with stdout_for_the_result():
                ctx.meta[CHOSEN] = _found(ctx, name)
            ctx.info_name = f"{ctx.info_name} {name}"
        elif not {"--help", "-h"} & set(args):
            raise click.UsageError("name an optimization first, as in: daydream confirm amp train.py", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what follows the command's name in its usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return pieces if ctx.meta.get(CHOSEN) else ["NAME[+NAME...]", *pieces]


def _found(ctx: click.Context, name: str) -> list[Optimization]:
    from daydream.cli.whatif_options import optimizations_named
    from daydream.transforms.registry import loadable

    chosen = optimizations_named(ctx, name)
    for each in chosen:
        if not each.can_be_made:
            able = [known.name for known in loadable()[0] if known.can_be_made]
            raise click.UsageError(
                f"{each.name} can be predicted, not confirmed: daydream cannot make that change in a "
                f"running script. It can make {', '.join(able)}, and what your own file defines "
                "as `apply` or `tool`.",
                ctx,
            )
    return chosen


def _confirm(
    target: str,
    args: tuple[str, ...],
    output: str | None,
    table: str | None,
    steps: int,
    warmup: int,
    rounds: int,
    block_steps: int,
    cpu_time: bool,
    stop_after: bool,
    nproc_per_node: int | None,
    module: bool,
    force: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    r"""Predict a change for a training script, then make it for real and compare.

    \b
    daydream confirm fused-adam train.py --epochs 1
    daydream confirm fused-adam --json -m package.train

    The script runs once, as with `collect`: a few of its steps are recorded and the change is
    predicted from them. Then the script goes on in blocks of steps with and without the
    change, in turns, which are timed without a profiler; at last a few steps with the change are
    recorded, and compared with the prediction. That takes some 130 steps, fewer with `--rounds` and
    `--block-steps`. The result comes when the script ends, or at once with `--stop-after`.
    Options of `confirm` and of the optimization come before the script. The changed steps
    train on, with the change: what the script saves after them is not what it would have been.
    """
    from daydream.cli.changed_run import change_of, run_changed
    from daydream.cli.collect import check_target
    from daydream.cli.failures import INTERRUPTED, message
    from daydream.cli.output import check
    from daydream.cli.whatif_options import option_values
    from daydream.collect.launcher.runner import Recording, command_line
    from daydream.collect.live.messages import changed_path
    from daydream.costs.device.table import KernelTable
    from daydream.errors import DaydreamError
    from daydream.files.own_folders import own_folder
    from daydream.predict.confirm import blocks_of
    from daydream.trace.trace import Trace

    check_target(target, module=module)
    chosen: list[Optimization] = click.get_current_context().meta[CHOSEN]
    values = option_values(chosen, options)
    if output is not None:
        for path in (Path(output), changed_path(Path(output))):
            check(path, force=force)
    measured = None if table is None else KernelTable.load(table)
    change = change_of(chosen, values, rounds=rounds, steps=block_steps, cpu_time=cpu_time)
    with own_folder("daydream") as folder:
        path = Path(output) if output is not None else folder / "confirm.parquet"
        done = run_changed(
            command_line(target, args, module=module, nproc_per_node=nproc_per_node),
            path,
            Recording(steps=steps, warmup=warmup, stop_after=stop_after, change=change),
            force=force,
            own_stdout=as_json,
            kept=output is not None,
        )
        if done.path is None:
            return done.exit_code or 1
        trace = Trace.load(done.path)
        try:  # without the blocks there is nothing to predict for
            blocks_of(trace, rounds=rounds, block_steps=block_steps)
        except DaydreamError:
            if done.exit_code != INTERRUPTED:
                raise
            click.echo(message("interrupted before the change was confirmed"), err=True)
            return done.exit_code
        _show(done, trace, chosen, values, measured, as_json=as_json, verbose=verbose)
        if output is not None:
            for kept in filter(None, (done.path, done.changed)):
                click.echo(f"wrote {kept} ({kept.stat().st_size:,} bytes)", err=True)
        return done.exit_code


def _show(
    done: Collected,
    trace: Trace,
    chosen: list[Optimization],
    values: dict[str, Any],
    table: KernelTable | None,
    *,
    as_json: bool,
    verbose: bool,
) -> None:
    import daydream
    from daydream.cli.failures import of_optimizations
    from daydream.cli.output import print_json, print_screen
    from daydream.predict.confirm import confirmation
    from daydream.report.view import view

    changed = None if done.changed is None else daydream.Trace.load(done.changed)
    replay = daydream.replay(trace, table=table)
    with of_optimizations(click.get_current_context(), "+".join(each.name for each in chosen)):
        predicted = daydream.whatif(replay, chosen, **values)
    found = confirmation(predicted, trace, changed)
    if as_json:
        print_json(found.to_json())
    else:
        print_screen(view(found, verbose=verbose))


def _parameters() -> list[click.Parameter]:
    from daydream.cli.collect import command as collect_command

    shared = {param.name: param for param in collect_command.params}
    kept = ("steps", "warmup", "stop_after", "nproc_per_node", "module", "target", "args")
    return [
        click.Option(["-o", "--output"], metavar="FILE", help="Keep the trace too, under this name."),
        click.Option(
            ["--rounds"], type=click.IntRange(min=3), default=5,
            help="Rounds of three blocks: unchanged, unchanged again, changed; 5 by default.",
        ),
        click.Option(
            ["--block-steps"], type=click.IntRange(min=1), default=5,
            help="Steps of a block that count, after one that does not; 5 by default.",
        ),
        click.Option(
            ["--cpu-time"], is_flag=True,
            help="Time the blocks by the process's CPU time: for training on a CPU that does other work.",
        ),
        *(shared[name] for name in kept[:5]),
        table_option(),
        force_option(),
        verbose_option("phases, layers and kernels"),
        json_option(),
        *(shared[name] for name in kept[5:]),
    ]  # fmt: skip


command = Confirm(
    "confirm",
    callback=_confirm,
    help=help_of(_confirm),
    short_help="Predict a change, make it in the script for real, compare.",
    context_settings={"allow_interspersed_args": False},
    params=_parameters(),
)
