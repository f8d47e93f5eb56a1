"""The one list of what counters are called here, whatever wrote them, and how profilers' names become these.

Instructions are those of a warp or wave: one that 32 or 64 lanes execute counts once. Every name says its
unit: `bytes`, `cycles`, `flop`, `instructions`; `share` and `occupancy` are parts of 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from daydream.lazy import regex

QUANTITIES: dict[str, tuple[str, str]] = {
    "flop": ("FLOP", "all floating-point operations, two for a multiply-add"),
    "float16_flop": ("FLOP", "those of 16 bits on vector units"),
    "float32_flop": ("FLOP", "those of 32 bits on vector units"),
    "float64_flop": ("FLOP", "those of 64 bits on vector units"),
    "matrix_flop": ("FLOP", "those of tensor cores or matrix units"),
    "dram_bytes": ("B", "to and from the device's memory"),
    "dram_read_bytes": ("B", "read from the device's memory"),
    "dram_written_bytes": ("B", "written to the device's memory"),
    "l2_bytes": ("B", "to and from the L2 cache"),
    "accessed_bytes": ("B", "what loads and stores ask for, from wherever it comes"),
    "touched_bytes": ("B", "size of the allocations that it touches: an upper bound of its data"),
    "accesses": ("accesses", "loads and stores of single threads"),
    "instructions": ("instructions", "of warps or waves, all of them"),
    "float_instructions": ("instructions", "floating-point arithmetic"),
    "integer_instructions": ("instructions", "integer arithmetic, logic and conversions"),
    "matrix_instructions": ("instructions", "of tensor cores or matrix units"),
    "shared_instructions": ("instructions", "to shared memory (LDS)"),
    "memory_instructions": ("instructions", "to global, local and constant memory"),
    "control_instructions": ("instructions", "branches, barriers, exits"),
    "other_instructions": ("instructions", "moves and the rest"),
    "vector_instructions": ("instructions", "of vector units, whatever they calculate (AMD)"),
    "scalar_instructions": ("instructions", "of scalar units (AMD)"),
    "shared_conflicts": ("conflicts", "bank conflicts in shared memory (LDS)"),
    "shared_conflict_cycles": (
        "cycles",
        "lost to bank conflicts in shared memory, summed over all units",
    ),
    "shared_conflict_share": (
        "part of 1",
        "of the kernel's cycles, lost to bank conflicts in shared memory",
    ),
    "cycles": ("cycles", "from the kernel's begin to its end"),
    "unit_cycles": ("cycles", "the same, summed over all units"),
    "occupancy": ("part of 1", "warps or waves resident, of those that fit"),
}

PREFIX = "sm(?:sp)?__"
NVIDIA = regex(PREFIX + r"sass_thread_inst_executed_op_([df])(add|mul|fma)_pred_on\.sum")
NVIDIA_TENSOR = regex(PREFIX + r"inst_executed_pipe_tensor\w*\.sum")
NVIDIA_TENSOR_OPS = regex(r"sm__ops_path_tensor_\w+\.sum")
AMD = regex(r"SQ_INSTS_VALU_(ADD|MUL|TRANS|FMA)_F(16|32|64)")
AMD_MATRIX = regex(r"SQ_INSTS_VALU_MFMA_MOPS_\w+")
WAVE, MATRIX_FLOP = (
    64,
    512,
)  # lanes of an AMD wave, and FLOP of a unit of MFMA_MOPS (AMD's counter reference)
WIDTHS = {"f": "float32_flop", "d": "float64_flop"}
CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"  # NVIDIA's count is one cycle of a unit each
)

# Names of profilers that are one of the quantities as they stand, or times a factor. The first one counts.
SAME: dict[str, tuple[tuple[str, float], ...]] = {
    "dram_bytes": (("dram__bytes.sum", 1),),
    "dram_read_bytes": (("dram__bytes_read.sum", 1), ("FETCH_SIZE", 1), ("FetchSize", 1)),
    "dram_written_bytes": (("dram__bytes_write.sum", 1), ("WRITE_SIZE", 1), ("WriteSize", 1)),
    "l2_bytes": (("lts__t_bytes.sum", 1),),
    "instructions": (("smsp__inst_executed.sum", 1), ("sm__inst_executed.sum", 1)),
    "vector_instructions": (("SQ_INSTS_VALU", 1),),
    "scalar_instructions": (("SQ_INSTS_SALU", 1),),
    "matrix_instructions": (("SQ_INSTS_MFMA", 1), ("SQ_INSTS_VALU_MFMA", 1)),
    "memory_instructions": (("SQ_INSTS_VMEM", 1),),
    "control_instructions": (("SQ_INSTS_BRANCH", 1),),
    "shared_instructions": (("SQ_INSTS_LDS", 1), ("smsp__inst_executed_op_shared.sum", 1)),
    "shared_conflict_cycles": ((f"{CONFLICTS}.sum", 1), ("SQ_LDS_BANK_CONFLICT", 1)),
    "shared_conflict_share": (("LDSBankConflict", 0.01),),
    "cycles": (
        ("sm__cycles_elapsed.max", 1), ("gpc__cycles_elapsed.max", 1), ("sm__cycles_elapsed.avg", 1),
        ("Elapsed Cycles", 1), ("GRBM_GUI_ACTIVE", 1),
    ),
    "unit_cycles": (("sm__cycles_elapsed.sum", 1), ("l1tex__cycles_elapsed.sum", 1)),
    "occupancy": (
        ("sm__warps_active.avg.pct_of_peak_sustained_active", 0.01), ("Achieved Occupancy", 0.01),
        ("OccupancyPercent", 0.01),
    ),
}  # fmt: skip
# Requests of AMD's L2 to memory, as MI200 names them and as MI300: the second's reads may be of 128 bytes.
AMD_EDGES = {"TCC_EA": False, "TCC_EA0": True}
PARTS_OF_1 = ("shared_conflict_share", "occupancy")


def quantities_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what a profiler's counters are in the names of this list; what they do not tell is absent.

    `flop` is not worked out here: whether a profiler counted all of them is another question.
    """
    found = {name: value for name, value in metrics.items() if name in QUANTITIES}
    for name, sources in SAME.items():
        known = next(
            (metrics[source] * factor for source, factor in sources if source in metrics), None
        )
        if known is not None:
            found.setdefault(name, known)
    for name, value in _flop_by_type(metrics).items():
        found.setdefault(name, value)
    loads, stores = (metrics.get(f"{CONFLICTS}_op_{kind}.sum") for kind in ("ld", "st"))
    if loads is not None and stores is not None:
        found.setdefault("shared_conflict_cycles", loads + stores)
    tensor = [value for name, value in metrics.items() if NVIDIA_TENSOR.fullmatch(name)]
    if tensor:
        found.setdefault("matrix_instructions", sum(tensor))
    for name, value in (*_requested_bytes(metrics).items(), *_bytes_of_amds_l2(metrics).items()):
        found.setdefault(name, value)
    both = [found.get(name) for name in ("dram_read_bytes", "dram_written_bytes")]
    if None not in both:
        found.setdefault("dram_bytes", sum(one for one in both if one is not None))
    for name in PARTS_OF_1:
        if name in found:
            found[name] = min(found[name], 1.0)
    return found


