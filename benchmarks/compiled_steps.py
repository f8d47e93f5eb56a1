"""`torch.compile` on a CPU, measured by phase beside the uncompiled trace that it is to be predicted from.

    python benchmarks/compiled_steps.py -o validation/compiled      half an hour; quieter is better

The method is that of `recordings.py`, but times are CPU time of the process, which one thread spends: so
others on the machine do the least harm. A step is timed in three parts: forward with the loss, backward,
and the optimizer with `zero_grad`. What `compile` predicts from the trace is stored before anything is
measured; `validation/ledger.py` predicts it again. Takes g++, and up to a minute a model for compiling.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import Any

from recordings import main, record

ROUNDS, BLOCK_NS = 15, 150e6
PHASES = ("forward", "backward", "optimizer")
Setup = tuple[Any, Callable[[], Any]]


def _gpt(layers: int, width: int, context: int, batch: int) -> Setup:
    import torch
    from small_models import GPT, WORDS
    from torch.nn import functional

    model = GPT(layers=layers, width=width, heads=4, context=context)
    x, y = torch.randint(WORDS, (batch, context)), torch.randint(WORDS, (batch * context,))
    return model, lambda: functional.cross_entropy(model(x).flatten(0, 1), y)


def _small(name: str, **sizes: int) -> Setup:
    import small_models

    model, loss = getattr(small_models, name)(**sizes)
    return model, loss


# Each is made anew for each variant; the number is that of the graph breaks in a forward call. The last five
# judged up to November 2026, when their misses, too, showed that compiled calls cost more on colder caches.
MODELS: dict[str, tuple[Callable[[], Setup], int]] = {
    "MLP": (partial(_small, "mlp"), 0),
    "GPT": (partial(_gpt, 4, 64, 16, 2), 0),
    "CNN": (partial(_small, "cnn"), 0),
    "TransformerEncoder": (partial(_small, "encoder"), 0),
    "MLP-breaks": (partial(_small, "broken"), 3),
    "MLP-256": (partial(_small, "mlp", width=256, batch=64), 0),
    "GPT-128": (partial(_gpt, 3, 128, 32, 4), 0),
    "CNN-24": (partial(_small, "cnn", width=24, image=24), 0),
    "TransformerEncoder-96": (partial(_small, "encoder", width=96, tokens=24), 0),
    "MLP-128-breaks": (partial(_small, "broken", width=128, batch=32), 3),
}
# No rule was looked at with these: they judge.
JUDGES: dict[str, tuple[Callable[[], Setup], int]] = {
    "MLP-160": (partial(_small, "mlp", width=160, batch=40), 0),
    "GPT-96": (partial(_gpt, 2, 96, 24, 6), 0),
    "CNN-32": (partial(_small, "cnn", width=32, image=12), 0),
    "TransformerEncoder-48": (partial(_small, "encoder", width=48, tokens=40), 0),
    "MLP-192-breaks": (partial(_small, "broken", width=192, batch=24), 3),
}


@dataclass(frozen=True)
class Parts:
    """A training step in its three parts."""

    loss: Callable[[], Any]
    optimizer: Any

    def __call__(self) -> tuple[int, int, int]:
        """Run a step; return the CPU time of each part, ns."""
        begin = process_time_ns()
        loss = self.loss()
        forward = process_time_ns()
        loss.backward()
        backward = process_time_ns()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return forward - begin, backward - forward, process_time_ns() - backward


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step; return its prediction, and the measured ratio of the compiled step."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    breaks = {**MODELS, **JUDGES}[name][1]
    options = {"graph_breaks": breaks} if breaks else {}
    base = _parts(name, compiled=False)
    unprofiled_ms = record(base, path)
    stored = _predicted(path, options)
    variants = {"base": base, "again": base, "compiled": _parts(name, compiled=True)}
    times = _in_turns(variants)
    unchanged, compiled = times["base"], times["compiled"]
    wholes = {title: [sum(each) for each in them] for title, them in times.items()}
    change = {
        "optimization": "compile", "options": options,
        "measured": round(_ratio(wholes["compiled"], wholes["base"]), 4),
        "phases": {
            phase: round(_ratio([each[at] for each in compiled], [each[at] for each in unchanged]), 4)
            for at, phase in enumerate(PHASES)
        },
        "stored": stored,
    }  # fmt: skip
    step_ms = median(wholes["base"]) / 1e6
    return {
        "step_ms": round(step_ms, 3),
        "control": round(_ratio(wholes["again"], wholes["base"]), 4),
        "speed": round(unprofiled_ms / step_ms, 4),
        "load": round(os.getloadavg()[0], 1),
        "judges": name in JUDGES,
        "changes": {"torch.compile": change},
    }


def _ratio(after: list[int], before: list[int]) -> float:
    return median(a / b for a, b in zip(after, before, strict=True))


def _in_turns(variants: dict[str, Parts]) -> dict[str, list[tuple[int, int, int]]]:
    """Return the median CPU time of each part, of each round and variant, ns; blocks take turns."""
    for step in variants.values():
        for _ in range(10):
            step()
    block = max(8, round(BLOCK_NS / sum(variants["base"]())))
    times: dict[str, list[tuple[int, int, int]]] = {title: [] for title in variants}
    for number in range(ROUNDS):
        for title in list(variants)[:: 1 if number % 2 else -1]:
            steps = [variants[title]() for _ in range(block)]
            times[title].append(tuple(int(median(part)) for part in zip(*steps[1:], strict=True)))  # type: ignore[arg-type]
    return times


def _predicted(trace: Path, options: dict[str, Any]) -> dict[str, float]:
    """Return the ratios that `compile` predicts, of the step and of each phase."""
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "validation"))
    from ledger import predicted_ratios

    import daydream

    found = predicted_ratios(daydream.whatif(daydream.replay(trace), "compile", **options))
    return {phase: round(ratio, 4) for phase, ratio in found.items()}


def _parts(name: str, *, compiled: bool) -> Parts:
    """Return a training step of a model of its own."""
    import torch

    torch.manual_seed(0)
    model, loss = {**MODELS, **JUDGES}[name][0]()
    if compiled:
        model.forward = torch.compile(model.forward)  # its backward pass with it; neither loss nor optimizer
    return Parts(loss, torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False))


if __name__ == "__main__":
    main(__doc__, __file__, (*MODELS, *JUDGES), recording)
