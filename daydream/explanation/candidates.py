"""What may shorten a changed step further: the what-ifs that `explain` would ask of it, not yet simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from daydream.errors import DaydreamError
from daydream.explanation.asking import WhatIfResult, WhatIfRunner
from daydream.explanation.avoidable import Avoidable, avoidable
from daydream.explanation.causes import trace_back
from daydream.predict.prediction import Prediction
from daydream.transforms.compose import check
from daydream.transforms.registry import Optimization, find

Candidate = tuple[str, Mapping[str, Any]]  # a what-if and its options


class _Listed(WhatIfRunner):
    """Lists what the rules of `explain` would ask, without asking."""

    def best(self, asked: Sequence[Candidate]) -> list[WhatIfResult]:
        return [WhatIfResult(name, options, self.step_ns, None) for name, options in asked]

    def without(self, **where: Any) -> WhatIfResult:
        return WhatIfResult("scale", where, self.step_ns, None)


def candidates(comparison: Prediction, mine: Sequence[Optimization]) -> Iterator[list[Candidate]]:
    """Yield for each cost of the changed step, the largest first, what may remove it.

    What was made already (`mine`), or is excluded by that, is left out.
    """
    settled = comparison.after
    chain = trace_back(settled.timeline, settled.copy, list(settled.step_times()))
    costs = avoidable(chain, _Listed(comparison.replay, comparison))
    for cost in sorted(costs, key=lambda cost: -cost.cost_ns):
        yield _fitting(cost, mine)


def _fitting(cost: Avoidable, mine: Sequence[Optimization]) -> list[Candidate]:
    found = []
    for each in cost.answers:
        try:
            check([*mine, find(each.name)])
        except DaydreamError:
            continue
        found.append((each.name, each.options))
    return found
