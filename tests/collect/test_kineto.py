"""Kineto JSON: formats since 2021, odd values, devices of many makers, and nothing that is not asked for."""

import gzip
import json

import numpy as np
import pytest
from graph.small_traces import kineto, of_kinds, one, op, parent_of, row, rows, rows_named, training, write
from shared import refused, shared_trace

from daydream.collect.importers import import_trace
from daydream.collect.importers.formats import format_of
from daydream.collect.importers.kineto.blocks import EventReader
from daydream.collect.importers.kineto.reader import details_of, read_kineto
from daydream.errors import TraceError
from daydream.trace.schema import NO_ID, UNKNOWN


def columns_of(trace):
    return {name: trace.values(name) for name in sorted(trace.columns)}


# -- formats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", [64, 4096])
@pytest.mark.parametrize("form", ["one line", "pretty", "list", "header last", "packed"])
def test_the_size_of_a_block_changes_nothing(tmp_path, block_bytes, form):
    document = kineto(training(5))
    events = document["traceEvents"]
    events[13]["name"] = 'odd }, {"ph": "X", "name": '
    events[14]["args"]["list"] = [{"a": 1}, {"b": 2}]
    big = [{"key": index} for index in range(500)]
    contents = {
        "one line": json.dumps(document, separators=(",", ":")),
        "pretty": json.dumps(document, indent=1),
        "list": events,
        "packed": document,
        "header last": {"traceEvents": events, "big": big, "distributedInfo": {"rank": 3}},
    }
    path = write(tmp_path / ("trace.json.gz" if form == "packed" else "trace.json"), contents[form])
    whole, cut = read_kineto(path), read_kineto(path, block_bytes=block_bytes)
    assert cut.metadata == whole.metadata
    for name in whole.columns:
        kept = [
            each[name] if not each.text(name) else each.texts_of(name, range(len(each)))
            for each in (whole, cut)
        ]
        assert list(kept[0]) == list(kept[1])


def test_categories_ids_and_threads_of_2021(imported):
    at = 1_623_143_093_496_000
    events = [
        ("Operator", "ProfilerStep#16", 0, 900, "100", {"External id": 1}),
        ("Operator", "aten::relu", 10, 30, "100", {"External id": 2}),
        ("Runtime", "cudaLaunchKernel", 15, 5, "100", {"correlation": 7, "external id": 2}),
        (
            "Kernel",
            "relu_kernel",
            30,
            0,
            "stream 7",
            {"device": 0, "stream": 7, "correlation": 7, "external id": 2},
        ),
        (
            "Memset",
            "Memset (Device)",
            40,
            1,
            "stream 7",
            {"device": 0, "stream": "7", "correlation": 8, "bytes": 64},
        ),
    ]
    trace = imported(
        [
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 1,
                "tid": tid,
                "ts": at + ts,
                "dur": dur,
                "args": args,
            }
            for cat, name, ts, dur, tid, args in events
        ]
    )
    assert trace.values("kind") == ["annotation", "operator", "runtime", "kernel", "memset"]
    assert trace.values("start_ns") == [0, 10_000, 15_000, 30_000, 40_000]
    assert trace.values("tid") == [100, 100, 100, None, None]
    assert trace.values("stream") == [None, None, None, 7, 7]
    assert trace.values("op")[2:4] == ["aten::relu", "aten::relu"]
    assert trace.metadata["steps"][0]["name"] == "ProfilerStep#16"


def test_times_too_large_for_a_float_keep_their_digits(tmp_path):
    text = json.dumps(kineto("op a 1 3\nop b 2 4\nop c 3 5"))
    digits = ("1708000000000000.123", "1708000000000000.124", '"1708000000000001.001"')
    for index, exact in enumerate(digits, 1):
        text = text.replace(f'"ts": {index}.0,', f'"ts": {exact},')
    trace = import_trace([write(tmp_path / "trace.json", text)])
    assert trace.values("start_ns") == [0, 1, 878]
    assert trace.metadata["origin_ns"] == 1708000000000000123


