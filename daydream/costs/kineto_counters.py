"""Counters of Kineto's range profiler: what each launch calculated and moved.

A file of them has no kernels with times (counting makes launches run one by one, and again), so
it is read beside the trace that has: `trace.metadata["counters"] = read_counters(path)`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daydream.collect.derive.device_work import dtype_of_kernel
from daydream.costs.kernels import TENSOR_KERNEL
from daydream.errors import FileError

INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_"
# FLOP of an instruction. Those of half precision are left out: compilers move constants with them in
# kernels that calculate in 32 bits.
FLOP_OF = {"fadd": 1, "fmul": 1, "ffma": 2, "dadd": 1, "dmul": 1, "dfma": 2}
BYTES = "dram__bytes.sum"
MOST = 2.0**63


def read_counters(path: str | Path) -> list[dict[str, Any]]:
    """Return name, FLOP and bytes of each launch that a file counted, in launch order.

    FLOP are those of 32 and 64 bits outside the matrix units, None for kernels that use these or
    calculate in 16 bits. Raises `FileError` where the file is no Kineto JSON or holds no counters.
    """
    return [{key: one[key] for key in ("name", "flop", "bytes")} for one in read_ranges(path)]


def read_ranges(path: str | Path) -> list[dict[str, Any]]:
    """Return the same with all `metrics` of each launch, as the file names them."""
    try:
        whole = Path(path).read_bytes()
        document = json.loads(gzip.decompress(whole) if whole[:2] == b"\x1f\x8b" else whole)
        events = document["traceEvents"] if isinstance(document, dict) else document
    except (OSError, ValueError, KeyError, EOFError, RecursionError) as error:
        raise FileError(f"{path} cannot be read as Kineto JSON: {error}") from None
    named = (
        [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    )
    ranges = [event for event in named if event.get("cat") == "cuda_profiler_range"]
    if not ranges:
        raise FileError(
            f"{path} holds no counters: no event has the category 'cuda_profiler_range'."
        )
    try:
        found = []
        for each in sorted(ranges, key=lambda event: float(event["ts"])):
            metrics = {name: _count(value) for name, value in each.get("args", {}).items()}
            known = {name: value for name, value in metrics.items() if value is not None}
            found.append(
                {"name": str(each["name"]), **_amounts(str(each["name"]), known), "metrics": known}
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(
            f"{path} has a profiler range without name, time or counters: {error}"
        ) from None
    return found


def _count(value: Any) -> float | None:
    """Return a count, which may stand there as a text, and None for what is no number.

    Raises `ValueError` for a number that is no count.
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    if not 0 <= found < MOST:
        raise ValueError(f"{value} is no count")
    return found


def _amounts(kernel: str, counters: Mapping[str, float]) -> dict[str, int | None]:
    kinds = {
        name.removeprefix(INSTRUCTIONS).split("_")[0]: float(count)
        for name, count in counters.items()
        if name.startswith(INSTRUCTIONS)
    }
    found = [FLOP_OF[kind] * count for kind, count in kinds.items() if kind in FLOP_OF]
    elsewhere = TENSOR_KERNEL.search(kernel) or dtype_of_kernel(kernel) in ("float16", "bfloat16")
    return {
        "flop": round(sum(found)) if found and not elsewhere else None,
        "bytes": round(float(counters[BYTES])) if BYTES in counters else None,
    }
