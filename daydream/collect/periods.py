"""Iterations found from the launch sequence alone, for recordings that mark no steps.

A loop launches the same work again and again. Equal runs of launches at one distance
give the period; where they repeat, and where the CPU pauses longest, gives the
boundaries. A few launches more, less or different in an iteration do not matter.

Limits: one loop is found, the one that covers most launches. A recording of a single
pass through equal layers looks like one iteration a layer. Iterations that differ in
turn by more than 2 % of their launches are found as one: four micro-batches and an
optimizer step are one iteration, not four.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from daydream.collect.recording import Recording
from daydream.trace import DEVICE_KINDS

MIN_REPEATS = 3
MIN_COVERAGE = 0.5
"""Fraction of all launches and of their device time that iterations must hold; a part of one holds less."""
SMALL = 0.02
"""Fraction of an iteration's launches that may differ and are still no structure of their own."""
STRETCH = 0.1
"""Fraction by which the number of launches may differ from the typical iteration's."""
SIMILAR = 0.8
"""Fraction of the typical iteration's launches that an iteration must have."""
MISMATCH_COST = 3
"""A repeating region goes on across mismatches while more than three in four launches match."""
PLAY = 4
"""Launches, at most, by which one iteration may be longer than the one before it and still repeat."""
RUN = 8
"""Launches compared at once: single kernels recur by chance, runs of them hardly."""
SHORT = 512
"""Sequences up to this long are compared launch by launch, and every period is tried."""
PEAKS = 32
"""Longer ones try so many of the autocorrelation's highest peaks, and of its first high ones."""
ANCHOR = 16
LONGEST_ANCHOR = 512
"""Launches, at least and at most, that tell the begin of an iteration from other places in it."""


def find_steps_by_period(recording: Recording) -> list[tuple[int, int]]:
    """Return the CPU-time ranges (start_ns, end_ns) of iterations, from repeats in the launch sequence.

    A range begins with the first launch call of its iteration and ends where the next
    iteration begins, or with the last call before other work. Empty if no sequence of
    launches repeats three times and makes up half of all launches and of the device time.
    """
    symbols, start_ns, end_ns, work_ns = _launches(recording)
    found = _Period(symbols).search() if len(symbols) >= MIN_REPEATS else None
    if found is None:
        return []
    period, begin, end = found
    pause_ns = np.concatenate(([0], start_ns[1:] - np.maximum.accumulate(end_ns)[:-1]))
    first = begin + _shift(pause_ns, period, begin, end)
    firsts, lasts = _iterations(symbols, period, first)
    total_ns = np.concatenate(([0], np.cumsum(work_ns)))
    held, held_ns = (lasts - firsts).sum(), (total_ns[lasts] - total_ns[firsts]).sum()
    if len(firsts) < MIN_REPEATS or held < MIN_COVERAGE * len(symbols):
        return []
    if held_ns < MIN_COVERAGE * total_ns[-1]:
        return []
    ends_ns = _end_of_calls(recording, start_ns, lasts)
    followed = np.flatnonzero(firsts[1:] == lasts[:-1])
    ends_ns[followed] = start_ns[firsts[followed + 1]]
    return list(zip(start_ns[firsts].tolist(), ends_ns.tolist(), strict=True))


