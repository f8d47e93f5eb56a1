"""Files that are no proper Nsight Systems export: one clear line, never a traceback."""

import gzip
import sqlite3

import pytest
from nsys_database import LAUNCH, call, kernel, range_, read_nsys, record, rows_of, sync, write_export
from shared import refusals

from daydream.collect.importers import import_trace
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