def test_the_base_time_is_kept_and_aligns_ranks(tmp_path):
    base = 1711964646000000000
    for rank in (0, 1):
        info = {"rank": rank, "world_size": 2}
        header = {"baseTimeNanoseconds": base + 5_000 * rank, "distributedInfo": info}
        write(tmp_path / f"rank{rank}.json", kineto(training(2), **header))
    trace = import_trace([tmp_path])
    second = trace["rank"] == 1
    assert (trace.metadata["origin_ns"], trace.metadata["world_size"]) == (base, 2)
    assert (trace["start_ns"][~second].min(), trace["start_ns"][second].min()) == (0, 5_000)
    assert [step["rank"] for step in trace.metadata["steps"]] == [0, 0, 1, 1]
    assert set(trace["step"][second].tolist()) == {2, 3}
    assert second[trace["parent"][second & (trace["parent"] >= 0)]].all()


@pytest.mark.parametrize(
    ("names", "info", "ranks", "said"),
    [
        (["job_rank10.json", "job_rank2.json"], {}, [2, 10], "file names"),
        (["a.json", "b.json"], {"distributedInfo": {"rank": 0}}, [0, 1], "order of the files"),
    ],
)
def test_ranks_that_are_missing_or_clash_come_from_the_names(tmp_path, names, info, ranks, said):
    trace = import_trace([write(tmp_path / name, kineto(training(2), **info)) for name in names])
    assert sorted(set(trace["rank"].tolist())) == ranks
    assert any(said in note for note in trace.metadata["notes"])


def test_a_parquet_trace_is_loaded_as_it_is(tmp_path, imported):
    trace = imported(training())
    trace.save(tmp_path / "trace.parquet")
    again = import_trace([tmp_path / "trace.parquet"])
    assert (columns_of(again), again.metadata) == (columns_of(trace), trace.metadata)
    with pytest.raises(TraceError, match="give it alone"):
        import_trace([tmp_path / "trace.parquet", tmp_path / "trace.json"])


# -- values --------------------------------------------------------------------------------------------


def test_threads_may_be_negative_huge_or_text_and_unknown_is_never_zero(imported):
    tids = [-5, 2**64 - 5, "140", "thread 7", 3, None]
    given = [row("operator", "a", 10 * at, 10 * at + 1, pid=1, tid=tid) for at, tid in enumerate(tids)]
    trace = imported(given, {"ph": "X", "cat": "kernel", "name": "k", "ts": 99, "dur": 1})
    assert trace.values("tid") == [-5, -5, 140, 7, 3, None, None]
    for name in ("correlation", "external_id", "stream", "bytes", "parent"):
        assert set(np.asarray(trace[name]).tolist()) == {UNKNOWN}
    assert trace["tid"][rows_named(trace, "k")].tolist() == [NO_ID]


def test_frames_that_block_and_the_profilers_own_time_are_blocked_rows(imported):
    trace = imported("""
        op aten::mm 0 50
        frame /usr/lib/python3.11/queue.py(154): get 100 400
        frame <built-in method acquire of _thread.lock object at 0x7f> 110 390
        frame <built-in function sleep> 500 520
        frame work/queue.py(3): get 500 600
        frame threading.py(327): wait 0 900 tid=10
        overhead Activity Buffer Request 700 780 pid=-1 tid=0
        op aten::add 790 840
        overhead Command Buffer Full 850 930 pid=-1 tid=0
        op aten::sub 940 990
    """)  # too short a wait; the program's own; a thread without rows
    found = np.flatnonzero(trace.is_kind("blocked"))
    names = ["queue.get", "_thread.lock.acquire", "profiler: Activity Buffer Request"]
    assert trace.values("name", found) == names
    assert trace["duration_ns"][found].tolist() == [300_000, 280_000, 80_000]
    assert trace["tid"][found].tolist() == [1] * 3
    assert trace.metadata["notes"] == ["1 row had the category 'overhead' and was left out."]


def test_rows_that_are_no_work_are_left_out_and_counted(tmp_path):
    document = kineto("""
        call cudaGraphLaunch 10 30 correlation=1
        kernel gemm 30 39 correlation=1
        kernel gemm 40 49 correlation=1
        gpu_user_annotation Optimizer.step#SGD.step 50 60 pid=0 tid=7
        frame train.py(1): main 0 900
        module Linear_0 5 60
        cuda_profiler_range kernel 10 60 pid=0 tid=1
        overhead Buffer Flush 60 90 pid=-1 tid=0
    """)
    for node in document["traceEvents"][1:3]:
        node["args"]["name"] = "layers.0"
    document["traceEvents"].append(
        {"ph": "C", "name": "sm__active", "pid": 0, "ts": 31, "args": {"value": 0.5}}
    )
    trace = import_trace([write(tmp_path / "trace.json", document)])
    assert sorted(trace.values("name")) == ["Linear_0", "cudaGraphLaunch", "gemm", "gemm"]
    notes = " ".join(trace.metadata["notes"])
    for said in ("Annotations of 2 nodes of CUDA graphs", "cuda_profiler_range", "'counter'", "'overhead'"):
        assert said in notes


