"""`daydream confirm`: predict a change from a run, then make it in that run and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from daydream.cli.commands import Change, Changes, command
from daydream.cli.options import COUNTS, SOME
from daydream.cli.output import Output, wrote
from daydream.cli.source import Script


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
    from daydream.cli.errors import INTERRUPTED, message
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
