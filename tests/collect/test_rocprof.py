"""rocprofv3: its JSON and its CSV tables, from small files written as text and from public ones."""

import gzip
import json
from collections import Counter

import pytest
from collect.rocprof_files import (
    AGENTS,
    CALLS,
    COPIES,
    KERNELS_NEW,
    KERNELS_OLD,
    TABLES,
    dispatch,
    process,
    write_json,
    write_rocpd,
)
from shared import refused, shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.collect.importers.formats import format_of
from daydream.costs.counters.attaching import base_name


def row_of(trace, name):
    return trace.values("name").index(name)


def test_kernels_copies_calls_and_ranges_of_json_become_a_trace(tmp_path):
    trace = import_trace([write_json(tmp_path / "t.json", process())])

    kernel, copy = row_of(trace, "gemm<float>(int)"), row_of(trace, "Memcpy HtoD (Host -> Device)")
    reduced = row_of(trace, "ncclDevKernel_Generic_1(ncclDevKernelArgs)")
    assert [trace.values("kind")[row] for row in (kernel, copy, reduced)] == [
        "kernel",
        "memcpy",
        "collective",
    ]
    assert (trace["device"][kernel], trace["stream"][kernel]) == (0, 5)  # a handle became a number
    assert (trace.values("grid")[kernel], trace.values("block")[kernel]) == ("4,2,1", "256,1,1")
    assert (int(trace["start_ns"][kernel]), int(trace["duration_ns"][kernel])) == (10_000, 30_000)
    assert trace["bytes"][copy] == 4096
    assert trace.values("name")[trace["parent"][kernel]] == "hipLaunchKernel"
    assert trace.values("name")[trace["parent"][trace["parent"][reduced]]] == "rccl:ncclAllReduce"
    assert trace.values("collective")[reduced] == "all_reduce"  # the kernel's own name does not tell
    assert [step["name"] for step in trace.metadata["steps"]] == [f"step {n}" for n in range(4)]
    assert trace.metadata["devices"] == [{"id": 0, "name": "AMD Instinct MI300X", "multiprocessors": 304}]
    assert trace.metadata["vendor"] == "rocm"
    assert "secret" not in json.dumps(trace.metadata)


def test_kernels_without_calls_say_so_and_have_steps_by_their_own_period(tmp_path):
    given = process(0)
    given["buffer_records"]["kernel_dispatch"] = [
        dispatch(1 + place, at, at + 20_000, 2 * step + place + 1)
        for step in range(6)
        for place in range(2)
        for at in [1_000_000 + 100_000 * step + 30_000 * place]
    ]
    trace = import_trace([write_json(tmp_path / "t.json", given)])

    assert any("kernels have no launches" in note for note in trace.metadata["notes"])
    assert len(trace.metadata["steps"]) == 6
    replay = daydream.replay(trace)
    assert replay.max_error == 0
    explanation = daydream.explain(trace)
    assert explanation.bound.value == "unrecorded"  # half of the step the device pauses, nobody knows why


def test_a_run_with_counters_is_no_trace(tmp_path):
    given = process()
    given["callback_records"]["counter_collection"] = [{"records": []}]

    path = write_json(tmp_path / "t.json", given)
    assert "give this file with --counters" in refused(path)
    path.write_bytes(path.read_bytes()[:-40])
    assert "cut off or damaged" in refused(path)


