"""Reading Kineto JSON: formats since 2021, odd values, and nothing that is not asked for."""

import json

import numpy as np
import pytest
from kineto_text import MAIN, document, kernel, op, row, rows_named, training, write

from daydream.collect.importers import import_trace
from daydream.collect.importers.kineto.reader import read_kineto
from daydream.errors import TraceError
from daydream.trace.schema import NO_ID, UNKNOWN


def imported(tmp_path, events, **header):
    return import_trace([write(tmp_path / "trace.json", document(events, **header))])


def columns_of(trace):
    return {name: trace.values(name) for name in sorted(trace.columns)}


# Formats


@pytest.mark.parametrize("block_bytes", [64, 4096])
@pytest.mark.parametrize("form", ["one line", "pretty", "list", "header last", "packed"])
def test_the_size_of_a_block_changes_nothing(tmp_path, block_bytes, form):
    events = training(5)
    events[3]["name"] = 'odd }, {"ph": "X", "name": '
    events[4]["args"]["list"] = [{"a": 1}, {"b": 2}]
    contents = {
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


def test_categories_ids_and_threads_of_2021(tmp_path):
    events = [
        row("Operator", "ProfilerStep#16", 1623143093496000, 900, tid="100", External_id=1),
        row("Operator", "aten::relu", 1623143093496010, 30, tid="100", External_id=2),
        row("Runtime", "cudaLaunchKernel", 1623143093496015, 5, tid="100", correlation=7, external_id=2),
        row(
            "Kernel",
            "relu_kernel<float>",
            1623143093496030,
            0,
            pid=0,
            tid="stream 7",
            device=0,
            stream=7,
            correlation=7,
        ),
        row(
            "Memset",
            "Memset (Device)",
            1623143093496040,
            1,
            pid=0,
            tid="stream 7",
            device=0,
            stream="7",
            correlation=8,
            bytes=64,
        ),
    ]
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


def test_times_too_large_for_a_float_keep_their_digits(tmp_path):
    text = json.dumps(document([op("a", 1, 2), op("b", 2, 2), op("c", 3, 2)]))
    for index, digits in enumerate(
        ("1708000000000000.123", "1708000000000000.124", '"1708000000000001.001"'), 1
    ):
        text = text.replace(f'"ts": {index},', f'"ts": {digits},')
    trace = import_trace([write(tmp_path / "trace.json", text)])
    assert trace.values("start_ns") == [0, 1, 878]
    assert trace.metadata["origin_ns"] == 1708000000000000123


def test_the_base_time_is_kept_and_aligns_ranks(tmp_path):
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


def test_ranks_that_are_missing_or_clash_come_from_the_names(tmp_path):
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


def test_threads_may_be_negative_huge_or_text(tmp_path):
    tids = [-5, 2**64 - 5, "140", "thread 7", 3, None]
    trace = imported(tmp_path, [op(f"op {tid}", 10 * index, 1, tid=tid) for index, tid in enumerate(tids)])
    assert trace.values("tid") == [-5, -5, 140, 7, 3, None]


def test_unknown_is_never_zero(tmp_path):
    trace = imported(tmp_path, [op("a", 0, 5), {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}])
    for name in ("correlation", "external_id", "stream", "bytes", "parent"):
        assert set(np.asarray(trace[name]).tolist()) == {UNKNOWN}
    assert trace["tid"][rows_named(trace, "k")].tolist() == [NO_ID]


def test_frames_that_block_and_the_profilers_own_time_are_blocked_rows(tmp_path):
    events = [
        op("aten::mm", 0, 50),
        row("python_function", "/usr/lib/python3.11/queue.py(154): get", 100, 300),
        row("python_function", "<built-in method acquire of _thread.lock object at 0x7f>", 110, 280),
        row("python_function", "<built-in function sleep>", 500, 20),  # shorter than a wait
        row("python_function", "work/queue.py(3): get", 500, 100),  # the program's own
        row("python_function", "threading.py(327): wait", 0, 900, tid=MAIN + 9),  # a thread without rows
        row("overhead", "Activity Buffer Request", 700, 80, pid=-1, tid=0),
        op("aten::add", 790, 50),
        row("overhead", "Command Buffer Full", 850, 80, pid=-1, tid=0),
        op("aten::sub", 940, 50),
    ]
    trace = imported(tmp_path, events)
    rows = np.flatnonzero(trace.is_kind("blocked"))
    assert trace.values("name", rows) == [
        "queue.get",
        "_thread.lock.acquire",
        "profiler: Activity Buffer Request",
    ]
    assert trace["duration_ns"][rows].tolist() == [300_000, 280_000, 80_000]
    assert trace["tid"][rows].tolist() == [MAIN] * 3
    assert trace.metadata["notes"] == ["1 row had the category 'overhead' and was left out."]


def test_rows_that_are_no_work_are_left_out(tmp_path):
    events = [
        *training(1),
        row("gpu_user_annotation", "Optimizer.step#SGD.step", 640, 30, pid=0, tid=7),
        row("python_function", "train.py(1): main", 0, 900),
        row("python_function", "nn.Module: Linear_0", 99, 60),
        row("cuda_profiler_range", "kernel", 100, 50, pid=0, tid=1),
        row("overhead", "Buffer Flush", 100, 50, pid=-1, tid=0),
    ]
    trace = imported(tmp_path, events)
    names = trace.values("name")
    assert names.count("Optimizer.step#SGD.step") == 1
    assert "train.py(1): main" not in names
    assert trace.values("kind")[names.index("Linear_0")] == "module"
    notes = " ".join(trace.metadata["notes"])
    assert "cuda_profiler_range" in notes
    assert "overhead" in notes


def test_no_secret_reaches_the_trace(tmp_path):
    events = training(2)
    for event in events:
        if event.get("args") is not None:
            event["args"]["Call stack"] = "/home/secret/train.py(3): main"
            event["args"]["env"] = "TOKEN=secret"
    header = {
        "traceName": "/home/secret/trace.json",
        "environment": {"TOKEN": "secret"},
        "host_name": "secret",
        "distributedInfo": {
            "rank": 0,
            "world_size": 2,
            "backend": "nccl",
            "pg_config": [
                {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "store": "tcp://secret"}
            ],
            "master": "secret",
        },
        "deviceProperties": [{"id": 0, "name": "Test GPU", "numSms": 10, "serial": "secret"}],
        "cuda_runtime_version": 12040,
    }
    folder = tmp_path / "secret"
    folder.mkdir()
    trace = import_trace([write(folder / "trace.json", document(events) | header)])
    kept = json.dumps(trace.metadata) + json.dumps(trace.texts)
    assert "secret" not in kept
    assert trace.metadata["devices"] == [{"id": 0, "multiprocessors": 10, "name": "Test GPU"}]
    assert trace.metadata["groups"] == [{"name": "0", "description": "default_pg", "ranks": [0, 1]}]
    assert trace.metadata["versions"] == {"cuda_runtime_version": "12040"}


def test_sync_rows_keep_what_they_wait_for(tmp_path):
    events = [
        *training(1),
        row("cuda_sync", "Stream Wait Event", 500, 1, pid=0, tid=24, stream=24, correlation=50, device=0),
        row("cuda_sync", "Stream Wait Event", 510, 1, pid=0, tid=24, stream=24, correlation=52, device=0),
    ]
    events[-2]["args"] |= {"wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 49}
    events[-1]["args"] |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    trace = imported(tmp_path, events)
    rows = np.flatnonzero(trace.is_kind("sync"))
    assert trace.values("wait_stream", rows) == [20, None]
    assert trace.values("wait_correlation", rows) == [49, None]
    assert trace.values("stream", rows) == [24, 24]


def test_a_grid_in_work_items_becomes_one_in_blocks(tmp_path):
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


# The call


def test_a_parquet_trace_is_loaded_as_it_is(tmp_path):
    trace = imported(tmp_path, training())
    trace.save(tmp_path / "trace.parquet")
    again = import_trace([tmp_path / "trace.parquet"])
    assert columns_of(again) == columns_of(trace)
    assert again.metadata == trace.metadata
    with pytest.raises(TraceError, match="give it alone"):
        import_trace([tmp_path / "trace.parquet", tmp_path / "trace.json"])
