"""`daydream whatif`, `rank` and `explain`: what a change gives, which gives most, why the step takes its time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from daydream.cli.commands import MEASURED, SOME, TIME, Change, Changes, Option, command
from daydream.cli.output import TIMELINES, Output, free_name, print_json, print_screen
from daydream.cli.source import TraceRequest, usage_error, working
from daydream.errors import DaydreamError

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.report.blocks import Block
    from daydream.transforms.registry import Optimization
    from daydream.transforms.registry import Option as Described

GATE = 3  # the exit code of a step that a gate does not let pass


@command(
    "verbose",
    "output",
    "html",
    "no_ranking",
    "force",
    Option("--list", "list_", is_flag=True, hidden=True),
    cls=Changes,
    types={"fail_above": TIME},
    options_metavar="NAME[+NAME...] [OPTIONS]",
)
def whatif(
    change: Change | None,
    request: TraceRequest,
    out: Output,
    *,
    table: str | None = None,
    contention: str = MEASURED,
    capacity: int | None = None,
    fail_above: float | None = None,
    list_: bool = False,
) -> None:
    r"""Predict the step time after a change, from a trace of the step before it.

    \b
    daydream whatif amp trace.json.gz
    daydream whatif amp+fused-adam trace.json.gz --math-speedup 2.5

    NAME is a change such as amp, fused-adam, ddp or scale, several joined by + (in any order), or
    the path of a Python file with your own. `daydream whatif --list` lists them, and
    `daydream whatif NAME --help` shows the options of one.

    Args:
        fail_above (MS): Exit with 3 if the step takes longer, or is unknown.
    """
    if list_:
        print_list(as_json=out.as_json)
        return
    if change is None:
        raise usage_error("name an optimization, such as amp; `daydream whatif --list` shows them")
    from daydream.predict.prediction import predict

    out.check_files(*TIMELINES, ".et")
    typed = [change.spec, *change.typed]
    then = None
    memory = None
    with working() as progress:
        replay = request.replay(progress, table=table)
        progress(f"predicting {change.spec}")
        with change.checked(replay.graph, request.words):
            found = predict(replay, change.edit, contention=contention, capacity_bytes=capacity)
        if out.html:  # also who holds the memory, where the trace tells
            from daydream.memory.report import memory_of

            with contextlib.suppress(DaydreamError):
                memory = memory_of(replay.graph.recorded, capacity=capacity)
        written = out.write_files(found, progress, memory=memory, ranked=True)
        if not out.as_json and "--" not in typed:
            from daydream.predict.suggest import suggestion

            progress("looking for what to try next")
            then = suggestion(found, change.optimizations, change.values or {})
    more = ["-o", free_name(found.optimization, ".json.gz")]
    if then is not None and not out.verbose:
        typed[0] = f"{change.spec}+{then.optimization}"
        more = list(then.command[3:])
    above = above_gate(found, fail_above)
    words = [] if above or written else ["whatif", *typed, *more]
    out.answer(found, written=written, then=words, suggestion=then)
    if above is not None:
        click.echo(above, err=True)
        click.get_current_context().exit(GATE)


def above_gate(prediction: Prediction, limit_ms: float | None) -> str | None:
    """Return why a gate does not let a step pass; None where it does, or there is none."""
    if limit_ms is None:
        return None
    if prediction.predicted_ns is None:
        return f"gate failed: the step is unknown, {limit_ms:.2f} ms allowed"
    step_ms = prediction.predicted_ns / 1e6
    if step_ms <= limit_ms:
        return None
    return f"gate failed: {step_ms:.2f} ms predicted, {limit_ms:.2f} ms allowed"


# `--list` ------------------------------------------------------------------------------------------


def print_list(*, as_json: bool) -> None:
    """Print the optimizations that ship and that other packages add."""
    from daydream.transforms.registry import loadable

    with working():
        found, broken = loadable()
    if as_json:
        entries: list[dict[str, Any]] = [
            {
                "name": each.name,
                "summary": each.summary,
                "options": [
                    {
                        "name": one.name,
                        "flag": one.flag,
                        "type": one.type.__name__,
                        "default": one.default,
                        "required": one.required,
                    }
                    for one in each.options
                ],
            }
            for each in found
        ]
        entries += [
            {"name": name, "summary": error, "options": [], "error": error}
            for name, error in broken.items()
        ]
        print_json({"optimizations": entries})
        return
    print_screen(list_of(found, broken))
    click.echo("next: daydream whatif NAME --help   or   daydream whatif NAME TRACE", err=True)


def list_of(optimizations: list[Optimization], broken: Mapping[str, str]) -> Iterator[Block]:
    """Return the optimizations under a heading for each stage, with their options.

    Last those that are `broken`, with what is wrong with each.
    """
    from daydream.report.blocks import Facts, Title
    from daydream.transforms.stages import TITLES

    groups: dict[str, list[tuple[str, str]]] = {title: [] for title in TITLES.values()}
    for each in optimizations:
        rows = groups[TITLES[each.stage]]
        rows.append((each.name, each.summary))
        if each.options:
            rows.append(("", "   ".join(map(_option_text, each.options))))
    groups["cannot be loaded"] = [*broken.items()]
    for title, rows in groups.items():
        if rows:
            yield Title(title)
            yield Facts(rows)


def _option_text(option: Described) -> str:
    """Return an option with its default."""
    from daydream.report.blocks import shortened
    from daydream.report.text import KEEP

    kind = option.type.__name__.upper()
    if option.required:
        words = f"{option.flag} {kind}, needed"
    elif option.type is bool:
        words = f"--no-{option.flag[2:]}" if option.default else option.flag
    else:
        value = kind if option.default is None else shortened(str(option.default), 40)
        words = f"{option.flag} {value}"
    return words.replace(" ", KEEP)


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
    needs: other hardware, more GPUs, or another workload (the step computes something else: another
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
