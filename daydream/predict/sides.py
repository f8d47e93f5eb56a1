"""The two sides of a comparison: what was measured, or predicted, and of which recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.explanation.parts import parts_json, parts_of, parts_of_change
from daydream.graph.query.device import device_work as on_device
from daydream.predict.notes import prediction_notes

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay

Breakdown = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Side:
    """One of the two: a recording as it was measured, or what was predicted from one. Times in ns.

    `step_ns` is the mean step; four of five steps lie between `low_ns` and `high_ns` (of a prediction,
    its range). `breakdown` is that of the mean step, as it replays. Where the step after a change cannot be
    predicted, `reason` says why and `step_ns` is what was simulated.
    """

    name: str
    prediction: str  #: what was predicted; empty for a recording
    step_ns: int
    low_ns: int
    high_ns: int
    unprofiled_ns: int | None
    steps: int
    replay_error: float  #: the largest of a step
    breakdown: Breakdown
    graph: Graph
    notes: tuple[str, ...] = ()  #: what the prediction says of itself
    reason: str | None = None  #: why there is no prediction

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the trace says of itself."""
        return {} if self.graph.trace is None else self.graph.trace.metadata

    @property
    def devices(self) -> list[str]:
        """The names of the GPUs that did any work."""
        used = {lane.device for lane in self.graph.lanes if lane.on_device}
        listed = self.metadata.get("devices", [])
        names = [each.get("name") for each in listed if each.get("id") in used]
        return sorted({str(name) for name in names or [each.get("name") for each in listed] if name})

    @property
    def ranks(self) -> int:
        """How many ranks were recorded."""
        return len({step.get("rank", 0) for step in self.graph.steps})

    @cached_property
    def on_device(self) -> bool:
        """Whether any device work was recorded; collectives on CPU threads (gloo) are none."""
        return bool(on_device(self.graph)[self.graph.alive].any())

    def to_json(self) -> dict[str, Any]:
        """Return the side as `compare --json` prints it."""
        return {
            "name": self.name,
            "prediction": self.prediction or None,
            "step_ns": None if self.reason else self.step_ns,
            "low_ns": None if self.reason else self.low_ns,
            "high_ns": None if self.reason else self.high_ns,
            "reason": self.reason,
            "unprofiled_ns": self.unprofiled_ns,
            "steps": self.steps,
            "ranks": self.ranks,
            "devices": self.devices,
            "max_replay_error": self.replay_error,
            **parts_json(self.breakdown),
            "by_cause": self.breakdown["by_cause"],  # until 0.3: now `ns_by_cause`
        }


def recorded(found: Replay, ranks: AbstractSet[int]) -> Side:
    """Return the side of a recording, of its steps of these ranks."""
    times = [step.measured_ns for step in found.steps]
    low, high = np.percentile(times, [10, 90]).tolist()
    return Side(
        name=_name(found.graph),
        prediction="",
        step_ns=found.measured_ns,
        low_ns=round(low),
        high_ns=round(high),
        unprofiled_ns=found.unprofiled_measured_ns,
        steps=len(times),
        replay_error=found.max_error,
        breakdown=parts_of(found.timeline, 0, _steps(found, ranks)),
        graph=found.graph,
    )


def _steps(found: Replay, ranks: AbstractSet[int]) -> list[int]:
    """Return the recorded steps of these ranks: what follows behind is not the question.

    Of no ranks, where two traces have none in common, they are those of all.
    """
    return [step for step in found.settled.first_pass() if not ranks or _rank(found.graph, step) in ranks]


def predicted(comparison: Prediction) -> Side:
    """Return the side of what was predicted."""
    _, after = parts_of_change(comparison)
    notes = prediction_notes(comparison, as_recorded=True)
    return Side(
        name=_name(comparison.replay.graph),
        prediction=comparison.optimization,
        step_ns=comparison.simulated_ns,
        low_ns=comparison.predicted_low_ns or 0,
        high_ns=comparison.predicted_high_ns or 0,
        unprofiled_ns=comparison.unprofiled_anchored_ns,
        steps=len(comparison.replay.steps),
        replay_error=comparison.replay.max_error,
        breakdown=after,
        graph=comparison.graph,
        notes=tuple(note for note in notes if note not in comparison.replay.notes),
        reason=comparison.reason,
    )


def ranks_of(graph: Graph) -> set[int]:
    """Return the ranks that have covered steps."""
    return {_rank(graph, number) for number, step in enumerate(graph.steps) if step.get("covered")}


def _rank(graph: Graph, step: int) -> int:
    return int(graph.steps[step].get("rank", 0))


def _name(graph: Graph) -> str:
    return "" if graph.trace is None else str(graph.trace.metadata.get("source") or "")


def other_differences(one: Side, two: Side) -> list[str]:
    """Return what is different about the recordings themselves, and of which of their steps each is told."""
    runs = ((side.name, side.metadata.get("typical_run")) for side in (one, two))
    said = [f"{name}: {run}" for name, run in runs if run]
    if one.on_device != two.on_device:
        gpu, cpu = (one, two) if one.on_device else (two, one)
        said.append(
            f"The work of {gpu.name} is that of its GPU, of {cpu.name} that of the CPU: it has no other."
        )
    elif one.devices != two.devices:
        said.append(f"The devices differ: {_listed(one.devices)} and {_listed(two.devices)}.")
    for what, values in {
        "number of ranks": (one.ranks, two.ranks),
        "size of the job": tuple(side.metadata.get("world_size") for side in (one, two)),
        "steps are told": tuple(side.metadata.get("step_source") for side in (one, two)),
    }.items():
        if None not in values and values[0] != values[1]:
            verb = "by" if what == "steps are told" else "is"
            said.append(f"The {what} {verb} {values[0]} and {values[1]}.")
    versions = [dict(side.metadata.get("versions") or {}) for side in (one, two)]
    other = [name for name in versions[0] if name in versions[1] and versions[0][name] != versions[1][name]]
    if other:
        told = (f"{name.replace('_', ' ')} {versions[0][name]} and {versions[1][name]}" for name in other)
        said.append(f"Versions differ: {', '.join(told)}.")
    for column, what in (("layer", "layers"), ("op", "operators")):
        known = [bool((side.graph.columns[column][side.graph.alive] >= 0).any()) for side in (one, two)]
        if known[0] != known[1]:
            missing = (two if known[0] else one).name
            said.append(f"Only one of the two knows {what}; {missing} was recorded without them.")
    return said


def _listed(devices: Sequence[str]) -> str:
    return ", ".join(devices) or "an unnamed one"
