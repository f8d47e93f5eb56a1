"""A link of any bandwidth on one machine, models whose gradients go over it, and what is predicted of them.

Shared by the scripts that hold `ddp` and `fsdp` against torch's own (`ddp_link.py`, `fsdp_link.py`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from recordings import main

PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"

LINKS = {2.0: 100.0, 0.5: 100.0, 0.1: 1000.0}  # GB/s: latency of a collective in us


class Link:
    """Carries one transfer behind the other, each for a time of its own, and says when it ends."""

    def __init__(self) -> None:
        self.free = 0.0

    def transfer(self, seconds: float, asked: float) -> float:
        """Return when a transfer is over that was asked for then, both by `time.perf_counter`."""
        self.free = max(self.free, asked) + seconds
        return self.free


def wait_until(end: float) -> None:
    """Stand still until then, by `time.perf_counter`.

    Asking the clock all the time: a thread that sleeps wakes late, and what it does then is slower.
    """
    while time.perf_counter() < end:
        pass


def model_of(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return a model of about 14 MB of parameters, and its loss."""
    import torch
    from small_models import GPT, WORDS, Pooled, Residual
    from torch import nn
    from torch.nn import functional

    if name == "GPT":
        tokens, words = torch.randint(WORDS, (4, 64)), torch.randint(WORDS, (4 * 64,))
        model = GPT(layers=4, width=256, heads=4, context=64)
        return model, lambda model: functional.cross_entropy(model(tokens).flatten(0, 1), words)
    if name == "MLP":
        body = [part for _ in range(6) for part in (nn.Linear(768, 768), nn.ReLU())]
        x, y = torch.randn(128, 768), torch.randint(10, (128,))
        mlp = nn.Sequential(*body, nn.Linear(768, 10))
        return mlp, lambda model: functional.cross_entropy(model(x), y)
    images, y = torch.randn(2, 3, 8, 8), torch.randint(10, (2,))
    residual = [nn.Conv2d(3, 128, 3, padding=1), *(Residual(128) for _ in range(12))]
    cnn = nn.Sequential(*residual, Pooled(), nn.Linear(128, 10))
    return cnn, lambda model: functional.cross_entropy(model(images), y)


class Row(NamedTuple):
    """A change of a model's step: the measured and the predicted ratio, a number a recording."""

    measured: tuple[float, ...]
    predicted: tuple[float, ...]

    @property
    def errors(self) -> list[float]:
        """The error of each recording's prediction."""
        return [ratio / was - 1 for ratio, was in zip(self.predicted, self.measured, strict=True)]


def predictions(folder: Path) -> dict[tuple[str, str], Row]:
    """Return, by model and change, what was measured and what is predicted from each recording's trace."""
    import daydream

    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for model, recordings in document["recordings"].items():
        for recording in recordings:
            replay = daydream.replay(folder / recording["trace"])
            for title, change in recording["changes"].items():
                comparison = daydream.whatif(replay, change["optimization"], **change["options"])
                predicted = comparison.simulated_ns / comparison.replayed_ns
                found.setdefault((model, title), []).append((change["measured"], predicted))
    return {where: Row(*zip(*numbers, strict=True)) for where, numbers in found.items()}


def cells(row: Row) -> str:
    """Return the cells of a row: measured, predicted, and the error of the prediction."""
    errors = row.errors
    error = f"{median(errors):+.1%} ({min(errors):+.1%} to {max(errors):+.1%})"
    return f"{median(row.measured):.3f} | {median(row.predicted):.3f} | {error}"


def summary(rows: list[Row]) -> str:
    """Return a sentence on the errors of the predictions."""
    of_rows = [abs(median(row.errors)) for row in rows]
    of_all = [abs(error) for row in rows for error in row.errors]
    return (
        f"Median error of the rows {median(of_rows):.1%}, worst {max(of_rows):.1%}; "
        f"of single recordings {median(of_all):.1%} and {max(of_all):.1%}."
    )


def about(folder: Path, changed: str) -> str:
    """Return on what was recorded, how many recordings count and do not, and what the columns are."""
    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    counts = ", ".join(f"{len(found)} of {model}" for model, found in document["recordings"].items())
    left_out = sum(document["left_out"].values())
    return (
        f"{document['machine']}. Recordings, each in a process of its own: {counts}; {left_out} left out, as "
        "the unchanged step differed from itself by more than 5 %, or by more than 10 % from what it took "
        f"when it was recorded. Steps with {changed} over the step without, medians of the recordings; "
        "errors of the predicted step, least and most in brackets. What is predicted is of steps as "
        "long as the trace timed them without a profiler."
    )


def at_speed(recorded_ms: float, one: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured, with how much faster the unchanged step was when it was recorded.

    A link takes as long however fast the machine is, so its ratio holds at one speed only.
    """
    return {"speed": round(one["step_ms"] / recorded_ms, 4), **one}


def run(
    script: str,
    about_it: str | None,
    models: tuple[str, ...],
    recording: Callable[..., dict[str, Any]],
    page: Callable[[Path], list[str]],
    title: str,
) -> None:
    """Run a script that records over the link, or with `--page FOLDER` only write its section of the page."""
    folder = Path(sys.argv[2]) if sys.argv[1:2] == ["--page"] else main(about_it, script, models, recording)
    if folder is not None:
        sys.path.insert(0, str(PAGE.parents[1] / "validation"))
        from parts_of_pages import put

        put(PAGE, title, page(folder))
