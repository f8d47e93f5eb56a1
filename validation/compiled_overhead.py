"""What it costs to keep where compiled kernels come from: more time for one compilation, and for each step.

    python validation/compiled_overhead.py [--model MLP] [--rounds 3]

Each compilation is a process of its own with empty caches, with and without provenance, in turn; the process without
it runs twice a round, which shows what differs anyway. Times are CPU time of the process and of the compilers that it
starts. Calls are those of Python functions and built-in ones in a step: a count, which no other program
disturbs. No profiler runs. Needs torch 2.13 and a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
VARIANTS = ("without", "without, again", "with")
BLOCKS, BLOCK_STEPS = 15, 40


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def measure(name: str, *, kept: bool) -> dict[str, float]:
    """Return seconds of CPU time of the first step, which compiles, and of a step afterwards."""
    import torch
    from small_models import MODELS

    if kept:
        from daydream.collect.live.torch_compiler import watch_compiler

        watch_compiler(bool)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loss = MODELS[name]()
    run = torch.compile(model)

    def step() -> None:
        model.zero_grad()
        loss(run).backward()

    began = cpu_seconds()
    step()
    compiling = cpu_seconds() - began
    for _ in range(2 * BLOCK_STEPS):
        step()
    blocks = []
    for _ in range(BLOCKS):
        first = time.process_time()
        for _ in range(BLOCK_STEPS):
            step()
        blocks.append((time.process_time() - first) / BLOCK_STEPS)
    return {"compilation": compiling, "step": min(blocks), "calls": calls_of(step)}


def calls_of(step: Callable[[], object]) -> float:
    """Return how many functions of Python, and built-in ones, a step calls."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return float(calls)


def in_a_process(name: str, variant: str) -> dict[str, float]:
    """Measure in a process of its own, with caches of its own."""
    words = [sys.executable, str(Path(__file__).resolve()), "--model", name, "--measure", variant]
    with tempfile.TemporaryDirectory() as caches:
        more = {"TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = subprocess.run(words, check=True, capture_output=True, env={**os.environ, **more}, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a row for the compilation and one for a step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="MLP")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.model, kept=options.measure == "with")))
        return
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for number in range(options.rounds):
        for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
            found[variant].append(in_a_process(options.model, variant))
    print(f"| {options.model}, CPU time | without | with | more | the same twice |")
    print("|---|---:|---:|---:|---:|")
    for what, scale, unit in (("compilation", 1.0, "s"), ("step", 1e3, "ms"), ("calls", 1.0, "a step")):
        print(
            row(what, {variant: [one[what] for one in found[variant]] for variant in VARIANTS}, scale, unit)
        )


def row(what: str, seconds: dict[str, Any], scale: float, unit: str) -> str:
    """Return a row: medians, and the medians of the ratios within rounds."""
    plain, again, kept = (seconds[variant] for variant in VARIANTS)
    more = median(two / one - 1 for one, two in zip(plain, kept, strict=True))
    same = median(two / one - 1 for one, two in zip(plain, again, strict=True))
    return (
        f"| {what} | {median(plain) * scale:.3f} {unit} | {median(kept) * scale:.3f} {unit} "
        f"| {more:+.1%} | {same:+.1%} |"
    )


if __name__ == "__main__":
    main()
