"""rocprofv3's database (rocpd), on one written from the documented schema."""

import gzip
import json
import sqlite3

import pytest
from rocpd_sample import TABLES, write_rocpd
from shared import refused
from test_rocprof import row_of

import daydream
from daydream.collect.importers import import_trace
from daydream.errors import TraceError


def test_kernels_copies_calls_and_ranges_become_a_trace(tmp_path):
    trace = import_trace([write_rocpd(tmp_path / "t.db")])

    kernel, copy = row_of(trace, "gemm<float>(int)"), row_of(trace, "Memcpy HtoD (Host -> Device)")
    assert [trace.values("kind")[row] for row in (kernel, copy)] == ["kernel", "memcpy"]
    assert (trace["device"][kernel], trace["stream"][kernel]) == (0, 5)
    assert (trace.values("grid")[kernel], trace.values("block")[kernel]) == (
        "4,2,1",
        "256,1,1",
    )  # of work-items
    assert int(trace["duration_ns"][kernel]) == 30_000
    assert trace["bytes"][copy] == 4096
    assert trace.values("name")[trace["parent"][kernel]] == "hipLaunchKernel"
    assert trace.values("name")[trace["parent"][copy]] == "hipMemcpyAsync"
    assert "relu" in trace.values("name")  # without the mark of its descriptor, by its other name
    assert trace.values("kind")[row_of(trace, "step")] == "annotation"
    assert "rccl:ncclAllReduce" in trace.values("name")
    call = row_of(trace, "hipLaunchKernel")
    assert (trace["pid"][call], trace["tid"][call]) == (4242, 99)  # of the system, not rows of tables
    assert trace.metadata["devices"] == [{"id": 0, "name": "AMD Instinct MI300X"}]
    assert "secret" not in json.dumps(trace.metadata)
    assert daydream.replay(trace).max_error < 0.01


def test_a_packed_one_is_read_alike(tmp_path):
    plain = import_trace([write_rocpd(tmp_path / "t.db")])
    (tmp_path / "t.db.gz").write_bytes(gzip.compress((tmp_path / "t.db").read_bytes()))
    assert import_trace([tmp_path / "t.db.gz"]).values("name") == plain.values("name")


def test_the_other_id_of_events_ties_work_to_calls_where_it_is_the_one_that_does(tmp_path):
    events = [(key, category, 0, 0, stack) for key, category, stack, *_ in TABLES["event"][1]]
    trace = import_trace([write_rocpd(tmp_path / "t.db", event=events)])
    kernel = row_of(trace, "gemm<float>(int)")
    assert trace.values("name")[trace["parent"][kernel]] == "hipLaunchKernel"


def test_the_direction_of_a_copy_without_a_name_is_that_of_its_ends(tmp_path):
    copies = [(1, 1, 1, 12_000, 13_000, None, 1, 2, 4096, 3, None, 6)]
    trace = import_trace([write_rocpd(tmp_path / "t.db", memory_copy=copies)])
    assert "Memcpy DtoH (Device -> Host)" in trace.values("name")


def test_several_processes_in_one_file_are_ranks(tmp_path):
    trace = import_trace([write_rocpd(tmp_path / "t.db", ("_a", "_b"))])
    assert set(trace["rank"].tolist()) >= {0, 1}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"pmc_event": [(1, 2, 1, 3.5)]}, "while counters were read"),
        ({"kernel_dispatch": [], "memory_copy": [], "region": []}, "holds no kernel"),
        ({"string": None}, "not an Nsight Systems export"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(tmp_path, rows, said):
    assert said in refused(write_rocpd(tmp_path / "t.db", **rows))


def test_a_database_that_is_cut_off_is_refused_in_a_line(tmp_path):
    whole = write_rocpd(tmp_path / "t.db").read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[: len(whole) // 2])
    assert "cut off" in refused(tmp_path / "cut.db")


@pytest.mark.parametrize("wrong", ["text", 1.5, None, -5, 2**62, b"bytes"])
def test_odd_values_are_left_out_or_refused(tmp_path, wrong):
    path, said = write_rocpd(tmp_path / "t.db"), []
    for table, (columns, _) in TABLES.items():
        for column in columns.split(", "):
            copy = tmp_path / f"{table}-{column}.db"
            copy.write_bytes(path.read_bytes())
            connection = sqlite3.connect(copy)
            name = next(
                n
                for (n,) in connection.execute("SELECT name FROM sqlite_master")
                if n.startswith(f"rocpd_{table}_0")
            )
            connection.execute(f'UPDATE "{name}" SET "{column}" = ?', (wrong,))
            connection.commit()
            connection.close()
            try:
                import_trace([copy])
            except TraceError as error:
                said.append(str(error))
    assert not [each for each in said if "\n" in each]
