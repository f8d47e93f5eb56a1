"""`daydream info`, `replay` and `compare`: what a trace holds, how well it replays, what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from daydream.cli.commands import Change, Changes, command
from daydream.cli.options import FORCE, HTML, NO_RANKING, SOME, TIMELINES, VERBOSE
from daydream.cli.output import Output
from daydream.cli.source import TraceRequest, usage_error, working
from daydream.errors import GraphError

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay

SHOWN = 3


@command(VERBOSE)
def info(request: TraceRequest, out: Output) -> None:
    """Show what a trace holds, and which questions it can answer.

    TRACE is a parquet trace or anything `daydream import` accepts. The trace is replayed as well:
    how well that works tells most about how far to trust it.
    """
    from daydream.report.text.overview import overview
    from daydream.report.text.overview_text import info_text

    with working() as progress:
        trace = request.load(progress)
        progress("replaying")
        found = overview(trace)
    then = [] if found.replay is None else ["explain", *request.words]
    out.emit(found, lambda: info_text(found, verbose=out.verbose), then=then, trace=request.trace)


@command(VERBOSE, TIMELINES, HTML, NO_RANKING, FORCE)
def replay(request: TraceRequest, out: Output) -> None:
    """Simulate a trace unchanged, and compare each step with what was measured.

    Any error here carries over to every prediction from this trace.
    """
    import daydream
    from daydream.report.text.results import replay_text

    out.check_files(chakra=True)
    with working() as progress:
        trace = request.load(progress, typical=out.output is None)
        progress("replaying")
        found = daydream.replay(trace)
        written = out.write_files(found, None, progress)
    out.emit(
        found,
        lambda: replay_text(found, verbose=out.verbose),
        written=written,
        then=[] if written else ["explain", *request.words],
        trace=request.trace,
    )


class Compare(Changes):
    """A command that takes the options of the change that `--whatif` names."""

    flag = "whatif"


@command(
    click.Argument(["traces"], nargs=-1, required=True, metavar="BEFORE AFTER"),
    VERBOSE,
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

    BEFORE and AFTER are parquet traces or anything `daydream import` accepts. Layers, operators and
    kernels are matched by layer and operator, then by name. With --whatif the change is predicted
    from BEFORE, and the prediction is compared with AFTER, a trace recorded with the change made.

    Args:
        whatif (NAME[+NAME...]): Predict this change from BEFORE; compare with AFTER.
        top: Rows of each table [default: up to 3].
        markdown: Print Markdown for a pull request.
    """
    import daydream
    from daydream.predict import compare as compares
    from daydream.report.markdown import comparison_markdown
    from daydream.report.text.difference import difference_text

    if len(request.traces) == 1:
        raise usage_error("missing argument 'AFTER'")
    if len(request.traces) > 2:
        raise usage_error(f"two traces are compared, {len(request.traces)} are given")
    if out.as_json and markdown:
        raise usage_error("give either --json or --markdown")
    with working() as progress:
        replays = []
        for each in request.each:
            try:
                replays.append(each.replay(progress))
            except GraphError as error:  # of two traces, tell which
                raise GraphError(f"{each.trace}: {error}") from None
        before = replays[0]
        first: Replay | Prediction = before
        if change is not None:
            progress(f"predicting {whatif}")
            with change.checked(before.graph, request.each[0].words):
                first = daydream.whatif(before, change.optimizations, **(change.values or {}))
        found = compares.compare(first, replays[1], names=(request.traces[0], request.traces[1]))

    def screen() -> object:
        if markdown:
            return comparison_markdown(found).rstrip("\n")
        return difference_text(found, top=top or SHOWN, verbose=out.verbose, fitted=top is None)

    out.emit(found, screen)
