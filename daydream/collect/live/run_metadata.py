"""What a recorded run says about itself: parameters, optimizers, buckets, devices, versions.

Read on the host, with no synchronization, field by field: never the environment, the
command or a path, as traces are passed on.

Which of a job's processes this one is: its rank of how many, or a loader's worker.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from daydream.collect.live.layer_hooks import Paths, find_paths
from daydream.collect.live.torch_private import ddp_buckets
from daydream.trace.schema import Document


def rank_and_world() -> tuple[int | None, int | None]:
    """Return this process's rank and the number of ranks: torch's, else the launcher's, else unknown."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return _number("RANK"), _number("WORLD_SIZE")


def is_loader_worker() -> bool:
    """Return whether this process loads data for another: what it computes is no training."""
    import torch

    data: Any = torch.utils.data
    return data.get_worker_info() is not None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


DEVICE_FIELDS = {
    "name": "name",
    "total_memory": "memory_bytes",
    "major": "compute_major",
    "minor": "compute_minor",
    "multi_processor_count": "multiprocessors",
    "warp_size": "warp_size",
    "L2_cache_size": "l2_bytes",
    "regs_per_multiprocessor": "registers_per_multiprocessor",
    "max_threads_per_multi_processor": "threads_per_multiprocessor",
    "shared_memory_per_multiprocessor": "shared_bytes_per_multiprocessor",
    "clock_rate": "clock_khz",
    "memory_clock_rate": "memory_clock_khz",
    "memory_bus_width": "memory_bus_bits",
    "gcnArchName": "architecture",
}
BUCKET_FIELDS = {
    "bucket_cap_bytes": "cap_bytes",
    "gradient_as_bucket_view": "gradient_as_bucket_view",
    "has_rebuilt_buckets": "rebuilt",
    "backend_name": "backend",
    "world_size": "world_size",
    "comm_hook": "communication_hook",
}


def describe_run(roots: list[Any], optimizers: list[Any]) -> tuple[Document, Paths]:
    """Return the metadata of a run, and the paths of its modules and parameters.

    `roots` are the modules that were called outermost, `optimizers` those that have stepped.
    """
    paths = find_paths(roots)
    rank, world = rank_and_world()
    metadata: Document = {
        "rank": rank or 0,
        "world_size": world or 1,
        "versions": _versions(),
        "threads": _threads(),
    }
    if parameters := describe_parameters(paths.models, paths):
        metadata["parameters"] = parameters
    if buffers := describe_buffers(paths.models, paths):
        metadata["buffers"] = buffers
    if optimizers:
        metadata["optimizers"] = [describe_optimizer(one, paths) for one in optimizers]
    if buckets := [one for one in (_buckets(each, paths) for each in _all_modules(roots)) if one]:
        metadata["ddp"] = buckets
    if devices := _devices():
        metadata["devices"] = devices
    metadata["vendor"] = _vendor(bool(devices))
    return metadata, paths


def describe_parameters(models: Iterable[Any], paths: Paths) -> list[Document]:
    """Return name, shape, dtype, layer, device and bytes of gradient of each parameter, each once."""
    seen: set[int] = set()
    described = []
    for model in models:
        for parameter in model.parameters():
            if id(parameter) in seen or id(parameter) not in paths.of_parameter:
                continue
            seen.add(id(parameter))
            gradient = (
                parameter.numel() * parameter.element_size() if parameter.requires_grad else 0
            )
            local = _local_bytes(parameter)
            described.append(
                {
                    "name": paths.of_parameter[id(parameter)],
                    "layer": paths.owner_of_parameter[id(parameter)],
                    "shape": [int(size) for size in parameter.shape],
                    "dtype": _dtype(parameter.dtype),
                    "device": str(parameter.device),
                    "requires_grad": bool(parameter.requires_grad),
                    "gradient_bytes": gradient,
                    **({} if local == _bytes(parameter) else {"local_bytes": local}),
                }
            )
    return described


def describe_buffers(models: Iterable[Any], paths: Paths) -> list[Document]:
    """Return name, layer, device and bytes of each tensor that modules keep besides parameters, each once.

    Names are those of `named_modules()` without wrappers, as parameters' are. No value is read.
    """
    seen: set[int] = set()
    described = []
    for model in models:
        for module in model.modules():
            layer = paths.of_module.get(id(module))
            for name, buffer in module.named_buffers(recurse=False):
                if layer is None or id(buffer) in seen or not (nbytes := _local_bytes(buffer)):
                    continue
                seen.add(id(buffer))
                described.append(
                    {
                        "name": f"{layer}.{name}",
                        "layer": layer,
                        "device": str(buffer.device),
                        "bytes": nbytes,
                    }
                )
    return described


