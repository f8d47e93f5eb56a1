"""What counters say of a kernel, whatever wrote them: the names of `quantities.tsv`, each with its unit.

Instructions are those of a warp or wave: one that 32 or 64 lanes execute counts once. The table's `counters`
are the names of profilers (Nsight Compute, rocprofiler) that are a quantity times `factor`; the first counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from daydream.collect.derive.device_work import dtype_of_kernel
from daydream.costs.kernels import TENSOR_KERNEL
from daydream.lazy import regex

_ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("quantities.tsv").read_text("utf-8").splitlines()[1:]
]
QUANTITIES = {name: (unit, meaning) for name, unit, meaning, *_ in _ROWS}
SOURCES = {
    name: (float(factor), counters.split("; ")) for name, _, _, factor, counters in _ROWS if factor
}

# FLOP by element type (float, double; 16, 32, 64) and sort of instruction. A lane each: a wave of AMD has 64.
VECTOR = regex(
    r"sm(?:sp)?__sass_thread_inst_executed_op_([fd])(add|mul|fma)_pred_on\.sum"
    r"|SQ_INSTS_VALU_(ADD|MUL|TRANS|FMA)_F(16|32|64)"
)
WIDTHS, WAVE = {"f": "32", "d": "64"}, 64
MATRIX = regex(r"sm__ops_path_tensor_\w+\.sum|(SQ_INSTS_VALU_MFMA_MOPS_\w+)")
MATRIX_FLOP = 512  # of a unit of MFMA_MOPS (AMD's counter reference)
TENSOR_INSTRUCTIONS = regex(r"sm(?:sp)?__inst_executed_pipe_tensor\w*\.sum")
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"  # one is one cycle of a unit


@dataclass
class CountedKernel:
    """A launch that was counted.

    Attributes:
        name: of the kernel, as the file spells it.
        blocks: of its grid; None if the file does not say.
        metrics: values by the names of the counters, in base units: bytes, instructions, operations.
        launches: how many launches the values are the mean of.
        ordered: whether it stands where it was launched among those of its name.
        device: what the file calls its device; empty if it does not say.
    """

    name: str
    blocks: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    launches: int = 1
    ordered: bool = True
    device: str = ""

    @property
    def flop(self) -> int | None:
        """FLOP of the launch; None if not all were counted: a part is no answer.

        On NVIDIA they are None, too, for kernels of matrix units whose operations were not counted (those of
        an instruction depend on its shape), and for kernels that calculate in 16 bits; 16-bit instructions do
        not count in others, as compilers move constants with them.
        """
        if "flop" in self.metrics:
            return round(self.metrics["flop"])
        vector, matrix = _flop_by_type(self.metrics)
        if None in vector.values() or ("float32_flop" not in vector and not matrix):
            return None
        on_amd = any(name.startswith("SQ_") for name in self.metrics)
        if not matrix and not on_amd:
            half = dtype_of_kernel(self.name) in ("float16", "bfloat16")
            if half or TENSOR_KERNEL.search(self.name) or _tensor_instructions(self.metrics):
                return None
        return round(sum(value or 0 for value in vector.values()) + (matrix or 0))

    @property
    def bytes(self) -> int | None:
        """Bytes to and from the device's memory; None if they were not counted."""
        counted = quantities_of(self.metrics).get("dram_bytes")
        return None if counted is None else round(counted)

    @property
    def amounts(self) -> dict[str, int | float]:
        """All that was counted of the launch, by the names of the table: whole but for parts of 1."""
        found: dict[str, int | float] = {
            name: value if value < 1 and not value.is_integer() else round(value)
            for name, value in quantities_of(self.metrics).items()
        }
        flop = self.flop
        return found if flop is None else {"flop": flop, **found}


