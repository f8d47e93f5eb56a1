"""Collectives that run on threads of the CPU (gloo): their rows, the calls that began them, who met in them.

torch's gloo backend queues each collective for a pool of threads; the thread's row spans its run, the
`c10d::` operator its queueing. The profiler ties neither to the other, and names no group.

MatchedCollectives: the rows of several ranks that are one collective, and what they say about the clocks.

Collectives of a process group run in one order on all its members, so the sequences of two
ranks differ only at their ends, where one recording began earlier or ended later, unless rows were
lost in between. A collective ends on all members nearly at once (1 to 7 us apart on one host),
whenever each arrived: the ends show how far the clocks of two ranks are apart.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct, field

from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS
from daydream.trace.trace import Trace

RUN = regex(r"^gloo:")
CALL = regex(r"^c10d::")
# None of the members can be done before all have begun; of the others a root or a leaf can.
ONE_SIZE_ON_HOST = (
    "all_reduce",
    "broadcast",
    "reduce",
)  # calls of others are given inputs and outputs
NEED_ALL = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")
CLOCKS_AGREE_NS = 100_000  # by so much may one member seem to end before another began


def host_collectives(trace: Trace) -> np.ndarray:
    """Return the rows of collectives on the CPU; none where there is device work, which has its own."""
    none = np.empty(0, np.int64)
    if trace.is_kind(*DEVICE_KINDS).any():
        return none
    return _rows(trace, RUN, "annotation")


def calls_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the row of the call that began each collective, -1 where none was recorded.

    A rank's collectives of one operation begin in the order of their calls; sizes are compared
    where both are known and what a call is given is what is sent.
    """
    calls = _rows(trace, CALL, "operator")
    rank = np.maximum(trace["rank"], 0)
    start = trace["start_ns"]
    what = dict(zip(rows.tolist(), operations(trace, rows), strict=True))
    asked = dict(zip(calls.tolist(), operations(trace, calls), strict=True))
    nbytes = trace["bytes"]
    found = np.full(len(rows), -1, np.int64)
    open_calls: dict[int, list[int]] = {}
    for call in calls[np.argsort(start[calls], kind="stable")].tolist():
        open_calls.setdefault(int(rank[call]), []).append(call)
    places = np.argsort(start[rows], kind="stable").tolist()
    for place in places:
        row = int(rows[place])
        waiting = open_calls.get(int(rank[row]), [])
        for call in waiting:
            if start[call] > start[row]:
                break
            sizes_differ = min(nbytes[call], nbytes[row]) >= 0 and nbytes[call] != nbytes[row]
            if asked[call] == what[row] and not (sizes_differ and what[row] in ONE_SIZE_ON_HOST):
                found[place] = call
                waiting.remove(call)
                break
    # gloo runs a reduce-scatter as an all-reduce: what is left belongs together in its order, from the last.
    for place in reversed(places):
        row = int(rows[place])
        waiting = [call for call in open_calls.get(int(rank[row]), []) if start[call] <= start[row]]
        if found[place] < 0 and waiting:
            found[place] = waiting[-1]
            open_calls[int(rank[row])].remove(waiting[-1])
    return found


def inside_collectives(trace: Trace) -> np.ndarray:
    """Return the rows that lie within a collective of a pool's thread: copies in and out of its buffers."""
    rows = host_collectives(trace)
    if not len(rows):
        return rows
    parent = np.asarray(trace["parent"], np.int64)
    within = np.zeros(len(trace) + 1, bool)
    within[rows] = True
    found = within[parent] & (parent >= 0)
    while (more := (found[parent] & (parent >= 0) & ~found)).any():
        found |= more
    return np.flatnonzero(found)


def operations(trace: Trace, rows: np.ndarray) -> list[str]:
    """Return what each row does (all_reduce, ...), by its name where the trace does not tell."""
    from daydream.collect.derive.device_work import collective_of_name

    said = trace.values("collective", rows)
    names = trace.values("name", rows)
    return [one or collective_of_name(name) or name for one, name in zip(said, names, strict=True)]


def host_meetings(trace: Trace, rows: np.ndarray) -> list[np.ndarray]:
    """Return the rows that are one collective, each array in order of rank.

    All ranks call them in one order. Two ranks' sequences are laid along each other so that
    operations and sizes are equal and most members were at it at one time, as the clocks of one host tell.
    What was not is no meeting.
    """
    calls = calls_of(trace, rows)
    begun = np.where(calls >= 0, trace["start_ns"][calls], trace["start_ns"][rows])
    runs = _runs(trace, rows[np.argsort(begun, kind="stable")], ONE_SIZE_ON_HOST)
    longest = max(runs, key=lambda run: len(run.rows))
    slots: list[list[tuple[int, int]]] = [[(longest.rank, int(row))] for row in longest.rows]
    for run in runs:
        for here, there in _line_up(trace, longest, run) if run is not longest else ():
            slots[here].append((run.rank, int(run.rows[there])))
    return [np.array([row for _, row in sorted(slot)]) for slot in slots if len(slot) > 1]


