"""What an allocator holds at one moment: segments, and the blocks that they are divided into.

An allocator as it was when a recording began.

What the allocator needs for a sequence of allocations and frees: peaks, fragmentation, out of memory.

What PyTorch's allocator held when a recording began, block by block, as `collect` lists it.

The list has sizes and addresses, and the table of allocations has rows: a row that is freed within the
recording lies at the address of that free, others lie in blocks of their size, in order of address. What the
totals hold together and nobody told apart lies in the blocks that are left. A block that no row is found for
is free.

What PyTorch's caching allocator reserves for a table of allocations: its requests, replayed in order.

Streams are not recorded with allocations; all of them are taken to be of one. What was held before the
recording lies where the metadata of `collect` says; without that it is asked for first, in the order of the
table, as where it really lay is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from daydream.errors import DaydreamError
from daydream.memory.allocations import AFTER, BEFORE, KINDS, Allocations, on_device
from daydream.memory.allocator import ADDRESS_SPACE, Allocator, Block, OutOfMemoryError, Pool
from daydream.memory.result import OutOfMemory
from daydream.memory.settings import Settings
from daydream.trace.memory_events import MemoryEvents, blocks_in_use
from daydream.trace.schema import UNKNOWN


class Part(NamedTuple):
    """A block of a segment.

    Attributes:
        size: bytes.
        requested: bytes that the program asked for, None where the block is free.
        id: what the events call it, -1 where it is free.
        pending: whether the program has freed it, and another stream still uses it.

    """

    size: int
    requested: int | None = None
    id: int = -1
    pending: bool = False


class Segment(NamedTuple):
    """Memory that the device gave in one piece, or a range of an expandable segment that has memory.

    Attributes:
        address: where it starts.
        stream: whose requests it serves.
        small: whether it serves requests of up to 1 MiB.
        blocks: the whole of it, in order of address.
        expandable: whether it may grow in place.
        private: the private pool that it belongs to, 0 for none.

    """

    address: int
    stream: int
    small: bool
    blocks: tuple[Part, ...]
    expandable: bool = False
    private: int = 0

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return sum(part.size for part in self.blocks)


def restore(allocator: Allocator, segments: Iterable[Segment]) -> None:
    """Give segments to an allocator that has served no request yet; it holds what they say, by its ids."""
    before: Block | None = None
    for segment in sorted(segments, key=lambda each: each.address):
        pool, address = allocator.pool(segment.private, small=segment.small), segment.address
        before = _continued(allocator, before, segment, pool)
        start = address if before is None else before.start
        allocator.reserved += segment.size
        for part in segment.blocks:
            block = Block(pool, segment.stream, address, part.size, start)
            block.grows, block.prev = segment.expandable, before
            if before is not None:
                before.next = block
            before, address = block, address + part.size
            if part.requested is None:
                pool.add(block)
                continue
            block.in_use, block.requested = True, part.requested
            allocator.requested += part.requested
            if part.pending:
                allocator.deferred[part.id] = block
            else:
                allocator.held[part.id] = block
                allocator.allocated += part.size
        if not segment.expandable:
            allocator.ranges.append((segment.address, address))
            before = None
    _end(allocator, before, 1 << 64)


def _continued(
    allocator: Allocator, before: Block | None, segment: Segment, pool: Pool
) -> Block | None:
    """Return the last block of the expandable segment that a range belongs to, None if it is another one.

    The address space of one segment is in one piece: what lies between two of its ranges has no memory.
    """
    if before is None:
        return None
    distance = segment.address - before.start
    same = segment.expandable and before.pool is pool and before.stream == segment.stream
    if not same or distance % pool.page or distance >= ADDRESS_SPACE:
        _end(allocator, before, segment.address)
        return None
    return before.extend(segment.address)


def _end(allocator: Allocator, before: Block | None, limit: int) -> None:
    """End an expandable segment with the address space that it may still grow into."""
    if before is not None:
        page = before.pool.page
        end = min(limit, before.start + ADDRESS_SPACE // page * page + page)
        end -= (end - before.start) % page
        before.extend(end)
        allocator.ranges.append((before.start, max(end, before.address + before.size)))


ALLOCATE, FREE, DEFER, EMPTY_CACHE = range(4)  # what a request asks for


class Request(NamedTuple):
    """What a program asks of the allocator.

    Attributes:
        what: ALLOCATE; FREE; DEFER: freed, but another stream uses it until FREE; EMPTY_CACHE: return unused
            memory to the device.
        id: any number that names the allocation.
        size: bytes asked for, of ALLOCATE.
        stream: any number that names the stream, of ALLOCATE.
        private: the private pool (of a CUDA graph, say), 0 for none.
        address: where it was recorded; a new segment is placed there if it can be.
        fresh: what the device gave for it when it was recorded, as `Allocator.allocate` has it.

    """

    what: int
    id: int = -1
    size: int = 0
    stream: int = 0
    private: int = 0
    address: int | None = None
    fresh: str = ""


@dataclass(frozen=True)
class Usage:
    """What a sequence of requests needs, in bytes; up to the failing request where it is out of memory.

    Attributes:
        peak_allocated_bytes: most that the program held at once, sizes rounded up.
        peak_requested_bytes: most that it asked for at once.
        peak_reserved_bytes: most that the device had given at once.
        peak_index: the request at which the allocated peak was reached first, -1 if none exceeds the start.
        reserved_at_peak_bytes: what the device had given then.
        retries: how often all unused memory was returned because there was no room.
        out_of_memory: where it ended, None if all requests were served.
        strays: how many requests were recorded where the allocator's rules do not place them.
        held: what the program holds at the end: bytes of the block of each id.

    """

    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    peak_index: int
    reserved_at_peak_bytes: int
    retries: int = 0
    out_of_memory: OutOfMemory | None = None
    strays: int = 0
    held: Mapping[int, int] = field(default_factory=dict)


def usage(
    requests: Sequence[Request],
    *,
    settings: Settings | None = None,
    capacity_bytes: int | None = None,
    start: Iterable[Segment] = (),
) -> Usage:
    """Return what a sequence of requests needs.

    Args:
        requests: in program order; frees of ids that hold nothing are passed over.
        settings: PYTORCH_CUDA_ALLOC_CONF, parsed; by default PyTorch's own.
        capacity_bytes: what the device may give to the allocator; None: without end.
        start: what the allocator holds at the beginning, with an id for each block in use.

    Raises:
        DaydreamError: an id is allocated that holds memory already.

    """
    allocator = Allocator(settings, capacity_bytes)
    restore(allocator, start)
    peak, requested, reserved = allocator.allocated, allocator.requested, allocator.reserved
    at, reserved_then, failed = -1, reserved, None
    held = allocator.held
    for index, request in enumerate(requests):
        if request.what != ALLOCATE:
            _serve(allocator, request)
            continue
        if request.id in held:
            raise DaydreamError(
                f"request {index} allocates {request.id}, which is allocated already"
            )
        try:
            allocator.allocate(*request[1:])
        except OutOfMemoryError as error:
            reserved_now = allocator.reserved
            failed = OutOfMemory(
                index + 1, len(requests), error.asked, allocator.allocated, reserved_now
            )
            break
        requested = max(requested, allocator.requested)
        reserved = max(reserved, allocator.reserved)
        if allocator.allocated > peak:
            peak, at, reserved_then = allocator.allocated, index, allocator.reserved
    sizes = {name: block.size for name, block in held.items()}
    how = allocator.retries, failed, allocator.strays, sizes
    return Usage(peak, requested, reserved, at, reserved_then, *how)


def _serve(allocator: Allocator, request: Request) -> None:
    what, name = request.what, request.id
    if what == FREE:
        allocator.free(name)
    elif what == DEFER:
        allocator.defer(name)
    else:
        allocator.return_unused(request.private, request.address)


UNKNOWN_KIND = KINDS.index("unknown")


@dataclass(frozen=True)
class Start:
    """What the allocator holds before the first request.

    Attributes:
        segments: its memory; ids are the rows of the table, below 0 where a row holds several blocks.
        inside: bytes of each row that lie in these segments, by row; the rest has to be asked for.
    """

    segments: tuple[Segment, ...]
    inside: dict[int, int]


def start_of(held: Allocations, rank: int, device: int) -> Start | None:
    """Return what a GPU's allocator held before the recording, None where that is not listed, or cannot be.

    Args:
        held: the allocations as recorded.
        rank: of the process.
        device: index of the GPU.
    """
    told = _told(held, rank, device)
    if not told or contradictory(held, rank, device):
        return None
    ids, inside = _placed(held, rank, device, blocks_in_use(told))
    return Start(tuple(_segment(each, ids) for each in told), inside)


def _told(held: Allocations, rank: int, device: int) -> list[dict[str, Any]]:
    metadata = held.trace.metadata
    by_rank = metadata.get("held_before_by_rank") or {}
    told = by_rank.get(str(rank)) or ({} if by_rank else metadata.get("held_before")) or {}
    segments = (told.get(str(device)) or {}).get("segments") or []
    return sorted(segments, key=lambda each: int(each["address"]))


def _is_sound(segment: dict[str, Any]) -> bool:
    """Tell whether blocks fill their segment and hold what was asked for."""
    blocks = segment["blocks"]
    fits = all(size > 0 and (asked is None or 0 <= asked <= size) for size, asked in blocks)
    return bool(blocks) and fits and sum(size for size, _ in blocks) == segment["total_size"]


def contradictory(held: Allocations, rank: int, device: int) -> int:
    """Return how many listed segments of a GPU cannot be as they are told: then none of them is used.

    Blocks do not fill theirs, or hold more than they have; or it begins inside the one before it.

    Args:
        held: the allocations.
        rank: of the process.
        device: index of the GPU.
    """
    told = _told(held, rank, device)
    odd = [not _is_sound(each) for each in told]
    for number, (one, other) in enumerate(pairwise(told), 1):
        odd[number] = odd[number] or one["address"] + one["total_size"] > other["address"]
    return sum(odd)


def _placed(
    held: Allocations, rank: int, device: int, blocks: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the id of what lies at each address, and of each row how many bytes lie somewhere."""
    own = on_device(held, rank, device) & (held["begin"] == BEFORE)
    own &= (held["bytes"] > 0) & (held["bytes"] == held["recorded_bytes"])
    rows = np.flatnonzero(own).tolist()
    ids: dict[int, int] = {}
    inside: dict[int, int] = {}

    def take(row: int, address: int, name: int) -> None:
        ids[address] = name
        inside[row] = inside.get(row, 0) + blocks.pop(address)

    for row in rows:
        address = _freed_address(held, row)
        if blocks.get(address) == held["bytes"][row]:
            take(row, address, row)
    by_size: dict[int, list[int]] = {}
    for address, size in reversed(blocks.items()):
        by_size.setdefault(size, []).append(address)  # the lowest address last
    for row in rows:
        alike = by_size.get(int(held["bytes"][row]))
        if row not in inside and held["kind"][row] != UNKNOWN_KIND and alike:
            take(row, alike.pop(), row)
    together = [row for row in rows if row not in inside and held["end"][row] == AFTER]
    for row in sorted(together, key=lambda one: -int(held["bytes"][one])):
        for address, size in list(blocks.items()):
            if inside.get(row, 0) + size <= held["bytes"][row]:
                take(row, address, -1 - address)
    return ids, inside


