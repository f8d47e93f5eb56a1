"""What GPUs can do at best: peak arithmetic by number format, memory bandwidth, units, links.

Every figure is the vendor's own, dense (no sparsity), at boost clock, for 16-bit
matrix work with 32-bit accumulation, which is what torch asks for (GeForce cards do
that at half the rate of 16-bit accumulation). A GPU of two dies that torch sees as
two devices (MI250, MI250X) is listed as one die. A format that is absent has no
units of its own. L2 and link figures that the source does not give are None.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct

from daydream.errors import NotApplicableError

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.trace.trace import Trace

GIB = 2**30

_busiest: WeakKeyDictionary[Trace, int | None] = (
    WeakKeyDictionary()
)  # the device that ran most kernels


class Device(Struct, frozen=True):
    """Peaks of one device as torch sees it.

    `tflops` by number format: `float32` is the vector units, `float32_matrix` matrix
    units of full precision (AMD), the 8- and 16-bit formats and `tf32` the tensor or matrix
    units. GB/s are 1e9 B/s; `link` is the sum of all GPU-to-GPU links, both directions, as
    vendors quote it; `pcie` is one direction.
    """

    name: str
    pattern: str  # matches the device name that the driver reports
    tflops: dict[str, float]
    bandwidth: float  # GB/s
    units: int  # streaming multiprocessors or compute units
    memory: int  # GB
    pcie: float  # GB/s in one direction
    source: str
    l2: float | None = None  # MB
    link: float | None = None  # GB/s, all links, both directions
    sustained: tuple[float, float] | None = (
        None  # parts of matrix peak and of bandwidth that hold under load
    )
    # What the smallest kernels take: the 5th percentile of public traces that are no side of a pair,
    # `h100_pipeline_2gpu` and `mi300x_sglang_decode_graph_replay`.
    floor_ns: float | None = None

    def peak(self, number_format: str) -> float:
        """Return peak FLOP/ns (= TFLOP/s / 1000 x 1e6) of a number format.

        Raises `NotApplicableError` if the device has no units for it.
        """
        if number_format not in self.tflops:
            known = ", ".join(sorted(self.tflops))
            raise NotApplicableError(f"a {self.name} has no {number_format} units; it has {known}")
        return self.tflops[number_format] * 1e3  # 1e12 FLOP/s = 1e3 FLOP/ns

    def matrix_format(self, dtype: str, *, tf32: bool = False) -> str:
        """Return the format in which this device multiplies matrices of an element type.

        `tf32` says that 32-bit products may be rounded to TF32, where there are such units.
        """
        if dtype == "float32" and tf32 and "tf32" in self.tflops:
            return "tf32"
        plain = "float8" if dtype.startswith("float8") else dtype
        return f"{plain}_matrix" if f"{plain}_matrix" in self.tflops else plain

    @property
    def of_amd(self) -> bool:
        """Whether AMD made it; all others of the table are NVIDIA's."""
        return self.name.startswith("MI")

    def multiplies(self, dtype: str | None) -> bool:
        """Return whether this device has units that multiply an element type; none for an unknown one."""
        return dtype is not None and self.matrix_format(dtype) in self.tflops


def _nvidia(fp64: float, fp32: float, fp16: float, **others: float) -> dict[str, float]:
    return {"float64": fp64, "float32": fp32, "float16": fp16, **others}


def _ampere(
    fp64: float, fp32: float, tf32: float, fp16: float, int8: float, **others: float
) -> dict[str, float]:
    return {
        "float64": fp64, "float32": fp32, "tf32": tf32, "float16": fp16, "bfloat16": fp16, "int8": int8,
        **others,
    }  # fmt: skip