def _line_up(trace: Trace, one: _Run, other: _Run) -> list[tuple[int, int]]:
    """Return the places of two ranks' sequences that pair up; empty if they do not fit."""
    start = trace["start_ns"]
    most = -1
    pairs: list[tuple[int, int]] = []
    for here, there, agrees in _shifts(one, other, 1):
        together = one.end_ns[here] + CLOCKS_AGREE_NS >= start[other.rows[there]]
        together &= other.end_ns[there] + CLOCKS_AGREE_NS >= start[one.rows[here]]
        needed = np.isin(one.what[here], NEED_ALL)
        possible = agrees.all() and (together.any() or not needed.any())
        if possible and together.sum() > most:
            most = int(together.sum())
            met = together | ~needed
            pairs = list(zip(here[met].tolist(), there[met].tolist(), strict=True))
    return pairs


def _rows(trace: Trace, pattern: re.Pattern[str], kind: str) -> np.ndarray:
    from daydream.collect.derive.device_work import collective_of_name

    texts = trace.text("name")
    codes = [
        code
        for code, name in enumerate(texts)
        if pattern.match(name) and collective_of_name(name) is not None
    ]
    return np.flatnonzero(np.isin(trace["name"], codes) & trace.is_kind(kind))


ENDS_AGREE_NS = (
    100_000  # members of one collective end within 1 to 7 us of each other on aligned clocks
)
LEAST_SHARE = 0.5  # of the shorter sequence must pair up for two ranks to be held to have met
MOST_PAIRINGS = 500  # of two sequences that are tried
ALMOST = 0.8  # as many ends that meet: as good
SAME_SIZE = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
)  # all_to_all need not be
HANDED_ON = (
    "broadcast",
    "scatter",
    "reduce",
    "gather",
)  # who gives its data away need not wait for others
POINT_TO_POINT = ("send_recv", "send", "recv")


class MatchedCollectives(Struct):
    """Which rows of a trace are one collective.

    `rows` holds an array for each, its members in order of rank. `offset_ns` is by how much each
    rank's clock must be moved to agree with the first rank's, `spread_ns` how far the ends of each
    meeting lie apart on the clocks as they are, but for members that gave their data away and had gone
    before the last one came. `alone` counts the collectives of a rank that met none.
    """

    rows: list[np.ndarray] = field(default_factory=list)
    offset_ns: dict[int, int] = field(default_factory=dict)
    noise_ns: dict[int, int] = field(
        default_factory=dict
    )  # how far single ends stray from the offset
    spread_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    alone: dict[int, int] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)  # ranks that fit as well an iteration apart
    on_host: bool = False  # run by threads of the CPU: their ends say nothing about the clocks

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def residual_ns(self) -> int:
        """The farthest that the ends of a meeting lie apart."""
        return int(self.spread_ns.max(initial=0))


class _Run(Struct, frozen=True):
    """The collectives of one rank in one process group, in the order they began."""

    rank: int
    rows: np.ndarray
    what: np.ndarray  # the operations by name
    nbytes: np.ndarray  # -1 of operations whose members need not have one size
    end_ns: np.ndarray

    @property
    def pairwise(self) -> np.ndarray:
        """Which are messages between two."""
        return np.isin(self.what, POINT_TO_POINT)


