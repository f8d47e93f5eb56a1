"""Changes of one's own, by tool or by hand: predicted from steps before them, made, measured.

    python validation/own_changes.py --measure                   run all of it: a quarter of an hour at rest
    python validation/own_changes.py                             the table on stdout
    python validation/own_changes.py --write docs/evaluation

What new code costs is taken from `daydream calibrate --tool`, in a run of its own of a model of
`CALIBRATED` layers; the prediction is for the run of a deeper one, from its steps before the change.
Blocks of steps are told by the CPU time of the process, so that other programs count less.
`found.json` beside the changes keeps what was found, a row for each run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tables

HERE = Path(__file__).parent / "own_changes"
ROOT = HERE.parents[1]
MEASURED = HERE / "found.json"
CHANGES = (
    "relu_for_gelu", "pruned_linear", "fake_quantized", "rematerialized_blocks", "activation_statistic",
)  # fmt: skip
BY_HAND = ("rematerialized_blocks",)
MODELS = {"train_gpt": ROOT / "examples" / "train_gpt.py", "written-out GPT": HERE / "train.py"}
DEVELOPED = "train_gpt"  # the rules were made while looking at it; the other model judges them
CALIBRATED, CONFIRMED, STEPS = 2, 4, 300
RECORDED = "4"  # steps: on a busy machine few tell little
BLOCKS = ("--rounds", "5", "--block-steps", "2")
BUSY = 2.0  # processes that run or wait, the measured one among them
RESTLESS = 0.05  # an A/A control further from 1: the machine did not hold still
KEPT = ("predicted_speedup", "confirmed_speedup", "error", "control", "replay_error", "baseline_ns")
HEADER = """| machine | model | change | predicted | measured | error of the step | step against itself |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Measure, or tell what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--only", help="a change, by its file's name")
    parser.add_argument("--model", choices=list(MODELS))
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.measure:
        for model in [options.model] if options.model else MODELS:
            for change in [options.only] if options.only else CHANGES:
                keep(model, change, measure(MODELS[model], change))
    tables.keep(options.write, "own changes", table(json.loads(MEASURED.read_text())))


def measure(script: Path, change: str) -> dict[str, Any]:
    """Return what `confirm` says of a change; with times in place where its code is new."""
    file = HERE / f"{change}.py"
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.parquet"
        words: list[str] = []
        if change not in BY_HAND:
            daydream("calibrate", "--tool", str(file), "-o", str(times), "--steps", RECORDED, str(script),
                     "--layers", str(CALIBRATED), "--steps", str(STEPS))  # fmt: skip
            words = ["--table", str(times)]
        found = json.loads(
            daydream("confirm", str(file), "--json", "--stop-after", "--cpu-time", "--steps", RECORDED, *BLOCKS, *words,
                     str(script), "--layers", str(CONFIRMED), "--steps", str(STEPS))
        )  # fmt: skip
    return {name: found[name] for name in KEPT}


def daydream(*words: str) -> str:
    """Return what a command prints; its progress is shown."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DAYDREAM_CACHE": "off"}
    command = [sys.executable, "-m", "daydream", *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout


def keep(model: str, change: str, found: dict[str, Any]) -> None:
    """Put a run into the file, behind earlier ones of the same change: what missed stays."""
    known = json.loads(MEASURED.read_text()) if MEASURED.exists() else []
    rows = [*known, {"model": model, "change": change, **found, "at_rest": os.getloadavg()[1] < BUSY}]
    rows.sort(
        key=lambda row: (not row["at_rest"], list(MODELS).index(row["model"]), CHANGES.index(row["change"]))
    )
    MEASURED.write_text(json.dumps(rows, indent=1) + "\n")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    lines = [HEADER]
    for row in rows:
        restless = abs(row["control"] - 1) > RESTLESS
        lines.append(
            f"| {'at rest' if row['at_rest'] else 'busy'} "
            f"| {row['model']}{' (developed on)' if row['model'] == DEVELOPED else ''} "
            f"| `{row['change']}` | {row['predicted_speedup']:.2f}x | {row['confirmed_speedup']:.2f}x "
            f"| {row['error']:+.1%} | {row['control'] - 1:+.1%}{', restless' if restless else ''} |"
        )
    return lines


if __name__ == "__main__":
    main()