VOLTA = "NVIDIA Tesla V100 datasheet; NVIDIA Tesla V100 GPU Architecture whitepaper"
TURING = "NVIDIA Turing GPU Architecture whitepaper"
A100 = "NVIDIA A100 Tensor Core GPU datasheet; NVIDIA A100 GPU Architecture whitepaper"
GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
ADA = "NVIDIA Ada GPU Architecture whitepaper"
H100 = "NVIDIA H100 Tensor Core GPU datasheet; NVIDIA H100 GPU Architecture whitepaper"
A100_TFLOPS = _ampere(9.7, 19.5, 156, 312, 624, float64_matrix=19.5)
H100_TFLOPS = _ampere(33.5, 66.9, 494.7, 989.4, 1978.9, float64_matrix=66.9, float8=1978.9)
MI300_TFLOPS = {
    "float64": 81.7, "float64_matrix": 163.4, "float32": 163.4, "float32_matrix": 163.4, "tf32": 653.7,
    "float16": 1307.4, "bfloat16": 1307.4, "float8": 2614.9, "int8": 2614.9,
}  # fmt: skip


def _cdna2(vector: float, matrix: float, half: float) -> dict[str, float]:
    return {
        "float64": vector, "float64_matrix": matrix, "float32": vector, "float32_matrix": matrix,
        "float16": half, "bfloat16": half, "int8": half,
    }  # fmt: skip


CDNA4 = "AMD Instinct MI350 series data sheets; AMD CDNA 4 whitepaper"


def _cdna4(ghz: float) -> dict[str, float]:
    """Return the peaks of 256 compute units, each of so many FLOP a cycle; TF32 has no units there."""
    each = {
        "float64": 128, "float64_matrix": 128, "float32": 256, "float32_matrix": 256, "float16": 4096,
        "bfloat16": 4096, "float8": 8192, "int8": 8192,
    }  # fmt: skip
    return {name: round(256 * flop * ghz / 1e3, 1) for name, flop in each.items()}


# What benchmarks reach of the peaks, where one source measured both vendors: "AMD MI300X GPU Performance
# Analysis" (arXiv 2510.27583): 45 % of matrix peak and 81 % of bandwidth on MI300X, up to 93 % and about
# 90 % on H100 and B200. Used in comparing devices only; the same parts are taken for their generations.
CDNA3_SUSTAINED = (0.45, 0.81)
NVIDIA_SUSTAINED = (0.93, 0.90)
# For all others, by vendor. NVIDIA's: "Machine Learning Engineering" (Stas Bekman), table of maximum
# achievable matmul FLOPS, has the A100 at 81 to 87 % and the H100 at 80 % in bfloat16: 8 % apart at most.
# AMD's: the same table has the MI250X at 77 %, near NVIDIA's, and the MI300X at 51 to 60 %; for others the
# middle is taken, and may be off as far as to either.
OTHER_NVIDIA_DOUBT = 0.1
OTHER_AMD_SUSTAINED = ((CDNA3_SUSTAINED[0] * NVIDIA_SUSTAINED[0]) ** 0.5, CDNA3_SUSTAINED[1])
OTHER_AMD_DOUBT = (NVIDIA_SUSTAINED[0] / CDNA3_SUSTAINED[0]) ** 0.5 - 1

