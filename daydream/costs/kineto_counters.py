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

from daydream.collect.derive.device_names import dtype_of_kernel
from daydream.costs.kernels import TENSOR_KERNEL
from daydream.errors import FileError

INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_"
# FLOP of an instruction. Those of half precision are left out: compilers move constants with them in
# kernels that calculate in 32 bits.
FLOP_OF = {"fadd": 1, "fmul": 1, "ffma": 2, "dadd": 1, "dmul": 1, "dfma": 2}
BYTES = "dram__bytes.sum"


def read_counters(path: str | Path) -> list[dict[str, Any]]:
    """Return name, FLOP and bytes of each launch that a file counted, in launch order.

    FLOP are those of 32 and 64 bits outside the matrix units, None for kernels that use these or
    calculate in 16 bits. Raises `FileError` where the file is no Kineto JSON or holds no counters.
    """
    try:
        whole = Path(path).read_bytes()
        document = json.loads(gzip.decompress(whole) if whole[:2] == b"\x1f\x8b" else whole)
        events = document["traceEvents"] if isinstance(document, dict) else document
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise FileError(f"{path} cannot be read as Kineto JSON: {error}") from None
    ranges = [event for event in events if event.get("cat") == "cuda_profiler_range"]
    if not ranges:
        raise FileError(f"{path} holds no counters: no event has the category 'cuda_profiler_range'.")
    return [
        {"name": each["name"], **_amounts(each["name"], each.get("args", {}))}
        for each in sorted(ranges, key=lambda event: event["ts"])
    ]


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
