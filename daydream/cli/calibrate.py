"""`daydream calibrate`: time operators on this machine, of a trace or in a script, for better predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from daydream.cli.commands import Change, Changes, command
from daydream.cli.options import COUNTS, SECONDS, Option
from daydream.cli.output import Output, wrote
from daydream.cli.source import Script, TraceRequest, usage_error, working

if TYPE_CHECKING:
    from daydream.calibration import Calibration
    from daydream.calibration.run import InPlaceCalibration

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
