"""Nsight Systems exports: what each table becomes, over schema versions and oddities."""

import gzip
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from nsys_database import (
    COPY,
    ID,
    LAUNCH,
    MAIN,
    OTHER,
    PID,
    allocation,
    call,
    copy,
    kernel,
    memset,
    names_of,
    packed,
    range_,
    read,
    read_nsys,
    record,
    rows_of,
    sync,
    write_export,
)
from shared import refusals

import daydream
from daydream.collect.importers import import_trace
from daydream.collect.importers.nsys import split_ranks
from daydream.errors import TraceError
from daydream.trace.schema import NO_ID


def test_calls_and_device_work_become_rows_in_order_of_start(tmp_path):
    recording = read(tmp_path, {
        "RUNTIME": [call(1000, 1010, 5, LAUNCH), call(1020, 1030, 6, "cudaMemsetAsync_v3020", tid=OTHER)],
        "KERNEL": [kernel(1015, 1100, 5)],
        "MEMSET": [memset(1101, 1105, 6)],
    })  # fmt: skip

    assert rows_of(recording, "kind", "name", "start_ns", "duration_ns", "pid", "tid", "correlation") == [
        ("runtime", "cudaLaunchKernel", 0, 10, PID, MAIN, 5),
        ("kernel", "void add<float>(int)", 15, 85, None, None, 5),
        ("runtime", "cudaMemsetAsync", 20, 10, PID, OTHER, 6),
        ("memset", "Memset (Device)", 101, 4, None, None, 6),
    ]
    assert rows_of(recording, "device", "stream", "grid", "block", "bytes")[1::2] == [
        (0, 7, "40,2,1", "128,1,1", None),
        (0, 7, None, None, 64),
    ]
    assert recording.metadata["source"] == "nsys 3.16.1 a.sqlite"
    assert recording.metadata["versions"] == {"nsys": "2024.6.2.225"}
    assert recording.metadata["devices"] == [{"id": 0}]
    assert recording.metadata["vendor"] == "cuda"
    assert recording.metadata["origin_ns"] == 1000
    assert recording.metadata["notes"] == []


def test_an_api_version_is_no_part_of_a_name_but_v2_is(tmp_path):
    recording = read(tmp_path, {"RUNTIME": [call(0, 1, 1, LAUNCH), call(2, 3, 2, "cuMemFree_v2")]})

    assert names_of(recording, "runtime") == ["cudaLaunchKernel", "cuMemFree_v2"]


def test_a_kernel_has_the_best_name_that_is_there(tmp_path):
    short = {**kernel(10, 11, 2), "demangledName": None}
    mangled = {**short, "start": 20, "end": 21, "shortName": None}
    unnamed = {**mangled, "start": 30, "end": 31, "mangledName": 9999}
    recording = read(tmp_path, {"KERNEL": [kernel(0, 1, 1), short, mangled, unnamed]})

    assert names_of(recording, "kernel") == ["void add<float>(int)", "add", "_Z3addi", "unnamed kernel"]


def test_columns_that_a_version_lacks_are_unknown(tmp_path):
    few = {"start": 0, "end": 5, "deviceId": 0, "streamId": 7, "correlationId": 1, "shortName": ID["add"]}
    recording = read(tmp_path, {"KERNEL": [few], "RUNTIME": [call(0, 1, 1, LAUNCH)]}, version="3.2")

    assert "grid" not in recording.columns
    assert "graph_id" not in recording.columns
    # the kernel names no process: it is of the only one
    assert rows_of(recording, "kind", "name", "correlation") == [
        ("kernel", "add", 1),
        ("runtime", "cudaLaunchKernel", 1),
    ]


def test_copies_are_named_as_kineto_names_them(tmp_path):
    kinds = [(1, 0, 2), (2, 2, 1), (8, 2, 2), (10, 2, 2), (11, 4, 2), (99, 99, None)]
    rows = [copy(10 * index, 10 * index + 5, index, kind) for index, kind in enumerate(kinds)]
    recording = read(tmp_path, {"MEMCPY": rows, "MEMSET": [memset(90, 91, 9, None)]})

    assert names_of(recording, "memcpy") == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Pinned)",
        "Memcpy DtoD (Device -> Device)",
        "Memcpy PtoP (Device -> Device)",
        "Memcpy HtoD (Managed -> Device)",
        "Memcpy Unknown (Unknown -> Unknown)",
    ]
    assert names_of(recording, "memset") == ["Memset (Unknown)"]
    assert rows_of(recording, "bytes")[0] == (4096,)


