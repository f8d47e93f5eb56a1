"""Answers about recordings that were mutated: how often is one confident, and wrong?

    python validation/falsify.py --traces ../shared/traces                              1,000 mutations
    python validation/falsify.py --traces ../shared/traces --only 417                   one of them
    python validation/falsify.py --traces ../shared/traces --write docs/sanity.md       its part of the page

A mutation is what another day, another profiler or another option of it would have recorded of the same program. It is
made in the columns of a public trace, or of a recording of the machine model (tests/machine); operators, layers and steps
are derived again. Laws that hold whatever waits for what (`laws.py`) say what an answer may be; of the machine, its
own re-run tells. An answer is *confident and wrong* if its interval is narrower than a factor of two and misses that.
Exits with 1 if one is that is not in `KNOWN`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import laws
from machine.blocked import BLOCKED, LOADERS
from machine.harder import HARDER
from machine.nsys import write_nsys
from machine.programs import PROGRAMS
from parts_of_pages import put
from sanity import sources

import daydream
from daydream.collect.derive.build import derive
from daydream.collect.derive.recording import Recording
from daydream.collect.importers import join_ranks
from daydream.errors import DaydreamError
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay
from daydream.trace.schema import DEVICE_KINDS, FIELDS, HOST_KINDS
from daydream.trace.trace import Trace

Mutation = Callable[[Recording, np.random.Generator], None]
Question = tuple[str, float]
Source = tuple[str, Path | None]  # a public recording and its place, or a program of the machine model
DERIVED = ("parent", "step", "phase", "op", "layer")
QUESTIONS: tuple[Question, ...] = (("gpu", 0.5), ("gpu", 2.0), ("cpu", 0.0), ("cpu", 0.5))
PAUSE_NS, LATER_NS = 50_000, (1_000, 50_000)  # hand-offs of threads that block take so long
SMALL = 50_000  # bytes of a packed file
WINDOW = 24, 29  # steps of a machine's run that are recorded
LEAST, MOST = 0.01, 0.05  # of the rows, that are lost
WIDE = 2.0
VARYING = ", varying"  # so do hand-offs, and batches by a tenth
MACHINES = {**PROGRAMS, **HARDER, **LOADERS, **BLOCKED} | {
    name + VARYING: lambda make=make: replace(make(), hand_off=LATER_NS, variation=0.1)
    for name, make in BLOCKED.items()
}


# Why answers are confident and wrong: the source, the mutation ("" is any), the questions.
KNOWN: Mapping[str, Sequence[tuple[str, str, Sequence[str]]]] = {
    "a thread sleeps between looks at a word that a kernel writes, and part of that is taken for work": [
        ("sleeps_on_a_word", "", ("cpu x 0",))],
    "what it costs to enter a call that waits in every step no trace shows": [
        ("data_parallel_threads", "", ("cpu x 0",))],
    "a call at the window's end waits for work outside, and keeps its length": [
        ("contended_lock", "window cut", ("gpu x 0.5",)),
        ("formats/rocprofv3/docs_rocm6.2_kernel_trace", "window cut", ("gpu x 0.5",))],
    "a thread sleeps for work whose launch was not recorded": [
        ("sleeping_synchronization", "calls lost", ("gpu x 0.5",)),
        ("sleeping_synchronization", "launches unknown", ("gpu x 0.5",))],
}  # fmt: skip


@dataclass
class Judged:
    """What came of one mutation."""

    number: int
    source: str
    mutations: Sequence[str]
    answers: int  # to questions that are answered about the recording as it is
    why_not: str = ""  # no answer at all
    refused: int = 0
    wide: int = 0
    outside: int = 0  # headlines, of which the interval is right
    wrong: list[tuple[str, str]] = field(default_factory=list)  # what was asked, what was said

    def cause(self, asked: str) -> str:
        """Return why the answer to a question is wrong, where that is known."""
        source = self.source.removesuffix(VARYING)
        for cause, misses in KNOWN.items():
            for name, mutation, questions in misses:
                if name == source and mutation in {"", *self.mutations} and asked in questions:
                    return cause
        return ""

    @property
    def new(self) -> bool:
        """Whether an answer is wrong of no known cause."""
        return not all(self.cause(asked) for asked, _ in self.wrong)


# -- mutations: of the rows of a recording, in place; `seed` is their chance --------------------------


def hand_offs_later(rows: Recording, seed: np.random.Generator) -> None:
    """Threads go on 1 to 50 us later after a pause, where nothing of theirs or of the device is in the way."""
    host, start = rows.is_kind(*HOST_KINDS), np.asarray(rows["start_ns"], np.int64)
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


def lost(*kinds: str) -> Mutation:
    """1 to 5 % of the rows of these kinds were not recorded."""
    return lambda rows, seed: _keep(rows, ~_some(rows.is_kind(*kinds), seed))


def without(kind: str) -> Mutation:
    """No row of a kind was recorded."""
    return lambda rows, _seed: _keep(rows, ~rows.is_kind(kind))


def threads_renumbered(rows: Recording, seed: np.random.Generator) -> None:
    """Threads have other numbers, in another order."""
    tid, unknown = rows["tid"], FIELDS["tid"].null
    numbers, of = np.unique(tid, return_inverse=True)
    other = seed.permutation(len(numbers)) + int(seed.integers(1, 100_000))
    rows.columns["tid"] = np.where(tid == unknown, unknown, other[of])
    if "waker" in rows.columns:
        place = np.minimum(np.searchsorted(numbers, rows["waker"]), len(numbers) - 1)
        known = numbers[place] == rows["waker"]
        rows.columns["waker"] = np.where(known, other[place], FIELDS["waker"].null)


def launches_unknown(rows: Recording, seed: np.random.Generator) -> None:
    """Of 1 to 5 % of the calls nothing tells what they launched."""
    lost = _some(rows.is_kind("runtime"), seed)
    rows.columns["correlation"] = np.where(lost, -1, rows["correlation"])


def whole_microseconds(rows: Recording, _seed: np.random.Generator) -> None:
    """Times are written in whole microseconds."""
    start = np.asarray(rows["start_ns"], np.int64)
    end = (start + rows["duration_ns"]) // 1000 * 1000
    rows.columns["start_ns"] = start // 1000 * 1000
    rows.columns["duration_ns"] = end - rows.columns["start_ns"]


def window_cut(rows: Recording, seed: np.random.Generator) -> None:
    """The recording begins or ends within another step: a fifth of it is missing."""
    start = np.asarray(rows["start_ns"], np.int64)
    first, last = int(start.min()), int(start.max())
    cut = first + int((last - first) * seed.uniform(0, 0.2))
    _keep(rows, (start >= cut) if seed.random() < 0.5 else (start <= last + first - cut))


def device_clock(rows: Recording, seed: np.random.Generator) -> None:
    """The device's clock is up to 5 us ahead or behind."""
    shift = int(seed.integers(-5_000, 5_001))
    start = np.asarray(rows["start_ns"], np.int64) + shift * rows.is_kind(*DEVICE_KINDS)
    rows.columns["start_ns"] = start - min(int(start.min()), 0)