def _freed_address(held: Allocations, row: int) -> int:
    """Return where the free of a row says that it lay, -1 if that is not known."""
    events: MemoryEvents | None = held.trace.memory
    end = float(held["end"][row])
    if events is None or not np.isfinite(end) or end != int(end) or not 0 <= end < len(events):
        return -1
    same = events["bytes"][int(end)] == -held["bytes"][row]
    return int(events["address"][int(end)]) if same else -1


def _segment(told: dict[str, Any], ids: dict[int, int]) -> Segment:
    """Return a segment with the ids of what lies in it; free blocks that touch are one."""
    address, parts = int(told["address"]), []
    for size, asked in told["blocks"]:
        parts.append(Part(size, asked, ids[address]) if address in ids else Part(size))
        address += size
    merged: list[Part] = []
    for part in parts:
        if merged and part.requested is None and merged[-1].requested is None:
            part = Part(merged.pop().size + part.size)  # noqa: PLW2901 - the two are one
        merged.append(part)
    return Segment(
        int(told["address"]),
        int(told.get("stream", 0)),
        told.get("pool") == "small",
        tuple(merged),
        bool(told.get("is_expandable")),
        int(bool(told.get("private"))),
    )


def reserved_for(
    held: Allocations,
    rank: int,
    device: int,
    *,
    settings: Settings | None = None,
) -> Usage | None:
    """Return what the allocator needs for a GPU's allocations; None for memory of the CPU, which has none.

    Args:
        held: the allocations as recorded.
        rank: of the process.
        device: index of the GPU, -1 for the CPU.
        settings: of the allocator. With those of the recording (None) what was held before lies where it lay,
            with others all of it is asked for anew.
    """
    if device < 0:
        return None
    start = start_of(held, rank, device) if settings is None else None
    if start is None:
        return usage(requests_of(held, rank, device), settings=settings)
    grows = any(segment.expandable for segment in start.segments)
    return usage(
        requests_of(held, rank, device, start.inside),
        settings=Settings(expandable_segments=True) if grows else None,
        start=start.segments,
    )


