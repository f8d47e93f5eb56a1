"""How well the typical cost of recording does where the step without a profiler was timed.

    python validation/typical_cost.py                              the table on stdout
    python validation/typical_cost.py --write docs/collection.md   between its markers

The typical cost is of another machine (daydream/collect/live/recording_cost.py), so the recordings of CPUs judge it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from statistics import fmean, median

import numpy as np
from parts_of_pages import put

import daydream
from daydream.collect.live.recording_cost import TYPICAL
from daydream.graph.profiler_overhead import without_profiler
from daydream.predict.basis import timed_steps
from daydream.predict.replay import recorded_steps
from daydream.simulate.steady_state import settle

HERE = Path(__file__).parent
FOLDERS = ("cpu", "compiled", "h100", "h200/modes")
DEVELOPED = ("modes_",)  # of the program whose recordings gave the typical cost
LEAST = 0.1  # of the step: where recording costs less, what is missed of it says little


def found() -> Iterator[tuple[str, float, float, float]]:
    """Yield each recording's model and its step over the one without a profiler, less 1.

    As recorded; with the cost taken out that was measured beside it, NaN where none was; with the typical one
    taken out, and what our hooks took, where the trace says it.
    """
    for path in sorted(path for folder in FOLDERS for path in (HERE / folder).glob("*.parquet")):
        trace = daydream.load(path)
        if not trace.metadata.get("profiler_cost") or path.name.startswith(DEVELOPED):
            continue
        graph = daydream.build(trace)
        measured = [step.measured_ns for step in recorded_steps(graph).steps]
        timed = timed_steps(trace, measured)
        if timed is None:
            continue
        model = f"{path.parent.name}, {path.stem.rpartition('-')[0] or path.stem}"
        recorded, own = fmean(measured), float(settle(without_profiler(graph)).step_ns)
        if "rounds" in trace.metadata["profiler_cost"]:
            trace.metadata["profiler_cost"] = TYPICAL
            typical = settle(without_profiler(graph)).step_ns
        else:  # not measured in its process: it is the typical one
            own, typical = nan, round(own)
        mean_ns = timed.mean_ns
        yield model, recorded / mean_ns - 1, own / mean_ns - 1, typical / mean_ns - 1


def table(rows: list[tuple[str, float, float, float]]) -> Iterator[str]:
    """Yield a row for each model, medians of its recordings, and what is missed over all of them."""
    yield "| recordings | as recorded | own cost taken out | typical cost taken out |"
    yield "|---|---:|---:|---:|"
    for model in dict.fromkeys(row[0] for row in rows):
        of_it = [row[1:] for row in rows if row[0] == model]
        medians = map(median, zip(*of_it, strict=True))
        cells = ["" if isnan(error) else f"{error:+.1%}" for error in medians]
        yield f"| {model} ({len(of_it)}) | {' | '.join(cells)} |"
    dear = np.abs([row[1:] for row in rows if row[1] > LEAST])
    typical = dear[:, 2] / dear[:, 0]
    own, beside = (dear[:, 1:] / dear[:, :1])[~np.isnan(dear[:, 1])].T
    yield ""
    yield (
        f"Of what recording added, the typical cost misses {np.median(typical):.0%} in the median and "
        f"{np.percentile(typical, 90):.0%} in the 90th percentile, over {len(dear)} recordings; over the "
        f"{len(own)} with an own cost that one misses {np.median(own):.0%} and {np.percentile(own, 90):.0%}, "
        f"the typical one {np.median(beside):.0%} and {np.percentile(beside, 90):.0%}."
    )


def main() -> None:
    """Print, or write into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    put(options.write, "typical cost", table(list(found())))


if __name__ == "__main__":
    main()
