"""What counters say of a kernel: FLOP and bytes, and all else that has a name in `quantities.py`.

NVIDIA's names are those of Nsight Compute, AMD's those of rocprofiler. FLOP are None where matrix units were
at work and are not counted in operations: a part is no answer. On NVIDIA they are None for kernels that
calculate in 16 bits, too, and 16-bit instructions do not count in others: compilers move constants with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from daydream.collect.derive.device_work import dtype_of_kernel
from daydream.costs.counters.quantities import (
    AMD,
    AMD_MATRIX,
    NVIDIA,
    NVIDIA_TENSOR,
    NVIDIA_TENSOR_OPS,
    quantities_of,
)
from daydream.costs.kernels import TENSOR_KERNEL

FLOP, BYTES = "flop", "dram_bytes"  # of files that tell these themselves


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
        """FLOP of the launch; None if not all were counted."""
        if FLOP in self.metrics:
            return round(self.metrics[FLOP])
        counted = quantities_of(self.metrics)
        if any(
            NVIDIA.fullmatch(name) or NVIDIA_TENSOR_OPS.fullmatch(name) for name in self.metrics
        ):
            elsewhere = TENSOR_KERNEL.search(self.name) or dtype_of_kernel(self.name) in (
                "float16",
                "bfloat16",
            )
            return _flop_of_nvidia(self.metrics, counted, elsewhere=bool(elsewhere))
        return _flop_of_amd(self.metrics, counted)

    @property
    def bytes(self) -> int | None:
        """Bytes to and from the device's memory; None if they were not counted."""
        counted = quantities_of(self.metrics).get(BYTES)
        return None if counted is None else round(counted)

    @property
    def amounts(self) -> dict[str, int | float]:
        """All that was counted of the launch, by the names of `quantities.py`: whole but for parts of 1."""
        found: dict[str, int | float] = {
            name: value if value < 1 and not value.is_integer() else round(value)
            for name, value in quantities_of(self.metrics).items()
        }
        flop = self.flop
        return found if flop is None else {FLOP: flop, **found}


def _flop_of_nvidia(
    metrics: Mapping[str, float], counted: Mapping[str, float], *, elsewhere: bool
) -> int | None:
    """Return FLOP; `elsewhere` tells that the kernel's name speaks of matrix units or 16 bits."""
    operations = counted.get("matrix_flop", 0) > 0
    tensor = sum(value for name, value in metrics.items() if NVIDIA_TENSOR.fullmatch(name))
    if (tensor or elsewhere) and not operations:
        return None  # how many FLOP an instruction of matrix units is depends on its shape; 16 bits see above
    parts = {found[1] for name in metrics if (found := NVIDIA.fullmatch(name))}
    whole = {"f": "float32_flop" in counted, "d": "float64_flop" in counted}
    if not all(whole[kind] for kind in parts):
        return None  # of some type only additions were counted, say
    if not operations and not whole["f"]:
        return None
    return round(
        sum(counted.get(name, 0) for name in ("float32_flop", "float64_flop", "matrix_flop"))
    )


def _flop_of_amd(metrics: Mapping[str, float], counted: Mapping[str, float]) -> int | None:
    matrix = counted.get("matrix_flop")
    parts = {found[2] for name in metrics if (found := AMD.fullmatch(name))}
    if any(f"float{width}_flop" not in counted for width in parts):
        return None
    if "32" not in parts:
        return (
            None
            if matrix is None or not any(AMD_MATRIX.fullmatch(name) for name in metrics)
            else round(matrix)
        )
    return round(sum(counted[f"float{width}_flop"] for width in parts) + (matrix or 0))
