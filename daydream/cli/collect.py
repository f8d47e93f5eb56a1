"""`daydream collect`: an unmodified training script in, a trace out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from daydream.cli.output import help_of
from daydream.cli.source import force_option, json_option

if TYPE_CHECKING:
    from daydream.cli.suggestions import Suggestions
    from daydream.collect.launcher.runner import Collected

FAILED = 1
SIGNALLED = 128  # and the signal's number: the exit code of what a signal ended


def _collect(
    target: str,
    args: tuple[str, ...],
    output: str | None,
    steps: int,
    warmup: int,
    stop_after: bool,
    with_stack: bool,
    memory: bool,
    nproc_per_node: int | None,
    module: bool,
    no_suggestions: bool,
    force: bool,
    as_json: bool,
) -> int:
    r"""Run a training script as it is, and record a few of its steps.

    \b
    daydream collect train.py --epochs 1
    daydream collect -o run.parquet -m package.train --epochs 1
    daydream collect --nproc-per-node 2 train.py

    Options of `collect` come before the script, everything after it is the script's
    own. The first steps are skipped, the next ones timed without a profiler, then a few
    are captured, and the script goes on unchanged. Its exit code is passed on. At the end the
    three changes that would shorten the step most are named, with the code that makes them.
    """
    from daydream.cli.failures import message
    from daydream.cli.output import check, quoted
    from daydream.collect.launcher.runner import Recording, collect, command_line

    check_target(target, module=module)
    path = _output(target, output, module=module)
    check(path, force=force)
    done = collect(
        command_line(target, args, module=module, nproc_per_node=nproc_per_node),
        path,
        Recording(steps=steps, warmup=warmup, stop_after=stop_after, with_stack=with_stack, memory=memory),
        force=force,
        say=lambda text: click.echo(f"daydream: {text}", err=True),
        own_stdout=as_json,
    )
    for problem in done.problems:
        click.echo(message(problem) if done.path is None else f"note: {problem}", err=True)
    restless = None if done.path is None else _unrest(done.path)
    if restless:
        click.echo(f"note: {restless}", err=True)
    found = None if done.path is None or no_suggestions else _suggestions(done.path, done.exit_code)
    if as_json:
        _print_json(done, restless, found)
    if done.path is None:
        return done.exit_code or FAILED
    if as_json:
        return done.exit_code
    click.echo(f"wrote {done.path} ({done.path.stat().st_size:,} bytes)", err=True)
    for line in [] if found is None else found.lines(done.path):
        click.echo(line, err=True)
    click.echo(f"next: daydream info {quoted(done.path)}", err=True)
    return done.exit_code


def check_target(target: str, *, module: bool) -> None:
    """Raise a usage error if the script is not there."""
    if module or Path(target).exists():
        return
    hint = ""
    if Path(target).name.startswith(("python", "torchrun")):
        hint = " Name the training script alone; --nproc-per-node starts several processes."
    raise click.BadParameter(
        f"{target!r} is not a file.{hint}", click.get_current_context(), param_hint="SCRIPT"
    )


def _output(target: str, output: str | None, *, module: bool) -> Path:
    """Return where to write: `train.py` and `-m package.train` give `train.parquet`."""
    stem = target.rpartition(".")[2] if module else Path(target).resolve().stem
    name = f"{stem}.parquet"
    path = Path(output or name)
    return path / name if path.is_dir() else path


def _unrest(path: Path) -> str | None:
    """Return why the recording seems not to have been made at rest, as `replay` and `info` say it.

    The replay that this takes is kept in the user's cache: the suggestions, and the first question, need it.
    """
    import daydream
    from daydream.cli.progress import Progress
    from daydream.cli.source import read
    from daydream.errors import GraphError

    try:
        with Progress() as progress:
            trace = read((str(path),), None, None, progress, typical=True)
        return daydream.replay(trace).unrest
    except GraphError:  # there is no step to judge; `info` says why
        return None


def _suggestions(path: Path, exit_code: int) -> Suggestions | None:
    """Return the largest suggestions; None where a signal ended the script, as somebody wants to be done."""
    if exit_code > SIGNALLED:
        return None
    from daydream.cli.suggestions import suggestions

    return suggestions(path)


def _print_json(done: Collected, restless: str | None, suggested: Suggestions | None) -> None:
    from daydream.cli.output import print_json

    found: dict[str, object] = {}
    if done.path is not None:
        from daydream.trace.trace import Trace

        trace = Trace.load(done.path)
        steps = trace.metadata.get("steps", [])
        found = {
            "rows": len(trace),
            "ranks": sorted({step.get("rank", 0) for step in steps}),
            "steps": len(steps),
            "covered": sum(bool(step.get("covered")) for step in steps),
            "bytes": done.path.stat().st_size,
            "notes": [*trace.metadata.get("notes", []), *filter(None, [restless])],
            "suggestions": None if suggested is None else list(suggested.entries),
        }
    print_json({
        "trace": None if done.path is None else str(done.path),
        "exit_code": done.exit_code,
        "problems": done.problems,
        **found,
    })  # fmt: skip


command = click.Command(
    "collect",
    callback=_collect,
    help=help_of(_collect),
    short_help="Record a few steps of a training script, unmodified.",
    context_settings={"allow_interspersed_args": False},
    params=[
        click.Option(
            ["-o", "--output"],
            metavar="FILE",
            help="Where to write; the script's name with .parquet in the current folder if not given.",
        ),
        click.Option(
            ["--steps"], type=click.IntRange(min=1), default=3, help="Steps to capture; 3 by default."
        ),
        click.Option(
            ["--warmup"], type=click.IntRange(min=0), default=5, help="Steps to skip first; 5 by default."
        ),
        click.Option(["--stop-after"], is_flag=True, help="End the script when the steps are captured."),
        click.Option(
            ["--with-stack"],
            is_flag=True,
            help="Record which function called what, for `explain`; the captured steps take longer by that.",
        ),
        click.Option(
            ["--memory/--no-memory"],
            default=True,
            help="Record allocations and frees, or do not; they are recorded by default.",
        ),
        click.Option(
            ["--nproc-per-node"],
            type=click.IntRange(min=1),
            help="Start this many processes with torch.distributed.run; one trace holds every rank.",
        ),
        click.Option(
            ["--no-suggestions"],
            is_flag=True,
            help="Do not predict at the end what would shorten the step; that takes a few seconds.",
        ),
        click.Option(["-m", "module"], is_flag=True, help="Run a module, as `python -m` does."),
        force_option(),
        json_option(),
        click.Argument(["target"], metavar="[-m MODULE | SCRIPT]"),
        click.Argument(["args"], nargs=-1, type=click.UNPROCESSED, metavar="[ARGS...]"),
    ],
)
