"""Files that count instructions: NVBit, Luthier, AccelProf, rocprofv3's JSON; public and documented ones.

Real samples exist of NVBit and, of AccelProf, the sums of an app_metric log. Luthier, AccelProf's other logs
and rocprofv3's JSON with counters are written here from their documentation (formats/DOCUMENTED.md).
"""

import json

import pytest
from shared import shared_trace
from test_counters import attached, axpy, kernels, long_table, read

from daydream.costs.counters.attaching import attach_counters, base_name
from daydream.costs.counters.formats import Totals, read_counted
from daydream.costs.counters.quantities import amounts_of_amd, amounts_of_sass, quantities_of
from daydream.costs.workload.counters import conflict_share, counted_work
from daydream.errors import FileError

HIST = (
    "kernel 0 - axpy - #thread-blocks 16,  kernel instructions 10, total instructions 10\n"
    "  FFMA.FTZ = 4\n  LDG.E.128 = 2\n  LDS.U = 1\n  HMMA.16816.F32 = 2\n  EXIT = 1\nLoss 0.5\n"
)
LUTHIER = (
    "Instruction counter tool is launching.\nKernel is being instrumented.\n"
    "[InstrCountTool] runInstrumentationPass for MF 'axpy' starting at instr idx 3\n"
)
OPCODES = (
    "Instruction Opcode Results: \n  V_FMA_F32_e64 = 3\n  DS_READ_B32 = 2\n"
    "Total number of instructions counted: 5\n"
)
LDS = (
    "Total number of LDS instructions: 40 (single-address: 30, double-address: 10)\n"
    "Total number of bank conflicts detected: 1.2e+06\n"
)


@pytest.mark.parametrize(
    ("file", "names", "blocks", "instructions"),
    [
        ("instr_count_readme_vectoradd.txt", ["vecAdd"], [98], [50_077]),
        ("instr_count_1.5.3_pytorch_verbose_excerpt.txt", ["reduce_kernel"], [96], [450_190]),
        ("instr_count_accelsim_stencil_line.txt", ["block2D_hybrid_coarsen_x"], [64], [760_284]),
        (
            "instr_count_tensorflow_excerpt.txt",
            ["FillPhiloxRandomKernelLaunch"] * 2, [56, 56], [4_678_400, 800_401],
        ),
        ("opcode_hist_1.5.3_lammps_excerpt.txt", ["kernel_info"], [1], [28]),
    ],
)  # fmt: skip
def test_public_samples_of_nvbit(file, names, blocks, instructions):
    found = read_counted(shared_trace(f"formats/nvbit/{file}"))
    assert [base_name(one.name) for one in found] == names
    assert [one.blocks for one in found] == blocks
    assert [one.amounts["instructions"] for one in found] == instructions
    assert {one.bytes for one in found} == {None}


def test_public_opcodes_of_nvbit():
    (one,) = read_counted(shared_trace("formats/nvbit/opcode_hist_1.5.3_lammps_excerpt.txt"))
    classes = {name: n for name, n in one.amounts.items() if name.endswith("_instructions")}
    assert classes == {
        "control_instructions": 1, "integer_instructions": 5, "memory_instructions": 16,
        "other_instructions": 6,
    }  # fmt: skip
    assert one.flop == 0  # every instruction of it is there, and none calculates
    with pytest.raises(FileError, match="opcodes of no kernel"):
        read_counted(shared_trace("formats/nvbit/opcode_hist_one_kernel_opcodes_only.txt"))


def test_an_opcode_mix_tells_flop_by_warps_and_shapes(tmp_path):
    (one,) = read(tmp_path, HIST)
    assert one.flop == 4 * 2 * 32 + 2 * (2 * 16 * 8 * 16)
    assert one.amounts["float32_flop"] == 256
    assert one.amounts["matrix_flop"] == 8_192
    assert (one.amounts["shared_instructions"], one.amounts["memory_instructions"]) == (1, 2)