def match_collectives(trace: Trace) -> MatchedCollectives:
    """Return the collectives of a trace of several ranks, matched; empty for one rank."""
    on_host = host_collectives(trace)
    if len(on_host):
        return _on_host(trace, on_host)
    found = MatchedCollectives()
    handed_on = np.isin(np.array([*trace.text("collective"), ""], dtype=str), HANDED_ON)[
        trace["collective"]
    ]
    ties: list[tuple[int, int, int, int, int]] = []  # rank, rank, offset, noise, pairs
    members: list[list[int]] = []
    for runs in _groups(trace):
        longest = max(runs, key=lambda run: (len(run.rows), -run.rank))
        slots: list[list[tuple[int, int]]] = [[(longest.rank, int(row))] for row in longest.rows]
        for run in runs:
            if run is longest:
                continue
            paired = _pair(longest, run)
            if paired is None:
                continue
            pairs, certain = paired
            apart = longest.end_ns[pairs[0]] - run.end_ns[pairs[1]]
            together = ~handed_on[
                longest.rows[pairs[0]]
            ]  # a root that ends early is not of another clock
            apart = apart[together] if together.any() else apart
            if longest.pairwise[pairs[0]].all() and abs(np.median(apart)) > ENDS_AGREE_NS:
                continue  # messages of different pairs look alike, and say nothing about the clocks
            if not certain:
                found.uncertain.add(run.rank)
            offset = round(float(np.median(apart)))
            noise = round(float(np.percentile(np.abs(apart - offset), 90)))
            ties.append((longest.rank, run.rank, offset, noise, len(apart)))
            for here, there in pairs.T.tolist():
                slots[here].append((run.rank, int(run.rows[there])))
        # A message between two has no order that others share: only one that all took part in counts.
        full = np.where(longest.pairwise, len(runs), 2).tolist()
        members += [
            [row for _, row in sorted(slot)]
            for slot, least in zip(slots, full, strict=True)
            if len(slot) >= least
        ]
    rank = np.maximum(np.asarray(trace["rank"]), 0)
    collective = trace.is_kind("collective")
    present = np.unique(rank[collective]).tolist() if collective.any() else []
    if len(present) < 2:
        return found
    found.offset_ns, found.noise_ns = _spanned(present, ties)
    end = trace["start_ns"] + trace["duration_ns"]
    found.rows = sorted((np.array(rows) for rows in members), key=lambda rows: int(end[rows].max()))
    found.spread_ns = np.array(
        [
            _spread(trace["start_ns"][rows], end[rows], handed_on=bool(handed_on[rows[0]]))
            for rows in found.rows
        ],
        np.int64,
    )
    met = np.zeros(len(trace), bool)
    met[[row for rows in members for row in rows]] = True
    left = rank[collective & ~met]
    found.alone = {one: int((left == one).sum()) for one in present if (left == one).any()}
    return found


def _spread(start_ns: np.ndarray, end_ns: np.ndarray, *, handed_on: bool) -> int:
    """Return how far the ends lie apart of those that waited for the last; all did if not `handed_on`."""
    waited = end_ns >= start_ns.max() - ENDS_AGREE_NS if handed_on else slice(None)
    return int(np.ptp(end_ns[waited]))


def _on_host(trace: Trace, rows: np.ndarray) -> MatchedCollectives:
    rank = np.maximum(np.asarray(trace["rank"]), 0)[rows]
    present = np.unique(rank).tolist()
    if len(present) < 2:
        return MatchedCollectives(on_host=True)
    end = trace["start_ns"] + trace["duration_ns"]
    met = sorted(host_meetings(trace, rows), key=lambda each: int(end[each].max()))
    spread = np.array([np.ptp(end[each]) for each in met], np.int64)
    left = rank[~np.isin(rows, np.concatenate(met) if met else [])]
    alone = {one: int((left == one).sum()) for one in present if (left == one).any()}
    offsets = dict.fromkeys(present, 0) if met else {}
    return MatchedCollectives(met, offsets, dict(offsets), spread, alone, on_host=True)


def _groups(trace: Trace) -> Iterator[list[_Run]]:
    """Yield the runs of each process group that two or more of the ranks took part in."""
    rows = np.flatnonzero(trace.is_kind("collective"))
    rows = rows[np.argsort(trace["start_ns"][rows], kind="stable")]
    group = np.asarray(trace["group"], np.int64)[rows]
    for one in np.unique(group).tolist():
        runs = _runs(trace, rows[group == one], SAME_SIZE)
        if len(runs) > 1:
            yield runs


def _runs(trace: Trace, rows: np.ndarray, one_size: tuple[str, ...]) -> list[_Run]:
    """Return the rows of each rank, in their order; all members of some operations have one size."""
    rank = np.maximum(np.asarray(trace["rank"], np.int64)[rows], 0)
    end = trace["start_ns"][rows] + trace["duration_ns"][rows]
    what = np.array(operations(trace, rows), dtype=str)
    nbytes = np.where(np.isin(what, one_size), np.asarray(trace["bytes"], np.int64)[rows], -1)
    return [
        _Run(one, rows[mine], what[mine], nbytes[mine], end[mine])
        for one in np.unique(rank).tolist()
        for mine in [rank == one]
    ]


class _Pairing(Struct, frozen=True):
    """One way to lay two sequences along each other."""

    pairs: np.ndarray  # places in the one and in the other
    wrong: float  # share of the overlap in which operations or sizes differ
    offset_ns: float  # between the ends
    in_time: int  # how many of the one's ends meet an end of the other's at that offset

    @property
    def near(self) -> bool:
        """Whether the clocks agree already: no chance, where collectives are further apart."""
        return abs(self.offset_ns) <= ENDS_AGREE_NS

    def likely(self) -> tuple[float, ...]:
        """Sort key, the likeliest first: clocks that agree, most ends that meet, least to explain."""
        size = self.pairs.shape[1]
        return not self.near, -self.in_time, self.wrong, -size, abs(self.offset_ns)


