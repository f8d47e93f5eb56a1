"""The step that an answer is about: as a run pays for it, without a profiler where the trace tells that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction


class StepAsRun(NamedTuple):
    """A step before and after a change, as a run pays for it, and its 90 % interval; in ns.

    It is the step without a profiler where the trace knows that one, scaled to the time that was measured, if
    any; else the recorded one, and then `profiled` is true. The interval is None where it was not asked for.
    """

    before_ns: float
    after_ns: float
    low_ns: float | None
    high_ns: float | None
    profiled: bool

    @property
    def saving_ns(self) -> float:
        """How much shorter the step gets; negative if it gets longer."""
        return self.before_ns - self.after_ns

    @property
    def ratio(self) -> float:
        """After / before; 0.0 where the step takes no time."""
        return self.after_ns / self.before_ns if self.before_ns else 0.0

    @property
    def speedup(self) -> float:
        """Before / after, infinite if nothing is left."""
        return self.before_ns / self.after_ns if self.after_ns else float("inf")

    def beside(self, before_ns: float) -> StepAsRun:
        """Return the same change of a step without a profiler that takes so long before it."""
        times = before_ns / self.before_ns if self.before_ns else 1.0
        low, high = (None if end is None else times * end for end in (self.low_ns, self.high_ns))
        return StepAsRun(before_ns, times * self.after_ns, low, high, profiled=False)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> StepAsRun:
        """Return the step that `to_json` gave."""
        return cls(**{name: value for name, value in document.items() if name != "speedup"})

    def to_json(self) -> dict[str, Any]:
        """Return the step as `--json` prints it."""
        names = ("before", "after", "low", "high")
        times = (self.before_ns, self.after_ns, self.low_ns, self.high_ns)
        return {
            **{f"{name}_ns": ns and round(ns) for name, ns in zip(names, times, strict=True)},
            "speedup": self.speedup if self.after_ns else None,
            "profiled": self.profiled,
        }


class Holder(Protocol):
    """An answer that holds such a step, if it has one: a dataclass."""

    @property
    def as_run(self) -> StepAsRun | None:
        """The step of this answer."""


Held = TypeVar("Held", bound=Holder)


def of_one_step(answers: Sequence[Held]) -> list[Held]:
    """Return answers about one trace so that all start from the same step.

    Where what recording typically costs does not count, an answer is of the recorded step.
    """
    steps = [each.as_run for each in answers]
    unprofiled = [step.before_ns for step in steps if step is not None and not step.profiled]
    if not unprofiled:
        return list(answers)
    return [
        each if step is None else replace(each, as_run=step.beside(unprofiled[0]))  # type: ignore[type-var]
        for each, step in zip(answers, steps, strict=True)
    ]


def step_as_run(prediction: Prediction, *, with_range: bool = True) -> StepAsRun:
    """Return the step of a prediction as a run pays for it, before and after the change."""
    known = prediction.as_run
    measured = prediction.replay.unprofiled_measured_ns if known is prediction.anchored else None
    times = measured / known.replayed_ns if measured and known.replayed_ns else 1.0
    after_ns = times * known.simulated_ns
    off = known.uncertainty if with_range else None
    return StepAsRun(
        before_ns=times * known.replayed_ns,
        after_ns=after_ns,
        low_ns=None if off is None else max(after_ns - times * off.shorter_ns, 0.0),
        high_ns=None if off is None else after_ns + times * off.total_ns,
        profiled=known is prediction,
    )
