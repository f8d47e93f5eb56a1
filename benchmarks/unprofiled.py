"""The unprofiled prediction against the truth: steps of small models with and without the profiler.

    python benchmarks/unprofiled.py                             tables on stdout, about ten minutes
    python benchmarks/unprofiled.py --write docs/evaluation  keeps the tables as CSV

Each recording is a process of its own: one thread, denormals flushed, malloc told to keep freed memory
(see `recordings.py`), the step timed before the recording, by the recording and after it. What-ifs are
made for real afterwards, in blocks that take turns. A recording on a restless machine is left out and
made again: where the A/A control (before the recording over after it) is further than 5 % from 1, or
the middle captured steps differ by more than 25 %. Neither says anything of the prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from recordings import KEEP_FREED_MEMORY

REPEATS = 5
MOST_TRIES = 20
CAPTURED = 5
BLOCKS, BLOCK_STEPS = 7, 8
CONTROL = 0.05
SPREAD = 1.25
WHAT_IFS = ("GPT", "MLP", "LSTM")


def main() -> None:
    """Record, compare, print or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="recordings of each model that count")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_record(options.one)))
        return
    names = options.models or ["GPT", "MLP", "LSTM", "CNN", "TransformerEncoder"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    left_out = dict.fromkeys(names, 0)
    for name in names * MOST_TRIES:  # models take turns
        if len(found[name]) < options.repeats:
            one = _in_process(name)
            if one["quiet"]:
                found[name].append(one)
            else:
                left_out[name] += 1
            print(name, "ok" if one["quiet"] else "restless", _short(one), file=sys.stderr, flush=True)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "validation"))
    from tables import keep

    keep(options.write, "unprofiled", _page(found, left_out, options.repeats))


# One recording -----------------------------------------------------------------------------------