def test_copy_kinds_are_read_from_the_enum_tables_of_the_file(tmp_path):
    recording = read(tmp_path, {
        "MEMCPY": [copy(0, 5, 1, (41, 31, 32))],
        "ENUM_CUDA_MEMCPY_OPER": [{"id": 41, "name": "CUDA_MEMCPY_KIND_DTOH", "label": "Device-to-Host"}],
        "ENUM_CUDA_MEM_KIND": [
            {"id": 31, "name": "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "label": "Device"},
            {"id": 32, "name": "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "label": "Pageable"},
        ],
    })  # fmt: skip

    assert names_of(recording, "memcpy") == ["Memcpy DtoH (Device -> Pageable)"]


def test_a_graph_traced_as_a_whole_is_one_row_and_a_note(tmp_path):
    graph = {
        "start": 10, "end": 90, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 3,
        "globalPid": packed(), "graphId": 4, "graphExecId": 5,
    }  # fmt: skip
    launch = call(0, 5, 3, "cudaGraphLaunch_v10000")
    recording = read(tmp_path, {"GRAPH_TRACE": [graph], "RUNTIME": [launch]})

    assert rows_of(recording, "kind", "name", "duration_ns", "stream", "correlation", "graph_id")[1] == (
        "kernel", "CUDA graph", 80, 7, 3, 4,
    )  # fmt: skip
    assert "1 CUDA graph launch traced as a whole" in recording.metadata["notes"][0]


def test_nodes_of_a_graph_keep_graph_and_node(tmp_path):
    nodes = [kernel(10, 20, 3, graphId=6, graphNodeId=601), kernel(20, 30, 3, graphId=0, graphNodeId=0)]
    recording = read(tmp_path, {"KERNEL": nodes}, version="3.25.0")

    assert rows_of(recording, "graph_id", "graph_node") == [(6, 601), (None, None)]


def test_rows_of_tables_that_are_not_read_are_counted(tmp_path):
    host = {"start": 10, "end": 20, "correlationId": 1, "globalPid": packed()}  # a function in a CUDA graph
    recording = read(tmp_path, {"GRAPH_HOST_NODE": [host, host], "KERNEL": [kernel(30, 40, 2)]})

    assert recording.metadata["notes"] == [
        "2 rows were of the table CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE and were left out."
    ]


def test_nvtx_ranges_are_annotations_on_their_thread(tmp_path):
    recording = read(tmp_path, {
        "RUNTIME": [call(0, 1, 1, LAUNCH)],
        "NVTX_EVENTS": [
            range_(10, 40, "Forward"),
            range_(20, 30, None, tid=OTHER, textId=ID["a registered range"], domainId=3),
            range_(50, 60, "Backward", type_=60),
            range_(52, None, "a mark", type_=34),
            range_(53, None, "cuBLAS", type_=75),
            range_(55, None, "never closed"),
        ],
    })  # fmt: skip

    assert rows_of(recording, "kind", "name", "start_ns", "duration_ns", "pid", "tid")[1:] == [
        ("annotation", "Forward", 10, 30, PID, MAIN),
        ("annotation", "a registered range", 20, 10, PID, OTHER),
        ("annotation", "Backward", 50, 10, PID, MAIN),
    ]
    assert recording.metadata["notes"] == ["1 row had no readable time and was left out."]


@pytest.mark.parametrize(
    ("text", "kind", "name", "sequence", "shapes"),
    [
        ("aten::add, seq = 12, op_id = 345", "operator", "aten::add", 12, None),
        ("aten::empty, op_id = 9", "operator", "aten::empty", None, None),
        ("aten::mm, seq = 3, op_id = 9, sizes = [[2, 3], [3, 4]], input_op_ids = [[1, 0]]",
         "operator", "aten::mm", 3, "[[2,3],[3,4]]"),
        ("aten::mm, op_id = 9, sizes = [[2, 3], not json]", "operator", "aten::mm", None, None),
        ("AddmmBackward0, seq = 4, op_id = 77", "operator", "AddmmBackward0", 4, None),
        ("Fn<A, B>, seq = 1", "operator", "Fn<A, B>", 1, None),
        ("Optimizer.step#SGD.step, op_id = 5", "annotation", "Optimizer.step#SGD.step", None, None),
        ("aten::add", "annotation", "aten::add", None, None),
        ("step 3, epoch 2", "annotation", "step 3, epoch 2", None, None),
    ],
)  # fmt: skip
def test_ranges_of_emit_nvtx_are_operators(tmp_path, text, kind, name, sequence, shapes):
    recording = read(tmp_path, {"NVTX_EVENTS": [range_(0, 9, text)], "RUNTIME": [call(20, 21, 1, LAUNCH)]})

    assert rows_of(recording, "kind", "name", "sequence", "shapes")[0] == (kind, name, sequence, shapes)


def two_processes(tmp_path):
    return read(tmp_path, {
        "RUNTIME": [
            call(0, 5, 1, LAUNCH, pid=30), call(1, 6, 1, LAUNCH, pid=20), call(2, 3, 1, LAUNCH, pid=10),
        ],
        "KERNEL": [
            kernel(10, 20, 1, pid=30, deviceId=0), kernel(12, 25, 1, pid=20, deviceId=1),
            kernel(30, 40, 2, pid=20, deviceId=1),
        ],
    })  # fmt: skip


def test_equal_correlation_ids_of_two_processes_stay_apart(tmp_path):
    recording = two_processes(tmp_path)

    assert rows_of(recording, "kind", "rank", "pid", "device", "correlation") == [
        ("runtime", 0, 30, None, 1),
        ("runtime", 1, 20, None, 1 + (1 << 32)),
        ("runtime", None, 10, None, 1 + (2 << 32)),
        ("kernel", 0, None, 0, 1),
        ("kernel", 1, None, 1, 1 + (1 << 32)),
        ("kernel", 1, None, 1, 2 + (1 << 32)),
    ]
    assert recording.metadata["notes"] == [
        "2 processes did device work; they are ranks, by their lowest device."
    ]


def test_a_file_of_several_processes_splits_into_ranks(tmp_path):
    first, second = split_ranks(two_processes(tmp_path))

    assert [rows_of(part, "kind", "pid", "device") for part in (first, second)] == [
        [("runtime", 30, None), ("kernel", None, 0)],
        [("runtime", 20, None), ("kernel", None, 1), ("kernel", None, 1)],
    ]
    assert [part.metadata["rank"] for part in (first, second)] == [0, 1]
    assert first.metadata["notes"][-1] == "1 row of processes without device work left out."
    assert second.metadata["notes"] == []


def test_times_count_from_the_first_row_and_the_origin_is_absolute(tmp_path):
    recording = read(tmp_path, {
        "RUNTIME": [call(-50, -40, 1, LAUNCH)], "KERNEL": [kernel(-30, 20, 1)],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1_700_000_000_000_000_000, "utcTime": "x"}],
    })  # fmt: skip

    assert rows_of(recording, "start_ns", "duration_ns") == [(0, 10), (20, 50)]
    assert recording.metadata["origin_ns"] == 1_700_000_000_000_000_000 - 50


