"""Files of counters, what they say of kernels, and the work that follows."""

import gzip
import json

import numpy as np
import pytest
from daydream.optimizations._hardware import roofline
from graph.small_graphs import kernels as kernel_tasks
from graph.small_traces import kernel, trace
from shared import shared_trace

import daydream
from daydream import build, counters_table
from daydream.costs import bound
from daydream.costs.counters.attaching import attach_counters, base_name
from daydream.costs.counters.formats import read_counted
from daydream.costs.kernels import counted_tasks
from daydream.costs.workload.counters import LEAST_NS, counted_work, reached_l2
from daydream.costs.workload.operator import operator_work
from daydream.errors import FileError
from daydream.report.views.explanation import counted_sentences


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


# Files of counters, a format each: small samples of the documented shape, the public samples, and damage


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
    return trace(
        [kernel(name, at / 100, (at + 1) / 100, at, grid=grid) for at, name in enumerate(names)], notes=[]
    )


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
        (
            long_table(("axpy", 16, axpy())) + '"0","7","dot","","","s","dram__bytes.sum","byte","1"\n',
            "two kernels",
        ),
        (long_table(("dot", 16, axpy())), "is a kernel of this trace"),
        (long_table(("axpy", 16, axpy())) + LONG.splitlines()[1] + "\n", "another table begins here"),
        (
            long_table(("axpy", 16, axpy())) + "Dispatch_Id,Kernel_Name,Counter_Name,Counter_Value\n",
            "another table begins here",
        ),
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


# FLOP of shapes against FLOP that a GPU counted: the public trace of an AlexNet under the range profiler


PRODUCTS = [
    "[[4096],[128,9216],[9216,4096],[],[]]",
    "[[4096],[128,4096],[4096,4096],[],[]]",
    "[[1000],[128,4096],[4096,1000],[],[]]",
]
PASSES = 2  # the file holds two forward passes


def of_shapes(op, shapes, hint=None):
    amount = operator_work(op, shapes, hint)
    assert amount is not None
    assert amount.flop is not None
    return amount.flop


@pytest.fixture(scope="module")
def counted():
    return read_counted(shared_trace("kineto/a100_range_profiler_counters.json.gz"))


def flop_of(counted, name):
    return [one.flop for one in counted if name in one.name]


def test_products_do_the_flop_of_their_shapes(counted):
    products = flop_of(counted, "sgemm_32x32_sliced")
    expected = [of_shapes("aten::addmm", shapes) for shapes in PRODUCTS] * PASSES
    assert sum(products) == pytest.approx(sum(expected), rel=0.05)
    for found, flop in zip(products, expected, strict=True):
        assert flop <= found <= 1.07 * flop  # 1,000 columns are padded to whole tiles
    for found, flop in list(zip(products, expected, strict=True))[:2]:
        assert found == pytest.approx(flop, rel=0.001)


# The seam: counters in the metadata of a trace that has the kernels


def test_instructions_become_flop(tmp_path):
    name = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    counters = {
        name.format("ffma"): "10",
        name.format("fadd"): 3,
        name.format("fmul"): 0,
        name.format("hfma"): 50,
        "dram__bytes.sum": 64,
    }
    ranges = [
        {"cat": "cuda_profiler_range", "name": kernel, "ts": ts, "args": counters}
        for ts, kernel in ((2, "sgemm"), (1, "sm80_xmma_gemm_tf32"))
    ]
    path = tmp_path / "counters.json"
    path.write_text(json.dumps({"traceEvents": ranges}))
    assert [(one.name, one.flop, one.bytes) for one in read_counted(path)] == [
        ("sm80_xmma_gemm_tf32", None, 64),
        ("sgemm", 2 * 10 + 3, 64),
    ]


# Counters on public traces of an H100 and an MI300X, and what no counters may change


def launches(trace):
    """Each kernel's own name, blocks (0 for unknown) and ns, in the order of the launches."""
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]
    names, grids = trace.text("name"), [*trace.text("grid"), "0"]
    for row in rows.tolist():
        blocks = int(np.prod([int(side) for side in grids[trace["grid"][row]].split(",")]))
        yield base_name(names[trace["name"][row]]), blocks, int(trace["duration_ns"][row])


