"""Difference: the steps of two recordings, or of a prediction and of what came of it, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.display import NotebookFigure, as_json
from daydream.explanation.parts import parts_json, parts_of, parts_of_change
from daydream.graph.query.device import device_work as on_device
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay, Source, as_replay
from daydream.predict.work_of_steps import (
    Change,
    cpu_work,
    device_work,
    layer_changes,
    name_changes,
    operator_changes,
)

if TYPE_CHECKING:
    import pandas as pd

    from daydream.graph.graph import Graph

DOUBTFUL = 0.03  # a replay that is further off than this tells little about where the time went
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


@dataclass(frozen=True, repr=False)
class Difference(NotebookFigure):
    """What is different between two steps, and what is not; of each part the largest change comes first.

    `layers`, `operators` (each in its layer) and `kernels` hold the work of the GPU, or of the CPU
    where a side has no GPU; `cpu` holds the CPU work by operator where both have one. Counts and
    times are per step, means over the covered ones. Work that runs side by side adds up to more
    than a step.

    Example::

        prediction = daydream.whatif("examples/mlp_cpu.json.gz", "fused-adam")
        found = daydream.compare(prediction, "examples/mlp_cpu.json.gz")
        print(found.error)  # of the predicted step: 0.02 is 2 % too long
        for change in found.operators[:3]:
            print(change.before, change.before_ns, change.after_ns)

    """

    before: Side
    after: Side
    layers: tuple[Change, ...]
    operators: tuple[Change, ...]
    kernels: tuple[Change, ...]
    cpu: tuple[Change, ...]
    started_from_ns: int | None = None  #: of a prediction, the measured step it was made from

    def __repr__(self) -> str:
        steps = f"{self.before.step_ns / 1e6:,.3f} ms, {self.after.step_ns / 1e6:,.3f} ms"
        return f"<Difference {self.before.name}, {self.after.name}: {steps}, {self.speedup:.2f}x>"

    @property
    def change_ns(self) -> int:
        """How much longer the step takes after."""
        return self.after.step_ns - self.before.step_ns

    @property
    def speedup(self) -> float:
        """Return before / after; infinite if nothing is left of the step."""
        return self.before.step_ns / self.after.step_ns if self.after.step_ns else float("inf")

    @property
    def error(self) -> float | None:
        """Relative error of the prediction, signed; None between two recordings, or without a prediction."""
        return self.speedup - 1 if self.before.prediction and not self.before.reason else None

    @property
    def clear(self) -> bool:
        """Whether the steps of one side are shorter than those of the other, a few of them aside."""
        one, two = self.before, self.after
        return bool(one.reason) or one.high_ns < two.low_ns or two.high_ns < one.low_ns

    @property
    def new(self) -> list[Change]:
        """Kernels that only the step after has, those that take longest first."""
        return sorted((each for each in self.kernels if each.state == "new"), key=lambda each: -each.after_ns)

    @property
    def vanished(self) -> list[Change]:
        """Kernels that only the step before has, those that take longest first."""
        gone = (each for each in self.kernels if each.state == "vanished")
        return sorted(gone, key=lambda each: -each.before_ns)

    def notes(self) -> list[str]:
        """Return what else is different, and what a reader should know before trusting the figures."""
        said = [*self.before.notes, *_other_differences(self.before, self.after)]
        if self.before.reason:
            said.insert(
                0, f"The step cannot be predicted from the trace before, because {self.before.reason}."
            )
        if not self.clear:
            said.append("The step times of the two overlap: the change may be noise.")
        sides = (self.before, self.after)
        said += [
            f"A step of {side.name} replays {side.replay_error:.1%} off: where its time goes is uncertain."
            for side in sides
            if side.replay_error > DOUBTFUL
        ]
        alone = [side.name for side in sides if side.steps == 1]
        if alone:
            verb = "cover" if len(alone) > 1 else "covers"
            said.append(f"{' and '.join(alone)} {verb} a single step: how steps vary is not known.")
        return said

    def to_json(self) -> dict[str, Any]:
        """Return the object that `compare --json` prints."""
        keys = "before after change_ns speedup error started_from_ns layers operators kernels cpu"
        return as_json(self, keys) | {"notes": self.notes()}

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each phase, cause, layer, operator and kernel: counts and ns, before and after."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for part in ("by_phase", "by_cause"):
            old, new = self.before.breakdown[part], self.after.breakdown[part]
            rows += [
                {"part": part.removeprefix("by_"), "name": name, "before_ns": old.get(name, 0),
                 "after_ns": new.get(name, 0), "change_ns": new.get(name, 0) - old.get(name, 0)}
                for name in {**old, **new}
            ]  # fmt: skip
        for part in ("layers", "operators", "kernels", "cpu"):
            for change in getattr(self, part):
                fields = change.to_json()
                names = fields.pop("before"), fields.pop("after")
                rows.append({"part": part.removesuffix("s"), "name": _named(*names), **fields})
        columns = [
            "part", "name", "layer", "operator", "state", "before_count", "after_count", "before_ns",
            "after_ns", "change_ns",
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=columns)


def compare(
    before: Source | Replay | Prediction,
    after: Source | Replay,
    *,
    names: tuple[str, str] | None = None,
) -> Difference:
    """Return what is different between the steps of two traces, or of a prediction and a trace.

    A `Prediction` (of `whatif`) as `before` stands for the predicted step, which is compared with the
    one that was recorded after the change was made. `names` are what the two are called; the names
    of their files by default.

    Returns:
        A `Difference`: both steps in ns, means over the covered steps, and the changes of layers,
        operators and kernels, the largest first.

    Raises:
        TraceError: a trace cannot be read.
        GraphError: a trace covers no step.

    """
    start = before.measured_ns if isinstance(before, Prediction) else None
    found = before if isinstance(before, Prediction) else as_replay(before)
    other = as_replay(after)
    graph = found.graph
    shared = _ranks(graph) & _ranks(other.graph)
    one = _predicted(found) if isinstance(found, Prediction) else _recorded(found, shared)
    two = _recorded(other, shared)
    if names is None:
        names = (one.name or "the first trace", two.name or "the second trace")
    if names[0] == names[1]:
        names = (f"{names[0]} (before)", f"{names[1]} (after)")
    one, two = replace(one, name=names[0]), replace(two, name=names[1])
    both = one.on_device and two.on_device
    graphs = one.graph, two.graph
    cpu = [cpu_work(graph) for graph in graphs]
    work = [  # where there is no device, what is no CPU work is collectives on the host
        device_work(side.graph) if side.on_device else {**device_work(side.graph), **own}
        for side, own in zip((one, two), cpu, strict=True)
    ]
    return Difference(
        before=one,
        after=two,
        layers=tuple(layer_changes(*work)),
        operators=tuple(operator_changes(*work)),
        kernels=tuple(name_changes(*work)) if both else (),
        cpu=tuple(operator_changes(*cpu)) if both else (),
        started_from_ns=start,
    )


def _recorded(found: Replay, ranks: AbstractSet[int]) -> Side:
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


def _predicted(comparison: Prediction) -> Side:
    _, after = parts_of_change(comparison)
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
        notes=tuple(note for note in comparison.notes if note not in comparison.replay.notes),
        reason=comparison.reason,
    )


def _ranks(graph: Graph) -> set[int]:
    """Return the ranks that have covered steps."""
    return {_rank(graph, number) for number, step in enumerate(graph.steps) if step.get("covered")}


def _rank(graph: Graph, step: int) -> int:
    return int(graph.steps[step].get("rank", 0))


def _name(graph: Graph) -> str:
    return "" if graph.trace is None else str(graph.trace.metadata.get("source") or "")


def _other_differences(one: Side, two: Side) -> list[str]:
    """Return what is different about the recordings themselves."""
    said = []
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


def _named(before: object, after: object) -> str:
    names = [", ".join(each) for each in (before, after) if isinstance(each, list) and each]
    return " -> ".join(dict.fromkeys(names))
