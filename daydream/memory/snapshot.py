"""Snapshots of PyTorch's allocator: what was asked of it on each device, and the memory that this needs.

Three formats are told apart by their first bytes, packed with gzip or not: pickles of
`torch.cuda.memory._dump_snapshot`, the same as JSON, and JSON lines (a header, then an event a line). A history is
replayed as it was recorded, under other settings, or in less room.
"""

from __future__ import annotations

import gzip
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from daydream.errors import DaydreamError, TraceError
from daydream.files.input_files import Counted, most_unpacked, reading
from daydream.lazy import regex
from daydream.memory import pickles
from daydream.memory.allocator import Usage, usage
from daydream.memory.history import (
    ALSO,
    LARGEST,
    LAST_ADDRESS,
    PRESSED,
    Held,
    History,
    Layout,
    Reading,
    Records,
    Region,
    beginning,
    whole,
)
from daydream.memory.result import DeviceMemory, Holder, MemoryReport
from daydream.memory.settings import (
    ALLOCATE,
    DEFER,
    INTERVALS,
    Request,
    Segment,
    Settings,
    settings_of,
    settings_text,
)
from daydream.text import bytes_text, counted

GZIP_MAGIC = b"\x1f\x8b"
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
COLUMNS = ("action", "addr", "size", "stream", "time_us")  # of JSON lines whose header names none
HEADER = {
    "columns",
    "start_segments",
    "final_segments",
}  # one of them is in the header of JSON lines
DEVICES = 1024
STATES = (
    "active_allocated",
    "inactive",
)  # in any other a block is freed, and a stream still uses it
NEEDED = (
    "Give a file of torch.cuda.memory._dump_snapshot, the same as JSON, or JSON lines; "
    "a trace goes without --snapshot."
)
DOUBTS = {  # what is counted while events are read -> what is said of them
    "action": "with an unknown action",
    "fields": "with fields that are no whole numbers",
    "size": "with a size that cannot be",
    "shape": "that are no events",
}


def read_snapshot(
    path: str | os.PathLike[str], *, max_unpacked: int | None = None
) -> list[History]:
    """Return what a snapshot says, one history for each device that has memory or events.

    Args:
        path: the file, packed with gzip or not.
        max_unpacked: to how many bytes it may unpack; by default 200 times its size, or 64 MB.

    Raises:
        FileError: the file cannot be read.
        TraceError: it is no snapshot, is damaged, asks for more than plain values, or its segments make no
            sense.

    """
    data = _content(Path(path), max_unpacked)
    if data.startswith(pickles.MAGIC):
        return _of_document(pickles.plain_pickle(data, path), path)
    first = _decoded(data[: data.find(b"\n")] if b"\n" in data else data)
    if isinstance(first, dict) and HEADER & first.keys():
        return [_of_lines(first, data, path)]
    document = _decoded(data)
    if document is None:
        raise TraceError(f"{path} is not a memory snapshot. {NEEDED}")
    return _of_document(document, path)


def _content(path: Path, max_unpacked: int | None) -> bytes:
    with reading(path), path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        if not packed:
            return raw.read()
        with gzip.GzipFile(fileobj=raw) as unpacked:
            return Counted(
                cast("IO[bytes]", unpacked), path, most_unpacked(path, max_unpacked)
            ).read()


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE:
        return None


# JSON lines --------------------------------------------------------------------------------------