def _in_process(name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", name],
        capture_output=True, text=True, check=True,
        env={**os.environ, **KEEP_FREED_MEMORY, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _record(name: str) -> dict[str, Any]:
    import torch
    from small_models import MODELS

    import daydream
    from daydream.graph.profiler_overhead import cost_of_recording, overhead_scale

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    plain = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    fused = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def iteration(optimizer: Any = plain, times: int = 1) -> None:
        optimizer.zero_grad()
        for _ in range(times):
            loss().backward()
        optimizer.step()

    _timed(iteration, 30)
    before = _timed(iteration, 20)
    with tempfile.TemporaryDirectory() as folder:
        recording = daydream.collect(Path(folder) / "t.parquet", steps=CAPTURED)
        with recording:
            while recording.trace is None:
                iteration()
    after = _timed(iteration, 20)
    trace = recording.trace
    replay = daydream.replay(trace)
    truth = replay.basis_measured_ns or 1
    measured = [step.measured_ns for step in replay.steps]
    controls = [before / after]
    result = {
        "unprofiled_ns": truth,
        "profiled_ns": replay.measured_ns,
        "plain": replay.replayed_ns / truth - 1,
        "corrected": replay.basis_error,
        "controls": controls,
        "timed": truth / after,
        "spread": sorted(measured)[-2] / sorted(measured)[1],
        "cost": {
            key: value for key, value in trace.metadata["profiler_cost"].items()
            if key not in ("heads", "versions")
        },
        "overhead_scale": overhead_scale(trace, cost_of_recording(trace) or {}),
        "rows": len(trace) // len(trace.metadata["steps"]),
    }  # fmt: skip
    quiet = all(abs(one - 1) <= CONTROL for one in controls) and result["spread"] <= SPREAD
    quiet = quiet and replay.basis == "unprofiled"  # a profiler only makes steps longer
    if name in WHAT_IFS:
        ways: dict[str, Callable[[], None]] = {
            "base": iteration,
            "again": iteration,
            "fused": lambda: iteration(fused),
            "accumulate": lambda: iteration(plain, 2),
        }
        for way in ways.values():
            _timed(way, 5)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(BLOCKS):
            for way in list(ways)[:: 1 if number % 2 else -1]:
                times[way].append(_timed(ways[way], BLOCK_STEPS))
        ratio = {way: median(a / b for a, b in zip(times[way], times["base"], strict=True)) for way in ways}
        edits: dict[str, Any] = {"fused": "fused-adam", "accumulate": _accumulate}
        result["whatifs"] = {
            way: _judged(daydream.whatif(replay, edit), ratio[way]) for way, edit in edits.items()
        }
        result["whatif_control"] = ratio["again"]
        quiet = quiet and abs(ratio["again"] - 1) <= CONTROL
    return {**result, "quiet": quiet}


def _judged(comparison: Any, ratio: float) -> dict[str, float]:
    predicted = comparison.predicted_ns / comparison.replayed_ns
    recorded = comparison.recorded
    return {
        "measured": ratio,
        "predicted": predicted,
        "plain": predicted if recorded is None else recorded.ratio,
        "error": predicted / ratio - 1,
    }


def _timed(function: Callable[[], None], steps: int) -> float:
    """Return the median time of a step in ns, the first one left out."""
    times = []
    for _ in range(steps + 1):
        begin = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - begin)
    return median(times[1:])


def _accumulate(graph: Any) -> None:
    """Two passes over the model for one update."""
    graph.select(phase=("forward", "loss", "backward")).scale(2, gaps=True)


# The page ----------------------------------------------------------------------------------------


def _page(found: dict[str, list[dict[str, Any]]], left_out: dict[str, int], repeats: int) -> Iterator[str]:
    yield (
        f"Made by `python benchmarks/unprofiled.py`: the median of {repeats} recordings, each a process of its "  # noqa: E501 - a row of a table, or a sentence
        "own, with the least and the most in brackets. Errors are of the step time against what the same "
        "process measured without a profiler; the correction does not know that time."
    )
    yield ""
    yield "| model | rows a step | unprofiled, ms | profiled / unprofiled | plain replay | corrected | timed by `collect` / after it | A/A control | left out |"  # noqa: E501 - a row of a table, or a sentence
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, all_of in found.items():
        if all_of:
            controls = [{"control": value} for one in all_of for value in one["controls"]]
            yield (
                f"| {name} | {median(one['rows'] for one in all_of):,.0f} "
                f"| {median(one['unprofiled_ns'] for one in all_of) / 1e6:.2f} "
                f"| {median(one['profiled_ns'] / one['unprofiled_ns'] for one in all_of):.2f} "
                f"| {_errors(all_of, 'plain')} | {_errors(all_of, 'corrected')} "
                f"| {_ratios(all_of, 'timed')} | {_ratios(controls, 'control')} | {left_out[name]} |"
            )
        else:
            yield f"| {name} | no recording on a quiet machine in {left_out[name]} |"
    yield ""
    yield (
        "What-ifs, as ratios of the step to the unchanged one: measured without a profiler in blocks that take "  # noqa: E501 - a row of a table, or a sentence
        "turns, *predicted* of the step that was timed without one, and of the step as recorded."
    )
    yield ""
    yield "| model | change | measured | predicted | its error | from the plain replay | A/A control |"
    yield "|---|---|---|---|---|---|---|"
    titles = {"fused": "Adam foreach=False -> fused=True", "accumulate": "accumulate 2 passes"}
    for name, all_of in found.items():
        for way, title in titles.items():
            judged = [one["whatifs"][way] for one in all_of if "whatifs" in one]
            if judged:
                yield (
                    f"| {name} | {title} | {_ratios(judged, 'measured')} | {_ratios(judged, 'predicted')} "
                    f"| {_errors(judged, 'error')} | {_ratios(judged, 'plain')} "
                    f"| {_ratios(all_of, 'whatif_control')} |"
                )


def _errors(rows: list[dict[str, Any]], key: str) -> str:
    values = [one[key] for one in rows]
    return f"{median(values):+.1%} ({min(values):+.1%} .. {max(values):+.1%})"


def _ratios(rows: list[dict[str, Any]], key: str) -> str:
    values = [one[key] for one in rows]
    return f"{median(values):.3f} ({min(values):.3f} .. {max(values):.3f})"


def _short(one: dict[str, Any]) -> str:
    whatifs = {way: f"{judged['error']:+.1%}" for way, judged in one.get("whatifs", {}).items()}
    return (
        f"unprofiled {one['unprofiled_ns'] / 1e6:.2f} ms, plain {one['plain']:+.1%}, "
        f"corrected {one['corrected']:+.1%}, controls {[round(c, 3) for c in one['controls']]}, "
        f"spread {one['spread']:.2f}, {one['cost']}, {one['overhead_scale']}, {whatifs}"
    )


if __name__ == "__main__":
    main()
