"""Files that are no proper Nsight Systems export: one clear line, never a traceback."""

import gzip
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from nsys_database import (
    LAUNCH,
    call,
    kernel,
    names_of,
    range_,
    read_nsys,
    record,
    rows_of,
    sync,
    write_export,
)
from shared import refusals

from daydream.collect.importers import import_trace
from daydream.collect.importers.nsys import split_ranks
from daydream.errors import TraceError


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
