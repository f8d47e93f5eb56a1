"""Times of changed operators from two recordings, worked out by hand."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "optimizations"))
from recorded import Program

from daydream import NotApplicableError
from daydream.calibration.run import calibrate_in_place
from daydream.costs import KernelTable


def recorded(gelu, back, product, operators=None, **other):
    """Some GELUs of so many ns, a product that no change touches, and the GELUs' nodes."""
    program = Program()

    def call(name, phase, ns, **columns):
        with program.range(name, "operator", phase=phase, op=name, dtype="float32", **columns):
            program.now += ns

    call("aten::mm", "forward", product, shapes="[[4, 4], [4, 4]]")
    for sequence, ns in enumerate(gelu, 1):
        call("aten::gelu", "forward", ns, shapes="[[4, 8], []]", sequence=sequence)
    for sequence in range(len(gelu), 0, -1):
        with program.range("GeluBackward0", "operator", phase="backward", sequence=sequence):
            call("aten::gelu_backward", "backward", back)
    for name, ns in other.items():
        call(f"aten::{name}", "forward", ns, shapes="[[2]]")
    graph = program.graph()
    trace = graph.trace
    assert trace is not None
    if operators is not None:
        trace.metadata["changed_operators"] = operators
    return trace


def times(result):
    return {(each.op, each.phase): (each.before_ns, each.duration_ns) for each in result.measured}


def test_calls_are_compared_forward_and_backward_and_the_table_is_read_as_it_was_written(tmp_path):
    found = calibrate_in_place(
        recorded([100] * 4, 200, 1_000), recorded([40] * 4, 300, 1_000, ["aten::gelu"])
    )
    assert times(found) == {("aten::gelu", "forward"): (100, 40), ("aten::gelu", "backward"): (200, 300)}
    assert (found.drift, found.device, found.left_out) == (1.0, "cpu", [])
    found.save(tmp_path / "times.parquet")
    table = KernelTable.load(tmp_path / "times.parquet")
    assert table.in_place == found.table().in_place
    assert list(table.in_place.values()) == [[(100.0, 40.0), (200.0, 300.0)]]
    assert table.device == "cpu"


def test_the_lower_quartile_counts_as_other_programs_only_add():
    before = recorded([100, 100, 100, 9_000], 200, 1_000)
    assert times(calibrate_in_place(before, recorded([50] * 4, 200, 1_000, ["aten::gelu"])))[
        "aten::gelu", "forward"
    ] == (100, 50)


def test_a_machine_that_slowed_down_is_no_change():
    found = calibrate_in_place(
        recorded([100] * 4, 200, 1_000), recorded([200] * 4, 400, 2_000, ["aten::gelu"])
    )
    assert found.drift == 2.0
    assert times(found) == {("aten::gelu", "forward"): (100, 100), ("aten::gelu", "backward"): (200, 200)}


def test_what_one_recording_lacks_is_left_out_and_said():
    after = recorded([100] * 4, 200, 1_000, ["aten::gelu", "aten::relu"], relu=5)
    found = calibrate_in_place(recorded([100] * 4, 200, 1_000), after)
    assert found.left_out == ["aten::relu [[2]] float32: only with the change"]


def test_a_tool_that_orders_nothing_is_told():
    one = recorded([100], 200, 1_000)
    with pytest.raises(NotApplicableError, match="no operator of this script"):
        calibrate_in_place(one, one)
    with pytest.raises(NotApplicableError, match="no call of aten::silu"):
        calibrate_in_place(one, recorded([100], 200, 1_000, ["aten::silu"]))
