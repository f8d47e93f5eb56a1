"""Devices that Kineto has no category of its own for: MTIA, Ascend, backends with names of their own."""

import gzip

import numpy as np
import pytest
from kineto_text import document, op, row, write
from shared import shared_trace

from daydream.collect.importers import import_trace
from daydream.collect.importers.kineto.reader import details_of

DEVICE, STREAM = 17, 3536


def imported(tmp_path, events):
    return import_trace([write(tmp_path / "trace.json", events)])


def kinds(trace):
    return dict(zip(trace.values("name"), trace.values("kind"), strict=True))


def mtia():
    def on_device(name, ts, dur, **args):
        return row("mtia_ccp_events", name, ts, dur, pid=DEVICE, tid=STREAM, stream=101, **args)

    waits = {"correlation": 4, "device": DEVICE, "stream_id": 101}
    return [
        op("fb::merge", 0, 100, External_id=5),
        row("mtia_runtime", "enqueueCommand memcpyHtoDAsync", 10, 5, correlation=1),
        row("mtia_runtime", "runFunction - submit", 20, 5, correlation=2),
        row("mtia_runtime", "recordEvent", 30, 5, correlation=3),
        on_device("dma_request", 40, 10, direction="HOST_TO_DEVICE", size=4096, correlation=1),
        on_device("merge", 50, 30, correlation=2),
        on_device("event_record", 80, 1, correlation=3),
        {**row("mtia_runtime", "synchronizeStream", 40, 45), "args": waits},
        {**row("mtia_runtime", "synchronize", 42, 43, pid=DEVICE, tid=STREAM - 2), "args": waits},
    ]  # fmt: skip


def test_rows_of_mtia_are_device_work(tmp_path):
    trace = imported(tmp_path, document(mtia()))
    found = kinds(trace)
    assert found["merge"] == "kernel"
    assert found["Memcpy HtoD (dma_request)"] == "memcpy"
    assert found["Stream Sync"] == "sync"  # the device's side of the call, no work
    assert "event_record" not in found
    assert trace.metadata["vendor"] == "mtia"
    assert not trace.metadata["notes"]
    merge = trace.values("name").index("merge")
    assert trace.values("name")[trace["parent"][merge]] == "runFunction - submit"
    assert trace.values("op")[merge] == "fb::merge"
    copy = trace.values("name").index("Memcpy HtoD (dma_request)")
    assert trace["bytes"][copy] == 4096


def ascend():
    def begin(ns, at, tid):
        flow = {"name": "torch_to_npu", "id": ns, "cat": "async_npu"}
        return [{**flow, "ph": "s", "pid": 100, "tid": tid, "ts": at}]

    def bare(name, ts, dur, tid, **args):
        return {"ph": "X", "name": name, "pid": 800, "tid": tid, "ts": ts, "dur": dur, "args": args}

    task = {"Task Type": "AI_CORE", "Stream Id": 3}
    return [
        op("aten::mm", "1704161511422850.000", 40.0),
        {**row("enqueue", "Enqueue", "1704161511422856.000", 5.0), "args": {"correlation_id": 1}},
        *begin(1704161511422904204, "1704161511422855.000", 100),
        bare("MatMul1", "1704161511422904.204", 20.0, 3, **task),
        bare("MEMCPY_ASYNC", "1704161511422930.000", 1.0, 3, **task),
        bare("EVENT_WAIT", "1704161511422931.000", 9.0, 3, **{**task, "Task Type": "EVENT_WAIT_SQE"}),
        bare("Computing", "1704161511422904.204", 20.0, 0),
        {**bare("AscendCL@aclrtSynchronizeStream", "1704161511422870.000", 12.0, 100), "pid": 10002,
         "args": {"Thread Id": 100, "level": "acl", "connection_id": 1}},
    ]  # fmt: skip


def test_rows_of_ascend_are_device_work_launched_by_their_operator(tmp_path):
    trace = imported(tmp_path, ascend())
    found = kinds(trace)
    assert found == {
        "aten::mm": "operator", "Enqueue": "runtime", "torch_to_npu": "runtime", "MatMul1": "kernel",
        "Memcpy (MEMCPY_ASYNC)": "memcpy", "aclrtSynchronizeStream": "runtime",
    }  # fmt: skip
    names = trace.values("name")
    assert trace.values("op")[names.index("MatMul1")] == "aten::mm"
    assert trace["stream"][names.index("MatMul1")] == 3
    # No flow leads to the copy: it was launched with the work before it on its stream.
    launch = names.index("torch_to_npu")
    assert trace["parent"][names.index("Memcpy (MEMCPY_ASYNC)")] == launch
    # Layers of software have process numbers of their own there; the call lies in its operator.
    assert trace["parent"][names.index("aclrtSynchronizeStream")] == names.index("aten::mm")


