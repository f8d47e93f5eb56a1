"""What recording an event typically costs: as measured on one machine, to be scaled on others.

An event costs about the same number of instructions anywhere, so the cost is scaled by how long the heads
of operators are in a trace (`daydream.graph.unprofiled.dearness`). Measuring it anew in each recorded
process, as `benchmarks/event_costs.py` does, took as long as most of the recording and was no better
(docs/collection.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    ("backward", "autograd::engine::evaluate_function: UnsafeViewBackward0", "UnsafeViewBackward0", 24, 653),
    ("backward", "UnsafeViewBackward0", "aten::reshape", 24, 764),
    ("backward", "autograd::engine::evaluate_function: CloneBackward0", "CloneBackward0", 16, 618),
    ("backward", "autograd::engine::evaluate_function: ExpandBackward0", "ExpandBackward0", 16, 653),
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
