"""Parameters read off the shapes of operators, and the workspace of cuBLAS, where no metadata lists them.

torch's operators have their weights at known places among their arguments (`native_functions.yaml`). Each
call of one forward pass is taken to have its own, unless its layer tells that it is the same one. No tensor holds
the memory that cuBLAS, or hipBLAS, keeps for itself.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from daydream.collect.derive.device_work import ITEM_BYTES
from daydream.costs.operators import Operator, operator
from daydream.graph.calls import enclosing
from daydream.memory.enclosing import arguments_of, rows_that
from daydream.text import bytes_text
from daydream.trace.trace import Trace

MIB = 2**20
# getChosenWorkspaceSize of PyTorch 2.6, aten/src/ATen/cuda/CublasHandlePool.cpp: bytes by vendor and compute
# capability. CUBLAS_WORKSPACE_CONFIG, which changes them, is in no trace.
BYTES = {("cuda", (9, 0)): 32 * MIB, ("rocm", (9, 4)): 128 * MIB, ("rocm", (9, 5)): 128 * MIB}
OTHERS = {"cuda": (2 * 4096 + 8 * 16) * 1024, "rocm": 32 * MIB}


def workspaces(trace: Trace, rank: int, device: int) -> list[int]:
    """Return the bytes of each workspace that matrix products of a rank need: one a thread that runs them.

    A workspace belongs to a handle, and each thread has its own: that of the backward pass, too.
    """
    mine = rows_that(trace, lambda name: operator(name).family == "matmul") & trace.is_kind(
        "operator"
    )
    mine &= np.maximum(trace["rank"], 0) == rank
    threads = len(np.unique(trace["tid"][mine]))
    described = description_of(trace, rank, device)
    vendor = str(trace.metadata.get("vendor"))
    capability = (described.get("compute_major", 0), described.get("compute_minor", 0))
    nbytes = BYTES.get((vendor, capability), OTHERS.get(vendor, 0))
    return [nbytes] * threads if nbytes and described else []


def description_of(trace: Trace, rank: int, device: int) -> dict[str, Any]:
    """Return what the metadata says of a rank's device; empty if nothing."""
    devices = (trace.metadata.get("devices_by_rank") or {}).get(str(rank)) or trace.metadata.get(
        "devices"
    )
    for place, each in enumerate(devices or []):
        if (place if each.get("id") is None else each["id"]) == device:
            return dict(each)
    return {}


def weights_of(trace: Trace, rank: int) -> list[dict[str, Any]]:
    """Return what the forward operators of one step show: `shape`, `dtype`, `layer` and `name` of each.

    In the order of use. Of a call within another of the same kind (autocast repeats it) the outer one counts.
    """
    names = trace.text("name")
    kinds = rows_that(trace, lambda name: _owns_parameters(operator(name)))
    rows = np.flatnonzero(
        kinds & trace.is_kind("operator") & (np.maximum(trace["rank"], 0) == rank)
    )
    rows = rows[trace["shapes"][rows] >= 0]
    if not len(rows):
        return []
    forward = trace["phase"][rows] == trace.code("phase", "forward")
    if forward.any():
        rows = rows[forward]
    rows = rows[
        trace["step"][rows] == trace["step"][rows[-1]]
    ]  # the last step: the first may be cut
    own = np.zeros(len(trace), bool)
    own[rows] = True
    rows = rows[enclosing(trace["parent"], own, trace["parent"][rows], inner=True) < 0]
    found, seen = [], set()
    for row in rows.tolist():
        name, layer = names[trace["name"][row]], _text(trace, "layer", row)
        arguments = arguments_of(trace, row)
        op = operator(name)
        for place in op.parameters:
            shape = arguments[place] if place < len(arguments) else ()
            if (
                not isinstance(shape, tuple)
                or not shape
                or (layer is not None and (layer, name, place) in seen)
            ):
                continue
            seen.add((layer, name, place))
            found.append({
                "name": f"{layer or name} {place}", "layer": layer, "shape": list(shape), "op": name,
                "dtype": _text(trace, "dtype", row) or "", "requires_grad": op.roles[place] != "statistic",
            })  # fmt: skip
    return found


def _owns_parameters(op: Operator) -> bool:
    """Return whether modules call it with their parameters; the work is within, but in `embedding`."""
    calls_others = "composite" in op.traits and "loss" not in op.traits
    return bool(op.parameters) and (calls_others or op.name == "embedding")


def not_counted(trace: Trace, rank: int, device: int) -> list[str]:
    """Return a note on a GPU of which neither totals nor metadata say what it held before; none on a CPU."""
    if device < 0:
        return []
    shown = sum(
        prod(each["shape"]) * ITEM_BYTES.get(each["dtype"], 0) for each in weights_of(trace, rank)
    )
    least = f" Shapes of operators show {bytes_text(shown)} of parameters." if shown else ""
    said = (
        f"What GPU {device} held before the recording is not known and not counted: the trace has neither "
        f"totals nor a list of parameters.{least} Kept gradients, optimizer state and buckets come on top."
    )
    return [said]


def without_head(weights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return them without the last layer's weight if an embedding has its shape: language models share it."""
    embeddings = [each["shape"] for each in weights if each["op"].startswith("aten::embedding")]
    linear = [each for each in weights if each["op"] == "aten::linear" and len(each["shape"]) > 1]
    shared = linear[-1] if linear and linear[-1]["shape"] in embeddings else None
    return [each for each in weights if each is not shared]


def _text(trace: Trace, column: str, row: int) -> str | None:
    code = int(trace[column][row])
    return trace.text(column)[code] if code >= 0 else None
