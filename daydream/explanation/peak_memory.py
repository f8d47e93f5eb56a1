"""Peak memory of the step that is explained: whether it fits, who holds it, what would make it smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daydream.errors import DaydreamError
from daydream.explanation.asking import WhatIfResult, WhatIfRunner
from daydream.memory.prediction import MemoryPrediction, changed, worst_device
from daydream.memory.report import at_peak
from daydream.memory.result import DeviceMemory
from daydream.predict.memory import MemoryAnswer, answer_of, held_now
from daydream.transforms.registry import find
from daydream.transforms.stages import NEEDS

MOST_ASKED = 4  # what-ifs, of the largest holders first: each is simulated
ANY = ("batch-size", "vdnn")  # asked behind those: they need no layers
OPTIONS: dict[str, dict[str, Any]] = {"batch-size": {"factor": 0.5}}  # of what has no default


@dataclass(frozen=True)
class SmallerPeak:
    """A what-if that makes the peak smaller, and the peak then."""

    answer: WhatIfResult
    memory: MemoryPrediction

    @property
    def needs(self) -> str | None:
        """What it takes besides code, as `rank` says it: other work, more GPUs; None if nothing."""
        return NEEDS.get(find(self.answer.name.rsplit("+", 1)[-1]).stage)

    def to_json(self) -> dict[str, Any]:
        """Return an entry of `memory.whatifs` of `explain --json`."""
        then = {"after_bytes": self.memory.after_bytes, "fits": self.memory.fits}
        return {**self.answer.to_json(), **then}


@dataclass(frozen=True)
class PeakMemory:
    """The peak of a step: on the device that comes out worst.

    Attributes:
        told: the peak as it was recorded, and after the change that is explained; in bytes.
        device: when it is, and who holds it.
        smaller: what would make it smaller, the best first; asked only where it may not fit.
    """

    told: MemoryPrediction
    device: DeviceMemory
    smaller: tuple[SmallerPeak, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object `memory` of `explain --json`."""
        return {
            **self.told.to_json(),
            "peak_step": self.device.peak_step,
            "peak_phase": self.device.peak_phase,
            "peak_layer": self.device.peak_layer,
            "by_kind": dict(self.device.by_kind),
            "whatifs": [each.to_json() for each in self.smaller],
        }


def peak_memory(runner: WhatIfRunner, capacity: int | None) -> tuple[PeakMemory | None, str | None]:
    """Return the peak of the step that is explained; None without it, and in a clause why it is not known.

    Args:
        runner: asks what would make it smaller, on top of the change that is explained.
        capacity: what the device has, in bytes; by default what the trace says of it.
    """
    graph, after = runner.replay.graph, runner.after
    changes = after.memory_changes() if after is not None and after.memory_changes is not None else []
    answer: MemoryAnswer = answer_of(graph, changes, capacity)
    if answer.memory is None or graph.trace is None:
        return None, answer.unsaid
    held = held_now(graph.trace, graph)
    held = changed(held, changes) if changes else held
    found = at_peak(held, *worst_device(held))
    limited = answer.memory.capacity_bytes is not None and not answer.memory.fits
    names = [*(each.whatif for each in found.holders if each.whatif is not None), *ANY] if limited else []
    return PeakMemory(answer.memory, found, _smaller(runner, names, answer.memory)), None


def _smaller(runner: WhatIfRunner, names: Sequence[str], now: MemoryPrediction) -> tuple[SmallerPeak, ...]:
    """Return which of some what-ifs make the peak smaller: what fits first."""
    found = []
    for name in list(dict.fromkeys(names))[:MOST_ASKED]:
        options = OPTIONS.get(name, {})
        try:
            prediction = runner.predicted(name, **options)
        except DaydreamError:
            continue  # it does not apply
        changes = prediction.memory_changes() if prediction.memory_changes is not None else []
        memory = answer_of(runner.replay.graph, changes, now.capacity_bytes).memory
        if memory is not None and memory.after_bytes < now.after_bytes:
            found.append(SmallerPeak(runner.answer(name, options, prediction), memory))
    return tuple(sorted(found, key=_preference))


def _preference(each: SmallerPeak) -> tuple[Any, ...]:
    if not each.memory.fits:
        return 1, each.memory.after_bytes
    return 0, each.needs is not None, each.answer.predicted_ns or 0
