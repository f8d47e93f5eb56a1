"""From raw rows to a trace: nesting, launches, operators, steps, phases and layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_text import ENGINE, MAIN, call, document, kernel, note, op, row, training, write

from daydream.collect.importers import import_trace
from daydream.collect.nesting import nest
from daydream.collect.recording import Recording
from daydream.errors import TraceError
from daydream.trace import UNKNOWN, Trace


@pytest.fixture
def imported(tmp_path: Path) -> Any:
    def load(events: list[dict[str, Any]], **options: Any) -> Trace:
        return import_trace([write(tmp_path / "trace.json", document(events))], **options)

    return load


def rows_named(trace: Trace, name: str) -> list[int]:
    return np.flatnonzero(trace["name"] == trace.code("name", name)).tolist()


def parent_of(trace: Trace, name: str) -> str | None:
    [line] = rows_named(trace, name)
    parent = int(trace["parent"][line])
    return None if parent < 0 else trace.values("name", [parent])[0]


def phases(trace: Trace, *kinds: str) -> dict[str, set[str | None]]:
    """Return the phases that rows of each name have, for some kinds of rows."""
    found: dict[str, set[str | None]] = {}
    lines = np.flatnonzero(trace.is_kind(*kinds))
    for name, phase in zip(trace.values("name", lines), trace.values("phase", lines), strict=True):
        found.setdefault(name, set()).add(phase)
    return found


# Nesting


def test_rows_nest_by_containment_on_their_thread(imported: Any) -> None:
    #  |outer            |
    #   |inner    | |b|      |after|
    #    |call|
    trace = imported([
        op("outer", 0, 100), op("inner", 10, 50), op("b", 70, 10), op("after", 110, 5),
        call("cudaLaunchKernel", 20, 10, 1), op("elsewhere", 15, 10, tid=ENGINE),
    ])  # fmt: skip
    parents = {name: parent_of(trace, name) for name in trace.values("name")}
    assert parents == {
        "outer": None, "inner": "outer", "b": "outer", "after": None, "cudaLaunchKernel": "inner", "elsewhere": None,
    }  # fmt: skip


def test_profiler_steps_and_modules_are_no_parents_of_operators(imported: Any) -> None:
    trace = imported([
        note("ProfilerStep#1", 0, 100), row("python_function", "nn.Module: Linear_0", 10, 50), op("aten::linear", 20, 10),
    ])  # fmt: skip
    assert parent_of(trace, "aten::linear") is None


def test_rows_that_begin_and_end_together_nest_by_kind_then_by_id(imported: Any) -> None:
    trace = imported([
        call("cudaLaunchKernel", 5, 2, 1), op("inner", 5, 2, External_id=9), op("outer", 5, 2, External_id=8), note("range", 5, 2),
    ])  # fmt: skip
    assert parent_of(trace, "cudaLaunchKernel") == "inner"
    assert parent_of(trace, "inner") == "outer"
    assert parent_of(trace, "outer") == "range"


def test_a_child_that_ends_late_by_rounding_is_cut_without_a_note(imported: Any) -> None:
    trace = imported([op("outer", 0, 10), call("cudaLaunchKernel", 8, 3, 1)])
    [line] = rows_named(trace, "cudaLaunchKernel")
    assert trace["duration_ns"][line] == 2000
    assert not trace.metadata["notes"]


def test_a_child_that_ends_late_by_more_is_cut_and_counted(imported: Any) -> None:
    trace = imported([op("outer", 0, 10), op("inner", 8, 30)])
    [line] = rows_named(trace, "inner")
    assert trace["duration_ns"][line] == 2000
    assert any("1 host row reached beyond" in note for note in trace.metadata["notes"])


def test_an_operator_is_kept_whole_where_an_annotation_crosses_it(imported: Any) -> None:
    #  |gloo:all_reduce    |
    #             |aten::add    |
    trace = imported([note("gloo:all_reduce", 0, 20), op("aten::add", 12, 20)])
    [annotation], [operator] = rows_named(trace, "gloo:all_reduce"), rows_named(trace, "aten::add")
    assert trace["duration_ns"][annotation] == 12_000
    assert trace["duration_ns"][operator] == 20_000
    assert trace["parent"][operator] == UNKNOWN


def test_an_operator_never_lies_in_a_call(imported: Any) -> None:
    trace = imported([call("cudaLaunchKernel", 0, 10, 1), op("aten::add", 9, 20)])
    [line] = rows_named(trace, "cudaLaunchKernel")
    assert trace["duration_ns"][line] == 9000
    assert parent_of(trace, "aten::add") is None


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2), st.integers(0, 1)),
        min_size=1,
        max_size=30,
    )
)
def test_any_rows_become_properly_nested(spans: list[tuple[int, int, int, int]]) -> None:
    columns = {
        "start_ns": np.array([start * 1000 for start, *_ in spans]),
        "duration_ns": np.array([length * 1000 for _, length, *_ in spans]),
        "kind": np.array([kind for _, _, kind, _ in spans]),
        "name": np.zeros(len(spans), np.int32),
        "pid": np.ones(len(spans), np.int64),
        "tid": np.array([thread for *_, thread in spans]),
    }
    recording = Recording(columns, {"kind": ["annotation", "operator", "runtime"], "name": ["x"]})
    nesting = nest(recording)
    start, end = columns["start_ns"], columns["start_ns"] + nesting.duration_ns
    assert (nesting.duration_ns >= 0).all()
    assert (nesting.duration_ns <= columns["duration_ns"]).all()
    for a in range(len(spans)):
        above = nesting.parent[a]
        if above >= 0:
            assert start[above] <= start[a] <= end[a] <= end[above]
            assert columns["tid"][above] == columns["tid"][a]
        for b in range(len(spans)):
            if columns["tid"][a] == columns["tid"][b] and start[a] < start[b] < end[a]:
                assert end[b] <= end[a]


# Launches and operators


def test_device_rows_find_their_launch_and_operator(imported: Any) -> None:
    trace = imported(training(1))
    assert parent_of(trace, "ampere_sgemm_32x32_tn") == "cudaLaunchKernel"
    [line] = rows_named(trace, "ampere_sgemm_32x32_tn")
    assert trace.values("op", [line]) == ["aten::addmm"]
    assert trace.values("op", [int(trace["parent"][line])]) == ["aten::addmm"]


def test_of_several_calls_with_one_correlation_the_inner_launch_counts(imported: Any) -> None:
    trace = imported([
        op("aten::add", 0, 100), call("hipLaunchKernel", 10, 50, 1), call("hipExtModuleLaunchKernel", 20, 30, 1),
        call("cudaStreamIsCapturing", 70, 5, 1), kernel("add<float>", 60, 5, 1),
    ])  # fmt: skip
    assert parent_of(trace, "add<float>") == "hipExtModuleLaunchKernel"
    assert parent_of(trace, "hipExtModuleLaunchKernel") == "hipLaunchKernel"


def test_one_graph_launch_may_have_many_kernels(imported: Any) -> None:
    trace = imported(
        [call("cudaGraphLaunch", 0, 10, 1), *[kernel("k", 10 + index, 1, 1) for index in range(5)]]
    )
    assert {trace.values("name", [line])[0] for line in trace["parent"][rows_named(trace, "k")].tolist()} == {
        "cudaGraphLaunch"
    }


def test_device_rows_without_a_launch_are_counted(imported: Any) -> None:
    trace = imported([*training(2), kernel("early", 1, 5, 999)])
    assert parent_of(trace, "early") is None
    assert trace.values("step", rows_named(trace, "early")) == [None]
    assert any("1 of 11 device rows have no launch" in note for note in trace.metadata["notes"])


def test_a_correlation_put_into_external_id_names_no_operator(imported: Any) -> None:
    trace = imported([
        op("aten::other", 0, 5, External_id=57), note("FusedAdam", 10, 50, External_id=3),
        call("cudaLaunchKernel", 20, 5, 57, External_id=57), kernel("adam<float>", 30, 5, 57, External_id=57),
    ])  # fmt: skip
    assert trace.values("op", rows_named(trace, "adam<float>")) == [None]


# Steps


def test_a_step_is_measured_from_completion_to_completion(imported: Any) -> None:
    #  the last kernel of step n ends at 640 + 30 + n; host work of the step ends at 780
    trace = imported(training(3))
    steps = trace.metadata["steps"]
    assert trace.metadata["step_source"] == "ProfilerStep# ranges"
    assert [step["name"] for step in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert [step["completion_ns"] for step in steps] == [780_000, 1_780_000, 2_780_000]
    assert [step["measured_ns"] for step in steps] == [None, 1_000_000, 1_000_000]
    assert [step["covered"] for step in steps] == [False, True, True]
    assert steps[0]["why_not"]


def test_device_work_counts_for_the_step_that_launched_it(imported: Any) -> None:
    events = training(2)
    events.append(call("cudaLaunchKernel", 900, 10, 71))
    events.append(kernel("late<float>", 1500, 400, 71))
    trace = imported(events)
    assert trace.values("step", rows_named(trace, "late<float>")) == [0]
    assert trace.metadata["steps"][0]["completion_ns"] == 1_900_000
    assert (
        trace.metadata["steps"][1]["measured_ns"] == 0
    )  # the second step was done before the first one's work


def test_the_only_step_runs_from_its_start(imported: Any) -> None:
    [step] = imported(training(1)).metadata["steps"]
    assert (step["measured_ns"], step["covered"]) == (780_000, True)


def test_the_only_step_is_not_covered_when_earlier_work_runs_in_it(imported: Any) -> None:
    [step] = imported([*training(1), kernel("early", 1, 5, 999)]).metadata["steps"]
    assert step["covered"] is False
    assert "before the window" in step["why_not"]


def test_steps_without_work_are_no_steps(imported: Any) -> None:
    trace = imported([*training(2), note("ProfilerStep#2", 2000, 10)])
    assert [step["name"] for step in trace.metadata["steps"]] == ["ProfilerStep#0", "ProfilerStep#1"]


def without_markers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if not str(event["name"]).startswith("ProfilerStep")]


def test_without_profiler_steps_the_optimizer_ends_them(imported: Any) -> None:
    trace = imported(without_markers(training(3)))
    assert trace.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    steps = trace.metadata["steps"]
    assert [step["end_ns"] for step in steps] == [
        699_000,
        1_699_000,
        2_699_000,
    ]  # the loader at 1 us is the origin
    assert [step["measured_ns"] for step in steps] == [
        None,
        1_001_000,
        1_001_000,
    ]  # each last kernel is 1 us longer


def test_of_several_optimizers_the_rarest_ends_the_steps(imported: Any) -> None:
    events = without_markers(training(6))
    for index in (2, 5):  # a generator that is trained every third time
        events.append(note("Optimizer.step#Generator.step", 1000 * index + 720, 10))
        events.append(op("GeneratorBackward0", 1000 * index + 710, 5))
    trace = imported(events)
    assert trace.metadata["step_source"] == "ends of Optimizer.step#Generator.step"
    assert len(trace.metadata["steps"]) == 2


def test_optimizers_without_a_backward_between_them_end_one_step(imported: Any) -> None:
    events = without_markers(training(3))
    events += [note("Optimizer.step#SGD.step", 1000 * step + 705, 20) for step in range(3)]
    steps = imported(events).metadata["steps"]
    assert [step["end_ns"] for step in steps] == [724_000, 1_724_000, 2_724_000]


def test_a_marker_pattern_chooses_any_ranges(imported: Any) -> None:
    events = without_markers(training(3)) + [
        note(f"iteration {index}", 1000 * index, 990) for index in range(3)
    ]
    trace = imported(events, step_marker=r"^iteration \d+$")
    assert [step["name"] for step in trace.metadata["steps"]] == ["iteration 0", "iteration 1", "iteration 2"]
    with pytest.raises(TraceError, match="no annotation matches"):
        imported(events, step_marker="epoch")
    with pytest.raises(TraceError, match="not a regular expression"):
        imported(events, step_marker="(")
    with pytest.raises(TraceError, match="only 'auto'"):
        imported(events, steps="often")


def test_without_any_marker_the_whole_recording_is_a_step(imported: Any) -> None:
    trace = imported(
        [op("aten::add", 0, 50), call("cudaLaunchKernel", 10, 5, 1), kernel("add<float>", 20, 100, 1)]
    )
    assert "whole recording" in trace.metadata["step_source"]
    assert [step["measured_ns"] for step in trace.metadata["steps"]] == [120_000]


def test_an_optimizer_range_cut_off_by_the_end_lasts_to_the_end(imported: Any) -> None:
    events = without_markers(training(3))
    last = next(event for event in reversed(events) if str(event["name"]).startswith("Optimizer.step"))
    last["dur"] = 0
    trace = imported(events)
    assert trace.metadata["steps"][-1]["completion_ns"] == 2_779_000
    assert phases(trace, "kernel")["multi_tensor_apply<float>"] == {"optimizer"}


def test_threads_that_do_no_work_belong_to_no_step(imported: Any) -> None:
    watchdog = [call("cudaEventQuery", 100 * index, 2, 5000 + index, tid=-9) for index in range(20)]
    trace = imported([*training(2), *watchdog])
    lines = rows_named(trace, "cudaEventQuery")
    assert set(trace.values("step", lines)) == {None}
    assert set(trace.values("phase", lines)) == {None}


# Phases


def test_phases_of_a_training_step(imported: Any) -> None:
    trace = imported(training(3))
    found = phases(trace, "operator", "annotation")
    assert found["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == {"data"}
    assert found["aten::linear"] == {"forward"}
    assert found["aten::mse_loss"] == {"loss"}
    assert found["autograd::engine::evaluate_function: AddmmBackward0"] == {"backward"}
    assert found["autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"] == {"backward"}
    assert found["Optimizer.step#SGD.step"] == {"optimizer"}
    assert found["aten::add_"] == {"optimizer"}
    assert found["aten::item"] == {"other"}
    assert found["ProfilerStep#1"] == {None}
    on_device = phases(trace, "kernel")
    assert on_device == {
        "ampere_sgemm_32x32_tn": {"forward"}, "reduce_kernel<float>": {"loss"}, "mse_backward<float>": {"backward"},
        "ampere_sgemm_32x32_nt": {"backward"}, "multi_tensor_apply<float>": {"optimizer"},
    }  # fmt: skip


def test_accumulated_gradients_have_several_forward_passes(imported: Any) -> None:
    events = []
    for index in range(2):
        at, seq = 300 * index, index + 1
        events += [
            op("aten::mul", at + 10, 20, Sequence_number=seq), op("aten::silu", at + 40, 20),
            op("autograd::engine::evaluate_function: MulBackward0", at + 100, 50, tid=ENGINE, Sequence_number=seq, Fwd_thread_id=1),
        ]  # fmt: skip
    events += [op("aten::clip", 500, 20), note("Optimizer.step#SGD.step", 600, 50), op("aten::item", 700, 5)]
    found = phases(imported(events), "operator")
    assert found["aten::mul"] == found["aten::silu"] == {"forward"}
    assert found["aten::clip"] == found["aten::item"] == {"other"}


def test_a_closure_runs_forward_and_backward_inside_the_optimizer(imported: Any) -> None:
    trace = imported([
        note("Optimizer.step#LBFGS.step", 0, 500), op("aten::linear", 10, 50, Sequence_number=1),
        op("autograd::engine::evaluate_function: AddmmBackward0", 100, 50, Sequence_number=1, Fwd_thread_id=1),
        op("aten::add_", 200, 50),
    ])  # fmt: skip
    found = phases(trace, "operator")
    assert found["aten::linear"] == {"forward"}
    assert found["autograd::engine::evaluate_function: AddmmBackward0"] == {"backward"}
    assert found["aten::add_"] == {"optimizer"}


def test_old_names_of_autograd_nodes_are_backward(imported: Any) -> None:
    trace = imported([
        op("aten::relu", 0, 10), op("ReluBackward1", 50, 20, tid=ENGINE), op("aten::threshold_backward", 55, 10, tid=ENGINE),
        op("torch::autograd::AccumulateGrad", 80, 10, tid=ENGINE), call("cudaEventQuery", 95, 1, 1, tid=ENGINE),
    ])  # fmt: skip
    assert {name: phase for name, [phase] in phases(trace, "operator", "runtime").items()} == {
        "aten::relu": "forward", "ReluBackward1": "backward", "aten::threshold_backward": "backward",
        "torch::autograd::AccumulateGrad": "backward", "cudaEventQuery": "backward",
    }  # fmt: skip


@pytest.mark.parametrize(
    "names", [("forward", "backward", "optimizer"), ("## Forward ##", "## BACKWARD ##", "Optimizer step")]
)
def test_named_ranges_set_the_phase_where_nothing_better_is_known(
    imported: Any, names: tuple[str, str, str]
) -> None:
    events = []
    for index, name in enumerate(names):
        events += [
            note(name, 100 * index, 90), call("cudaLaunchKernel", 100 * index + 10, 5, index + 1),
            kernel(f"kernel {index}", 100 * index + 20, 5, index + 1),
        ]  # fmt: skip
    found = phases(imported(events), "kernel")
    assert found == {"kernel 0": {"forward"}, "kernel 1": {"backward"}, "kernel 2": {"optimizer"}}


def test_a_range_named_backward_that_holds_the_loss_leaves_it_to_the_loss(imported: Any) -> None:
    trace = imported([
        note("## backward ##", 0, 500), op("aten::cross_entropy_loss", 10, 50, Sequence_number=1),
        op("autograd::engine::evaluate_function: NllLossBackward0", 100, 50, tid=ENGINE, Sequence_number=1, Fwd_thread_id=1),
    ])  # fmt: skip
    assert phases(trace, "operator")["aten::cross_entropy_loss"] == {"loss"}


def test_without_a_backward_everything_is_forward(imported: Any) -> None:
    found = phases(imported([op("aten::linear", 0, 10), op("aten::relu", 20, 10)]), "operator")
    assert found == {"aten::linear": {"forward"}, "aten::relu": {"forward"}}


# Layers


def test_layers_come_from_module_frames_and_reach_the_backward(imported: Any) -> None:
    frames = []
    for step in range(2):
        at = 1000 * step
        frames += [
            row("python_function", "nn.Module: Net_0", at + 95, 80), row("python_function", "nn.Module: Linear_0", at + 98, 60),
        ]  # fmt: skip
    trace = imported([*training(2), *frames])
    [line, _] = rows_named(trace, "ampere_sgemm_32x32_tn")
    assert trace.values("layer", [line]) == ["Net_0.Linear_0"]
    for name in ("ampere_sgemm_32x32_nt", "autograd::engine::evaluate_function: AddmmBackward0",
                 "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):  # fmt: skip
        assert set(trace.values("layer", rows_named(trace, name))) == {"Net_0.Linear_0"}
    assert set(trace.values("layer", rows_named(trace, "aten::mse_loss"))) == {None}


@pytest.mark.parametrize("category", ["cpu_op", "user_annotation"])
def test_ranges_with_a_whole_path_are_taken_as_they_are(imported: Any, category: str) -> None:
    trace = imported([
        row(category, "nn.Module: encoder", 0, 100), row(category, "nn.Module: encoder.layers.0", 10, 80), op("aten::linear", 20, 10),
    ])  # fmt: skip
    assert trace.values("layer", rows_named(trace, "aten::linear")) == ["encoder.layers.0"]
    assert trace.values("kind", rows_named(trace, "encoder")) == ["module"]


def test_a_backward_node_belongs_to_the_last_forward_operator_with_its_number(imported: Any) -> None:
    def module(name: str, at: int) -> dict[str, Any]:
        return row("python_function", f"nn.Module: {name}", at, 15)

    trace = imported([
        module("A_0", 0), op("aten::mul", 2, 5, Sequence_number=7),
        module("B_0", 20), op("aten::detach", 22, 5, Sequence_number=7),
        op("autograd::engine::evaluate_function: MulBackward0", 50, 10, tid=ENGINE, Sequence_number=7, Fwd_thread_id=1),
        module("C_0", 70), op("aten::later", 72, 5, Sequence_number=7),
    ])  # fmt: skip
    assert trace.values("layer", rows_named(trace, "autograd::engine::evaluate_function: MulBackward0")) == [
        "B_0"
    ]


def test_forward_threads_keep_their_numbers_apart(imported: Any) -> None:
    other = MAIN + 50
    events = []
    for seq in range(3):
        events += [
            row("python_function", f"nn.Module: Main_{seq}", 10 * seq, 9), op("aten::a", 10 * seq + 1, 5, Sequence_number=seq),
            row("python_function", f"nn.Module: Other_{seq}", 10 * seq, 9, tid=other),
            op("aten::b", 10 * seq + 1, 5, tid=other, Sequence_number=seq + 1),
        ]  # fmt: skip
    events += [
        op("NodeBackward0", 100, 5, tid=ENGINE, Sequence_number=0, Fwd_thread_id=1),
        op("NodeBackward0", 110, 5, tid=ENGINE, Sequence_number=3, Fwd_thread_id=2),
    ]
    trace = imported(events)
    assert trace.values("layer", rows_named(trace, "NodeBackward0")) == ["Main_0", "Other_2"]


def test_a_module_that_is_run_again_outside_its_parents_keeps_its_path(imported: Any) -> None:
    trace = imported([
        row("python_function", "nn.Module: Net_0", 0, 50), row("python_function", "nn.Module: Block_0", 5, 40),
        row("python_function", "nn.Module: Conv2d_0", 10, 20), op("aten::conv2d", 12, 5),
        row("python_function", "nn.Module: Block_0", 105, 40, tid=ENGINE),
        row("python_function", "nn.Module: Conv2d_0", 110, 20, tid=ENGINE), op("aten::conv2d", 112, 5, tid=ENGINE),
    ])  # fmt: skip
    assert trace.values("layer", rows_named(trace, "aten::conv2d")) == ["Net_0.Block_0.Conv2d_0"] * 2


def test_the_module_hierarchy_argument_names_the_layer(imported: Any) -> None:
    trace = imported(
        [
            op("aten::linear", 0, 50, Module_Hierarchy="Net.fc1"),
            op("aten::addmm", 10, 20, Module_Hierarchy=""),
        ]
    )
    assert trace.values("layer", rows_named(trace, "aten::linear")) == ["Net.fc1"]


def test_layers_are_absent_where_nothing_names_them(imported: Any) -> None:
    assert "layer" not in imported(training(2)).columns
