"""The world that a script finds: torchrun's environment, and groups of `FakeGroup` whatever backend it asks for."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from msgspec.structs import asdict
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from daydream.collect.live.capture import COMPLETIONS
from daydream.errors import DaydreamError
from daydream.lazy import regex
from daydream.world import NEVER_MADE, NO_GPU, Refused, explain_errors, refuse, write
from daydream.world.process_group import ASKED, GROUPS, FakeGroup

BACKEND = "fake_world"
RANGE = regex(r"^fake:\w+ \d+$")
UNKNOWN_OBJECTS = (
    "the script receives Python objects from a rank that does not exist. Stages of a pipeline need none of them "
    "where each PipelineStage is given input_args and output_args, or --all-stages records the stage before first"
)
NO_OBJECTS = "; it got no Python objects from another rank: --rank 0 records the one that has them"
NO_GROUP = "the script makes a {} itself; a fake world has those of torch.distributed.new_group"
WORLD: dict[str, Any] = {}  # world_size, rank and cluster, once this process is in one
OWN: dict[str, Callable[..., Any]] = {}  # functions of torch.distributed that are replaced
BACKENDS: dict[str, str] = {}  # that the script asked for, by group


def make_world(world: dict[str, Any]) -> None:
    """Let this process, which has just imported torch, be one rank of a world: what a `FakeWorld` says.

    `stages` is a folder in which stages that are recorded in turn leave what the next one gets, if there is one.
    """
    explain_errors()
    COMPLETIONS.append(note_collectives)
    WORLD.update(world)
    folder = WORLD.pop("stages", None)
    stages = folder and Path(folder)
    c10d.Backend.register_backend(
        BACKEND, lambda _, own, size, __: FakeGroup(own, size), devices=["cpu", "cuda"]
    )
    if not hasattr(torch._C, "_nccl_version"):  # the profiler asks, where the backend is NCCL
        torch.cuda.nccl.version = lambda: (0, 0, 0)
    if not torch.cuda.is_available():  # an emulated one comes later, and replaces these, too
        for name in ("_lazy_init", "set_device"):
            setattr(torch.cuda, name, lambda *_, **__: refuse(NO_GPU))
    functions: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(("_store_based_barrier", "_set_pg_timeout"), lambda *_, **__: None),
        "init_process_group": _init,
        "_new_process_group_helper": _new_group,
        "split_group": _split,
        "gather_object": _gather,
        "get_backend": _backend,
        "is_nccl_available": lambda: True,
        "monitored_barrier": lambda group=None, *_, **__: dist.barrier(group),
        "broadcast_object_list": _broadcast,
        "scatter_object_list": _scatter,
        "recv_object_list": functools.partial(from_stage, stages),
        "send_object_list": functools.partial(to_stage, stages, dist.send_object_list),
    }
    for name, function in functions.items():
        OWN[name] = getattr(c10d, name)
        _put(name, functools.update_wrapper(function, OWN[name]))
    _put("TCPStore", lambda *_, **__: _new_store())
    for name in ("ProcessGroupNCCL", "ProcessGroupGloo"):
        _put(name, type(name, (NeverMade,), {}))
    for name in ("torch.multiprocessing", "torch.multiprocessing.spawn"):
        vars(sys.modules[name]).update(spawn=_spawn, start_processes=_spawn)


def _put(name: str, value: Any) -> None:
    """Replace a name of torch.distributed."""
    for module in (dist, c10d, sys.modules["torch.distributed.rendezvous"]):
        if hasattr(module, name) or module is dist:
            setattr(module, name, value)


def _new_store() -> dist.Store:
    """Return a store in memory; a script waits 1 s for what another rank would put there."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=1))
    return store


def _init(
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    _: Any = None,
    group_name: str = "",
    **__: Any,
) -> None:
    del init_method
    place = {name: WORLD[name] for name in ("world_size", "rank")}
    for (name, own), found in zip(place.items(), (world_size, rank), strict=True):
        if found not in (-1, own):
            refuse(f"the script sets {name} to {found}, but its world has {name} {own}")
    BACKENDS["0"] = _on_gpu(backend or "gloo")
    place |= {"timeout": timeout, "group_name": group_name, "store": _new_store()}
    OWN["init_process_group"](BACKEND, **place)
    GROUPS["0"] = list(range(WORLD["world_size"])), "default_pg"


def _new_group(
    size: int, rank: int, ranks: list[int], backend: Any, *given: Any, **named: Any
) -> Any:
    named |= {"backend_options": None, "device_id": None}
    made = OWN["_new_process_group_helper"](size, rank, ranks, BACKEND, *given, **named)
    if backend != BACKEND and isinstance(made[0], FakeGroup):
        BACKENDS[made[0].getGroupName()] = _on_gpu(backend)
    return made


def _on_gpu(backend: Any) -> str:
    """Return `nccl` of `cpu:gloo,cuda:nccl`."""
    return str(backend).rpartition(":")[2].lower()


def _backend(group: Any = None) -> str:
    return BACKENDS.get((group or c10d._get_default_group()).group_name, BACKENDS["0"])


