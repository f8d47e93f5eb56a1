"""Which contention a prediction is made with: measured, given or off, and how that is said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import field

from daydream.costs.contention import Evidence, measured_contention
from daydream.costs.kernels import is_matrix
from daydream.errors import GraphError
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, KERNEL
from daydream.results import Record
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.simulate.contention import Contention

MEASURED = "measured"
OFF = "off"
GIVEN = "given"
UNMEASURED = "unmeasured"
PARTS = ("kernel", "matrix", "other", "transfer")
ContentionOption = str | float | Sequence[float]


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
        return (
            self.kernels and max(self.matrix_factor, self.other_factor, self.transfer_factor) != 1
        )

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
            return f"Contention is not modelled: {self.reason}; --contention F sets a factor."
        parts = []
        ran = self.evidence["kernel"]
        transfer = self.evidence["transfer"]
        if ran is not None:
            runs = f"{counted(ran.beside, 'run')} at {counted(ran.places, 'place')} of the step"
            if max(self.matrix_factor, self.other_factor) == 1:
                parts.append(
                    f"Kernels took x{ran.factor:.2f} during a transfer, measured on {runs}: none are slowed."
                )
            else:
                factor = f"x{self.matrix_factor:.2f}"
                if self.matrix_factor != self.other_factor:
                    factor += f" (matrix products) or x{self.other_factor:.2f} (others)"
                parts.append(
                    f"Kernels take {factor} while a transfer runs, measured on {runs} "
                    f"(x{ran.low:.2f} to x{ran.high:.2f} within noise)."
                )
        if transfer is not None:
            runs = counted(transfer.beside, "run")
            parts.append(
                f"Transfers take x{self.transfer_factor:.2f} during kernels, measured on {runs}."
            )
        return " ".join(parts)


def between(choice: Choice | None, untouched: Graph, graph: Graph) -> Contention | None:
    """Return how a changed copy of an untouched graph is slowed; None if nothing is."""
    if choice is None or not choice.slows:
        return None
    factor: np.ndarray | float = choice.matrix_factor
    if choice.matrix_factor != choice.other_factor:
        kernels = graph.select(kind="kernel")
        factor = np.full(len(graph.name), choice.other_factor)
        factor[kernels.ids[is_matrix(graph, kernels)]] = choice.matrix_factor
    from daydream.simulate.contention import Contention

    return Contention(untouched, factor, choice.transfer_factor)


def choose(option: ContentionOption, untouched: Graph, graph: Graph) -> Choice | None:
    """Return the contention of a prediction; None if neither side of it has a transfer.

    `option` is `"measured"`, `"off"`, a factor for kernels, or two: for kernels and for transfers.

    Raises `GraphError` for another, or a factor below 1.
    """
    chosen = parsed(option)
    recorded = untouched.kind[untouched.alive]
    kinds = np.append(recorded, graph.kind[graph.alive])
    if not (kinds == COLLECTIVE).any():
        return None
    kernels = bool((kinds == KERNEL).any())
    if chosen == OFF:
        return Choice(OFF, kernels=kernels)
    if isinstance(chosen, tuple):
        kernel, transfer = chosen
        return Choice(GIVEN, kernel, kernel, transfer, kernels=kernels)
    if not (recorded == COLLECTIVE).any():
        return Choice(
            UNMEASURED, kernels=kernels, reason="the trace has no transfers to measure it on"
        )
    found = measured_contention(untouched)
    if found.kernel is None and found.transfer is None:
        reason = "too few kernels ran during a transfer in one step and alone in another"
        if not found.met:
            reason = "no kernel ran during a transfer"
        return Choice(UNMEASURED, kernels=kernels, reason=reason)
    matrix = found.matrix
    other = found.other
    if matrix is None or other is None or (matrix.low <= other.high and other.low <= matrix.high):
        matrix = other = found.kernel  # the two are not apart
    evidence = {part: getattr(found, part) for part in PARTS}
    return Choice(
        MEASURED, _factor(matrix), _factor(other), _factor(found.transfer), evidence, kernels
    )


def _factor(evidence: Evidence | None) -> float:
    """Return a measured factor; one below 1 is no contention."""
    return 1.0 if evidence is None else max(evidence.factor, 1.0)


def parsed(option: ContentionOption) -> Any:
    """Return `"measured"`, `"off"` or the factors of kernels and transfers. Raises `GraphError`."""
    if isinstance(option, str) and option in (MEASURED, OFF):
        return option
    values: Sequence[Any] = (
        option.split(",") if isinstance(option, str) else np.ravel(option).tolist()
    )
    try:
        factors = [float(value) for value in values]
    except (TypeError, ValueError):
        factors = []
    if len(factors) not in (1, 2) or not all(math.isfinite(each) and each >= 1 for each in factors):
        raise GraphError(
            f"contention is 'measured', 'off', a factor of 1 or more for kernels, or two, for kernels and "
            f"transfers; not {option!r}"
        )
    return tuple([*factors, 1.0][:2])  # of transfers 1 by default
