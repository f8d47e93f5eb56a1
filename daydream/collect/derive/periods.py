"""Iterations found from the launch sequence alone, for recordings that mark no steps.

A loop launches the same work again and again. Equal runs of launches at one distance
give the period; where they repeat, and where the CPU pauses longest, gives the
boundaries. A few launches more, less or different in an iteration do not matter.

Limits: one loop is found, the one that covers most launches. Where no operators were recorded a
single pass through equal layers looks like one iteration a layer. Iterations that differ in
turn by more than 2 % of their launches are found as one: four micro-batches and an
optimizer step are one iteration, not four.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from daydream.collect.derive.iterations import MIN_REPEATS, bounded, ends_of_iterations
from daydream.collect.derive.launches import Launches, read_launches
from daydream.collect.derive.one_pass import is_one_pass, range_of_pass
from daydream.collect.derive.recording import Recording

MIN_COVERAGE = 0.5
"""Fraction of all launches and of their device time that iterations must hold; a part of one holds less."""
SMALL = 0.02
"""Fraction of an iteration's launches that may differ and are still no structure of their own."""
OF_A_LOOP = 1 / 3
"""Of the busiest thread's launches another one needs to tell the iterations, too; loaders launch less."""
FEWER = 0.9
"""Of one thread's iterations: with fewer, all threads together hold several in one."""
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


def find_steps_by_period(recording: Recording) -> list[tuple[int, int]]:
    """Return the CPU-time ranges (start_ns, end_ns) of iterations, from repeats in the launch sequence.

    A range ends with the last call before the next iteration's first launch, or before other
    work. It begins where the iteration before it ends, since what the CPU does until the
    first launch prepares it; without one before it, with its first launch. Empty if no sequence
    of launches repeats three times and makes up half of all launches and of the device time.
    One range is all of a single pass, whose layers repeat.
    """
    launches = read_launches(recording)
    together = _ranges(recording, launches, launches)
    threads, counts = np.unique(launches.thread, return_counts=True)
    if len(threads) < 2:
        return together
    each = [
        ranges
        for thread in threads[counts >= OF_A_LOOP * counts.max()].tolist()
        if (ranges := _ranges(recording, launches.of(thread), launches))
    ]
    # What several threads launch comes in an order that differs from turn to turn, unless they wait for
    # each other. Each one's own order is the program's: where that repeats more often, chance merged turns.
    fewest = min((len(ranges) for ranges in each), default=0)
    if len(together) >= FEWER * fewest:
        return together
    return min((ranges for ranges in each if len(ranges) <= fewest + 1), key=lambda ranges: ranges[0])


def _ranges(recording: Recording, launches: Launches, everything: Launches) -> list[tuple[int, int]]:
    """Return the iterations of some launches that hold half of everything that was launched."""
    symbols, start_ns = launches.symbols, launches.start_ns
    found = _Period(symbols).search() if len(symbols) >= MIN_REPEATS else None
    if found is None:
        return []
    pause_ns = np.concatenate(([0], start_ns[1:] - np.maximum.accumulate(launches.end_ns)[:-1]))
    firsts, lasts = bounded(symbols, pause_ns, *found)
    if len(firsts) < MIN_REPEATS:
        return []
    ends_ns = ends_of_iterations(recording, launches, firsts, lasts)
    begins_ns = start_ns[firsts]
    followed = np.flatnonzero(firsts[1:] == lasts[:-1])
    begins_ns[followed + 1] = ends_ns[followed]
    until = np.searchsorted(everything.start_ns, ends_ns)
    since = np.minimum(np.searchsorted(everything.start_ns, begins_ns), until)
    total_ns = np.concatenate(([0], np.cumsum(everything.work_ns)))
    held, held_ns = (until - since).sum(), (total_ns[until] - total_ns[since]).sum()
    if held < MIN_COVERAGE * len(everything.symbols) or held_ns < MIN_COVERAGE * total_ns[-1]:
        return []
    if not _holds_layers(symbols[firsts[1] : lasts[1]]) and is_one_pass(
        recording, launches, pause_ns, firsts, lasts
    ):
        return [range_of_pass(recording, launches)]
    return list(zip(begins_ns.tolist(), ends_ns.tolist(), strict=True))


def _holds_layers(iteration: np.ndarray) -> bool:
    """Return whether most of an iteration repeats inside it, as a pass through equal layers does."""
    found = _Period(iteration).search() if len(iteration) >= MIN_REPEATS else None
    return found is not None and found[2] - found[1] >= MIN_COVERAGE * len(iteration)


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
