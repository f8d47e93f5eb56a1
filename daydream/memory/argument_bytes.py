"""How many bytes each tensor takes that an operator is given, by its recorded shapes and type."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from daydream.collect.derive.device_work import ITEM_BYTES
from daydream.costs.workload.shapes import Argument, parse_shapes
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    import numpy as np


def arguments_of(trace: Trace, row: int) -> list[Argument]:
    """Return the shapes of a row's arguments, none where they are not recorded."""
    code = int(trace["shapes"][row])
    return (parse_shapes(trace.text("shapes")[code]) if code >= 0 else None) or []


def argument_bytes(trace: Trace, rows: np.ndarray) -> list[tuple[int, ...]]:
    """Return for each row the bytes of its tensors, none where its shapes or its type are not known.

    One type is known of an operator: tensors of another are told with its width. Views count as whole.
    """
    dtypes, texts = [*trace.text("dtype"), None], [*trace.text("shapes"), None]
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    codes = zip(trace["shapes"][rows].tolist(), trace["dtype"][rows].tolist(), strict=True)
    return [
        known.get(pair) or known.setdefault(pair, _sizes(texts[pair[0]], dtypes[pair[1]]))
        for pair in codes
    ]


def _sizes(shapes: str | None, dtype: str | None) -> tuple[int, ...]:
    width = ITEM_BYTES.get(dtype or "", 0)
    arguments = (parse_shapes(shapes) or []) if width else []
    given = [shape for each in arguments for shape in (each if isinstance(each, list) else [each])]
    return tuple(int(prod(shape)) * width for shape in given if shape)
