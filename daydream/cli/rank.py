"""`daydream rank` and `daydream explain`: what would make the step shorter, and why it takes its time."""

from __future__ import annotations

import contextlib
from typing import Literal

import click

from daydream.cli.commands import Change, command
from daydream.cli.options import SOME
from daydream.cli.output import Output
from daydream.cli.source import TraceRequest, working

SHOWN = 5


@command(
    "verbose",
    "html",
    "force",
    types={"top": SOME, "pairs": click.IntRange(0, 20)},
)
def rank(
    request: TraceRequest,
    out: Output,
    *,
    table: str | None = None,
    by: Literal["time", "memory"] = "time",
    capacity: int | None = None,
    top: int | None = None,
    pairs: int = 3,
    no_curves: bool = False,
    all_: bool = False,
) -> None:
    """Predict every optimization that applies, alone and in pairs, and sort by what it saves.

    Each comes with the line of code that makes the change, the new bottleneck, and what else it
    needs: other hardware, more GPUs, or other work (the step computes something else: another
    batch, layers or algorithm).

    -v adds how the step depends on the speed of each layer, operator, kernel family, link and CPU
    cost, and what was left out and why.

    Args:
        by: Sort by step time or by peak memory.
        top: Rows of each table [default: up to 5].
        pairs: How many of the best pairs to show; 0 tries none.
        no_curves: Leave out how the step depends on each part.
        all_: Add changes of papers only, and for another device.
    """
    from daydream.memory.lifetimes import none_recorded
    from daydream.predict import curves
    from daydream.predict import rank as ranks
    from daydream.report.views.ranking import best_of
    from daydream.transforms.registry import typed

    out.check_files()
    with working() as progress:
        replay = request.replay(progress, table=table)
        if by == "memory" and replay.graph.recorded.memory is None:
            raise none_recorded(replay.graph.recorded)
        # A screen shows few ranges, and says only that there are curves.
        whole = out.as_json or out.verbose or by == "memory"
        found = ranks.rank(
            replay,
            pairs=pairs,
            with_curves=whole and not no_curves,
            by=by,
            capacity=capacity,
            every=all_,
            progress=progress,
        )
        undrawn = not whole and not no_curves and curves.drawable(replay)
        if undrawn and not found.optimizations:  # then the screen is as with -v
            found.curves = curves.curves(replay)
        written = out.write_files(found, progress)
    best = best_of(found)
    if best is None:
        words = ["scale", "--on", "gpu" if found.bound == "GPU" else "cpu", "--factor", "0.5"]
    else:
        words = [best.optimization, *typed({**best.options, "table": table})]
    then = ["whatif", *words, *request.words]
    head = {"trace": request.trace}
    out.answer(
        found,
        head,
        written=written,
        then=then,
        top=top or SHOWN,
        undrawn=undrawn,
    )


@command("verbose", "html", "force")
def explain(
    request: TraceRequest, out: Output, *, whatif: str | None = None, capacity: int | None = None
) -> None:
    """Explain why a step takes its time: what bounds it, and which costs are avoidable.

    First the bottleneck, then the largest avoidable costs, each with the change that removes it,
    the simulated saving, and the line of code. Then the critical path by category: kernels by
    their bound, CPU work, communication, copies, data loading, synchronization. If the trace has
    memory events: the peak, and whether it fits.

    Args:
        whatif (NAME[+NAME...]): Explain the step after this change.
    """
    from daydream.predict import explain as explains
    from daydream.report.views.explanation import explain_json
    from daydream.transforms.compose import parse

    out.check_files()
    with working() as progress, contextlib.ExitStack() as checks:
        replay = request.replay(progress)
        if whatif is not None:
            checks.enter_context(Change(whatif, parse(whatif)).checked(replay.graph, request.words))
        found = explains.explain(
            replay,
            whatif,
            capacity=capacity,
            progress=progress,
        )
        written = out.write_files(found, progress)
    best = next((cost.best for cost in found.worth_it if cost.best is not None), None)
    words = ["rank"] if best is None else best.command[1:]
    done = written or (best is None and whatif is not None)
    then = [] if done else [*words, *request.words]
    head = {"trace": request.trace}
    record = explain_json(found)
    out.answer(
        found,
        head,
        document=record,
        written=written,
        then=then,
        words=request.words,
    )
