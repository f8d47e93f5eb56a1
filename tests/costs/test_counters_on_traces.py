"""Counters on public traces of an H100 and an MI300X, and what no counters may change.

The counters are made: no public recording has a trace and counters of it.
"""

import numpy as np
from daydream.optimizations._hardware import roofline
from test_counter_files import OPS, kernels, long_table

from daydream import attach_counters, build, counters_table
from daydream.costs.counters.attaching import base_name
from daydream.report.views.explanation import counted_sentences

HEADER = (
    "Dispatch_Id,Process_Id,Grid_Size,Kernel_Name,Workgroup_Size,Counter_Name,Counter_Value,Start_Timestamp"
)


def launches(trace):
    """Each kernel's own name, blocks (0 for unknown) and ns, in the order of the launches."""
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]
    names, grids = trace.text("name"), [*trace.text("grid"), "0"]
    for row in rows.tolist():
        blocks = int(np.prod([int(side) for side in grids[trace["grid"][row]].split(",")]))
        yield base_name(names[trace["name"][row]]), blocks, int(trace["duration_ns"][row])


def made(trace, amd, flop_a_ns, bytes_a_ns):
    """A table of counters for all kernels of a trace, in the layout of the vendor's profiler."""
    if not amd:
        zero = {OPS.format("fadd"): ("inst", "0"), OPS.format("fmul"): ("inst", "0")}
        return long_table(*(
            (name, blocks, {**zero, OPS.format("ffma"): ("inst", f"{flop_a_ns * ns / 2:.0f}"),
                            "dram__bytes.sum": ("byte", f"{bytes_a_ns * ns:.0f}")})
            for name, blocks, ns in launches(trace)
        ))  # fmt: skip
    rows = [
        f"{at},1,{blocks * 64},{name},64,{counter},{value:.3f},5"
        for at, (name, blocks, ns) in enumerate(launches(trace))
        for counter, value in (
            ("FETCH_SIZE", bytes_a_ns * ns / 1024), ("WRITE_SIZE", 0), ("SQ_INSTS_VALU_ADD_F32", 0),
            ("SQ_INSTS_VALU_MUL_F32", 0), ("SQ_INSTS_VALU_FMA_F32", flop_a_ns * ns / 128),
        )
    ]  # fmt: skip
    return "\n".join([HEADER, *rows]) + "\n"


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
