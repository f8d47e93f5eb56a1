"""From raw rows to a trace: who encloses whom, who launched what, and what device work does."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from graph.small_traces import kineto, of_kinds, one, parent_of, rows, training, write
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from shared import shared_replay

import daydream
from daydream.collect.derive.device_work import collective_of_name, dtype_of_inputs, dtype_of_kernel
from daydream.collect.derive.nesting import nest
from daydream.collect.derive.recording import Recording
from daydream.collect.derive.source_lines import own_frame
from daydream.trace.trace import Trace

# -- nesting -------------------------------------------------------------------------------------------

#  |outer            |
#   |inner    | |b|      |after|
#    |call|
NESTED = {
    "by containment on a thread": (
        """
        op outer 0 100
        op inner 10 60
        op b 70 80
        op after 110 115
        call launch 20 30
        op elsewhere 15 25 tid=2
        """,
        "inner in outer, b in outer, launch in inner",
    ),
    "steps and modules are no parents": (
        """
        note ProfilerStep#1 0 100
        module Linear_0 10 60
        op aten::linear 20 30
        """,
        "",
    ),
    "what begins and ends together: by kind, then by id": (
        """
        call launch 5 7
        op inner 5 7 External_id=9
        op outer 5 7 External_id=8
        note range 5 7
        """,
        "launch in inner, inner in outer, outer in range",
    ),
    "of calls with one correlation the inner launch counts": (
        """
        op aten::add 0 100
        call hipLaunchKernel 10 60 correlation=1
        call hipExtLaunch 20 50 correlation=1
        call cudaStreamIsCapturing 105 107 correlation=1
        kernel work 60 65 correlation=1
        """,
        "hipLaunchKernel in aten::add, hipExtLaunch in hipLaunchKernel, work in hipExtLaunch",
    ),
    "an operator never lies in a call": ("call launch 0 10\nop aten::add 9 29", ""),
    "nor in an annotation that it crosses": ("note gloo:all_reduce 0 20\nop aten::add 12 32", ""),
}


@pytest.mark.parametrize("case", NESTED)
def test_rows_nest(imported, case):
    text, expected = NESTED[case]
    trace = imported(text)
    parents = {name: parent_of(trace, name) for name in trace.values("name")}
    assert {name: parent for name, parent in parents.items() if parent} == dict(
        each.split(" in ") for each in expected.split(", ") if each
    )


@pytest.mark.parametrize("late", [0.05, 1])
def test_what_begins_before_the_call_ahead_ends_by_rounding_is_no_part_of_it(imported, late):
    #  |mm                              |
    #   |inner         |
    #    |memset       |
    #                |launch      |
    trace = imported(f"""
        op mm 0 20
        op inner 1 {5 + late}
        call memset 2 {5 + late}
        call launch 5 14
    """)
    assert trace["duration_ns"].tolist() == [20_000, 4_000, 3_000, 9_000]
    assert [parent_of(trace, name) for name in ("launch", "memset")] == ["mm", "inner"]
    assert not trace.metadata["notes"]


def test_a_child_that_ends_late_by_more_is_cut_and_counted(imported):
    trace = imported("op outer 0 10\nop inner 8 38")
    assert one(trace, "duration_ns", "inner") == 2000
    assert any("1 host row reached beyond" in note for note in trace.metadata["notes"])
    crossed = imported("note gloo:all_reduce 0 20\nop aten::add 12 32")  # the operator is kept whole
    assert crossed["duration_ns"].tolist() == [12_000, 20_000]


SPAN = st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2), st.integers(0, 1))


@given(st.lists(SPAN, min_size=1, max_size=30))
def test_any_rows_become_properly_nested(spans):
    start, length, kind, thread = np.array(spans).T
    columns = {
        "start_ns": start * 1000, "duration_ns": length * 1000, "kind": kind, "tid": thread,
        "name": np.zeros(len(spans), np.int32), "pid": np.ones(len(spans), np.int64),
    }  # fmt: skip
    nesting = nest(Recording(columns, {"kind": ["annotation", "operator", "runtime"], "name": ["x"]}))
    start, end = columns["start_ns"], columns["start_ns"] + nesting.duration_ns
    assert (nesting.duration_ns >= 0).all()
    assert (nesting.duration_ns <= columns["duration_ns"]).all()
    for a, above in enumerate(nesting.parent):
        if above >= 0:
            assert start[above] <= start[a] <= end[a] <= end[above]
            assert thread[above] == thread[a]
        crossing = (thread == thread[a]) & (start[a] < start) & (start < end[a])
        assert (end[crossing] <= end[a]).all()


# -- launches, operators and lines ---------------------------------------------------------------------


def test_device_rows_find_their_launch_and_operator(imported):
    trace = imported(training(1))
    gemm = "ampere_sgemm_32x32_tn"
    assert (parent_of(trace, gemm), one(trace, "op", gemm)) == ("cudaLaunchKernel", "aten::addmm")
    # A correlation in the place of an external id names no operator.
    wrong = imported("""
        op aten::other 0 5 External_id=57
        note FusedAdam 10 60 External_id=3
        call cudaLaunchKernel 20 25 correlation=57 External_id=57
        kernel adam 30 35 correlation=57 External_id=57
    """)
    assert one(wrong, "op", "adam") is None


def test_a_wait_that_was_written_as_a_kernel_is_a_wait(tmp_path):
    """As `collect` wrote it up to November 2026 with torch 2.11."""
    given = rows("""
        op aten::item 0 100
        call cudaLaunchKernel 1 3 correlation=1
        call cudaStreamSynchronize 10 90 correlation=2
        kernel work 5 85 correlation=1
        sync Stream Sync 11 89 correlation=2 pid=0 tid=7 device=0 stream=7
    """)
    right = daydream.load(write(tmp_path / "t.json", kineto(given)))
    waits, kernel = right.is_kind("sync"), right.code("kind", "kernel")
    assert waits.sum() == 1
    columns = {**right.columns, "kind": np.where(waits, kernel, right["kind"]).astype(np.int32)}
    table = pa.Table.from_batches([Trace(columns, right.texts, right.metadata).to_arrow()])
    about = {b"daydream": json.dumps({**right.metadata, "schema_version": 1})}
    parquet.write_table(table.replace_schema_metadata(about), tmp_path / "wrong.parquet")

    assert daydream.load(tmp_path / "wrong.parquet").is_kind("sync").tolist() == waits.tolist()


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        ("/data/somebody/net/train.py(12): step", "net/train.py(12): step"),
        ("/usr/lib/python3.11/site-packages/transformers/trainer.py(9): f", "transformers/trainer.py(9): f"),
        ("torch/nn/modules/module.py(1553): _call_impl", None),
        ("/usr/lib/python3.11/site-packages/torch/optim/adam.py(3): step", None),
        ("/src/daydream/collect/live/session.py(3): mark", None),
        ("/usr/lib/python3.11/contextlib.py(3): inner", None),
        ("threading.py(1032): _bootstrap", None),
        ("<built-in method item of Tensor object at 0x7f>", None),
        ("<string>(2): __init__", None),
    ],
)
def test_a_frame_is_kept_if_it_is_someones_own_and_without_the_way_to_it(frame, kept):
    assert own_frame(frame) == kept


def test_an_import_says_which_function_called_and_nothing_of_the_machine(imported):
    own = """
        frame /home/secret/net/train.py(41): train_step 60 960
        frame /home/secret/net/train.py(12): log_loss 790 950
        frame torch/_tensor.py(3): item 791 949
        call cudaDeviceSynchronize 800 926 External_id=10
        frame /home/secret/net/load.py(7): worker 0 999 tid=9
        op aten::rand 300 310 tid=9
        op aten::between 952 955
        op aten::later 970 980
    """
    trace = imported(training(3), rows(own, times=3, every=1000))

    assert of_kinds(trace, "stack", "runtime")["cudaDeviceSynchronize"] == {"net/train.py(12): log_loss"}
    assert of_kinds(trace, "stack", "operator").items() >= {
        "aten::linear": {"net/train.py(41): train_step"}, "aten::rand": {"net/load.py(7): worker"},
        "aten::between": {"net/train.py(41): train_step"}, "aten::later": {None},
    }.items()  # fmt: skip
    assert of_kinds(trace, "stack", "kernel")["reduce_kernel<float>"] == {None}
    assert not [name for name in trace.text("name") if ".py" in name]
    assert not [text for text in trace.text("stack") if "secret" in text]


# -- what device work does -----------------------------------------------------------------------------

ROWS = Path(__file__).with_name("kernel_names.tsv").read_text(encoding="utf-8").splitlines()[1:]


def kernel_names(told):
    return [line.split("\t")[1:] for line in ROWS if line.startswith(told)]


@pytest.mark.parametrize(("dtype", "name"), kernel_names("dtype"))
def test_kernel_names_give_away_their_element_type(dtype, name):
    assert str(dtype_of_kernel(name)) == dtype


def test_the_first_floating_input_is_the_element_type():
    assert dtype_of_inputs(["long int", "c10::Half", "float"]) == "float16"
    assert dtype_of_inputs(["Scalar", "long int", ""]) == "int64"
    assert dtype_of_inputs(["TensorList", ""]) is dtype_of_inputs(None) is None


COLLECTIVES = """
    all_reduce allreduce
    all_reduce c10d::allreduce_
    all_gather _allgather_base
    all_to_all nccl:all_to_all
    reduce_scatter _reduce_scatter_base_
    None wait
