"""What the rows of a trace cost to record: the classes they fall into, their inputs, and their heads.

The head of an operator is the time from its start to the start of the first operator
inside. Little happens there but the recording of that inner operator, so heads tell how
dear recording was at that time and place: with caches hot or cold, in fresh memory or in
used, at the clock the machine ran at.

What recording an event typically costs: as measured on one machine, to be scaled on others.

An event costs about the same number of instructions anywhere, so the cost is scaled by how long the heads
of operators are in a trace (`daydream.graph.profiler_overhead`). Measuring it anew in each recorded
process, as `benchmarks/event_costs.py` of b281a3aa does, took as long as most of the recording and was no better
(docs/collection.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daydream.arrays import combinations, first_of, places
from daydream.trace.trace import Trace

CLASSES = ("forward", "backward", "optimizer")  # of operators
RANGES = ("annotation", "module")  # ranges opened by Python code; each kind is a class of its own
LONGEST_HEAD_NS = 10_000  # in a longer one the thread was interrupted


def recorded_events(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of operators, and the class of each as a number.

    What is in neither the backward pass nor the optimizer (the loss, data, what has no phase)
    is recorded like the forward pass.
    """
    rows = np.flatnonzero(trace.is_kind("operator"))
    phase = trace["phase"][rows]
    of_class = np.zeros(len(rows), np.int64)
    for number, name in enumerate(CLASSES):
        of_class[phase == trace.code("phase", name)] = number
    return rows, of_class


def recorded_ranges(trace: Trace) -> dict[str, np.ndarray]:
    """Return the rows of each kind of range that lies on a CPU thread."""
    return {kind: np.flatnonzero(trace.is_kind(kind) & (trace["tid"] >= 0)) for kind in RANGES}


def inputs_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return how many inputs were recorded with each row; the tensors of a list count one by one."""
    shapes: list[Any] = [json.loads(text) for text in trace.text("shapes")]
    counts = [
        sum(len(one) if one and isinstance(one[0], list) else 1 for one in each) for each in shapes
    ]
    return np.array([*counts, 0], np.int64)[trace["shapes"][rows]]


def heads(trace: Trace) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Return, by (class, operator, first operator inside), how many heads there are and their mean in ns."""
    rows, of_class = recorded_events(trace)
    parent = trace["parent"][rows]
    nested = np.flatnonzero(parent >= 0)
    outer, place = places(parent[nested])
    first = nested[first_of(place, len(outer))]  # rows are in the order of their starts
    kept = trace.is_kind("operator")[outer]
    outer = outer[kept]
    first = first[kept]
    rows = rows[first]
    start = trace["start_ns"]
    length = np.minimum(start[rows] - start[outer], LONGEST_HEAD_NS)
    group, keys = combinations([of_class[first], trace["name"][outer], trace["name"][rows]])
    counts = np.bincount(group, minlength=len(keys))
    means = np.bincount(group, weights=length, minlength=len(keys)) / counts
    texts = trace.text("name")
    return {
        (CLASSES[which], texts[one], texts[other]): (count, mean)
        for (which, one, other), count, mean in zip(
            keys, counts.tolist(), means.tolist(), strict=True
        )
    }


def _typical_heads() -> list[list[Any]]:
    """Return class, operator, first operator inside, how many were met and ns, as a trace's file has them."""
    lines = Path(__file__).with_name("heads.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [[*names, int(count), int(ns)] for *names, count, ns in rows]


# Medians of four measurements by `daydream collect` on one machine (a Xeon beside an H200, torch 2.11).
# Their traces are validation/h200/train_gpt*.parquet. Other machines' costs in ns differ by a factor of two,
# and by less once they are scaled by their heads.
TYPICAL: Mapping[str, Any] = {
    "event_ns": {"forward": 1390, "backward": 1192, "optimizer": 831},
    "input_ns": 66,
    "annotation_ns": 4076,
    "module_ns": 4320,
    "memory_ns": 0,
    "inside_ns": 180,
    "before_share": 0.72,
    "heads": _typical_heads(),
}
