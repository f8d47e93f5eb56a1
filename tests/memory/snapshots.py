"""Snapshots as torch lays them out, made by hand: `torch.cuda.memory._snapshot()` of PyTorch 2.13."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

MIB = 1 << 20
START = 1 << 40
SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "",
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
    "pinned_num_register_threads": 1,
    "release_lock_on_cudamalloc": False,
    "pinned_use_cuda_host_register": False,
    "roundup_power2_divisions": {str(1 << at): 0 for at in range(16)},
    "graph_capture_record_stream_reuse": False,
}


def frame(name, line=1, filename="/home/someone/gpt/model.py"):
    return {"filename": filename, "line": line, "name": name}


def segment(address, *blocks, stream=0, kind="large", device=0, expandable=False, pool=(0, 0)):
    """Return a segment of blocks, each (size, requested) or (size, requested, state, frames), 0 if free."""
    found, at = [], address
    for size, requested, *more in blocks:
        state = more[0] if more else "active_allocated" if requested else "inactive"
        frames = more[1] if len(more) > 1 else []
        found.append(
            {"address": at, "size": size, "requested_size": requested, "state": state, "frames": frames}
        )
        at += size
    return {
        "device": device, "address": address, "total_size": at - address, "stream": stream,
        "segment_type": kind, "segment_pool_id": pool, "is_expandable": expandable, "frames": [],
        "allocated_size": sum(b["size"] for b in found if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in found if b["state"] != "inactive"),
        "requested_size": sum(b["requested_size"] for b in found if b["state"] != "inactive"),
        "blocks": found,
    }  # fmt: skip


def event(action, addr, size, *, stream=0, frames=(), pool=(0, 0), time=0):
    where = {"device_free": addr} if action == "oom" else {"addr": addr}
    return {
        "action": action, **where, "size": size, "stream": stream, "time_us": time, "frames": list(frames),
        "compile_context": "N/A", "user_metadata": "", "pool_id": pool,
    }  # fmt: skip


def snapshot(segments=(), *traces, settings=None):
    return {
        "segments": list(segments), "device_traces": [list(trace) for trace in traces],
        "allocator_settings": {**SETTINGS, **(settings or {})}, "external_annotations": [],
    }  # fmt: skip


def write(path: Path, document, protocol=4) -> Path:
    """Write a document as what the ending of the name says, packed where it is .gz."""
    is_json = path.name.removesuffix(".gz").endswith(".json")
    data = json.dumps(document).encode() if is_json else pickle.dumps(document, protocol)
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def write_lines(path: Path, header, events) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *events]), encoding="utf-8")
    return path
