"""Fused kernels in the graph: each owner's part, and what-ifs bounded by it."""

import numpy as np
import pytest
from handles.test_attach import kernels

from daydream import DebugHandleMap, GraphError, Handle, build, simulate, whatif

FUSED = DebugHandleMap(
    {
        "fused": [
            Handle("aten::add", "blocks.1.fc1", phase="forward", weight=7),
            Handle("aten::gelu", "blocks.1.fc2", phase="forward", weight=2),
            Handle("aten::mul", "blocks.1.fc2", phase="forward", weight=1),
        ]
    },
    rule="bytes",
)


def compiled():
    #  stream 7  |gemm 100|fused 200: fc1 140, fc2 40 + 20|
    trace = kernels(["gemm", "fused"], [100, 200])
    trace.columns["start_ns"] = np.array([0, 100])
    return trace.attach_handles(FUSED)


def test_a_fused_kernel_is_one_part_for_each_owner():
    tasks = build(compiled()).select(name="fused")
    assert tasks.duration_ns.tolist() == [140, 40, 20]
    assert tasks.layer.tolist() == ["blocks.1.fc1", "blocks.1.fc2", "blocks.1.fc2"]
    assert tasks.op.tolist() == ["aten::add", "aten::gelu", "aten::mul"]
    assert tasks.measured_start_ns.tolist() == [100, 240, 280]


def test_scaling_a_layer_changes_its_share_alone():
    graph = build(compiled())
    graph.select(layer="blocks.1.fc2").scale(0.5)  # 30 % of 200 ns
    assert graph.select(name="fused").duration_ns.tolist() == [140, 20, 10]
    assert simulate(graph).makespan_ns == 100 + 200 - 30


def test_an_identifier_selects_all_parts():
    graph = build(compiled())
    assert graph.select(handle="fused").total("duration_ns") == 200
    with pytest.raises(GraphError, match="no compiled piece has the identifier 'other'"):
        graph.select(handle="other")


def test_parts_add_up_however_times_round():
    three = DebugHandleMap({"fused": [Handle("a", "x"), Handle("b", "y"), Handle("c", "z")]})
    trace = kernels(["fused"], [100]).attach_handles(three)
    assert build(trace).select(name="fused").duration_ns.tolist() == [33, 34, 33]


def test_scale_layer_is_a_what_if_of_its_share():
    trace = compiled()
    trace.columns["step"] = np.zeros(2, np.int32)
    trace.metadata["steps"] = [
        {"name": "step", "rank": 0, "start_ns": 0, "end_ns": 300, "measured_ns": 300, "covered": True}
    ]
    answer = whatif(trace, "scale", layer="blocks.1.fc2", factor=0.5)
    assert answer.replayed_ns - answer.predicted_ns == 30
