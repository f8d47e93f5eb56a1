"""Kernels of an operator on an emulated GPU, and what they take; what its CPU takes to call it.

Products, attention in 16 bits and experts take what others measured, where the extra `gpus` is installed. All
else is a roofline of the operator's FLOP and bytes at the GPU's peaks. Which part of them kernels of an operator
reach, and how many kernels it is, is in `emulate.tsv`, which `validation/emulation.py` learns from recordings.
"""

from __future__ import annotations

from functools import cache
from math import ceil, hypot, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import convert

from daydream.costs.device.measured_tables import measured_ns
from daydream.costs.device.roofline import OPERATIONS
from daydream.costs.devices import Device, find_device
from daydream.costs.operators import bare_name, operator
from daydream.costs.workload.formulas import Amount
from daydream.costs.workload.operator import shapes_work
from daydream.trace.schema import ITEM_BYTES
from daydream.world.emulate import Call
from daydream.world.emulate_torch import HOPPER

FLOOR_NS = 1_400  # of a kernel without work, where the device table has no figure
SPLIT = 256  # of what a product sums, a part for a block of its own
TILE = 128  # rows and columns of a result that a block of a product has
# Of attention in 16 bits, beside its products: the exponentials of scores that a unit computes a ns, and what each
# block of queries costs whatever its length: from the middle of public tables of A100, H100, H200, B200 and L40S by
# length (aiconfigurator 0.12.0, heads of 64 and 128). Exponentials run beside products from Hopper on.
EXPONENTIALS = 16 * 1.7
A_BLOCK_NS = 4_000
RNN_STATE = 4  # the argument of cuDNN's recurrent operators with states: layers, batch, width
BY_FORMULA = ("embedding", "gather", "loss")  # families that read a part of a tensor


class Kernel(NamedTuple):
    """A kernel (or a copy) of an operator: its kind in a trace, its name, ns, and whether others measured it."""

    kind: str
    name: str
    duration_ns: int
    measured: bool = False


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
    return {name: convert(row, Learned, strict=False) for name, *row, _ in rows}


def kernels_of(call: Call, device: Device) -> list[Kernel]:
    """Return what a call runs on the device; nothing for a view."""
    if call.copies == "sync" or not (call.copies or call.nbytes):
        return []
    if call.copies:
        took = round(FLOOR_NS + call.nbytes / 2 / device.pcie)
        return [Kernel("memcpy", f"Memcpy {call.copies}", took)]
    name = bare_name(call.name)
    row = _row(call)
    measured = measured_call_ns(call, device)
    total = roofline_ns(call, device, row) if measured is None else measured
    kernel = f"{row.name}<{name}>"
    if operator(name).is_matrix:
        kernel = f"{row.name}_{call.number_format}"
    one = max(round(total / row.kernels), 1)
    return [Kernel("kernel", kernel, one, measured is not None)] * row.kernels


def number_format(call: Call) -> str:
    """Return in which format a call computes; `depthwise` for a convolution whose channels do not mix."""
    if "conv" in call.name:
        weight = call.arguments[2 if "backward" in call.name else 1]
        if len(weight) > 3 and weight[1] == 1:
            return "depthwise"
    return call.number_format


def _row(call: Call) -> Learned:
    name = bare_name(call.name)
    number = number_format(call)
    family = operator(name).family
    rows = learned()
    keys = [f"{name} {number}", name, f"{family} {number}", family]
    row = next((rows[key] for key in keys if key in rows), rows[""])
    if recurrence := _recurrence(call):
        # Each layer and time step is a product, what clears or adds up its parts, and its cell; each layer has
        # some more, backward twice as many. As in a recording of an LSTM.
        layers, steps = recurrence
        return row._replace(kernels=layers * (3 * steps + 8 * operator(name).flop))
    return row


def _recurrence(call: Call) -> tuple[int, int] | None:
    """Return the layers (of each direction) and time steps of cuDNN's recurrent operator; None for others."""
    if operator(bare_name(call.name)).family != "recurrent":
        return None
    states: Any = call.arguments[RNN_STATE]
    return states[0], prod(call.results[0][:-1]) // states[1]


