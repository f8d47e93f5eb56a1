"""What the allocator needs for a sequence of allocations and frees: peaks, fragmentation, out of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from daydream.errors import DaydreamError
from daydream.memory.allocator import Allocator, OutOfMemoryError
from daydream.memory.restore import restore
from daydream.memory.result import OutOfMemory
from daydream.memory.segments import Segment
from daydream.memory.settings import Settings

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
