"""Mutations: what another day, another profiler or another option of it would have recorded of a program.

Each is made in the rows of a recording, in place; what is derived of them is derived again.
"""

from collections.abc import Callable

import numpy as np

from daydream.collect.derive.build import derive
from daydream.collect.derive.recording import Recording
from daydream.collect.importers import join_ranks
from daydream.trace.schema import DEVICE_KINDS, FIELDS, HOST_KINDS

Mutation = Callable[[Recording, np.random.Generator], None]
DERIVED = ("parent", "step", "phase", "op", "layer")
PAUSE_NS = 50_000
LATER_NS = 1_000, 50_000  # hand-offs of threads that block take so long
LEAST = 0.01
MOST = 0.05  # of the rows, that are lost


def hand_offs_later(rows, seed):
    """Threads go on 1 to 50 us later after a pause, where nothing is in the way."""
    host = rows.is_kind(*HOST_KINDS)
    start = np.asarray(rows["start_ns"], np.int64)
    end = start + rows["duration_ns"]
    free = _launched_ns(rows) - start
    for thread in range(int(rows.threads.max()) + 1):
        mine = np.flatnonzero(host & (rows.threads == thread))
        if len(mine) < 2 or thread == np.bincount(rows.threads[host]).argmax():
            continue
        until = np.maximum.accumulate(end[mine])
        top = np.append(0, 1 + np.flatnonzero(start[mine][1:] >= until[:-1]))
        left = np.append(2**40, start[mine[top[1:]]] - until[top[1:] - 1])
        room = np.minimum.reduceat(np.minimum(free[mine], 2**40), top)
        room = np.minimum(room, np.append(left[1:], 0))
        late = np.where(left >= PAUSE_NS, np.minimum(seed.integers(*LATER_NS, len(top)), room), 0)
        start[mine] += np.repeat(np.maximum(late, 0), np.diff(np.append(top, len(mine))))
    rows.columns["start_ns"] = start


def lost(*kinds):
    """1 to 5 % of the rows of these kinds were not recorded."""
    return lambda rows, seed: _keep(rows, ~_some(rows.is_kind(*kinds), seed))


def without(kind):
    """No row of a kind was recorded."""
    return lambda rows, _seed: _keep(rows, ~rows.is_kind(kind))


def threads_renumbered(rows, seed):
    """Threads have other numbers, in another order."""
    tid = rows["tid"]
    unknown = FIELDS["tid"].null
    numbers, of = np.unique(tid, return_inverse=True)
    other = seed.permutation(len(numbers)) + int(seed.integers(1, 100_000))
    rows.columns["tid"] = np.where(tid == unknown, unknown, other[of])
    if "waker" in rows.columns:
        place = np.minimum(np.searchsorted(numbers, rows["waker"]), len(numbers) - 1)
        known = numbers[place] == rows["waker"]
        rows.columns["waker"] = np.where(known, other[place], FIELDS["waker"].null)


def launches_unknown(rows, seed):
    """Of 1 to 5 % of the calls nothing tells what they launched."""
    lost = _some(rows.is_kind("runtime"), seed)
    rows.columns["correlation"] = np.where(lost, -1, rows["correlation"])


def whole_microseconds(rows, _seed):
    """Times are written in whole microseconds."""
    start = np.asarray(rows["start_ns"], np.int64)
    end = (start + rows["duration_ns"]) // 1000 * 1000
    rows.columns["start_ns"] = start // 1000 * 1000
    rows.columns["duration_ns"] = end - rows.columns["start_ns"]


def window_cut(rows, seed):
    """The recording begins or ends within another step: a fifth of it is missing."""
    start = np.asarray(rows["start_ns"], np.int64)
    first = int(start.min())
    last = int(start.max())
    cut = first + int((last - first) * seed.uniform(0, 0.2))
    _keep(rows, (start >= cut) if seed.random() < 0.5 else (start <= last + first - cut))


def device_clock(rows, seed):
    """The device's clock is up to 5 us ahead or behind."""
    shift = int(seed.integers(-5_000, 5_001))
    start = np.asarray(rows["start_ns"], np.int64) + shift * rows.is_kind(*DEVICE_KINDS)
    rows.columns["start_ns"] = start - min(int(start.min()), 0)


def names_alike(rows, seed):
    """A tenth of the kernels' and operators' names are those of others."""
    named = rows.is_kind("operator", "kernel")
    codes = np.unique(rows["name"][named])
    other = np.arange(len(rows.text("name")))
    some = codes[seed.random(len(codes)) < 0.1]
    other[some] = seed.choice(codes, len(some))
    rows.columns["name"] = np.where(named, other[rows["name"]], rows["name"])


def no_step_markers(rows, _seed):
    """The program marked no steps."""
    marks = {step["name"] for step in rows.metadata.get("steps", ())}
    marked = rows.whose_name(lambda name: name in marks or name.startswith("ProfilerStep"))
    _keep(rows, ~(rows.is_kind("annotation") & marked))


MUTATIONS = {
    "hand-offs later": hand_offs_later,
    "operators lost": lost("operator"),
    "calls lost": lost("runtime"),
    "frames and ranges lost": lost("module", "annotation"),
    "device work lost": lost(*DEVICE_KINDS),
    "threads renumbered": threads_renumbered,
    "no evidence of blocking": without("blocked"),
    "no synchronization rows": without("sync"),
    "launches unknown": launches_unknown,
    "whole microseconds": whole_microseconds,
    "window cut": window_cut,
    "device clock": device_clock,
    "names alike": names_alike,
    "no step markers": no_step_markers,
}


def _some(rows, seed):
    return np.asarray(rows & (seed.random(len(rows)) < seed.uniform(LEAST, MOST)))


def _keep(rows, kept):
    rows.columns = {name: column[kept] for name, column in rows.columns.items()}


def _launched_ns(rows):
    """Return when what each call launched begins, far away for other rows."""
    begins = np.full(int(rows["correlation"].max(initial=0)) + 2, 2**60)
    device = rows.is_kind(*DEVICE_KINDS)
    np.minimum.at(begins, rows["correlation"][device], rows["start_ns"][device])
    begins[-1] = 2**60
    return np.where(rows.is_kind("runtime"), begins[rows["correlation"]], 2**60)


def mutated(trace, names, seed):
    """Return a trace as if it had been recorded otherwise; operators, layers and steps are derived anew."""
    chance = np.random.default_rng(seed)
    found = []
    for rank in np.unique(trace["rank"]).tolist():
        mine = trace["rank"] == rank
        columns = {key: value[mine] for key, value in trace.columns.items() if key not in DERIVED}
        about = {**trace.metadata, "rank": rank, "notes": []}
        texts = {key: [*value] for key, value in trace.texts.items() if key not in DERIVED}
        rows = Recording(columns, texts, about)
        for name in names:
            MUTATIONS[name](rows, chance)
            rows = Recording(rows.columns, rows.texts, about)  # forgets which thread a row is of
        found.append(derive(rows))
    return found[0] if len(found) == 1 else join_ranks(found)
