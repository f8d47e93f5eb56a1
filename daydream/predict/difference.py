"""Difference: the steps of two recordings, or of a prediction and of what came of it, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from daydream.display import NotebookFigure, as_json
from daydream.predict.prediction import Prediction
from daydream.predict.replay import Replay, Source, as_replay
from daydream.predict.sides import Side, other_differences, predicted, ranks_of, recorded
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


DOUBTFUL = 0.03  # a replay that is further off than this tells little about where the time went


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
        said = [*self.before.notes, *other_differences(self.before, self.after)]
        if self.before.reason:
            said.insert(
                0, f"The step cannot be predicted from the trace before, because {self.before.reason}."
            )
        if not self.clear and not self.before.prediction:  # a prediction that holds overlaps what came
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
    shared = ranks_of(graph) & ranks_of(other.graph)
    one = predicted(found) if isinstance(found, Prediction) else recorded(found, shared)
    two = recorded(other, shared)
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


def _named(before: object, after: object) -> str:
    names = [", ".join(each) for each in (before, after) if isinstance(each, list) and each]
    return " -> ".join(dict.fromkeys(names))
