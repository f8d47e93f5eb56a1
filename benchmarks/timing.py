"""Side by side: jobs take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

Seconds = dict[str, list[float]]


def take_turns(jobs: Mapping[str, Callable[[], float]], rounds: int) -> Seconds:
    """Run every job once a round, every other round backwards; return the seconds of each, one a round."""
    seconds: Seconds = {name: [] for name in jobs}
    for number in range(rounds):
        names = list(jobs)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            seconds[name].append(jobs[name]())
    return seconds


def timed(
    function: Callable[[], object], *, at_least_s: float = 0.1, most: int = 1000
) -> Callable[[], float]:
    """Return a job: the seconds of one call, averaged over enough calls to be read off the clock."""
    begin = perf_counter()
    function()
    once = max(perf_counter() - begin, 1e-7)
    times = min(max(round(at_least_s / once), 1), most)

    def job() -> float:
        begin = perf_counter()
        for _ in range(times):
            function()
        return (perf_counter() - begin) / times

    return job


@dataclass(frozen=True)
class Ratio:
    """How many times faster one job is than another: of medians, and the least and most of any round."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.value)} ({short(self.low)}-{short(self.high)})"

    def scaled(self, factor: float) -> Ratio:
        """Return the ratio times a factor, for one that is taken per node, task or byte."""
        return Ratio(self.value * factor, self.low * factor, self.high * factor)


def times_faster(seconds: Seconds, ours: str, other: str) -> Ratio:
    """Return how many times faster `ours` is than `other`, paired by round."""
    paired = [b / a for a, b in zip(seconds[ours], seconds[other], strict=True)]
    return Ratio(median(seconds[other]) / median(seconds[ours]), min(paired), max(paired))


def short(value: float) -> str:
    """Return a number with two or three digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if size < 1 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
