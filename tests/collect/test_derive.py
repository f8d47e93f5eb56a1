"""From raw rows to a trace: who encloses whom, and who launched what."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_text import ENGINE, call, kernel, note, op, row, rows_named, training
from pyarrow import parquet
from view_text import view_text

import daydream
from daydream.collect.derive.nesting import nest
from daydream.collect.derive.recording import Recording
from daydream.collect.derive.source_lines import SourceLines, own_frame
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace


def parent_of(trace, name):
    [line] = rows_named(trace, name)
    parent = int(trace["parent"][line])
    return None if parent < 0 else str(trace.values("name", [parent])[0])


# Nesting


def test_rows_nest_by_containment_on_their_thread(imported):
    #  |outer            |
    #   |inner    | |b|      |after|
    #    |call|
    trace = imported(
        [
            op("outer", 0, 100),
            op("inner", 10, 50),
            op("b", 70, 10),
            op("after", 110, 5),
            call("cudaLaunchKernel", 20, 10, 1),
            op("elsewhere", 15, 10, tid=ENGINE),
        ]
    )
    parents = {name: parent_of(trace, name) for name in trace.values("name")}
    assert parents == {
        "outer": None,
        "inner": "outer",
        "b": "outer",
        "after": None,
        "cudaLaunchKernel": "inner",
        "elsewhere": None,
    }


def test_profiler_steps_and_modules_are_no_parents_of_operators(imported):
    trace = imported(
        [
            note("ProfilerStep#1", 0, 100),
            row("python_function", "nn.Module: Linear_0", 10, 50),
            op("aten::linear", 20, 10),
        ]
    )
    assert parent_of(trace, "aten::linear") is None


def test_rows_that_begin_and_end_together_nest_by_kind_then_by_id(imported):
    trace = imported(
        [
            call("cudaLaunchKernel", 5, 2, 1),
            op("inner", 5, 2, External_id=9),
            op("outer", 5, 2, External_id=8),
            note("range", 5, 2),
        ]
    )
    assert parent_of(trace, "cudaLaunchKernel") == "inner"
    assert parent_of(trace, "inner") == "outer"
    assert parent_of(trace, "outer") == "range"


@pytest.mark.parametrize("late", [0.05, 0.25, 1])
def test_what_begins_before_the_call_ahead_ends_by_rounding_is_no_part_of_it(imported, late):
    #  |mm                              |
    #   |inner         |
    #    |memset       |
    #                |launch      |
    rows = [
        op("mm", 0, 20),
        op("inner", 1, 4 + late),
        call("memset", 2, 3 + late, 1),
        call("launch", 5, 9, 2),
    ]
    trace = imported(rows)
    assert trace["duration_ns"].tolist() == [20_000, 4_000, 3_000, 9_000]
    assert [parent_of(trace, name) for name in ("launch", "memset")] == ["mm", "inner"]
    assert not trace.metadata["notes"]


def test_a_child_that_ends_late_by_more_is_cut_and_counted(imported):
    trace = imported([op("outer", 0, 10), op("inner", 8, 30)])
    [line] = rows_named(trace, "inner")
    assert trace["duration_ns"][line] == 2000
    assert any("1 host row reached beyond" in note for note in trace.metadata["notes"])


def test_an_operator_is_kept_whole_where_an_annotation_crosses_it(imported):
    #  |gloo:all_reduce    |
    #             |aten::add    |
    trace = imported([note("gloo:all_reduce", 0, 20), op("aten::add", 12, 20)])
    [annotation], [operator] = rows_named(trace, "gloo:all_reduce"), rows_named(trace, "aten::add")
    assert trace["duration_ns"][annotation] == 12_000
    assert trace["duration_ns"][operator] == 20_000
    assert trace["parent"][operator] == UNKNOWN


def test_an_operator_never_lies_in_a_call(imported):
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
def test_any_rows_become_properly_nested(spans):
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


def test_device_rows_find_their_launch_and_operator(imported):
    trace = imported(training(1))
    assert parent_of(trace, "ampere_sgemm_32x32_tn") == "cudaLaunchKernel"
    [line] = rows_named(trace, "ampere_sgemm_32x32_tn")
    assert trace.values("op", [line]) == ["aten::addmm"]
    assert trace.values("op", [int(trace["parent"][line])]) == ["aten::addmm"]


def test_of_several_calls_with_one_correlation_the_inner_launch_counts(imported):
    trace = imported(
        [
            op("aten::add", 0, 100),
            call("hipLaunchKernel", 10, 50, 1),
            call("hipExtModuleLaunchKernel", 20, 30, 1),
            call("cudaStreamIsCapturing", 70, 5, 1),
            kernel("add<float>", 60, 5, 1),
        ]
    )
    assert parent_of(trace, "add<float>") == "hipExtModuleLaunchKernel"
    assert parent_of(trace, "hipExtModuleLaunchKernel") == "hipLaunchKernel"


def test_a_correlation_put_into_external_id_names_no_operator(imported):
    trace = imported(
        [
            op("aten::other", 0, 5, External_id=57),
            note("FusedAdam", 10, 50, External_id=3),
            call("cudaLaunchKernel", 20, 5, 57, External_id=57),
            kernel("adam<float>", 30, 5, 57, External_id=57),
        ]
    )
    assert trace.values("op", rows_named(trace, "adam<float>")) == [None]


def as_kernels(trace):
    """Return the trace as `collect` wrote it up to November 2026 with torch 2.11: no row is a sync."""
    kinds = trace.texts["kind"]
    waits = trace["kind"] == kinds.index("sync")
    changed = {"kind": np.where(waits, kinds.index("kernel"), trace["kind"]).astype(trace["kind"].dtype)}
    for name in ("op", "phase"):
        changed[name] = np.where(waits, 0, trace[name]).astype(trace[name].dtype)
    return Trace({**trace.columns, **changed}, trace.texts, trace.metadata)


def test_a_wait_that_was_written_as_a_kernel_is_a_wait(tmp_path):
    on_device = {"stream": 7, "device": 0}
    rows = [
        {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        for category, name, pid, tid, ts, dur, args in (
            ("cpu_op", "aten::item", 1, 1, 0, 100, {}),
            ("cuda_runtime", "cudaLaunchKernel", 1, 1, 1, 2, {"correlation": 1}),
            ("cuda_runtime", "cudaStreamSynchronize", 1, 1, 10, 80, {"correlation": 2}),
            ("kernel", "work", 0, 7, 5, 80, {"correlation": 1, **on_device}),
            ("cuda_sync", "Stream Sync", 0, 7, 11, 78, {"correlation": 2, **on_device}),
        )
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    right = daydream.load(path)
    assert right.is_kind("sync").sum() == 1
    table = pa.Table.from_batches([as_kernels(right).to_arrow()])
    about = {b"daydream": json.dumps({**right.metadata, "schema_version": 1})}
    parquet.write_table(table.replace_schema_metadata(about), tmp_path / "wrong.parquet")

    found = daydream.load(tmp_path / "wrong.parquet")

    assert found.is_kind("sync").tolist() == right.is_kind("sync").tolist()
    for name in ("op", "phase", "stream", "start_ns", "duration_ns"):
        assert found.values(name, range(len(found))) == right.values(name, range(len(right)))


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        ("train.py(12): step", "train.py(12): step"),
        ("/data/somebody/net/train.py(12): step", "net/train.py(12): step"),
        (
            "/usr/local/lib/python3.11/site-packages/transformers/trainer.py(9): f",
            "transformers/trainer.py(9): f",
        ),
        ("torch/nn/modules/module.py(1553): _call_impl", None),
        ("/usr/local/lib/python3.11/site-packages/torch/optim/adam.py(3): step", None),
        ("/src/daydream/collect/live/session.py(3): mark", None),
        ("/usr/lib/python3.11/contextlib.py(3): inner", None),
        ("threading.py(1032): _bootstrap", None),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("<string>(2): __init__", None),
        ("nn.Module: Linear_0", None),
    ],
)
def test_a_frame_is_kept_if_it_is_someones_own_and_without_the_way_to_it(frame, kept):
    assert own_frame(frame) == kept


def test_the_innermost_frame_of_the_same_thread_counts():
    #  thread 1  |main                         |      |later|
    #               |step           |
    #                |torch|   |log|
    lines = SourceLines()
    names = ["a.py(1): main", "a.py(5): step", "torch/a.py(7): f", "a.py(9): log", "a.py(2): later"]
    start, duration = np.array([0, 10, 12, 30, 200]), np.array([100, 40, 8, 10, 10])
    lines.add(names, start, duration, np.full(5, 1))
    lines.add(["b.py(1): worker"], np.array([0]), np.array([300]), np.array([2]))

    at = np.array([5, 13, 30, 45, 60, 150, 205, 13, 13])
    thread = np.array([1, 1, 1, 1, 1, 1, 1, 2, 3])
    found = [lines.texts[code] if code >= 0 else None for code in lines.of(at, thread).tolist()]
    assert found == [
        "a.py(1): main", "a.py(5): step", "a.py(9): log", "a.py(5): step", "a.py(1): main", None,
        "a.py(2): later", "b.py(1): worker", None,
    ]  # fmt: skip


def synchronizing(steps):
    events = training(steps)
    for step in range(steps):
        at = 1000 * step
        events += [
            row("python_function", "/home/secret/net/train.py(41): train_step", at + 60, 900),
            row("python_function", "/home/secret/net/train.py(12): log_loss", at + 790, 160),
            row("python_function", "torch/_tensor.py(3): item", at + 791, 158),
            op("aten::_local_scalar_dense", at + 792, 150, External_id=900 + step),
            call("cudaLaunchKernel", at + 794, 4, 9000 + 2 * step, External_id=900 + step),
            kernel("slow", at + 804, 120, 9000 + 2 * step, External_id=900 + step),
            call("cudaDeviceSynchronize", at + 800, 126, 9001 + 2 * step, External_id=900 + step),
        ]
    return events


def test_an_import_says_which_function_called_and_nothing_of_the_machine(imported):
    trace = imported(synchronizing(3))
    stack, names = trace.values("stack"), trace.values("name")

    waits = {stack[row] for row, name in enumerate(names) if name == "cudaDeviceSynchronize"}
    assert waits == {"net/train.py(12): log_loss"}
    assert stack[names.index("aten::linear")] == "net/train.py(41): train_step"
    assert stack[names.index("slow")] is None
    assert not [name for name in names if ".py" in str(name)]
    assert not [text for text in trace.text("stack") if "secret" in text]


def test_explain_names_the_line_of_a_synchronization(imported):
    explanation = daydream.explain(imported(synchronizing(6)))
    (cost,) = [each for each in explanation.avoidable if each.sort == "synchronization"]

    assert cost.source == "net/train.py(12): log_loss"
    assert "net/train.py(12): log_loss" in " ".join(view_text(explanation, verbose=True).split())
