"""What counters say of a kernel, whatever wrote them: the names of `quantities.tsv`, each with its unit.

Instructions are those of a warp or wave: one that 32 or 64 lanes execute counts once. The table's `counters` are
sums of counters of profilers (Nsight Compute, rocprofiler) times factors, `*` for any rest of a name and `?` behind
one that may be missing; the first sum counts whose counters are all there. FLOP are a lane each, a wave of AMD has
64, and a unit of MFMA_MOPS is 512 (AMD's counter reference).

AMD's L2 reads 32, 64 and (MI300, EA0) 128 bytes at once and writes 32 or 64, as AMD derives FETCH_SIZE and
WRITE_SIZE ("MI300 and MI200 series performance counters"). What it is asked for is an upper bound: 128 bytes a read
(AMD's own "L2 bandwidth"), half a line a write: the public copy of 8,388,608 bytes on an MI300X has 65,536 reads
and 131,072 writes. Where the two were not told apart, all are whole lines.

An opcode histogram of a kernel: instructions by class, and the FLOP where the opcodes determine them.

NVIDIA's opcodes are SASS, AMD's those of LLVM; classes, FLOP a lane and shapes are in `opcodes.tsv`. A vector
instruction counts for all lanes of its warp or wave, also those that are off: what comes of it is an upper
bound. An instruction of matrix units has its shape in its name (`sass shape`: M, N, K by the digits of PTX's
`mma`; `amd blocks`: products side by side in one instruction whose name does not count them, by type, M and K,
"AMD Instinct MI200 Instruction Set Architecture"). Of those that several warps issue together (HGMMA), or
whose shape is not in the name, FLOP are unknown, and so are the kernel's.

`counters_table`: what was counted of the kernels of a trace, a row a name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daydream.collect import load
from daydream.collect.derive.device_work import dtype_of_kernel
from daydream.costs.kernels import TENSOR_KERNEL
from daydream.costs.workload.counters import entry_of_rows
from daydream.lazy import regex
from daydream.trace.trace import Trace

_ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("quantities.tsv").read_text("utf-8").splitlines()[1:]
]
QUANTITIES = {name: (unit, meaning) for name, unit, meaning, _ in _ROWS}
TERM = regex(r"(-?) ?\+? ?(?:([\d.]+) )?([\w.*]+)(\?)?")
VECTOR = ("float16_flop", "float32_flop", "float64_flop")


class Term(NamedTuple):
    """A counter, or all that a `*` stands for, times a factor; of a sum it may be missing where it is optional."""

    factor: float
    counter: str
    optional: bool

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """Return what it adds; None where it was not counted."""
        if "*" in self.counter:
            found = [metrics[name] for name in metrics if fnmatchcase(name, self.counter)]
        else:
            found = [metrics[self.counter]] if self.counter in metrics else []
        return self.factor * sum(found) if found else 0.0 if self.optional else None


def _sums(text: str) -> list[list[Term]]:
    return [
        [
            Term(float(f"{minus}{factor or 1}"), counter, bool(optional))
            for minus, factor, counter, optional in TERM.findall(each)
        ]
        for each in text.split("; ")
        if each
    ]


SOURCES = {name: _sums(counters) for name, *_, counters in _ROWS}


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
        vector = {name: _told(self.metrics, name) for name in VECTOR if _named(self.metrics, name)}
        matrix = _told(self.metrics, "matrix_flop")
        if None in vector.values() or ("float32_flop" not in vector and not matrix):
            return None
        on_amd = any(name.startswith("SQ_") for name in self.metrics)
        if not matrix and not on_amd:
            half = dtype_of_kernel(self.name) in ("float16", "bfloat16")
            on_matrix_units = _told(self.metrics, "matrix_instructions")
            if half or on_matrix_units or TENSOR_KERNEL.search(self.name):
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
    for name in SOURCES:
        value = _told(metrics, name)
        if value is not None:
            found.setdefault(name, value)
    if "dram_read_bytes" in found and "dram_written_bytes" in found:
        found.setdefault("dram_bytes", found["dram_read_bytes"] + found["dram_written_bytes"])
    for name in found.keys() & {"shared_conflict_share", "occupancy"}:
        found[name] = min(found[name], 1.0)
    return found


def _told(metrics: Mapping[str, float], name: str) -> float | None:
    """Return a quantity by the first of its sums whose counters were all counted, None without any."""
    for terms in SOURCES[name]:
        values = [term.value(metrics) for term in terms]
        if None not in values:
            return sum((value or 0.0 for value in values), 0.0)
    return None


def _named(metrics: Mapping[str, float], name: str) -> bool:
    """Tell whether any counter of a quantity was counted."""
    plain = (term._replace(optional=False) for terms in SOURCES[name] for term in terms)
    return any(term.value(metrics) is not None for term in plain)


WARP = 32
WAVE = 64
# Volta's HMMA.884 is a step of four (16-bit sums: of two) of a warp's 16x16x16 product, which takes four sets
# ("Modeling Deep Learning Accelerator Enabled GPUs", Raihan, Goli and Aamodt, ISPASS 2019, section III).
VOLTA_STEPS = {"F32": 16, "F16": 8}
AMD_VECTOR = regex(
    r"V_(PK_)?(?:ADD|SUB|SUBREV|MUL|(FMA|FMAC|MAC|MAD|FMAAK|FMAMK)|RCP|RSQ|SQRT|EXP|LOG|SIN|COS)"
    r"_F(16|32|64)(_|$)"
)
AMD_MATRIX = regex(
    r"V_S?MFMA_(?:F32|F64)_(\d+)X(\d+)X(\d+)(?:_(\d+)B)?_?((?:F16|BF16|F32|F64|XF32|FP8|BF8)(?:_1K)?)"
)
LARGEST_SIDE = 256  # of a product in one instruction: larger is no shape
# Compilers move constants with 16-bit instructions: of a larger part of the FLOP nobody can tell.
MOST_DOUBTFUL = 0.05


@cache
def _table(title: str) -> dict[str, str]:
    lines = Path(__file__).with_name("opcodes.tsv").read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return {key: value for table, key, value in rows if table == title}


def amounts_of_sass(counts: Mapping[str, float]) -> dict[str, float]:
    """Return instructions by class and FLOP of a kernel of NVIDIA, by the names of `quantities.tsv`.

    Args:
        counts: how often each opcode (`FFMA.FTZ`) was executed by a warp.

    Returns:
        `flop` is absent where it is not determined.
    """
    return _amounts(counts, "sass")


def amounts_of_amd(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the same of AMD: opcodes as LLVM spells them (`V_FMA_F32_e64`), each executed by a wave."""
    return _amounts({opcode.upper(): count for opcode, count in counts.items()}, "amd")


