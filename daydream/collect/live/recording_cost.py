"""What the rows of a trace cost to record: the classes they fall into, their inputs, and their heads.

The head of an operator is the time from its start to the start of the first operator
inside. Little happens there but the recording of that inner operator, so heads tell how
dear recording was at that time and place: with caches hot or cold, in fresh memory or in
used, at the clock the machine ran at.

What recording an event typically costs: as measured on one machine, to be scaled on others.

An event costs about the same number of instructions anywhere, so the cost is scaled by how long the heads
of operators are in a trace (`daydream.graph.profiler_overhead`). Measuring it anew in each recorded
process, as `benchmarks/event_costs.py` does, took as long as most of the recording and was no better
(docs/collection.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from daydream.arrays import places
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
    counts = [_inputs(text) for text in trace.text("shapes")]
    return np.array([*counts, 0], np.int64)[trace["shapes"][rows]]


def heads(trace: Trace) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Return, by (class, operator, first operator inside), how many heads there are and their mean in ns."""
    rows, of_class = recorded_events(trace)
    operator = trace.is_kind("operator")
    inner = operator[rows] & (trace["parent"][rows] >= 0)
    rows = rows[inner]
    of_class = of_class[inner]
    outer, place = places(trace["parent"][rows])
    first = np.empty(len(outer), np.int64)
    first[place[::-1]] = np.arange(len(place))[
        ::-1
    ]  # the last assigned stays: rows are in order of start
    rows = rows[first]
    of_class = of_class[first]
    kept = operator[outer]
    rows = rows[kept]
    of_class = of_class[kept]
    outer = outer[kept]
    start = trace["start_ns"]
    length = np.minimum(start[rows] - start[outer], LONGEST_HEAD_NS)
    name = np.asarray(trace["name"], np.int64)
    size = len(trace.text("name"))
    keys = (of_class * size + name[outer]) * size + name[rows]
    keys, group = places(keys)
    counts = np.bincount(group, minlength=len(keys))
    means = np.bincount(group, weights=length, minlength=len(keys)) / np.maximum(counts, 1)
    texts = trace.text("name")
    return {
        (CLASSES[key // size // size], texts[key // size % size], texts[key % size]): (count, mean)
        for key, count, mean in zip(keys.tolist(), counts.tolist(), means.tolist(), strict=True)
    }


def _inputs(text: str) -> int:
    shapes: Any = json.loads(text)
    return sum(len(one) if one and isinstance(one[0], list) else 1 for one in shapes)


# Operators that call another at once: class, operator, first one inside, how many were met in the
# measurement, and ns from start to start.
_HEADS = (
    ("forward", "aten::linear", "aten::view", 16, 935),
    ("forward", "aten::linear", "aten::t", 12, 706),
    ("forward", "aten::t", "aten::transpose", 28, 1549),
    ("forward", "aten::transpose", "aten::as_strided", 36, 1485),
    ("forward", "aten::addmm", "aten::expand", 28, 3579),
    ("forward", "aten::expand", "aten::as_strided", 44, 1359),
    ("forward", "aten::select", "aten::as_strided", 12, 1559),
    ("forward", "aten::reshape", "aten::clone", 16, 1370),
    ("forward", "aten::clone", "aten::empty_like", 16, 1363),
    ("forward", "aten::empty_like", "aten::empty", 24, 823),
    ("forward", "aten::to", "aten::_to_copy", 10, 774),
    ("forward", "aten::_to_copy", "aten::empty_strided", 10, 1742),
    ("forward", "aten::relu", "aten::clamp_min", 18, 1341),
    ("backward", "aten::t", "aten::transpose", 110, 604),
    ("backward", "aten::transpose", "aten::as_strided", 134, 993),
    ("backward", "aten::reshape", "aten::view", 56, 645),
    ("backward", "aten::empty_like", "aten::empty", 24, 751),
    ("backward", "aten::bmm", "aten::resolve_conj", 16, 1748),
    ("backward", "aten::mul", "aten::to", 10, 1304),
    ("backward", "aten::to", "aten::_to_copy", 16, 600),
    ("backward", "aten::_to_copy", "aten::empty_strided", 16, 1145),
    ("backward", "aten::sum", "aten::fill_", 28, 2459),
    ("backward", "autograd::engine::evaluate_function: AddBackward0", "AddBackward0", 16, 677),
    ("backward", "autograd::engine::evaluate_function: ViewBackward0", "ViewBackward0", 40, 625),
    ("backward", "ViewBackward0", "aten::reshape", 40, 819),
    ("backward", "autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", 28, 619),
    ("backward", "AddmmBackward0", "aten::t", 28, 1041),
    ("backward", "aten::mm", "aten::resolve_conj", 54, 1858),
    (
        "backward",
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
        "torch::autograd::AccumulateGrad",
        96,
        1046,
    ),
    ("backward", "torch::autograd::AccumulateGrad", "aten::detach", 96, 840),
    ("backward", "aten::detach", "detach", 96, 516),
    ("backward", "autograd::engine::evaluate_function: TBackward0", "TBackward0", 28, 631),
    ("backward", "TBackward0", "aten::t", 28, 590),
    (
        "backward",
        "autograd::engine::evaluate_function: UnsafeViewBackward0",
        "UnsafeViewBackward0",
        24,
        653,
    ),
    ("backward", "UnsafeViewBackward0", "aten::reshape", 24, 764),
    ("backward", "autograd::engine::evaluate_function: CloneBackward0", "CloneBackward0", 16, 618),
    (
        "backward",
        "autograd::engine::evaluate_function: ExpandBackward0",
        "ExpandBackward0",
        16,
        653,
    ),
    ("backward", "aten::narrow", "aten::slice", 12, 1004),
    ("backward", "aten::slice", "aten::as_strided", 12, 1073),
    ("backward", "autograd::engine::evaluate_function: ReluBackward0", "ReluBackward0", 18, 723),
    ("backward", "ReluBackward0", "aten::threshold_backward", 18, 1442),
    ("optimizer", "aten::to", "aten::_to_copy", 384, 540),
    ("optimizer", "aten::_to_copy", "aten::empty_strided", 384, 943),
    ("optimizer", "aten::div", "aten::to", 96, 1438),
    ("optimizer", "aten::add_", "aten::to", 192, 1413),
    ("optimizer", "aten::mul_", "aten::to", 96, 1397),
    ("optimizer", "aten::item", "aten::_local_scalar_dense", 96, 696),
)
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
    "heads": [list(each) for each in _HEADS],  # as a file gives them back
}
