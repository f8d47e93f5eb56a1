"""Iterations found from the launch sequence alone, for recordings that mark no steps.

A loop launches the same work again and again, and some launch, or run of three, comes once in each
iteration. Between two of these lies an iteration where the launches are the same, but for a few. What
comes once a layer repeats, too, but breaks off at the head and the tail of each iteration.

Limits: one loop is found, the one that holds most launches. Where nothing tells a loop from the layers
of a pass, no iterations are claimed. Iterations that differ in turn by more than 2% of their launches
are found as one: four micro-batches and an optimizer step are one iteration, not four.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from daydream.collect.derive.device_work import (
    Launches,
    is_device_alone,
    linked_calls,
    outermost,
    read_launches,
)
from daydream.collect.derive.phases import BACKWARD_KERNEL, BACKWARD_NODE, OPTIMIZER_KERNEL
from daydream.collect.derive.recording import Recording
from daydream.trace.schema import DEVICE_KINDS

TWO_KINDS = "two_kinds"
"""Metadata of a recording whose first step is alike, but not the same: a prefill before decodes, say."""
MIN_REPEATS = 3
MIN_COVERAGE = 0.5
"""Fraction of all launches and of their device time that iterations must hold; a part of one holds less."""
SMALL = 0.02
"""Fraction of an iteration's launches that may differ and are still no structure of their own."""
SIMILAR = 0.8
"""Fraction of the typical iteration's launches that an iteration must have."""
STRETCH = 0.1
"""Fraction by which the number of launches may differ from the typical iteration's."""
OF_A_LOOP = 1 / 3
"""Of the busiest thread's launches another one needs to be of the loop, too; loaders launch less."""
CLEARLY_LONGER = 2
"""Times as long a pause between iterations must be as those inside."""
RUN = 3
"""Launches that may tell the begin of an iteration together, where no single one does."""
TRIED = 4
"""Turns that may be the typical one, as most that is launched is in turns of the same launches."""


class _Turns(NamedTuple):
    """A sequence cut where one launch comes again: where, the typical turn, and how many launches differ."""

    begins: np.ndarray
    usual: int  # where a typical turn begins
    typical: np.ndarray  # how often it has each launch
    length: int
    differing: np.ndarray

    @property
    def breaks(self) -> np.ndarray:
        """Which turns are not like the typical one: bool, shape (turns,)."""
        return np.asarray(self.differing > SMALL * self.length)


def find_steps_by_period(recording: Recording) -> list[tuple[int, int]]:
    """Return the CPU-time ranges (start_ns, end_ns) of iterations, from repeats in the launch sequence.

    A range ends with the last call before the next iteration's first launch, or before other
    work. It begins where the iteration before it ends, since what the CPU does until the
    first launch prepares it; without one before it, with its first launch. Empty if no sequence
    of launches repeats and makes up half of all launches and of the device time.
    One range is all of a single pass, whose layers repeat.
    """
    launches = read_launches(recording)
    threads, counts = np.unique(launches.thread, return_counts=True)
    # What a loader launches comes at its own pace.
    chosen = launches.of(threads[counts >= OF_A_LOOP * counts.max(initial=0)])
    return _ranges(recording, chosen, launches)


def _ranges(
    recording: Recording, launches: Launches, everything: Launches
) -> list[tuple[int, int]]:
    """Return the iterations of some launches that hold half of everything that was launched."""
    symbols = launches.symbols
    start_ns = launches.start_ns
    found = _turns(symbols) if len(symbols) else None
    if found is None:
        return []
    pause_ns = np.concatenate(([0], start_ns[1:] - np.maximum.accumulate(launches.end_ns)[:-1]))
    firsts, lasts = _iterations(symbols, pause_ns, found)
    if len(firsts) < MIN_REPEATS:
        return []
    ends_ns = _ends(recording, launches, firsts, lasts)
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
        shared = found.length - _differing(symbols, found.typical, np.array([0, firsts[0]]))[0]
        if shared >= MIN_COVERAGE * found.length:
            before = total_ns[since[0]]
    if held < MIN_COVERAGE * total[-1] or held_ns + before < MIN_COVERAGE * total_ns[-1]:
        return []
    loop = _is_loop(recording, launches, pause_ns, firsts, lasts)
    if loop is None:
        return []
    if not loop:
        calls = recording.is_kind("runtime") & (recording.threads == launches.thread[0])
        end_ns = recording["start_ns"][calls] + recording["duration_ns"][calls]
        return [(int(start_ns[0]), int(end_ns.max()))]
    ranges = list(zip(begins_ns.tolist(), ends_ns.tolist(), strict=True))
    if before:
        recording.metadata[TWO_KINDS] = True
        ranges.insert(0, (int(start_ns[0]), ranges[0][0]))
    return ranges


