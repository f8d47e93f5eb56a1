"""The ledger: every change that was measured, predicted again from the trace that was recorded before it.

    python validation/ledger.py --traces ../shared/traces                             the tables on stdout
    python validation/ledger.py --traces ../shared/traces --write docs/evaluation     as CSV, with the figure

`validation/<device>/measured.json` holds what was measured, the traces beside it are all that a
prediction may know. `benchmarks/before_after.py` records a CPU's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import ledger_plot
import numpy as np
import public_pairs
import ranges
from tables import keep

import daydream
from daydream.graph.tables import CPU
from daydream.trace.schema import PHASES

HERE = Path(__file__).parent
PAPER: dict[str, dict[str, Any]] = {"fused-adam": {"model": "sum"}}  # one kernel for the sum of the old ones


@dataclass(frozen=True)
class Entry:
    """One change in one recording: ratios of the step after to the step before."""

    model: str
    recording: str
    title: str
    measured: float
    predicted: float | None
    low: float = 0.0
    high: float = 0.0
    refused: str = ""
    pair: ranges.Pair | None = None
    paper: float | None = None  # predicted by the paper's own model, where it has one
    role: str = "development"

    @property
    def error(self) -> float:
        """Relative error of the predicted step time."""
        return (self.predicted or np.nan) / self.measured - 1


@dataclass(frozen=True)
class Recorded:
    """A device's measured changes, and their predictions."""

    name: str
    document: dict[str, Any]
    entries: list[Entry]


@dataclass(frozen=True)
class Ledger:
    """Everything that was measured, and predicted again."""

    recorded: list[Recorded]
    public: list[public_pairs.Found]

    def pairs(self) -> list[ranges.Pair]:
        """Return all that has a prediction, but for devices whose pairs judge the ranges as they ship."""
        fitted = [device for device in self.recorded if not device.document.get("blind")]
        recorded = [one.pair for device in fitted for one in device.entries]
        public = [one.pair for one in self.public]
        return [pair for pair in [*recorded, *public] if pair is not None]


def main() -> None:
    """Predict everything; print or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    parser.add_argument("--traces", type=Path, help="folder with kineto/ of public traces")
    options = parser.parse_args()
    found = predicted(options.traces)
    for name, lines in [*tables(found), ("ranges", ranges.table(found.pairs()))]:
        keep(options.write, name, lines)
    if options.write:
        ledger_plot.write(found, options.write.parent / "accuracy.svg")


def predicted(traces: Path | None = None) -> Ledger:
    """Return the ledger; `traces` is the folder of public traces, where it is at hand."""
    recorded = []
    for folder in folders():
        document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
        recorded.append(Recorded(folder.name, document, list(entries(folder))))
    return Ledger(recorded, list(public_pairs.found(traces)))


def entries(folder: Path) -> Iterator[Entry]:
    """Yield every measured change of a device, predicted from its trace alone."""
    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    for model, recordings in document["recordings"].items():
        for recording in recordings:
            trace = daydream.load(folder / recording["trace"])
            replay = daydream.replay(trace)
            judges = recording.get("judges", document.get("judges", False))
            for title, change in recording["changes"].items():
                entry = _entry(replay, model, recording["trace"], title, change, folder.name)
                yield replace(entry, role="judgement" if judges else "development")


def folders() -> list[Path]:
    """Return the folders of recorded devices."""
    return sorted(path.parent for path in HERE.glob("*/measured.json"))


def _entry(
    replay: daydream.Replay, model: str, name: str, title: str, change: dict[str, Any], group: str = ""
) -> Entry:
    try:
        comparison = daydream.whatif(replay, change["optimization"], **change["options"])
    except daydream.DaydreamError as error:
        return Entry(model, name, title, change["measured"], None, refused=str(error))
    if comparison.predicted_ns is None:
        return Entry(model, name, title, change["measured"], None, refused=comparison.reason or "")
    before = comparison.replayed_ns
    low, high = comparison.predicted_low_ns or 0, comparison.predicted_high_ns or 0
    paper = None
    if change["optimization"] in PAPER:
        whole = daydream.whatif(
            replay, change["optimization"], **change["options"], **PAPER[change["optimization"]]
        )
        paper = whole.simulated_ns / whole.replayed_ns
    return Entry(
        model, name, title, change["measured"], comparison.predicted_ns / before, low / before, high / before,
        pair=ranges.of_comparison(group, model, comparison, change["measured"]), paper=paper,
    )  # fmt: skip


def tables(found: Ledger) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the tables with their names: a row for each change in each recording, parts of a step, public pairs."""
    yield "ledger", _rows(found)
    yield (
        "phases",
        [line for one in found.recorded for line in _phase_rows(HERE / one.name, one.document)],
    )
    titles = ("pair", "asked", "compared", "before ms", "after ms", "predicted ms", "error", "range")
    yield "public pairs", [f"| {' | '.join(titles)} |", "|---" * 8 + "|", *public_pairs.rows(found.public)]


COLUMNS = (
    "device", "role", "model", "change", "recording", "measured", "predicted", "low", "high", "error",
    "error of the paper's model", "refused",
)  # fmt: skip


def _rows(found: Ledger) -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for device in found.recorded:
        for one in device.entries:
            cells = [device.name, one.role, one.model, one.title, one.recording, f"{one.measured:.4f}"]
            if one.predicted is None:
                cells += ["", "", "", "", "", one.refused]
            else:
                cells += [f"{ratio:.4f}" for ratio in (one.predicted, one.low, one.high)]
                cells += [
                    f"{one.error:+.2%}",
                    "" if one.paper is None else f"{one.paper / one.measured - 1:+.2%}",
                    "",
                ]
            yield f"| {' | '.join(cells)} |"


# The parts of a change by phase ------------------------------------------------------------------

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


def _phase_rows(folder: Path, document: dict[str, Any]) -> Iterator[str]:
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
    titles = [f"{part} {what}" for part in PARTS for what in ("measured", "predicted", "error")]
    yield f"| device | model | change | {' | '.join(titles)} |"
    yield "|---" * (3 + len(titles)) + "|"
    for (model, title), pairs in found.items():
        cells = []
        for part in PARTS:
            error = median(told[part] / measured[part] - 1 for told, measured in pairs)
            ratios = (median(one[part] for one in side) for side in zip(*pairs, strict=True))
            told, measured = ratios
            cells += [f"{measured:.3f}", f"{told:.3f}", f"{error:+.1%}"]
        yield f"| {folder.name} | {model} | {title} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
