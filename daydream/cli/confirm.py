"""`daydream confirm` and `calibrate`: a change is made in a running script; operators are timed on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from daydream.cli.commands import COUNTS, SECONDS, SOME, Change, Changes, Option, command
from daydream.cli.output import Output, wrote
from daydream.cli.source import Script, TraceRequest, usage_error, working

if TYPE_CHECKING:
    from daydream.calibration import Calibration
    from daydream.calibration.run import InPlaceCalibration


class Confirm(Changes):
    """A command whose first word is a change that daydream can make in a running script."""

    def named(self, ctx: click.Context, args: list[str]) -> tuple[str | None, list[str]]:
        """Return the first word; alone it is the script, as an optimization's file it would train."""
        if args and not args[0].startswith("-") and (len(args) > 1 or not args[0].endswith(".py")):
            return args[0], args[1:]
        if not {"--help", "-h", "--help-all"} & set(args):
            raise click.UsageError(
                "name an optimization first, as in: daydream confirm amp train.py", ctx
            )
        return None, args

    def found(self, ctx: click.Context, spec: str) -> list[Any]:
        """Return the optimizations. One that cannot be made is a usage error."""
        from daydream.transforms.registry import loadable

        chosen = super().found(ctx, spec)
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


@command(
    "verbose",
    "output",
    "force",
    "nproc_per_node",
    cls=Confirm,
    types={**COUNTS, "rounds": click.IntRange(3), "block_steps": SOME},
    options_metavar="NAME[+NAME...] [OPTIONS]",
)
def confirm(
    change: Change,
    out: Output,
    script: Script,
    *,
    table: str | None = None,
    rounds: int = 5,
    block_steps: int = 5,
    cpu_time: bool = False,
    steps: int = 3,
    warmup: int = 5,
    stop_after: bool = False,
) -> int:
    r"""Predict a change for a training script, then make it for real and compare.

    \b
    daydream confirm fused-adam train.py --epochs 1
    daydream confirm fused-adam --json -m package.train

    The script runs once, as with `collect`: a few of its steps are recorded and the change is
    predicted from them. Then blocks of steps with and without the change take turns, timed without a
    profiler. Finally, a few steps with the change are recorded, and compared with the prediction.
    That takes some 130 steps, fewer with `--rounds` and `--block-steps`. The result comes when the
    script ends, or at once with `--stop-after`. Options come before the script. The changed steps
    train on, with the change: what the script saves after them is not what it would have been.

    Args:
        output (FILE): Keep the trace too, under this name.
        rounds: Rounds of three blocks: unchanged, unchanged again, changed.
        block_steps: Steps of a block, after one that does not count.
        cpu_time: Time blocks by CPU time: for training on a busy CPU.
        steps: Steps to capture.
        warmup: Steps to skip first.
        stop_after: End the script when the comparison is done.
    """
    import daydream
    from daydream.cli import INTERRUPTED, message
    from daydream.collect.launcher.runner import Recording, changed_path
    from daydream.costs.device.measured import KernelTable
    from daydream.errors import DaydreamError
    from daydream.files.atomic import own_folder
    from daydream.predict import confirm as confirms

    script.check()
    if out.output is not None:
        for path in (Path(out.output), changed_path(Path(out.output))):
            out.check(path)
    measured = None if table is None else KernelTable.load(table)
    made = change.to_make(rounds=rounds, steps=block_steps, cpu_time=cpu_time)
    with own_folder("daydream") as folder:
        done = script.record(
            Path(out.output or folder / "confirm.parquet"),
            Recording(
                steps=steps,
                warmup=warmup,
                stop_after=stop_after,
                change=made,
            ),
            force=out.force,
            own_stdout=out.as_json,
            kept=out.output is not None,
        )
        if done.path is None:
            return done.exit_code or 1
        trace = daydream.Trace.load(done.path)
        try:  # without the blocks there is nothing to predict for
            confirms.blocks_of(trace, rounds=rounds, block_steps=block_steps)
        except DaydreamError:
            if done.exit_code != INTERRUPTED:
                raise
            click.echo(message("interrupted before the change was confirmed"), err=True)
            return done.exit_code
        changed = None if done.changed is None else daydream.Trace.load(done.changed)
        replay = daydream.replay(trace, table=measured)
        with change.checked():
            predicted = daydream.whatif(replay, change.optimizations, **(change.values or {}))
        found = confirms.confirmation(predicted, trace, changed)
        kept = filter(None, (done.path, done.changed)) if out.output is not None else ()
        out.answer(found, written=wrote(*kept))
        return done.exit_code