def quantities_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what a profiler's counters are in the names of the table; what they do not tell is absent.

    `flop` is not worked out here: whether a profiler counted all of them is another question.
    """
    found = {name: value for name, value in metrics.items() if name in QUANTITIES}
    for name, (factor, counters) in SOURCES.items():
        known = next((factor * metrics[each] for each in counters if each in metrics), None)
        if known is not None:
            found.setdefault(name, known)
    vector, matrix = _flop_by_type(metrics)
    loads, stores = (metrics.get(CONFLICTS.format(kind)) for kind in ("ld", "st"))
    conflicts = None if loads is None or stores is None else loads + stores
    worked_out = {
        **vector,
        "matrix_flop": matrix,
        "matrix_instructions": _tensor_instructions(metrics),
        "shared_conflict_cycles": conflicts,
        **_bytes_of_amds_requests(metrics),
    }
    for name, value in worked_out.items():
        if value is not None:
            found.setdefault(name, value)
    if "dram_read_bytes" in found and "dram_written_bytes" in found:
        found.setdefault("dram_bytes", found["dram_read_bytes"] + found["dram_written_bytes"])
    for name in found.keys() & {"shared_conflict_share", "occupancy"}:
        found[name] = min(found[name], 1.0)
    return found


def _flop_by_type(
    metrics: Mapping[str, float],
) -> tuple[dict[str, float | None], float | None]:
    """Return FLOP of vector units by type, None of one whose instructions were not all counted; of matrix units."""
    vector: dict[str, dict[str, float]] = {}
    matrix: list[float] = []
    for name, value in metrics.items():
        if one := VECTOR.fullmatch(name):
            kind = (one[2] or one[3]).lower()
            lanes = (WAVE if one[3] else 1) * (2 if kind == "fma" else 1)
            width = one[4] or WIDTHS[one[1]]
            vector.setdefault(f"float{width}_flop", {})[kind] = lanes * value
        elif one := MATRIX.fullmatch(name):
            matrix.append(value * (MATRIX_FLOP if one[1] else 1))
    whole = {
        name: sum(kinds.values()) if {"add", "mul", "fma"} <= kinds.keys() else None
        for name, kinds in vector.items()
    }
    return whole, sum(matrix) if matrix else None


def _tensor_instructions(metrics: Mapping[str, float]) -> float | None:
    found = [value for name, value in metrics.items() if TENSOR_INSTRUCTIONS.fullmatch(name)]
    return sum(found) if found else None


def _bytes_of_amds_requests(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what AMD's L2 read, wrote and was asked for, by its requests.

    It reads 32, 64 and (MI300) 128 bytes at once and writes 32 or 64, as AMD derives FETCH_SIZE and
    WRITE_SIZE ("MI300 and MI200 series performance counters"). What it is asked for is an upper bound: 128
    bytes a read (AMD's own "L2 bandwidth"), half a line a write: the public copy of 8,388,608 bytes on an
    MI300X has 65,536 reads and 131,072 writes. Where the two were not told apart, all are whole lines.
    """
    found = {}
    for edge in ("TCC_EA", "TCC_EA0"):  # the second is MI300's
        reads, narrow = (metrics.get(f"{edge}_RDREQ{part}_sum") for part in ("", "_32B"))
        wide = metrics.get("TCC_BUBBLE_sum") if edge == "TCC_EA0" else 0.0
        if reads is not None and narrow is not None and wide is not None:
            middle = max(reads - narrow - wide, 0.0)
            found["dram_read_bytes"] = 32 * narrow + 64 * middle + 128 * wide
        writes, whole = (metrics.get(f"{edge}_WRREQ{part}_sum") for part in ("", "_64B"))
        if writes is not None and whole is not None:
            found["dram_written_bytes"] = 64 * whole + 32 * max(writes - whole, 0.0)
    reads, writes, both = (metrics.get(f"TCC_{what}_sum") for what in ("READ", "WRITE", "REQ"))
    if reads is not None and writes is not None:
        found["l2_bytes"] = 128 * reads + 64 * writes
    elif both is not None:
        found["l2_bytes"] = 128 * both
    return found