"""


def test_collectives_have_one_name_each():
    for line in COLLECTIVES.strip().splitlines():
        operation, name = line.strip().split(" ", 1)
        assert str(collective_of_name(name)) == operation


@pytest.mark.parametrize(("operation", "name"), kernel_names("collective"))
def test_kernels_that_communicate_by_themselves_are_collectives(imported, operation, name):
    (work,) = rows("kernel k 10 30 correlation=1")
    trace = imported("call cudaLaunchKernel 0 5 correlation=1", {**work, "name": name})
    assert trace.values("kind")[-1] == ("kernel" if operation == "None" else "collective")
    assert ("collective" in trace.columns and str(trace.values("collective")[-1])) in (operation, False)


def test_what_a_collective_moves_is_told_by_itself_or_by_the_call_around_its_launch(imported):
    trace = imported(
        """
        kernel ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem) 1 3 correlation=3 stream=9
        op record_param_comms 10 60 External_id=1 Input_Dims=[[],[],[]] Input_type=["TensorList","Scalar",""]
        note nccl:all_to_all 15 55 External_id=2 Input_Dims=[[100,3]] Input_type=["long int"]
        call cudaLaunchKernel 20 25 correlation=7 External_id=2
        kernel ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x) 40 90 correlation=7 stream=9 External_id=2
        call cudaLaunchKernelExC 62 65 correlation=8
        kernel ncclDevKernel_AllReduce 95 99 correlation=8 stream=9 \
                Collective_name=allreduce In_msg_nelems=1000 dtype=Float Process_Group_Name="0"
    """
    )
    told = np.flatnonzero(trace.is_kind("collective"))
    columns = ("collective", "elements", "bytes", "dtype", "group")
    assert list(zip(*(trace.values(name, told) for name in columns), strict=True)) == [
        ("all_reduce", None, None, None, None),
        ("all_to_all", 300, 2400, "int64", None),
        ("all_reduce", 1000, 4000, "float32", "0"),
    ]


@pytest.mark.parametrize(("lasted", "kept"), [(900, 150), (152, 150), (150.5, 150.5), (149, 149)])
def test_a_kernel_ends_at_the_latest_where_the_next_of_its_stream_begins(imported, lasted, kept):
    trace = imported(f"""
        op aten::mm 0 320
        launch first 0 10 {10 + lasted}
        launch next 150 160 260
        launch last 300 310 710
    """)  # the next begins 150 us behind the first
    assert trace["duration_ns"][trace.is_kind("kernel")].tolist() == [kept * 1000, 100_000, 400_000]
    over = (
        f"1 device task lasted into the next of the same stream, by {(lasted - kept) / 1000:,.3f} ms in total"
    )
    assert any(note.startswith(over) for note in trace.metadata["notes"]) == (kept < lasted)


@pytest.mark.parametrize("how", ["correlation=2 stream=8", "correlation=2 graph_id=3", "correlation=1"])
def test_what_may_run_side_by_side_keeps_its_time(imported, how):
    trace = imported(
        f"""
        op aten::mm 0 320
        call cudaGraphLaunch 0 5 correlation=1
        call cudaLaunchKernel 90 95 correlation=2
        kernel first 10 510 correlation=1 {"graph_id=3" if "graph" in how else ""}
        kernel next 100 200 {how}
    """.replace(" \n", "\n")
    )
    assert trace["duration_ns"][trace.is_kind("kernel")].tolist() == [500_000, 100_000]


def test_the_shared_overflowing_kernels_replay():
    replay = shared_replay("cases/symptoms/tracelens_669_kernel_dur_overflows_next.json")
    assert [step.measured_ns for step in replay.recording.steps] == [1_000_000] * 3
    assert replay.max_error < 1e-6


# -- what contradicts itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-5000, -100, 100, 5000])
def test_the_device_has_the_clock_of_the_calls(imported, off):
    trace = imported(f"""
        op aten::mm 6000 16000
        op aten::add 6005 8000 tid=2
        op aten::neg 6006 7000 tid=2
        launch first 6010 {6020 + off} {6040 + off}
        launch last 9000 {9010 + off} {9030 + off}
        call cudaDeviceSynchronize 9010 9035
    """)
    first, last = trace["start_ns"][trace.is_kind("kernel")]
    calls = trace["start_ns"][trace.is_kind("runtime")]
    assert (last - first, 0 <= first - calls[0] <= 15_000) == (2_990_000, True)
    assert any(note.startswith("The device's clock was") for note in trace.metadata["notes"])


def test_what_was_recorded_twice_counts_once(imported):
    work = [row for row in training() if row.get("correlation", -1) >= 0]
    again = imported(*training(), *work)
    assert len(again) == len(imported(*training()))
    assert f"Rows that were recorded twice and are left out: {len(work)}." in again.metadata["notes"]


@pytest.mark.parametrize("times", [1000, 1e-4])
def test_no_step_is_judged_by_times_in_another_unit(imported, times):
    work = [
        row | {"duration_ns": int(row["duration_ns"] * times)} if row.get("kind") == "kernel" else row
        for row in training()
    ]
    assert all("unit" in step["why_not"] for step in imported(*work).metadata["steps"])
