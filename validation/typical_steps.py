"""What the steps that stand for a long recording answer, beside what all of its steps do.

    python validation/typical_steps.py --traces ../shared/traces

Public recordings are short, so that half of the rows of each are enough here. Every optimization of `rank` is asked
about both; an answer is the step after the change over the one before. Prints a line a recording and one of all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sanity import sources

import daydream
from daydream.errors import DaydreamError
from daydream.predict.ranking import Ranking
from daydream.trace import typical_run
from daydream.trace.trace import Trace

FEWEST = 2 * typical_run.FEWEST  # covered steps: of fewer no half is looked at


def answers(ranking: Ranking) -> dict[str, float]:
    """Return the step after each change over the one before, as a run pays for it."""
    found = {each.name: each.as_run for each in ranking.optimizations}
    return {name: step.after_ns / step.before_ns for name, step in found.items() if step is not None}


def compared(trace: Trace) -> tuple[int, np.ndarray] | None:
    """Return how many steps stand for all, and how far each answer is off; None where all are looked at."""
    typical_run.LONG, typical_run.ENOUGH = 0, len(trace) // 2
    some = trace.of_steps(typical_run.TYPICAL)
    if some is trace:
        return None
    by_some, by_all = (answers(daydream.rank(each, pairs=0, with_curves=False)) for each in (some, trace))
    off = [by_some[name] / by_all[name] - 1 for name in by_all if name in by_some]
    return sum(bool(step.get("covered")) for step in some.metadata["steps"]), np.abs(off)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="the folder of public traces")
    found = []
    for name, path in sources(parser.parse_args().traces):
        try:
            trace = daydream.load(path)
            steps = sum(bool(step.get("covered")) for step in trace.metadata.get("steps", []))
            trace.memory = None  # else all steps are looked at
            told = compared(trace) if steps >= FEWEST else None
        except DaydreamError:
            continue
        if told is not None and len(told[1]):
            some, off = told
            found.append(off)
            print(
                f"{name}: {some} of {steps} steps, {len(off)} answers, "
                f"off by {np.median(off):.2%} in the median, {off.max():.2%} at most",
                flush=True,
            )
        elif steps >= FEWEST:
            print(f"{name}: all {steps} steps")
    off = np.concatenate(found)
    print(
        f"all {len(off)} answers: median {np.median(off):.2%}, "
        f"90th percentile {np.quantile(off, 0.9):.2%}, worst {off.max():.2%}"
    )


if __name__ == "__main__":
    main()