def _turns(symbols: np.ndarray) -> _Turns | None:
    """Return the turns of the loop that holds at least half of the launches, None if none does.

    Of what comes as often, that counts which comes most regularly. What comes more often makes the turns,
    unless it breaks off in most turns of what comes less often.
    """
    best: _Turns | None = None
    for begins in _regular(symbols):
        if np.diff(begins).mean() * len(begins) < MIN_COVERAGE * len(symbols):
            continue
        found = _cut(symbols, begins)
        if found.breaks.mean() > MIN_COVERAGE or (~found.breaks).sum() < MIN_REPEATS - 1:
            continue
        if best is not None:
            edges = best.begins[:-1][best.breaks], best.begins[1:][best.breaks] - 1
            broken = np.searchsorted(begins, np.concatenate(edges), side="right") - 1
            broken = np.unique(broken[(broken >= 0) & (broken < len(begins) - 1)])
            if len(broken) <= MIN_COVERAGE * (len(begins) - 1):
                continue
        best = found
    return best


def _regular(symbols: np.ndarray) -> list[np.ndarray]:
    """Return where launches and runs of launches come again, most often first.

    Of those that come as often, and as far apart, the most regular one.
    """
    ahead = np.concatenate([symbols.astype(np.int64), -np.arange(1, RUN)])
    runs = np.stack([ahead[at : len(symbols) + at] for at in range(RUN)])
    found: dict[tuple[int, int], tuple[float, np.ndarray]] = {}
    for which in (symbols, np.unique(runs, axis=1, return_inverse=True)[1].reshape(-1)):
        order = np.argsort(which, kind="stable")
        for begins in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
            if len(begins) >= MIN_REPEATS:
                gaps = np.diff(begins)
                uneven = float(np.abs(gaps - np.median(gaps)).mean() / gaps.mean())
                kind = len(begins), round(float(np.log2(np.median(gaps)) / STRETCH))
                if uneven < found.get(kind, (np.inf,))[0]:
                    found[kind] = uneven, begins
    return [found[kind][1] for kind in sorted(found, reverse=True)]


def _cut(symbols: np.ndarray, begins: np.ndarray) -> _Turns:
    """Return the turns between these places; the typical one is that whose likes hold most launches."""
    marks = np.random.default_rng(0).integers(1 << 40, size=int(symbols.max()) + 1)
    contents = np.add.reduceat(marks[symbols], begins)[:-1]
    _, first, counts = np.unique(contents, return_index=True, return_counts=True)
    lengths = np.diff(begins)
    best = None
    for usual in first[np.argsort(-counts * lengths[first], kind="stable")[:TRIED]].tolist():
        typical = np.bincount(symbols[begins[usual] : begins[usual + 1]], minlength=len(marks))
        differing = _differing(symbols, typical, begins)
        found = _Turns(begins, int(begins[usual]), typical, int(lengths[usual]), differing)
        if best is None or lengths[~found.breaks].sum() > lengths[~best.breaks].sum():
            best = found
    assert best is not None  # noqa: S101 - there are turns
    return best


