"""The kinds of rows that are read, and Kineto's categories of each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

CATEGORIES = {
    "cpu_op": "operator", "Operator": "operator",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime", "cuda_driver": "runtime", "Runtime": "runtime", "hip_runtime": "runtime",
    "hip_driver": "runtime", "xpu_runtime": "runtime", "xpu_driver": "runtime",
    "privateuse1_runtime": "runtime", "privateuse1_driver": "runtime",
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset",
    "cuda_sync": "sync",
    "python_function": "module",
}  # fmt: skip
# Without a note: spans of the profiler itself, and annotations of the CPU repeated on a stream.
SILENT = (None, "Trace", "gpu_user_annotation")
KINDS = ("operator", "annotation", "runtime", "module", "kernel", "memcpy", "memset", "sync")
HOST = ("operator", "annotation", "runtime", "module")
CALLED = ("operator", "annotation", "runtime")
NAMED = ("operator", "annotation")
DEVICE = ("kernel", "memcpy", "memset", "sync")


def is_kind(columns: dict[str, np.ndarray], kinds: Iterable[str]) -> np.ndarray:
    """Return which rows are of some kinds: bool, shape (rows,)."""
    return np.isin(columns["kind"], [KINDS.index(kind) for kind in kinds])
