"""What a trace shows of contention as JSON, to be kept beside the trace and read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import asdict, fields

from daydream.costs.contention import Compared, Evidence, Measured

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTS = ("kernel", "matrix", "other", "transfer")


def evidence_json(measured: Measured) -> dict[str, Any]:
    """Return what was measured as JSON can say it."""
    found: dict[str, Any] = {"met": measured.met, "kernels": None}
    for part in PARTS:
        evidence = getattr(measured, part)
        found[part] = None if evidence is None else asdict(evidence)
    if measured.kernels is not None:
        found["kernels"] = {
            each.name: getattr(measured.kernels, each.name).tolist() for each in fields(Compared)
        }
    return found


def evidence_of(given: Mapping[str, Any]) -> Measured:
    """Return what was measured from its JSON."""
    kernel, matrix, other, transfer = (
        None if given[part] is None else Evidence(**given[part]) for part in PARTS
    )
    kernels = given["kernels"]
    compared = None if kernels is None else Compared(**{name: np.array(kernels[name]) for name in kernels})
    return Measured(kernel, matrix, other, transfer, given["met"], compared)
