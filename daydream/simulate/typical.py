"""Typical steps: those that a prediction is read from, without those that were held up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

OTHER_WORK = 0.1  # of the tasks of a typical step: more or fewer is another kind of step
UNUSUAL = 0.25  # steps further than this from the median (a stalled loader, a warm-up) are not typical


@dataclass(frozen=True)
class Typical:
    """The typical steps; whether they were told by the steps without a profiler, as most were held up."""

    steps: list[int]
    by_unprofiled: bool = False


def typical_steps(
    times: Mapping[int, int],
    tasks: Mapping[int, int],
    unprofiled_ns: int | None,
    without: Callable[[], Mapping[int, int]],
) -> Typical:
    """Return the typical steps of some with these times and numbers of tasks.

    A step far from the median that does the same work was held up (a stalled loader, a
    warm-up) and is left out; one that does other work (the optimizer every fourth step) is part
    of the loop. On a busy machine most steps may have been held up, and the median with them:
    where it is far from the step that was timed without a profiler, and others agree with that
    one, those are typical. `without` returns times without the cost of recording.
    """
    usual = _near(times, median(times.values()))
    amount = median(tasks[step] for step in usual or times)
    alike = {step for step in times if abs(tasks[step] - amount) <= OTHER_WORK * amount}
    by_unprofiled = False
    if unprofiled_ns and not alike <= usual:
        agreeing = alike & _near(without(), unprofiled_ns)
        by_unprofiled = bool(agreeing) and not agreeing & usual
        usual = agreeing if by_unprofiled else usual
    kept = [step for step in times if not usual or step in usual or step not in alike]
    return Typical(kept, by_unprofiled)


def _near(times: Mapping[int, int], usual: float) -> set[int]:
    return {step for step, ns in times.items() if abs(ns - usual) <= UNUSUAL * usual}
