"""Reading Kineto JSON: formats since 2021, odd values, damaged files, and nothing that is not asked for."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_text import call, document, kernel, note, op, row, training, write

from daydream.collect.importers import import_trace
from daydream.collect.importers.kineto import read_kineto
from daydream.collect.work import collective_of_name, dtype_of_inputs, dtype_of_kernel, elements_of_dims
from daydream.errors import TraceError
from daydream.trace import NO_ID, UNKNOWN, Trace


def imported(tmp_path: Path, events: Any, **header: Any) -> Trace:
    return import_trace([write(tmp_path / "trace.json", document(events, **header))])


def only(trace: Trace, name: str) -> int:
    """Return the row with a name, which must be the only one."""
    rows = np.flatnonzero(trace["name"] == trace.code("name", name))
    assert len(rows) == 1
    return int(rows[0])


def columns_of(trace: Trace) -> dict[str, list[Any]]:
    return {name: trace.values(name) for name in sorted(trace.columns)}


# Formats


def test_object_list_gzip_and_pretty_printing_give_the_same_trace(tmp_path: Path) -> None:
    events = training()
    forms = {
        "object.json": document(events),
        "list.json": events,
        "packed.json.gz": document(events),
        "pretty.json": json.dumps(document(events), indent=2),
        "one_line.json": json.dumps(document(events), separators=(",", ":")),
        "events_first.json": {"traceEvents": events, **document([])} | {"traceEvents": events},
        "no_suffix": document(events),
        "marked.json": b"\xef\xbb\xbf" + json.dumps(document(events)).encode(),
    }
    traces = {name: import_trace([write(tmp_path / name, content)]) for name, content in forms.items()}
    expected = columns_of(traces["object.json"])
    for name, trace in traces.items():
        assert columns_of(trace) == expected, name


@pytest.mark.parametrize("block_bytes", [64, 500, 4096, 1 << 20])
@pytest.mark.parametrize("form", ["one line", "pretty", "list", "header last", "packed"])
def test_the_size_of_a_block_changes_nothing(tmp_path: Path, block_bytes: int, form: str) -> None:
    events = training(5)
    events[3]["name"] = 'odd }, {"ph": "X", "name": '
    events[4]["args"]["list"] = [{"a": 1}, {"b": 2}]
    contents: dict[str, Any] = {
        "one line": json.dumps(document(events), separators=(",", ":")),
        "pretty": json.dumps(document(events), indent=1),
        "list": events,
        "header last": {
            "traceEvents": events,
            "big": [{"key": index} for index in range(500)],
            "distributedInfo": {"rank": 3},
        },
        "packed": document(events),
    }
    path = write(tmp_path / ("trace.json.gz" if form == "packed" else "trace.json"), contents[form])
    whole = read_kineto(path)
    cut = read_kineto(path, block_bytes=block_bytes)
    assert cut.metadata == whole.metadata
    for name in whole.columns:
        texts = whole.text(name)
        assert cut.columns[name].tolist() == whole.columns[name].tolist() or [
            cut.text(name)[code] for code in cut.columns[name].tolist()
        ] == [texts[code] for code in whole.columns[name].tolist()]


def test_categories_ids_and_threads_of_2021(tmp_path: Path) -> None:
    events = [
        row("Operator", "ProfilerStep#16", 1623143093496000, 900, tid="100", External_id=1),
        row("Operator", "aten::relu", 1623143093496010, 30, tid="100", External_id=2),
        row("Runtime", "cudaLaunchKernel", 1623143093496015, 5, tid="100", correlation=7, external_id=2),
        row("Kernel", "relu_kernel<float>", 1623143093496030, 0, pid=0, tid="stream 7", device=0, stream=7, correlation=7),
        row("Memset", "Memset (Device)", 1623143093496040, 1, pid=0, tid="stream 7", device=0, stream="7", correlation=8, bytes=64),
    ]  # fmt: skip
    for event in events[2:]:
        if "external id" not in event["args"]:
            event["args"]["external id"] = 2
    events[1]["args"]["External id"] = 2
    trace = imported(tmp_path, events)
    assert trace.values("kind") == ["annotation", "operator", "runtime", "kernel", "memset"]
    assert trace.values("start_ns") == [0, 10_000, 15_000, 30_000, 40_000]
    assert trace.values("tid") == [100, 100, 100, None, None]
    assert trace.values("stream") == [None, None, None, 7, 7]
    assert trace.values("op")[2:4] == ["aten::relu", "aten::relu"]
    assert trace.metadata["steps"][0]["name"] == "ProfilerStep#16"


def test_float_microseconds_become_exact_nanoseconds(tmp_path: Path) -> None:
    starts = [4458676522690.655, 4458676522690.656, 4458676522691.001, 6869181218001.421, 6869181218001.422]
    events = [op(f"op {index}", start, 0.001) for index, start in enumerate(starts)]
    for index, group in enumerate((slice(0, 3), slice(3, 5))):
        trace = import_trace([write(tmp_path / f"{index}.json", document(events[group]))])
        written = [int(Decimal(repr(start)) * 1000) for start in starts[group]]
        assert trace.values("start_ns") == [start - written[0] for start in written]
        assert trace.values("duration_ns") == [1] * len(events[group])


def test_times_too_large_for_a_float_keep_their_digits(tmp_path: Path) -> None:
    text = json.dumps(document([op("a", 1, 2), op("b", 2, 2), op("c", 3, 2)]))
    for index, digits in enumerate(
        ("1708000000000000.123", "1708000000000000.124", '"1708000000000001.001"'), 1
    ):
        text = text.replace(f'"ts": {index},', f'"ts": {digits},')
    trace = import_trace([write(tmp_path / "trace.json", text)])
    assert trace.values("start_ns") == [0, 1, 878]
    assert trace.metadata["origin_ns"] == 1708000000000000123


def test_times_written_as_text_are_read(tmp_path: Path) -> None:
    trace = imported(tmp_path, [op("a", "10.5", "2"), op("b", 13, "1.25")])
    assert trace.values("start_ns") == [0, 2500]
    assert trace.values("duration_ns") == [2000, 1250]


def test_the_base_time_is_kept_and_aligns_ranks(tmp_path: Path) -> None:
    base = 1711964646000000000
    for rank, offset in ((0, 0), (1, 5_000)):
        write(
            tmp_path / f"rank{rank}.json",
            document(
                training(2),
                baseTimeNanoseconds=base + offset,
                distributedInfo={"rank": rank, "world_size": 2},
            ),
        )
    trace = import_trace([tmp_path])
    assert trace.metadata["origin_ns"] == base
    assert trace.metadata["world_size"] == 2
    starts = {rank: trace["start_ns"][trace["rank"] == rank].min() for rank in (0, 1)}
    assert starts == {0: 0, 1: 5_000}
    assert [step["rank"] for step in trace.metadata["steps"]] == [0, 0, 1, 1]
    second = trace["rank"] == 1
    assert set(trace["step"][second].tolist()) == {2, 3}
    children = np.flatnonzero(second & (trace["parent"] >= 0))
    assert second[trace["parent"][children]].all()


def test_ranks_that_are_missing_or_clash_come_from_the_names(tmp_path: Path) -> None:
    for name in ("job_rank10.json", "job_rank2.json"):
        write(tmp_path / name, document(training(2)))
    trace = import_trace([tmp_path])
    assert sorted(set(trace["rank"].tolist())) == [2, 10]
    assert any("file names" in note for note in trace.metadata["notes"])
    both = [
        write(tmp_path / name, document(training(2), distributedInfo={"rank": 0}))
        for name in ("a.json", "b.json")
    ]
    trace = import_trace(both)
    assert sorted(set(trace["rank"].tolist())) == [0, 1]
    assert any("order of the files" in note for note in trace.metadata["notes"])


# Values


def test_threads_may_be_negative_huge_or_text(tmp_path: Path) -> None:
    tids = [-5, 2**64 - 5, "140", "thread 7", 3, None]
    trace = imported(tmp_path, [op(f"op {tid}", 10 * index, 1, tid=tid) for index, tid in enumerate(tids)])
    assert trace.values("tid") == [-5, -5, 140, 7, 3, None]


def test_unknown_is_never_zero(tmp_path: Path) -> None:
    trace = imported(tmp_path, [op("a", 0, 5), {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}])
    for name in ("correlation", "external_id", "stream", "bytes", "parent"):
        assert set(np.asarray(trace[name]).tolist()) == {UNKNOWN}
    assert trace["tid"][only(trace, "k")] == NO_ID


def test_columns_that_never_occur_are_absent(tmp_path: Path) -> None:
    trace = imported(tmp_path, [op("a", 0, 5)])
    assert not {"correlation", "stream", "graph_id", "layer", "stack", "wait_stream"} & set(trace.columns)


def test_rows_that_are_no_work_are_left_out(tmp_path: Path) -> None:
    events = [
        *training(1),
        row("gpu_user_annotation", "Optimizer.step#SGD.step", 640, 30, pid=0, tid=7),
        row("python_function", "train.py(1): main", 0, 900),
        row("python_function", "nn.Module: Linear_0", 99, 60),
        row("cuda_profiler_range", "kernel", 100, 50, pid=0, tid=1),
        row("overhead", "Buffer Flush", 100, 50),
    ]
    trace = imported(tmp_path, events)
    names = trace.values("name")
    assert names.count("Optimizer.step#SGD.step") == 1
    assert "train.py(1): main" not in names
    assert trace.values("kind")[names.index("Linear_0")] == "module"
    notes = " ".join(trace.metadata["notes"])
    assert "cuda_profiler_range" in notes
    assert "overhead" in notes


def test_no_secret_reaches_the_trace(tmp_path: Path) -> None:
    events = training(2)
    for event in events:
        if event.get("args") is not None:
            event["args"]["Call stack"] = "/home/secret/train.py(3): main"
            event["args"]["env"] = "TOKEN=secret"
    header = {
        "traceName": "/home/secret/trace.json", "environment": {"TOKEN": "secret"}, "host_name": "secret",
        "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl", "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "store": "tcp://secret"}], "master": "secret"},
        "deviceProperties": [{"id": 0, "name": "Test GPU", "numSms": 10, "serial": "secret"}],
        "cuda_runtime_version": 12040,
    }  # fmt: skip
    folder = tmp_path / "secret"
    folder.mkdir()
    trace = import_trace([write(folder / "trace.json", document(events) | header)])
    kept = json.dumps(trace.metadata) + json.dumps(trace.texts)
    assert "secret" not in kept
    assert trace.metadata["devices"] == [{"id": 0, "multiprocessors": 10, "name": "Test GPU"}]
    assert trace.metadata["groups"] == [{"name": "0", "description": "default_pg", "ranks": [0, 1]}]
    assert trace.metadata["versions"] == {"cuda_runtime_version": "12040"}


def test_sync_rows_keep_what_they_wait_for(tmp_path: Path) -> None:
    events = [
        *training(1),
        row("cuda_sync", "Stream Wait Event", 500, 1, pid=0, tid=24, stream=24, correlation=50, device=0),
        row("cuda_sync", "Stream Wait Event", 510, 1, pid=0, tid=24, stream=24, correlation=52, device=0),
    ]  # fmt: skip
    events[-2]["args"] |= {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 49}
    events[-1]["args"] |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    trace = imported(tmp_path, events)
    rows = np.flatnonzero(trace.is_kind("sync"))
    assert trace.values("wait_stream", rows) == [20, None]
    assert trace.values("wait_correlation", rows) == [49, None]
    assert trace.values("stream", rows) == [24, 24]


def test_a_grid_in_work_items_becomes_one_in_blocks(tmp_path: Path) -> None:
    events = [
        op("aten::conv2d", 0, 100),
        row(
            "cuda_runtime",
            "hipExtModuleLaunchKernel",
            10,
            5,
            correlation=1,
            grid=[65536, 3, 1],
            block=[256, 2, 1],
        ),
        row("cuda_runtime", "hipLaunchKernel", 20, 5, correlation=2, grid=[64, 1, 1], block=[256, 1, 1]),
        row("cuda_runtime", "hipMemcpyAsync", 30, 5, correlation=3, bytes="128", kind="3"),
        kernel("Cijk_Alik_Bljk_BBS_BH", 30, 10, 1),
        kernel("elementwise", 40, 10, 2, grid=[64, 1, 1], block=[256, 1, 1]),
        row(
            "gpu_memcpy",
            "Memcpy DtoD (Device -> Device)",
            50,
            1,
            pid=0,
            tid=7,
            device=0,
            stream=7,
            correlation=3,
        ),
    ]
    trace = imported(tmp_path, events)
    device = np.flatnonzero(trace.is_kind("kernel", "memcpy"))
    assert trace.values("grid", device) == ["256,2,1", "64,1,1", None]
    assert trace.values("block", device) == ["256,2,1", "256,1,1", None]
    assert trace.values("bytes", device) == [None, None, 128]
    assert trace.values("bytes", np.flatnonzero(trace.is_kind("runtime"))) == [None] * 3
    assert trace.metadata["vendor"] == "rocm"


# Element types and collectives


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("ampere_sgemm_128x64_nn", "float32"),
        ("volta_sgemm_32x32_sliced1x4_tn", "float32"),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_nn", "float16"),
        ("ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_tn", "float16"),
        ("turing_s1688gemm_128x128_ldg8_f2f_nn", "float16"),
        ("volta_h884gemm_64x64_ldg8_nn", "float16"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "bfloat16"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", "float32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", "float32"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_MT64x64", "bfloat16"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT64x64", "float16"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16", "float32"),
        ("volta_dgemm_64x64_nn", "float64"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::Half, at::native::func_wrapper_t<c10::Half, "
         "at::native::sum_functor<c10::Half, float, c10::Half>>>>", "float16"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::BUnaryFunctor<c10::BFloat16, c10::BFloat16, "
         "c10::BFloat16, MulFunctor<float>>>", "bfloat16"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<long>, Array<char*, 2>>", "int64"),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128>", "float16"),
        ("Memset (Device)", None),
        ("batched_transpose_16x32_half", None),  # any two-byte type
        ("my_kernel", None),
    ],
)  # fmt: skip
def test_kernel_names_give_away_their_element_type(name: str, dtype: str | None) -> None:
    assert dtype_of_kernel(name) == dtype


def test_the_first_floating_input_is_the_element_type() -> None:
    assert dtype_of_inputs(["long int", "c10::Half", "float"]) == "float16"
    assert dtype_of_inputs(["Scalar", "long int", ""]) == "int64"
    assert dtype_of_inputs(["TensorList", ""]) is None
    assert dtype_of_inputs(None) is None


def test_collectives_have_one_name_each() -> None:
    said = ["allreduce", "_allgather_base", "nccl:all_to_all", "_reduce_scatter_base", "ncclKernel_AllReduce_RING_LL_Sum_float",
            "ncclDevKernel_SendRecv", "broadcast", "c10d::allreduce_", "wait"]  # fmt: skip
    assert [collective_of_name(name) for name in said] == [
        "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "all_reduce", "send_recv", "broadcast", "all_reduce", None,
    ]  # fmt: skip


def test_elements_are_counted_over_all_tensors() -> None:
    assert elements_of_dims([[6144], [], [2, 3]]) == 6150
    assert elements_of_dims([[[10], [5]], []]) == 15
    assert elements_of_dims([[], []]) is None


def test_a_kernel_s_own_arguments_describe_its_collective(tmp_path: Path) -> None:
    events = [
        *training(1),
        call("cudaLaunchKernelExC", 320, 3, 77, tid=101),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 340, 50, 77, stream=9,
               Collective_name="allreduce", In_msg_nelems=1000, Out_msg_nelems=1000, dtype="Float",
               Process_Group_Name="0", Group_size=2),
    ]  # fmt: skip
    trace = imported(tmp_path, events)
    line = np.flatnonzero(trace.is_kind("collective"))
    assert trace.values("collective", line) == ["all_reduce"]
    assert trace.values("elements", line) == [1000]
    assert trace.values("dtype", line) == ["float32"]
    assert trace.values("bytes", line) == [4000]
    assert trace.values("group", line) == ["0"]


def test_a_bare_collective_is_described_by_the_call_around_its_launch(tmp_path: Path) -> None:
    events = [
        op(
            "record_param_comms",
            10,
            50,
            External_id=1,
            Input_Dims=[[], [], []],
            Input_type=["TensorList", "Scalar", ""],
        ),
        note("nccl:all_to_all", 15, 40, External_id=2, Input_Dims=[[100, 3]], Input_type=["long int"]),
        call("cudaLaunchKernel", 20, 5, 7, External_id=2),
        kernel(
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 40, 50, 7, stream=9, External_id=2
        ),
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 1, 2, 3, stream=9),
    ]
    trace = imported(tmp_path, events)
    orphan, line = np.flatnonzero(trace.is_kind("collective")).tolist()
    assert trace.values("collective", [orphan, line]) == ["all_reduce", "all_to_all"]
    assert trace.values("elements", [orphan, line]) == [None, 300]
    assert trace.values("bytes", [orphan, line]) == [None, 2400]
    assert trace.values("dtype", [line]) == ["int64"]


# What is odd is counted


def test_rows_without_sense_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [
        *training(2),
        op("negative", 100, -5), op("no time", None, 5), op("not a number", "soon", 5), op("no end", 7, None),
        op("last year", -3e13, 5), op("forever", 9, 1e12), row("mystery", "x", 1, 1),
    ]  # fmt: skip
    trace = imported(tmp_path, events)
    assert len(trace) == len(imported(tmp_path, training(2)))
    notes = " ".join(trace.metadata["notes"])
    for part in (
        "1 row had a negative duration",
        "3 rows had no readable time",
        "2 rows began or lasted",
        "'mystery'",
    ):
        assert part in notes


def test_nan_and_infinity_do_not_spoil_the_other_rows(tmp_path: Path) -> None:
    events = [*training(2), op("nan", float("nan"), 1), op("infinite", 5, float("inf"))]
    events[0]["args"]["weight"] = float("nan")
    assert len(imported(tmp_path, events)) == len(imported(tmp_path, training(2)))


def test_values_of_a_wrong_type_do_not_spoil_the_other_rows(tmp_path: Path) -> None:
    events = [*training(2), "text", 5, None, [1]]
    events[2] = {
        **events[2],
        "tid": True,
        "args": {**events[2]["args"], "External id": [1], "Input Dims": "none"},
    }
    trace = imported(tmp_path, events)
    assert len(trace) == len(imported(tmp_path, training(2)))
    assert any("4 rows could not be read" in note for note in trace.metadata["notes"])


def test_bytes_that_are_not_utf8_do_not_spoil_the_other_rows(tmp_path: Path) -> None:
    text = json.dumps(document([*training(2), op("caf\u00e9", 5, 1)]), ensure_ascii=False).encode("latin-1")
    trace = import_trace([write(tmp_path / "trace.json", text)])
    assert len(trace) == len(imported(tmp_path, training(2))) + 1
    trace.to_arrow()


def test_text_that_cannot_be_encoded_is_cleaned(tmp_path: Path) -> None:
    text = json.dumps(document([*training(1), op("half \ud83d", 5, 1)]))
    import_trace([write(tmp_path / "trace.json", text)]).to_arrow()


# What is no trace


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"PK\x03\x04 something", "not JSON"),
        (b"hello", "not JSON"),
        (b"{", "cut off"),
        (b"[", "cut off"),
        (b"{}", "without a `traceEvents`"),
        (b'{"a": 1}', "without a `traceEvents`"),
        (b'{"schema": "1.0", "nodes": [{"id": 1}]}', "PyTorch execution trace"),
        (b'{"traceEvents": []}', "holds no operator"),
        (b"[]", "holds no operator"),
        (b'{"traceEvents": {}}', "without a `traceEvents` list"),
        (b'{"traceEvents": [1, 2]}', "holds no operator"),
        (b'{"traceEvents": [{"ph": "X" "cat": "cpu_op"}]}', "not valid JSON"),
        (b"\x1f\x8b\x08nonsense", "gzip data is cut off or damaged"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_trace_gets_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        import_trace([path])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_said_to_be_cut_off(tmp_path: Path, packed: bool, share: float) -> None:
    text = json.dumps(document(training(20))).encode()
    data = gzip.compress(text) if packed else text
    path = tmp_path / "trace.json"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(TraceError, match="cut off"):
        import_trace([path])


def test_missing_files_and_empty_folders_are_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        import_trace([tmp_path / "none.json"])
    with pytest.raises(TraceError, match="holds no trace"):
        import_trace([tmp_path])
    with pytest.raises(TraceError, match="no source"):
        import_trace([])


def test_a_parquet_trace_is_loaded_as_it_is(tmp_path: Path) -> None:
    trace = imported(tmp_path, training())
    trace.save(tmp_path / "trace.parquet")
    again = import_trace([tmp_path / "trace.parquet"])
    assert columns_of(again) == columns_of(trace)
    assert again.metadata == trace.metadata
    with pytest.raises(TraceError, match="give it alone"):
        import_trace([tmp_path / "trace.parquet", tmp_path / "trace.json"])


def test_progress_goes_to_one(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", document(training()))
    seen: list[tuple[str, float]] = []
    import_trace([path], progress=lambda name, share: seen.append((name, share)))
    assert seen[-1] == ("trace.json", 1.0)