DETAILS = (  # the columns of the public tables that are read, as versions write them
    "Step Id,Name,Type,Start Time(us),Duration(us),Input Shapes,Input Data Types,Input Formats,Output\n"
    '1,MatMul1,MatMulV2,"1704161511422904.204\t",20.0,"""2048,4096;4096,512""",DT_BF16;DT_BF16,ND;ND,"""2048,512"""\n'
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
    trace = imported(tmp_path, ascend())
    kernel = trace.values("name").index("MatMul1")
    assert (trace.values("dtype")[kernel], trace.values("shapes")[kernel]) == (dtype, shapes)
    assert any(said in note for note in trace.metadata["notes"])


def test_the_public_tables_of_kernels_are_read():
    for name, types in (
        ("kernel_details.csv.gz", {"float16", "float32"}),
        ("kernel_details_short.csv", None),
    ):
        content = shared_trace(f"formats/ascend/{name}").read_bytes()
        text = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
        told = details_of(text)
        assert told is not None
        assert len(told) > 20
        assert {dtype for dtype, _ in told.values()} >= (types or {"bfloat16"})


@pytest.mark.parametrize(
    ("name", "device_rows", "launched"),
    [("formats/mtia/mtia_inference_rank0", 670, 426), ("formats/ascend/trace_view", 276, 276)],
)
def test_public_traces_of_other_devices_hold_device_work(name, device_rows, launched):
    trace = import_trace([shared_trace(f"{name}.json.gz")])
    device = np.flatnonzero(trace.is_kind("kernel", "memcpy", "memset", "collective"))
    assert len(device) == device_rows
    assert (trace["parent"][device] >= 0).sum() == launched


def xpu():
    """Rows as Kineto's plugin for Intel's GPUs writes them (by its source): queues instead of streams."""

    def on_device(cat, name, ts, dur, correlation, **args):
        given = {"correlation": correlation, "device": 0, "l0 queue": "0x000055d08b8fc138", "sycl queue": 64}
        return {**row(cat, name, ts, dur, pid=0, tid=64), "args": {**given, **args}}

    return [
        op("aten::addmm", 0, 100, External_id=5),
        row("xpu_runtime", "urEnqueueUSMMemcpy", 5, 5, correlation=10, External_id=5),
        on_device("gpu_memcpy", "Memcpy M2D (Host -> Device)", 12, 8, 10, bytes=4096),
        row("xpu_runtime", "urEnqueueKernelLaunch", 20, 10, correlation=11, External_id=5),
        row("xpu_driver", "zeCommandListAppendLaunchKernel", 22, 5, correlation=11),
        on_device("kernel", "gemm_kernel", 40, 50, 11),
        row("xpu_runtime", "urQueueFinish", 100, 4, correlation=12),
    ]


def test_rows_of_intel_gpus_have_their_queue_for_a_stream(tmp_path):
    trace = imported(tmp_path, document(xpu()))
    found = kinds(trace)
    assert found["gemm_kernel"] == "kernel"
    assert found["Memcpy HtoD (Host -> Device)"] == "memcpy"
    names = trace.values("name")
    kernel, copy = names.index("gemm_kernel"), names.index("Memcpy HtoD (Host -> Device)")
    assert trace["stream"][[kernel, copy]].tolist() == [64, 64]
    assert trace["bytes"][copy] == 4096
    assert names[trace["parent"][kernel]] == "zeCommandListAppendLaunchKernel"
    assert trace.values("op")[kernel] == "aten::addmm"
    assert trace.metadata["vendor"] == "xpu"


def test_samples_of_counters_and_annotations_of_graphs_are_left_out_and_counted(tmp_path):
    node = row("kernel", "gemm", 30, 9, pid=0, tid=7, device=0, stream=7, correlation=1)
    node["args"]["name"] = "layers.0"
    launch = row("cuda_runtime", "cudaGraphLaunch", 10, 20, correlation=1)
    sample = {"ph": "C", "name": "sm__active", "pid": 0, "ts": 31, "args": {"value": 0.5}}
    trace = imported(tmp_path, document([launch, node, {**node, "ts": 40}, sample]))

    assert trace.values("name") == ["cudaGraphLaunch", "gemm", "gemm"]
    assert trace.metadata["notes"][:2] == [
        "Annotations of 2 nodes of CUDA graphs (mark_kernels) were left out.",
        "1 row had the category 'counter' and was left out.",
    ]
