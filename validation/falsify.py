"""Answers about recordings that were mutated: how often is one confident, and wrong?

    python validation/falsify.py --traces ../shared/traces                              1,000 mutations
    python validation/falsify.py --traces ../shared/traces --only 417                   one of them
    python validation/falsify.py --traces ../shared/traces --write docs/evaluation

A mutation is what another day, another profiler or another option of it would have recorded of the same program. It is
made in the columns of a public trace, or of a recording of the machine model (tests/machine); operators, layers and steps
are derived again. Laws that hold whatever waits for what (`laws.py`) say what an answer may be; of the machine, its
own re-run tells. An answer is *confident and wrong* if its interval is narrower than a factor of two and misses that.
Exits with 1 if one is.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

import laws
from evaluate import write
from machine.blocked import BLOCKED, LOADERS
from machine.harder import HARDER
from machine.nsys import write_nsys
from machine.programs import PROGRAMS
from mutations import LATER_NS, MUTATIONS, mutated
from sanity import sources

import daydream
from daydream.errors import DaydreamError
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay
from daydream.trace.trace import Trace

Question = tuple[str, float]
Source = tuple[str, Path | None]  # a public recording and its place, or a program of the machine model
QUESTIONS: tuple[Question, ...] = (("gpu", 0.5), ("gpu", 2.0), ("cpu", 0.0), ("cpu", 0.5))
SMALL = 50_000  # bytes of a packed file
WINDOW = 24, 29  # steps of a machine's run that are recorded
WIDE = 2.0
VARYING = ", varying"  # so do hand-offs, and batches by a tenth
MACHINES = {**PROGRAMS, **HARDER, **LOADERS, **BLOCKED} | {
    name + VARYING: lambda make=make: replace(make(), hand_off=LATER_NS, variation=0.1)
    for name, make in BLOCKED.items()
}


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
    now_ns = run.step_ends[last] - run.step_ends[first]
    truths = {question: (then[last] - then[first]) / now_ns for question, then in ends.items()}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "machine.sqlite"
        if name.removesuffix(VARYING) in BLOCKED:
            return daydream.load(write_nsys(place, run, *WINDOW, switches=True)), truths
        return daydream.load(run.write(place.with_suffix(".json"), *WINDOW)), truths


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
        replay = replay.recording if truths else replay  # the machine has no profiler
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


def table(
    found: Sequence[Judged], title: str, part: Callable[[Judged], Sequence[str]]
) -> list[dict[str, str]]:
    """Return a row for each name that `part` gives a mutation."""
    rows = []
    for name in sorted({name for each in found for name in part(each)}):
        mine = [each for each in found if name in part(each)]
        answers = sum(each.answers for each in mine)
        row = {title: name, "mutations": str(len(mine)), "answers": str(answers)}
        for what, column in (("refused", "refused"), ("wide", "wide"), ("outside", "headline outside")):
            row[column] = f"{sum(getattr(each, what) for each in mine) / answers:.1%}"
        row["confident and wrong"] = str(sum(bool(each.wrong) for each in mine))
        rows.append(row)
    return rows


def tables(found: Sequence[Judged]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield three tables: by mutation, by source, and the answers that are confident and wrong."""
    yield "mutations", table(found, "mutation", lambda each: each.mutations)
    yield "mutations_2", table(found, "source", lambda each: (family(each.source), "all"))
    wrong: Counter[tuple[str, str]] = Counter()
    for each in found:
        wrong.update((each.source.removesuffix(VARYING), asked) for asked, _ in each.wrong)
    titles = ("confident and wrong", "asked", "mutations")
    rows = [dict(zip(titles, (*key, str(count)), strict=True)) for key, count in sorted(wrong.items())]
    yield "mutations_3", rows


def family(source: str) -> str:
    """Return where a source is from: a folder of public traces, or the machine model."""
    folder, among, _ = source.partition("/")
    return folder if among else "machine"


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge mutations and print what came of them; return 1 if an answer is confident and wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder of public traces")
    parser.add_argument("--count", type=int, default=1_000, help="how many mutations")
    parser.add_argument("--seed", type=int, default=0, help="other mutations")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", type=int, help="the mutation of this number")
    parser.add_argument(
        "--write", type=Path, help="the folder of CSV files; without it the tables are printed"
    )
    options = parser.parse_args(arguments)
    numbers = range(options.count) if options.only is None else [options.only]
    found = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for each in pool.map(partial(judge, options.seed, all_sources(options.traces)), numbers):
            found.append(each)
            for one in filter(None, [*(f"{asked}: {said}" for asked, said in each.wrong), each.why_not]):
                about = f"{each.number}: {each.source}, {' + '.join(each.mutations)}"
                print(f"{about}: {one}", file=sys.stderr, flush=True)
    for table_, rows in tables(found):
        write(options.write, table_, rows)
    return int(any(each.wrong for each in found))


if __name__ == "__main__":
    sys.exit(main())
