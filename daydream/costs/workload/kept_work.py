"""Work of the rows of a trace in the user's cache: FLOP, bytes, family and call of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.workload.calls import RowWork, work_by_row
from daydream.files.cache_file import text_of
from daydream.graph.cached_graph import INT64, need, need_range
from daydream.trace.schema import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daydream.trace.trace import Trace

WORK = "work."  # begins the names of its arrays
DTYPES = {"flop": INT64, "nbytes": INT64, "family": np.dtype(np.int8), "owner": INT64}
MOST = 2**62


def work_contents(trace: Trace) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the families and the arrays of the work of a trace."""
    found = work_by_row(trace)
    return found.families, {WORK + name: getattr(found, name) for name in DTYPES}


def kept_work(trace: Trace, families: list[Any], arrays: Mapping[str, np.ndarray]) -> RowWork:
    """Return the work of a trace's rows from what is kept of it.

    Raises `ValueError`, `TypeError` or `KeyError` where that is not what it can be.
    """
    columns = {name: arrays[WORK + name] for name in DTYPES}
    need(columns, DTYPES)
    need({**columns, "row": trace["start_ns"]}, {**DTYPES, "row": INT64})
    names = [text_of(name) for name in families]
    for name, largest in (
        ("flop", MOST), ("nbytes", MOST), ("family", len(names) - 1), ("owner", len(trace) - 1),
    ):  # fmt: skip
        need_range(columns[name], UNKNOWN, largest)
    return RowWork(**columns, families=names)