def test_rows_without_a_proper_end_are_left_out_and_counted(tmp_path):
    rows = [
        kernel(0, 5, 1),
        kernel(9, 5, 2),
        kernel(3, None, 3),
        kernel(-(2**63), 5, 4),
        kernel(2**62, 2**62 + 9, 5),
    ]
    recording = read(tmp_path, {"KERNEL": rows})

    assert len(recording) == 1
    assert recording.metadata["notes"] == [
        "1 row ended before it began and was left out.",
        "3 rows had no readable time and were left out.",
    ]


def test_device_properties_are_named_as_from_kineto(tmp_path):
    recording = read(
        tmp_path,
        {
            "KERNEL": [kernel(0, 5, 1)],
            "TARGET_INFO_GPU": [
                {
                    "id": 3,
                    "cuDevice": 0,
                    "name": "NVIDIA A100",
                    "totalMemory": 85_000_000_000,
                    "smCount": 108,
                    "computeMajor": 8,
                    "computeMinor": 0,
                    "memoryBandwidth": 2_039_040_000_000,
                    "uuid": "6161e0f3",
                }
            ],
        },
    )

    assert recording.metadata["devices"] == [{
        "id": 0, "name": "NVIDIA A100", "memory_bytes": 85_000_000_000, "compute_major": 8,
        "compute_minor": 0, "multiprocessors": 108, "memory_bytes_per_second": 2_039_040_000_000,
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (
            [(2, 0), (1, 1), (1, 0)],
            {0: "NVIDIA B", 1: "NVIDIA A"},
        ),  # as CUDA numbers them, first process first
        ([], {0: "NVIDIA A", 2: "NVIDIA B"}),
    ],
)
def test_a_device_has_the_number_that_cuda_gives_it(tmp_path, seen, names):
    gpus = [
        (0, 0, "Intel Iris", 0),
        (1, 0, "NVIDIA A", 76),
        (2, 2, "NVIDIA B", 76),
        (3, 0, "Basic Render", 0),
    ]
    tables = {
        "KERNEL": [kernel(0, 5, 1)],
        "TARGET_INFO_GPU": [
            dict(zip(("id", "cuDevice", "name", "smCount"), gpu, strict=True)) for gpu in gpus
        ],
    }
    if seen:
        tables["TARGET_INFO_CUDA_DEVICE"] = [
            {"gpuId": gpu, "cudaId": number, "pid": 7} for gpu, number in seen
        ]

    devices = read(tmp_path, tables).metadata["devices"]

    assert {device["id"]: device["name"] for device in devices} == names