# In this order: of two patterns that match, the first counts.
DEVICES = (
    Device("P100 SXM2", r"P100-SXM2", _nvidia(5.3, 10.6, 21.2), 732, 56, 16, 16,
           "NVIDIA Tesla P100 datasheet; NVIDIA Tesla P100 whitepaper", l2=4, link=160),
    Device("P100 PCIe", r"P100-PCIE", _nvidia(4.7, 9.3, 18.7), 732, 56, 16, 16,
           "NVIDIA Tesla P100 PCIe datasheet", l2=4),
    Device("Quadro GP100", r"GP100", _nvidia(5.2, 10.3, 20.7), 717, 56, 16, 16,
           "NVIDIA Quadro GP100 data sheet", l2=4),
    Device("V100 PCIe", r"V100-PCIE|V100-FHHL", _nvidia(7.0, 14.0, 112), 900, 80, 16, 16, VOLTA, l2=6),
    Device("V100S PCIe", r"V100S", _nvidia(8.2, 16.4, 130), 1134, 80, 32, 16, VOLTA, l2=6),
    Device("V100 SXM2", r"V100", _nvidia(7.8, 15.7, 125), 900, 80, 16, 16, VOLTA, l2=6, link=300),
    Device("T4", r"\bT4\b", _nvidia(0.25, 8.1, 65, int8=130), 320, 40, 16, 16,
           f"NVIDIA T4 datasheet; {TURING}", l2=4),
    Device("RTX 2080 Ti", r"RTX 2080 Ti", _nvidia(0.44, 14.2, 56.9, int8=227.7), 616, 68, 11, 16, TURING,
           l2=5.5, link=100),
    Device("A100 PCIe 40GB", r"A100-PCIE-40GB|A100-PCI-40GB", A100_TFLOPS, 1555, 108, 40, 32, A100,
           l2=40, link=600),
    Device("A100 PCIe 80GB", r"A100 80GB PCIe|A100-PCIE-80GB", A100_TFLOPS, 1935, 108, 80, 32, A100,
           l2=40, link=600),
    Device("A100 SXM 80GB", r"A100[- ]SXM4?-80GB", A100_TFLOPS, 2039, 108, 80, 32, A100, l2=40, link=600),
    Device("A100 SXM 40GB", r"A100", A100_TFLOPS, 1555, 108, 40, 32, A100, l2=40, link=600),
    Device("A10G", r"A10G", _ampere(0.55, 35, 35, 70, 140), 600, 80, 24, 32, "NVIDIA A10G datasheet", l2=6),
    Device("A10", r"\bA10\b", _ampere(0.49, 31.2, 62.5, 125, 250), 600, 72, 24, 32, "NVIDIA A10 datasheet",
           l2=6),
    Device("A40", r"\bA40\b", _ampere(0.58, 37.4, 74.8, 149.7, 299.3), 696, 84, 48, 32,
           "NVIDIA A40 datasheet", l2=6, link=112.5),
    Device("RTX A6000", r"RTX A6000|\bA6000\b", _ampere(0.6, 38.7, 77.4, 154.8, 309.7), 768, 84, 48, 32,
           f"NVIDIA RTX A6000 datasheet; {GA102}", l2=6, link=112.5),
    Device("RTX 3090 Ti", r"RTX 3090 Ti", _ampere(0.63, 40.0, 40.0, 80.0, 320), 1008, 84, 24, 32,
           f"{GA102}, rates by unit and clock", l2=6, link=112.5),
    Device("RTX 3090", r"RTX 3090", _ampere(0.56, 35.6, 35.6, 71, 284), 936, 82, 24, 32, GA102, l2=6,
           link=112.5),
    Device("RTX 3080", r"RTX 3080(?! Ti)", _ampere(0.47, 29.8, 29.8, 59.5, 238), 760, 68, 10, 32, GA102,
           l2=5),
    Device("RTX 3070 Ti", r"RTX 3070 Ti", _ampere(0.34, 21.7, 21.7, 43.5, 174), 608, 48, 8, 32,
           f"NVIDIA GeForce RTX 3070 Ti product page; {GA102}, rates by unit and clock", l2=4),
    Device("RTX 3070", r"RTX 3070", _ampere(0.32, 20.3, 20.3, 40.6, 163), 448, 46, 8, 32, GA102, l2=4),
    Device("RTX 4090", r"RTX 4090", _ampere(1.29, 82.6, 82.6, 165.2, 660.6, float8=330.3), 1008, 128, 24, 32,
           ADA, l2=72),
    Device("RTX 4080", r"RTX 4080", _ampere(0.76, 48.7, 48.7, 97.5, 389.9, float8=194.9), 716.8, 76, 16, 32,
           ADA, l2=64),
    Device("RTX 6000 Ada", r"RTX 6000 Ada", _ampere(1.42, 91.1, 182.1, 364.2, 728.5, float8=728.5), 960, 142,
           48, 32, "NVIDIA RTX 6000 Ada Generation datasheet", l2=96),
    Device("L40S", r"L40S", _ampere(1.43, 91.6, 183, 362, 733, float8=733), 864, 142, 48, 32,
           "NVIDIA L40S datasheet", l2=96),
    Device("L40", r"L40\b", _ampere(1.41, 90.5, 90.5, 181, 362, float8=362), 864, 142, 48, 32,
           "NVIDIA L40 datasheet", l2=96),
    Device("L4", r"\bL4\b", _ampere(0.47, 30.3, 60, 121, 242.5, float8=242.5), 300, 58, 24, 32,
           "NVIDIA L4 datasheet", l2=48),
    Device("H100 NVL", r"H100 NVL", _ampere(30, 60, 417.5, 835, 1670.5, float64_matrix=60, float8=1670.5),
           3938, 132, 94, 64, "NVIDIA H100 NVL datasheet", l2=50, link=600),
    Device("H100 PCIe", r"H100 PCIe", _ampere(25.6, 51.2, 378, 756, 1513, float64_matrix=51.2, float8=1513),
           2039, 114, 80, 64, H100, l2=50, link=600),
    Device("H100 SXM", r"H100", H100_TFLOPS, 3352, 132, 80, 64, H100, l2=50, link=900,
           sustained=NVIDIA_SUSTAINED, floor_ns=1_400),
    Device("H200", r"\bH200", H100_TFLOPS, 4800, 132, 141, 64, "NVIDIA H200 Tensor Core GPU datasheet",
           l2=50, link=900, sustained=NVIDIA_SUSTAINED),
    Device("GH200 144GB", r"GH200 144G", H100_TFLOPS, 4900, 132, 144, 450,
           "NVIDIA GH200 Grace Hopper Superchip datasheet; the CPU is on NVLink-C2C", l2=50, link=900,
           sustained=NVIDIA_SUSTAINED),
    Device("GH200 96GB", r"GH200", H100_TFLOPS, 4000, 132, 96, 450,
           "NVIDIA GH200 Grace Hopper Superchip datasheet; the CPU is on NVLink-C2C", l2=50, link=900,
           sustained=NVIDIA_SUSTAINED),
    Device("B200", r"\bB200", _ampere(40, 80, 1100, 2250, 4500, float8=4500), 8000, 148, 180, 64,
           "NVIDIA Blackwell Architecture technical brief; NVIDIA HGX B200 specifications", link=1800,
           sustained=NVIDIA_SUSTAINED),
    Device("MI100", r"MI100", {"float64": 11.5, "float32": 23.1, "float32_matrix": 46.1, "float16": 184.6,
                               "bfloat16": 92.3, "int8": 184.6}, 1228.8, 120, 32, 32,
           "AMD Instinct MI100 data sheet; AMD CDNA whitepaper", l2=8, link=276),
    Device("MI210", r"MI210", _cdna2(22.6, 45.3, 181), 1638.4, 104, 64, 32,
           "AMD Instinct MI210 data sheet", l2=8, link=300),
    Device("MI250X (one die)", r"MI250X", _cdna2(23.95, 47.85, 191.5), 1638.4, 110, 64, 32,
           "AMD Instinct MI250X data sheet, halved", l2=8),
    Device("MI250 (one die)", r"MI250", _cdna2(22.65, 45.25, 181), 1638.4, 104, 64, 32,
           "AMD Instinct MI250 data sheet, halved", l2=8),
    Device("MI300X", r"MI300X", MI300_TFLOPS, 5300, 304, 192, 64,
           "AMD Instinct MI300X data sheet; AMD CDNA 3 whitepaper", l2=32, link=896,
           sustained=CDNA3_SUSTAINED, floor_ns=4_400),
    Device("MI325X", r"MI325X", MI300_TFLOPS, 6000, 304, 256, 64, "AMD Instinct MI325X data sheet",
           l2=32, link=896, sustained=CDNA3_SUSTAINED),
    Device("MI350X", r"MI350X", _cdna4(2.2), 8000, 256, 288, 64, CDNA4, l2=32, link=1075),
    Device("MI355X", r"MI355X", _cdna4(2.4), 8000, 256, 288, 64, CDNA4, l2=32, link=1075),
)  # fmt: skip


