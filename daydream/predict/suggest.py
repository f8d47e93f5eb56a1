"""What to try: what-ifs that may remove the costs of a step, simulated on top of what was changed already."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import field

from daydream.errors import DaydreamError
from daydream.predict.avoidable import LEAST, Avoidable, WhatIf, avoidable_costs
from daydream.predict.breakdown import Chain, trace_back
from daydream.predict.notes import preference
from daydream.predict.prediction import Prediction, predict
from daydream.predict.replay import Replay
from daydream.results import Predicted
from daydream.transforms import stages
from daydream.transforms.compose import check, edit_of, parse
from daydream.transforms.real_change import code_of
from daydream.transforms.registry import Optimization, find

READS = "_local_scalar_dense|aten::copy_"  # what `.item()`, `.cpu()` and `.tolist()` call
# How much is simulated for a suggestion, so that an answer does not take noticeably longer for it.
MOST_COSTS, MOST_ASKED, MOST_TASKS = 3, 6, 50_000


class WhatIfResult(Predicted):
    """One what-if: what it predicts, or the reason why it gives no answer.

    Attributes:
        command: the words of the command, without the trace.
        code: the line of a training script that makes the change, None if none does.
        notes: what a reader should know of this change.
    """

    optimization: str = field(name="whatif")
    reason: str | None = field(default=None, name="refused")
    command: tuple[str, ...] = ()
    code: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Fill in the command, and what the change saves."""
        Predicted.__post_init__(self)
        self.command = ("daydream", "whatif", self.optimization, *typed(self.options))

    @property
    def needs(self) -> str | None:
        """What it takes besides code, as `rank` says it: other work, more GPUs; None if nothing."""
        return stages.NEEDS.get(find(self.optimization.rsplit("+", 1)[-1]).stage)