def _differing(symbols: np.ndarray, typical: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return how many launches between two edges each are too many or too few, in whatever order."""
    inside = symbols[edges[0] : edges[-1]]
    turn = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    pairs, counts = np.unique(turn * len(typical) + inside, return_counts=True)
    shared = np.minimum(counts, typical[pairs % len(typical)])
    shared = np.bincount(pairs // len(typical), shared, len(edges) - 1)
    return np.asarray(np.maximum(np.diff(edges), typical.sum()) - shared)


def _iterations(
    symbols: np.ndarray, pause_ns: np.ndarray, turns: _Turns
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the iterations begin and end.

    They begin where the CPU pauses longest in each turn, unless that costs an iteration: then the
    recording itself begins with one, and the longest pause lies inside.
    """
    length = turns.length
    alike = turns.begins[:-1][~turns.breaks]
    places = alike[1:, None] + np.arange(length)
    length_ns = np.median(pause_ns[np.minimum(places, len(symbols) - 1)], axis=0)
    changes = np.flatnonzero(symbols[:-length] != symbols[length:])
    begin = int(changes[changes < alike[0]].max(initial=-1)) + 1
    end = int(changes[changes >= alike[-1]].min(initial=len(symbols) - length)) + length
    first = (begin - turns.begins[0] + np.arange((end - begin) % length + 1)) % length
    near = int(first[length_ns[first].argmax()])
    free = int(length_ns.argmax())
    found = _begun_at(symbols, turns, near)
    if length_ns[free] > CLEARLY_LONGER * length_ns[near]:
        other = _begun_at(symbols, turns, free)
        if len(other[0]) >= len(found[0]):
            return other
    return found


def _begun_at(symbols: np.ndarray, turns: _Turns, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the begins and ends of iterations that begin so many launches behind the begin of a turn."""
    begins = turns.begins + offset
    place = turns.usual + offset
    for width in range(1, RUN + 1):  # what begins them may come again itself
        same = np.arange(len(symbols) - width + 1)
        for at in range(width):
            same = same[symbols[same + at] == symbols[min(place + at, len(symbols) - 1)]]
        if abs(len(same) - len(begins)) <= 1:
            begins = same
            break
    if begins[0] >= turns.length:
        begins = np.append(begins[0] - turns.length, begins)
    begins = begins[begins < len(symbols)]
    ends = np.append(begins[1:], len(symbols))
    ends = np.where(ends - begins > (1 + STRETCH) * turns.length, begins + turns.length, ends)
    last = len(symbols) - begins < turns.length
    edges = np.stack([begins, ends], axis=1)[~last]
    alike = _differing(symbols, turns.typical, edges.reshape(-1))[::2]
    alike = alike <= turns.length - SIMILAR * turns.length
    return edges[alike, 0], edges[alike, 1]


def _ends(
    recording: Recording, launches: Launches, firsts: np.ndarray, lasts: np.ndarray
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
        begins, latest = start_ns, np.maximum.accumulate(launches.end_ns)
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


def _is_loop(
    recording: Recording,
    launches: Launches,
    pause_ns: np.ndarray,
    firsts: np.ndarray,
    lasts: np.ndarray,
) -> bool | None:
    """Return whether what repeat are a loop's iterations, not the layers of one pass; None: nothing tells.

    Where something is trained, each turn of a loop runs forward, backward and an optimizer, whatever of them
    is recorded. Else the CPU pauses longer between turns than inside, or no other work comes before or
    behind them, or they hold layers of their own. The layers of a pass are launched by one thread, all of
    them in the recording, and their operators train nothing.
    """
    device, calls = linked_calls(recording)
    on_device = recording.is_kind(*DEVICE_KINDS)
    outer = outermost(recording)
    updates = recording.named(OPTIMIZER_KERNEL)
    updates[calls[updates[device]]] = True
    back = recording.named(BACKWARD_NODE, "operator")[outer]
    parts = [np.flatnonzero(updates & ~on_device)]
    parts += [outer[back], outer[~back]] if back.any() else []
    parts = [recording["start_ns"][rows] for rows in parts if len(rows)]
    for starts in parts:
        turns = np.unique(np.searchsorted(launches.start_ns[firsts], starts, side="right"))
        if (turns > 0).sum() < len(firsts) - 1:
            return None
    symbols = launches.symbols
    inside = [
        pause_ns[first + 1 : last].max(initial=0) for first, last in zip(firsts, lasts, strict=True)
    ]
    paused = np.median(pause_ns[firsts[1:]]) > CLEARLY_LONGER * np.median(inside)
    layers = _turns(symbols[firsts[1] : lasts[1]])
    of_layers = layers and layers.length >= RUN and layers.breaks.mean() <= STRETCH
    if parts or paused or of_layers:
        return True
    before = symbols[: firsts[0]]
    behind = symbols[lasts[-1] :]
    first = symbols[firsts[0] : lasts[0]]
    alone = np.array_equal(before, first[len(first) - len(before) :])  # parts of turns alone
    alone &= np.array_equal(behind, first[: len(behind)])
    if alone and len(device) and not is_device_alone(recording):
        return True
    whole = len(device) == on_device.sum() and len(np.unique(launches.thread)) == 1
    known = len(device) and len(outer) and not recording.named(BACKWARD_KERNEL).any()
    return False if whole and known else None
