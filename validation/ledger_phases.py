"""The parts of a measured change by phase: predicted from the trace, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import daydream

# What a measured part holds of the phases of a trace: the loss is called in what is timed as forward, and
# what stands between two steps, as `zero_grad`, with the optimizer.
PARTS = {
    "forward": ("data", "forward", "loss"),
    "backward": ("backward",),
    "optimizer": ("optimizer", "other"),
}


def predicted_ratios(comparison: daydream.Prediction) -> dict[str, float]:
    """Return after over before of the unprofiled step and of its parts, as the change is predicted."""
    known = comparison.anchored or comparison.unprofiled or comparison
    before, after = (side["by_phase"] for side in known.breakdowns())
    found = {"step": known.simulated_ns / known.replayed_ns}
    for part, phases in PARTS.items():
        was = sum(before.get(phase, 0) for phase in phases)
        found[part] = sum(after.get(phase, 0) for phase in phases) / was if was else 1.0
    return found


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