def test_nothing_else_leaves_the_file(tmp_path):
    recording = read(tmp_path, {
        "KERNEL": [kernel(0, 5, 1)],
        "TARGET_INFO_SYSTEM_ENV": [{"name": "Environment", "value": "TOKEN=secret"}],
        "PROCESSES": [{"name": "secret"}],
        "StringIds": [
            {"id": ID["void add<float>(int)"], "value": "void add<float>(int)"},
            {"id": 900, "value": "/home/secret/train.py"},
        ],
    })  # fmt: skip

    assert "secret" not in repr(recording.metadata) + repr(recording.texts)


def test_blocked_threads_are_rows_and_who_woke_them_is_told_by_who_blocked_then(tmp_path):
    def switch(start, is_in, tid):
        return {"start": 1000 * start, "cpu": 0, "isSchedIn": is_in, "globalTid": packed(tid)}

    def waits(start, end, name):
        return {"start": 1000 * start, "end": 1000 * end, "nameId": ID[name], "globalTid": packed(OTHER)}

    recording = read(tmp_path, {
        "RUNTIME": [
            call(0, 1000, 1, LAUNCH),
            call(999_000, 1_000_000, 2, LAUNCH, tid=OTHER),
        ],
        "SCHED_EVENTS": [
            switch(5, 0, MAIN), switch(45, 1, MAIN),
            switch(100, 0, MAIN), switch(300, 1, MAIN),  # woken by the other, which blocks 10 us later
            switch(20, 1, OTHER), switch(310, 0, OTHER), switch(990, 1, OTHER),  # by nobody
            switch(0, 0, 777), switch(900, 1, 777),  # of a thread without other rows
        ],
        "OSRT_API": [waits(400, 500, "read")],
        "PROFILER_OVERHEAD": [waits(700, 800, "read")],
    })  # fmt: skip

    found = rows_of(recording, "kind", "name", "start_ns", "duration_ns", "tid", "waker")
    assert [each[1:] for each in found if each[0] == "blocked"] == [
        ("off the CPU", 100_000, 200_000, MAIN, OTHER),
        ("off the CPU", 310_000, 680_000, OTHER, None),
        ("read", 400_000, 100_000, OTHER, None),
        ("profiler: read", 700_000, 100_000, OTHER, None),
    ]


def test_who_calls_what_wakes_right_before_the_end_of_a_wait_ended_it(tmp_path):
    def lasts(start, end, name, tid=MAIN):
        return {"start": 1000 * start, "end": 1000 * end, "nameId": ID[name], "globalTid": packed(tid)}

    path = write_export(tmp_path / "a.sqlite", {
        "RUNTIME": [call(0, 1000, 1, LAUNCH), call(999_000, 1_000_000, 2, LAUNCH)],
        "OSRT_API": [
            lasts(100, 300, "sem_wait"), lasts(295, 297, "sem_post", OTHER),
            lasts(400, 600, "sem_wait"),  # it posts all the time: chance
            *(lasts(at, at + 1, "sem_post", OTHER) for at in range(405, 600, 10)),
            lasts(700, 900, "sem_wait"), lasts(705, 706, "sem_post", OTHER),  # too long before
        ],
    })  # fmt: skip

    found = rows_of(read_nsys(path), "kind", "start_ns", "waker")
    blocked = [each[1:] for each in found if each[0] == "blocked"]
    assert blocked == [(100_000, OTHER), (400_000, None), (700_000, None)]


