"""Files of counters, a format each: small samples of the documented shape, the public samples, and damage."""

import gzip

import numpy as np
import pytest
from shared import shared_trace

import daydream
from daydream import Trace
from daydream.costs.counters.attaching import attach_counters
from daydream.costs.counters.formats import read_counted
from daydream.costs.workload.counters import counted_work
from daydream.errors import FileError

LONG = (
    '==PROF== Profiling "axpy" - 0: 0%....100% - 9 passes\n'
    '"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name","Metric Name","Metric Unit",'
    '"Metric Value"\n'
)
OPS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"


def long_table(*launches):
    """A table of (kernel, grid, {metric: (unit, value)})."""
    rows = [
        f'"{number}","7","{name}","(128, 1, 1)","({grid}, 1, 1)","Command line","{metric}","{unit}","{value}"'
        for number, (name, grid, metrics) in enumerate(launches)
        for metric, (unit, value) in metrics.items()
    ]
    return LONG + "\n".join(rows) + "\n"


def axpy(fma="1,048,576", read="2.00"):
    nothing = ("inst", "0")
    return {
        OPS.format("fadd"): nothing, OPS.format("fmul"): nothing, OPS.format("ffma"): ("inst", fma),
        "dram__bytes_read.sum": ("Mbyte", read), "dram__bytes_write.sum": ("Kbyte", "500"),
    }  # fmt: skip


def read(tmp_path, text, name="c.csv"):
    (tmp_path / name).write_text(text)
    return read_counted(tmp_path / name)


def attached(trace, folder, text):
    """Attach the counters of a file that says this."""
    (folder / "c.csv").write_text(text)
    return attach_counters(trace, [folder / "c.csv"])


def kernels(*names, grid="16,1,1"):
    count = len(names)
    texts = list(dict.fromkeys(names))
    columns = {
        "kind": np.zeros(count, np.int32), "name": np.array([texts.index(one) for one in names], np.int32),
        "start_ns": np.arange(count) * 10, "duration_ns": np.full(count, 10), "stream": np.full(count, 7),
        "correlation": np.arange(count), "grid": np.zeros(count, np.int32),
    }  # fmt: skip
    return Trace(columns, {"kind": ["kernel"], "name": texts, "grid": [grid]}, {"notes": []})


def test_the_long_layout_with_separators_and_scaled_units(tmp_path):
    (one,) = read(tmp_path, long_table(("axpy(float *)", 16, axpy())))
    assert (one.name, one.blocks) == ("axpy(float *)", 16)
    assert (one.flop, one.bytes) == (2 * 1_048_576, 2_500_000)


