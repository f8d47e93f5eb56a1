"""Where the iterations of a found period begin and end in the sequence of launches."""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.launches import Launches
from daydream.collect.derive.recording import Recording

MIN_REPEATS = 3
STRETCH = 0.1
"""Fraction by which the number of launches may differ from the typical iteration's."""
SIMILAR = 0.8
"""Fraction of the typical iteration's launches that an iteration must have."""
ANCHOR = 16
LONGEST_ANCHOR = 512
"""Launches, at least and at most, that tell the begin of an iteration from other places in it."""
CLEARLY_LONGER = 2
"""Times as long a pause must be elsewhere for iterations to begin outside the region's first turn."""


def bounded(
    symbols: np.ndarray, pause_ns: np.ndarray, period: int, begin: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the iterations of a period that repeats in [begin, end) begin and end.

    They begin where the CPU pauses longest in each turn, unless that costs an iteration: then the
    recording itself begins with one, and the longest pause lies inside.
    """
    length_ns = _pauses(pause_ns, period, begin, end)
    slack = min((end - begin) % period, period - 1)
    near, free = int(length_ns[: slack + 1].argmax()), int(length_ns.argmax())
    found = _iterations(symbols, period, begin + near)
    if length_ns[free] <= CLEARLY_LONGER * length_ns[near]:
        return found
    for first in (begin + free - period, begin + free):  # an odd first iteration may still be alike
        if first >= 0:
            other = _iterations(symbols, period, first)
            if len(other[0]) >= len(found[0]):
                return other
    return found


def _pauses(pause_ns: np.ndarray, period: int, begin: int, end: int) -> np.ndarray:
    """Return how long the CPU pauses before each launch of a turn: the median of the turns but the first."""
    turns = (end - begin) // period
    places = begin + np.arange(period) + period * np.arange(1, turns + 1)[:, None]
    inside = places < end
    pauses = np.where(inside, pause_ns[np.minimum(places, end - 1)], 0).astype(float)
    pauses[~inside] = np.nan
    return np.asarray(np.nanmedian(pauses, axis=0))


def _iterations(symbols: np.ndarray, period: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where iterations begin and end in the whole sequence, given one that begins at `first`.

    They are found by how they begin, so that a launch more or less in one does not
    displace those after it.
    """
    anchors, begin = np.array([first]), first
    for candidate in (first, first + period, first + 2 * period):  # the first may be an odd one
        found = _anchors(symbols, period, candidate)
        if len(found) > 1.5 * len(anchors):
            anchors, begin = found, candidate
    typical = np.bincount(symbols[begin : begin + period], minlength=int(symbols.max()) + 1)
    anchors = _fill(symbols, typical, period, anchors)
    next_anchors = np.append(anchors[1:], len(symbols))
    near = np.abs(next_anchors - anchors - period) <= STRETCH * period
    near[-1] = False  # what follows the last anchor may be anything
    typical_length = int(np.median((next_anchors - anchors)[near])) if near.any() else period
    ends = np.where(near, next_anchors, np.minimum(anchors + typical_length, len(symbols)))
    whole = ends <= next_anchors
    anchors, ends = anchors[whole], ends[whole]
    alike = _likeness(symbols, typical, anchors, ends) >= SIMILAR * period
    return anchors[alike], ends[alike]


def _anchors(symbols: np.ndarray, period: int, begin: int) -> np.ndarray:
    """Return where the launches at `begin` come again, as many as are unique in a period."""
    typical = symbols[begin : begin + period]
    anchors = np.arange(len(symbols) - period + 1)
    inside = np.arange(len(typical))
    for offset in range(min(len(typical), LONGEST_ANCHOR)):
        anchors = anchors[symbols[anchors + offset] == typical[offset]]
        inside = inside[typical[(inside + offset) % len(typical)] == typical[offset]]
        if len(inside) == 1 and offset >= ANCHOR - 1:
            break
    return anchors if len(inside) == 1 else anchors[:0]


def _fill(symbols: np.ndarray, typical: np.ndarray, period: int, anchors: np.ndarray) -> np.ndarray:
    """Add the anchors that a differing launch hid: a period after one, where the next is farther off.

    And those a period before the first: a loop's first iteration often has launches of its own.
    """
    found = anchors.tolist()
    begin = int(anchors[0]) - period
    while begin >= 0 and _like(symbols, typical, begin, period):
        found.append(begin)
        begin -= period
    for anchor, following in zip(anchors.tolist(), [*anchors[1:].tolist(), len(symbols)], strict=True):
        nearest = following - (2 if following == len(symbols) else 2 - STRETCH) * period
        begin = anchor
        while begin <= nearest:
            begin += period
            if not _like(symbols, typical, begin, period):
                break
            found.append(begin)
    return np.unique(np.array(found))


def _like(symbols: np.ndarray, typical: np.ndarray, begin: int, period: int) -> bool:
    like = _likeness(symbols, typical, np.array([begin]), np.array([begin + period]))[0]
    return bool(like >= SIMILAR * period)


def _likeness(symbols: np.ndarray, typical: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return how many launches of the typical iteration each [begin, end) has, in whatever order."""
    lengths = ends - begins
    which = np.repeat(np.arange(len(begins)), lengths)
    at = np.arange(len(which)) + np.repeat(begins - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    keys = which * len(typical) + symbols[np.minimum(at, len(symbols) - 1)]
    pairs, counts = np.unique(keys, return_counts=True)
    shared = np.minimum(counts, typical[pairs % len(typical)])
    return np.bincount(pairs // len(typical), shared, minlength=len(begins))


def ends_of_iterations(
    recording: Recording, launches: Launches, firsts: np.ndarray, lasts: np.ndarray
) -> np.ndarray:
    """Return when the last runtime call of each iteration ends, on the threads of these launches.

    It is the last one before the launch that follows. Behind an iteration that no other follows,
    other work or the profiler's own end may come: as many calls are its own as are others'.
    """
    start_ns = launches.start_ns
    host = np.flatnonzero(recording.is_kind("runtime") & np.isin(recording.threads, launches.thread))
    host = host[np.argsort(recording["start_ns"][host], kind="stable")]
    begins = recording["start_ns"][host]
    latest = np.maximum.accumulate(begins + recording["duration_ns"][host])
    if not len(host):  # of a recording without calls the launches are the device work itself
        begins, latest = start_ns, np.maximum.accumulate(launches.end_ns)
    own = np.searchsorted(begins, start_ns[lasts - 1], side="right")  # behind the last launch itself
    stop = np.searchsorted(begins, np.append(start_ns, begins[-1] + 1)[lasts])
    followed = np.append(firsts[1:] == lasts[:-1], False)
    if followed.any():
        calls = int(np.median((stop - own)[followed]))
        stop[~followed] = np.minimum(stop, own + calls)[~followed]
    return np.asarray(latest[stop - 1], np.int64)
