"""What the rows of rocprofv3 mean, whichever file they come from: names, lanes, blocks, directions.

The elements of a long JSON array, portion by portion, so that they are never all there as objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.kineto.events import small_ids
from daydream.collect.importers.row_builder import RowBuilder, whole
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS, UNKNOWN

PORTION = 1 << 14  # rows
Element = TypeVar("Element")


def portions(
    array: msgspec.Raw, kind: type[Element], rows: int = PORTION
) -> Iterator[list[Element]]:
    """Yield lists of an array's elements, each decoded as `kind`, some rows at a time.

    Raises `msgspec.DecodeError` if an element is not of that kind.
    """
    decoder = msgspec.json.Decoder(kind)
    elements = msgspec.json.decode(array, type=list[msgspec.Raw])
    for first in range(0, len(elements), rows):
        yield [decoder.decode(element) for element in elements[first : first + rows]]


CLONE = regex(
    r"( \[clone \.kd\]|\.kd)$"
)  # of the kernel's descriptor, which is no part of its name
NOTHING = (
    "holds no kernel, copy, call or range with a readable time. Record with rocprofv3 --kernel-trace "
    "--hip-trace --memory-copy-trace."
)
COPY_NAMES = {
    "HOST_TO_DEVICE": "Memcpy HtoD (Host -> Device)",
    "DEVICE_TO_HOST": "Memcpy DtoH (Device -> Host)",
    "DEVICE_TO_DEVICE": "Memcpy DtoD (Device -> Device)",
    "HOST_TO_HOST": "Memcpy HtoH (Host -> Host)",
}
Times = tuple[np.ndarray, np.ndarray]
MARKERS = "MARKER"
RCCL = "RCCL"
NO_LAUNCHES = (
    "No call into HIP or HSA was recorded: kernels have no launches, and what the CPU does is unknown. "
    "rocprofv3 --hip-trace records the calls."
)
UNLINKED = "{} of {} rows of the device have no call with their correlation id; they stay where they were recorded."
COPY_LANES = "Copies have no stream in this file: they stand on a lane for each direction."
FIRST_COPY_LANE = 1_000_000  # above the numbers of streams and queues


def add_kernels(
    builder: RowBuilder,
    times: Times,
    names: Sequence[str],
    items: Sequence[Any],
    threads: Sequence[Any],
    streams: np.ndarray,
    **columns: np.ndarray,
) -> None:
    """Add kernels: names as recorded, grids in work-items and workgroups by axis, streams or queues."""
    grid, block = blocks(builder, items, threads)
    name = builder.coded("name", [kernel_name(one) for one in names])
    builder.add("kernel", *times, name=name, stream=streams, grid=grid, block=block, **columns)


def add_copies(
    builder: RowBuilder,
    times: Times,
    directions: Sequence[str],
    streams: np.ndarray,
    notes: list[str],
    **columns: np.ndarray,
) -> None:
    """Add copies by their directions; those of no stream stand on a lane for each, and that is noted."""
    name = builder.coded("name", [copy_name(one) for one in directions])
    stream = np.where(streams < 0, copy_lanes(builder, name), streams)
    builder.add("memcpy", *times, name=name, stream=stream, **columns)
    if (streams < 0).any() and COPY_LANES not in notes:
        notes.append(COPY_LANES)


def streams_or_queues(streams: Sequence[Any], queues: Sequence[Any]) -> np.ndarray:
    """Return the stream of each row, its queue where it has none."""
    known = whole(streams)
    return np.where(known < 0, whole(queues), known)


def correlations(ids: Sequence[Any]) -> np.ndarray:
    """Return correlation ids; 0 stands for none (rocprofv3 6.2 writes it for all copies)."""
    known = whole(ids)
    return np.where(known == 0, UNKNOWN, known)


def numbers_of(numbers: dict[Any, int], agents: Sequence[Any]) -> np.ndarray:
    """Return the numbers of devices by their agents; one that is not described gets the next."""
    known = [one is not None and (not isinstance(one, int) or one >= 0) for one in agents]
    pairs = zip(agents, known, strict=True)
    return np.array(
        [numbers.setdefault(a, len(numbers)) if k else UNKNOWN for a, k in pairs], np.int64
    )


def ends_of(numbers: Mapping[Any, int], target: Sequence[Any], source: Sequence[Any]) -> np.ndarray:
    """Return the device of each copy: its target, else its source."""
    found = [
        numbers.get(to, numbers.get(of, UNKNOWN)) for to, of in zip(target, source, strict=True)
    ]
    return np.array(found, np.int64)


def recording_of(builder: RowBuilder, path: Path) -> Recording:
    """Return the recording of all rows. Raises `TraceError` if there is none."""
    return builder.recording(
        path, NOTHING, vendor="rocm", profiler="rocprofv3", grids_in_blocks=True
    )


def kernel_name(recorded: str) -> str:
    """Return a kernel's name without the mark of its descriptor."""
    return CLONE.sub("", recorded) or "unnamed kernel"


