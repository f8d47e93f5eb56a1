"""Real changes on a CPU, measured beside the trace they are to be predicted from.

    python benchmarks/before_after.py -o validation/cpu      about a quarter of an hour; alone on the machine

Small models train on one CPU thread. A recording is a process of its own: the step is recorded as
`daydream collect` does and the trace is saved, then every change is made for real. Blocks of all
variants take turns, every other round backwards; a ratio is the median over rounds of variant over
unchanged. `again` is the unchanged step once more (A/A): a recording where it is further
than 5 % from 1 is left out and made again. Nothing is predicted here: `python validation/ledger.py`
does that from the traces alone, again whenever daydream changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

REPEATS, MOST_TRIES = 3, 10
ROUNDS, BLOCK_STEPS, BLOCK_NS = 11, 5, 120e6  # a block has so many steps at least, and takes so long
CAPTURED = 5
CONTROL = 0.05
MODELS = ("GPT-64", "GPT-256", "MLP", "LSTM", "CNN")
WIDTHS = {"GPT-64": (64, 4, 16, 2), "GPT-256": (256, 4, 64, 4)}  # width, heads, context, batch
EVERYWHERE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # title: the optimization, its options, and what `_step` is given to make the change
    "Adam foreach=False to fused=True": ("fused-adam", {}, {"foreach": None, "fused": True}),
    "Adam foreach=False to True": ("foreach-optimizer", {}, {"foreach": True}),
    "accumulate 2 batches": ("gradient-accumulation", {"steps": 2}, {"batches": 2}),
    "accumulate 4 batches": ("gradient-accumulation", {"steps": 4}, {"batches": 4}),
    "batch x 2": ("batch-size", {"factor": 2.0}, {"batch": 2.0}),
    "batch x 1/2": ("batch-size", {"factor": 0.5}, {"batch": 0.5}),
}
OF_BLOCKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "layers 4 to 2": ("remove-layers", {"layers": "blocks.[23]*"}, {"layers": 2}),
    "layers 4 to 8": ("add-layers", {"layers": "blocks.*", "count": 4}, {"layers": 8}),
    "checkpoint every block": ("checkpointing", {"layers": "blocks.*"}, {"checkpointed": True}),
}


def changes(model: str) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the changes that exist for a model."""
    return {**EVERYWHERE, **(OF_BLOCKS if model in WIDTHS else {})}


def main() -> None:
    """Record, change, measure; write the traces and one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="recordings of each model that count")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_recording(options.one, options.output)))
        return
    options.output.mkdir(exist_ok=True, parents=True)
    page = options.output / "measured.json"
    document = json.loads(page.read_text()) if page.exists() else {"recordings": {}}
    names = options.models or list(MODELS)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    left_out = dict.fromkeys(names, 0)
    for name in names * MOST_TRIES:  # models take turns
        if len(found[name]) < options.repeats:
            trace = options.output / f"{name}-{len(found[name]) + 1}.parquet"
            one = _in_process(name, trace)
            quiet = abs(one["control"] - 1) <= CONTROL
            if quiet:
                found[name].append({"trace": trace.name, **one})
            else:
                left_out[name] += 1
                trace.unlink()
            ratios = {title: change["measured"] for title, change in one["changes"].items()}
            said = "ok" if quiet else "restless"
            print(name, said, one["step_ms"], one["control"], ratios, file=sys.stderr)
    document["machine"] = _machine()
    document["recordings"].update(found)
    document["left_out"] = {**document.get("left_out", {}), **left_out}
    page.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _in_process(name: str, trace: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, "-o", str(trace)],
        stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step; return the measured ratio of each change."""
    import torch

    import daydream

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    base = _step(name)
    for _ in range(10):
        base()
    recording = daydream.collect(path, steps=CAPTURED, force=True)
    with recording:
        while recording.trace is None:
            base()

    made = changes(name)
    changed = {title: _step(name, **real) for title, (_, _, real) in made.items()}
    steps = {"base": base, "again": base, **changed}
    for step in steps.values():
        for _ in range(3):
            step()
    block = max(BLOCK_STEPS, round(BLOCK_NS / _timed(base, BLOCK_STEPS)))
    times: dict[str, list[float]] = {title: [] for title in steps}
    for number in range(ROUNDS):
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
            for title, (optimization, options, _) in made.items()
        },
    }  # fmt: skip


def _step(
    name: str, *, layers: int = 4, batch: float = 1.0, batches: int = 1, checkpointed: bool = False,
    **adam: Any,
) -> Callable[[], None]:  # fmt: skip
    """Return a training step of a model of its own."""
    import torch

    model, loss = _gpt(name, layers, batch) if name in WIDTHS else _small(name, batch)
    if checkpointed:
        _checkpoint(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **{"foreach": False, **adam})

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(batches):
            loss().backward()
        optimizer.step()

    return step


def _gpt(name: str, layers: int, batch: float) -> tuple[Any, Callable[[], Any]]:
    import torch
    from small_models import GPT, WORDS
    from torch.nn import functional

    width, heads, context, rows = WIDTHS[name]
    rows = round(rows * batch)
    model = GPT(layers=layers, width=width, heads=heads, context=context)
    x, y = torch.randint(WORDS, (rows, context)), torch.randint(WORDS, (rows * context,))
    return model, lambda: functional.cross_entropy(model(x).flatten(0, 1), y)


def _small(name: str, batch: float) -> tuple[Any, Callable[[], Any]]:
    """Return the MLP, LSTM or CNN of `small_models`."""
    import torch
    from small_models import WORDS, cnn, lstm, mlp
    from torch.nn import functional

    model, _ = {"MLP": mlp, "LSTM": lstm, "CNN": cnn}[name]()
    if name == "LSTM":
        rows = round(4 * batch)
        x, y = torch.randint(WORDS, (rows, 16)), torch.randint(WORDS, (rows * 16,))
        return model, lambda: functional.cross_entropy(model(x).flatten(0, 1), y)
    rows = round({"MLP": 16, "CNN": 4}[name] * batch)
    x = torch.randn(rows, *((64,) if name == "MLP" else (3, 16, 16)))
    y = torch.randint(10, (rows,))
    return model, lambda: functional.cross_entropy(model(x), y)


def _checkpoint(model: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    for block in model.blocks:
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)


def _timed(step: Callable[[], None], block: int) -> float:
    """Return the median time of a step in ns, over a block behind one that warms up."""
    times = []
    for _ in range(block + 1):
        begin = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - begin)
    return median(times[1:])


def _machine() -> str:
    import torch

    return f"{platform.machine()}, one thread, Python {platform.python_version()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
