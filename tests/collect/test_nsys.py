"""Nsight Systems exports: what each table becomes, over schema versions and oddities."""

import gzip
import sqlite3
from collections import Counter

import numpy as np
import pytest
from collect.nsys_database import MAIN, OTHER, PID, read_nsys, rows_of, tables, write_export
from shared import shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.collect.importers.nsys import split_ranks
from daydream.errors import TraceError
from daydream.trace.schema import NO_ID

LAUNCH = "RUNTIME cudaLaunchKernel_v7000 0 1 correlationId=1"
NOW = 1_700_000_000_000_000_000


@pytest.fixture
def read(tmp_path):
    """Return what an export is read as, with one launch beside the rows of a text."""

    def made(text, **more):
        return read_nsys(write_export(tmp_path / "a.sqlite", text, **more))

    return made


def test_calls_and_device_work_become_rows_in_order_of_start(read):
    recording = read(
        """
        RUNTIME cudaLaunchKernel_v7000 1000 1010 correlationId=5
        RUNTIME cudaMemsetAsync_v3020 1020 1030 correlationId=6 tid=702
        KERNEL 1015 1100 correlationId=5
        MEMSET 1101 1105 correlationId=6
        """,
        TARGET_INFO_SESSION_START_TIME=[{"utcEpochNs": NOW, "utcTime": "x"}],
        TARGET_INFO_SYSTEM_ENV=[{"name": "Environment", "value": "TOKEN=secret"}],
        PROCESSES=[{"name": "secret"}],
    )
    assert rows_of(recording, "kind", "name", "start_ns", "duration_ns", "pid", "tid", "correlation") == [
        ["runtime", "cudaLaunchKernel", 0, 10, PID, MAIN, 5],
        ["kernel", "void add<float>(int)", 15, 85, None, None, 5],
        ["runtime", "cudaMemsetAsync", 20, 10, PID, OTHER, 6],
        ["memset", "Memset (Device)", 101, 4, None, None, 6],
    ]
    assert rows_of(recording, "device", "stream", "grid", "block", "bytes")[1::2] == [
        [0, 7, "40,2,1", "128,1,1", None], [0, 7, None, None, 64],
    ]  # fmt: skip
    metadata = recording.metadata
    assert (metadata["source"], metadata["versions"]) == ("nsys 3.16.1 a.sqlite", {"nsys": "2024.6.2.225"})
    assert (metadata["devices"], metadata["vendor"], metadata["notes"]) == ([{"id": 0}], "cuda", [])
    assert metadata["origin_ns"] == NOW + 1000
    assert "secret" not in repr(metadata) + repr(recording.texts)