def typed(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return options as the words that are typed."""
    words: list[str] = []
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return tuple(words)


class WhatIfs:
    """Asks what-ifs of a step, on top of a change that was made already, if any.

    `bare` answers have neither notes nor an interval, which take longer.
    """

    def __init__(
        self,
        replay: Replay,
        after: Prediction | None = None,
        given: Mapping[str, Any] | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.replay, self.after, self.given, self.bare = replay, after, dict(given or {}), bare
        self.step_ns = replay.settled.step_ns if after is None else after.simulated_ns

    def predicted(self, name: str, options: Mapping[str, Any]) -> Prediction:
        """Return the prediction of one what-if on top of the change. Raises `DaydreamError` if refused."""
        name, options = self._whole(name, options)
        return predict(self.replay, edit_of(parse(name), options), interval=not self.bare)

    def answer(self, name: str, options: Mapping[str, Any], prediction: Prediction) -> WhatIfResult:
        """Return a prediction as the answer to a what-if with these options."""
        found = WhatIfResult(
            *self._whole(name, options), self.step_ns, prediction.predicted_ns,
            reason=prediction.reason, code=self._code(name, options),
        )  # fmt: skip
        if not self.bare:
            found.notes = tuple(note for note in prediction.notes if note not in self.replay.notes)
            found.predicted_low_ns = prediction.predicted_low_ns
            found.predicted_high_ns = prediction.predicted_high_ns
        return found

    def ask(self, name: str, options: Mapping[str, Any]) -> WhatIfResult:
        """Return the answer to one what-if."""
        try:
            return self.answer(name, options, self.predicted(name, options))
        except DaydreamError as error:
            whole = self._whole(name, options)
            code = self._code(name, options)
            return WhatIfResult(*whole, self.step_ns, reason=" ".join(str(error).split()), code=code)

    def without(self, **where: Any) -> WhatIfResult:
        """Return the answer to `scale --factor 0`: the step if some of its work took no time.

        It comes behind the change that was made already, which may be a `scale` itself.
        """
        options = {**where, "factor": 0.0}
        if self.after is None:
            return self.ask("scale", options)
        try:
            edit = edit_of(parse("scale"), options)
            prediction = predict(self.replay, edit, start=self.after.graph, interval=False)
        except DaydreamError as error:
            return WhatIfResult("scale", options, self.step_ns, reason=" ".join(str(error).split()))
        return WhatIfResult("scale", options, self.step_ns, prediction.simulated_ns)

    def best(self, asked: Sequence[WhatIf]) -> list[WhatIfResult]:
        """Return the answers, the one that saves most first; of equal ones the first asked.

        Of two that are the same change (they exclude each other and give the same step) there is one, as
        `rank` chooses it.
        """
        answers = [self.ask(*each) for each in asked]
        kept: list[WhatIfResult] = []
        for answer in sorted(
            answers, key=lambda answer: -(answer.saving_ns if answer.saving_ns is not None else -1e18)
        ):
            twin = next((place for place, other in enumerate(kept) if _same_change(answer, other)), None)
            if twin is None:
                kept.append(answer)
            else:
                both = kept[twin], answer
                kept[twin] = min(both, key=lambda each: preference(each.notes, each.optimization))
        return kept

    def avoidable(self, chain: Chain) -> list[Avoidable]:
        """Return the avoidable costs of a step with their answers, those that would save most first."""
        found = []
        for cost in avoidable_costs(chain):
            limit = None if cost.made_of is None else self.without(**cost.made_of)
            whatifs = self.best(cost.asked)
            best = next((each for each in whatifs if each.saving_ns is not None), None)
            known, tasks = best or limit, cost.tasks
            one = Avoidable(
                cost.sort, *cost.place, cost.per_step, cost.cost_ns, tasks.words, len(tasks),
                saving_ns=None if known is None else known.saving_ns,
                code=None if best is None else best.code,
                whatifs=whatifs,
                without_ns=None if limit is None else limit.predicted_ns,
            )  # fmt: skip
            found.append(one.having(selected=tasks, best=best, limit=limit))
        return sorted(found, key=lambda each: (-(each.saving_ns or 0), -each.cost_ns, each.sort))

    def _whole(self, name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the name and the options of a what-if behind the change that was made already."""
        if self.after is None:
            return name, dict(options)
        return f"{self.after.optimization}+{name}", {**self.given, **options}

    def _code(self, name: str, options: Mapping[str, Any]) -> str | None:
        """Return the line of code; of calls that wait it is known for those alone that read a value."""
        if not re.search(READS, str(options.get("which", READS))):
            return None
        return code_of(name, self.replay.graph)


def _same_change(one: WhatIfResult, other: WhatIfResult) -> bool:
    first, second = (find(each.optimization.rsplit("+", 1)[-1]) for each in (one, other))
    excluded = second.name in first.excludes or first.name in second.excludes
    return excluded and one.predicted_ns is not None and one.predicted_ns == other.predicted_ns


def suggestion(
    prediction: Prediction,
    optimizations: Sequence[Optimization] | None = None,
    options: Mapping[str, Any] | None = None,
) -> WhatIfResult | None:
    """Return the what-if to try on top of a change; None if none of the likely ones saves anything.

    What may remove the largest costs of the changed step is simulated, and the one that saves most is
    returned. `optimizations` and `options` are what was asked for, as it was typed; they are simulated with
    each candidate. Of a very long recording none is asked: the answer is not to wait for it.
    """
    after, graph = prediction.after, prediction.replay.graph
    steps = list(after.step_times())
    if prediction.reason is not None or not prediction.simulated_ns or not steps:
        return None
    if int(graph.alive.sum()) > MOST_TASKS:
        return None
    made = parse(prediction.optimization) if optimizations is None else list(optimizations)
    found: list[tuple[int, tuple[int, str], WhatIfResult]] = []
    asked = answered = 0  # candidates that were simulated, and costs that any of them is an answer to
    costs = avoidable_costs(trace_back(after.timeline, after.copy, steps))
    begun = {graph.version: prediction.graph}
    for cost in sorted(costs, key=lambda each: -each.cost_ns):
        before = asked
        for name, own in cost.asked:
            try:
                all_of_them = [*made, find(name)]
                check(all_of_them)
                edit = edit_of(all_of_them, {**(options or {}), **own}, begun=begun, of=made)
                both = predict(prediction.replay, edit, interval=False)
            except DaydreamError:  # it does not apply to this trace, or not together with the others
                continue
            asked += 1
            if both.predicted_ns is not None:
                step_ns, after_ns = prediction.simulated_ns, both.predicted_ns
                tried = WhatIfResult(name, own, step_ns, after_ns, code=code_of(name, graph))
                found.append((after_ns, preference(both.notes, name), tried))
            if asked == MOST_ASKED:
                break
        answered += asked > before
        if asked == MOST_ASKED or answered == MOST_COSTS:
            break
    best = min(found, key=lambda each: each[:2])[2] if found else None
    return best if best is not None and (best.saving_ns or 0) >= LEAST * best.replayed_ns else None