def names_alike(rows: Recording, seed: np.random.Generator) -> None:
    """A tenth of the kernels' and operators' names are those of others."""
    named = rows.is_kind("operator", "kernel")
    codes = np.unique(rows["name"][named])
    other = np.arange(len(rows.text("name")))
    some = codes[seed.random(len(codes)) < 0.1]
    other[some] = seed.choice(codes, len(some))
    rows.columns["name"] = np.where(named, other[rows["name"]], rows["name"])


def no_step_markers(rows: Recording, _seed: np.random.Generator) -> None:
    """The program marked no steps."""
    marks = {step["name"] for step in rows.metadata.get("steps", ())}
    marked = rows.whose_name(lambda name: name in marks or name.startswith("ProfilerStep"))
    _keep(rows, ~(rows.is_kind("annotation") & marked))


MUTATIONS: dict[str, Mutation] = {
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


def _some(rows: np.ndarray, seed: np.random.Generator) -> np.ndarray:
    return np.asarray(rows & (seed.random(len(rows)) < seed.uniform(LEAST, MOST)))


def _keep(rows: Recording, kept: np.ndarray) -> None:
    rows.columns = {name: column[kept] for name, column in rows.columns.items()}


def _launched_ns(rows: Recording) -> np.ndarray:
    """Return when what each call launched begins, far away for other rows."""
    begins = np.full(int(rows["correlation"].max(initial=0)) + 2, 2**60)
    device = rows.is_kind(*DEVICE_KINDS)
    np.minimum.at(begins, rows["correlation"][device], rows["start_ns"][device])
    begins[-1] = 2**60
    return np.where(rows.is_kind("runtime"), begins[rows["correlation"]], 2**60)


def mutated(trace: Trace, names: Sequence[str], seed: int) -> Trace:
    """Return a trace as if it had been recorded otherwise; its operators, layers and steps are derived anew."""
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


# -- what is mutated, and what is right of it ---------------------------------------------------------


@lru_cache(maxsize=256)
def recorded(source: Source) -> tuple[Trace, Mapping[Question, float]]:
    """Return the trace of a source, and by question what is true of it: the step after the change / before."""
    name, public = source
    if public is not None:
        return daydream.load(public), {}
    machine = MACHINES[name]()
    run = machine.run()
    first, last = WINDOW
    ends = {(on, by): machine.run(**{on: by}).step_ends for on, by in QUESTIONS}
    now = run.step_ends[last] - run.step_ends[first]
    truths = {question: (then[last] - then[first]) / now for question, then in ends.items()}
    with tempfile.TemporaryDirectory() as folder:
        if name.removesuffix(VARYING) in BLOCKED:
            path = write_nsys(Path(folder) / "machine.sqlite", run, *WINDOW, switches=True)
        else:
            path = run.write(Path(folder) / "machine.json", *WINDOW)
        return daydream.load(path), truths


@lru_cache(maxsize=256)
def answered(source: Source) -> frozenset[Question]:
    """Return the questions that are answered about a recording as it is: what it lacks is no refusal."""
    try:
        replay = daydream.replay(recorded(source)[0])
    except DaydreamError:
        return frozenset()
    return frozenset(each for each in QUESTIONS if _ask(replay, *each) is not None)


def all_sources(traces: Path) -> dict[Source, float]:
    """Return what can be mutated with its weight: the smaller the files of a recording, the more often."""
    found: dict[Source, float] = {(name, None): SMALL**-0.5 for name in MACHINES}
    for name, path in sources(traces):
        size = sum(each.stat().st_size for each in [path, *path.glob("*")])
        found[name, path] = max(size, SMALL) ** -0.5
    return found


def judge(seed: int, weights: Mapping[Source, float], number: int) -> Judged:
    """Return what the answers about a mutation are worth: of one thing, or two, of any source that is answered."""
    chance = random.Random(f"{seed} {number}")
    while not answered(source := chance.choices([*weights], [*weights.values()])[0]):
        pass
    names = chance.sample([*MUTATIONS], chance.choice((1, 1, 2)))
    asked = answered(source)
    found = Judged(number, source[0], names, len(asked))
    trace, truths = recorded(source)
    try:
        replay = daydream.replay(mutated(trace, names, 10_000 * seed + number))
        replay = replay.as_recorded() if truths else replay  # the machine has no profiler
        hold(found, replay, {} if "device work lost" in names else truths, asked)
    except DaydreamError as error:
        found.refused = len(asked)
        found.why_not = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - any crash is a finding
        found.wrong.append(("replay", f"a crash: {error!r}"))
    return found


def _ask(replay: Replay, on: str, factor: float) -> Prediction | None:
    """Return the answer with its interval; None where it is refused."""
    try:
        answer = daydream.whatif(replay, "scale", on=on, factor=factor)
    except DaydreamError:
        return None
    return None if answer.predicted_low_ns is None else answer


def hold(found: Judged, replay: Replay, truths: Mapping[Question, float], asked: frozenset[Question]) -> None:
    """Hold the answers of a replay against the laws and what is known of their truth."""
    trace = replay.graph.trace
    limits = laws.bounds(trace, replay.graph.steps) if trace is not None else None
    broken = [*laws.a_factor_of_one_changes_nothing(replay, Path())]
    for on, factor in QUESTIONS:
        answer = _ask(replay, on, factor)
        if answer is None:
            found.refused += (on, factor) in asked
            continue
        now, low_ns, high_ns = answer.replayed_ns, answer.predicted_low_ns or 0, answer.predicted_high_ns or 0
        slack = laws.MISSED * now
        possible = [(truths[on, factor] * now,) * 2] if (on, factor) in truths else []
        if limits is not None and (on, factor) != ("cpu", 0.5):
            possible.append(limits.allowed(on, factor, now))
        found.outside += any(not low - slack <= answer.simulated_ns <= high + slack for low, high in possible)
        if high_ns >= WIDE * low_ns:
            found.wide += 1
            continue
        broken += [(f"{on} x {factor:g}", laws.misses(answer, *ends)) for ends in possible]
        if (on, factor) == ("gpu", 0.5) and low_ns > now / laws.GAIN + slack:
            law = laws.a_busy_device_gains_from_faster_kernels
            broken += [("gpu x 0.5", said) for _, said in law(replay, Path())]
    found.wrong += [(question, said) for question, said in broken if said]


# -- what came of it ----------------------------------------------------------------------------------


def table(found: Sequence[Judged], title: str, part: Callable[[Judged], Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: a row for each name that `part` gives a mutation."""
    yield f"\n|{title}|mutations|answers|refused|wide|headline outside|confident and wrong|of these known|"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name in sorted({name for each in found for name in part(each)}):
        mine = [each for each in found if name in part(each)]
        answers = sum(each.answers for each in mine)
        shares = (sum(getattr(each, what) for each in mine) for what in ("refused", "wide", "outside"))
        wrong = [each for each in mine if each.wrong]
        cells = [len(mine), answers, *(f"{count / answers:.1%}" for count in shares)]
        yield f"|{'|'.join(map(str, [name, *cells, len(wrong), sum(not each.new for each in wrong)]))}|"


def page(found: Sequence[Judged], seed: int) -> Iterator[str]:
    """Yield the section of the page."""
    yield f"{len(found):,} mutations of seed {seed}:"
    yield from table(found, "mutation", lambda each: each.mutations)
    yield from table(found, "source", lambda each: (family(each.source), "all"))
    yield "\n|confident and wrong|asked|mutations|cause|\n|---|---|---:|---|"
    wrong: Counter[tuple[str, str, str]] = Counter()
    for each in found:
        source = each.source.removesuffix(VARYING)
        wrong.update({(source, asked, each.cause(asked) or "not known yet") for asked, _ in each.wrong})
    yield from (
        f"|{source}|{asked}|{count}|{cause}|" for (source, asked, cause), count in sorted(wrong.items())
    )


def family(source: str) -> str:
    """Return where a source is from: a folder of public traces, or the machine model."""
    folder, among, _ = source.partition("/")
    return folder if among else "machine"


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutations and print what came of them; return 1 if an answer is confident, wrong and not known to be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of public traces")
    parser.add_argument("--count", type=int, default=1_000, help="how many mutations")
    parser.add_argument("--seed", type=int, default=0, help="other mutations")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", type=int, help="the mutation of this number")
    parser.add_argument(
        "--write", type=Path, help="the page whose part is replaced; without it, it is printed"
    )
    options = parser.parse_args(arguments)
    numbers = range(options.count) if options.only is None else [options.only]
    found = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for each in pool.map(partial(judge, options.seed, all_sources(options.traces)), numbers):
            found.append(each)
            said = [f"{asked}: {said} (known: {each.cause(asked) or 'no'})" for asked, said in each.wrong]
            for one in filter(None, [*said, each.why_not]):
                about = f"{each.number}: {each.source}, {' + '.join(each.mutations)}"
                print(f"{about}: {one}", file=sys.stderr, flush=True)
    put(options.write, "mutations", page(found, options.seed))
    return int(any(each.new for each in found))


if __name__ == "__main__":
    sys.exit(main())
