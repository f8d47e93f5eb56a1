"""What recording costs a training step: hooks, profiler, both, and nothing any more once it is over.

python benchmarks/overhead.py               writes its section of docs/collection.md
python benchmarks/overhead.py --quick       few rounds, the section on stdout only
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import TypeVar

from machine_facts import machine
from results import grid, say
from sections import write_section
from timing import Seconds, take_turns
from traces import REPOSITORY
from work_overhead import WAYS
from workers import Worker

PAGE = REPOSITORY / "docs" / "collection.md"
HEAD = "# Collecting a trace: what it costs"
COUNTS = {"GPT": 12, "MLP": 80}  # steps of a block: about a fifth of a second
ROUNDS = 21
CONTROL = (0.95, 1.05)  # with an A/A control outside, it is measured again
ATTEMPTS = 5
T = TypeVar("T")
NAMES = {
    "nothing again": "nothing, again (A/A)",
    "hooks": "layer hooks, no profiler",
    "profiler": "profiler, no layer hooks",
    "capturing": "capturing: profiler and layer hooks",
}
METHOD = """\
Training steps on one CPU thread, Adam one parameter at a time. Blocks of steps take turns, every other
round backwards; a figure is the median over rounds of the time a step takes, divided by that of the block
with nothing in the same round, and in brackets the middle half of the rounds. Starting and stopping are not
in it: they happen outside the steps that count. "After the capture" compares two processes that take turns,
before and after one of them has recorded itself as `daydream collect` does: how their ratio changed. Its
control is the same with a process that did not record."""


@dataclass(frozen=True)
class Spread:
    """A median, and the middle half."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def main() -> None:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds; the page is left alone")
    quick = parser.parse_args().quick
    rounds = 3 if quick else ROUNDS
    facts = machine()
    lines = ["## Overhead", "", METHOD, ""]
    columns = {model: _measured(model, rounds) for model in COUNTS}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    lines += grid(["step time, of that with nothing", *columns], rows)
    plain, empty, ours = _one_module(rounds)
    lines += [
        "",
        f"A call of `nn.Identity` inside a model takes {plain:.1f} us, {empty:.1f} us with global hooks",
        f"that do nothing, {ours:.1f} us with the layer hooks (no profiler running).",
        "",
        f"Measured on {facts['CPU']}, Python {facts['Python']}, by `python benchmarks/overhead.py`.",
    ]
    if quick:
        sys.stdout.write("\n".join(lines) + "\n")
        return
    write_section(PAGE, "overhead", lines, head=HEAD)
    say(f"wrote the section in {PAGE.name}")


def _measured(model: str, rounds: int) -> dict[str, str]:
    """Return the figures of a model, by what was switched on."""
    tries = _until_quiet(f"{model}: within one process", lambda: _within(model, rounds), _own_control)
    ratios = {way: _spread(tries[way], tries["nothing"]) for way in NAMES}
    after, control = _until_quiet(
        f"{model}: after the capture", lambda: _after(model, 2 * rounds), itemgetter(1)
    )
    return {
        "nothing: ms a step": f"{median(tries['nothing']) * 1e3:.2f}",
        **{name: str(ratios[way]) + _mark(way, ratios[way].value) for way, name in NAMES.items()},
        "after the capture": f"{after:.3f}",
        "after no capture (A/A)": f"{control:.3f}{_mark('nothing again', control)}",
    }


def _until_quiet(what: str, measure: Callable[[], T], control: Callable[[T], float]) -> T:
    """Return the outcome whose A/A control is nearest to 1, of the first within bounds or of all attempts."""
    outcomes: list[T] = []
    for attempt in range(ATTEMPTS):
        say(f"{what}, attempt {attempt + 1}")
        outcomes.append(measure())
        if CONTROL[0] <= control(outcomes[-1]) <= CONTROL[1]:
            break
    return min(outcomes, key=lambda outcome: abs(control(outcome) - 1))


def _own_control(seconds: Seconds) -> float:
    return _spread(seconds["nothing again"], seconds["nothing"]).value


def _mark(way: str, value: float) -> str:
    off = way == "nothing again" and not CONTROL[0] <= value <= CONTROL[1]
    return " (off: a restless machine)" if off else ""


def _within(model: str, rounds: int) -> Seconds:
    with _ready(model) as worker:
        jobs = {way: lambda way=way: float(worker.ask("steps", count=COUNTS[model], way=way)) for way in WAYS}
        return take_turns(jobs, rounds)


def _after(model: str, rounds: int) -> tuple[float, float]:
    """Return how a process that has recorded compares with before, and one that has not."""
    with _ready(model) as reference, _ready(model) as recorder, _ready(model) as control:
        workers = {"reference": reference, "recorder": recorder, "control": control}
        jobs = {
            name: lambda worker=worker: float(worker.ask("steps", count=COUNTS[model]))
            for name, worker in workers.items()
        }
        before = take_turns(jobs, rounds)
        if not recorder.ask("collect"):
            raise RuntimeError("nothing was recorded")
        after = take_turns(jobs, rounds)
    recorded, untouched = (
        _spread(after[name], after["reference"]).value / _spread(before[name], before["reference"]).value
        for name in ("recorder", "control")
    )
    return recorded, untouched


def _one_module(rounds: int) -> tuple[float, ...]:
    with Worker("work_overhead.py") as worker:
        taken = [worker.ask("one_module", calls=20000) for _ in range(rounds)]
    return tuple(median(one[way] for one in taken) for way in ("plain", "empty", "ours"))


@contextlib.contextmanager
def _ready(model: str) -> Iterator[Worker]:
    with Worker("work_overhead.py") as worker:
        worker.ask("prepare", model=model)
        yield worker


def _spread(seconds: list[float], nothing: list[float]) -> Spread:
    ratios = sorted(one / other for one, other in zip(seconds, nothing, strict=True))
    return Spread(median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4])


if __name__ == "__main__":
    main()
