"""`daydream info`, `replay`, `report`, `compare`, `blame` and `memory`: what a trace holds, and what changed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from daydream.cli.commands import SOME, Change, Changes, Parsed, command
from daydream.cli.output import TIMELINES, Output, trace_name, wrote
from daydream.cli.source import TraceRequest, note_missing_engine, usage_error, working
from daydream.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.report.blocks import Block

SHOWN = 3
WORTH = 0.05  # of the peak: a change of less is not suggested


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
    from daydream.report.blocks import view
    from daydream.report.text import markdown as to_markdown

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


def _settings(text: str) -> Any:
    from daydream.memory.settings import settings_of

    return settings_of(text)


@command(
    "verbose",
    "output",
    "html",
    "force",
    types={"allocator": Parsed(_settings)},
)
def memory(
    request: TraceRequest,
    out: Output,
    *,
    by: Literal["operators", "layers", "idle"] | None = None,
    largest_batch: bool = False,
    largest: Literal["batch", "sequence"] | None = None,
    snapshot: str | None = None,
    allocator: Any = None,
    capacity: int | None = None,
) -> None:
    r"""Show how much memory a device needs, what holds the peak, and whether it fits.

    \b
    daydream memory t.parquet --capacity 24GB
    daydream memory t.parquet --capacity 24GB --largest-batch
    daydream memory --snapshot snapshot.pickle --capacity 24GB

    TRACE is a trace with memory events: `daydream collect` records them, or torch.profiler with
    profile_memory=True. The purpose of each allocation is inferred from its lifetime.

    A snapshot is what torch.cuda.memory._dump_snapshot wrote, the same as JSON, or JSON lines. Its
    history is replayed by the allocator's rules: as recorded, with other settings, or on a
    device with less memory. Nothing in the file is run.

    Args:
        output (FILE): Write timelines with memory: .json[.gz] (Perfetto).
        by: Show instead what operators use, what layers need, or what is held unused.
        largest_batch: Show instead the largest batch that fits.
        largest: Show instead the largest batch, or the longest sequence, that fits.
        snapshot (FILE): Snapshot of PyTorch's allocator: a pickle or JSON (also .gz).
        allocator (SETTINGS): Replay with these settings of PYTORCH_CUDA_ALLOC_CONF, such as
            expandable_segments:True.
    """
    if bool(request.traces) == (snapshot is not None):
        raise usage_error(
            "give either a trace or '--snapshot'"
            if snapshot
            else "missing argument 'TRACE' or '--snapshot'"
        )
    files: dict[str, Any] = {"-o": out.output, "--html": out.html}
    steps = {"--step-marker": request.step_marker, "--steps": request.steps}
    sizes = {"--largest": largest, "--largest-batch": largest_batch or None}
    wrong = {}
    if snapshot is not None:
        wrong = {"--by": by, **files, **steps, **sizes}
        what = "goes with a trace"
    elif any(sizes.values()):
        wrong = {"--by": by, **files, "--allocator": allocator}
        what = "does not go with '--largest'"
    elif by is not None:
        wrong = files
        what = "draws memory over time: leave --by out"
    for name, value in wrong.items():
        if value is not None:
            raise usage_error(f"{name} {what}")
    if largest_batch and largest == "sequence":
        raise usage_error("give either '--largest-batch' or '--largest sequence'")
    out.check_files(*TIMELINES)
    if snapshot is not None:
        from daydream.memory.snapshot import snapshot_memory

        with working() as progress:
            progress(f"replaying {snapshot}")
            report = snapshot_memory(
                snapshot,
                settings=allocator,
                capacity_bytes=capacity,
                max_unpacked=request.max_unpacked,
            )
        out.answer(report, verbose=True, most=6)
    elif any(sizes.values()):
        _show_largest(request, out, largest or "batch", capacity)
    elif by is not None:
        from daydream.memory.report import view_of

        with working() as progress:
            trace = request.load(progress)
            progress("pairing allocations and frees")
            uses = view_of(trace, by)
        out.answer(uses)
    else:
        _show_trace(request, out, allocator, capacity)


def _show_trace(request: TraceRequest, out: Output, allocator: Any, capacity: int | None) -> None:
    import daydream
    from daydream.memory.report import memory_of

    written: list[str] = []
    with working() as progress:
        trace = request.load(progress)
        progress("pairing allocations and frees")
        report = memory_of(trace, capacity=capacity, settings=allocator)
        if out.output is not None or out.html is not None:
            progress("replaying")
            replay = daydream.replay(trace)
            written = out.write_files(replay, progress, memory=report)
    # What would shrink the largest holder that a change is known for, if that is a part of the peak worth it.
    worst = max(report.devices, key=lambda each: each.peak_allocated_bytes or 0)
    least = WORTH * (worst.peak_allocated_bytes or 0)
    change = next(
        (each.whatif for each in worst.holders if each.whatif and each.bytes >= least), None
    )
    words: list[str] = []
    if change is not None and not written:
        words = ["whatif", change, *["--factor", "0.5"] * (change == "batch-size"), *request.words]
    out.answer(report, written=written, then=words)


def _show_largest(request: TraceRequest, out: Output, what: Any, capacity: int | None) -> None:
    from daydream.predict import memory as predicts

    with working() as progress:
        trace = request.load(progress)
        progress(f"looking for the largest {what}")
        found = predicts.largest(trace, what, capacity=capacity)
    size = found.fits
    if size in (0, found.recorded):  # nothing to grow: what would make it smaller?
        words = ["rank", "--by", "memory"]
    elif what == "batch":
        words = ["whatif", "batch-size", "--factor", f"{size / found.recorded:.17g}"]
    else:
        words = ["whatif", "sequence-length", "--length", str(size)]
    judged = any(
        step.get("covered") for step in trace.metadata["steps"]
    )  # else none is asked about
    then = [*words, *request.words] if judged else []
    out.answer(found, {"trace": request.trace}, then=then)