def _amounts(counts: Mapping[str, float], maker: str) -> dict[str, float]:
    classes = [(name, regex(pattern)) for name, pattern in _table(f"{maker} class").items()]
    found: dict[str, float] = {"instructions": sum(counts.values())}
    flop = dict.fromkeys(("float16", "float32", "float64", "matrix"), 0.0)
    unknown = False
    for opcode, count in counts.items():
        name = next(
            (name for name, pattern in classes if pattern.match(opcode.split(".")[0])), "other"
        )
        found[f"{name}_instructions"] = found.get(f"{name}_instructions", 0.0) + count
        kind, each = (_of_sass if maker == "sass" else _of_amd)(opcode, in_matrix=name == "matrix")
        unknown |= each is None and count > 0
        flop[kind] += (each or 0) * count
    doubt = flop["float16"] if maker == "sass" else 0.0
    total = sum(flop.values()) - doubt
    for kind, value in flop.items():
        if value or kind in ("float32", "float64"):
            found[f"{kind}_flop"] = value
    if unknown:
        found.pop("matrix_flop", None)
    elif doubt <= MOST_DOUBTFUL * total or not doubt:
        found["flop"] = total
    return found


def _of_sass(opcode: str, *, in_matrix: bool) -> tuple[str, int | None]:
    """Return what kind of FLOP an instruction of a warp does, and how many; None if its name does not tell."""
    first, *more = opcode.split(".")
    lane = _table("sass flop").get(first)
    if lane is not None and not (first == "HADD2" and more[:1] == ["F32"]):  # HADD2.F32 converts
        each, kind = lane.split()
        return kind, WARP * int(each)
    if not in_matrix or first.startswith(("I", "B", "WARPGROUP")):
        return "matrix", 0
    if first not in ("HMMA", "DMMA", "QMMA") or not more or "SP" in more:
        return "matrix", None
    if first == "HMMA" and more[0] == "884":
        steps = VOLTA_STEPS.get("".join(more[1:2]))
        known = steps and any(part.startswith("STEP") for part in more)
        return "matrix", 2 * 16**3 // steps if steps and known else None
    shape = _table("sass shape").get(more[0])
    return "matrix", None if shape is None else 2 * prod(map(int, shape.split()))


