"""What counters say of a kernel, whatever wrote them: the names of `quantities.tsv`, each with its unit.

Instructions are those of a warp or wave: one that 32 or 64 lanes execute counts once. The table's `counters` are
sums of counters of profilers (Nsight Compute, rocprofiler) times factors, `*` for any rest of a name and `?` behind
one that may be missing; the first sum counts whose counters are all there. FLOP are a lane each, a wave of AMD has
64, and a unit of MFMA_MOPS is 512 (AMD's counter reference).

AMD's L2 reads 32, 64 and (MI300, EA0) 128 bytes at once and writes 32 or 64, as AMD derives FETCH_SIZE and
WRITE_SIZE ("MI300 and MI200 series performance counters"). What it is asked for is an upper bound: 128 bytes a read
(AMD's own "L2 bandwidth"), half a line a write: the public copy of 8,388,608 bytes on an MI300X has 65,536 reads
and 131,072 writes. Where the two were not told apart, all are whole lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from daydream.collect.derive.device_work import dtype_of_kernel
from daydream.costs.kernels import TENSOR_KERNEL
from daydream.lazy import regex

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