def test_no_secret_reaches_the_trace(tmp_path):
    document = kineto(training(2))
    for event in document["traceEvents"]:
        event.setdefault("args", {}).update({"Call stack": "/home/secret/t.py(3): main", "env": "secret"})
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "store": "tcp://secret"}
    info = {"rank": 0, "world_size": 2, "backend": "nccl", "pg_config": [group], "master": "secret"}
    document |= {
        "traceName": "/home/secret/trace.json",
        "environment": {"TOKEN": "secret"},
        "distributedInfo": info,
        "deviceProperties": [{"id": 0, "name": "Test GPU", "numSms": 10, "serial": "secret"}],
        "cuda_runtime_version": 12040,
    }
    (tmp_path / "secret").mkdir()
    trace = import_trace([write(tmp_path / "secret" / "trace.json", document)])
    assert "secret" not in json.dumps(trace.metadata) + json.dumps(trace.texts)
    assert trace.metadata["devices"] == [{"id": 0, "multiprocessors": 10, "name": "Test GPU"}]
    assert trace.metadata["groups"] == [{"name": "0", "description": "default_pg", "ranks": [0, 1]}]
    assert trace.metadata["versions"] == {"cuda_runtime_version": "12040"}


def test_sync_rows_keep_what_they_wait_for(imported):
    trace = imported(
        training(1),
        "\n".join(
            f"sync Stream Wait Event 50{at} 50{at + 1} pid=0 tid=24 stream=24 correlation={50 + at} device=0 "
            f"wait_on_stream={stream} wait_on_cuda_event_record_corr_id={record}"
            for at, stream, record in ((0, 20, 49), (2, -1, -1))
        ),
    )
    waits = np.flatnonzero(trace.is_kind("sync"))
    assert trace.values("wait_stream", waits) == [20, None]
    assert trace.values("wait_correlation", waits) == [49, None]
    assert trace.values("stream", waits) == [24, 24]


def test_a_grid_in_work_items_becomes_one_in_blocks(imported):
    trace = imported("""
        op aten::conv2d 0 100
        call hipExtModuleLaunchKernel 10 15 correlation=1 grid=[65536,3,1] block=[256,2,1]
        call hipLaunchKernel 20 25 correlation=2 grid=[64,1,1] block=[256,1,1]
        call hipMemcpyAsync 30 35 correlation=3 bytes="128" kind_="3"
        kernel Cijk_Alik_Bljk_BBS_BH 30 40 correlation=1
        kernel elementwise 40 50 correlation=2 grid=[64,1,1] block=[256,1,1]
        memcpy Memcpy DtoD (Device -> Device) 50 51 correlation=3
    """)
    device = np.flatnonzero(trace.is_kind("kernel", "memcpy"))
    assert trace.values("grid", device) == ["256,2,1", "64,1,1", None]
    assert trace.values("block", device) == ["256,2,1", "256,1,1", None]
    assert trace.values("bytes", device) == [None, None, 128]
    assert trace.values("bytes", np.flatnonzero(trace.is_kind("runtime"))) == [None] * 3
    assert trace.metadata["vendor"] == "rocm"


# -- devices that Kineto has no category of its own for --------------------------------------------------


def test_rows_of_mtia_are_device_work(imported):
    device = "pid=17 tid=3536 stream=101"
    trace = imported(f"""
        op fb::merge 0 100 External_id=5
        mtia_runtime enqueueCommand memcpyHtoDAsync 10 15 correlation=1
        mtia_runtime runFunction - submit 20 25 correlation=2
        mtia_runtime recordEvent 30 35 correlation=3
        mtia_ccp_events dma_request 40 50 {device} direction=HOST_TO_DEVICE size=4096 correlation=1
        mtia_ccp_events merge 50 80 {device} correlation=2
        mtia_ccp_events event_record 80 81 {device} correlation=3
        mtia_runtime synchronizeStream 40 85 correlation=4 device=17 stream_id=101
        mtia_runtime synchronize 42 85 pid=17 tid=3534 correlation=4 device=17 stream_id=101
    """)
    kinds = {name: kind for name, (kind,) in of_kinds(trace, "kind", *trace.text("kind")).items()}
    copy = "Memcpy HtoD (dma_request)"
    assert (kinds["merge"], kinds[copy], kinds["Stream Sync"]) == ("kernel", "memcpy", "sync")
    assert "event_record" not in kinds
    assert (trace.metadata["vendor"], trace.metadata["notes"]) == ("mtia", [])
    assert (parent_of(trace, "merge"), one(trace, "op", "merge")) == ("runFunction - submit", "fb::merge")
    assert one(trace, "bytes", copy) == 4096