def test_the_wide_layout_has_a_row_of_units(tmp_path):
    header = [
        "ID",
        "Kernel Name",
        "launch__grid_size",
        "dram__bytes.sum",
        *map(OPS.format, ("fadd", "fmul", "ffma")),
    ]
    rows = [
        header,
        ["", "", "", "Kbyte", "inst", "inst", "inst"],
        ["0", "axpy", "16", "1,024", "1", "2", "3"],
    ]
    (one,) = read(tmp_path, "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows))
    assert (one.blocks, one.bytes, one.flop) == (16, 1_024_000, 1 + 2 + 2 * 3)


def test_rocprofv3_counts_work_items_and_kib(tmp_path):
    header = "Dispatch_Id,Process_Id,Grid_Size,Kernel_Name,Workgroup_Size,Counter_Name,Counter_Value"
    rows = [
        f'1,9,1024,"axpy(float*) [clone .kd]",64,{name},{value}'
        for name, value in (
            ("FETCH_SIZE", 10.5), ("WRITE_SIZE", 2), ("SQ_INSTS_VALU_ADD_F32", 3),
            ("SQ_INSTS_VALU_MUL_F32", 4), ("SQ_INSTS_VALU_FMA_F32", 5), ("SQ_INSTS_VALU_MFMA_MOPS_F16", 6),
        )
    ]  # fmt: skip
    (one,) = read(tmp_path, "\n".join([header, *rows]))
    assert (one.blocks, one.bytes) == (16, 12_800)
    assert one.flop == 64 * (3 + 4 + 2 * 5) + 512 * 6


def test_launches_meet_kernels_by_name_grid_and_order(tmp_path):
    first, last = ("axpy(float *)", 16, axpy("10")), ("axpy(float *)", 16, axpy("20"))
    own = "void ns::axpy<int>(float *)"
    trace = attached(kernels(own, "other", own), tmp_path, long_table(first, ("dot", 8, axpy("30")), last))
    flop, nbytes = counted_work(trace)
    assert flop.tolist() == [20, -1, 40]
    assert nbytes.tolist() == [2_500_000, -1, 2_500_000]
    first, last = trace.metadata["notes"]
    assert first.startswith("2 kernels of 3, 66.7% of their time, have counters of c.csv")
    assert last == "1 counted launch of c.csv met no kernel of the trace."


def on_two_devices():
    trace = kernels("axpy", "axpy", "axpy", "axpy")
    trace.columns["device"] = np.array([2, 9, 2, 9])
    return trace


def of_agents(*agents):
    header = "Dispatch_Id,Agent_Id,Grid_Size,Kernel_Name,Workgroup_Size,Counter_Name,Counter_Value\n"
    return header + "".join(
        f"{at},Agent {agent},1024,axpy,64,{name},{at + 1}\n"
        for at, agent in enumerate(agents) for name in ("FETCH_SIZE", "WRITE_SIZE")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("agents", "kib", "said"),
    [
        ((4, 10, 4, 10), [2, 4, 6, 8], None),  # launches of the two devices as they are launched
        ((10, 10, 4, 4), [6, 2, 8, 4], None),  # one device after the other: Agent 4 is before Agent 10
        ((4, 4), [2, 2, 4, 4], "counts one device; its counts are used for each of 2"),
        ((4, 4, 4), [4, 4, 4, 4], "could not be told apart"),  # of one device, and one launch more
        ((4, 5, 6, 7), [2, 4, 6, 8], None),  # more devices than were recorded: all in order of the launches
    ],
)
def test_launches_meet_kernels_of_their_device(tmp_path, agents, kib, said):
    trace = attached(on_two_devices(), tmp_path, of_agents(*agents))
    assert [entry["bytes"] for entry in trace.metadata["counters"]] == [1024 * each for each in kib]
    assert said is None or any(said in note for note in trace.metadata["notes"])


def test_passes_of_one_program_add_their_counters(tmp_path):
    flop = {name: value for name, value in axpy("10").items() if "op_" in name}
    (tmp_path / "1.csv").write_text(long_table(("axpy", 16, flop)))
    (tmp_path / "2.csv.gz").write_bytes(
        gzip.compress(long_table(("axpy", 16, {"dram__bytes.sum": ("byte", "7")})).encode())
    )
    trace = daydream.attach_counters(kernels("axpy"), [tmp_path / "1.csv", tmp_path / "2.csv.gz"])
    assert [column.tolist() for column in counted_work(trace)] == [[20], [7]]
    (tmp_path / "3.csv").write_text(long_table(("dot", 16, flop)))
    with pytest.raises(FileError, match="other launches"):
        attach_counters(kernels("axpy"), [tmp_path / "1.csv", tmp_path / "3.csv"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no counters that are known"),
        (LONG, "no launches"),
        (LONG.replace('"ID"', '"0"'), "no counters that are known"),
        ("a,b\n1,2\n", "no counters that are known"),
        (
            "kernel 0 - k - #thread-blocks 1,  kernel instructions 28, total instructions 28\n",
            "is a kernel of this trace",
        ),
        (LONG + '"0","7","k","","(1, 1, 1)","s","dram__bytes.sum","byte",1,048,576\n', "11 fields under 9"),
        (LONG + '"0","7","k","","(1, 1, 1)","s","dram__bytes.sum","byte","12,5"\n', "decimal comma"),
        (
            long_table(("axpy", 16, axpy())) + '"0","7","dot","","","s","dram__bytes.sum","byte","1"\n',
            "two kernels",
        ),
        (long_table(("axpy", 16, {"sm__cycles_elapsed.avg": ("cycle", "1")})), "neither FLOP nor bytes"),
        (long_table(("dot", 16, axpy())), "is a kernel of this trace"),
        (long_table(("axpy", 16, axpy())) + LONG.splitlines()[1] + "\n", "another table begins here"),
        (
            long_table(("axpy", 16, axpy())) + "Dispatch_Id,Kernel_Name,Counter_Name,Counter_Value\n",
            "another table begins here",
        ),
        ("ID;Kernel Name;Metric Name;Metric Value\n0;axpy;dram__bytes.sum;1.048.576\n", "by semicolons"),
        (LONG.replace("Metric Value", "Valeur") + "0,7,axpy,,,,dram__bytes.sum,byte,1\n", "no counters that"),
    ],
)
def test_what_cannot_be_meant_is_one_line(tmp_path, text, said):
    with pytest.raises(FileError, match=said) as error:
        attached(kernels("axpy"), tmp_path, text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "launches", "flop", "nbytes"),
    [
        ("ncu/ncu_2020_v100_picongpu_long.csv", 7, 42_506_040, 139_101_952),
        ("ncu/ncu_long_t4_thousands_separators.csv", 1, None, 2_816),
        (
            "ncu/ncu_page_details_long_cc120_kernel_0019.csv",
            1,
            None,  # no operations of matrix units, and those of vector units were not counted
            4_930_000,
        ),  # a copy: 16 fields under 20 names
        ("ncu/ncu_page_raw_2021_forum_post.csv", 1, None, None),
        ("rocprofv3/llamacpp_decode_fetch_counter_collection.csv", 34, None, None),  # writes were not counted
        ("rocprofv3/docs_newer_counter_collection.csv", 4, None, None),
        ("rocprof_v1/mi100_counters_rewritten_in_ncu_layout.csv", 1, None, None),
    ],
)
def test_public_samples(file, launches, flop, nbytes):
    found = read_counted(shared_trace(f"formats/{file}"))
    assert len(found) == launches
    if "mi100" not in file:
        assert (found[0].flop, found[0].bytes) == (flop, nbytes)
    else:
        assert found[0].bytes == 1_124_711_000 + 408_483_000  # AMD's counters, in bytes as the table says


def test_amds_l2_tells_bytes_by_its_requests():
    found = read_counted(shared_trace("formats/rocprof_v2/omniperf_MI300X_pmc_perf_merged.csv.gz"))
    size = 4096 * 256 * 8  # the copy of doubles: a thread each
    assert [one.name[:7] for one in found] == ["vecCopy"] * 3
    for one in found:
        assert one.amounts["dram_written_bytes"] == size
        assert one.amounts["dram_read_bytes"] == pytest.approx(size, rel=2e-3)
        assert one.amounts["l2_bytes"] == pytest.approx(2 * size, rel=1e-2)
        assert one.bytes == one.amounts["dram_bytes"]
