"""The memory that cuBLAS, or hipBLAS, keeps for itself: no tensor holds it."""

from __future__ import annotations

from typing import Any

import numpy as np

from daydream.costs.operators import operator
from daydream.memory.enclosing import rows_that
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
