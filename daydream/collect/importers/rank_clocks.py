"""One clock for several ranks, told by the collectives that they met in."""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.collective_matching import ENDS_AGREE_NS, MatchedCollectives, match_collectives
from daydream.text import counted
from daydream.trace.trace import Trace

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
        notes.append("No collectives of different ranks could be matched; the ranks' clocks are as recorded.")
        return
    offsets = {
        rank: offset if abs(offset) > max(matched.noise_ns[rank], SHORTEST_MOVE_NS) else 0
        for rank, offset in matched.offset_ns.items()
    }
    if any(offsets.values()):
        uncertain = matched.uncertain
        _move(trace, offsets)
        matched = match_collectives(trace)
        matched.uncertain = uncertain
    trace.metadata["alignment"] = {
        "collectives": len(matched),
        "residual_ns": matched.residual_ns,
        "moved_ns": {str(rank): offset for rank, offset in offsets.items()},
        "alone": {str(rank): count for rank, count in matched.alone.items()},
    }
    notes += _sentences(trace, matched, offsets, ranks)


def _move(trace: Trace, offsets: dict[int, int]) -> None:
    earliest = min(0, *offsets.values())  # the trace's origin is moved instead of any time before it
    by_rank = {rank: offset - earliest for rank, offset in offsets.items()}
    rank = np.maximum(np.asarray(trace["rank"]), 0)
    present, number = np.unique(rank, return_inverse=True)
    moved = np.array([by_rank.get(one, -earliest) for one in present.tolist()], np.int64)
    trace.columns["start_ns"] = trace["start_ns"] + moved[number.reshape(-1)]
    if trace.memory is not None:
        memory = trace.memory
        ranks, number_of = np.unique(memory["rank"], return_inverse=True)
        by = np.array([by_rank.get(one, -earliest) for one in ranks.tolist()], np.int64)
        trace.memory = memory.changed(time_ns=memory["time_ns"] + by[number_of.reshape(-1)])
    trace.metadata["origin_ns"] = int(trace.metadata.get("origin_ns", 0)) + earliest
    for step in trace.metadata.get("steps", []):
        for edge in ("start_ns", "end_ns", "completion_ns"):
            if step.get(edge) is not None:
                step[edge] += by_rank.get(step.get("rank", 0), -earliest)


def _sentences(
    trace: Trace, matched: MatchedCollectives, offsets: dict[int, int], ranks: list[int]
) -> list[str]:
    world_size = trace.metadata.get("world_size")
    several = (
        f"{len(ranks)} of {world_size}"
        if isinstance(world_size, int) and world_size > len(ranks)
        else len(ranks)
    )
    moves = [f"rank {rank} by {offset / 1e3:+,.1f} us" for rank, offset in offsets.items() if offset]
    more = " and others" if len(moves) > MOST_NAMED else ""
    said = [
        f"{counted(len(matched), 'collective')} of {several} ranks matched, ends within "
        f"{matched.residual_ns / 1e3:,.1f} us of each other; "
        + (f"clocks moved: {', '.join(moves[:MOST_NAMED])}{more}." if moves else "no clock was moved.")
    ]
    if matched.residual_ns > ENDS_AGREE_NS:
        said.append("The ranks' clocks drift apart within the recording; waits between ranks are uncertain.")
    if matched.uncertain:
        named = ", ".join(map(str, sorted(matched.uncertain)))
        said.append(
            f"The collectives of the ranks {named} would fit nearly as well one or more iterations apart; "
            "the longest overlap was used."
        )
    if matched.alone:
        whose = ", ".join(f"{count:,} of rank {rank}" for rank, count in sorted(matched.alone.items()))
        said.append(f"Collectives that match none of another rank: {whose}.")
    strangers = [rank for rank in ranks if rank not in offsets]
    if strangers:
        named = ", ".join(map(str, strangers[:MOST_NAMED]))
        said.append(f"Ranks without a match, whose clocks are as recorded: {named}.")
    return said