def _of_amd(opcode: str, *, in_matrix: bool) -> tuple[str, int | None]:
    """Return the same of a wave's instruction."""
    if one := AMD_VECTOR.match(opcode):
        return f"float{one[3]}", WAVE * (2 if one[1] else 1) * (2 if one[2] else 1)
    if not in_matrix or "_I32_" in opcode:
        return "matrix", 0
    product = AMD_MATRIX.match(opcode)
    if product is None or "SMFMAC" in opcode:
        return "matrix", None
    m, n, k = map(int, product.groups()[:3])
    if max(m, n, k) > LARGEST_SIDE:
        return "matrix", None
    blocks = product[4] or _table("amd blocks").get(f"{product[5]} {m} {k}", "1")
    return "matrix", 2 * m * n * k * int(blocks)


def counters_table(trace: Trace | str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return what was counted of each kernel, those first that take longest; and sums over windows.

    Args:
        trace: with counters (`attach_counters`, `import --counters`), or the path of one.

    Returns:
        A row a kernel name: `kernel`, `launches`, `counted` (launches with counters), `total_ns`, and the
        mean a launch of each quantity that was counted, by the names of `daydream.costs.counters.quantities`.
        Sums over kernels 100 to 200 are rows named `(kernels 100 to 200, Luthier)`, not means. Without
        counters there are no rows.

    Raises:
        TraceError: a path leads to no usable trace.

    """
    if not isinstance(trace, Trace):
        trace = load(trace)
    entries = trace.metadata.get("counters") or []
    rows = np.flatnonzero(trace.is_kind("kernel"))
    place = entry_of_rows(trace)[rows]
    names = trace["name"][rows]
    time = trace["duration_ns"][rows]
    texts = trace.text("name")
    found: list[dict[str, Any]] = []
    for code in np.unique(names[place >= 0]).tolist():
        mine = names == code
        told = [entries[at].get("amounts") or {} for at in place[mine].tolist() if at >= 0]
        told = [each for each in told if each]
        if told:
            row = {"kernel": texts[code], "launches": int(mine.sum()), "counted": len(told)}
            found.append({**row, "total_ns": int(time[mine].sum()), **_means(told)})
    found.sort(key=lambda row: (-row["total_ns"], row["kernel"]))
    for window in trace.metadata.get("counted_windows") or []:
        name = f"(kernels {window['first']} to {window['last']}, {window['source']})"
        launches = window["last"] - window["first"] + 1
        found.append(
            {"kernel": name, "launches": launches, "counted": launches, **window["amounts"]}
        )
    return found


def counted_in(trace: Trace) -> dict[str, Any] | None:
    """Return of how many kernels something was counted, and what; None if nothing was.

    Args:
        trace: a recording.

    Returns:
        `kernels` that were counted, `of` how many, their `quantities` by the names of
        `daydream.costs.counters.quantities`, and the `windows` of which only sums are known.

    """
    entries = trace.metadata.get("counters") or []
    windows = trace.metadata.get("counted_windows") or []
    if not entries and not windows:
        return None
    rows = np.flatnonzero(trace.is_kind("kernel"))
    told = [
        {key for key in ("flop", "bytes") if entry.get(key) is not None}
        | {*(entry.get("amounts") or ())}
        for entry in entries
    ]
    counted = np.array([*map(bool, told), False])[entry_of_rows(trace)[rows]]
    told += [set(window["amounts"]) for window in windows]
    return {
        "kernels": int(counted.sum()),
        "of": len(rows),
        "quantities": [name for name in QUANTITIES if any(name in each for each in told)],
        "windows": [
            f"{window['first']} to {window['last']}, {window['source']}" for window in windows
        ],
    }


def _means(told: list[dict[str, float]]) -> dict[str, float]:
    """Return the means of what all of some launches have."""
    shared = [name for name in QUANTITIES if all(name in each for each in told)]
    means = {name: sum(each[name] for each in told) / len(told) for name in shared}
    return {
        name: value if value < 1 and value % 1 else round(value) for name, value in means.items()
    }
