"""`daydream memory`: who holds the peak, does it fit, and what is the largest batch that does."""

from __future__ import annotations

from typing import Any, Literal

from daydream.cli.commands import command
from daydream.cli.options import Parsed
from daydream.cli.output import TIMELINES, Output
from daydream.cli.source import TraceRequest, usage_error, working


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
    # What would shrink the largest holder that a change is known for.
    worst = max(report.devices, key=lambda each: each.peak_allocated_bytes or 0)
    change = next((each.whatif for each in worst.holders if each.whatif is not None), None)
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
