"""`daydream calibrate --tool`: time the operators that a tool changes, in the script that it changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.options import CHOSEN, FlagTaker
from daydream.cli.output import help_of
from daydream.cli.source import force_option, json_option, stdout_for_the_result

if TYPE_CHECKING:
    from daydream.calibration.in_place import InPlaceCalibration
    from daydream.transforms.registry import Optimization

FLAG = "--tool"


class CalibrateTool(FlagTaker):
    """A command that takes the options of the optimization whose tool it applies."""

    flag = FLAG
    theirs_first = True


def wanted(args: list[str]) -> bool:
    """Return whether arguments of `calibrate` ask for this."""
    return any(arg == FLAG or arg.startswith(f"{FLAG}=") for arg in args)


def _calibrate_tool(
    target: str,
    args: tuple[str, ...],
    tool: str,
    output: str,
    steps: int,
    warmup: int,
    module: bool,
    force: bool,
    as_json: bool,
    **options: Any,
) -> int:
    r"""Time the operators that a tool changes, in place: in a script as it trains, before and with it.

    \b
    daydream calibrate --tool ./mine.py -o times.parquet train.py --epochs 1
    daydream whatif ./mine.py --trace trace.parquet --table times.parquet

    The file's `tool` (or an optimization that ships with one, by name) is applied to the running
    script. A few steps are recorded as they are, some 25 steps later a few with the tool, and the
    script ends. Each distinct call (operator, shapes, element type) that the tool acts on is
    compared, forward and backward. Options of the tool come before the script.
    """
    from daydream.calibration.in_place import calibrate_in_place
    from daydream.cli.changed_run import change_of, run_changed
    from daydream.cli.collect import check_target
    from daydream.cli.output import check, print_json, print_next
    from daydream.cli.whatif_options import option_values, typed_options
    from daydream.collect.launcher.runner import Recording, command_line
    from daydream.errors import DaydreamError
    from daydream.files.atomic import own_folder
    from daydream.trace.trace import Trace

    check_target(target, module=module)
    ctx = click.get_current_context()
    chosen: list[Optimization] = ctx.meta[CHOSEN]
    for each in chosen:
        if each.tool is None:
            raise click.UsageError(
                f"{each.name} has no tool: its file should define `tool`, a daydream.instrument.Tool "
                "or what returns one",
                ctx,
            )
    values = option_values(chosen, options)
    check(output, force=force)
    change = change_of(chosen, values, rounds=0, steps=1)
    with own_folder("daydream") as folder:
        done = run_changed(
            command_line(target, args, module=module), folder / "calibrate.parquet",
            Recording(steps=steps, warmup=warmup, stop_after=True, change=change, memory=False),
            own_stdout=True, kept=False,
        )  # fmt: skip
        if done.path is None:
            return done.exit_code or 1
        before = Trace.load(done.path)
        failed = (before.metadata.get("confirmed") or {}).get("failed") or before.metadata.get(
            "changed_not_recorded"
        )
        if failed:
            raise DaydreamError(f"the tool could not be applied in the script: {failed}")
        if done.changed is None:
            raise DaydreamError(
                "the script ended before steps with the tool were recorded. Let it train for about "
                f"{warmup + 2 * steps + 30} steps."
            )
        with stdout_for_the_result():
            result = calibrate_in_place(before, Trace.load(done.changed))
    result.save(output, force=force)
    if as_json:
        print_json({"tool": tool, "output": output, **result.to_json()})
    else:
        click.echo(_text(result))
    click.echo(f"wrote {output} ({Path(output).stat().st_size:,} bytes)", err=True)
    if not as_json:
        print_next("whatif", tool, *typed_options(values), "--trace", "TRACE", "--table", output)
    return 0


def _text(result: InPlaceCalibration) -> str:
    """Return a line for each distinct call and pass, and what was left out."""
    where = "the CPU" if result.device == "cpu" else result.device
    head = (
        f"{len(result.measured)} times of changed operators on {where}; the machine took "
        f"{result.drift:.2f} times as long for what does not change, which is taken out"
    )
    lines = [head]
    width = max(len(each.op) for each in result.measured)
    lines += [
        f"  {each.op:{width}} {each.phase:8} {each.before_ns / 1e3:10,.1f} -> "
        f"{each.duration_ns / 1e3:10,.1f} us  {each.dtype} {each.shapes}"
        for each in result.measured
    ]
    return "\n".join([*lines, *(f"  left out: {text}" for text in result.left_out)])


def _parameters() -> list[click.Parameter]:
    from daydream.cli.collect import command as collect_command

    shared = {param.name: param for param in collect_command.params}
    return [
        click.Option([FLAG], metavar="FILE", required=True, help="A file with a `tool`, or a name."),
        click.Option(
            ["-o", "--output"], default="table.parquet", show_default=True, metavar="FILE",
            help="Where the times are written.",
        ),
        click.Option(
            ["--steps"], type=click.IntRange(min=2), default=5, show_default=True,
            help="Steps to record before, and with the tool.",
        ),
        shared["warmup"], shared["module"],
        force_option(),
        json_option(),
        shared["target"], shared["args"],
    ]  # fmt: skip


command = CalibrateTool(
    "calibrate",
    callback=_calibrate_tool,
    help=help_of(_calibrate_tool),
    short_help="Time the operators that a tool changes.",
    context_settings={"allow_interspersed_args": False},
    params=_parameters(),
)
