"""The parts of a measured change by phase: predicted from the trace, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import daydream
from daydream.graph.tables import CPU
from daydream.trace.schema import PHASES

# What a measured part holds of the phases of a trace: the loss is called in what is timed as forward, and
# what stands between two steps, as `zero_grad`, with the optimizer.
PARTS = {
    "forward": ("data", "forward", "loss"),
    "backward": ("backward",),
    "optimizer": ("optimizer", "other"),
}

# Operators by which `backward` makes the gradient that it begins with.
SEED = ("aten::ones_like", "aten::empty_like", "aten::empty_strided", "aten::fill_")


def parts_ns(settled: Any) -> dict[str, float]:
    """Return the time of each part of the median step on the CPU, ns, bounded as a measurement is that calls them in turns.

    What lies between two tasks belongs to the later one's part: a loss has ended with its last operator, and
    autograd's way to the first node is `backward`'s, with the gradient of the loss that it makes (`ones_like`).
    """
    timeline, steps = settled.timeline, list(settled.step_times())
    columns = timeline.graph.columns
    at = np.flatnonzero(columns["kind"][timeline.task] == CPU)
    at = at[np.argsort(timeline.start_ns[at], kind="stable")]
    reached = np.maximum.accumulate(timeline.end_ns[at])
    spent = np.diff(reached, prepend=timeline.start_ns[at[:1]])
    task = timeline.task[at]
    inside = (timeline.copy[at] == settled.copy) & np.isin(columns["step"][task], steps)
    phase = columns["phase"][task].copy()
    seed = np.isin(timeline.graph.column("op", task), SEED) & (phase == PHASES.index("loss"))
    phase[seed] = PHASES.index("backward")
    of_part = {part: [PHASES.index(phase) for phase in phases] for part, phases in PARTS.items()}
    found = {}
    for part, codes in of_part.items():
        mine = inside & np.isin(phase, codes)
        by_step = np.bincount(columns["step"][task[mine]], spent[mine], len(timeline.graph.steps))
        found[part] = float(np.median(by_step[steps]))
    return found


def predicted_ratios(comparison: daydream.Prediction) -> dict[str, float]:
    """Return after over before of the step and of its parts, as the change is predicted."""
    before, after = parts_ns(comparison.replay.settled), parts_ns(comparison.after)
    ratios = {part: after[part] / before[part] if before[part] else 1.0 for part in PARTS}
    return {"step": comparison.simulated_ns / comparison.replayed_ns, **ratios}


def rows(folder: Path, document: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the changes that were measured by phase, medians of the recordings; nothing of none."""
    found: dict[tuple[str, str], list[tuple[dict[str, float], dict[str, float]]]] = {}
    for model, recordings in document["recordings"].items():
        for recording in recordings:
            for title, change in recording["changes"].items():
                if "phases" in change:
                    replay = daydream.replay(folder / recording["trace"])
                    told = daydream.whatif(replay, change["optimization"], **change["options"])
                    pair = predicted_ratios(told), {"step": change["measured"], **change["phases"]}
                    named = f"{model} (judges)" if recording.get("judges") else model
                    found.setdefault((named, title), []).append(pair)
    if not found:
        return
    yield (
        "By phase, in CPU time: measured and predicted ratio, and the error of the predicted part. No rule was looked "
        "at with the models that judge."
    )
    yield ""
    yield f"| model | change | {' | '.join(PARTS)} |"
    yield f"|---|---|{'---:|' * len(PARTS)}"
    errors = []
    for (model, title), pairs in found.items():
        cells = []
        for part in PARTS:
            ratio = median(measured[part] for _, measured in pairs)
            error = median(told[part] / measured[part] - 1 for told, measured in pairs)
            errors.append(abs(error))
            cells.append(f"{ratio:.3f}, {median(told[part] for told, _ in pairs):.3f}: {error:+.1%}")
        yield f"| {model} | {title} | {' | '.join(cells)} |"
    yield ""
    yield (
        f"Over the {len(errors)} parts: median error {median(errors):.1%}, worst {max(errors):.1%}; "
        f"{sum(error <= 0.05 for error in errors)} within 5 %, {sum(error <= 0.1 for error in errors)} within 10 %."
    )
