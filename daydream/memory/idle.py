"""What is held at the peak and not used then: tensors that nothing can read for a while, or never again.

Traces do not tell which tensor an operator reads, but how large its tensors are. An operator that is given a
tensor of as many bytes *can* read an allocation; between two of these nothing does, unless it reads a view of
another size. Time is that of the CPU, which asks for the work. This follows tensors, not segments of the
allocator: each can be moved out and back by itself.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from daydream.memory.allocations import AFTER, BEFORE, GRANULE, KINDS, Allocations, on_device
from daydream.memory.argument_bytes import argument_bytes
from daydream.memory.report import INSTANCE, NOWHERE, operators
from daydream.results import Record
from daydream.trace.memory_events import MemoryEvents

STAYS = ("parameter", "gradient", "optimizer_state", "bucket", "shard", "workspace", "buffer")


class Idle(Record):
    """Allocations that are alike, held at the peak, that nothing can read around it.

    Attributes:
        name: operator and layer (of all blocks) that asked for them.
        kind: what they are, such as `activation`.
        bytes: of all of them.
        count: how many they are.
        idle_ns: the time around the peak without a possible use, of the one that waits shortest.
        never_again: how many wait until they are freed.
        gigabytes_per_second: what moves each out and back in that time, 1e9 bytes a second.

    """

    name: str
    kind: str
    bytes: int
    count: int
    idle_ns: int
    never_again: int
    gigabytes_per_second: float


def idle(held: Allocations, events: MemoryEvents, rank: int, device: int) -> list[Idle]:
    """Return what waits on a device at its peak, the most bytes first.

    Parameters, gradients and what else stays through a step are left out. The list is empty where no shapes
    are recorded.
    """
    place = held.peak(rank, device)[1]
    if not np.isfinite(place):
        return []
    stays = np.isin(held["kind"], [KINDS.index(kind) for kind in STAYS])
    mine = held.held_at(place) & on_device(held, rank, device) & ~stays
    rows = np.flatnonzero(
        mine & (held["begin"] > BEFORE) & (held["end"] < AFTER) & (held["bytes"] > 0)
    )
    users = _users(held, rank, device)
    if not users:
        return []
    time = events["time_ns"]
    peak = int(time[int(place)])
    begin, end = (time[np.floor(held[at][rows]).astype(np.int64)] for at in ("begin", "end"))
    asked, layers = operators(held), held.texts("layer")
    groups: dict[tuple[str, str, int], list[tuple[int, bool]]] = defaultdict(list)
    for row, first, last in zip(rows.tolist(), begin.tolist(), end.tolist(), strict=True):
        nbytes = int(held["bytes"][row])
        layer = layers[row]
        name = f"{asked[row] or NOWHERE} {INSTANCE.sub('*', layer) if layer else ''}".strip()
        wait = _around(users.get(nbytes), first, last, peak)
        if wait[0] > 0:
            groups[name, KINDS[held["kind"][row]], nbytes].append(wait)
    found = []
    for (name, kind, nbytes), waits in groups.items():
        shortest, never = min(wait for wait, _ in waits), sum(last for _, last in waits)
        found.append(
            Idle(
                name, kind, nbytes * len(waits), len(waits), shortest, never, 2 * nbytes / shortest
            )
        )
    return sorted(found, key=lambda each: (-each.bytes, -each.idle_ns, each.name))


def _users(held: Allocations, rank: int, device: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return the starts and the ends of the operators that are given a tensor of so many bytes, by bytes."""
    trace = held.trace
    rows = np.flatnonzero(trace.is_kind("operator") & (np.maximum(trace["rank"], 0) == rank))
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, sizes in zip(rows.tolist(), argument_bytes(trace, rows), strict=True):
        for nbytes in set(sizes):
            by_size[nbytes if device < 0 else -(-nbytes // GRANULE) * GRANULE].append(row)
    start = np.asarray(trace["start_ns"], np.int64)
    end = start + trace["duration_ns"]
    found = {}
    for nbytes, mine in by_size.items():
        order = np.array(mine)[np.argsort(start[mine], kind="stable")]
        found[nbytes] = (start[order], np.maximum.accumulate(end[order]))
    return found


def _around(
    users: tuple[np.ndarray, np.ndarray] | None, begin: int, end: int, peak: int
) -> tuple[int, bool]:
    """Return how long no user runs around the peak, within a lifetime, and whether the free ends that."""
    if users is None:
        return end - begin, True
    starts, ends = users
    after = int(np.searchsorted(starts, peak, side="right"))
    since = max(begin, int(ends[after - 1])) if after else begin
    until = min(end, int(starts[after])) if after < len(starts) else end
    return (max(until - since, 0), until == end) if since <= peak else (0, False)
