"""Real changes on GPUs and the peak memory each gave: an H200's from one script, an H100's from another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_recordings import CHANGES

HERE = Path(__file__).parent
DEVELOPED, JUDGED = "development", "judgement"
FOUND_HERE = {"convnext"}  # of the H100: what a factor of 32 bits does to the types behind it was seen there


@dataclass(frozen=True)
class Measured:
    """One change of one model: the trace before it, the question, peaks in bytes."""

    model: str
    title: str
    role: str
    trace: Path
    optimization: str
    options: dict[str, Any]
    before: int
    after: int


def measured() -> Iterator[Measured]:
    """Yield every change whose peak was measured, but for graphs whose replays allocate nothing."""
    folder = HERE / "h200" / "after"
    for model, peaks in json.loads((folder / "steps.json").read_text(encoding="utf-8")).items():
        for variant, (title, name, options) in CHANGES.items():
            if variant in peaks:
                before, after = (peaks[each]["peak_allocated_bytes"] for each in ("base", variant))
                trace = folder / f"{model}-base_memory.parquet"
                yield Measured(f"H200 {model}", title, DEVELOPED, trace, name, options, before, after)
    folder = HERE / "h100"
    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    for model, recordings in {**document["recordings"], **document["unsteady"]}.items():
        role = DEVELOPED if model in FOUND_HERE else JUDGED
        for one in recordings:
            for title, change in one["changes"].items():
                if "peak_bytes" in change and change["optimization"] != "cuda-graphs":
                    yield Measured(
                        f"H100 {model}", title, role, folder / one["trace"], change["optimization"],
                        change["options"], one["peak_bytes"], change["peak_bytes"],
                    )  # fmt: skip