def _broadcast(objects: list[Any], *_: Any, **__: Any) -> None:
    """Leave the objects that the script put there itself."""
    if objects == [None] * len(objects):
        Refused.unknown = NO_OBJECTS


def _scatter(objects: list[Any], given: Any = None, *where: Any, **named: Any) -> None:
    (OWN["scatter_object_list"] if given else _broadcast)(objects, given, *where, **named)


def _spawn(
    function: Callable[..., Any], args: Any = (), nprocs: int = 1, *_: Any, **__: Any
) -> None:
    """Be one of the ranks that a script starts itself."""
    if nprocs != WORLD["world_size"]:
        refuse(
            f"the script starts {nprocs:,} ranks itself, but its world has {WORLD['world_size']:,}: "
            f"record --world {nprocs}"
        )
    function(WORLD["rank"], *args)


def _split(
    parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, *_: Any, **named: Any
) -> Any:
    parent = dist.get_process_group_ranks(parent_pg)
    for part in split_ranks or ():
        if WORLD["rank"] in (ranks := [parent[one] for one in part]):
            return dist.new_group(ranks, timeout, group_desc=named.get("group_desc"))
    return None


def _gather(obj: Any, *given: Any, **named: Any) -> None:
    if type(obj).__name__ == "SavePlan":
        refuse(
            "a checkpoint holds the parts of all ranks, and there is one: leave saving out in a fake world"
        )
    OWN["gather_object"](obj, *given, **named)


class NeverMade:
    """A group of a backend, of which there are only options."""

    Options = SimpleNamespace

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse(NO_GROUP.format(type(self).__name__))


def to_stage(
    folder: Path | None, send: Callable[..., None], objects: list[Any], *given: Any, **named: Any
) -> None:
    """Send objects; what a stage tells the next one of its results is left in a folder for that one's recording."""
    to = sys._getframe(1).f_locals.get("dst_stage")  # of torch's PipelineStage
    if to is None:
        send(objects, *given, **named)
        return
    metas = getattr(objects[0], "forward_metas", ())
    if folder and metas and all(type(meta).__name__ == "_TensorMeta" for meta in metas):
        rows = [
            (meta.shape, meta.stride, str(meta.dtype)[6:], meta.requires_grad) for meta in metas
        ]
        (folder / f"into-{to}.json").write_text(json.dumps(rows))


def from_stage(folder: Path | None, objects: list[Any], *_: Any, **__: Any) -> None:
    """Give a stage what the one before it left, or gradients that are like its own results.

    Ends the script where that is not known.
    """
    asking = sys._getframe(1).f_locals  # of torch's PipelineStage
    stage: Any = asking.get("self")
    if "src_stage" not in asking:
        refuse(UNKNOWN_OBJECTS)
    kinds = sys.modules["torch.distributed.pipelining._utils"]
    if asking["src_stage"] > stage.stage_index:
        objects[0] = kinds._StageBackwardMeta(kinds._derive_grad_metas(stage._stage_meta.outputs))
        return
    left = folder and folder / f"into-{stage.stage_index}.json"
    if left is None or not left.exists():
        refuse(UNKNOWN_OBJECTS)
    metas = [
        kinds._TensorMeta(torch.Size(shape), tuple(stride), getattr(torch, dtype), learns)
        for shape, stride, dtype, learns in json.loads(left.read_text())
    ]
    objects[0] = kinds._StageForwardMeta(tuple(metas))


def note_collectives(recording: Any, markers: list[Any]) -> list[Any]:
    """Give a `Recording` what the process group noted of its collectives, and its groups; return its markers.

    A collective and the wait for it have the number of the collective in common, in the column `correlation`.
    Raises `DaydreamError` where the script made no process group.
    """
    if not GROUPS:
        raise DaydreamError(NEVER_MADE)
    written = {}
    rows = np.flatnonzero(recording.named(RANGE, "annotation"))
    for row, text in zip(rows.tolist(), recording.texts_of("name", rows), strict=True):
        name, number = str(text).split()
        asked = {} if name == "fake:wait" else asdict(ASKED[int(number)])
        written[row] = {"name": name, "correlation": int(number), **asked}
    write(recording, written)
    recording.metadata["groups"] = [
        {
            "name": name,
            "ranks": ranks,  # torch calls a group undefined that the script did not describe
            "description": description.replace("undefined", f"group_{name}_of_{len(ranks)}_ranks"),
        }
        for name, (ranks, description) in GROUPS.items()
    ]
    recording.metadata["fake_world"] = dict(WORLD)
    recording.note(
        f"Recorded as rank {WORLD['rank']} of {WORLD['world_size']:,} in a fake world: collectives "
        "took no time and gave this rank's own values; what other ranks do is not known, and nobody comes late."
    )
    used = {BACKENDS.get(one["group"], BACKENDS["0"]) for one in written.values() if "group" in one}
    if len(used) > 1:
        recording.note(
            f"Collectives of {' and '.join(sorted(used))} are timed alike, on the network of the cluster."
        )
    if (busier := WORLD.get("imbalance", 1)) > 1:
        recording.note(f"This rank's experts get {busier:g} times the mean.")
    return markers
