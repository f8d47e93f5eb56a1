"""What counters say of a kernel: FLOP and bytes, from the names that profilers give their counters.

NVIDIA's names are those of Nsight Compute, AMD's those of rocprofiler. FLOP are None where matrix units were
at work and are not counted in operations: a part is no answer. On NVIDIA they are None for kernels that
calculate in 16 bits, too, and 16-bit instructions do not count in others: compilers move constants with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from daydream.collect.derive.device_names import dtype_of_kernel
from daydream.costs.kernels import TENSOR_KERNEL

FLOP, BYTES = "flop", "bytes"  # of files that tell these themselves
NVIDIA = re.compile(r"^sm(?:sp)?__sass_thread_inst_executed_op_([df])(add|mul|fma)_pred_on\.sum$")
NVIDIA_TENSOR = re.compile(r"^sm(?:sp)?__inst_executed_pipe_tensor\w*\.sum$")
NVIDIA_TENSOR_OPS = re.compile(r"^sm__ops_path_tensor_\w+\.sum$")
NVIDIA_BYTES = "dram__bytes.sum"
NVIDIA_READ, NVIDIA_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
AMD = re.compile(r"^SQ_INSTS_VALU_(ADD|MUL|TRANS|FMA)_F(16|32|64)$")
AMD_MATRIX = re.compile(r"^SQ_INSTS_VALU_MFMA_MOPS_\w+$")
WAVE, MATRIX_FLOP = 64, 512  # lanes of an AMD wave, and FLOP of a unit of MFMA_MOPS (AMD's counter reference)
AMD_BYTES = ({"FETCH_SIZE", "FetchSize"}, {"WRITE_SIZE", "WriteSize"})


@dataclass
class CountedKernel:
    """A launch that was counted.

    Attributes:
        name: of the kernel, as the file spells it.
        blocks: of its grid; None if the file does not say.
        metrics: values by the names of the counters, in base units: bytes, instructions, operations.
        launches: how many launches the values are the mean of.
    """

    name: str
    blocks: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    launches: int = 1

    @property
    def flop(self) -> int | None:
        """FLOP of the launch; None if not all were counted."""
        if FLOP in self.metrics:
            return round(self.metrics[FLOP])
        if not _is_nvidia(self.metrics):
            return _flop_of_amd(self.metrics)
        elsewhere = TENSOR_KERNEL.search(self.name) or dtype_of_kernel(self.name) in ("float16", "bfloat16")
        return _flop_of_nvidia(self.metrics, elsewhere=bool(elsewhere))

    @property
    def bytes(self) -> int | None:
        """Bytes to and from the device's memory; None if they were not counted."""
        return _bytes(self.metrics)


def _is_nvidia(metrics: Mapping[str, float]) -> bool:
    return any(NVIDIA.match(name) or NVIDIA_TENSOR_OPS.match(name) for name in metrics)


def _flop_of_nvidia(metrics: Mapping[str, float], *, elsewhere: bool) -> int | None:
    """Return FLOP; `elsewhere` tells that the kernel's name speaks of matrix units or 16 bits."""
    vector = {found.groups(): value for name, value in metrics.items() if (found := NVIDIA.match(name))}
    operations = [value for name, value in metrics.items() if NVIDIA_TENSOR_OPS.match(name)]
    tensor = sum(value for name, value in metrics.items() if NVIDIA_TENSOR.match(name))
    if (tensor or elsewhere) and not operations:
        return None  # instructions of matrix units: how many FLOP each is depends on its shape
    kinds = {kind for kind, _ in vector}
    whole = [kind for kind in "df" if {(kind, each) for each in ("add", "mul", "fma")} <= vector.keys()]
    if vector and sorted(kinds) != sorted(whole):
        return None  # of some type only additions were counted, say
    if not operations and "f" not in whole:
        return None
    return round(sum(operations) + sum((2 if each == "fma" else 1) * n for (_, each), n in vector.items()))


def _flop_of_amd(metrics: Mapping[str, float]) -> int | None:
    vector = {found.groups(): value for name, value in metrics.items() if (found := AMD.match(name))}
    matrix = [value for name, value in metrics.items() if AMD_MATRIX.match(name)]
    if not any(width == "32" for _, width in vector):
        return round(MATRIX_FLOP * sum(matrix)) if matrix else None
    lanes = sum((2 if kind == "FMA" else 1) * value for (kind, _), value in vector.items())
    return round(WAVE * lanes + MATRIX_FLOP * sum(matrix))


def _bytes(metrics: Mapping[str, float]) -> int | None:
    for name in (BYTES, NVIDIA_BYTES):
        if name in metrics:
            return round(metrics[name])
    if NVIDIA_READ in metrics and NVIDIA_WRITTEN in metrics:
        return round(metrics[NVIDIA_READ] + metrics[NVIDIA_WRITTEN])
    both = [next((metrics[name] for name in names if name in metrics), None) for names in AMD_BYTES]
    return None if None in both else round(sum(value for value in both if value is not None))
