"""Whether files that are given together are the ranks of one job, as far as they tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.errors import TraceError
from daydream.lazy import regex

RANK_IN_NAME = regex(r"rank[_-]?(\d+)", re.IGNORECASE)
EPOCH_NS = 10**18  # clocks beyond it count from 1970; others from when a machine started
APART_NS = 600_000_000_000  # clocks of one cluster agree within seconds, ranks are recorded together
ALIKE = 100  # rows that begin at the same nanosecond: no two processes do
CHOOSE = "Give the files of one job, each rank once; if these are its ranks, name them: --ranks 0,1"


def need_one_job(recordings: Sequence[Recording], names: Sequence[str]) -> None:
    """Raise `TraceError` if two recordings cannot be different ranks of one job, and say why.

    What files say is believed where they say it: rank and world size, the ranks of the default group, and
    the times of clocks that count from 1970.
    """
    for (one, first), (other, second) in combinations(zip(recordings, names, strict=True), 2):
        told = {found.group(1) for found in map(RANK_IN_NAME.search, (first, second)) if found}
        if len(told) < 2 and _begins_alike(one, other):
            raise TraceError(f"{first} and {second} are the same recording.\n{CHOOSE}")
        for why in _why_not(one, other):
            raise TraceError(f"{first} and {second} {why}.\n{CHOOSE}")


def _why_not(one: Recording, other: Recording) -> Iterator[str]:
    sizes = [recording.metadata.get("world_size") for recording in (one, other)]
    if None not in sizes and sizes[0] != sizes[1]:
        yield f"come from two jobs: one of {sizes[0]} ranks, one of {sizes[1]}"
    ranks = [recording.metadata.get("rank") for recording in (one, other)]
    if ranks[0] is not None and ranks[0] == ranks[1] and sizes[0] not in (None, 1):
        yield f"both say that they are rank {ranks[0]} of {sizes[0]}"
    groups = [_default_group(recording.metadata) for recording in (one, other)]
    if None not in groups and groups[0] != groups[1]:
        yield "come from two jobs: their process groups hold other ranks"
    apart = _apart_ns(one, other)
    if apart > APART_NS:
        yield f"come from two jobs: one was recorded {apart / 60e9:,.0f} minutes after the other had ended"


def _begins_alike(one: Recording, other: Recording) -> bool:
    origins = {int(recording.metadata.get("origin_ns", 0)) for recording in (one, other)}
    same = np.array_equal(one["start_ns"][:ALIKE], other["start_ns"][:ALIKE])
    return len(origins) == 1 and max(origins) > EPOCH_NS and same


def _default_group(metadata: dict[str, Any]) -> list[int] | None:
    """Return the ranks of the group of all, None if the file names none."""
    groups = [group["ranks"] for group in metadata.get("groups", []) if group["description"] == "default_pg"]
    return groups[0] if len(groups) == 1 and groups[0] else None


def _apart_ns(one: Recording, other: Recording) -> int:
    """Return the time between the end of one recording and the begin of the other, 0 or less if they meet."""
    begins = [int(recording.metadata.get("origin_ns", 0)) for recording in (one, other)]
    if min(begins) < EPOCH_NS:
        return 0
    first, last = (one, other) if begins[0] <= begins[1] else (other, one)
    ends = first["start_ns"].astype(np.int64) + first["duration_ns"]
    return int(last.metadata["origin_ns"]) - int(first.metadata["origin_ns"]) - int(ends.max(initial=0))