def answer(trace):
    """What `roofline` makes of the kernels' time, and its notes."""
    graph = build(trace)
    roofline(graph)
    return int(graph.select(kind="kernel").duration_ns.sum()), graph.facts.notes


def test_a_table_has_means_by_kernel_and_sums_by_window(tmp_path):
    (tmp_path / "a.txt").write_text(
        "kernel 0 - axpy - #thread-blocks 16,  kernel instructions 3, total instructions 3\n  FADD = 3\n"
        "kernel 1 - axpy - #thread-blocks 16,  kernel instructions 1, total instructions 4\n  FADD = 1\n"
    )
    (tmp_path / "l.txt").write_text("Total instructions executed: 9\n")
    trace = attach_counters(kernels("axpy", "dot", "axpy"), [tmp_path / "a.txt", f"{tmp_path / 'l.txt'}@0-1"])
    first, window = counters_table(trace)
    assert (first["kernel"], first["launches"], first["counted"], first["total_ns"]) == ("axpy", 2, 2, 20)
    assert (first["flop"], first["instructions"]) == (64, 2)
    assert window == {"kernel": "(kernels 0 to 1, Luthier)", "launches": 2, "counted": 2, "instructions": 9}
    said = counted_sentences(trace)
    assert said[0].startswith("axpy: flop 64, float32_flop 64")
    assert said[1] == "(kernels 0 to 1, Luthier): instructions 9 in all (2 of 2 counted)."
    assert counters_table(kernels("axpy")) == counted_sentences(kernels("axpy")) == []


# The roof of the L2 cache, by counters made for small kernels: rates and classes written out


H100 = "kineto/h100_vit_inference.json.gz"


@pytest.fixture
def held_up_by_l2(tmp_path):
    """Return a graph of the H100 trace, each kernel counted: 1 FLOP and 100 bytes of memory a ns."""

    def graph(l2_rate):
        path = shared_trace(H100)
        rows = [
            (name, blocks, {
                OPS.format("fadd"): ("inst", "0"), OPS.format("fmul"): ("inst", "0"),
                OPS.format("ffma"): ("inst", f"{ns / 2:.0f}"), "dram__bytes.sum": ("byte", f"{100 * ns}"),
                **({} if l2_rate is None else {"lts__t_bytes.sum": ("byte", f"{l2_rate(at, ns) * ns:.0f}")}),
            })
            for at, (name, blocks, ns) in enumerate(launches(daydream.load(path)))
        ]  # fmt: skip
        return build(attached(daydream.load(path), tmp_path, long_table(*rows)))

    return graph


def by_kind(graph):
    work = kernel_tasks(graph)
    kinds = bound(graph, work).kind
    both = counted_tasks(graph, work).all(axis=0)  # FLOP of products on tensor cores are not counted
    return work, kinds, both & (work.duration_ns >= LEAST_NS)


def test_a_kernel_that_l2_holds_up_is_bound_by_memory_and_not_by_latency(held_up_by_l2):
    _, kinds, long = by_kind(held_up_by_l2(None))
    assert set(kinds[long]) == {"latency"}  # 3 % of memory's bandwidth, no arithmetic to speak of
    graph = held_up_by_l2(lambda at, ns: 6_000)
    _, kinds, long = by_kind(graph)
    assert long.any()
    assert reached_l2(graph) == pytest.approx(6_000, rel=1e-3)
    assert set(kinds[long]) == {"memory"}


def test_roofline_leaves_kernels_at_the_roof_of_l2(held_up_by_l2):
    with pytest.raises(daydream.DaydreamError, match="reaches 1 of its bound already"):
        daydream.whatif(held_up_by_l2(lambda at, ns: 6_000), "roofline", reach=1.0)
    answer = daydream.whatif(held_up_by_l2(None), "roofline", reach=1.0)  # by memory alone 97 % could go
    assert answer.changed


def test_a_summary_has_means_and_how_many_launches(tmp_path):
    text = (
        '"Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Invocations","Minimum",'
        '"Maximum","Average"\n"7","axpy","(16, 1, 1)","dram__bytes.sum","byte","4","1","9","5"\n'
    )
    (one,) = read(tmp_path, text)
    assert (one.launches, one.bytes) == (4, 5)


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
