"""What GPUs can do at best: peak arithmetic by number format, memory bandwidth, units, links.

A row of `devices.csv` is a device. Every figure is the vendor's own, dense (no sparsity), at boost clock, for
16-bit matrix work with 32-bit accumulation, which is what torch asks for (GeForce cards do
that at half the rate of 16-bit accumulation). A GPU of two dies that torch sees as
two devices (MI250, MI250X) is listed as one die. A format that is absent has no
units of its own. L2 and link figures that the source does not give are None.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct, convert

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
    capability: float = 0.0  # as CUDA numbers it, 8.9; AMD's as PyTorch on ROCm does
    l2: float | None = None  # MB
    link: float | None = None  # GB/s, all links, both directions
    # The cluster (`machines.csv`) that it stands in as a rule, by its form factor: modules on the makers'
    # own baseboards (NVIDIA's DGX-1, DGX A100, H100, H200 and B200 data sheets; H200 has the links of H100, MI325X
    # those of MI300X: AMD Instinct platform data sheets), cards on the generation of PCIe that their data sheets
    # state. NVLink bridges join two cards only, and a ring of more goes over PCIe. None for what stands in one-off
    # machines (MI250, GH200).
    machine: str | None = None
    tables: str | None = None  # its folder in the tables of `aiconfigurator-core`
    # Of the boost clock, what cards that the slot powers (75 W) hold: the geometric mean with the base clock.
    clock: float = 1.0
    # Parts of matrix peak and of bandwidth that hold under load.
    sustained_peak: float | None = None
    sustained_bandwidth: float | None = None
    # The part of its 16-bit peak that products of more than 1e11 FLOP reach: the median of public tables
    # (`aiconfigurator-core` 0.12.0, thousands of sizes each; H100 and H200 0.80, which is taken for all others).
    products: float = 0.8
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


# What benchmarks reach of the peaks, where one source measured both vendors: "AMD MI300X GPU Performance
# Analysis" (arXiv 2510.27583): 45% of matrix peak and 81% of bandwidth on MI300X, up to 93% and about
# 90% on H100 and B200. Used in comparing devices only; the same parts are taken for their generations.
CDNA3_SUSTAINED = (0.45, 0.81)
NVIDIA_SUSTAINED = (0.93, 0.90)
# For all others by vendor, so that a comparison with a device between the two says the same. NVIDIA's: "Machine
# Learning Engineering" (Stas Bekman), table of maximum achievable matmul FLOPS, has the A100 at 81 to 87% and the
# H100 at 80% in bfloat16. AMD's: the same table has the MI250X at 77%, near NVIDIA's, and the MI300X at 51 to
# 60%; for others the middle is taken.
OTHER_AMD_SUSTAINED = ((CDNA3_SUSTAINED[0] * NVIDIA_SUSTAINED[0]) ** 0.5, CDNA3_SUSTAINED[1])


@lru_cache
def known_devices() -> tuple[Device, ...]:
    """Return the rows of `devices.csv`, in its order: of two patterns that match, the first counts."""
    import csv  # what no device is asked of does not load

    with Path(__file__).with_name("devices.csv").open(encoding="utf-8", newline="") as file:
        rows = [{key: text for key, text in row.items() if text} for row in csv.DictReader(file)]
    fields = {*Device.__struct_fields__}
    made = [{**row, "tflops": {key: row[key] for key in row if key not in fields}} for row in rows]
    return convert(made, tuple[Device, ...], strict=False)


def under_load(source: Device, target: Device) -> tuple[float, float]:
    """Return by how much better the target holds its peaks of matrix units and of bandwidth than the source.

    By published figures of both, else by those of their vendors.
    """
    (matrix, memory), (new_matrix, new_memory) = map(_sustained, (source, target))
    return new_matrix / matrix, new_memory / memory


def _sustained(device: Device) -> tuple[float, float]:
    if device.sustained_peak is not None and device.sustained_bandwidth is not None:
        return device.sustained_peak, device.sustained_bandwidth
    return OTHER_AMD_SUSTAINED if device.of_amd else NVIDIA_SUSTAINED


@lru_cache(maxsize=256)
def find_device(name: str) -> Device:
    """Return the device that a driver's name or a short name (`h100`, `a100-80gb`) means.

    Raises:
        NotApplicableError: it is not in the table.
    """
    wanted = _words(name)
    named = [device for device in known_devices() if wanted and wanted <= _words(device.name)]
    if len(named) == 1:
        return named[0]
    for device in named or known_devices():
        if _words(device.name) == wanted or (
            wanted and re.search(device.pattern, name, re.IGNORECASE)
        ):
            return device
    chips = {device.name.split()[0] for device in named}
    if len(chips) == 1 and re.search(r"\d", min(chips)):  # one chip on several boards
        return max(named, key=lambda device: device.bandwidth)
    raise NotApplicableError(
        f"unknown GPU {name!r}; its peak rates are not in the table.\n"
        f"       Known are {', '.join(device.name for device in known_devices())}."
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
    trace = graph.recorded
    devices = list(trace.metadata.get("devices") or [])
    if not devices:
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
