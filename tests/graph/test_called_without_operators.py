"""The autograd thread is found by when it works, as well as by its operators: many profilers record none.

Recordings of an H200 know that thread; here they are read without operators and layers.
"""

from pathlib import Path

import numpy as np
import pytest

import daydream
from daydream import Trace
from daydream.graph.plan import Cause

RECORDED = Path(__file__).parents[2] / "validation" / "h200"
NODES = "autograd::engine::evaluate_function"


def without_operators(trace):
    """Return what a profiler would have recorded that knows calls, device work and ranges alone."""
    rows = np.flatnonzero(~trace.is_kind("operator", "module"))
    columns = {name: column[rows] for name, column in trace.columns.items()}
    place = np.append(np.searchsorted(rows, np.arange(len(trace))), 0)
    there = np.append(np.isin(np.arange(len(trace)), rows), False)
    columns["parent"] = np.where(there[columns["parent"]], place[columns["parent"]], -1).astype(np.int32)
    columns["forward_thread"] = np.full(len(rows), -1)
    return Trace(columns, trace.texts, trace.metadata)


def handed_over(graph, lanes):
    """Return how many hand-offs lead to these lanes."""
    links, lane = graph.links, graph.columns["lane"]
    there = [graph.lanes[number].name in lanes for number in lane[links["dst"]].tolist()]
    return int(((links["cause"] == Cause.HANDOFF) & there).sum())


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.parquet")), ids=lambda path: path.stem)
def test_the_autograd_thread_is_called_without_its_operators_too(path):
    trace = daydream.load(path)
    nodes = np.array([name.startswith(NODES) for name in trace.text("name")])[trace["name"]]
    autograd = {f"thread {tid}" for tid in np.unique(trace["tid"][nodes]).tolist()}

    known, told = (daydream.build(each) for each in (trace, without_operators(trace)))
    assert handed_over(known, autograd) > 0
    assert handed_over(told, autograd) > 0
