"""The memory that a snapshot's history needs, as it was recorded, under other settings, or in less room."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from daydream.lazy import regex
from daydream.memory.history import ALSO, PRESSED, History
from daydream.memory.replay import (
    ALLOCATE,
    DEFER,
    Request,
    Segment,
    Usage,
    usage,
)
from daydream.memory.result import DeviceMemory, Holder, MemoryReport
from daydream.memory.settings import Settings, settings_text
from daydream.memory.snapshot import read_snapshot
from daydream.text import bytes_text, counted

LIBRARY = regex(r"(^|/)(site-packages|dist-packages|torch|lib/python[\d.]*)/")
CODE = ".py"


def snapshot_memory(
    path: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    capacity_bytes: int | None = None,
    max_unpacked: int | None = None,
) -> MemoryReport:
    """Return the peaks of a snapshot's history, replayed, and who holds the allocated one.

    Args:
        path: a file of `torch.cuda.memory._dump_snapshot`, the same as JSON, or JSON lines.
        settings: what PYTORCH_CUDA_ALLOC_CONF should have been; by default as recorded.
        capacity_bytes: what each device may give to the allocator. Where that is not enough, the peaks are
            those without a limit, and `out_of_memory` says where it ended.
        max_unpacked: to how many bytes the file may unpack.

    Raises:
        TraceError: the file is no snapshot, or is damaged.

    """
    histories = read_snapshot(path, max_unpacked=max_unpacked)
    devices = []
    notes = []
    for each in histories:
        found, said = _device(each, settings or each.settings, capacity_bytes)
        devices.append(found)
        where = f"{found.device}: " if len(histories) > 1 else ""
        notes += [where + note for note in said]
    notes.append("not in a snapshot: the device's context (300 to 600 MiB), NCCL, workspaces")
    return MemoryReport(tuple(devices), None, tuple(dict.fromkeys(notes)))


def _device(
    found: History, settings: Settings, capacity_bytes: int | None
) -> tuple[DeviceMemory, list[str]]:
    notes = list(found.doubts)
    as_recorded = settings == found.settings
    start: Sequence[Segment] = found.start
    placed: list[Request] = []
    requests: Sequence[Request] = found.requests
    reserved = sum(segment.size for segment in start)
    if not as_recorded or (
        capacity_bytes is not None and reserved > capacity_bytes * settings.memory_fraction
    ):
        # What was held at the start would have been laid out otherwise, too.
        placed = _requests_of(start)
        requests = [*placed, *by_rule(requests)]
        start = ()
        if placed:
            blocks = counted(sum(each.what == ALLOCATE for each in placed), "block")
            notes.append(f"{blocks} from before the recording placed anew, in order of address")
    if not as_recorded or capacity_bytes is not None:
        requests = [each for each in requests if each.id not in {PRESSED, ALSO}]
    if settings.garbage_collection_threshold and capacity_bytes is None:
        notes.append(
            "garbage_collection_threshold is a share of the capacity: without one it collects nothing."
        )
    plain = as_recorded and capacity_bytes is None
    needed = failed = (
        found.replayed
        if plain
        else usage(requests, settings=settings, capacity_bytes=capacity_bytes, start=start)
    )
    where = failed.out_of_memory
    if where is not None:
        requests = by_rule(requests)
        needed = usage(requests, settings=settings, start=start)
    if not as_recorded:
        notes.append(
            f"recorded with {settings_text(found.settings) or 'the default settings'}, replayed with "
            f"{settings_text(settings) or 'the default settings'}"
        )
    elif plain:
        notes += _differences(found, needed)
        if needed.strays:
            ruled = usage(by_rule(requests), settings=settings, start=start).peak_reserved_bytes
            off = ruled / needed.peak_reserved_bytes - 1
            notes.append(
                f"{counted(needed.strays, 'request')} of {len(found.requests):,} lie where the allocator's "
                "rules with these settings do not place them: another version, or settings that changed. "
                f"By the rules alone the reserved peak is {100 * off:+.2f}% off: so may other settings be."
            )
    if not found.requests:
        notes.append(
            "The snapshot has no events: what was held when it was taken stands for the peak."
        )
    limit = capacity_bytes if needed is failed else None
    until_peak = requests[: needed.peak_index + 1]
    held = usage(until_peak, settings=settings, capacity_bytes=limit, start=start).held
    device = DeviceMemory(
        rank=0,
        device=f"cuda:{found.device}",
        capacity_bytes=capacity_bytes,
        peak_allocated_bytes=needed.peak_allocated_bytes,
        peak_reserved_bytes=needed.peak_reserved_bytes,
        recorded_allocated_bytes=found.recorded_allocated_bytes,
        recorded_reserved_bytes=found.recorded_reserved_bytes,
        by_kind={"unknown": needed.peak_allocated_bytes},
    ).having(
        holders=_holders(held, found),
        reserved_at_peak_bytes=needed.reserved_at_peak_bytes,
        retries=failed.retries,
        out_of_memory=where
        and replace(
            where, request=max(where.request - len(placed), 0), requests=len(found.requests)
        ),
    )
    return device, notes


def _differences(found: History, replayed: Usage) -> list[str]:
    """Return how far a replay with the recorded settings is off what was recorded; nothing if it is exact."""
    pairs = (
        ("allocated", found.recorded_allocated_bytes, replayed.peak_allocated_bytes),
        ("reserved", found.recorded_reserved_bytes, replayed.peak_reserved_bytes),
    )
    return [
        f"the replayed {name} peak is {100 * (after / before - 1):+.2f}% off the recorded one: history or "
        "settings are not known in full"
        for name, before, after in pairs
        if before and before != after
    ]


def by_rule(requests: Sequence[Request]) -> list[Request]:
    """Return requests without where they were recorded: the allocator's rules alone place them."""
    return [each._replace(address=None, fresh="") for each in requests]