@pytest.mark.parametrize(
    ("table", "lacks", "more", "found"),
    [
        ("SCHED_EVENTS", "isSchedIn", {}, ["no CPU sample", "profiler: read", "read"]),
        ("OSRT_API", "nameId", {}, ["off the CPU", "profiler: read"]),
        ("PROFILER_OVERHEAD", "", {"id": 5, "value": 6}, ["off the CPU", "profiler: read", "read"]),
    ],
)
def test_a_table_tells_of_blocked_threads_where_it_has_the_columns(tmp_path, table, lacks, more, found):
    on = {"globalTid": packed(MAIN)}
    row = {"start": 200_000, "end": 300_000, "nameId": ID["read"], **on}
    tables = {
        "NVTX_EVENTS": [range_(0, 200_000_000, "step")],
        "MEMSET": [memset(0, 10, 1)],
        "SCHED_EVENTS": [{"start": at, "isSchedIn": at > 0, **on} for at in (0, 100_000)],
        "OSRT_API": [row],
        "PROFILER_OVERHEAD": [row],
        "COMPOSITE_EVENTS": [{"start": at, **on} for at in (0, 60_000_000)],
        "StringIds": [{"id": ID["read"], "value": "read"}],
    }
    tables[table] = [{**each, **more} for each in tables[table]]
    for each in tables[table]:
        each.pop(lacks, None)

    assert sorted(names_of(read(tmp_path, tables), "blocked")) == found


def test_where_no_switches_were_recorded_a_thread_without_samples_was_idle(tmp_path):
    samples = [{"start": 1_000_000 * at, "globalTid": packed(MAIN)} for at in (0, 1, 49, 110)]
    recording = read(tmp_path, {
        "RUNTIME": [call(0, 10, 1, LAUNCH), call(120_000_000, 120_000_010, 2, LAUNCH)],
        "COMPOSITE_EVENTS": samples,
    })  # fmt: skip

    found = rows_of(recording, "kind", "name", "start_ns", "duration_ns")
    assert found[1:-1] == [("blocked", "no CPU sample", 49_000_000, 61_000_000)]


@pytest.mark.parametrize(
    ("of_type", "name"),
    [(1, "Event Sync"), (2, "Stream Wait Event"), (3, "Stream Sync"), (4, "Context Sync")],
)
def test_a_sync_row_is_named_by_its_type(tmp_path, of_type, name):
    # the type says more than the call: a copy may wait for a stream
    recording = read(
        tmp_path,
        {
            "SYNCHRONIZATION": [sync(2, 8, 1, syncType=of_type, streamId=7)],
            "RUNTIME": [call(0, 9, 1, COPY)],
        },
    )

    assert rows_of(recording, "kind", "name", "start_ns", "duration_ns", "stream", "correlation")[1] == (
        "sync",
        name,
        2,
        6,
        7,
        1,
    )


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("cudaDeviceSynchronize_v3020", "Context Sync"),
        ("cudaStreamSynchronize_v3020", "Stream Sync"),
        ("cudaEventSynchronize_v3020", "Event Sync"),
        ("cudaStreamWaitEvent_v3020", "Stream Wait Event"),
    ],
)
def test_a_sync_row_without_a_type_is_named_by_its_call(tmp_path, called, name):
    recording = read(tmp_path, {"SYNCHRONIZATION": [sync(2, 8, 1)], "RUNTIME": [call(0, 9, 1, called)]})

    assert names_of(recording, "sync") == [name]


def test_a_sync_row_without_type_and_call_is_named_by_the_older_type_or_its_ids(tmp_path):
    older = [sync(i, i + 1, i, deprecatedSyncType=i, streamId=7) for i in range(3)]
    bare = [
        sync(10, 11, 10, deprecatedSyncType=None, eventId=5, streamId=7),
        sync(12, 13, 12, deprecatedSyncType=None, streamId=7),
        sync(14, 15, 14, deprecatedSyncType=None),
    ]
    recording = read(tmp_path, {"SYNCHRONIZATION": older + bare, "RUNTIME": [call(50, 51, 99, COPY)]})

    assert names_of(recording, "sync") == [
        "Context Sync",
        "Event Sync",
        "Stream Sync",
        "Event Sync",
        "Stream Sync",
        "Context Sync",
    ]


def test_a_sync_row_is_on_the_device_of_its_context(tmp_path):
    recording = read(
        tmp_path,
        {
            "KERNEL": [kernel(0, 5, 1, deviceId=0, contextId=1), kernel(0, 5, 2, deviceId=1, contextId=2)],
            "SYNCHRONIZATION": [
                sync(10, 11, 3, contextId=2),
                sync(12, 13, 4, contextId=1),
                sync(14, 15, 5, contextId=9),
            ],
        },
    )

    assert [device for kind, device in rows_of(recording, "kind", "device") if kind == "sync"] == [
        1,
        0,
        0,
    ]


