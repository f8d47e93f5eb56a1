"""Kernels of an operator on an emulated GPU, and what they take; what its CPU takes to call it.

A roofline of the operator's FLOP and bytes at the GPU's peaks. Which part of them kernels of an operator reach,
and how many kernels it is, is in `emulate.tsv`: the median over recordings of ten models on an H100 and an H200
(`validation/h100`, `validation/h200`). Attention in 16 bits, too short in these to tell, reaches forward what
public tables have at lengths of 4,096 to 8,192 (aiconfigurator 0.12.0: 0.5 to 0.7 on A100, H100 and B200), backward
what FlashAttention-3 has (Shah et al., 2024).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from daydream.costs.devices import Device
from daydream.costs.operators import bare_name, operator
from daydream.costs.workload.operator import shapes_work
from daydream.trace.schema import ITEM_BYTES
from daydream.world.emulate import Call

FLOOR_NS = 1_400  # of a kernel without work, where the device table has no figure
SPLIT = 256  # of what a product sums, a part for a block of its own
TILE = 128  # rows and columns of a result that a block of a product has
WRITES_ONLY = ("fill_", "zero_", "zeros", "ones_like", "normal_", "uniform_", "random_", "copy_")
BY_FORMULA = ("embedding", "gather", "loss")  # families that read a part of a tensor


class Kernel(NamedTuple):
    """A kernel (or a copy) of an operator: its kind in a trace, its name, ns."""

    kind: str
    name: str
    duration_ns: int


class Learned(NamedTuple):
    """A row of `emulate.tsv`: kernels a call, parts of the peaks that they reach, the kernels' name."""

    kernels: int = 1
    of_peak: float = 0.7
    of_bandwidth: float = 0.8
    name: str = "vectorized_elementwise_kernel"


@cache
def learned() -> dict[str, Learned]:
    """Return the rows of `emulate.tsv` by operator (`mm`), its family (`matmul`) and `` for all others."""
    text = Path(__file__).with_name("emulate.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    return {
        row[0]: Learned(int(row[1]), float(row[2]), float(row[3]), row[4] or Learned().name)
        for row in rows
    }


def kernels_of(call: Call, device: Device) -> list[Kernel]:
    """Return what a call runs on the device; nothing for a view."""
    if call.copies == "sync":
        return []
    if call.copies:
        return [Kernel("memcpy", f"Memcpy {call.copies}", _copy_ns(call, device))]
    if not call.nbytes:
        return []
    name = bare_name(call.name)
    row = _row(call)
    total = roofline_ns(call, device)
    number = call.number_format
    kernel = f"{row.name}_{number}" if operator(name).is_matrix else f"{row.name}<{name}>"
    return [Kernel("kernel", kernel, max(round(total / row.kernels), 1))] * row.kernels


def number_format(call: Call) -> str:
    """Return in which format a call computes; `depthwise` for a convolution whose channels do not mix."""
    weight = call.arguments[2 if "backward" in call.name else 1 :][:1]
    alone = bool(weight) and len(weight[0]) > 3 and weight[0][1] == 1 and "conv" in call.name
    return "depthwise" if alone else call.number_format


def _row(call: Call) -> Learned:
    name, number = bare_name(call.name), number_format(call)
    rows, family = learned(), operator(name).family
    keys = [f"{name} {number}", name, f"{family} {number}", family, ""]
    return next((rows[key] for key in keys if key in rows), Learned())


def _copy_ns(call: Call, device: Device) -> int:
    return round(FLOOR_NS + call.nbytes / 2 / device.pcie)


def roofline_ns(call: Call, device: Device, row: Learned | None = None) -> float:
    """Return what the kernels of a call take by their FLOP and bytes."""
    row = row or _row(call)
    flop, nbytes = work(call)
    number = number_format(call)
    rate = device.tflops.get(number) or device.tflops["float32"]
    arithmetic = flop / (rate * 1e3) / row.of_peak / filled(call, device)
    traffic = nbytes / device.bandwidth / row.of_bandwidth
    floor = device.floor_ns or FLOOR_NS
    return row.kernels * floor + max(arithmetic, traffic)


def work(call: Call) -> tuple[int, int]:
    """Return FLOP and bytes of a call."""
    name = bare_name(call.name)
    family = operator(name).family
    nbytes = call.nbytes
    size = ITEM_BYTES.get(next(iter(call.dtypes), ""), 4)
    amount = shapes_work(call.name, call.arguments, next(iter(call.results), None))
    if amount is not None and family in BY_FORMULA:
        nbytes = amount.nbytes(size) or nbytes
    if name in WRITES_ONLY or call.name.rpartition("::")[2] in WRITES_ONLY:
        nbytes //= 2
    flop = (amount.flop or 0) if amount is not None else 0
    if call.causal and amount is not None and amount.sizes:
        # Of its blocks of queries and keys those above the diagonal are left out.
        blocks = -(-amount.sizes[1] // TILE)
        flop = flop * (blocks + 1) // (2 * blocks)
    return flop, nbytes


def filled(call: Call, device: Device) -> float:
    """Return which part of the device's units a product keeps busy, by waves of tiles; 1 for others."""
    if operator(bare_name(call.name)).family != "matmul" or not call.results:
        return 1.0
    *batch, rows, columns = (1, 1, *call.results[0])
    tiles = -(-rows // TILE) * -(-columns // TILE)
    for size in batch:
        tiles *= size
    inner = call.arguments[-2 if bare_name(call.name) != "addmm" else 1]
    depth = inner[-1] if isinstance(inner, tuple) and inner else 1
    tiles *= max(min(depth // SPLIT, 32), 1)  # libraries split what is summed, too
    waves = -(-tiles // device.units)
    return min(tiles / (waves * device.units), 1.0)
