"""Allocations and frees of GPU memory in an export: what the program took from the driver.

`nsys profile --cuda-memory-usage=true` records them. With PyTorch's allocator they are its segments, not
tensors. Kinds of memory and operations are numbered as in the export's own tables of both.
"""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.nsys.export import Export
from daydream.collect.importers.nsys.processes import Processes, process_of
from daydream.text import counted
from daydream.trace.memory_events import MemoryEvents, events_of
from daydream.trace.schema import NO_ID, UNKNOWN
from daydream.trace.valid import LARGEST_AMOUNT

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
FIELDS = (
    "start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "correlationId",
)  # fmt: skip
DEVICE, DEVICE_STATIC = 2, 5  # kinds of memory that lie on a GPU (ENUM_CUDA_MEM_KIND)
ALLOCATION, FREE = 0, 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER
LATEST = 2**62


def read_memory(
    export: Export, recording: Recording, processes: Processes, first_ns: int
) -> MemoryEvents | None:
    """Return the table's events in order of time, None if there are none; times count from `first_ns`.

    Memory of the host (pinned, managed) is left out, as are rows without a time, a device or a size; notes
    of the recording count them.
    """
    blocks = list(export.blocks(TABLE, FIELDS)) if TABLE in export else []
    if not blocks:
        return None
    rows = {name: np.concatenate([block[name] for block in blocks]) for name in FIELDS}
    on_gpu = np.isin(rows["memKind"], (DEVICE, DEVICE_STATIC))
    rank = processes.rank(process_of(rows["globalPid"]))
    if elsewhere := int((~on_gpu | (rank < 0)).sum()):
        recording.note(
            f"{counted(elsewhere, 'row', 'rows')} of memory of the host or of processes without device work "
            f"{'was' if elsewhere == 1 else 'were'} left out."
        )
    kept = np.flatnonzero(on_gpu & (rank >= 0))
    rows = {name: column[kept] for name, column in rows.items()}
    rank = rank[kept]
    operation = rows["memoryOperationType"]
    nbytes = rows["bytes"]
    bad = (np.abs(rows["start"] // 2) > LATEST // 2) | ~np.isin(operation, (ALLOCATION, FREE))
    bad |= (nbytes < 0) | (nbytes > LARGEST_AMOUNT) | (rows["deviceId"] < 0)
    pid, tid = _threads(
        recording, processes.correlation(rows["correlationId"], process_of(rows["globalPid"]))
    )
    events = events_of(
        {
            "rank": rank,
            "time_ns": np.where(bad, 0, rows["start"]) - np.where(bad, 0, first_ns),
            "pid": pid,
            "tid": tid,
            "device": rows["deviceId"],
            "address": rows["address"],
            "bytes": np.where(bad, 0, np.where(operation == FREE, -nbytes, nbytes)),
        },
        bad,
        recording.metadata["notes"],
    )
    if events is not None:
        recording.metadata["memory_from"] = "driver"
    return events


def _threads(recording: Recording, correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return process and thread of the calls with these correlation ids, `NO_ID` where there is none."""
    calls = np.flatnonzero(recording.is_kind("runtime") & (recording["correlation"] >= 0))
    calls = calls[np.argsort(recording["correlation"][calls], kind="stable")]
    if not len(calls):
        none = np.full(len(correlation), NO_ID, np.int64)
        return none, none
    ids = np.asarray(recording["correlation"], np.int64)[calls]
    at = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    found = (correlation != UNKNOWN) & (ids[at] == correlation)
    pid, tid = (
        np.where(found, np.asarray(recording[name], np.int64)[calls[at]], NO_ID) for name in ("pid", "tid")
    )
    return pid, tid