def test_a_query_is_no_wait(tmp_path):
    recording = read(
        tmp_path,
        {
            "SYNCHRONIZATION": [sync(2, 3, 1, syncType=1, eventId=4)],
            "RUNTIME": [call(0, 9, 1, "cudaEventQuery_v3020")],
        },
    )

    assert names_of(recording, "sync") == ["Event Query"]
    assert recording.metadata["notes"] == []


def waits_and_records(**numbers):
    #  record A(10)  record B(20)  wait A(30)  record A again(40)  wait A(50)  wait C(60)
    record_again, first, second = numbers.get("sync_ids", [None, None, None])
    return {
        "RUNTIME": [
            call(10, 11, 1, "cudaEventRecord_v3020"),
            call(20, 21, 2, "cudaEventRecord_v3020"),
            call(30, 31, 3, "cudaStreamWaitEvent_v3020"),
            call(40, 41, 4, "cudaEventRecord_v3020"),
            call(50, 51, 5, "cudaStreamWaitEvent_v3020"),
            call(60, 61, 6, "cudaEventSynchronize_v3020"),
        ],
        "CUDA_EVENT": [
            record(1, 100, 7, eventSyncId=first),
            record(2, 200, 8, eventSyncId=first),
            record(4, 100, 9, eventSyncId=record_again),
        ],
        "SYNCHRONIZATION": [
            sync(30, 31, 3, streamId=13, eventId=100, syncType=2, eventSyncId=first),
            sync(50, 51, 5, streamId=13, eventId=100, syncType=2, eventSyncId=second),
            sync(60, 61, 6, eventId=300, syncType=1, eventSyncId=first),
        ],
    }


def waits_of(recording):
    rows = rows_of(recording, "kind", "stream", "wait_stream", "wait_correlation")
    assert recording.metadata["notes"] == [
        "1 of 3 waits for an event have no record of the event in the file."
    ]
    return [row[1:] for row in rows if row[0] == "sync"]


def test_a_wait_is_for_the_latest_record_of_its_event_before_it(tmp_path):
    tables = waits_and_records()
    tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = tables.pop("CUDA_EVENT")

    assert waits_of(read(tmp_path, tables, version="3.17.2")) == [(13, 7, 1), (13, 9, 4), (None, None, None)]


def test_numbered_records_are_told_apart_by_their_number(tmp_path):
    # the second wait is for the first record, though the event was recorded again before it
    tables = waits_and_records(sync_ids=[72, 71, 71])
    assert waits_of(read(tmp_path, tables, version="3.25.0")) == [
        (13, 7, 1),
        (13, 7, 1),
        (None, None, None),
    ]


TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
WORK = {"RUNTIME": [call(1000, 1010, 5, LAUNCH)], "KERNEL": [kernel(1015, 1100, 5)]}


def imported(folder, *rows, **tables):
    return daydream.load(write_export(folder / "a.sqlite", {**WORK, **tables, TABLE: rows}))


def test_allocations_and_frees_are_read_on_the_thread_that_asked(tmp_path):
    trace = imported(tmp_path, allocation(1005, 2 << 20, 5), allocation(1050, 2 << 20, memoryOperationType=1))

    memory = trace.memory
    assert memory["time_ns"].tolist() == [5, 50]
    assert memory["bytes"].tolist() == [2 << 20, -(2 << 20)]
    assert memory["tid"].tolist() == [MAIN, NO_ID]
    assert memory["pid"].tolist() == [PID, NO_ID]
    assert memory["address"].tolist() == [4096, 4096]
    assert memory["allocated_bytes"].tolist() == [-1, -1]


@pytest.mark.parametrize("kind", [0, 1, 3, 4, 6, 7])
def test_memory_that_is_not_on_a_gpu_is_left_out_and_counted(tmp_path, kind):
    trace = imported(tmp_path, allocation(1005, 512), allocation(1006, 512, memKind=kind))

    assert len(trace.memory) == 1
    assert (
        "1 row of memory of the host or of processes without device work was left out."
        in (trace.metadata["notes"])
    )


@pytest.mark.parametrize(
    "more",
    [
        {"start": None},
        {"bytes": None},
        {"bytes": -1},
        {"bytes": 2**62},
        {"deviceId": None},
        {"memoryOperationType": 9},
    ],
)
def test_rows_that_hold_no_event_are_left_out_and_counted(tmp_path, more):
    trace = imported(tmp_path, allocation(1005, 512), {**allocation(1006, 512), **more})

    assert len(trace.memory) == 1
    assert (
        "1 row of memory told no time, device or number of bytes and was left out." in trace.metadata["notes"]
    )