class UnderLoad(NamedTuple):
    """By how much better one device than another holds its peaks of matrix units and of bandwidth.

    `doubt` is the part by which `of_peak` may be off.
    """

    of_peak: float = 1.0
    of_bandwidth: float = 1.0
    doubt: float = 0.0


def under_load(source: Device, target: Device) -> UnderLoad:
    """Return how the target holds its peaks under load, compared to the source.

    By published figures of both, else by those of their vendors, so that a comparison with a device between
    the two says the same. Devices of one vendor without figures are taken to be alike.
    """
    if source == target:
        return UnderLoad()
    (matrix, memory, doubt), (new_matrix, new_memory, new_doubt) = (
        _sustained(source),
        _sustained(target),
    )
    if source.sustained is None and target.sustained is None and source.of_amd == target.of_amd:
        doubt = new_doubt = 0.0
    if not source.of_amd and not target.of_amd:
        doubt = new_doubt = 0.0  # peaks compare them well
    return UnderLoad(new_matrix / matrix, new_memory / memory, float(np.hypot(doubt, new_doubt)))


def _sustained(device: Device) -> tuple[float, float, float]:
    if device.sustained is not None:
        return *device.sustained, 0.0
    return (
        (*OTHER_AMD_SUSTAINED, OTHER_AMD_DOUBT)
        if device.of_amd
        else (*NVIDIA_SUSTAINED, OTHER_NVIDIA_DOUBT)
    )