BEST_NAME = """
    KERNEL 0 1
    KERNEL 10 11 demangledName=-
    KERNEL 20 21 demangledName=- shortName=-
    KERNEL 30 31 demangledName=- shortName=- mangledName=9999
"""
COPIES = """
    MEMCPY 0 5 copyKind=1 srcKind=0 dstKind=2
    MEMCPY 10 15 copyKind=2 srcKind=2 dstKind=1
    MEMCPY 30 35 copyKind=10 srcKind=2 dstKind=2
    MEMCPY 40 45 copyKind=11 srcKind=4 dstKind=2
    MEMCPY 50 55 copyKind=99 srcKind=99 dstKind=-
    MEMSET 90 91 memKind=-
"""
ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": [{"id": 41, "name": "CUDA_MEMCPY_KIND_DTOH", "label": "Device-to-Host"}],
    "ENUM_CUDA_MEM_KIND": [
        {"id": 31, "name": "CUDA_MEMOPR_MEMORY_KIND_DEVICE", "label": "Device"},
        {"id": 32, "name": "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "label": "Pageable"},
    ],
}
RANGES = """
    NVTX_EVENTS Forward 10 40
    NVTX_EVENTS 20 30 tid=702 textId=2 domainId=3
    NVTX_EVENTS Backward 50 60 eventType=60
    NVTX_EVENTS a mark 52 - eventType=34
    NVTX_EVENTS cuBLAS 53 - eventType=75
    NVTX_EVENTS never closed 55 -
"""
ODD_TIMES = f"""
    KERNEL 0 5
    KERNEL 9 5
    KERNEL 3 -
    KERNEL {-(2**63)} 5
    KERNEL {2**62} {2**62 + 9}
"""
OLDER_SYNCS = """
    SYNCHRONIZATION 0 1 deprecatedSyncType=0 streamId=7
    SYNCHRONIZATION 2 3 deprecatedSyncType=1 streamId=7
    SYNCHRONIZATION 4 5 deprecatedSyncType=2 streamId=7
    SYNCHRONIZATION 10 11 deprecatedSyncType=- eventId=5 streamId=7
    SYNCHRONIZATION 12 13 deprecatedSyncType=- streamId=7
    SYNCHRONIZATION 14 15 deprecatedSyncType=-
"""
OLDER_NAMES = ["Context Sync", "Event Sync", "Stream Sync", "Event Sync", "Stream Sync", "Context Sync"]
CASES = {  # an export, other tables, and values of rows of a kind
    "an API version is no part of a name but _v2 is": (
        "RUNTIME cuMemFree_v2 2 3", {}, "runtime", ["name"], [["cudaLaunchKernel"], ["cuMemFree_v2"]],
    ),
    "a kernel has the best name that is there": (
        BEST_NAME, {}, "kernel", ["name"],
        [["void add<float>(int)"], ["add"], ["_Z3addi"], ["unnamed kernel"]],
    ),
    "copies are named as Kineto names them": (
        COPIES, {}, "memcpy", ["name"],
        [["Memcpy HtoD (Pageable -> Device)"], ["Memcpy DtoH (Device -> Pinned)"],
         ["Memcpy PtoP (Device -> Device)"], ["Memcpy HtoD (Managed -> Device)"],
         ["Memcpy Unknown (Unknown -> Unknown)"]],
    ),
    "memory of an unknown kind is set": (COPIES, {}, "memset", ["name", "bytes"], [["Memset (Unknown)", 64]]),
    "kinds of copies are read from the enum tables of the file": (
        "MEMCPY 0 5 copyKind=41 srcKind=31 dstKind=32", ENUMS, "memcpy", ["name", "bytes"],
        [["Memcpy DtoH (Device -> Pageable)", 4096]],
    ),
    "a graph traced as a whole is one row": (
        "GRAPH_TRACE 10 90 correlationId=3", {}, "kernel",
        ["name", "duration_ns", "stream", "correlation", "graph_id"], [["CUDA graph", 80, 7, 3, 4]],
    ),
    "nodes of a graph keep graph and node": (
        "KERNEL 10 20 graphId=6 graphNodeId=601\nKERNEL 20 30 graphId=0 graphNodeId=0", {}, "kernel",
        ["graph_id", "graph_node"], [[6, 601], [None, None]],
    ),
    "NVTX ranges are annotations on their thread": (
        RANGES, {}, "annotation", ["name", "start_ns", "duration_ns", "pid", "tid"],
        [["Forward", 10, 30, PID, MAIN], ["add", 20, 10, PID, OTHER], ["Backward", 50, 10, PID, MAIN]],
    ),
    "rows without a proper end are left out": (ODD_TIMES, {}, "kernel", ["start_ns"], [[0]]),
    "a query is no wait": (
        "RUNTIME cudaEventQuery 20 29 correlationId=3\nSYNCHRONIZATION 22 23 correlationId=3 syncType=1", {},
        "sync", ["name"], [["Event Query"]],
    ),
    "a sync row without type and call: by the older type or its ids": (
        OLDER_SYNCS, {}, "sync", ["name"], [[name] for name in OLDER_NAMES],
    ),
    "a sync row is on the device of its context": (
        """
        KERNEL 0 5
        KERNEL 0 5 deviceId=1 contextId=2
        SYNCHRONIZATION 10 11 contextId=2
        SYNCHRONIZATION 12 13 contextId=1
        SYNCHRONIZATION 14 15 contextId=9
        """,
        {}, "sync", ["device"], [[1], [0], [0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rows(read, case):
    text, more, kind, columns, expected = CASES[case]
    assert rows_of(read(f"{LAUNCH}\n{text}", **more), *columns, kind=kind) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GRAPH_TRACE 10 90", ["1 CUDA graph launch traced as a whole"]),
        (
            "GRAPH_HOST_NODE 10 20\nGRAPH_HOST_NODE 10 20",  # a function in a CUDA graph
            ["2 rows were of the table CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE and were left out."],
        ),
        (RANGES, ["1 row had no readable time and was left out."]),
        (ODD_TIMES, ["1 row ended before it began", "3 rows had no readable time"]),
    ],
)
def test_what_is_left_out_is_counted(read, text, said):
    notes = read(f"{LAUNCH}\n{text}").metadata["notes"]
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))