@pytest.mark.parametrize(
    ("opcode", "flop"),
    [
        ("FADD", 32), ("FFMA.FTZ", 64), ("FFMA2", 128), ("DFMA", 64), ("DMUL", 32), ("MUFU.RCP", 0),
        ("HMMA.16816.F32.BF16", 4_096), ("HMMA.1688.F32.TF32", 2_048), ("HMMA.884.F32.F32.STEP2", 512),
        ("HMMA.884.F16.F16.STEP0", 1_024), ("DMMA.884", 512), ("QMMA.16832.F32.E4M3.E4M3", 8_192),
        ("IMMA.16816.S8.S8", 0), ("HGMMA.64x128x16.F32", None), ("HMMA.SP.16816.F32", None),
        ("HFMA2.MMA", None), ("HADD2.F32", 0),
    ],
)  # fmt: skip
def test_flop_of_a_warps_instruction(opcode, flop):
    assert amounts_of_sass({opcode: 1}).get("flop") == flop


def test_moves_by_16_bit_instructions_do_not_hide_what_is_known():
    assert amounts_of_sass({"FFMA": 100, "HFMA2.MMA": 1})["flop"] == 6_400


@pytest.mark.parametrize(
    ("opcode", "flop"),
    [
        ("V_FMA_F32_e64_vi", 128), ("V_PK_FMA_F32_gfx940", 256), ("V_ADD_F32_e32_vi", 64), ("S_ENDPGM", 0),
        ("V_MFMA_F32_32X32X8F16_gfx90a_vcd_e64", 2 * 32 * 32 * 8),
        ("V_MFMA_F32_32X32X1F32_e64", 2 * 32 * 32 * 2),
        ("V_MFMA_F32_16X16X16BF16_1K_e64", 2 * 16 * 16 * 16), ("V_MFMA_F32_4X4X4_16B_F16", 2 * 64 * 16),
        ("V_MFMA_I32_32X32X8I8_e64", 0), ("V_SMFMAC_F32_16X16X32_F16", None),
    ],
)  # fmt: skip
def test_flop_of_a_waves_instruction(opcode, flop):
    assert amounts_of_amd({opcode: 1}).get("flop") == flop


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        (LUTHIER + "Total instructions executed: 123456\n", {"instructions": 123_456}),
        (LDS, {"shared_instructions": 40, "shared_conflicts": 1_200_000}),
        (LDS.replace(" (single-address: 30, double-address: 10)", ""),
         {"shared_instructions": 40, "shared_conflicts": 1_200_000}),
        (OPCODES,
         {"instructions": 5, "float_instructions": 3, "shared_instructions": 2, "float32_flop": 384,
          "float64_flop": 0, "flop": 384}),
    ],
)  # fmt: skip
def test_luthier_gives_sums(tmp_path, text, amounts):
    assert read(tmp_path, text) == Totals("Luthier", amounts)


def test_sums_stay_with_their_window_and_no_kernel_has_a_part(tmp_path):
    (tmp_path / "l.txt").write_text("Total instructions executed: 1000\n")
    trace = attach_counters(kernels("a", "b", "c", "d"), [f"{tmp_path / 'l.txt'}@1-2"])
    assert trace.metadata["counted_windows"] == [
        {"file": "l.txt", "source": "Luthier", "first": 1, "last": 2, "amounts": {"instructions": 1000}}
    ]
    assert "counters" not in trace.metadata
    assert all((column == -1).all() for column in counted_work(trace))
    (note,) = trace.metadata["notes"]
    assert "kernels 1 to 2 of the recording (2 kernels, 50.0% of the kernels' time)" in note
    assert "No kernel is given a part of them." in note
    with pytest.raises(FileError, match="the recording has 4 kernels"):
        attach_counters(kernels("a", "b", "c", "d"), [f"{tmp_path / 'l.txt'}@1-4"])
    whole = attach_counters(kernels("a"), [tmp_path / "l.txt"])
    assert "It may be more than what this recording has." in whole.metadata["notes"][0]


def test_a_public_log_of_accelprof_has_sums_alone():
    log = shared_trace("formats/accelprof/docs_vectoradd_app_metric.log")
    assert read_counted(log) == Totals("AccelProf", {"accesses": 600_000})


def test_accelprofs_kernels(tmp_path):
    text = (
        "Alloc(0) 0:\t140414982029312 800000 (781.25 KB)\n\n"
        "Kernel 1 (refs=30, objs=1, obj_size=400, 400.00 B):\tdot(float*)\n"
        "Kernel 0 (refs=300000, objs=3, obj_size=2400000, 2.29 MB):\taxpy(float*)\n\n"
        "InvCount=1\taxpy(float*)\n"
        "Number of kernels: 2\nTotal memory accesses: 300030 (300.03 K)\n"
    )
    found = read(tmp_path, text)
    assert [one.name for one in found] == ["axpy(float*)", "dot(float*)"]
    assert found[0].amounts == {"accesses": 300_000, "touched_bytes": 2_400_000}
    with pytest.raises(FileError, match="lists 2 of 5 kernels"):
        read(tmp_path, text.replace("kernels: 2", "kernels: 5"))


