"""Memory events of Nsight Systems exports: the table's documented columns, filled in by hand.

None of the public exports at hand has it: it takes `nsys profile --cuda-memory-usage=true`.
"""

import pytest
from nsys_database import LAUNCH, MAIN, PID, allocation, call, kernel, write_export

import daydream
from daydream.trace.schema import NO_ID

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


def test_each_process_keeps_its_own(tmp_path):
    other = PID + 1
    trace = imported(
        tmp_path,
        allocation(1005, 512),
        allocation(1006, 1024, pid=other, deviceId=1),
        RUNTIME=[call(1000, 1010, 5, LAUNCH), call(1000, 1010, 5, LAUNCH, pid=other)],
        KERNEL=[kernel(1015, 1100, 5), kernel(1015, 1100, 5, pid=other, deviceId=1)],
    )

    assert trace.memory["rank"].tolist() == [0, 1]
    assert trace.memory["bytes"].tolist() == [512, 1024]
