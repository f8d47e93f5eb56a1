"""Allocations and frees that the profiler recorded, and what the devices held before.

On the CPU torch knows of memory only what was allocated while a profiler recorded memory: a free of what
was there before leaves no event, and its totals count from the process's first recording on.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.live.torch_private import only_errors_said
from daydream.trace.memory_events import MemoryEvents


class UnknownFree:
    """Memory from before a process's first recording, to be freed in it first of all.

    Torch warns on stderr of the first such free, and of each thousandth: a line that the script's own
    output has not without us.
    """

    freed = False  # in this process

    def __init__(self) -> None:
        import torch

        first = not UnknownFree.freed
        self._tensor: Any = torch.empty(1, dtype=torch.float32, device="cpu") if first else None

    def free(self) -> None:
        """Free it, in silence."""
        UnknownFree.freed = True
        with only_errors_said():
            self._tensor = None


def held_before() -> dict[str, dict[str, Any]]:
    """Return what each GPU that this process uses holds now, by its number, for a trace's metadata.

    Sizes only, no frames and no names. What cannot be had is left out: nothing may be lost for it.
    """
    import torch

    cuda: Any = torch.cuda
    held: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(LookupError, RuntimeError, TypeError, ValueError, AttributeError):
        if not cuda.is_available() or not cuda.is_initialized():
            return {}
        for device in range(cuda.device_count()):
            if reserved := int(cuda.memory_reserved(device)):
                allocated = int(cuda.memory_allocated(device))
                held[str(device)] = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        segments = list(cuda.memory_snapshot()) if held else []
        for number, told in held.items():
            told["segments"] = _segments([one for one in segments if str(one["device"]) == number])
    return held


def _segments(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the allocator has from the driver, with its blocks as [bytes, bytes asked for or None]."""
    streams = {0: 0}  # the numbers of the others are addresses
    return [
        {
            "address": int(one["address"]),
            "total_size": int(one["total_size"]),
            "stream": streams.setdefault(int(one["stream"]), len(streams)),
            "pool": str(one["segment_type"]),
            "is_expandable": bool(one.get("is_expandable", False)),
            "private": tuple(one.get("segment_pool_id", (0, 0))) != (0, 0),
            "blocks": [
                [int(block["size"]), None if block["state"] == "inactive" else _asked(block)]
                for block in one["blocks"]
            ],
        }
        for one in sorted(found, key=lambda one: int(one["address"]))
    ]  # fmt: skip


def _asked(block: dict[str, Any]) -> int:
    return int(block.get("requested_size", block["size"]))


def until_the_last_row(memory: MemoryEvents, recording: Recording) -> MemoryEvents:
    """Return the events up to the end of what was recorded.

    Where a signal ends a recording, calls that run have no row, but what they asked for already is there.
    """
    end_ns = np.asarray(recording["start_ns"], np.int64) + recording["duration_ns"]
    return memory.take(memory["time_ns"] <= end_ns.max(initial=0))