def describe_optimizer(optimizer: Any, paths: Paths) -> Document:
    """Return type, settings of each group, and the bytes of state an optimizer keeps."""
    groups = []
    for group in optimizer.param_groups:
        settings = {key: _plain(value) for key, value in group.items() if key != "params"}
        known = [
            paths.of_parameter[id(one)] for one in group["params"] if id(one) in paths.of_parameter
        ]
        groups.append(
            {
                "settings": {key: value for key, value in settings.items() if value is not None},
                "tensors": len(group["params"]),
                "elements": sum(int(one.numel()) for one in group["params"]),
                "parameters": known,
            }
        )
    state = local = 0
    for kept in list(optimizer.state.values()):
        for value in kept.values() if isinstance(kept, dict) else ():
            if hasattr(value, "element_size"):
                state += _bytes(value)
                local += _local_bytes(value)
    described = {"name": type(optimizer).__name__, "state_bytes": state, "groups": groups}
    return described if local == state else {**described, "local_state_bytes": local}


def _bytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _local_bytes(tensor: Any) -> int:
    """Return the bytes that this rank holds of a tensor: of a DTensor, which FSDP shards, its own part."""
    local = getattr(tensor, "_local_tensor", None)
    return _bytes(tensor if local is None else local)


def _plain(value: Any) -> Any:
    """Return a setting as JSON knows it; None for the rest, as reading a tensor would synchronize."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(
        isinstance(one, (bool, int, float)) for one in value
    ):
        return list(value)
    return None


def _all_modules(roots: Iterable[Any]) -> list[Any]:
    seen: dict[int, Any] = {}
    for root in roots:
        for module in root.modules():
            seen.setdefault(id(module), module)
    return list(seen.values())


def _buckets(module: Any, paths: Paths) -> Document | None:
    """Return a DistributedDataParallel's buckets in ready order; None for other modules."""
    if "torch.nn.parallel.distributed" not in sys.modules:
        return None
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(module, DistributedDataParallel):
        return None
    said = ddp_buckets(module)
    told = {ours: _plain(said[theirs]) for theirs, ours in BUCKET_FIELDS.items() if theirs in said}
    reduced = [parameter for parameter in module.parameters() if parameter.requires_grad]
    sizes = _numbers(said.get("rebuilt_bucket_sizes"))
    members = [
        _numbers(one) for one in str(said.get("rebuilt_per_bucket_param_indices") or "").split(",")
    ]
    if len(sizes) == len(members):
        told["buckets"] = [
            {
                "bytes": size,
                "parameters": [
                    paths.of_parameter.get(id(reduced[index]))
                    for index in indices
                    if index < len(reduced)
                ],
            }
            for size, indices in zip(sizes, members, strict=True)
        ]
    return told


def _numbers(text: Any) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", str(text or ""))]


def _devices() -> list[Document]:
    """Return the properties of the GPUs this process has used. Does not wake a GPU that it has not."""
    import torch

    cuda: Any = torch.cuda
    if not cuda.is_available() or not cuda.is_initialized():
        return []
    devices = []
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        told = {ours: getattr(properties, theirs, None) for theirs, ours in DEVICE_FIELDS.items()}
        known = {key: value for key, value in told.items() if value not in (None, 0, "")}
        devices.append({"id": index, **known})
    return devices


def _versions() -> dict[str, str]:
    import torch

    import daydream

    versions: dict[str, str | None] = {
        "daydream": daydream.__version__,
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
    }
    cuda = vars(torch)["cuda"]
    backends = vars(torch)["backends"]
    if cuda.is_available() and cuda.is_initialized():
        cudnn = backends.cudnn.version()
        versions["cudnn"] = str(cudnn) if cudnn else None
    return {name: str(version) for name, version in versions.items() if version}


def _vendor(has_devices: bool) -> str:  # noqa: FBT001 - one flag
    import torch

    if not has_devices:
        return "cpu"
    return "rocm" if getattr(torch.version, "hip", None) else "cuda"


def _threads() -> int:
    import torch

    return int(torch.get_num_threads())


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
