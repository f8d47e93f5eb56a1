"""`daydream memory`: who holds the peak, and does it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from daydream.cli.output import help_of
from daydream.cli.source import (
    cache_option,
    capacity_option,
    force_option,
    json_option,
    max_unpacked,
    step_options,
    trace_option,
    verbose_option,
)
from daydream.cli.written import html_option, timeline_option

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.memory.settings import Settings
    from daydream.predict.memory import Size

VIEWS = ("operators", "layers", "idle")


def _memory(
    trace: str | None,
    snapshot: str | None,
    step_marker: str | None,
    steps: str | None,
    by: str | None,
    largest: Size | None,
    largest_batch: bool,
    allocator: Settings | None,
    capacity: int | None,
    output: str | None,
    html: str | None,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    r"""Say how much memory a device needs, who holds the peak, and whether it fits.

    \b
    daydream memory --trace t.parquet --capacity 24GB
    daydream memory --trace t.parquet --capacity 24GB --largest-batch
    daydream memory --snapshot snapshot.pickle --capacity 24GB
    daydream memory --snapshot snapshot.pickle --allocator expandable_segments:True

    TRACE is a trace with memory events: `daydream collect` records them, or torch.profiler with
    profile_memory=True. What each allocation is for is told from when it comes and goes.

    FILE is a snapshot of PyTorch's allocator: what torch.cuda.memory._dump_snapshot wrote, the same
    as JSON, or JSON lines. Its history is replayed by the allocator's rules: as it was recorded, with
    other settings, or on a device with less memory. Nothing in the file is run.
    """
    context = click.get_current_context()
    if (trace is None) == (snapshot is None):
        said = (
            "give either '--trace' or '--snapshot'" if trace else "missing option '--trace' or '--snapshot'"
        )
        raise click.UsageError(said, context)
    if snapshot is not None:
        of_traces = {
            "--by": by,
            "-o": output,
            "--html": html,
            "--step-marker": step_marker,
            "--steps": steps,
            "--largest": largest,
            "--largest-batch": largest_batch or None,
        }
        for name, value in of_traces.items():
            if value is not None:
                raise click.UsageError(f"{name} goes with '--trace'", context)
        _show_snapshot(snapshot, allocator, capacity, as_json=as_json)
        return
    if largest is not None or largest_batch:
        from daydream.cli.largest import show_largest

        others = {"--by": by, "-o": output, "--html": html, "--allocator": allocator}
        wrong = [name for name, given in others.items() if given is not None]
        if wrong:
            raise click.UsageError(f"{wrong[0]} does not go with '--largest'", context)
        if largest_batch and largest == "sequence":
            raise click.UsageError("give either '--largest-batch' or '--largest sequence'", context)
        show_largest(trace or "", step_marker, steps, largest or "batch", capacity, as_json=as_json)
        return
    if by is not None and (output is not None or html is not None):
        raise click.UsageError("-o and --html draw memory over time: leave --by out", context)
    from daydream.cli.trace_memory import show_trace

    show_trace(
        trace or "", step_marker, steps, by, allocator, capacity, output, html,
        force=force, verbose=verbose, as_json=as_json,
    )  # fmt: skip


def _show_snapshot(snapshot: str, allocator: Settings | None, capacity: int | None, *, as_json: bool) -> None:
    from daydream.cli.output import print_json, print_screen
    from daydream.report.view import view

    report = _of_snapshot(snapshot, allocator, capacity)
    if as_json:
        print_json(report.to_json())
    else:
        print_screen(view(report, verbose=True, most=6))


def _of_snapshot(snapshot: str, settings: Settings | None, capacity: int | None) -> MemoryReport:
    from daydream.cli.failures import read_from
    from daydream.cli.progress import Progress
    from daydream.memory.snapshot_memory import snapshot_memory

    read_from.append(snapshot)
    with Progress() as progress:
        progress(f"replaying {snapshot}")
        return snapshot_memory(
            snapshot, settings=settings, capacity_bytes=capacity, max_unpacked=max_unpacked()
        )


def _settings(ctx: click.Context, param: click.Parameter, value: str | None) -> Settings | None:
    from daydream.errors import DaydreamError
    from daydream.memory.settings import settings_of

    if value is None:
        return None
    try:
        return settings_of(value)
    except DaydreamError as error:
        raise click.BadParameter(str(error), ctx, param) from None


command = click.Command(
    "memory",
    callback=_memory,
    help=help_of(_memory),
    short_help="Say who holds the peak of memory, and whether it fits.",
    params=[
        trace_option(),
        *step_options(),
        cache_option(),
        click.Option(
            ["--by"], type=click.Choice(VIEWS),
            help="Show instead what operators touch, what layers need, or what is held and not used again.",
        ),
        click.Option(
            ["--largest-batch"], is_flag=True, help="Show instead how large a batch fits into the capacity."
        ),
        click.Option(
            ["--largest"], type=click.Choice(["batch", "sequence"]),
            help="Show instead how large a batch fits, or how long a sequence.",
        ),
        click.Option(
            ["--snapshot"], metavar="FILE",
            help="A snapshot of PyTorch's allocator: a pickle, JSON or JSON lines, packed with gzip or not.",
        ),
        click.Option(
            ["--allocator"], metavar="SETTINGS", callback=_settings,
            help="Replay with these settings of PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True,"
            "max_split_size_mb:128, instead of the recorded ones.",
        ),
        capacity_option(),
        timeline_option("measured and replayed, with memory"),
        html_option(),
        force_option(),
        verbose_option("every device, phases, layers, source lines and notes"),
        json_option(),
    ],
)  # fmt: skip