def test_columns_that_a_version_lacks_are_unknown(read):
    few = {"start": 0, "end": 5, "deviceId": 0, "streamId": 7, "correlationId": 1, "shortName": 2}
    recording = read({"KERNEL": [few], **tables(LAUNCH)}, version="3.2")
    assert not {"grid", "graph_id"} & recording.columns.keys()
    # the kernel names no process: it is of the only one
    assert rows_of(recording, "name", "correlation") == [["add", 1], ["cudaLaunchKernel", 1]]


@pytest.mark.parametrize(
    ("text", "kind", "name", "sequence", "shapes"),
    [
        ("aten::add, seq = 12, op_id = 345", "operator", "aten::add", 12, None),
        ("aten::empty, op_id = 9", "operator", "aten::empty", None, None),
        ("aten::mm, seq = 3, op_id = 9, sizes = [[2, 3], [3, 4]], input_op_ids = [[1, 0]]",
         "operator", "aten::mm", 3, "[[2,3],[3,4]]"),
        ("aten::mm, op_id = 9, sizes = [[2, 3], not json]", "operator", "aten::mm", None, None),
        ("Fn<A, B>, seq = 1", "operator", "Fn<A, B>", 1, None),
        ("Optimizer.step#SGD.step, op_id = 5", "annotation", "Optimizer.step#SGD.step", None, None),
        ("step 3, epoch 2", "annotation", "step 3, epoch 2", None, None),
    ],
)  # fmt: skip
def test_ranges_of_emit_nvtx_are_operators(read, text, kind, name, sequence, shapes):
    given = tables(f"{LAUNCH}\nNVTX_EVENTS 0 9")
    given["NVTX_EVENTS"][0]["text"] = text
    found = rows_of(read(given), "kind", "name", "sequence", "shapes")
    assert [kind, name, sequence, shapes] in found


def test_processes_on_a_device_are_ranks_whose_correlation_ids_stay_apart(read):
    recording = read("""
        RUNTIME cudaLaunchKernel_v7000 0 5 correlationId=1 pid=30
        RUNTIME cudaLaunchKernel_v7000 1 6 correlationId=1 pid=20
        RUNTIME cudaLaunchKernel_v7000 2 3 correlationId=1 pid=10
        KERNEL 10 20 correlationId=1 pid=30
        KERNEL 12 25 correlationId=1 pid=20 deviceId=1
        KERNEL 30 40 correlationId=2 pid=20 deviceId=1
    """)
    assert rows_of(recording, "kind", "rank", "pid", "device", "correlation") == [
        ["runtime", 0, 30, None, 1],
        ["runtime", 1, 20, None, 1 + (1 << 32)],
        ["runtime", None, 10, None, 1 + (2 << 32)],
        ["kernel", 0, None, 0, 1],
        ["kernel", 1, None, 1, 1 + (1 << 32)],
        ["kernel", 1, None, 1, 2 + (1 << 32)],
    ]
    assert recording.metadata["notes"] == [
        "2 processes did device work; they are ranks, by their lowest device."
    ]
    first, second = split_ranks(recording)
    assert [rows_of(part, "pid", "device") for part in (first, second)] == [
        [[30, None], [None, 0]], [[20, None], [None, 1], [None, 1]],
    ]  # fmt: skip
    assert [part.metadata["rank"] for part in (first, second)] == [0, 1]
    assert first.metadata["notes"][-1] == "1 row of processes without device work left out."


