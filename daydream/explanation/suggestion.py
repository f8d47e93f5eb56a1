"""What to try next after a change: the one more what-if that saves something, simulated on top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from daydream.errors import DaydreamError
from daydream.predict.notes import prediction_notes, preference
from daydream.predict.prediction import Prediction, predict
from daydream.transforms import stages
from daydream.transforms.code_lines import framework_of
from daydream.transforms.compose import edit_of, parse
from daydream.transforms.registry import Optimization, find

if TYPE_CHECKING:
    from daydream.explanation.asking import WhatIfResult

# How much is simulated for a suggestion, so that an answer does not take noticeably longer for it.
MOST_COSTS, MOST_ASKED, MOST_TASKS = 3, 6, 50_000


class Suggestion(NamedTuple):
    """One more what-if: its name, the options it takes, and what it saves of the step after the change."""

    name: str
    options: Mapping[str, Any]
    step_ns: int  # after the change that was asked about
    predicted_ns: int  # with this one, too
    framework: str | None = None  # of the script, where it is not torch

    @property
    def saving_ns(self) -> int:
        """How much shorter the step gets."""
        return self.step_ns - self.predicted_ns

    @property
    def command(self) -> tuple[str, ...]:
        """The words of its options, as they are typed."""
        return self._asked.command[3:]

    @property
    def needs(self) -> str | None:
        """What it takes besides code, as `rank` says it: other work, more GPUs; None if nothing."""
        return stages.NEEDS.get(find(self.name).stage)

    @property
    def code(self) -> str | None:
        """The line of a training script that makes the change; None if none does."""
        return self._asked.code

    @property
    def _asked(self) -> WhatIfResult:
        from daydream.explanation.asking import WhatIfResult

        step_ns, then_ns = self.step_ns, self.predicted_ns
        return WhatIfResult(self.name, self.options, step_ns, then_ns, framework=self.framework)


def suggestion(
    comparison: Prediction,
    optimizations: Sequence[Optimization] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Suggestion | None:
    """Return the what-if to try on top of a change; None if none of the likely ones saves anything.

    All that may remove the largest costs of the changed step are simulated, and the one that saves most is
    returned; of the step without a profiler, where the answer is. `optimizations` and `options` are what was
    asked for, as it was typed; they are simulated with each candidate. Of a very long recording none is
    asked: the answer is not to wait for it.
    """
    comparison = comparison.as_run
    settled, tasks = comparison.after, int(comparison.replay.graph.alive.sum())
    steps = list(settled.step_times())
    if tasks > MOST_TASKS or comparison.reason is not None or not comparison.simulated_ns or not steps:
        return None
    from daydream.explanation.avoidable import LEAST
    from daydream.explanation.candidates import candidates

    mine = parse(comparison.optimization) if optimizations is None else list(optimizations)
    found: list[tuple[int, tuple[int, str], Suggestion]] = []
    asked = answered = 0  # candidates that were simulated, and costs that any of them is an answer to
    for answers in candidates(comparison, mine):
        before = asked
        for name, own in answers:
            try:
                both = _predicted(comparison, [*mine, find(name)], {**(options or {}), **own})
            except DaydreamError:  # it does not apply to this trace, or not together with the others
                continue
            asked += 1
            if both.predicted_ns is not None:
                now_ns, framework = comparison.simulated_ns, framework_of(comparison.replay.graph)
                tried = Suggestion(name, own, now_ns, both.predicted_ns, framework)
                notes = prediction_notes(both, as_recorded=True)
                found.append((both.predicted_ns, preference(notes, name), tried))
            if asked == MOST_ASKED:
                break
        answered += asked > before
        if asked == MOST_ASKED or answered == MOST_COSTS:
            break
    best = min(found, key=lambda each: each[:2])[2] if found else None
    return best if best is not None and best.saving_ns >= LEAST * best.step_ns else None


def _predicted(
    comparison: Prediction, optimizations: Sequence[Optimization], options: Mapping[str, Any]
) -> Prediction:
    return predict(comparison.replay, edit_of(optimizations, options))