def recorded_reserved(held: Allocations, rank: int, device: int) -> int | None:
    """Return the most that a GPU's allocator had when it was recorded, None where that was not."""
    events = held.trace.memory
    if events is None or device < 0:
        return None
    mine = on_device(events, rank, device)
    most = int(events["reserved_bytes"][mine].max(initial=UNKNOWN))
    return None if most < 0 else most


def requests_of(
    held: Allocations, rank: int, device: int, inside: Mapping[int, int] | None = None
) -> list[Request]:
    """Return the requests that a device's allocations make, in program order; their ids are the rows.

    `inside` are bytes of rows that the allocator holds already: these are not asked for, and freed as others.
    """
    rows = np.flatnonzero(on_device(held, rank, device) & (held["bytes"] > 0))
    sizes = held["bytes"].copy()
    if inside:
        sizes[list(inside)] -= list(inside.values())
    asked, ended = rows[sizes[rows] > 0], rows[np.isfinite(held["end"][rows])]
    places = np.concatenate([held["begin"][asked], held["end"][ended]])
    frees = np.arange(len(places)) >= len(asked)
    order = np.lexsort((frees, places))  # at one place what begins comes before what ends
    which, free = np.concatenate([asked, ended])[order], frees[order]
    whats, amounts = np.where(free, FREE, ALLOCATE), np.where(free, 0, sizes[which])
    return list(map(Request, whats.tolist(), which.tolist(), amounts.tolist()))