def _pair(one: _Run, other: _Run) -> tuple[np.ndarray, bool] | None:
    """Return the places of two runs that pair up, as two rows of numbers; None if they do not fit.

    And whether that is certain: an iteration earlier or later may fit as well where all take the same time.
    """
    least = max(1, round(LEAST_SHARE * min(len(one.rows), len(other.rows))))
    found = []
    for here, there, agrees in _shifts(one, other, least):
        pairs = np.stack([here[agrees], there[agrees]])
        offset = float(np.median(one.end_ns[pairs[0]] - other.end_ns[pairs[1]]))
        in_time = int(_nearest(one.end_ns - offset, other.end_ns)[1].sum())
        found.append(_Pairing(pairs, float((~agrees).mean()), offset, in_time))
    steady = [each for each in found if each.in_time >= least]
    if (
        not steady
    ):  # clocks that drift: only the order is left, and only a whole sequence shows that
        whole = [each.pairs for each in found if not each.wrong]
        return (max(whole, key=lambda pairs: pairs.shape[1]), True) if whole else None
    best = min(steady, key=_Pairing.likely)
    alike = [each for each in steady if each.in_time >= ALMOST * best.in_time and not each.wrong]
    pairs = _by_ends(one, other, best.offset_ns)
    shift = best.pairs[0, 0] - best.pairs[1, 0]
    if not best.wrong and (pairs[0] - pairs[1] == shift).all():
        pairs = best.pairs  # nothing is lost in between: the order alone tells
    return (pairs, best.near or len(alike) < 2) if pairs.shape[1] >= least else None


def _shifts(
    one: _Run, other: _Run, least: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the ways to lay one sequence along the other in which enough operations and sizes agree.

    Each is the places in the one, those in the other, and which of them agree; the middle way comes first.
    """
    shifts = range(least - len(other.rows), len(one.rows) - least + 1)
    middle = len(one.rows) - len(other.rows)
    for shift in sorted(shifts, key=lambda shift: (abs(2 * shift - middle), shift))[:MOST_PAIRINGS]:
        here = np.arange(max(shift, 0), min(len(one.rows), len(other.rows) + shift))
        agrees = _alike(one, other, here, here - shift)
        if agrees.sum() >= least:
            yield here, here - shift, agrees


def _alike(one: _Run, other: _Run, here: np.ndarray, there: np.ndarray) -> np.ndarray:
    sizes = one.nbytes[here]
    others = other.nbytes[there]
    return np.asarray(
        (one.what[here] == other.what[there]) & ((sizes == others) | (sizes < 0) | (others < 0))
    )


def _nearest(ends_ns: np.ndarray, others_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each end which of the others is nearest, and whether the two meet."""
    order = np.argsort(others_ns, kind="stable")
    others = others_ns[order]
    after = np.clip(np.searchsorted(others, ends_ns), 1, max(len(others) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(others) - 1)
    earlier = np.abs(ends_ns - others[before]) <= np.abs(others[after] - ends_ns)
    place = order[np.where(earlier, before, after)]
    return place, np.abs(ends_ns - others_ns[place]) <= ENDS_AGREE_NS


def _by_ends(one: _Run, other: _Run, offset_ns: float) -> np.ndarray:
    """Pair the ends that are each other's nearest on aligned clocks, where rows are missing in between."""
    ends_ns = one.end_ns - offset_ns
    there, meets = _nearest(ends_ns, other.end_ns)
    back, _ = _nearest(other.end_ns, ends_ns)
    here = np.flatnonzero(meets & (back[there] == np.arange(len(there))))
    here = here[_alike(one, other, here, there[here])]
    return np.stack([here, there[here]])


def _spanned(
    ranks: list[int], ties: Iterable[tuple[int, int, int, int, int]]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return each rank's offset to the first rank it met, itself or through others, and its noise."""
    near: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in ranks}
    for one, other, offset, noise, _ in sorted(ties, key=lambda tie: (-tie[4], tie)):
        near[one].append((other, offset, noise))
        near[other].append((one, -offset, noise))
    offsets: dict[int, int] = {}
    noises: dict[int, int] = {}
    for first in ranks:
        if first in offsets or not near[first]:
            continue
        offsets[first] = 0
        noises[first] = 0
        waiting = deque([first])
        while waiting:
            rank = waiting.popleft()
            for other, offset, noise in near[rank]:
                if other not in offsets:
                    offsets[other] = offsets[rank] + offset
                    noises[other] = max(noises[rank], noise)
                    waiting.append(other)
    return offsets, noises
