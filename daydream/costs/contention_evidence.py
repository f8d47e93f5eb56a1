"""What a trace shows of contention as JSON, to be kept beside the trace and read again."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.contention import Compared, Evidence, Measured

if TYPE_CHECKING:
    from collections.abc import Mapping

PARTS = ("kernel", "matrix", "other", "transfer")
WHOLE = ("places", "beside", "alone", "overlapped_ns")


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
    """Return what was measured from its JSON.

    Raises `ValueError`, `TypeError` or `KeyError` where that is not what can be measured.
    """
    if type(given["met"]) is not bool:
        raise TypeError("a yes or no was needed")
    kernel, matrix, other, transfer = (_evidence(given[part]) for part in PARTS)
    return Measured(kernel, matrix, other, transfer, given["met"], _compared(given["kernels"]))


def _evidence(given: Mapping[str, Any] | None) -> Evidence | None:
    if given is None:
        return None
    values = {each.name: given[each.name] for each in fields(Evidence)}
    if any(type(value) is not (int if name in WHOLE else float) for name, value in values.items()):
        raise TypeError("a number was needed")
    return Evidence(**values)


def _compared(given: Mapping[str, Any] | None) -> Compared | None:
    if given is None:
        return None
    columns = [np.array(given[each.name]) for each in fields(Compared)]
    if len({column.shape for column in columns}) > 1 or columns[0].ndim != 1:
        raise ValueError("columns differ in length")
    if any(column.dtype != np.float64 for column in columns if len(column)):
        raise TypeError("numbers were needed")
    return Compared(*columns)
