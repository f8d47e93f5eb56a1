"""What-ifs asked to explain a step: each one simulated, with its options and what it would save."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from daydream.display import as_json
from daydream.errors import DaydreamError
from daydream.predict.notes import preference
from daydream.predict.prediction import Prediction, predict
from daydream.predict.replay import Replay
from daydream.transforms.code_lines import code_of, framework_of
from daydream.transforms.compose import edit_of, parse
from daydream.transforms.registry import find

READS = "_local_scalar_dense|aten::copy_"  # what `.item()`, `.cpu()` and `.tolist()` call


@dataclass(frozen=True)
class WhatIfResult:
    """One what-if: what it predicts, or why it gives no answer (`refused`).

    `options` are the ones given; `saving_ns` is against the step that is explained. `predicted_low_ns` and
    `predicted_high_ns` are the 90 % interval of the predicted step, None where it is or was not asked for.
    """

    name: str
    options: Mapping[str, Any]
    replayed_ns: int
    predicted_ns: int | None
    refused: str | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)
    predicted_low_ns: int | None = field(default=None, repr=False)
    predicted_high_ns: int | None = field(default=None, repr=False)
    framework: str | None = field(default=None, repr=False)  # of the script, where it is not torch

    @property
    def saving_ns(self) -> int | None:
        """How much shorter the step gets; negative if it gets longer."""
        return None if self.predicted_ns is None else self.replayed_ns - self.predicted_ns

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command, without `--trace`."""
        words = ["daydream", "whatif", self.name]
        for name, value in self.options.items():
            flag = "--" + name.replace("_", "-")
            words += (
                [flag] if value is True else [flag, f"{value:g}" if isinstance(value, float) else str(value)]
            )
        return tuple(words)

    @property
    def code(self) -> str | None:
        """The line of a training script that makes the change, None if none does, or if that is not known.

        Of calls that wait only those that read a value (`.item()`) tell which line they are.
        """
        if not re.search(READS, str(self.options.get("which", READS))):
            return None
        return code_of(self.name.rsplit("+", 1)[-1], self.framework)  # behind what was changed already

    def to_json(self) -> dict[str, Any]:
        """Return the answer as `explain --json` prints it."""
        speedup = {"speedup": self.replayed_ns / self.predicted_ns if self.predicted_ns else None}
        figures = as_json(self, "whatif=name options command predicted_ns saving_ns")
        figures |= as_json(self, "predicted_low_ns predicted_high_ns")
        return figures | speedup | as_json(self, "refused code notes")


class WhatIfRunner:
    """Asks what-ifs of one replay, each once, on top of a change that was made already (if any).

    `bare` answers have neither notes nor an interval, which takes further simulations.
    """

    def __init__(
        self,
        replay: Replay,
        after: Prediction | None = None,
        given: Mapping[str, Any] | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.replay, self.after, self.given = replay, after, dict(given or {})
        self.step_ns = replay.settled.step_ns if after is None else after.simulated_ns
        self.framework, self.bare = framework_of(replay.graph), bare
        self._answers: dict[Any, WhatIfResult] = {}

    def ask(self, name: str, /, **options: Any) -> WhatIfResult:
        """Return the answer to one what-if."""
        key = (name, tuple(sorted(options.items())))
        if key not in self._answers:
            self._answers[key] = self._asked(name, options)
        return self._answers[key]

    def without(self, **where: Any) -> WhatIfResult:
        """Return the answer to `scale --factor 0`: the step if some of its work took no time.

        It comes behind the change that was made already, which may be a `scale` itself.
        """
        if self.after is None:
            return self.ask("scale", **where, factor=0.0)
        options = {**where, "factor": 0.0}
        try:
            comparison = predict(self.replay, edit_of(parse("scale"), options), start=self.after.graph)
        except DaydreamError as error:
            return WhatIfResult("scale", options, self.step_ns, None, refused=" ".join(str(error).split()))
        return WhatIfResult("scale", options, self.step_ns, comparison.simulated_ns)

    def best(self, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> list[WhatIfResult]:
        """Return the answers, the one that saves most first; of equal ones the first asked.

        Of two that are the same change there is one, as `rank` chooses it.
        """
        answers = [self.ask(name, **options) for name, options in asked]
        kept: list[WhatIfResult] = []
        for answer in sorted(
            answers, key=lambda answer: -(answer.saving_ns if answer.saving_ns is not None else -1e18)
        ):
            twin = next((place for place, other in enumerate(kept) if _same_change(answer, other)), None)
            if twin is None:
                kept.append(answer)
            else:
                kept[twin] = min(kept[twin], answer, key=lambda each: preference(each.notes, each.name))
        return kept

    def predicted(self, name: str, /, **options: Any) -> Prediction:
        """Return the prediction of one what-if on top of the change. Raises `DaydreamError` if refused."""
        whole, values = self._whole(name, options)
        return predict(self.replay, edit_of(parse([find(part) for part in whole.split("+")]), values))

    def answer(self, name: str, options: Mapping[str, Any], prediction: Prediction) -> WhatIfResult:
        """Return a prediction as the answer to a what-if with these options."""
        whole, values = self._whole(name, options)
        found = WhatIfResult(
            whole, values, self.step_ns, prediction.predicted_ns, prediction.reason, framework=self.framework
        )
        if self.bare:
            return found
        known = set(self.replay.notes)
        return replace(
            found,
            notes=tuple(note for note in prediction.notes if note not in known),
            predicted_low_ns=prediction.predicted_low_ns,
            predicted_high_ns=prediction.predicted_high_ns,
        )

    def _asked(self, name: str, options: Mapping[str, Any]) -> WhatIfResult:
        try:
            return self.answer(name, options, self.predicted(name, **options))
        except DaydreamError as error:
            said = " ".join(str(error).split())
            return WhatIfResult(*self._whole(name, options), self.step_ns, None, refused=said)

    def _whole(self, name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the name and the options of a what-if behind the change that was made already."""
        if self.after is None:
            return name, dict(options)
        return f"{self.after.optimization}+{name}", {**self.given, **options}


def _same_change(one: WhatIfResult, other: WhatIfResult) -> bool:
    """Tell whether two answers are of one change: they exclude each other and give the same step."""
    names = [each.name.rsplit("+", 1)[-1] for each in (one, other)]
    excluded = names[1] in find(names[0]).excludes or names[0] in find(names[1]).excludes
    return excluded and one.predicted_ns is not None and one.predicted_ns == other.predicted_ns