def ascend():
    at = 1704161511422

    def bare(name, us, dur, tid, pid=800, **args):
        given = {key.replace("_", " "): value for key, value in args.items()}
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{at}{us}", "dur": dur, "args": given}

    flow = {
        "name": "torch_to_npu",
        "id": f"{at}904204",
        "cat": "async_npu",
        "ph": "s",
        "pid": 100,
        "tid": 100,
    }
    return [
        {**bare("aten::mm", "850.000", 40.0, 100, 100), "cat": "cpu_op"},
        {**bare("Enqueue", "856.000", 5.0, 100, 100), "cat": "enqueue", "args": {"correlation_id": 1}},
        {**flow, "id": int(flow["id"]), "ts": f"{at}855.000"},
        bare("MatMul1", "904.204", 20.0, 3, Task_Type="AI_CORE", Stream_Id=3),
        bare("MEMCPY_ASYNC", "930.000", 1.0, 3, Task_Type="AI_CORE", Stream_Id=3),
        bare("EVENT_WAIT", "931.000", 9.0, 3, Task_Type="EVENT_WAIT_SQE", Stream_Id=3),
        bare("Computing", "904.204", 20.0, 0),
        bare("AscendCL@aclrtSynchronizeStream", "870.000", 12.0, 100, 10002, Thread_Id=100, level="acl"),
    ]


def test_rows_of_ascend_are_device_work_launched_by_their_operator(tmp_path):
    trace = import_trace([write(tmp_path / "trace.json", ascend())])
    assert of_kinds(trace, "kind", *trace.text("kind")) == {
        "aten::mm": {"operator"},
        "Enqueue": {"runtime"},
        "torch_to_npu": {"runtime"},
        "MatMul1": {"kernel"},
        "Memcpy (MEMCPY_ASYNC)": {"memcpy"},
        "aclrtSynchronizeStream": {"runtime"},
    }
    assert (one(trace, "op", "MatMul1"), one(trace, "stream", "MatMul1")) == ("aten::mm", 3)
    # No flow leads to the copy: it was launched with the work before it on its stream.
    assert parent_of(trace, "Memcpy (MEMCPY_ASYNC)") == "torch_to_npu"
    # Layers of software have process numbers of their own there; the call lies in its operator.
    assert parent_of(trace, "aclrtSynchronizeStream") == "aten::mm"


DETAILS = (  # the columns of the public tables that are read, as versions write them
    "Step Id,Name,Type,Start Time(us),Duration(us),Input Shapes,Input Data Types,Input Formats,Output\n"
    '1,MatMul1,MatMulV2,"1704161511422904.204\t",20.0,"""2048,4096;4096,512""",DT_BF16;DT_BF16,ND;ND,""\n'
    "1,short\n"
    '1,Cast2,Cast,1704161511422999.1,1.0,"""544404480""",FLOAT16,FORMAT_ND,"""544404480"""\n'
    "1,hcom_broadcast__445_0,hcom_broadcast_,1704161511422950.5,3.0,N/A,N/A,N/A,N/A\n"
)


@pytest.mark.parametrize(
    ("table", "dtype", "shapes", "said"),
    [
        (DETAILS, "bfloat16", "[[2048,4096],[4096,512]]", "of 1 of 1 kernels"),
        (DETAILS.replace("ND;ND", "FRACTAL_NZ;ND"), "bfloat16", None, "of 1 of 1 kernels"),
        (DETAILS.replace("422904", "422905"), None, None, "of another recording"),
        ("Kernel,Time\nMatMul1,3\n", None, None, "not a table of kernels"),
        ("", None, None, "not a table of kernels"),
    ],
)
def test_a_table_of_kernels_beside_an_ascend_trace_tells_types_and_shapes(
    tmp_path, table, dtype, shapes, said
):
    (tmp_path / "kernel_details.csv").write_text(table)
    trace = import_trace([write(tmp_path / "trace.json", ascend())])
    assert (one(trace, "dtype", "MatMul1"), one(trace, "shapes", "MatMul1")) == (dtype, shapes)
    assert any(said in note for note in trace.metadata["notes"])