@lru_cache(maxsize=256)
def find_device(name: str) -> Device:
    """Return the device that a driver's name or a short name (`h100`, `a100-80gb`) means.

    Raises:
        NotApplicableError: it is not in the table.
    """
    wanted = _words(name)
    named = [device for device in DEVICES if wanted and wanted <= _words(device.name)]
    if len(named) == 1:
        return named[0]
    for device in named or DEVICES:
        if _words(device.name) == wanted or (
            wanted and re.search(device.pattern, name, re.IGNORECASE)
        ):
            return device
    chips = {device.name.split()[0] for device in named}
    if len(chips) == 1 and re.search(r"\d", min(chips)):  # one chip on several boards
        return max(named, key=lambda device: device.bandwidth)
    raise NotApplicableError(
        f"unknown GPU {name!r}; its peak rates are not in the table.\n"
        f"       Known are {', '.join(device.name for device in DEVICES)}."
    )


def device_of(graph: Graph) -> Device:
    """Return the device that the graph's kernels ran on.

    Raises:
        NotApplicableError: the trace names none, or one that is not in the table.
    """
    properties = device_properties(graph)
    name = properties.get("name") or ""
    if not name:
        raise NotApplicableError(
            "this trace does not name its GPU, so its peak rates are unknown.\n"
            "       Name it (such as `a100`), or use constant factors."
        )
    memory = properties.get("memory_bytes") or 0
    found = find_device(name)
    if found.name == "A100 SXM 40GB" and memory > 50 * GIB:
        return find_device("A100 SXM 80GB")
    return found


def device_properties(graph: Graph) -> dict[str, Any]:
    """Return what the trace recorded about the device that ran most kernels; empty if nothing."""
    trace = graph.trace
    devices = list(trace.metadata.get("devices") or []) if trace is not None else []
    if trace is None or not devices:
        return {}
    if trace not in _busiest:
        used = trace["device"][trace.is_kind("kernel")]
        numbers, counts = np.unique(used[used >= 0], return_counts=True)
        _busiest[trace] = int(numbers[counts.argmax()]) if len(numbers) else None
    number = _busiest[trace]
    for properties in devices:
        if number is not None and properties.get("id") == number and properties.get("name"):
            return dict(properties)
    return dict(devices[0])


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower())) - {
        "nvidia",
        "amd",
        "instinct",
        "geforce",
        "tesla",
    }