def copy_name(direction: str) -> str:
    """Return a copy's name as Kineto writes it, of `MEMORY_COPY_HOST_TO_DEVICE` or `HOST_TO_DEVICE`."""
    return COPY_NAMES.get(direction.upper().removeprefix("MEMORY_COPY_"), "Memcpy")


def copy_lanes(builder: RowBuilder, names: np.ndarray) -> np.ndarray:
    """Return a lane for each copy, one a direction, where no stream is known."""
    lanes = {
        builder.code("name", name): place
        for place, name in enumerate((*COPY_NAMES.values(), "Memcpy"))
    }
    return np.array([FIRST_COPY_LANE + lanes[code] for code in names.tolist()], np.int64)


def blocks(
    builder: RowBuilder, items: Sequence[Any], threads: Sequence[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes of grids in blocks, and of blocks in threads.

    Args:
        builder: whose codes they are.
        items: extents of the grid in work-items, three lists (x, y, z) of a number a kernel.
        threads: extents of a workgroup, likewise.

    """
    grid, block = (
        np.stack([whole(axis) for axis in triple], axis=1) for triple in (items, threads)
    )
    good = (grid > 0) & (grid < 2**32) & (block > 0) & (block < 2**16)
    both = np.where(
        good.all(axis=1, keepdims=True),
        np.concatenate([-(-grid // np.maximum(block, 1)), block], axis=1),
        0,
    )
    used, which = np.unique(both, axis=0, return_inverse=True)
    codes = np.array([
        (builder.code("grid", _extents(row[:3])), builder.code("block", _extents(row[3:])))
        for row in used.tolist()
    ], np.int64).reshape(-1, 2)  # fmt: skip
    found = codes[which.reshape(-1)]
    return found[:, 0], found[:, 1]


def _extents(sizes: list[int]) -> str:
    return ",".join(map(str, sizes)) if sizes[0] else ""


def add_calls(
    builder: RowBuilder,
    domains: Sequence[str],
    names: Sequence[str],
    start: np.ndarray,
    end: np.ndarray,
    columns: Mapping[str, np.ndarray],
) -> None:
    """Add calls of an interface: into HIP and HSA as they are, of RCCL and of markers as ranges.

    A call of RCCL stands around the launch of its kernel, and tells its operation. A marker that lasts no
    time is no range.
    """
    of_marker = np.array([MARKERS in domain.upper() for domain in domains], bool)
    of_rccl = np.array([RCCL in domain.upper() for domain in domains], bool)
    texts = [
        f"rccl:{name}" if rccl else name for name, rccl in zip(names, of_rccl.tolist(), strict=True)
    ]
    name = builder.coded("name", [text or "unnamed call" for text in texts])
    moment = of_marker & np.equal(end, start)
    for kind, mine in (
        ("runtime", ~of_marker & ~of_rccl),
        ("annotation", (of_marker | of_rccl) & ~moment),
    ):
        if mine.any():
            part = {key: column[mine] for key, column in columns.items()}
            if kind == "annotation":
                part.pop("correlation", None)
            builder.add(kind, start[mine], end[mine], name=name[mine], **part)


def finish(recording: Recording, notes: Sequence[str] = ()) -> Recording:
    """Number what is handles, and say what is not known of the launches. Returns the recording."""
    for name in ("stream", "device"):
        if name in recording.columns:
            recording.columns[name] = small_ids(
                np.asarray(recording.columns[name], np.int64), 2**31
            )
    for note in notes:
        recording.note(note)
    device = recording.is_kind(*DEVICE_KINDS)
    calls = recording.is_kind("runtime")
    if device.any() and not calls.any():
        recording.note(NO_LAUNCHES)
    elif device.any():
        ids = np.asarray(recording["correlation"])
        known = np.isin(ids[device], ids[calls]) & (ids[device] != UNKNOWN)
        if not known.all():
            recording.note(UNLINKED.format(f"{int((~known).sum()):,}", f"{len(known):,}"))
    return recording