@pytest.mark.parametrize(
    ("name", "types"),
    [("kernel_details.csv.gz", {"float16", "float32"}), ("kernel_details_short.csv", {"bfloat16"})],
)
def test_the_public_tables_of_kernels_are_read(name, types):
    content = shared_trace(f"formats/ascend/{name}").read_bytes()
    told = details_of((gzip.decompress(content) if name.endswith(".gz") else content).decode())
    assert told is not None
    assert len(told) > 20
    assert {dtype for dtype, _ in told.values()} >= types


def test_rows_of_intel_gpus_have_their_queue_for_a_stream(imported):
    # As Kineto's plugin for them writes it, by its source.
    queue = {"l0 queue": "0x000055d08b8fc138", "sycl queue": 64}
    given = rows("""
        op aten::addmm 0 100 External_id=5
        xpu_runtime urEnqueueUSMMemcpy 5 10 correlation=10 External_id=5
        xpu_runtime urEnqueueKernelLaunch 20 30 correlation=11 External_id=5
        xpu_driver zeCommandListAppendLaunchKernel 22 27 correlation=11
        xpu_runtime urQueueFinish 100 104 correlation=12
        gpu_memcpy Memcpy M2D (Host -> Device) 12 20 pid=0 tid=64 device=0 correlation=10 bytes=4096
        kernel gemm_kernel 40 90 correlation=11
    """)
    given[-1] |= {"tid": 64}
    del given[-1]["stream"]
    trace = imported(given[:-2], [each | queue for each in given[-2:]])
    copy = "Memcpy HtoD (Host -> Device)"
    assert [one(trace, "stream", name) for name in ("gemm_kernel", copy)] == [64, 64]
    assert (one(trace, "kind", copy), one(trace, "bytes", copy)) == ("memcpy", 4096)
    assert parent_of(trace, "gemm_kernel") == "zeCommandListAppendLaunchKernel"
    assert (one(trace, "op", "gemm_kernel"), trace.metadata["vendor"]) == ("aten::addmm", "xpu")


# Kineto files that are damaged or odd: counted and left out, or refused in one clear line


@pytest.mark.parametrize(
    ("new", "mended"),
    [
        ('"bandwidth (GB/s)": inf', 1),
        ('"x": [-nan(ind), 1.#INF, +inf, "a",]', 4),
        ('"x": "Library("a", "IMPL")\n(1): <module>", "' + 90 * "a" + '": 1', 1),
        ('"x": ["a "quoted" word", "b"], "y": "C:\\users"', 2),
        ('"x": "tab\there", "y": "{"a": 1}"', 2),
        ('"x": "it ends so: \\""', 0),
    ],
)
@pytest.mark.parametrize("as_list", [False, True])
def test_what_profilers_write_and_is_no_json_is_mended(tmp_path, imported, new, mended, as_list):
    document = kineto(training(2))
    document["traceEvents"][4]["args"]["place"] = 1
    text = json.dumps(document["traceEvents"] if as_list else document).replace('"place": 1', new)
    trace = import_trace([write(tmp_path / "mended.json", text)])
    assert trace.values("name") == imported(training(2)).values("name")
    said = f"Places that were no JSON (inf, quotes in texts, say) and were mended: {mended}."
    assert trace.metadata["notes"] == ([said] if mended else [])


@pytest.mark.parametrize("new", ["inf", '"Library("a", "IMPL")"'])
def test_a_large_file_is_mended_block_by_block(tmp_path, new):
    text = json.dumps(kineto([op("aten::mm", at, at + 1, x=at % 10) for at in range(400)]))
    path = write(tmp_path / "t.json", text.replace('"x": 7}', f'"x": {new}}}'))
    reader = EventReader(path, block_bytes=1 << 12)
    assert sum(1 for _ in reader) >= len(text) // (1 << 13)
    assert (reader.mended, reader.unreadable) == (40, 0)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_json_is_read_in_any_encoding_of_unicode(tmp_path, encoding, name):
    text = json.dumps(kineto(training(2), "op caf\u00e9 5 6"), ensure_ascii=False)
    assert "caf\u00e9" in import_trace([write(tmp_path / name, text.encode(encoding))]).values("name")


