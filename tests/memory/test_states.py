"""The optimizer's state among what was held before a recording, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from two_blocks import WEIGHT, edited, two_blocks

from daydream.memory.allocations import BEFORE
from daydream.memory.before import let_states_shrink
from daydream.memory.lifetimes import allocations
from daydream.trace.memory_events import MemoryEvents


def on_a_gpu(before: int, **metadata):
    """The steps of Adam on a GPU whose totals tell that so many bytes were held before them."""
    trace = two_blocks()
    events = {name: trace.memory[name] for name in ("time_ns", "address", "bytes", "pid", "tid")}
    total = before + np.cumsum(events["bytes"])
    trace.memory = MemoryEvents(
        {**events, "device": np.zeros(len(total), np.int64), "allocated_bytes": total}
    )
    for name in ("parameters", "optimizers"):
        trace.metadata.pop(name)
    trace.metadata.update(metadata)
    return trace


def before(held, kind: str) -> list[int]:
    return held["bytes"][held.where(kind=kind, on="gpu") & (held["begin"] == BEFORE)].tolist()


def test_adam_keeps_two_values_of_each_parameter_that_gets_a_gradient():
    #  held before: two weights of 256 bytes and two moments of each; 100 bytes nobody knows of
    held = allocations(on_a_gpu(2 * WEIGHT + 4 * WEIGHT + 100))
    assert before(held, "optimizer_state") == [WEIGHT] * 4
    assert before(held, "unknown") == [2 * WEIGHT + 100]
    assert any("assumed to be the optimizer's state" in note for note in held.notes)


def test_state_that_is_told_goes_or_is_shared():
    trace = on_a_gpu(6 * WEIGHT)
    assert before(edited(trace, "p3", update="server"), "optimizer_state") == []
    held = edited(trace, "fsdp", stage=1, workers=8)
    assert before(held, "optimizer_state") == [512] * 4  # 32 bytes, as the allocator rounds them
    assert before(held, "unknown") == [2 * WEIGHT]


@pytest.mark.parametrize(("case", "left"), [("least", 512), ("expected", 512), ("most", 4 * 512)])
def test_state_that_is_not_told_is_a_range(case, left):
    # 2,048 bytes are held before, of which 1,536 are the state: as described it has no room beside weights.
    adam = {"name": "Adam", "state_bytes": 3 * 512, "groups": []}
    trace = on_a_gpu(4 * 512, optimizers=[adam], parameters=[])
    held = allocations(trace)
    held.remove(held.where(kind="optimizer_state"))
    held["bytes"][held.where(kind="unknown", on="gpu") & (held["begin"] == BEFORE)] = 4 * 512
    held.case = case
    let_states_shrink(held)
    assert before(held, "unknown") == [left]
    assert held.doubted_cases == {"most"}
