"""What a Kineto file says about machine, job and versions, by an allow-list of fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daydream.collect.importers.kineto.events import Header
from daydream.collect.importers.kineto.values import plain_text
from daydream.trace.valid import is_amount

DEVICE_FIELDS = {
    "id": "id", "name": "name", "totalGlobalMem": "memory_bytes", "computeMajor": "compute_major",
    "computeMinor": "compute_minor", "numSms": "multiprocessors", "warpSize": "warp_size",
    "maxThreadsPerBlock": "threads_per_block", "maxThreadsPerMultiprocessor": "threads_per_multiprocessor",
    "regsPerBlock": "registers_per_block", "regsPerMultiprocessor": "registers_per_multiprocessor",
    "sharedMemPerBlock": "shared_bytes_per_block", "sharedMemPerBlockOptin": "shared_bytes_per_block_optin",
    "sharedMemPerMultiprocessor": "shared_bytes_per_multiprocessor",
    "maxSharedMemoryPerMultiProcessor": "shared_bytes_per_multiprocessor",
}  # fmt: skip
VERSION_FIELDS = (
    "cuda_runtime_version", "cuda_driver_version", "cupti_version", "hip_runtime_version",
    "hip_driver_version", "roctracer_version",
)  # fmt: skip


def metadata_of(header: Header, path: Path) -> dict[str, Any]:
    """Return a trace's metadata: source (the file's name), devices, rank, world size, groups, versions."""
    metadata: dict[str, Any] = {"source": plain_text(path.name), "notes": []}
    if devices := [_device(one) for one in _dicts(header.deviceProperties)]:
        metadata["devices"] = devices
    world = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    for name in ("rank", "world_size"):
        if _is_count(world.get(name)) and (name == "rank" or world[name]):
            metadata[name] = world[name]
    if isinstance(world.get("backend"), str):
        metadata["backend"] = plain_text(world["backend"])
    if groups := [_group(one) for one in _dicts(world.get("pg_config"))]:
        metadata["groups"] = groups
    versions: dict[str, Any] = {name: getattr(header, name) for name in VERSION_FIELDS}
    versions["nccl_version"] = world.get("nccl_version")
    told = {
        name: plain_text(str(told)) for name, told in versions.items() if isinstance(told, (str, int, float))
    }
    if told:
        metadata["versions"] = told
    return metadata


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_count(value: Any) -> bool:
    return is_amount(value) and value < 2**31


def _device(given: dict[str, Any]) -> dict[str, Any]:
    device = {ours: given[theirs] for theirs, ours in DEVICE_FIELDS.items() if is_amount(given.get(theirs))}
    device.pop("name", None)
    return device | {"name": plain_text(given["name"])} if isinstance(given.get("name"), str) else device


def _group(given: dict[str, Any]) -> dict[str, Any]:
    ranks = given.get("ranks")
    return {
        "name": plain_text(str(given.get("pg_name", ""))),
        "description": plain_text(str(given.get("pg_desc", ""))),
        "ranks": [rank for rank in ranks if _is_count(rank)] if isinstance(ranks, list) else [],
    }
