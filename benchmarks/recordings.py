"""Measured changes of a training step, each beside the trace that it is to be predicted from.

A recording is a process of its own: a step is recorded as `daydream collect` does and the trace is saved, then every
change is made for real. Blocks of all variants take turns, every other round backwards; a ratio is the median over
rounds of variant over unchanged. `again` is the unchanged step once more (A/A): a recording where it is further than
5% from 1 is left out and made again. So is one whose unchanged step ran at another speed by more than 10% when it was
recorded. malloc is told to keep freed memory: whether glibc hands it back depends on what a process did before, and a
convolutional net's step took 54 ms until the profiler had run in its process, and 45 ms after it. Nothing is predicted
here: `validation/evaluate.py` does that from the traces alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

REPEATS, MOST_TRIES = 3, 10
QUIET = {"control": 0.05, "speed": 0.1}  # how far from 1
CAPTURED = 5
# Bytes: what is mapped on its own (glibc takes no more), kept at the heap's top, and added to it at once.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}

Step = Callable[[], object]
Change = tuple[str, dict[str, Any]]  # the optimization that predicts it, and its options


def main(
    about: str | None, script: str, models: Sequence[str], recording: Callable[..., dict[str, Any]]
) -> None:
    """Run a script that records: write traces and one JSON document, `measured.json`.

    `recording` is given a model's name and where to save its trace; the script runs it in new processes of itself.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="recordings of each model that count")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no recording later than this")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path = options.output
    if options.one:
        print(json.dumps(recording(options.one, folder)))
        return
    folder.mkdir(exist_ok=True, parents=True)
    page = folder / "measured.json"
    document = json.loads(page.read_text()) if page.exists() else {"recordings": {}, "left_out": {}}
    names = options.models or list(models)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    document["left_out"] |= dict.fromkeys(names, 0)
    until = time.monotonic() + 60 * options.minutes
    for name in names * MOST_TRIES:  # models take turns
        if len(found[name]) < options.repeats and time.monotonic() < until:
            trace = folder / f"{name}-{len(found[name]) + 1}.parquet"
            one = _in_process(script, name, trace)
            quiet = all(abs(one.get(what, 1.0) - 1) <= limit for what, limit in QUIET.items())
            if quiet:
                found[name].append({"trace": trace.name, **one})
            else:
                document["left_out"][name] += 1
                trace.unlink()
            print(name, "ok" if quiet else "restless", one, file=sys.stderr, flush=True)
            document["machine"] = _machine()
            document["recordings"] |= {model: kept for model, kept in found.items() if kept}
            page.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def record(base: Step, path: Path, steps: int = CAPTURED) -> float:
    """Save a trace of a step, behind ten that warm up; return the ms that it took without the profiler."""
    import daydream

    for _ in range(10):
        base()
    recording = daydream.collect(path, steps=steps, force=True)
    with recording:
        while recording.trace is None:
            base()
    return median(recording.trace.metadata["unprofiled_step_ns"]) / 1e6


def measured(
    steps: dict[str, Step], made: dict[str, Change], *, rounds: int, block_steps: int, block_ns: float
) -> dict[str, Any]:
    """Return what a document says of a recording: the ratio of each step to `base`, in turns.

    `steps` holds `base`, `again` and a step for each change that was made. A block has `block_steps`
    at least, and as many as fill `block_ns` where the step is short.
    """
    for step in steps.values():
        for _ in range(3):
            step()
    block = max(block_steps, round(block_ns / _timed(steps["base"], block_steps)))
    times: dict[str, list[float]] = {title: [] for title in steps}
    for number in range(rounds):
        for title in list(steps)[:: 1 if number % 2 else -1]:
            times[title].append(_timed(steps[title], block))
    ratio = {
        title: median(a / b for a, b in zip(times[title], times["base"], strict=True)) for title in steps
    }
    return {
        "step_ms": round(median(times["base"]) / 1e6, 3),
        "control": round(ratio["again"], 4),
        "changes": {
            title: {"optimization": optimization, "options": options, "measured": round(ratio[title], 4)}
            for title, (optimization, options) in made.items()
        },
    }


def _in_process(script: str, name: str, trace: Path) -> dict[str, Any]:
    environment = {**os.environ, **KEEP_FREED_MEMORY, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, script, "--one", name, "-o", str(trace)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _timed(step: Step, block: int) -> float:
    """Return the median time of a step in ns, over a block behind one that warms up."""
    times = []
    for _ in range(block + 1):
        begin = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - begin)
    return median(times[1:])


def _machine() -> str:
    import torch

    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    device = f"one {torch.cuda.get_device_name()}" if torch.cuda.is_available() else platform.machine()
    return f"{device}, one thread, {versions}, malloc keeps freed memory"
