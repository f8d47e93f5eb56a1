"""What the steps that stand for a long recording answer, beside what all of its steps do.

    python validation/typical_steps.py --traces ../shared/traces

Public recordings are short, so that half of the rows of each are enough here, and then no more than the shortest run
takes. Every optimization of `rank` is asked about both; an answer is the step after the change over the one before.
Prints a line a recording and one of all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sanity import sources

import daydream
from daydream.errors import DaydreamError
from daydream.predict.rank import Ranking
from daydream.trace import step_range
from daydream.trace.trace import Trace

FEWEST = 2 * step_range.FEWEST  # covered steps: of fewer no half is looked at


def answers(ranking: Ranking) -> dict[str, float]:
    """Return the step after each change over the one before, as a run pays for it."""
    return {
        each.optimization: each.predicted_ns / each.replayed_ns
        for each in ranking.optimizations
        if each.predicted_ns is not None
    }


def compared(trace: Trace, enough: int) -> tuple[int, np.ndarray] | None:
    """Return how many steps stand for all, and how far each answer is off; None where all are looked at."""
    step_range.LONG, step_range.ENOUGH = 0, enough
    some = trace.of_steps(step_range.TYPICAL)
    if some is trace:
        return None
    by_some, by_all = (answers(daydream.rank(each, pairs=0, with_curves=False)) for each in (some, trace))
    off = [by_some[name] / by_all[name] - 1 for name in by_all if name in by_some]
    return covered(some), np.abs(off)


def covered(trace: Trace) -> int:
    """Return how many steps count."""
    return sum(bool(step.get("covered")) for step in trace.metadata.get("steps", []))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="the folder of public traces")
    found: dict[str, list[np.ndarray]] = {"half of the rows": [], "the shortest run": []}
    for name, path in sources(parser.parse_args().traces):
        try:
            trace = daydream.load(path)
            trace.memory = None  # else all steps are looked at
            if covered(trace) < FEWEST:
                continue
            told = [compared(trace, enough) for enough in (len(trace) // 2, 1)]
        except DaydreamError:
            continue
        for each, (which, all_off) in zip(told, found.items(), strict=True):
            if each is not None and len(each[1]):
                some, off = each
                all_off.append(off)
                print(
                    f"{name}, {which}: {some} of {covered(trace)} steps, {len(off)} answers, "
                    f"off by {np.median(off):.2%} in the median, {off.max():.2%} at most",
                    flush=True,
                )
    for which, all_off in found.items():
        off = np.concatenate(all_off)
        print(
            f"{which}: {len(off)} answers about {len(all_off)} recordings, median {np.median(off):.2%}, "
            f"90th percentile {np.quantile(off, 0.9):.2%}, worst {off.max():.2%}"
        )


if __name__ == "__main__":
    main()