def roofline_ns(call: Call, device: Device, row: Learned | None = None) -> float:
    """Return what the kernels of a call take by their FLOP and bytes."""
    row = row or _row(call)
    arithmetic, traffic = ideal_ns(call, device)
    arithmetic /= row.of_peak
    amount = _amount(call)
    if amount.family == "attention" and amount.flop and call.number_format.endswith("float16"):
        queries: Any = call.arguments["backward" in call.name]
        batch, heads, length, width = queries
        products = 10 if "backward" in call.name else 4
        scores = work(call)[0] / (products * width)
        exponentials = scores / (EXPONENTIALS * device.units)
        beside = device.capability >= HOPPER
        arithmetic = hypot(arithmetic, exponentials) if beside else arithmetic + exponentials
        arithmetic += batch * heads * ceil(length / TILE) * A_BLOCK_NS / device.units
    floor = device.floor_ns or FLOOR_NS
    return row.kernels * floor + max(arithmetic, traffic / row.of_bandwidth)


def ideal_ns(call: Call, device: Device) -> tuple[float, float]:
    """Return what FLOP and bytes of a call take at the device's peaks, with the units that it fills."""
    flop, nbytes = work(call)
    rate = device.tflops.get(number_format(call)) or device.tflops["float32"]
    if operator(bare_name(call.name)).is_matrix and call.number_format != "float32":
        rate *= device.products / find_device("h100").products
    return flop / (rate * 1e3) / filled(call, device), nbytes / device.bandwidth


def measured_call_ns(call: Call, device: Device) -> float | None:
    """Return what a call takes by measured tables; None where nobody measured it.

    Attention was measured causal and forward: without the mask, or backward, it takes as much longer as its
    FLOP and its part of the peak say. Of the three products of experts one takes a third.
    """
    amount = _amount(call)
    operation = OPERATIONS.get((amount.family, len(amount.sizes)))
    if operation is None or call.number_format in ("float32", "tf32"):
        return None
    known = _known_ns(device.name, operation, call.number_format, amount.sizes)
    if known is None or operation == "gemm":
        return known
    if operation == "moe":
        return known / 3
    batch, length, heads, _, width = amount.sizes
    blocks = ceil(length / TILE)
    causal = 2 * batch * heads * length**2 * width * (blocks + 1) / blocks
    return known * work(call)[0] / causal * learned()["attention"].of_peak / _row(call).of_peak


@cache
def _known_ns(gpu: str, operation: str, number: str, sizes: tuple[int, ...]) -> float | None:
    found = measured_ns(find_device(gpu), operation, number, np.array([sizes]))
    return None if found is None else float(found[0][0])


def _amount(call: Call) -> Amount:
    """Return the work of a call as its operator's formula has it; nothing without one."""
    found = shapes_work(call.name, call.arguments, next(iter(call.results), None))
    return found or Amount(operator(bare_name(call.name)).family, 0, None)


def work(call: Call) -> tuple[int, int]:
    """Return FLOP and bytes of a call."""
    amount = _amount(call)
    flop = amount.flop or 0
    nbytes = call.nbytes
    size = ITEM_BYTES.get(next(iter(call.dtypes), ""), 4)
    if operator(bare_name(call.name)).family in BY_FORMULA:
        nbytes = amount.nbytes(size) or nbytes
    if recurrence := _recurrence(call):  # each time step reads the weights of states again
        held: Any = call.arguments[1]
        weights = sum(prod(one) for one in held if len(one) > 1) // 2
        nbytes += (recurrence[1] - 1) * weights * size
    if call.causal and amount.sizes:
        # Of its blocks of queries and keys those above the diagonal are left out.
        blocks = -(-amount.sizes[1] // TILE)
        flop = flop * (blocks + 1) // (2 * blocks)
    return flop, nbytes


def filled(call: Call, device: Device) -> float:
    """Return which part of the device's units a product keeps busy, by waves of tiles; 1 for others."""
    if operator(bare_name(call.name)).family != "matmul" or not call.results:
        return 1.0
    *batch, rows, columns = (1, 1, *call.results[0])
    summed = (_amount(call).flop or 0) // max(2 * prod(call.results[0]), 1)
    tiles = prod(batch) * ceil(rows / TILE) * ceil(columns / TILE)
    tiles *= max(min(summed // SPLIT, 32), 1)  # libraries split what is summed, too
    waves = -(-tiles // device.units)
    return min(tiles / (waves * device.units), 1.0)
