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
from daydream.transforms.compose import edit_of, parse
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

    `given` are the options of that change. `bare` answers have neither notes nor an interval, which take
    longer.
    """

    def __init__(
        self, now: Prediction, given: Mapping[str, Any] | None = None, *, bare: bool = False
    ) -> None:
        self.now, self.given, self.bare = now, given or {}, bare
        self.replay, self.step_ns = now.replay, now.simulated_ns

    def ask(self, name: str, options: Mapping[str, Any]) -> WhatIfResult:
        """Return the answer to one what-if on top of the change."""
        return self.tried(name, options)[0]

    def tried(self, name: str, options: Mapping[str, Any]) -> tuple[WhatIfResult, Prediction | None]:
        """Return the answer to a what-if on top of the change, and its prediction; None if it is refused."""
        code = None
        # Of calls that wait the line of code is known for those alone that read a value.
        if re.search(READS, str(options.get("which", READS))):
            code = code_of(name, self.replay.graph)
        if self.now.optimization:
            name, options = f"{self.now.optimization}+{name}", {**self.given, **options}
        found = WhatIfResult(name, options, self.step_ns, code=code)
        try:
            prediction = predict(self.replay, edit_of(parse(name), options), interval=not self.bare)
        except DaydreamError as error:
            return found.but(reason=" ".join(str(error).split())), None
        if not self.bare:
            found.notes = tuple(note for note in prediction.notes if note not in self.replay.notes)
            found.predicted_low_ns = prediction.predicted_low_ns
            found.predicted_high_ns = prediction.predicted_high_ns
        return found.but(predicted_ns=prediction.predicted_ns, reason=prediction.reason), prediction

    def without(self, **where: Any) -> WhatIfResult:
        """Return the answer to `scale --factor 0`: the step if some of its work took no time.

        It comes behind the change that was made already, which may be a `scale` itself.
        """
        options = {**where, "factor": 0.0}
        if not self.now.optimization:
            return self.ask("scale", options)
        found = WhatIfResult("scale", options, self.step_ns)
        try:
            edit = edit_of(parse("scale"), options)
            prediction = predict(self.replay, edit, start=self.now.graph, interval=False)
        except DaydreamError as error:
            return found.but(reason=" ".join(str(error).split()))
        return found.but(predicted_ns=prediction.simulated_ns)

    def best(self, asked: Sequence[WhatIf]) -> list[WhatIfResult]:
        """Return the answers, the one that saves most first; of equal ones the first asked.

        Of two that are the same change (they exclude each other and give the same step) there is one, as
        `rank` chooses it.
        """
        answers = [self.ask(*each) for each in asked]
        kept: list[WhatIfResult] = []
        for answer in sorted(answers, key=lambda each: (each.saving_ns is None, -(each.saving_ns or 0))):
            twin = next((place for place, other in enumerate(kept) if _same_change(answer, other)), None)
            if twin is None:
                kept.append(answer)
            else:
                kept[twin] = min(
                    kept[twin], answer, key=lambda each: preference(each.notes, each.optimization)
                )
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
    after, graph = prediction.after, prediction.replay.graph
    if prediction.reason is not None or not prediction.simulated_ns or not after.step_times():
        return None
    if int(graph.alive.sum()) > MOST_TASKS:
        return None
    made = parse(prediction.optimization) if optimizations is None else list(optimizations)
    costs = sorted(avoidable_costs(trace_back(after)), key=lambda each: -each.cost_ns)
    candidates = [(place, *each) for place, cost in enumerate(costs) for each in cost.asked]
    simulated: list[int] = []  # for each candidate that was, the cost that it may remove
    found: list[tuple[int, tuple[int, str], WhatIfResult]] = []
    made_before = replace(edit_of(made), copies={graph.version: prediction.graph})
    for place, name, own in candidates:
        if len(simulated) == MOST_ASKED or len({*simulated, place}) > MOST_COSTS:
            break
        try:
            edit = edit_of([*made, find(name)], {**(options or {}), **own}, after=made_before)
            both = predict(prediction.replay, edit, interval=False)
        except DaydreamError:  # it does not apply to this trace, or not together with the others
            continue
        simulated.append(place)
        code = code_of(name, graph)
        tried = WhatIfResult(name, own, prediction.simulated_ns, both.predicted_ns, code=code)
        saving_ns = tried.saving_ns or 0
        if saving_ns >= LEAST * tried.replayed_ns:
            found.append((-saving_ns, preference(both.notes, name), tried))
    return min(found, key=itemgetter(0, 1))[2] if found else None