def _launches(recording: Recording) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what each launch call launched (a code), its start and end and its device time, in call order.

    A call with several device rows, a graph launch, counts once under the call's own
    name: profilers record a varying part of a graph's nodes. Of several ranks, the one
    with most launches is taken.
    """
    host = np.flatnonzero(recording.is_kind("runtime") & (recording["correlation"] >= 0))
    device = np.flatnonzero(recording.is_kind(*DEVICE_KINDS) & (recording["correlation"] >= 0))
    if len(host) == 0 or len(device) == 0:
        nothing = np.empty(0, np.int64)
        return nothing, nothing, nothing, nothing
    host = host[np.argsort(recording["correlation"][host], kind="stable")]
    known = recording["correlation"][host]
    at = np.minimum(np.searchsorted(known, recording["correlation"][device]), len(known) - 1)
    linked = known[at] == recording["correlation"][device]
    device, host = device[linked], host[at[linked]]
    calls, position, which, rows = np.unique(host, return_index=True, return_inverse=True, return_counts=True)
    work_ns = np.zeros(len(calls), np.int64)
    np.add.at(work_ns, which, recording["duration_ns"][device])
    names = recording["name"].astype(np.int64)
    codes = np.where(rows == 1, names[device[position]], len(recording.text("name")) + names[calls])
    if len(calls):
        _, rank, counts = np.unique(recording["rank"][calls], return_inverse=True, return_counts=True)
        mine = rank == counts.argmax()
        calls, codes, work_ns = calls[mine], codes[mine], work_ns[mine]
    start_ns = recording["start_ns"][calls].astype(np.int64)
    order = np.argsort(start_ns, kind="stable")
    end_ns = start_ns + recording["duration_ns"][calls]
    symbols = np.unique(codes, return_inverse=True)[1].astype(np.int32)
    return symbols[order], start_ns[order], end_ns[order], work_ns[order]


class _Period:
    """The search for the period of one sequence."""

    def __init__(self, symbols: np.ndarray) -> None:
        self.length = len(symbols)
        self.run = RUN if self.length > SHORT else 1
        self.runs = _run_hashes(symbols, self.run)
        self.candidates: list[int] = self._candidates().tolist()
        self.repeats: dict[int, np.ndarray] = {}
        self.unbroken: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def search(self) -> tuple[int, int, int] | None:
        """Return the period and the [begin, end) of the region it repeats in, or None.

        The period sought explains most launches. A layer that repeats inside the
        iteration matches at its own, shorter distance, but breaks around the iteration's
        head and tail and so explains less. A multiple of the iteration explains as much:
        the shortest period that breaks no more often than the best is taken, but for
        differences too small to be a structure. Periods of several layers are left out:
        against several layers, a head and a tail look like a small difference.
        """
        best = (0, 0, 0, 0)
        for period in self.candidates:
            score, begin, end = self._region(period)
            long_enough = end - begin >= MIN_REPEATS * period
            if long_enough and score > best[0] and not self._is_made_of_shorter(period, begin, end):
                best = (score, period, begin, end)
        score, longest, begin, end = best
        if not score:
            return None
        inside = slice(begin, end - longest)
        breaks = int((~self._repeats(longest)[inside]).sum())
        turns = (end - begin) / longest - 1
        divisors = [period for period in range(1, longest // 2 + 1) if longest % period == 0]
        for period in sorted({*self.candidates, *divisors}):
            if period >= longest:
                break
            more_breaks = int((~self._repeats(period)[inside]).sum()) - breaks
            if more_breaks <= SMALL * period * turns and not self._is_made_of_shorter(period, begin, end):
                _, begin, end = self._region(period)
                return period, begin, end
        return longest, begin, end

    def _candidates(self) -> np.ndarray:
        """Return periods worth trying, ascending: all of them, or the peaks of the autocorrelation."""
        lags = np.arange(1, self.length // MIN_REPEATS + 1)
        if self.length <= SHORT:
            return lags
        # Bits of the hashes as signs turn "equal" into a product, so that one transform finds the equal
        # pairs at all distances; unequal ones average out, to about 1 / (2 sqrt(launches)) for four bits.
        size = 1 << int(len(self.runs) + len(lags)).bit_length()
        power = np.zeros(size // 2 + 1)
        for bit in range(4):
            signs = 1.0 - 2.0 * (self.runs >> np.uint64(16 * bit) & np.uint64(1))
            power += np.abs(np.fft.rfft(signs, size)) ** 2
        equal = np.fft.irfft(power, size)[lags] / (4 * (self.length - lags))
        around = np.concatenate(([-np.inf], equal, [-np.inf]))
        peaks = np.flatnonzero((equal >= around[:-2]) & (equal >= around[2:]))
        highest = peaks[np.argsort(-equal[peaks], kind="stable")[:PEAKS]]
        first = peaks[equal[peaks] >= equal[highest[0]] / 2][:PEAKS]
        return np.asarray(lags[np.union1d(highest, first)])

    def _is_made_of_shorter(self, period: int, begin: int, end: int) -> bool:
        """Return whether a shorter candidate repeats in a region, unbroken, for the whole of a period."""
        for shorter in self.candidates[: bisect_left(self.candidates, period)]:
            if period % shorter == 0:
                first, last = self._unbroken(shorter)
                lengths = np.minimum(last, end - shorter) - np.maximum(first, begin)
                if lengths.max(initial=0) >= period - shorter:
                    return True
        return False

    def _unbroken(self, period: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the [begin, end) of launches in a row that come again after exactly the period."""
        if period not in self.unbroken:
            again = self.runs[:-period] == self.runs[period:]
            changes = np.flatnonzero(np.diff(np.concatenate(([False], again, [False]))))
            self.unbroken[period] = changes[::2], changes[1::2] + self.run - 1
        return self.unbroken[period]

    def _repeats(self, period: int) -> np.ndarray:
        """Return which launches lie in a run that comes again after the period, give or take a few."""
        if period in self.repeats:
            return self.repeats[period]
        count = len(self.runs)
        again = np.zeros(self.length + 1, np.int32)
        exact = self.runs[:-period] == self.runs[period:]
        again[1 : count - period + 1] = exact
        play = min(int(SMALL * period), PLAY)
        for lag in [*range(period - play, period), *range(period + 1, period + play + 1)]:
            near = self.runs[: count - lag] == self.runs[lag:]
            if near.sum() > exact.sum():  # it is the other lag that is a period
                again[:] = 0
                break
            if not self._is_made_of_shorter(lag, 0, self.length):
                again[1 : count - lag + 1] |= near
        total = np.cumsum(again, dtype=np.int32)
        covered = total[1:].copy()
        covered[self.run :] -= total[1 : -self.run]
        self.repeats[period] = covered[: self.length - period] > 0
        return self.repeats[period]

    def _region(self, period: int) -> tuple[int, int, int]:
        """Return how many launches a period explains in its best region, and that region's [begin, end)."""
        gain = np.where(self._repeats(period), 1, -MISMATCH_COST)
        total = np.concatenate(([0], np.cumsum(gain)))
        lowest = np.minimum.accumulate(total)
        end = int(np.argmax(total - lowest))
        begin = int(np.flatnonzero(total[: end + 1] == lowest[end])[-1])
        return int(total[end] - lowest[end]) + period, begin, end + period