@pytest.mark.parametrize(
    ("text", "stream", "encoding"),
    [(KERNELS_OLD, 1, "utf-8"), (KERNELS_NEW, 9, "utf-8-sig"), (KERNELS_NEW, 9, "utf-16")],
)
def test_tables_of_a_run_in_a_folder_are_one_trace(tmp_path, text, stream, encoding):
    for name, content in (("kernel_trace", text), ("hip_api_trace", CALLS), ("memory_copy_trace", COPIES)):
        (tmp_path / f"9_{name}.csv").write_text(content, encoding)
    (tmp_path / "9_agent_info.csv.gz").write_bytes(gzip.compress(AGENTS.encode()))
    (tmp_path / "9_kernel_stats.csv").write_text('"Name","Calls"\n"add",1\n')
    trace = import_trace([tmp_path])

    kernel, other = row_of(trace, "add(float*, int)"), row_of(trace, "mul")
    assert (trace["device"][kernel], trace["stream"][kernel]) == (0, stream)
    # In work-items: 1024 x 4 of 64 are 16 x 4 blocks, counted once whichever call launched it.
    assert (trace.values("grid")[kernel], trace.values("grid")[other]) == ("16,4,1", "16,1,1")
    assert trace.values("name")[trace["parent"][kernel]] == "hipExtModuleLaunchKernel"
    copy = row_of(trace, "Memcpy HtoD (Host -> Device)")
    assert (trace["device"][copy], "bytes" in trace.columns) == (0, False)
    assert trace.metadata["devices"] == [{"id": 0, "name": "AMD Instinct MI300X", "multiprocessors": 304}]
    assert (trace["pid"][trace["parent"][kernel]], trace["tid"][trace["parent"][kernel]]) == (42, 7)


def test_rows_that_are_cut_are_left_out_and_counted(tmp_path):
    (tmp_path / "t.csv").write_text(KERNELS_OLD + '"KERNEL_DISPATCH",4,1,7')
    trace = import_trace([tmp_path / "t.csv"])

    assert trace.metadata["notes"][0] == "1 row had more or fewer fields than the header and was left out."


def test_the_public_json_file_holds_what_is_known_of_it():
    path = shared_trace("rocprof/mi350x_rocprofv3_results.json.gz")
    assert format_of(path) == "rocprof"
    trace = import_trace([path])

    assert len(trace) == 43_915
    assert set(trace["device"].tolist()) == {0}
    frequency = Counter(base_name(name) for name in trace.values("name"))
    assert frequency["vectorized_elementwise_kernel"] == 16_971
    assert len(frequency) == 44
    assert sum(count for _, count in frequency.most_common(10)) / len(trace) == pytest.approx(0.797, abs=5e-4)
    assert trace.metadata["devices"][0]["name"] == "AMD Instinct MI350X"
    replay = daydream.replay(trace)
    assert replay.max_error < 0.01


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


def test_the_other_id_of_events_ties_work_to_calls_where_it_is_the_one_that_does(tmp_path):
    events = [each.split() for each in TABLES["event"][1].split("|")]
    other = "|".join(f"{key} {category} 0 0 {stack}" for key, category, stack, *_ in events)
    trace = import_trace([write_rocpd(tmp_path / "t.db", event=other)])
    kernel = row_of(trace, "gemm<float>(int)")
    assert trace.values("name")[trace["parent"][kernel]] == "hipLaunchKernel"


def test_the_direction_of_a_copy_without_a_name_is_that_of_its_ends(tmp_path):
    copies = "1 1 1 12000 13000 - 1 2 4096 3 - 6"
    trace = import_trace([write_rocpd(tmp_path / "t.db", memory_copy=copies)])
    assert "Memcpy DtoH (Device -> Host)" in trace.values("name")


def test_several_processes_in_one_file_are_ranks(tmp_path):
    trace = import_trace([write_rocpd(tmp_path / "t.db", ("_a", "_b"))])
    assert set(trace["rank"].tolist()) >= {0, 1}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"pmc_event": "1 2 1 3"}, "while counters were read"),
        ({"kernel_dispatch": "", "memory_copy": "", "region": ""}, "holds no kernel"),
        ({"string": None}, "not an Nsight Systems export"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(tmp_path, rows, said):
    assert said in refused(write_rocpd(tmp_path / "t.db", **rows))


def test_a_database_that_is_cut_off_is_refused_in_a_line(tmp_path):
    whole = write_rocpd(tmp_path / "t.db").read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[: len(whole) // 2])
    assert "cut off" in refused(tmp_path / "cut.db")