def _requested_bytes(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what AMD's L2 read from memory and wrote, by its requests: of 32, 64 and 128 bytes.

    As AMD derives FETCH_SIZE and WRITE_SIZE ("MI300 and MI200 series performance counters").
    """
    found = {}
    for edge, may_be_wide in AMD_EDGES.items():
        reads, narrow = (metrics.get(f"{edge}_RDREQ{part}_sum") for part in ("", "_32B"))
        wide = metrics.get("TCC_BUBBLE_sum") if may_be_wide else 0.0
        if reads is not None and narrow is not None and wide is not None:
            found["dram_read_bytes"] = (
                32 * narrow + 64 * max(reads - narrow - wide, 0.0) + 128 * wide
            )
        writes, whole = (metrics.get(f"{edge}_WRREQ{part}_sum") for part in ("", "_64B"))
        if writes is not None and whole is not None:
            found["dram_written_bytes"] = 64 * whole + 32 * max(writes - whole, 0.0)
    return found


def _bytes_of_amds_l2(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what AMD's L2 was asked for: 128 bytes a read, 64 a write, an upper bound.

    A request looks up a line of 128 bytes (AMD's own "L2 bandwidth" is 128 a request), a write brings half of
    one: the public copy of 8,388,608 bytes on an MI300X has 65,536 reads and 131,072 writes. An MI200 reads
    half lines, too. Where reads and writes were not told apart, all are taken as whole lines.
    """
    reads, writes, all_of_them = (
        metrics.get(f"TCC_{what}_sum") for what in ("READ", "WRITE", "REQ")
    )
    if reads is not None and writes is not None:
        return {"l2_bytes": 128 * reads + 64 * writes}
    return {} if all_of_them is None else {"l2_bytes": 128 * all_of_them}


def _flop_by_type(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return FLOP by element type: those types alone of which every sort of instruction was counted."""
    sums: dict[str, dict[str, float]] = {}
    matrix: list[float] = []
    for name, value in metrics.items():
        if found := NVIDIA.fullmatch(name):
            kind = sums.setdefault(WIDTHS[found[1]], {})
            kind[found[2]] = (2 if found[2] == "fma" else 1) * value
        elif found := AMD.fullmatch(name):
            kind = sums.setdefault(f"float{found[2]}_flop", {})
            kind[found[1].lower()] = WAVE * (2 if found[1] == "FMA" else 1) * value
        elif NVIDIA_TENSOR_OPS.fullmatch(name):
            matrix.append(value)
        elif AMD_MATRIX.fullmatch(name):
            matrix.append(MATRIX_FLOP * value)
    whole = {
        name: sum(kind.values())
        for name, kind in sums.items()
        if {"add", "mul", "fma"} <= kind.keys()
    }
    return {**whole, **({"matrix_flop": sum(matrix)} if matrix else {})}


def conflict_share(amounts: Mapping[str, float | int], units: int) -> float | None:
    """Return which part of a kernel's cycles bank conflicts take, 0 to 1; None if it was not counted.

    Args:
        amounts: what was counted of a launch, by the names of this list.
        units: multiprocessors (compute units) of the device. Each has its own shared memory.
    """
    if "shared_conflict_share" in amounts:
        return min(float(amounts["shared_conflict_share"]), 1.0)
    whole = amounts.get("unit_cycles") or amounts.get("cycles", 0) * units
    if "shared_conflict_cycles" not in amounts or whole <= 0:
        return None
    return min(float(amounts["shared_conflict_cycles"] / whole), 1.0)
