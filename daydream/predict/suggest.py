"""What to try: what-ifs that may remove the costs of a step, simulated on top of what was changed already."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from msgspec import field

from daydream.errors import DaydreamError
from daydream.predict.avoidable import LEAST, Avoidable, WhatIf, avoidable_costs
from daydream.predict.breakdown import Chain, trace_back
from daydream.predict.notes import preference
from daydream.predict.prediction import Prediction, predict
from daydream.results import Predicted
from daydream.transforms import stages
from daydream.transforms.compose import edit_of, parse, spelled
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
    def change(self) -> Optimization:
        """What comes last of the changes."""
        return find(self.optimization.rsplit("+", 1)[-1])

    @property
    def needs(self) -> str | None:
        """What it takes besides code, as `rank` says it: other work, more GPUs; None if nothing."""
        return stages.NEEDS.get(self.change.stage)


def typed(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return options as the words that are typed."""
    words: list[str] = []
    for name, value in options.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(f"{value:g}" if isinstance(value, float) else str(value))
    return tuple(words)


class WhatIfs:
    """Asks what-ifs of a step, on top of the change that was made already, if any.

    `made` are the optimizations of that change, `given` its options. `bare` answers have neither notes nor an
    interval, which take longer.
    """

    def __init__(
        self,
        now: Prediction,
        made: Sequence[Optimization] = (),
        given: Mapping[str, Any] | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.now, self.made, self.given, self.bare = now, made, given or {}, bare
        self.replay, self.step_ns = now.replay, now.simulated_ns
        self.before = replace(edit_of(made), copies={self.replay.graph.version: now.graph})

    def tried(
        self, name: str, options: Mapping[str, Any], *, alone: bool = False
    ) -> tuple[WhatIfResult, Prediction | None]:
        """Return the answer to a what-if on top of the change, and its prediction; None if it is refused.

        `alone` it is made in the changed graph, and named, as if there had been no change before.
        """
        made, given, start = ((), {}, self.now.graph) if alone else (self.made, self.given, None)
        changes, options, interval = [*made, find(name)], {**given, **options}, not (self.bare or alone)
        # Of calls that wait the line of code is known for those alone that read a value.
        reads = re.search(READS, str(options.get("which", READS)))
        code = code_of(name, self.replay.graph) if reads else None
        found = WhatIfResult(spelled(changes), options, self.step_ns, code=code)
        try:
            edit = edit_of(changes, options, after=self.before)
            prediction = predict(self.replay, edit, start=start, interval=interval)
        except DaydreamError as error:
            return found.but(reason=" ".join(str(error).split())), None
        if interval:
            found.notes = tuple(note for note in prediction.notes if note not in self.replay.notes)
            found.predicted_low_ns = prediction.predicted_low_ns
            found.predicted_high_ns = prediction.predicted_high_ns
        return found.but(predicted_ns=prediction.predicted_ns, reason=prediction.reason), prediction

    def without(self, **where: Any) -> WhatIfResult:
        """Return the answer to `scale --factor 0`: the step if some of its work took no time.

        It comes behind the change that was made already, which may be a `scale` itself.
        """
        found, prediction = self.tried("scale", {**where, "factor": 0.0}, alone=bool(self.made))
        if self.made and prediction is not None:
            return found.but(predicted_ns=prediction.simulated_ns, reason=None)
        return found

    def best(self, asked: Sequence[WhatIf]) -> list[WhatIfResult]:
        """Return the answers, the one that saves most first; of equal ones the first asked.

        Of those that are the same change (they exclude each other and give the same step) there is one, as
        `rank` chooses it.
        """
        answers = [self.tried(*each)[0] for each in asked]
        kept = []
        for answer in sorted(answers, key=lambda each: (each.saving_ns is None, -(each.saving_ns or 0))):
            same = [other for other in answers if other is answer or _same_change(answer, other)]
            if answer is min(same, key=lambda each: preference(each.notes, each.optimization)):
                kept.append(answer)
        return kept

    def avoidable(self, chain: Chain) -> list[Avoidable]:
        """Return the avoidable costs of a step with their answers, those that would save most first."""
        costs = avoidable_costs(chain)
        for cost in costs:
            cost.whatifs = self.best(cost.asked)
            cost.best = next((each for each in cost.whatifs if each.saving_ns is not None), None)
            cost.limit = None if cost.made_of is None else self.without(**cost.made_of)
            if cost.limit is not None:
                cost.saving_ns, cost.without_ns = cost.limit.saving_ns, cost.limit.predicted_ns
            if cost.best is not None:
                cost.saving_ns, cost.code = cost.best.saving_ns, cost.best.code
        return sorted(costs, key=lambda each: (-(each.saving_ns or 0), -each.cost_ns, each.sort))


def _same_change(one: WhatIfResult, other: WhatIfResult) -> bool:
    """Tell whether two what-ifs that exclude each other give the same step."""
    same_step = one.predicted_ns is not None and one.predicted_ns == other.predicted_ns
    return same_step and one.change.rules_out(other.change)


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
    after = prediction.after
    if prediction.reason is not None or not prediction.simulated_ns or not after.step_times():
        return None
    if int(prediction.replay.graph.alive.sum()) > MOST_TASKS:
        return None
    made = parse(prediction.optimization) if optimizations is None else optimizations
    asker = WhatIfs(prediction, made, options, bare=True)
    costs = sorted(avoidable_costs(trace_back(after)), key=lambda each: -each.cost_ns)
    candidates = [(place, *each) for place, cost in enumerate(costs) for each in cost.asked]
    simulated: list[int] = []  # for each candidate that was, the cost that it may remove
    found: list[tuple[int, tuple[int, str], WhatIfResult]] = []
    for place, name, own in candidates:
        if len(simulated) == MOST_ASKED or len({*simulated, place}) > MOST_COSTS:
            break
        answer, both = asker.tried(name, own)
        if both is None:  # it does not apply to this trace, or not together with the others
            continue
        simulated.append(place)
        saving_ns = answer.saving_ns or 0
        if saving_ns >= LEAST * answer.replayed_ns:
            answer = answer.but(optimization=name, options=own)
            found.append((-saving_ns, preference(both.notes, name), answer))
    return min(found, key=itemgetter(0, 1))[2] if found else None