def test_accelprofs_rooflines_are_in_no_order_and_become_means(tmp_path):
    trace = attached(kernels("axpy", "axpy"), tmp_path, "30|axpy\n10|axpy\n")
    assert counted_work(trace)[0].tolist() == [20, 20]
    assert "each has the mean" in trace.metadata["notes"][1]
    (one,) = read(tmp_path, "5|4096|axpy<int|float>\n")
    assert (one.name, one.amounts) == ("axpy<int|float>", {"accesses": 5, "accessed_bytes": 4096})
    with pytest.raises(FileError, match="times of kernels"):
        read(tmp_path, "0.001200|axpy\n")


def dispatches(*launches, **more):
    """A document of rocprofv3 of (kernel id, dispatch id, {counter id: value})."""
    return {"rocprofiler-sdk-tool": [{
        "metadata": {"environment": {"TOKEN": "secret"}},
        "counters": [{"id": {"handle": 7}, "name": "FETCH_SIZE"}, {"id": {"handle": 8}, "name": "WRITE_SIZE"},
                     {"id": {"handle": 9}, "name": "SQ_INSTS_VALU_MFMA_MOPS_F16"}],
        "kernel_symbols": [
            {"kernel_id": 1, "kernel_name": "axpy.kd", "formatted_kernel_name": "axpy(float*)"}
        ],
        "callback_records": {"counter_collection": [
            {"dispatch_data": {"dispatch_info": {
                "kernel_id": kernel, "dispatch_id": number, "workgroup_size": {"x": 64, "y": 1, "z": 1},
                "grid_size": {"x": 1024, "y": 1, "z": 1}}},
             "records": [{"counter_id": {"handle": counter}, "value": value} for counter, value in counts]}
            for kernel, number, counts in launches
        ]}, **more,
    }]}  # fmt: skip


def test_rocprofv3s_json(tmp_path):
    second, first = (1, 2, [(7, 3.0)]), (1, 1, [(7, 1.5), (7, 0.5), (8, 1.0), (9, 2.0)])
    found = read(tmp_path, json.dumps(dispatches(second, first)), "c.json")
    assert [(one.name, one.blocks, one.flop, one.bytes) for one in found] == [
        ("axpy(float*)", 16, 1024, 3 * 1024), ("axpy(float*)", 16, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ((2, 1, [(7, 1.0)]), "kernel 2, which has no name"),
        ((1, 1, [(5, 1.0)]), "counter 5 has no name"),
        ((1, 1, [(7, -1.0)]), "no JSON of rocprofv3"),
    ],
)
def test_launches_that_cannot_be_are_one_line(tmp_path, launch, said):
    with pytest.raises(FileError, match=said) as error:
        read(tmp_path, json.dumps(dispatches(launch)))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600 + len(str(tmp_path))


@pytest.mark.parametrize(
    "whole",
    [HIST, LUTHIER + LDS, json.dumps(dispatches((1, 1, [(7, 1.0)]))), long_table(("axpy", 16, axpy()))],
)
def test_no_cut_of_them_is_more_than_one_line(tmp_path, whole):
    for end in range(0, len(whole), 3):
        try:
            read(tmp_path, whole[:end])
        except FileError as error:
            assert "\n" not in str(error)  # noqa: PT017 - some cuts are whole files


def test_the_share_of_conflicts_by_hand():
    nvidia = quantities_of({
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 250.0, "sm__cycles_elapsed.avg": 100.0,
    })  # fmt: skip
    assert conflict_share(nvidia, 10) == 0.25
    amd = quantities_of({"SQ_LDS_BANK_CONFLICT": 30.0, "GRBM_GUI_ACTIVE": 10.0})
    assert conflict_share(amd, 30) == 0.1
    assert conflict_share(quantities_of({"LDSBankConflict": 12.5}), 1) == 0.125
    assert conflict_share(quantities_of({"SQ_LDS_BANK_CONFLICT": 30.0}), 30) is None
    assert conflict_share(quantities_of({"LDSBankConflict": 250.0}), 1) == 1  # never more than all of it