@command()
def judge(public: str | None = None) -> None:
    """Check every published figure: README and docs/accuracy.md, computed again from recordings.

    Takes minutes, in a checkout of the repository, whose recordings it needs. Exits with 1 if a figure differs.

    Args:
        public (DIR): A folder of public traces. Without it their figures are named, not computed.
    """
    import subprocess
    import sys

    from daydream.errors import FileError

    evaluate = Path(__file__).parents[2] / "validation" / "evaluate.py"
    if not evaluate.exists():
        raise FileError("this needs a checkout: the recordings in validation/ are not installed")
    words = ["--traces", public] if public else []
    sys.exit(subprocess.call([sys.executable, evaluate, "judge", *words]))  # noqa: S603 - a script of ours


SHOWN = 4  # operators by name, of those left out for one reason
TABLE = "table.parquet"


class Calibrate(Changes):
    """A command with the options of the change it is given; with `--tool` it is `in_place`."""

    flag = "optimization"

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of what is asked for."""
        if any(arg.partition("=")[0] == "--tool" for arg in args):
            return in_place.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


class InPlace(Changes):
    """A command with the options of the change whose tool it applies to a script."""

    flag = "tool"


@command(
    Option(
        "--tool",
        metavar="FILE",
        expose_value=False,
        help="Time what this tool changes in a script, instead.",
    ),
    "output",
    "force",
    cls=Calibrate,
    types={"total_limit": SECONDS, "call_limit": SECONDS},
)
def calibrate(
    change: Change | None,
    request: TraceRequest,
    out: Output,
    *,
    optimization: str | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    total_limit: float = 120.0,
    call_limit: float = 0.2,
) -> None:
    r"""Time the operators of a trace on this machine, for better predictions.

    \b
    daydream calibrate trace.parquet --optimization amp -o times.parquet
    daydream whatif amp trace.parquet --table times.parquet

    Each distinct operator call (name, shapes, element type) is timed, the most expensive first.
    With --optimization it is timed as recorded and as changed; the change's own options may be
    given too. Without it, only as recorded: on another GPU, these are the times for `whatif gpu`.
    Needs torch, but no model and no data.

    \b
    daydream calibrate --tool ./mine.py train.py

    With --tool the operators that a tool changes are timed in the script that it changes, before and
    with it; see `daydream calibrate --tool FILE --help`.

    Args:
        output (FILE): Where the times are written [default: table.parquet].
        optimization (NAME[+NAME...]): Measure what this change needs, before and after it.
        device: Where to run [default: as recorded].
        total_limit (SECONDS): Leave out what is not reached by then.
        call_limit (SECONDS): How long one call is repeated, at most.
    """
    from daydream import calibration

    change = change or Change("calibrate", [])
    output = out.output or TABLE
    out.check(output)
    with working() as progress:
        trace = request.load(progress)
        with change.checked():
            found = calibration.calibrate(
                trace,
                list(change.optimizations),
                change.values or {},
                device=device,
                total_limit_s=total_limit,
                call_limit_s=call_limit,
                progress=progress,
            )
        found.save(output, force=out.force)
    words = ["whatif", *change.words, *request.words, "--table", output]
    head = {"trace": request.trace, "optimization": optimization, "output": output}
    then = words if optimization is not None else []
    out.emit(found, lambda: _text(found), written=wrote(output), then=then, **head)


def _where(found: Calibration | InPlaceCalibration) -> str:
    return "the CPU" if found.device == "cpu" else found.device


def _text(found: Calibration) -> str:
    """Return what was measured and what was not, a line for each reason."""
    count = f"{len(found.measured):,} of {found.asked:,} operator calls"
    lines = [f"{count} timed on {_where(found)} in {found.seconds:.1f} s"]
    for reason, calls in sorted(found.reasons().items(), key=lambda pair: -len(pair[1])):
        names = sorted({call.op for call in calls})
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"  left out {len(calls):,}: {reason} ({', '.join(names[:SHOWN])}{more})")
    return "\n".join(lines)


@command(
    "output",
    "force",
    cls=InPlace,
    types={
        **COUNTS,
        "steps": click.IntRange(2),
    },
)
def in_place(
    change: Change,
    out: Output,
    script: Script,
    *,
    tool: str,
    steps: int = 5,
    warmup: int = 5,
) -> int:
    r"""Time the operators that a tool changes, in a script as it trains, before and with it.

    \b
    daydream calibrate --tool ./mine.py -o times.parquet train.py --epochs 1
    daydream whatif ./mine.py trace.parquet --table times.parquet

    The file's `tool` (or an optimization that ships with one, by name) is applied to the running
    script. A few steps are recorded as they are, some 25 steps later a few with the tool, and the
    script ends. Each distinct call (operator, shapes, element type) that the tool acts on is
    compared, forward and backward. Options of the tool come before the script.

    Args:
        output (FILE): Where the times are written [default: table.parquet].
        tool (FILE): A file with a `tool`, or a name.
        steps: Steps to record before, and with the tool.
        warmup: Steps to skip first.
    """
    from daydream.calibration.run import calibrate_in_place
    from daydream.collect.launcher.runner import Recording
    from daydream.errors import DaydreamError
    from daydream.files.atomic import own_folder
    from daydream.trace.trace import Trace

    script.check()
    for each in change.optimizations:
        if each.tool is None:
            raise usage_error(
                f"{each.name} has no tool: its file should define `tool`, a daydream.instrument.Tool "
                "or what returns one"
            )
    output = out.output or TABLE
    out.check(output)
    with own_folder("daydream") as folder:
        recording = Recording(
            steps=steps,
            warmup=warmup,
            stop_after=True,
            change=change.to_make(rounds=0, steps=1),
            memory=False,
        )
        done = script.record(
            folder / "calibrate.parquet",
            recording,
            own_stdout=True,
            kept=False,
        )
        if done.path is None:
            return done.exit_code or 1
        before = Trace.load(done.path)
        failed = (before.metadata.get("confirmed") or {}).get("failed")
        failed = failed or before.metadata.get("changed_not_recorded")
        if failed:
            raise DaydreamError(f"the tool could not be applied in the script: {failed}")
        if done.changed is None:
            raise DaydreamError(
                "the script ended before steps with the tool were recorded. Let it train for about "
                f"{warmup + 2 * steps + 30} steps."
            )
        with working():
            found = calibrate_in_place(before, Trace.load(done.changed))
    found.save(output, force=out.force)
    then = ["whatif", *change.words, "TRACE", "--table", output]
    head = {"tool": tool, "output": output}
    out.emit(found, lambda: _in_place_text(found), written=wrote(output), then=then, **head)
    return 0


def _in_place_text(found: InPlaceCalibration) -> str:
    """Return a line for each distinct call and pass, and what was left out."""
    head = (
        f"{len(found.measured)} times of changed operators on {_where(found)}; the unchanged "
        f"operators took {found.drift:.2f} times as long, which is corrected for"
    )
    width = max(len(each.op) for each in found.measured)
    lines = [
        f"  {each.op:{width}} {each.phase:8} {each.before_ns / 1e3:10,.1f} -> "
        f"{each.duration_ns / 1e3:10,.1f} us  {each.dtype} {each.shapes}"
        for each in found.measured
    ]
    return "\n".join([head, *lines, *(f"  left out: {text}" for text in found.left_out)])


in_place.name = "calibrate"
