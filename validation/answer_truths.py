"""What changes were measured to give: on devices of `validation/`, in public pairs, on the machine model of the tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from answer_changes import Answer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SHARED = ROOT.parent / "shared" / "traces"
# With which the machine runs again.
KNOBS = ("gpu", 0.0), ("gpu", 0.5), ("gpu", 2.0), ("cpu", 0.0), ("cpu", 0.5)
WINDOW = 24, 27  # the steps of it that are recorded


@dataclass(frozen=True)
class Truth:
    """What a change was measured to give: a ratio of the step after to the one before, or the step after in ns."""

    name: str
    options: dict[str, Any]
    ratio: float | None = None
    step_ns: float | None = None

    def off(self, answer: Answer) -> float | None:
        """Return how far an answer is off, as a logarithm; None where it has no prediction."""
        predicted, replayed = answer.get("/predicted_ns"), answer.get("/replayed_ns")
        if not predicted or not replayed:
            return None
        return abs(float(np.log(predicted / self.of(answer)))) if self.of(answer) else None

    def of(self, answer: Answer) -> float:
        """Return the true step after the change, beside an answer's own step before it, in ns."""
        return self.step_ns or (self.ratio or 0.0) * answer["/replayed_ns"]

    def held(self, answer: Answer) -> bool:
        """Whether the interval of an answer holds the truth."""
        return bool(answer["/predicted_low_ns"] <= self.of(answer) <= answer["/predicted_high_ns"])


def machines(cached: Path) -> Iterator[Path]:
    """Yield a recording of each program of the machine model; its truths lie beside it."""
    folder = cached / "machine"
    sys.path.insert(0, str(ROOT / "tests"))
    from machine.blocked import LOADERS
    from machine.harder import HARDER
    from machine.programs import PROGRAMS

    folder.mkdir(parents=True, exist_ok=True)
    for program, make in {**PROGRAMS, **HARDER, **LOADERS}.items():
        path, truth = folder / f"{program}.json.gz", folder / f"{program}.truth"
        if not truth.exists():
            make().run(steps=WINDOW[1] + 2).write(path, *WINDOW)
            again = [[on, factor, make().run(**{on: factor}).steady_step_ns()] for on, factor in KNOBS]
            truth.write_text(json.dumps(again))
        yield path


def known_truths(cached: Path, kept: dict[str, list[list[Any]]]) -> dict[str, list[Truth]]:
    """Return what was measured, by trace: changes made here, public pairs (kept), the machine model."""
    found = {name: [Truth(*each) for each in truths] for name, truths in kept.items()}
    for document in sorted(HERE.glob("*/measured.json")):
        for recordings in json.loads(document.read_text(encoding="utf-8"))["recordings"].values():
            for each in recordings:
                found[f"validation/{document.parent.name}/{each['trace']}"] = [
                    Truth(one["optimization"], one["options"], ratio=one["measured"])
                    for one in each["changes"].values()
                ]
    for path in (cached / "machine").glob("*.truth"):
        runs = json.loads(path.read_text())
        truths = [Truth("scale", {"on": on, "factor": factor}, step_ns=ns) for on, factor, ns in runs]
        found[f"machine/{path.stem}.json.gz"] = truths
    return found


def public_truths() -> dict[str, list[list[Any]]]:
    """Return the steps measured in public recordings after a change, by the recording before it."""
    from evaluate import STEP, of_public

    found: dict[str, list[list[Any]]] = {}
    for case in of_public(SHARED, [STEP]):
        truth = [case.name, case.options, None, case.measured]
        found.setdefault(os.path.relpath(case.trace, ROOT), []).append(truth)
    return found