def _run_hashes(symbols: np.ndarray, run: int) -> np.ndarray:
    """Return a 64-bit hash of the `run` (a power of two) launches that begin at each launch."""
    hashes = _mixed(symbols.astype(np.uint64) + np.uint64(1))
    length = 1
    while length < run:
        hashes = _mixed(hashes[:-length] * np.uint64(3) + hashes[length:])
        length *= 2
    return hashes


def _mixed(values: np.ndarray) -> np.ndarray:
    """Spread values over 64 bits (the finalizer of SplitMix64: Steele, Lea and Flood, OOPSLA 2014)."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ values >> np.uint64(31))


def _shift(pause_ns: np.ndarray, period: int, begin: int, end: int) -> int:
    """Return how far into the region the first iteration begins: where the CPU pauses longest before it.

    Only shifts that keep the number of whole iterations are looked at; without a longest
    pause it is the region's begin.
    """
    repeats, slack = divmod(end - begin, period)
    shifts = np.arange(min(slack, period - 1) + 1)
    pauses = pause_ns[begin + shifts + period * np.arange(1, repeats)[:, None]]
    return int(np.median(pauses, axis=0).argmax())


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
    ends = np.where(near, next_anchors, anchors + period)
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
    """Add the anchors that a differing launch hid: a period after one, where the next is farther off."""
    found = anchors.tolist()
    for anchor, following in zip(anchors.tolist(), [*anchors[1:].tolist(), len(symbols)], strict=True):
        nearest = following - (2 if following == len(symbols) else 2 - STRETCH) * period
        begin = anchor
        while begin <= nearest:
            begin += period
            like = _likeness(symbols, typical, np.array([begin]), np.array([begin + period]))[0]
            if like < SIMILAR * period:
                break
            found.append(begin)
    return np.unique(np.array(found))


def _likeness(symbols: np.ndarray, typical: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return how many launches of the typical iteration each [begin, end) has, in whatever order."""
    lengths = ends - begins
    which = np.repeat(np.arange(len(begins)), lengths)
    at = np.arange(len(which)) + np.repeat(begins - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
    keys = which * len(typical) + symbols[np.minimum(at, len(symbols) - 1)]
    pairs, counts = np.unique(keys, return_counts=True)
    shared = np.minimum(counts, typical[pairs % len(typical)])
    return np.bincount(pairs // len(typical), shared, minlength=len(begins))


def _end_of_calls(recording: Recording, start_ns: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Return the latest end of the runtime calls that begin before the launch after each iteration."""
    host = np.flatnonzero(recording.is_kind("runtime"))
    host = host[np.argsort(recording["start_ns"][host], kind="stable")]
    begins = recording["start_ns"][host]
    latest = np.maximum.accumulate(begins + recording["duration_ns"][host])
    following = np.append(start_ns, begins[-1] + 1)[lasts]
    return np.asarray(latest[np.searchsorted(begins, following) - 1], np.int64)