def gpus(*rows):
    keys = (
        "id",
        "cuDevice",
        "name",
        "smCount",
        "totalMemory",
        "computeMajor",
        "computeMinor",
        "memoryBandwidth",
    )
    return [
        dict(zip(keys, [*row, None, None, None, None][:8], strict=True)) | {"uuid": "61e"} for row in rows
    ]


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
def test_a_device_has_the_number_that_cuda_gives_it(read, seen, names):
    four = (0, 0, "Intel Iris", 0), (1, 0, "NVIDIA A", 76), (2, 2, "NVIDIA B", 76), (3, 0, "Basic Render", 0)
    more = {"TARGET_INFO_GPU": gpus(*four)}
    if seen:
        more["TARGET_INFO_CUDA_DEVICE"] = [{"gpuId": gpu, "cudaId": number, "pid": 7} for gpu, number in seen]
    devices = read("KERNEL 0 5", **more).metadata["devices"]
    assert {device["id"]: device["name"] for device in devices} == names


def test_device_properties_are_named_as_from_kineto(read):
    a100 = (3, 0, "NVIDIA A100", 108, 85_000_000_000, 8, 0, 2_039_040_000_000)
    assert read("KERNEL 0 5", TARGET_INFO_GPU=gpus(a100)).metadata["devices"] == [{
        "id": 0, "name": "NVIDIA A100", "memory_bytes": 85_000_000_000, "compute_major": 8,
        "compute_minor": 0, "multiprocessors": 108, "memory_bytes_per_second": 2_039_040_000_000,
    }]  # fmt: skip


# -- threads that stand blocked ------------------------------------------------------------------------