def test_a_gzipped_export_reads_the_same_and_leaves_nothing_behind(tmp_path):
    path = write_export(
        tmp_path / "a.sqlite", {"RUNTIME": [call(0, 5, 1, LAUNCH)], "KERNEL": [kernel(3, 9, 1)]}
    )
    packed_path = tmp_path / "a.sqlite.gz"
    packed_path.write_bytes(gzip.compress(path.read_bytes()))
    before = path.read_bytes()

    plain, unpacked = read_nsys(path), read_nsys(packed_path)

    assert rows_of(plain, *plain.columns) == rows_of(unpacked, *unpacked.columns)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a.sqlite", "a.sqlite.gz"]
    assert path.read_bytes() == before


def fails_with(path):
    with pytest.raises(TraceError) as caught:
        read_nsys(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_files_that_are_no_export_are_refused_in_one_line(tmp_path):
    (tmp_path / "text.sqlite").write_text("not a database, but long enough to look like one" * 9)
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "empty.sqlite.gz").write_bytes(gzip.compress(b""))
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE bookmarks (url)")
    other.commit()
    other.close()

    assert fails_with(tmp_path / "none.sqlite").endswith("none.sqlite: no such file")
    assert "is a folder" in fails_with(tmp_path)
    assert "is not an SQLite database" in fails_with(tmp_path / "text.sqlite")
    assert "is not an SQLite database" in fails_with(tmp_path / "empty.sqlite")
    assert "is not an SQLite database" in fails_with(tmp_path / "empty.sqlite.gz")
    assert "not an Nsight Systems export" in fails_with(tmp_path / "other.sqlite")


def test_a_report_is_refused_with_the_command_that_exports_it(tmp_path):
    (tmp_path / "my run.nsys-rep").write_bytes(b"\x0a\x00\x00" * 200)
    path = tmp_path / "my run.nsys-rep"

    for given in (path, tmp_path):  # a folder that holds nothing else
        with pytest.raises(TraceError, match=f"`nsys export --type sqlite '{path}'`"):
            import_trace([given])
    other = path.rename(tmp_path / "k.ncu-rep")
    with pytest.raises(TraceError, match=f"`ncu --import {other} --csv "):
        import_trace([tmp_path])


def test_an_export_without_cuda_activity_says_how_to_record_it(tmp_path):
    only_ranges = write_export(tmp_path / "a.sqlite", {"NVTX_EVENTS": [range_(0, 9, "x")]})
    unfinished = write_export(tmp_path / "b.sqlite", {"KERNEL": [kernel(0, None, 1)]})

    assert "--trace=cuda,nvtx" in fails_with(only_ranges)
    assert "without a finished CUDA or NVTX row" in fails_with(unfinished)


def test_cut_off_files_are_refused(tmp_path):
    rows = [kernel(10 * i, 10 * i + 5, i) for i in range(500)]
    path = write_export(tmp_path / "a.sqlite", {"KERNEL": rows})
    whole = path.read_bytes()

    (tmp_path / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "head.sqlite").write_bytes(whole[:60])
    (tmp_path / "cut.sqlite.gz").write_bytes(gzip.compress(whole)[:-2000])

    assert "is cut off" in fails_with(tmp_path / "cut.sqlite")
    assert "is cut off" in fails_with(tmp_path / "head.sqlite")
    assert "cut off or damaged" in fails_with(tmp_path / "cut.sqlite.gz")


def test_damaged_bytes_give_an_error_or_a_recording(tmp_path):
    tables = {
        "RUNTIME": [call(10 * i - 3, 10 * i + 2, i, LAUNCH) for i in range(60)],
        "KERNEL": [kernel(10 * i, 10 * i + 5, i) for i in range(60)],
        "SYNCHRONIZATION": [
            sync(10 * i, 10 * i + 1, i, streamId=13, eventId=100, syncType=2) for i in range(9)
        ],
        "CUDA_EVENT": [record(i, 100, 7) for i in range(9)],
        "NVTX_EVENTS": [range_(0, 9, "aten::add, seq = 12, op_id = 345")],
    }
    whole = write_export(tmp_path / "a.sqlite", tables).read_bytes()
    assert refusals(tmp_path / "damaged.sqlite", whole)


