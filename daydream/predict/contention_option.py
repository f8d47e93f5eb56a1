"""Which contention a prediction is made with: measured, given or off, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daydream.costs.contention import Evidence, Measured, measured_contention
from daydream.costs.device.roofline import is_matrix_kernel
from daydream.display import as_json, plain
from daydream.errors import GraphError
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, KERNEL
from daydream.simulate.contention import Contention
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.simulate.timeline import Timeline

MEASURED, OFF, GIVEN, UNMEASURED = "measured", "off", "given", "unmeasured"
Option = str | float | Sequence[float]
SET_IT = "--contention F sets a factor"


class Choice(NamedTuple):
    """Factors of kernels (a matrix library's, and others) and of transfers, and where they come from.

    `mode` is `measured`, `given`, `off`, or `unmeasured`: the trace does not tell, and no factor was given.
    """

    mode: str
    matrix: float = 1.0
    other: float = 1.0
    transfer: float = 1.0
    measured: Measured | None = None
    kernels: bool = True  #: whether there are any

    @property
    def slows(self) -> bool:
        """Whether anything is slowed."""
        return self.kernels and max(self.matrix, self.other, self.transfer) != 1

    def between(self, untouched: Graph, graph: Graph, timeline: Timeline | None = None) -> Contention | None:
        """Return how a changed copy of an untouched graph is slowed; None if nothing is.

        `timeline` is that of the untouched graph, where it is known.
        """
        if not self.slows:
            return None
        return Contention(untouched, self._of_tasks(graph), self.transfer, timeline)

    def _of_tasks(self, graph: Graph) -> np.ndarray | float:
        if self.matrix == self.other:
            return self.matrix
        names = np.array([*graph.texts["name"], ""], dtype=object)
        matrix = is_matrix_kernel(names)[graph.columns["name"]]
        return np.where(matrix, self.matrix, self.other)

    def note(self) -> str:
        """Return a sentence on what was done."""
        if self.mode == OFF:
            return "Kernels and transfers do not slow each other here: contention is off."
        if not self.kernels:
            return "Contention of transfers and compute is not modelled: there are no GPU kernels."
        if self.mode == GIVEN:
            said = f"Kernels take x{self.matrix:g} while a transfer runs"
            if self.transfer > 1:
                said += f", transfers x{self.transfer:g} during kernels"
            return f"{said}, as given."
        if self.mode == UNMEASURED:
            return f"Contention is not modelled: {self._why_not()}; {SET_IT}."
        return self._what_was_measured()

    def _why_not(self) -> str:
        if self.measured is None:
            return "the trace has no transfers to measure it on"
        if not self.measured.met:
            return "no kernel ran during a transfer"
        return "too few kernels ran during a transfer in one step and alone in another"

    def _what_was_measured(self) -> str:
        found = self.measured
        said = []
        if found is not None and found.kernel is not None:
            ran = found.kernel
            runs = f"{counted(ran.beside, 'run')} at {counted(ran.places, 'place')} of the step"
            if max(self.matrix, self.other) == 1:
                said.append(
                    f"Kernels took x{ran.factor:.2f} during a transfer, measured on {runs}: none are slowed."
                )
            else:
                factor = f"x{self.matrix:.2f}"
                if self.matrix != self.other:
                    factor += f" (matrix products) or x{self.other:.2f} (others)"
                said.append(
                    f"Kernels take {factor} while a transfer runs, measured on {runs} "
                    f"(x{ran.low:.2f} to x{ran.high:.2f} within noise)."
                )
        if found is not None and found.transfer is not None:
            runs = counted(found.transfer.beside, "run")
            said.append(f"Transfers take x{self.transfer:.2f} during kernels, measured on {runs}.")
        return " ".join(said)

    def to_json(self) -> dict[str, Any]:
        """Return what was chosen as `whatif --json` prints it."""
        found = self.measured if self.mode == MEASURED else None
        parts = ("kernel", "matrix", "other", "transfer")
        factors = as_json(self, "mode matrix_factor=matrix other_factor=other transfer_factor=transfer")
        return factors | {"evidence": {part: plain(getattr(found, part, None)) for part in parts}}


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
        return Choice(UNMEASURED, kernels=kernels)
    found = measured_contention(untouched)
    if found.kernel is None and found.transfer is None:
        return Choice(UNMEASURED, measured=found, kernels=kernels)
    matrix = other = _factor(found.kernel)
    if found.matrix is not None and found.other is not None and _apart(found.matrix, found.other):
        matrix, other = _factor(found.matrix), _factor(found.other)
    return Choice(MEASURED, matrix, other, _factor(found.transfer), found, kernels)


def _apart(one: Evidence, other: Evidence) -> bool:
    return one.low > other.high or other.low > one.high


def _factor(evidence: Evidence | None) -> float:
    return 1.0 if evidence is None else max(evidence.factor, 1.0)
