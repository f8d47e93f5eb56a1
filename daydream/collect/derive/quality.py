"""Whether a recording was made at rest: on a busy machine its steps say little of the script.

Three signs, which other programs give, or more threads than there are free cores:

- steps that do the same work take different times;
- without the cost of recording, steps would not take what those timed without a profiler took;
- steps took less time with the profiler than without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import places

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

# Of 30 recordings of small models on two quiet cores (validation/) one reached any of these: at most one step
# in five was further than 20 % from the usual one; without the cost of recording, steps came out 17 % shorter
# to 20 % longer than measured, once 29 %; no profiled step was shorter than an unprofiled one.
VARY = 0.2  # steps further than this from the usual one were held up or hurried
MOST_VARYING = 0.25  # share of the steps that may be, as one step now and then is
FAR = 0.25
BELOW = 0.05
OTHER_WORK = 0.1  # of the rows of a step: more differing calls, or calls on other shapes, is other work


def unrest(trace: Trace, unprofiled_ns: int | None) -> str | None:
    """Return why this recording seems not to have been made at rest, and what to do; None if it does.

    `unprofiled_ns` is the replayed step without the cost of recording, None if that is not known.
    """
    steps: list[dict[str, Any]] = trace.metadata.get("steps", [])
    covered = [number for number, step in enumerate(steps) if step.get("covered")]
    if not covered:
        return None
    times = trace.metadata.get("unprofiled_step_ns")
    signs = [_varying(trace, covered)]
    if times:
        measured = round(median(int(steps[number]["measured_ns"]) for number in covered))
        signs.append(_apart(trace, covered, measured, unprofiled_ns, round(median(times))))
    said = "; ".join(sign for sign in signs if sign)
    if not said:
        return None
    if "collected" not in trace.metadata:
        return (
            f"{said[0].upper()}{said[1:]}. All of them count on average: what the trace shows of the cause "
            "(loading, say) can be asked about, a machine that was not at rest cannot."
        )
    threads = trace.metadata.get("threads")
    had = f" (torch had {threads} threads)" if threads and threads > 1 else ""
    return (
        f"The machine seems not to have been at rest while this was recorded: {said}. Close what else runs "
        f"there, set OMP_NUM_THREADS to the number of cores that are free{had}, and record again; a larger "
        "--warmup skips slow first steps."
    )


def _varying(trace: Trace, covered: Sequence[int]) -> str:
    """Return how steps that do the same work vary, empty if they hardly do."""
    steps = trace.metadata["steps"]
    ranks: dict[int, list[int]] = {}
    for number in covered:
        ranks.setdefault(int(steps[number].get("rank", 0)), []).append(number)
    off = 0
    together = 0
    seen = []
    for mine in ranks.values():
        times = {number: int(steps[number]["measured_ns"]) for number in mine}
        if not far_from_usual(list(times.values())):
            together += len(mine)
            continue
        same = [times[number] for number in _same_work(trace, mine)]
        off += far_from_usual(same)
        together += len(same)
        seen += same
    if off <= MOST_VARYING * together:
        return ""
    return (
        f"{off} of {together} steps that do the same work took over {100 * VARY:.0f} % longer or shorter "
        f"than the usual one, {_ms(min(seen))} to {_ms(max(seen))}"
    )


def far_from_usual(times: Sequence[int]) -> int:
    """Return how many of these times are further from the usual one than those of a machine at rest."""
    usual = median_low(times)
    return sum(abs(ns - usual) > VARY * usual for ns in times)


def _apart(
    trace: Trace,
    covered: Sequence[int],
    measured_ns: int,
    replayed_ns: int | None,
    unprofiled_ns: int,
) -> str:
    """Return how steps with and without the profiler contradict each other, empty if they do not."""
    below = measured_ns < (1 - BELOW) * unprofiled_ns
    far = replayed_ns is not None and abs(replayed_ns - unprofiled_ns) > FAR * unprofiled_ns
    if far and replayed_ns is not None and replayed_ns > unprofiled_ns and trace.text("stack"):
        far = False  # what recording Python's frames cost is not taken out
    if not (below or far) or len(_same_work(trace, covered)) < len(covered):
        return ""  # where work differs from step to step, the unprofiled steps may have done other work
    if below:
        return (
            f"a step took {_ms(measured_ns)} with the profiler and {_ms(unprofiled_ns)} without it, "
            "which only ever makes a step longer"
        )
    return (
        f"without the cost of recording a step would take {_ms(replayed_ns or 0)}, but those timed without "
        f"a profiler took {_ms(unprofiled_ns)}"
    )


def _same_work(trace: Trace, steps: Sequence[int]) -> list[int]:
    """Return the steps with the calls, on the shapes, that the step of the usual time has."""
    times = {number: int(trace.metadata["steps"][number]["measured_ns"]) for number in steps}
    middle = median_low(times.values())
    usual = next(number for number, ns in times.items() if ns == middle)
    place = np.full(len(trace.metadata["steps"]) + 1, -1)
    place[list(steps)] = np.arange(len(steps))
    of_step = place[np.asarray(trace["step"], np.int64)]
    rows = np.flatnonzero(of_step >= 0)
    shapes = np.asarray(trace["shapes"], np.int64)[rows]  # -1 where unknown
    call = np.asarray(trace["name"], np.int64)[rows] * (len(trace.text("shapes")) + 1) + shapes + 1
    calls, which = places(call)
    counts = np.bincount(of_step[rows] * len(calls) + which, minlength=len(steps) * len(calls)).reshape(
        len(steps), -1
    )
    mine = counts[list(steps).index(usual)]
    differing = np.abs(counts - mine).sum(axis=1)
    return [steps[at] for at in np.flatnonzero(differing <= OTHER_WORK * max(mine.sum(), 1)).tolist()]


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.{1 if ns >= 10_000_000 else 3}f} ms"