SHARED = Path(__file__).parents[3] / "shared" / "traces" / "nsys"


def shared(name):
    path = SHARED / f"{name}.sqlite.gz"
    if not path.exists():
        pytest.skip(f"the shared trace {name} is not here")
    return path


def kinds_and_names(recording):
    return Counter(kind for (kind,) in rows_of(recording, "kind"))


def in_flight(recording):
    """Return the most launched, unfinished tasks on the stream, at the start and at the return of calls."""
    calls = {row[0]: row[1:] for row in rows_of(recording, "correlation", "start_ns", "duration_ns", "kind")
             if row[3] == "runtime"}  # fmt: skip
    device = recording.is_kind("kernel", "memcpy", "memset")
    launch = np.array([calls[code][:2] for code in recording["correlation"][device].tolist()])
    end = np.sort((recording["start_ns"] + recording["duration_ns"])[device])
    begin, finish = np.sort(launch[:, 0]), np.sort(launch.sum(axis=1))
    launched = np.arange(1, len(begin) + 1)
    return tuple(int((launched - np.searchsorted(end, time, side="right")).max()) for time in (begin, finish))


def test_the_shared_a100_trace_has_its_counts_and_its_full_queue():
    recording = read_nsys(shared("a100_gpt2.7b_forward_eager"))

    assert kinds_and_names(recording) == {
        "runtime": 18_322, "kernel": 18_320, "sync": 2, "blocked": 7,
    }  # fmt: skip
    assert Counter(names_of(recording, "runtime"))["cudaLaunchKernel"] == 18_320
    assert names_of(recording, "sync") == ["Context Sync", "Context Sync"]
    assert recording.metadata["source"].startswith("nsys 3.16.1 ")
    assert recording.metadata["devices"][0]["name"] == "NVIDIA A100-SXM4-80GB"
    assert recording.metadata["notes"] == []
    # 1,022 are in flight when calls return; one that is blocked makes it 1,023
    assert in_flight(recording) == (1_023, 1_022)


def test_the_shared_rtx_trace_has_its_counts_and_its_full_queue():
    recording = read_nsys(shared("rtx3070ti_transformer_training_nvtx"))

    assert kinds_and_names(recording) == {
        "runtime": 20_436, "kernel": 17_032, "memset": 1_510, "memcpy": 272, "sync": 169, "annotation": 31,
        "blocked": 514,
    }  # fmt: skip
    assert Counter(names_of(recording, "sync")) == {"Context Sync": 15, "Event Query": 42, "Stream Sync": 112}
    assert Counter(names_of(recording, "memcpy")) == {
        "Memcpy DtoD (Device -> Device)": 130,
        "Memcpy HtoD (Pageable -> Device)": 112,
        "Memcpy HtoD (Pinned -> Device)": 30,
    }
    assert Counter(names_of(recording, "annotation"))["Forward"] == 15
    assert in_flight(recording) == (1_022, 1_021)


def test_the_shared_graph_trace_has_ten_graphs_not_itemised():
    recording = read_nsys(shared("a100_gpt2.7b_forward_compiled_cuda_graph"))

    names = Counter(names_of(recording, "kernel"))
    assert names.pop("CUDA graph") == 10
    assert names.total() == 30
    assert recording.metadata["notes"][0].startswith("10 CUDA graph launches traced as a whole")


def test_the_shared_pipeline_trace_is_two_ranks_whose_ids_collide():
    recording = read_nsys(shared("h100_pipeline_2gpu"))

    assert kinds_and_names(recording) == {
        "operator": 18_490, "runtime": 7_466, "kernel": 4_010, "memcpy": 1_020, "annotation": 628,
        "sync": 366, "memset": 269,
    }  # fmt: skip
    assert Counter(names_of(recording, "sync")) == {
        "Stream Wait Event": 200, "Event Query": 133, "Stream Sync": 33,
    }  # fmt: skip
    calls = set(recording["correlation"][recording.is_kind("runtime")].tolist())
    device = recording.is_kind("kernel", "memcpy", "memset")
    assert sum(code not in calls for code in recording["correlation"][device].tolist()) == 31
    assert (
        "200 of 200 waits for an event have no record of the event in the file."
        in recording.metadata["notes"]
    )

    first, second = split_ranks(recording)
    assert [int(part.is_kind("kernel").sum()) for part in (first, second)] == [1_993, 2_017]
    assert [set(part["device"].tolist()) for part in (first, second)] == [{-1, 0}, {-1, 1}]
