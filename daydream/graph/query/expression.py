"""Queries: a pandas expression on the columns of tasks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.graph.query.columns import DERIVED, is_text
from daydream.trace.schema import FIELDS

if TYPE_CHECKING:
    from daydream.graph.selection import Selection

SHOWN = ("name", "kind", "lane", "phase", "layer", "op", "step", "duration_ns", "gap_ns")


def passes(tasks: Selection, expression: str, values: dict[str, Any]) -> np.ndarray:
    """Return a mask of the tasks for which the expression holds."""
    words = re.findall(r"(?<![@.\w])[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", expression))
    frame = tasks.to_pandas([word for word in dict.fromkeys(words) if _is_column(tasks, word)])
    try:
        mask = frame.eval(expression, local_dict=values, engine="python")
    except Exception as error:  # noqa: BLE001 - the expression is the user's, and pandas raises what its parts raise
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GraphError(
            f"cannot ask for {expression!r}: {why}. Columns are {', '.join(SHOWN)} and those of the trace."
        ) from None
    found = np.asarray(mask)
    if found.shape != tasks.ids.shape or found.dtype != bool:
        raise GraphError(f"{expression!r} is not true or false for each task")
    return found


def _is_column(tasks: Selection, word: str) -> bool:
    return (
        is_text(word)
        or word in tasks.graph.columns
        or word in (*DERIVED, *FIELDS, "rank", "measured_duration_ns")
    )