def _of_lines(header: Mapping[str, Any], data: bytes, path: str | os.PathLike[str]) -> History:
    columns = header.get("columns")
    names = columns if isinstance(columns, list) else COLUMNS
    if any(names.count(name) != 1 for name in COLUMNS[:3]):
        raise TraceError(
            f"{path}: the columns of its events lack {', '.join(COLUMNS[:3])}. {NEEDED}"
        )
    records = Records()
    order = [names.index(name) if name in names else None for name in COLUMNS[:4]]
    for number, line in enumerate(data.split(b"\n"), 1):
        if number == 1 or not line.strip():
            continue
        event = _decoded(line)
        if event is None:
            raise TraceError(f"{path}: line {number:,} is not JSON; the file is cut off or damaged")
        if not isinstance(event, list) or len(event) < len(names):
            records.doubts["shape"] += 1
            continue
        action, address, size, stream = (0 if at is None else event[at] for at in order)
        free = {"device_free": address} if action == "oom" else {}
        records.add(action, address, size, stream, free)
    at_start = isinstance(header.get("start_segments"), list)
    segments = header.get("start_segments" if at_start else "final_segments", [])
    layout = _layout(segments, records, path)
    settings = _settings(header.get("settings"))
    pending = header.get("start_pending")
    if at_start and isinstance(pending, list):
        for address in pending:
            if whole(address) and address in layout.held:
                layout.held[address].pending = True
    found = _history(layout, records, settings, 0, at_start=at_start)
    truth = header.get("truth")
    if isinstance(truth, dict):  # what PyTorch counted itself
        allocated = truth.get("peak_allocated")
        reserved = truth.get("peak_reserved")
        found.counted_bytes = allocated if whole(allocated) else None
        found.recorded_reserved_bytes = (
            reserved if whole(reserved) else found.recorded_reserved_bytes
        )
    return found


# torch's own layout ------------------------------------------------------------------------------


def _of_document(document: Any, path: str | os.PathLike[str]) -> list[History]:
    if isinstance(document, list) and all(isinstance(each, dict) for each in document):
        document = {"segments": document}  # of torch.cuda.memory_snapshot()
    if not isinstance(document, dict) or not {"segments", "device_traces"} & document.keys():
        raise TraceError(f"{path} is not a memory snapshot. {NEEDED}")
    segments = document.get("segments", [])
    traces = document.get("device_traces", [])
    lists = isinstance(traces, list | tuple) and all(
        isinstance(each, list | tuple) for each in traces
    )
    if not lists or not isinstance(segments, list | tuple) or len(traces) > DEVICES:
        raise TraceError(f"{path}: its segments or device_traces are not lists. {NEEDED}")
    by_device: dict[int, list[Any]] = {at: [] for at, trace in enumerate(traces) if trace}
    for segment in segments:
        device = segment.get("device", 0) if isinstance(segment, dict) else 0
        if not whole(device) or not 0 <= device < DEVICES:
            raise TraceError(
                f"{path}: a segment is of device {_told(device)}; a number from 0 was needed"
            )
        by_device.setdefault(device, []).append(segment)
    if not by_device:
        raise TraceError(
            f"{path} holds no segments and no events; it was taken before anything was allocated"
        )
    found = []
    for device in sorted(by_device):
        records = Records()
        for event in traces[device] if device < len(traces) else ():
            if isinstance(event, dict):
                records.add(
                    event.get("action"),
                    event.get("addr"),
                    event.get("size"),
                    event.get("stream", 0),
                    event,
                )
            else:
                records.doubts["shape"] += 1
        layout = _layout(by_device[device], records, path)
        settings = _settings(document.get("allocator_settings"))
        found.append(_history(layout, records, settings, device, at_start=False))
    return found


# What the formats share --------------------------------------------------------------------------


def _history(
    layout: Layout, records: Records, settings: Settings, device: int, *, at_start: bool
) -> History:
    events = records.kept
    if not any(record.action == "free_completed" for record in events):  # frees have one name
        events = [
            each._replace(action="free") if each.action == "free_requested" else each
            for each in events
        ]
    doubts = [
        f"{counted(records.doubts[key], 'event')} {text}: passed over."
        for key, text in DOUBTS.items()
        if records.doubts[key]
    ]
    if not at_start:
        layout, contradictions = beginning(layout, events, settings)
        if contradictions:
            doubts.append(
                f"{counted(contradictions, 'event')} contradict the segments at the end: what was held at "
                "the beginning is uncertain."
            )
    found = Reading(layout, events, settings).history(device)
    found.doubts[:0] = doubts
    return found


