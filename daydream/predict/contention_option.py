"""Which contention a prediction is made with: measured, given or off, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import field

from daydream.costs.contention import Evidence, measured_contention
from daydream.costs.device.roofline import is_matrix_kernel
from daydream.errors import GraphError
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, KERNEL
from daydream.results import Record
from daydream.simulate.contention import Contention
from daydream.text import counted

MEASURED, OFF, GIVEN, UNMEASURED = "measured", "off", "given", "unmeasured"
PARTS = ("kernel", "matrix", "other", "transfer")
Option = str | float | Sequence[float]
SET_IT = "--contention F sets a factor"


class Choice(Record):
    """How many times as long kernels and transfers take beside each other, and where that comes from.

    Attributes:
        mode: `measured`, `given`, `off`, or `unmeasured`: the trace does not tell, and no factor was given.
        matrix_factor: of a matrix library's kernels.
        other_factor: of other kernels.
        transfer_factor: of transfers.
        evidence: what measured factors rest on, by what they are of.
        kernels: whether there are any.
        reason: why the trace does not tell.
    """

    mode: str
    matrix_factor: float = 1.0
    other_factor: float = 1.0
    transfer_factor: float = 1.0
    evidence: Mapping[str, Evidence | None] = field(default_factory=lambda: dict.fromkeys(PARTS))
    kernels: bool = True
    reason: str | None = None

    @property
    def slows(self) -> bool:
        """Whether anything is slowed."""
        return self.kernels and max(self.matrix_factor, self.other_factor, self.transfer_factor) != 1

    def between(self, untouched: Graph, graph: Graph) -> Contention | None:
        """Return how a changed copy of an untouched graph is slowed; None if nothing is."""
        if not self.slows:
            return None
        return Contention(untouched, self._of_tasks(graph), self.transfer_factor)

    def _of_tasks(self, graph: Graph) -> np.ndarray | float:
        if self.matrix_factor == self.other_factor:
            return self.matrix_factor
        names = np.array([*graph.texts["name"], ""], dtype=object)
        matrix = is_matrix_kernel(names)[graph.columns["name"]]
        return np.where(matrix, self.matrix_factor, self.other_factor)

    def note(self) -> str:
        """Return a sentence on what was done."""
        if self.mode == OFF:
            return "Kernels and transfers do not slow each other here: contention is off."
        if not self.kernels:
            return "Contention of transfers and compute is not modelled: there are no GPU kernels."
        if self.mode == GIVEN:
            said = f"Kernels take x{self.matrix_factor:g} while a transfer runs"
            if self.transfer_factor > 1:
                said += f", transfers x{self.transfer_factor:g} during kernels"
            return f"{said}, as given."
        if self.mode == UNMEASURED:
            return f"Contention is not modelled: {self.reason}; {SET_IT}."
        return self._what_was_measured()

    def _what_was_measured(self) -> str:
        said = []
        ran, transfer = self.evidence["kernel"], self.evidence["transfer"]
        if ran is not None:
            runs = f"{counted(ran.beside, 'run')} at {counted(ran.places, 'place')} of the step"
            if max(self.matrix_factor, self.other_factor) == 1:
                said.append(
                    f"Kernels took x{ran.factor:.2f} during a transfer, measured on {runs}: none are slowed."
                )
            else:
                factor = f"x{self.matrix_factor:.2f}"
                if self.matrix_factor != self.other_factor:
                    factor += f" (matrix products) or x{self.other_factor:.2f} (others)"
                said.append(
                    f"Kernels take {factor} while a transfer runs, measured on {runs} "
                    f"(x{ran.low:.2f} to x{ran.high:.2f} within noise)."
                )
        if transfer is not None:
            runs = counted(transfer.beside, "run")
            said.append(f"Transfers take x{self.transfer_factor:.2f} during kernels, measured on {runs}.")
        return " ".join(said)


def choose(option: Option | Choice, untouched: Graph, graph: Graph) -> Choice | None:
    """Return the contention of a prediction; None if neither side of it has a transfer.

    `option` is `"measured"`, `"off"`, a factor for kernels, or two: for kernels and for transfers.

    Raises `GraphError` for another, or a factor below 1.
    """
    chosen = option if isinstance(option, Choice) else parsed(option)
    kinds = np.concatenate([side.columns["kind"][side.alive] for side in (untouched, graph)])
    if not (kinds == COLLECTIVE).any():
        return None
    kernels = bool((kinds == KERNEL).any())
    if isinstance(chosen, Choice) or chosen == OFF:
        return chosen if isinstance(chosen, Choice) else Choice(OFF, kernels=kernels)
    if chosen != MEASURED:
        return Choice(GIVEN, chosen[0], chosen[0], chosen[1], kernels=kernels)
    return _measured(untouched, kernels=kernels)


def parsed(option: Option) -> Any:
    """Return `"measured"`, `"off"` or the factors of kernels and transfers. Raises `GraphError`."""
    if isinstance(option, str) and option in (MEASURED, OFF):
        return option
    values: Sequence[Any] = option.split(",") if isinstance(option, str) else np.ravel(option).tolist()
    try:
        factors = [float(value) for value in values]
    except (TypeError, ValueError):
        factors = []
    if len(factors) not in (1, 2) or not all(math.isfinite(each) and each >= 1 for each in factors):
        raise GraphError(
            f"contention is 'measured', 'off', a factor of 1 or more for kernels, or two, for kernels and "
            f"transfers; not {option!r}"
        )
    return factors[0], (factors[1] if len(factors) == 2 else 1.0)


def _measured(untouched: Graph, *, kernels: bool) -> Choice:
    """Return what the trace shows; a factor below 1 is no contention."""
    there = (untouched.columns["kind"] == COLLECTIVE) & untouched.alive
    if not there.any():
        return Choice(UNMEASURED, kernels=kernels, reason="the trace has no transfers to measure it on")
    found = measured_contention(untouched)
    if found.kernel is None and found.transfer is None:
        reason = "too few kernels ran during a transfer in one step and alone in another"
        return Choice(
            UNMEASURED, kernels=kernels, reason=reason if found.met else "no kernel ran during a transfer"
        )
    matrix = other = _factor(found.kernel)
    if found.matrix is not None and found.other is not None and _apart(found.matrix, found.other):
        matrix, other = _factor(found.matrix), _factor(found.other)
    evidence = {part: getattr(found, part) for part in PARTS}
    return Choice(MEASURED, matrix, other, _factor(found.transfer), evidence, kernels)


def _apart(one: Evidence, other: Evidence) -> bool:
    return one.low > other.high or other.low > one.high


def _factor(evidence: Evidence | None) -> float:
    return 1.0 if evidence is None else max(evidence.factor, 1.0)