WINDOW = """
    RUNTIME cudaLaunchKernel_v7000 0 1000 correlationId=1
    RUNTIME cudaLaunchKernel_v7000 999000 1000000 correlationId=2
    RUNTIME cudaLaunchKernel_v7000 999000 1000000 correlationId=3 tid=702
"""
SWITCHES = "\n".join(
    f"SCHED_EVENTS {1000 * at} - isSchedIn={into} tid={tid}"
    for tid, switches in {
        MAIN: "-5 +45 -100 +300",  # too short; woken by the other, which blocks 10 us later
        OTHER: "+20 -310 +990",  # by nobody
        777: "-0 +900",  # a thread without other rows
    }.items()
    for into, at in ((int(each[0] == "+"), int(each[1:])) for each in switches.split())
)
POSTS = "\n".join(f"OSRT_API sem_post {at} {at + 1000} tid=702" for at in range(405_000, 600_000, 10_000))
BLOCKED = {  # rows, and the blocked ones: name, start and duration in us, thread and who ended it
    "who woke a thread is told by who blocked then": (
        f"{SWITCHES}\nOSRT_API read 400000 500000 tid=702\nPROFILER_OVERHEAD read 700000 800000 tid=702",
        [
            ["off the CPU", 100, 200, MAIN, OTHER], ["off the CPU", 310, 680, OTHER, None],
            ["read", 400, 100, OTHER, None], ["profiler: read", 700, 100, OTHER, None],
        ],
    ),
    "who calls what wakes right before the end of a wait ended it": (
        f"""
        OSRT_API sem_wait 100000 300000
        OSRT_API sem_post 295000 297000 tid=702
        OSRT_API sem_wait 400000 600000
        {POSTS}
        OSRT_API sem_wait 700000 900000
        OSRT_API sem_post 705000 706000 tid=702
        """,  # it posts all the time in the second: chance; too long before in the third
        [["sem_wait", at, 200, MAIN, OTHER if at == 100 else None] for at in (100, 400, 700)],
    ),
    "where no switches were recorded a thread without samples was idle": (
        "RUNTIME cudaLaunchKernel_v7000 120000000 120000010 correlationId=4\n"
        + "\n".join(f"COMPOSITE_EVENTS {1_000_000 * at} -" for at in (0, 1, 49, 110)),
        [["no CPU sample", 49_000, 61_000, MAIN, None]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCKED)
def test_blocked_threads_are_rows(read, case):
    text, expected = BLOCKED[case]
    found = rows_of(read(WINDOW + text), "name", "start_ns", "duration_ns", "tid", "waker", kind="blocked")
    us = [[name, start // 1000, duration // 1000, *rest] for name, start, duration, *rest in found]
    assert us == expected


@pytest.mark.parametrize(
    ("table", "lacks", "found"),
    [
        ("SCHED_EVENTS", "isSchedIn", ["no CPU sample", "profiler: read", "read"]),
        ("OSRT_API", "nameId", ["off the CPU", "profiler: read"]),
        ("PROFILER_OVERHEAD", "", ["off the CPU", "profiler: read", "read"]),
    ],
)
def test_a_table_tells_of_blocked_threads_where_it_has_the_columns(read, table, lacks, found):
    given = tables("""
        NVTX_EVENTS step 0 200000000
        MEMSET 0 10
        SCHED_EVENTS 0 -
        SCHED_EVENTS 100000 - isSchedIn=1
        OSRT_API read 200000 300000
        PROFILER_OVERHEAD read 200000 300000
        COMPOSITE_EVENTS 0 -
        COMPOSITE_EVENTS 60000000 -
    """)
    for each in given[table]:
        each.pop(lacks, None)
    assert sorted(name for (name,) in rows_of(read(given), "name", kind="blocked")) == found


# -- waits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("called", "of_type", "name"),
    [
        # the type says more than the call: a copy may wait for a stream
        *(("cudaMemcpyAsync", number, name) for number, name in enumerate(
            ["Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync"], 1)),
        ("cudaDeviceSynchronize", 0, "Context Sync"),
        ("cudaStreamSynchronize", 0, "Stream Sync"),
        ("cudaEventSynchronize", 0, "Event Sync"),
        ("cudaStreamWaitEvent", 0, "Stream Wait Event"),
    ],
)  # fmt: skip
def test_a_sync_row_is_named_by_its_type_or_else_by_its_call(read, called, of_type, name):
    recording = read(f"""
        RUNTIME {called}_v3020 0 9 correlationId=1
        SYNCHRONIZATION 2 8 correlationId=1 syncType={of_type} streamId=7
    """)
    columns = ("name", "start_ns", "duration_ns", "stream", "correlation")
    assert rows_of(recording, *columns, kind="sync") == [[name, 2, 6, 7, 1]]


#  record A(10)  record B(20)  wait A(30)  record A again(40)  wait A(50)  wait C(60)
EVENTS = """
    RUNTIME cudaEventRecord_v3020 10 11 correlationId=1
    RUNTIME cudaEventRecord_v3020 20 21 correlationId=2
    RUNTIME cudaStreamWaitEvent_v3020 30 31 correlationId=3
    RUNTIME cudaEventRecord_v3020 40 41 correlationId=4
    RUNTIME cudaStreamWaitEvent_v3020 50 51 correlationId=5
    RUNTIME cudaEventSynchronize_v3020 60 61 correlationId=6
    CUDA_EVENT 0 0 correlationId=1 eventId=100 eventSyncId=FIRST
    CUDA_EVENT 0 0 correlationId=2 eventId=200 streamId=8 eventSyncId=FIRST
    CUDA_EVENT 0 0 correlationId=4 eventId=100 streamId=9 eventSyncId=AGAIN
    SYNCHRONIZATION 30 31 correlationId=3 streamId=13 eventId=100 syncType=2 eventSyncId=FIRST
    SYNCHRONIZATION 50 51 correlationId=5 streamId=13 eventId=100 syncType=2 eventSyncId=SECOND
    SYNCHRONIZATION 60 61 correlationId=6 eventId=300 syncType=1 eventSyncId=FIRST
"""


@pytest.mark.parametrize(
    ("again", "first", "second", "waited"),
    [
        ("-", "-", "-", [13, 9, 4]),  # for the latest record of the event before it
        ("72", "71", "71", [13, 7, 1]),  # numbered records are told apart by their number
    ],
)
def test_a_wait_is_for_a_record_of_its_event(read, again, first, second, waited):
    text = EVENTS.replace("AGAIN", again).replace("FIRST", first).replace("SECOND", second)
    recording = read(text, version="3.25.0")
    found = rows_of(recording, "stream", "wait_stream", "wait_correlation", kind="sync")
    assert found == [[13, 7, 1], waited, [None, None, None]]
    assert recording.metadata["notes"] == [
        "1 of 3 waits for an event have no record of the event in the file."
    ]


# -- memory --------------------------------------------------------------------------------------------

HELD = "CUDA_GPU_MEMORY_USAGE_EVENTS 1005 0 correlationId=5"
WORK = "RUNTIME cudaLaunchKernel_v7000 1000 1010 correlationId=5\nKERNEL 1015 1100 correlationId=5\n" + HELD


def test_allocations_and_frees_are_read_on_the_thread_that_asked(tmp_path):
    freed = "CUDA_GPU_MEMORY_USAGE_EVENTS 1050 0 memoryOperationType=1"
    memory = daydream.load(write_export(tmp_path / "a.sqlite", f"{WORK}\n{freed}")).memory
    assert memory["time_ns"].tolist() == [5, 50]
    assert memory["bytes"].tolist() == [512, -512]
    assert (memory["tid"].tolist(), memory["pid"].tolist()) == ([MAIN, NO_ID], [PID, NO_ID])
    assert (memory["address"].tolist(), memory["allocated_bytes"].tolist()) == ([4096] * 2, [-1] * 2)


OTHERS = "of the host or of processes without device work was"
NO_EVENT = "told no time, device or number of bytes and was"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        *((f"1006 0 memKind={kind}", OTHERS) for kind in (0, 1, 3, 7)),
        ("- 0", NO_EVENT),
        *((f"1006 0 {column}", NO_EVENT) for column in (
            "bytes=-", "bytes=-1", f"bytes={2**62}", "deviceId=-", "memoryOperationType=9")),
    ],
)  # fmt: skip
def test_memory_that_is_none_of_a_gpu_is_left_out_and_counted(tmp_path, columns, said):
    trace = daydream.load(write_export(tmp_path / "a.sqlite", f"{WORK}\n{HELD.partition(' ')[0]} {columns}"))
    assert len(trace.memory) == 1
    assert f"1 row of memory {said} left out." in trace.metadata["notes"]


# -- files ---------------------------------------------------------------------------------------------


def test_a_gzipped_export_reads_the_same_and_leaves_nothing_behind(tmp_path):
    path = write_export(tmp_path / "a.sqlite", f"{LAUNCH}\nKERNEL 3 9 correlationId=1")
    before = path.read_bytes()
    (tmp_path / "a.sqlite.gz").write_bytes(gzip.compress(before))
    plain, unpacked = read_nsys(path), read_nsys(tmp_path / "a.sqlite.gz")
    assert rows_of(plain, *plain.columns) == rows_of(unpacked, *unpacked.columns)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["a.sqlite", "a.sqlite.gz"]
    assert path.read_bytes() == before


def other_database(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (url)")
    other.close()


def cut(share, *, packed=False):
    def write(path):
        whole = write_export(
            path, "\n".join(f"KERNEL {10 * at} {10 * at + 5}" for at in range(500))
        ).read_bytes()
        path.write_bytes(gzip.compress(whole)[:-2000] if packed else whole[: int(share * len(whole))])

    return write


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("none.sqlite", lambda path: None, "none.sqlite: no such file"),
        ("folder", lambda path: path.mkdir(), "is a folder"),
        (
            "a.sqlite",
            lambda path: path.write_text("not a database, but long enough to be one" * 9),
            "not an SQLite",
        ),
        ("a.sqlite", lambda path: path.touch(), "is not an SQLite database"),
        ("a.sqlite.gz", lambda path: path.write_bytes(gzip.compress(b"")), "is not an SQLite database"),
        ("a.sqlite", other_database, "not an Nsight Systems export"),
        ("a.sqlite", lambda path: write_export(path, "NVTX_EVENTS x 0 9"), "--trace=cuda,nvtx"),
        ("a.sqlite", lambda path: write_export(path, "KERNEL 0 -"), "without a finished CUDA or NVTX row"),
        ("a.sqlite", cut(0.5), "is cut off"),
        ("a.sqlite", cut(0.001), "is cut off"),
        ("a.sqlite.gz", cut(0, packed=True), "cut off or damaged"),
    ],
)
def test_files_that_are_no_export_are_refused_in_one_line(tmp_path, name, write, said):
    write(tmp_path / name)
    with pytest.raises(TraceError) as caught:
        read_nsys(tmp_path / name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_is_refused_with_the_command_that_exports_it(tmp_path):
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(b"\x0a\x00\x00" * 200)
    for given in (path, tmp_path):  # a folder that holds nothing else
        with pytest.raises(TraceError, match=f"`nsys export --type sqlite '{path}'`"):
            import_trace([given])
    other = path.rename(tmp_path / "k.ncu-rep")
    with pytest.raises(TraceError, match=f"`ncu --import {other} --csv "):
        import_trace([tmp_path])


# -- public exports ------------------------------------------------------------------------------------


def in_flight(recording):
    """Return the most launched, unfinished tasks on the stream, at the start and at the return of calls."""
    calls = {code: (start, took) for code, start, took in rows_of(
        recording, "correlation", "start_ns", "duration_ns", kind="runtime")}  # fmt: skip
    device = recording.is_kind("kernel", "memcpy", "memset")
    launch = np.array([calls[code] for code in recording["correlation"][device].tolist()])
    end = np.sort((recording["start_ns"] + recording["duration_ns"])[device])
    launched = np.arange(1, len(launch) + 1)
    times = np.sort(launch[:, 0]), np.sort(launch.sum(axis=1))
    return tuple(int((launched - np.searchsorted(end, time, side="right")).max()) for time in times)


@pytest.mark.parametrize(
    ("name", "flight"),
    [
        # 1,022 are in flight when calls return; one that is blocked makes it 1,023
        ("a100_gpt2.7b_forward_eager", (1_023, 1_022)),
        ("rtx3070ti_transformer_training_nvtx", (1_022, 1_021)),
    ],
)
def test_the_queues_of_shared_exports_are_full(name, flight):
    recording = read_nsys(shared_trace(f"nsys/{name}.sqlite.gz"))
    assert in_flight(recording) == flight
    assert recording.metadata["notes"] == []


def test_the_shared_pipeline_has_two_ranks_and_lost_its_records():
    recording = read_nsys(shared_trace("nsys/h100_pipeline_2gpu.sqlite.gz"))
    lost = "200 of 200 waits for an event have no record of the event in the file."
    assert lost in recording.metadata["notes"]
    assert [int(part.is_kind("kernel").sum()) for part in split_ranks(recording)] == [1_993, 2_017]


def test_the_shared_graph_trace_has_ten_graphs_not_itemised():
    recording = read_nsys(shared_trace("nsys/a100_gpt2.7b_forward_compiled_cuda_graph.sqlite.gz"))
    names = Counter(name for (name,) in rows_of(recording, "name", kind="kernel"))
    assert (names.pop("CUDA graph"), names.total()) == (10, 30)
    assert recording.metadata["notes"][0].startswith("10 CUDA graph launches traced as a whole")
