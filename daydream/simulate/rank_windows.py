"""The window of several ranks: which of their steps are the same ones, told by what joins them.

Ranks may have recorded other numbers of steps, or begun elsewhere. A collective belongs to one step
of the job, so the steps its members are in are the same step.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import ORDER_STEP
from daydream.graph.windows import where_in

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def windows_of_ranks(graph: Graph, longest: int) -> dict[int, tuple[int, int]] | None:
    """Return each rank's program range of the last covered steps, at most so many, the same on all ranks.

    None if a rank has no covered step that others follow, or a collective would be inside on
    one rank and outside on another: repeated, it would meet another one.
    """
    by_rank: dict[int, list[int]] = {}
    for number, step in enumerate(graph.steps):
        by_rank.setdefault(step.get("rank", 0), []).append(number)
    columns = graph.columns
    recorded = np.unique(columns["lane"][graph.alive & (columns["row"] >= 0)]).tolist()
    if {graph.lanes[lane].rank for lane in recorded} - set(by_rank):
        return None  # a rank without steps
    shift = _step_shifts(graph, by_rank)
    window = {}
    for members in set(coupled(graph).values()):
        together = [rank for rank in by_rank if rank in members]
        places = [
            place
            for place in range(max(len(steps) for steps in by_rank.values()))
            if all(_follows(graph, by_rank[rank], place + shift[rank]) for rank in together)
        ][-longest:]
        if not places:
            return None
        for rank in together:
            first, last = (by_rank[rank][place + shift[rank]] for place in (places[0], places[-1]))
            window[rank] = (
                int(graph.steps[first]["start_ns"]) * ORDER_STEP,
                int(graph.steps[last]["end_ns"]) * ORDER_STEP,
            )
    return window if _is_closed(graph, window) else None


def coupled(graph: Graph, *, waiting: bool = False) -> dict[int, frozenset[int]]:
    """Return, for each rank, the ranks that it meets, through others too.

    If only those are asked for that make it wait or wait for it, a meeting after which nobody waits is none.
    """
    found = {step.get("rank", 0): frozenset([step.get("rank", 0)]) for step in graph.steps}
    if len(found) < 2:
        return found
    src, dst = _links(graph)
    if waiting:
        behind = np.array([lane.background for lane in graph.lanes], bool)[graph.columns["lane"][dst]]
        holds = ~behind | np.isin(dst, src)
        src, dst = src[holds], dst[holds]
    rank = np.array([lane.rank for lane in graph.lanes], np.int64)[graph.columns["lane"]]
    for one, other in np.unique(np.stack([rank[src], rank[dst]], axis=1), axis=0).tolist():
        together = found.get(one, frozenset([one])) | found.get(other, frozenset([other]))
        for mate in together:
            found[mate] = together
    return {
        rank: mates for rank, mates in found.items() if any(s.get("rank", 0) == rank for s in graph.steps)
    }


def _links(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    src, dst = graph.links["src"], graph.links["dst"]
    there = (src >= 0) & (dst >= 0)
    there[there] &= graph.alive[src[there]] & graph.alive[dst[there]]
    return src[there], dst[there]


def _follows(graph: Graph, steps: list[int], place: int) -> bool:
    """Tell whether a rank's step at a place is covered and not its first, which follows none."""
    return 0 < place < len(steps) and bool(graph.steps[steps[place]].get("covered"))


def _step_shifts(graph: Graph, by_rank: dict[int, list[int]]) -> dict[int, int]:
    """Return by how many places each rank's steps are ahead of those of the rank that has the most.

    Told by the majority of the collectives that two ranks met in, directly or through others; ranks that
    met none end together.
    """
    near: dict[int, list[tuple[int, int]]] = {rank: [] for rank in by_rank}
    for (one, other), counts in _votes(graph, by_rank).items():
        ahead = counts.most_common(1)[0][0]
        near[one].append((other, ahead))
        near[other].append((one, -ahead))
    most = max(len(steps) for steps in by_rank.values())
    shift: dict[int, int] = {}
    for first, steps in by_rank.items():
        if first in shift:
            continue
        shift[first] = len(steps) - most
        waiting = [first]
        while waiting:
            rank = waiting.pop()
            for other, ahead in near[rank]:
                if other not in shift:
                    shift[other] = shift[rank] + ahead
                    waiting.append(other)
    return shift


def _votes(graph: Graph, by_rank: dict[int, list[int]]) -> dict[tuple[int, int], Counter[int]]:
    """Return how often each pair of ranks met so many steps apart."""
    place = np.full(len(graph.steps) + 1, -1)
    rank_of = np.full(len(graph.steps) + 1, -1)
    for rank, steps in by_rank.items():
        place[steps], rank_of[steps] = np.arange(len(steps)), rank
    src, dst = _links(graph)
    step = graph.columns["step"].astype(np.int64)
    ends = np.concatenate([src, dst])
    what = np.tile(dst, 2)[step[ends] >= 0]  # what follows several: the step of each rank in it
    rows = np.stack([what, rank_of[step[ends[step[ends] >= 0]]], place[step[ends[step[ends] >= 0]]]], axis=1)
    votes: dict[tuple[int, int], Counter[int]] = {}
    for _, each in groupby(np.unique(rows, axis=0).tolist(), key=itemgetter(0)):
        (_, first, at), *others = each
        for _, rank, there in others:
            if rank != first:
                votes.setdefault((first, rank), Counter())[there - at] += 1
    return votes


def _is_closed(graph: Graph, window: dict[int, tuple[int, int]]) -> bool:
    """Tell whether what joins two ranks is inside the window, before or behind it on both."""
    src, dst = _links(graph)
    lane, where = graph.columns["lane"], where_in(graph, window)
    rank = np.array([each.rank for each in graph.lanes], np.int64)
    across = rank[lane[src]] != rank[lane[dst]]
    return bool((where[src] == where[dst])[across].all())