def test_the_list_of_the_old_profiler_is_read_or_named(tmp_path):
    rows = [
        {"name": "aten::mm", "ph": "X", "ts": 10 * at, "dur": 5, "tid": 1, "pid": "CPU functions", "args": {}}
        for at in range(3)
    ]
    trace = import_trace([write(tmp_path / "t.json", rows)])
    assert (trace.values("kind"), trace.metadata["vendor"]) == (["operator"] * 3, "cpu")
    assert trace["start_ns"].tolist() == [0, 10_000, 20_000]
    rows.append({**rows[0], "pid": "CUDA functions"})
    assert "old autograd profiler" in refused(write(tmp_path / "t.json", rows))


@pytest.mark.parametrize("name", ["kineto_105_inf", "pytorch_113001_unescaped_quotes", "utf16_by_powershell"])
def test_the_shared_symptoms_are_read(name):
    sound = import_trace([shared_trace("cases/symptoms/tiny_ok.json")])
    trace = import_trace([shared_trace(f"cases/symptoms/{name}.json")])
    kernels = trace.is_kind("kernel")
    assert trace["duration_ns"][kernels].tolist() == sound["duration_ns"][sound.is_kind("kernel")].tolist()
    assert [step["measured_ns"] for step in trace.metadata["steps"][1:]] == [1_000_000] * 3


# -- what is odd is counted ----------------------------------------------------------------------------

DAMAGED = {
    **kineto("op b 2 3")["traceEvents"][0],
    "tid": True,
    "args": {"External id": [1], "Input Dims": "none"},
}


def event(name, ts, dur):
    return {**DAMAGED, "name": name, "tid": 1, "ts": ts, "dur": dur, "args": {}}


@pytest.mark.parametrize(
    ("events", "kept", "said"),
    [
        ([event("negative", 100, -5)], 0, "1 row ended before it began"),
        ([event("a", None, 5), event("b", "soon", 5), event("c", 7, None)], 0, "3 rows had no readable time"),
        ([event("a", -3e13, 5), event("forever", 9, 1e12)], 0, "2 rows began or lasted"),
        ([{**event("x", 1, 1), "cat": "mystery"}], 0, "'mystery'"),
        (["text", 5, None, [1], DAMAGED], 1, "4 rows could not be read"),
        *(
            ([event("a", time, time)], 0, "1 row had no readable time and was left out.")
            for time in ("1e999999999999", "-1e400", "sNaN", "0x10", "")
        ),
        ([event("a", "1e-999999", "1e-999999"), event("a", "\u0661\u0662", "\u0661\u0662")], 2, ""),
        ([event("half \ud83d", 5, 1)], 1, ""),
    ],
)
def test_rows_without_sense_are_left_out_and_counted(tmp_path, imported, events, kept, said):
    document = kineto(training(2))
    document["traceEvents"] += events
    trace = import_trace([write(tmp_path / "odd.json", document)])
    assert len(trace) == len(imported(training(2))) + kept
    assert said in " ".join(trace.metadata["notes"])
    assert trace.to_arrow().num_rows == len(trace)  # every text can be encoded


# -- what is no trace ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"<\0\0\0ED00", "etdump"),
        (b"\n<a\0\x08\0\0\0ED00", "etdump"),
        (b"BZh\0ED00", "etdump"),
        (b"\n<\x08\x07\x12\x36/host:CPU", "xplane"),  # a plane of 60 bytes
    ],
)
def test_a_binary_file_may_begin_with_the_bytes_of_a_page(tmp_path, content, named):
    assert format_of(write(tmp_path / "t", content)) == named


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.999])
def test_a_truncated_file_is_said_to_be_cut_off(tmp_path, packed, share):
    text = json.dumps(kineto(training(20))).encode()
    data = gzip.compress(text) if packed else text
    assert "cut off" in refused(write(tmp_path / "trace.json", data[: int(len(data) * share)]))


def test_missing_files_and_empty_folders_are_said_to_be(tmp_path):
    assert "no such file" in refused(tmp_path / "none.json")
    assert "holds no trace" in refused(tmp_path)
    assert "no source" in refused()
