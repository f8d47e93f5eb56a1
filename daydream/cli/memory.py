"""`daydream memory`: who holds the peak, and does it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from daydream.cli.output import help_of
from daydream.cli.sizes import capacity_option
from daydream.cli.source import json_option, max_unpacked, max_unpacked_option

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.memory.settings import Settings


def _memory(snapshot: str | None, allocator: Settings | None, capacity: int | None, as_json: bool) -> None:
    r"""Say how much memory a device needs, who holds the peak, and whether it fits.

    \b
    daydream memory --snapshot snapshot.pickle --capacity 24GB
    daydream memory --snapshot snapshot.pickle --allocator expandable_segments:True

    FILE is a snapshot of PyTorch's allocator: what torch.cuda.memory._dump_snapshot wrote, the same
    as JSON, or JSON lines. Its history is replayed by the allocator's rules: as it was recorded, with
    other settings, or on a device with less memory. Nothing in the file is run.
    """
    from daydream.cli.results import print_json, print_screen
    from daydream.report.text.memory import memory_text

    # `--trace` is the other source: exactly one of the two will be needed.
    if snapshot is None:
        raise click.UsageError("missing option '--snapshot'", click.get_current_context())
    report = _of_snapshot(snapshot, allocator, capacity)
    if as_json:
        print_json(report.to_json())
    else:
        print_screen(memory_text(report))


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
        max_unpacked_option(),
        json_option(),
    ],
)  # fmt: skip