def _requests_of(start: Sequence[Segment]) -> list[Request]:
    """Return requests that allocate what is held at the start."""
    found = []
    for segment in start:
        for part in segment.blocks:
            if part.requested is not None:
                found.append(
                    Request(ALLOCATE, part.id, part.requested, segment.stream, segment.private)
                )
                if part.pending:
                    found.append(Request(DEFER, part.id))
    return found


# Who holds it ------------------------------------------------------------------------------------


def _holders(held: Mapping[int, int], found: History) -> tuple[Holder, ...]:
    """Return who holds the peak: source lines; where none was recorded, blocks of one size."""
    at_start = sum(part.requested is not None for segment in found.start for part in segment.blocks)
    lines: dict[int, str | None] = {}  # of stacks, many of which are the same object
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, size in held.items():
        frames = found.frames[name]
        if id(frames) not in lines:
            lines[id(frames)] = source_line(frames)
        before = ", from before the recording" if name < at_start else ""
        both = total[lines[id(frames)] or f"blocks of {bytes_text(size)}{before}"]
        both[0] += size
        both[1] += 1
    rows = sorted(total.items(), key=lambda each: (-each[1][0], each[0]))
    return tuple(Holder(line, size, count) for line, (size, count) in rows)


def source_line(frames: object) -> str | None:
    """Return where in a program a stack comes from: `gpt/model.py:42 forward`; None if it has no frames.

    That is the innermost frame of Python code that belongs to no library, else the innermost of Python
    code, else the innermost. Of its path the file and its folder are kept.
    """
    if not isinstance(frames, list | tuple):
        return None
    named = [
        (
            str(each.get("filename", "")).replace("\\", "/"),
            each.get("line"),
            str(each.get("name", "")),
        )
        for each in frames
        if isinstance(each, dict)
    ]
    if not named:
        return None
    code = [each for each in named if each[0].endswith(CODE)]
    own = [each for each in code if not LIBRARY.search(each[0])]
    path, line, name = (own or code or named)[0]
    file = "/".join(path.split("/")[-2:]) or "?"
    return f"{file}:{line} {name}" if isinstance(line, int) and line > 0 else f"{file} {name}"
