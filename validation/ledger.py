"""The ledger: every change that was measured, predicted again from the trace that was recorded before it.

    python validation/ledger.py --traces ../shared/traces                            the tables on stdout
    python validation/ledger.py --traces ../shared/traces --write docs/accuracy.md    between their markers

`validation/<device>/measured.json` holds what was measured, the traces beside it are all that a
prediction may know. `benchmarks/before_after.py` records a CPU's. What is fitted to what stands on the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import ledger_phases
import ledger_plot
import numpy as np
import public_pairs
import ranges
from parts_of_pages import put

import daydream

HERE = Path(__file__).parent
PAPER: dict[str, dict[str, Any]] = {"fused-adam": {"model": "sum"}}  # one kernel for the sum of the old ones
IN_TURNS = "Each is in a process of its own; before and after in blocks that take turns."
CLOSE = 0.05  # ratios nearer than this are no ranking that a measurement of this noise can tell


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

    @property
    def error(self) -> float:
        """Relative error of the predicted step time."""
        return (self.predicted or np.nan) / self.measured - 1

    @property
    def in_range(self) -> bool:
        """Whether the measured ratio lies in the range that was printed with the prediction."""
        return self.low <= self.measured <= self.high


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
    parser.add_argument("--write", type=Path, help="the page whose part between the markers is replaced")
    parser.add_argument("--traces", type=Path, help="folder with kineto/ of public traces")
    options = parser.parse_args()
    found = predicted(options.traces)
    put(options.write, "ledger", page(found))
    put(options.write, "ranges", ranges.table(found.pairs()))
    if options.write:
        ledger_plot.write(found, options.write.with_suffix(".svg"))


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
            replay = daydream.replay(folder / recording["trace"])
            for title, change in recording["changes"].items():
                yield _entry(replay, model, recording["trace"], title, change, folder.name)


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


def page(found: Ledger) -> Iterator[str]:
    """Yield the lines of the section."""
    for device in found.recorded:
        document, mine = device.document, device.entries
        yield ""
        yield (
            f"`validation/{device.name}`: {document['machine']}. {len({one.recording for one in mine})} recordings. "
            f"{document.get('how', IN_TURNS)} Ratios of the step after to the "
            "step before, the median of the recordings; errors of the predicted step, the least and the most in brackets. "
            f"Recordings left out because the unchanged step differed from itself by more than 5 %: "
            f"{sum(document['left_out'].values())}."
        )
        yield ""
        yield "| model | change | measured | predicted | error | paper's model |"
        yield "|---|---|---:|---:|---:|---:|"
        for model in document["recordings"]:
            for title in dict.fromkeys(one.title for one in mine if one.model == model):
                yield _row([one for one in mine if (one.model, one.title) == (model, title)])
        yield ""
        yield from _summary(mine)
        yield from ledger_phases.rows(HERE / device.name, document)
    yield ""
    yield (
        "Public pairs: the same work recorded twice, the second predicted from the first, ms. Inference traces hold "
        "one forward pass without steps, so the sum of their kernels' times is compared. Both sides were known "
        "when the models were written: these rows are no blind test."
    )
    yield ""
    yield "| pair | asked | compared | before | after | predicted | error | range |"
    yield "|---|---|---|---:|---:|---:|---:|---:|"
    yield from public_pairs.rows(found.public)


def _row(found: list[Entry]) -> str:
    first = found[0]
    measured = median(one.measured for one in found)
    head = f"| {first.model} | {first.title} | {measured:.3f} "
    known = [one for one in found if one.predicted is not None]
    if not known:
        return f"{head}| refused: {first.refused} | | |"
    errors = [one.error for one in known]
    return (
        f"{head}| {median(one.predicted or 0 for one in known):.3f} "
        f"| {median(errors):+.1%} ({min(errors):+.1%} to {max(errors):+.1%}) | {_of_the_paper(known)} |"
    )


def _of_the_paper(found: list[Entry]) -> str:
    errors = [one.paper / one.measured - 1 for one in found if one.paper is not None]
    return f"{median(errors):+.1%}" if errors else ""


def _summary(found: list[Entry]) -> Iterator[str]:
    known = [one for one in found if one.predicted is not None]
    rows: dict[tuple[str, str], list[float]] = {}
    for one in known:
        rows.setdefault((one.model, one.title), []).append(one.error)
    of_rows = sorted(abs(median(errors)) for errors in rows.values())
    (worst_model, worst_title), worst = max(rows.items(), key=lambda item: abs(median(item[1])))
    right, pairs = _ranked(known)
    yield (
        f"Over the {len(of_rows)} rows: median error {median(of_rows):.1%}, 90th percentile "
        f"{np.quantile(of_rows, 0.9):.1%}, worst {median(worst):+.1%} ({worst_model}, {worst_title}). "
        f"The right one of two changes of a model is predicted to be faster in {right} of {pairs} pairs that are "
        f"measured more than {CLOSE:.0%} apart. The printed range holds the measured ratio in "
        f"{sum(one.in_range for one in known)} of {len(known)} recorded changes; it is "
        f"{median((one.high - one.low) / 2 / (one.predicted or np.inf) for one in known):.0%} to either side in the median."
    )


def _ranked(known: list[Entry]) -> tuple[int, int]:
    """Return in how many pairs of a recording's changes the faster one is predicted, and how many there are."""
    right = pairs = 0
    for recording in {one.recording for one in known}:
        for a, b in combinations([one for one in known if one.recording == recording], 2):
            if abs(a.measured / b.measured - 1) > CLOSE:
                pairs += 1
                right += (a.measured < b.measured) == ((a.predicted or 0) < (b.predicted or 0))
    return right, pairs


if __name__ == "__main__":
    main()