def _layout(segments: Any, records: Records, path: str | os.PathLike[str]) -> Layout:
    """Return what segments hold. Raises `TraceError` if they cannot be as they are told."""
    if not isinstance(segments, list | tuple):
        raise TraceError(f"{path}: its segments are not a list. {NEEDED}")
    layout = Layout()
    for place, segment in enumerate(segments):
        where = f"{path}: segment {place}"
        if not isinstance(segment, dict):
            raise TraceError(f"{where} is not an object with an address and blocks")
        address = segment.get("address")
        size = segment.get("total_size")
        stream = segment.get("stream", 0)
        if not (
            whole(address) and whole(size) and whole(stream) and 0 < size < LARGEST <= LAST_ADDRESS
        ):
            raise TraceError(
                f"{where} has no address, total_size and stream that are whole numbers"
            )
        if not 0 <= address < LAST_ADDRESS:
            raise TraceError(f"{where} has the address {address}, which cannot be")
        kind = segment.get("segment_type", segment.get("pool"))
        if kind not in ("small", "large"):
            raise TraceError(f"{where} is of the pool {_told(kind)}; small or large was needed")
        private = records.private(segment.get("segment_pool_id")) or int(
            segment.get("private") is True
        )
        region = Region(
            address, size, stream, kind == "small", segment.get("is_expandable") is True, private
        )
        if not layout.add(region):
            raise TraceError(f"{where} at {address:#x} overlaps another one")
        end = address
        for block in _blocks(segment.get("blocks"), where):
            length, requested, pending, frames = block
            if requested is not None:
                layout.hold(Held(end, length, requested, pending, frames))
            end += length
        if end != address + size:
            raise TraceError(
                f"{where} has {size:,} bytes, and its blocks add up to {end - address:,}; these must be equal"
            )
    return layout


def _blocks(blocks: Any, where: str) -> Iterator[tuple[int, int | None, bool, object]]:
    """Return size, requested size (None: free), whether a stream still uses it, and stack of each block."""
    if not isinstance(blocks, list | tuple):
        raise TraceError(f"{where} has no list of blocks")
    for block in blocks:
        if isinstance(block, dict):
            size = block.get("size")
            state = block.get("state")
            frames = block.get("frames")
            asked = block.get("requested_size", size)
            free = state == "inactive"
            pending = state not in STATES
        elif isinstance(block, list | tuple) and len(block) >= 2:
            size = block[0]
            asked = block[1]
            frames = None
            free = asked is None
            pending = len(block) > 2 and block[2] not in STATES
        else:
            raise TraceError(f"{where} has a block that is neither an object nor a pair of sizes")
        if not whole(size) or not 0 < size < LARGEST:
            raise TraceError(f"{where} has a block of {_told(size)} bytes, which cannot be")
        if free:
            yield size, None, False, None
            continue
        if not whole(asked) or not 0 <= asked <= size:
            raise TraceError(
                f"{where} has a block of {size:,} bytes for a request of {_told(asked)}"
            )
        yield size, asked or size, pending, frames


def _settings(given: Any) -> Settings:
    """Return the settings that a snapshot tells, PyTorch's own where it tells none."""
    given = given if isinstance(given, dict) else {}
    text = given.get("PYTORCH_CUDA_ALLOC_CONF")
    try:
        settings = settings_of(text) if isinstance(text, str) else Settings()
    except (
        DaydreamError
    ):  # of another version, perhaps; what matters stands in the fields below, too
        settings = Settings()
    split = given.get("max_split_size")
    threshold = given.get("garbage_collection_threshold")
    divisions = given.get("roundup_power2_divisions")
    steps = tuple(divisions.values()) if isinstance(divisions, dict) else ()
    if len(steps) == INTERVALS and all(whole(each) and 0 <= each < LARGEST for each in steps):
        settings = replace(settings, roundup_divisions=steps)
    collects = isinstance(threshold, float) and 0 < threshold < 1
    return replace(
        settings,
        expandable_segments=given.get("expandable_segments") is True,
        max_split_bytes=split if whole(split) and 0 < split < LARGEST else None,
        garbage_collection_threshold=threshold if collects else 0.0,
    )


def _told(value: Any) -> str:
    """Return a value as an error tells it: short, whatever it is."""
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value)[:40] if plain else f"a {type(value).__name__}"


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
