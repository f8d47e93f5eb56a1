"""Whether files that are given together are the ranks of one job, as far as they tell.

One clock for several ranks, told by the collectives that they met in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from daydream.collect.derive.collectives import ENDS_AGREE_NS, MatchedCollectives, match_collectives
from daydream.collect.derive.recording import Recording
from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.trace import Trace

RANK_IN_NAME = regex(r"rank[_-]?(\d+)", re.IGNORECASE)
EPOCH_NS = 10**18  # clocks beyond it count from 1970; others from when a machine started
APART_NS = (
    600_000_000_000  # clocks of one cluster agree within seconds, ranks are recorded together
)
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
    (size, other_size), (rank, other_rank) = (
        [each.metadata.get(name) for each in (one, other)] for name in ("world_size", "rank")
    )
    if None not in (size, other_size) and size != other_size:
        yield f"come from two jobs: one of {size} ranks, one of {other_size}"
    if rank is not None and rank == other_rank and size not in (None, 1):
        yield f"both say that they are rank {rank} of {size}"
    groups = [_default_group(recording.metadata) for recording in (one, other)]
    if None not in groups and groups[0] != groups[1]:
        yield "come from two jobs: their process groups hold other ranks"
    apart = _apart_ns(one, other)
    if apart > APART_NS:
        yield f"come from two jobs: one was recorded {apart / 60e9:,.0f} minutes after the other had ended"


def _begins_alike(one: Recording, other: Recording) -> bool:
    """Return whether all rows begin at the same nanoseconds: no two processes' do."""
    same = np.array_equal(one["start_ns"], other["start_ns"])
    return EPOCH_NS < _origin(one) == _origin(other) and same


def _default_group(metadata: dict[str, Any]) -> list[int] | None:
    """Return the ranks of the group of all, None if the file names none."""
    groups = [
        group["ranks"]
        for group in metadata.get("groups", [])
        if group["description"] == "default_pg"
    ]
    return groups[0] if len(groups) == 1 and groups[0] else None


def _apart_ns(one: Recording, other: Recording) -> int:
    """Return the time between the end of one recording and the begin of the other, 0 or less if they meet."""
    first, last = sorted((one, other), key=_origin)
    if _origin(first) < EPOCH_NS:
        return 0
    ends = first["start_ns"].astype(np.int64) + first["duration_ns"]
    return _origin(last) - _origin(first) - int(ends.max(initial=0))


def _origin(recording: Recording) -> int:
    return int(recording.metadata.get("origin_ns", 0))


SHORTEST_MOVE_NS = 1_000  # old profilers write whole microseconds
MOST_NAMED = 8


def align_ranks(trace: Trace) -> None:
    """Move the ranks' times to the clock of the first, and say in metadata and notes how well they fit.

    A clock is moved where the ends of its collectives differ from the others' by more than they stray
    among themselves. `metadata["alignment"]` holds the number of collectives met, the residual, what
    each rank was moved by and how many collectives of each met none, times in ns.
    """
    rows = np.flatnonzero(trace.is_kind("collective"))
    ranks = np.unique(np.maximum(trace["rank"][rows], 0)).tolist()
    if len(ranks) < 2:
        return
    notes = trace.metadata.setdefault("notes", [])
    matched = match_collectives(trace)
    if not len(matched):
        notes.append(
            "No collectives of different ranks could be matched; the ranks' clocks are as recorded."
        )
        return
    offsets = {
        rank: offset if abs(offset) > max(matched.noise_ns[rank], SHORTEST_MOVE_NS) else 0
        for rank, offset in matched.offset_ns.items()
    }
    if any(offsets.values()):
        uncertain = matched.uncertain
        move(trace, offsets)
        matched = match_collectives(trace)
        matched.uncertain = uncertain
    trace.metadata["alignment"] = {
        "collectives": len(matched),
        "residual_ns": matched.residual_ns,
        "moved_ns": {str(rank): offset for rank, offset in offsets.items()},
        "alone": {str(rank): count for rank, count in matched.alone.items()},
    }
    notes += _sentences(trace, matched, offsets, ranks)


def move(trace: Trace, offsets: dict[int, int]) -> None:
    """Move the times of each rank, of its rows, memory and steps, by so many ns."""
    earliest = min(
        0, *offsets.values()
    )  # the trace's origin is moved instead of any time before it
    by_rank = {rank: offset - earliest for rank, offset in offsets.items()}

    def moved(ranks: np.ndarray) -> np.ndarray:
        present, number = np.unique(np.maximum(ranks, 0), return_inverse=True)
        by = np.array([by_rank.get(rank, -earliest) for rank in present.tolist()], np.int64)
        return by[number.reshape(-1)]

    trace.columns["start_ns"] = trace["start_ns"] + moved(trace["rank"])
    if trace.memory is not None:
        memory = trace.memory
        trace.memory = memory.changed(time_ns=memory["time_ns"] + moved(memory["rank"]))
    trace.metadata["origin_ns"] = int(trace.metadata.get("origin_ns", 0)) + earliest
    for step in trace.metadata.get("steps", []):
        for edge in ("start_ns", "end_ns", "completion_ns"):
            if step.get(edge) is not None:
                step[edge] += by_rank.get(step.get("rank", 0), -earliest)


def _sentences(
    trace: Trace, matched: MatchedCollectives, offsets: dict[int, int], ranks: list[int]
) -> list[str]:
    world_size = trace.metadata.get("world_size")
    several = str(len(ranks))
    if isinstance(world_size, int) and world_size > len(ranks):
        several = f"{several} of {world_size}"
    moves = [
        f"rank {rank} by {offset / 1e3:+,.1f} us" for rank, offset in offsets.items() if offset
    ]
    more = " and others" if len(moves) > MOST_NAMED else ""
    moved = (
        f"clocks moved: {', '.join(moves[:MOST_NAMED])}{more}" if moves else "no clock was moved"
    )
    matching = f"{counted(len(matched), 'collective')} of {several} ranks matched"
    within = f"ends within {matched.residual_ns / 1e3:,.1f} us of each other"
    said = [f"{matching}, {within}; {moved}."]
    if matched.residual_ns > ENDS_AGREE_NS:
        said.append(
            "The ranks' clocks drift apart within the recording; waits between ranks are uncertain."
        )
    if matched.uncertain:
        named = ", ".join(map(str, sorted(matched.uncertain)))
        said.append(
            f"The collectives of the ranks {named} would fit nearly as well one or more iterations apart; "
            "the longest overlap was used."
        )
    if matched.alone:
        whose = ", ".join(
            f"{count:,} of rank {rank}" for rank, count in sorted(matched.alone.items())
        )
        said.append(f"Collectives that match none of another rank: {whose}.")
    strangers = [rank for rank in ranks if rank not in offsets]
    if strangers:
        named = ", ".join(map(str, strangers[:MOST_NAMED]))
        said.append(f"Ranks without a match, whose clocks are as recorded: {named}.")
    return said
