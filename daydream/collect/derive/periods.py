"""Where the iterations of a found period begin and end in the sequence of launches.

One pass through equal layers: what repeats in it is a layer, and the pass is the step.

A loop comes back to where it began: the recording holds its iterations and what was
before the loop. A single pass holds an embedding before its layers, and the CPU goes from layer
to layer as it goes on inside one.

Iterations found from the launch sequence alone, for recordings that mark no steps.

A loop launches the same work again and again. Equal runs of launches at one distance
give the period; where they repeat, and where the CPU pauses longest, gives the
boundaries. A few launches more, less or different in an iteration do not matter.

Limits: one loop is found, the one that covers most launches. Where nothing tells a loop from the layers
of a pass, no iterations are claimed. Iterations that differ in turn by more than 2 % of their launches
are found as one: four micro-batches and an optimizer step are one iteration, not four.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from daydream.collect.derive.device_work import Launches, linked_calls, outermost, read_launches
from daydream.collect.derive.phases import BACKWARD_KERNEL, BACKWARD_NODE, OPTIMIZER_KERNEL
from daydream.collect.derive.recording import Recording
from daydream.trace.schema import DEVICE_KINDS

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
    near = int(length_ns[: slack + 1].argmax())
    free = int(length_ns.argmax())
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
    anchors = np.array([first])
    begin = first
    for candidate in (first, first + period, first + 2 * period):  # the first may be an odd one
        found = _anchors(symbols, period, candidate)
        if len(found) > 1.5 * len(anchors):
            anchors = found
            begin = candidate
    typical = np.bincount(symbols[begin : begin + period], minlength=int(symbols.max()) + 1)
    anchors = _fill(symbols, typical, period, anchors)
    next_anchors = np.append(anchors[1:], len(symbols))
    near = np.abs(next_anchors - anchors - period) <= STRETCH * period
    near[-1] = False  # what follows the last anchor may be anything
    typical_length = int(np.median((next_anchors - anchors)[near])) if near.any() else period
    ends = np.where(near, next_anchors, np.minimum(anchors + typical_length, len(symbols)))
    whole = ends <= next_anchors
    anchors = anchors[whole]
    ends = ends[whole]
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
    for anchor, following in zip(
        anchors.tolist(), [*anchors[1:].tolist(), len(symbols)], strict=True
    ):
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


def _likeness(
    symbols: np.ndarray, typical: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return how many launches of the typical iteration each [begin, end) has, in whatever order."""
    lengths = ends - begins
    which = np.repeat(np.arange(len(begins)), lengths)
    at = np.arange(len(which)) + np.repeat(
        begins - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths
    )
    keys = which * len(typical) + symbols[np.minimum(at, len(symbols) - 1)]
    pairs, counts = np.unique(keys, return_counts=True)
    shared = np.minimum(counts, typical[pairs % len(typical)])
    return np.bincount(pairs // len(typical), shared, minlength=len(begins))


def ends_of_iterations(
    recording: Recording,
    launches: Launches,
    firsts: np.ndarray,
    lasts: np.ndarray,
) -> np.ndarray:
    """Return when the last runtime call of each iteration ends, on the threads of these launches.

    It is the last one before the launch that follows. Behind an iteration that no other follows,
    other work or the program's own end may come: the same calls are its own as are another's.
    """
    start_ns = launches.start_ns
    host = np.flatnonzero(
        recording.is_kind("runtime") & np.isin(recording.threads, launches.thread)
    )
    host = host[np.argsort(recording["start_ns"][host], kind="stable")]
    begins = recording["start_ns"][host]
    latest = np.maximum.accumulate(begins + recording["duration_ns"][host])
    if not len(host):  # of a recording without calls the launches are the device work itself
        begins = start_ns
        latest = np.maximum.accumulate(launches.end_ns)
    own = np.searchsorted(
        begins, start_ns[lasts - 1], side="right"
    )  # behind the last launch itself
    stop = np.searchsorted(begins, np.append(start_ns, begins[-1] + 1)[lasts])
    followed = np.append(firsts[1:] == lasts[:-1], False)
    for turn in np.flatnonzero(~followed).tolist() if followed.any() else ():
        like = int(np.flatnonzero(followed)[-1])
        usual, mine = (recording["name"][host[own[each] : stop[each]]] for each in (like, turn))
        length = min(len(usual), len(mine))
        stop[turn] = own[turn] + np.append(usual[:length] != mine[:length], True).argmax()
    return np.asarray(latest[stop - 1], np.int64)


def is_loop(
    recording: Recording,
    launches: Launches,
    pause_ns: np.ndarray,
    firsts: np.ndarray,
    lasts: np.ndarray,
    least: int,
) -> bool | None:
    """Return whether what repeats are a loop's iterations, not the layers of one pass; None: nothing tells.

    Where something is trained, each turn of a loop runs forward, backward and an optimizer, whatever of them
    is recorded. Else the CPU pauses longer between turns than inside, or no other work comes before or
    behind them, or they hold layers of their own; of only two turns it takes a pause and one of the others.
    The layers of a pass are launched by one thread, all of them in the recording, and their operators train
    nothing.
    """
    device, calls = linked_calls(recording)
    on_device = recording.is_kind(*DEVICE_KINDS)
    outer = outermost(recording)
    updates = recording.named(OPTIMIZER_KERNEL)
    updates[calls[updates[device]]] = True
    back = recording.named(BACKWARD_NODE, "operator")[outer]
    parts = [
        np.flatnonzero(updates & ~on_device),
        *((outer[back], outer[~back]) if back.any() else ()),
    ]
    parts = [recording["start_ns"][rows] for rows in parts if len(rows)]
    for starts in parts:
        turns = np.unique(np.searchsorted(launches.start_ns[firsts], starts, side="right"))
        if (turns > 0).sum() < max(len(firsts) - 1, 2):
            return None
    if least == MIN_REPEATS and not parts:
        return None
    inside = [
        pause_ns[first + 1 : last].max(initial=0) for first, last in zip(firsts, lasts, strict=True)
    ]
    paused = np.median(pause_ns[firsts[1:]]) > CLEARLY_LONGER * np.median(inside)
    layers = _holds_layers(launches.symbols[firsts[1] : lasts[1]])
    if len(firsts) < MIN_REPEATS:
        return bool(paused and (parts or layers)) or None
    symbols = launches.symbols
    begin = firsts[0]
    end = lasts[0]
    rest = symbols[lasts[-1] :]
    alone = np.array_equal(
        symbols[:begin], symbols[end - begin : end]
    )  # ends and begins of turns alone
    alone &= np.array_equal(rest, symbols[begin : begin + len(rest)])
    if parts or paused or layers or (alone and len(device)):
        return True
    whole = len(device) == on_device.sum() and len(np.unique(launches.thread)) == 1
    known = len(device) and len(outer) and not recording.named(BACKWARD_KERNEL).any()
    return False if whole and known else None


def range_of_pass(recording: Recording, launches: Launches) -> tuple[int, int]:
    """Return when the pass begins, with its first launch, and when its thread's last call ends."""
    calls = recording.is_kind("runtime") & (recording.threads == launches.thread[0])
    end_ns = recording["start_ns"][calls] + recording["duration_ns"][calls]
    return int(launches.start_ns[0]), int(end_ns.max())


TWO_KINDS = "two_kinds"
"""Metadata of a recording whose first step is alike, but not the same: a prefill before decodes, say."""
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
    of launches repeats and makes up half of all launches and of the device time.
    One range is all of a single pass, whose layers repeat.
    """
    launches = read_launches(
        recording
    )  # what repeats inside two turns may be layers, if nothing is trained
    return _of_threads(recording, launches, 2) or _of_threads(recording, launches, MIN_REPEATS)


def _of_threads(recording: Recording, launches: Launches, least: int) -> list[tuple[int, int]]:
    together = _ranges(recording, launches, launches, least)
    threads, counts = np.unique(launches.thread, return_counts=True)
    if len(threads) < 2:
        return together
    each = [
        ranges
        for thread in threads[counts >= OF_A_LOOP * counts.max()].tolist()
        if (ranges := _ranges(recording, launches.of(thread), launches, least))
    ]
    # What several threads launch comes in an order that differs from turn to turn, unless they wait for
    # each other. Each one's own order is the program's: where that repeats more often, chance merged turns.
    fewest = min((len(ranges) for ranges in each), default=0)
    if len(together) >= FEWER * fewest:
        return together
    return min(
        (ranges for ranges in each if len(ranges) <= fewest + 1), key=lambda ranges: ranges[0]
    )


def _ranges(
    recording: Recording,
    launches: Launches,
    everything: Launches,
    least: int,
) -> list[tuple[int, int]]:
    """Return the iterations of some launches that hold half of everything that was launched."""
    symbols = launches.symbols
    start_ns = launches.start_ns
    found = _Period(symbols, least).search() if len(symbols) >= least else None
    if found is None:
        return []
    pause_ns = np.concatenate(([0], start_ns[1:] - np.maximum.accumulate(launches.end_ns)[:-1]))
    firsts, lasts = bounded(symbols, pause_ns, *found)
    if len(firsts) < least:
        return []
    ends_ns = ends_of_iterations(recording, launches, firsts, lasts)
    begins_ns = start_ns[firsts]
    followed = np.flatnonzero(firsts[1:] == lasts[:-1])
    begins_ns[followed + 1] = ends_ns[followed]
    until = np.searchsorted(everything.start_ns, ends_ns)
    since = np.minimum(np.searchsorted(everything.start_ns, begins_ns), until)
    total, total_ns = (
        np.append(0, np.cumsum(each)) for each in (everything.work_ns > 0, everything.work_ns)
    )
    held, held_ns = ((each[until] - each[since]).sum() for each in (total, total_ns))
    before = 0
    if held_ns < MIN_COVERAGE * total_ns[-1]:
        typical = np.bincount(symbols[firsts[1] : lasts[1]], minlength=int(symbols.max()) + 1)
        if (
            _likeness(symbols, typical, np.array([0]), firsts[:1])[0]
            >= MIN_COVERAGE * typical.sum()
        ):
            before = total_ns[since[0]]
    if held < MIN_COVERAGE * total[-1] or held_ns + before < MIN_COVERAGE * total_ns[-1]:
        return []
    loop = is_loop(recording, launches, pause_ns, firsts, lasts, least)
    if loop is None:
        return []
    if not loop:
        return [range_of_pass(recording, launches)]
    ranges = list(zip(begins_ns.tolist(), ends_ns.tolist(), strict=True))
    if before:
        recording.metadata[TWO_KINDS] = True
        ranges.insert(0, (int(start_ns[0]), ranges[0][0]))
    return ranges


def _holds_layers(iteration: np.ndarray) -> bool:
    """Return whether most of an iteration repeats inside it, as a pass through equal layers does."""
    found = _Period(iteration).search() if len(iteration) >= MIN_REPEATS else None
    return found is not None and found[2] - found[1] >= MIN_COVERAGE * len(iteration)


class _Period:
    """The search for the period of one sequence."""

    def __init__(self, symbols: np.ndarray, least: int = MIN_REPEATS) -> None:
        self.least = least
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
            long_enough = end - begin >= self.least * period
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
            if more_breaks <= SMALL * period * turns and not self._is_made_of_shorter(
                period, begin, end
            ):
                _, begin, end = self._region(period)
                return period, begin, end
        return longest, begin, end

    def _candidates(self) -> np.ndarray:
        """Return periods worth trying, ascending: all of them, or the peaks of the autocorrelation."""
        lags = np.arange(1, self.length // self.least + 1)
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
