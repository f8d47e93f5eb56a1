"""`daydream info`, `replay`, `report`, `compare` and `blame`: what a trace holds, how it replays, what changed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daydream.cli.commands import Change, Changes, command
from daydream.cli.options import SOME
from daydream.cli.output import TIMELINES, Output, trace_name, wrote
from daydream.cli.source import TraceRequest, note_missing_engine, usage_error, working
from daydream.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.report.blocks import Block

SHOWN = 3


@command("verbose", "output", "force")
def info(request: TraceRequest, out: Output, *, anonymous: bool = False) -> None:
    """Show what a trace holds, and which questions it can answer.

    TRACE is a parquet trace or anything `daydream import` accepts. The trace is replayed as well:
    how well that works tells most about how far to trust it.

    Args:
        output (FILE): Where --anonymous writes [default: the trace's name, .anonymous.parquet].
        anonymous: Write the trace without names, paths and machines instead, to attach to an issue.
    """
    from daydream.report.info import overview

    if anonymous:
        _write_anonymous(request, out)
        return
    if out.output is not None:
        raise usage_error("-o goes with --anonymous")
    with working() as progress:
        trace = request.load(progress)
        progress("replaying")
        found = overview(trace)
    note_missing_engine()
    then = [] if found.replay is None else ["explain", *request.words]
    out.answer(found, {"trace": request.trace}, then=then)


def _write_anonymous(request: TraceRequest, out: Output) -> None:
    from daydream.cli.anonymous import anonymous, as_before

    name = Path(trace_name(request.traces)).stem
    target = out.output or f"{name}.anonymous.parquet"
    if not target.endswith(".parquet"):
        text = "the output is a parquet trace; name it .parquet"
        raise click.BadParameter(text, click.get_current_context(), param_hint="-o")
    out.check(target)
    with working() as progress:
        trace = request.load(progress)
        progress("leaving names out")
        found = anonymous(trace)
        found.save(target, force=out.force)
        progress("replaying both")
        same = as_before(trace, found)
    if not same:
        click.echo("note: it does not replay as the trace does; say so in the issue", err=True)
    head = {"trace": request.trace, "anonymous": target, "same": same}
    out.emit(head, written=wrote(target), then=["info", target])


@command("verbose", "output", "html", "no_ranking", "force")
def replay(request: TraceRequest, out: Output) -> None:
    """Simulate a trace unchanged, and compare each step with what was measured.

    Any error here carries over to every prediction from this trace.
    """
    out.check_files(*TIMELINES, ".et")
    with working() as progress:
        found = request.replay(progress, typical=out.output is None)
        written = out.write_files(found, progress, ranked=True)
    then = [] if written else ["explain", *request.words]
    out.answer(found, {"trace": request.trace}, written=written, then=then)


@command("output", "no_ranking", "force")
def report(request: TraceRequest, out: Output, *, open_: bool = False) -> None:
    """Write one page about a trace: where the step's time goes, its timeline, and what would shorten it.

    Args:
        output (FILE): Name of the page [default: that of the trace, .html].
        open_: Open the page in the browser, at once; the ranked changes come when it is reloaded.
    """
    import webbrowser

    name = Path(trace_name(request.traces)).stem
    page = replace(out, html=out.output or f"{name}.html", output=None)
    page.check_files()
    with working() as progress:
        found = request.replay(progress)
        written: list[str] = []
        if open_:  # looked at while the changes are simulated
            written = replace(page, no_ranking=True).write_files(found, progress)
            webbrowser.open(Path(str(page.html)).resolve().as_uri())
            page = replace(page, force=True)
        if not written or not page.no_ranking:
            ranked = page.write_files(found, progress, ranked=True)
            written = [
                *ranked,
                *(["reload it in the browser: changes are ranked now"] if open_ else []),
            ]
    out.emit({"trace": request.trace, "page": page.html}, written=written)


class Compare(Changes):
    """A command that takes the options of the change that `--whatif` names."""

    flag = "whatif"


@command(
    click.Argument(["traces"], nargs=-1, required=True, metavar="BEFORE AFTER [LATER...]"),
    "verbose",
    "html",
    "force",
    cls=Compare,
    types={"top": SOME},
)
def compare(
    change: Change | None,
    request: TraceRequest,
    out: Output,
    *,
    whatif: str | None = None,
    top: int | None = None,
    markdown: bool = False,
) -> None:
    r"""Compare the steps of two traces: what changed, and what did not.

    \b
    daydream compare before.json.gz after.json.gz
    daydream compare before.json.gz after.json.gz --whatif amp
    daydream compare nightly/

    BEFORE and AFTER are parquet traces or anything `daydream import` accepts. Layers, operators and
    kernels are matched by layer and operator, then by name. With --whatif the change is predicted
    from BEFORE, and the prediction is compared with AFTER, a trace recorded with the change made.

    Three traces or more, or a folder of them by name, are a series: the first slower run, which
    operators are slower in it, and whether that is more than the spread from run to run.

    Args:
        whatif (NAME[+NAME...]): Predict this change from BEFORE; compare with AFTER.
        top: Rows of each table [default: up to 3].
        markdown: Print Markdown for a pull request.
    """
    import daydream
    from daydream.predict import compare as compares
    from daydream.report.markdown import markdown as to_markdown
    from daydream.report.view import view

    if len(request.traces) == 1 and Path(request.trace).is_dir():
        inside = [str(path) for path in Path(request.trace).iterdir() if path.name[0] != "."]
        request = replace(request, traces=tuple(sorted(inside, key=_by_number)))
    if len(request.traces) == 1:
        raise usage_error("missing argument 'AFTER'")
    if len(request.traces) > 2 and change is not None:
        raise usage_error(f"--whatif goes with two traces, {len(request.traces)} are given")
    if out.as_json and markdown:
        raise usage_error("give either --json or --markdown")
    out.check_files()
    with working() as progress:
        replays = []
        for each in request.each:
            try:
                replays.append(each.replay(progress))
            except GraphError as error:  # of two traces, tell which
                raise GraphError(f"{each.trace}: {error}") from None
        first: Replay | Prediction = replays[0]
        if change is not None:
            progress(f"predicting {whatif}")
            with change.checked(replays[0].graph, request.each[0].words):
                first = daydream.whatif(replays[0], change.optimizations, **(change.values or {}))
        found = (
            compares.compare(first, replays[1], names=(request.traces[0], request.traces[1]))
            if len(replays) == 2
            else compares.compare_series(replays, request.traces)
        )
        written = out.write_files(found, progress)

    def screen() -> str | Sequence[Block]:
        if markdown:
            return to_markdown(view(found)).rstrip("\n")
        return view(found, top=top or SHOWN, verbose=out.verbose)

    out.emit(found, screen, written=written)


def _by_number(path: str) -> list[Any]:
    """Sort `run-10` after `run-9`."""
    parts: list[Any] = re.split(r"(\d+)", path)
    parts[1::2] = map(int, parts[1::2])
    return parts


@command("verbose", "html", "force", types={"top": SOME})
def blame(request: TraceRequest, out: Output, *, top: int | None = None) -> None:
    """Tell what each rank, stage and kind of work costs a job of several ranks.

    A rank's loading, CPU work, kernels and copies are compared with those of the other ranks of its pipeline
    stage, and a stage's with the other stages'. What is longer is taken out, and the job simulated without it.

    Args:
        top: Rows of each part of the table [default: up to 3].
    """
    from daydream.predict import curves

    out.check_files()
    with working() as progress:
        found = curves.blame(request.replay(progress))
        written = out.write_files(found, progress)
    then = ["explain", *request.words]
    out.answer(found, {"trace": request.trace}, written=written, then=then, top=top or SHOWN)
