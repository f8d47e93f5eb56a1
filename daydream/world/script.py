"""The world that a script finds: torchrun's environment, and groups of `FakeGroup` whatever backend it asks for."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from daydream.world.process_group import GROUPS, FakeGroup

BACKEND = "fake_world"
UNKNOWN_OBJECTS = (
    "the script receives Python objects from a rank that does not exist. Stages of a pipeline need none of them "
    "where each PipelineStage is given input_args and output_args, or --all-stages records the stage before first"
)
NO_GPU = (
    "the script asks for a GPU, and this machine has none: add --emulate NAME, such as --emulate h100, or let it "
    "run on the CPU"
)
WORLD: dict[str, Any] = {}  # world_size, rank and cluster, once this process is in one


def make_world(world: dict[str, Any]) -> None:
    """Let this process, which has just imported torch, be one rank of a world: what a `FakeWorld` says.

    `stages` is a folder in which stages that are recorded in turn leave what the next one gets, if there is one.
    """
    WORLD.update(world)
    folder = WORLD.pop("stages", None)
    stages = folder and Path(folder)
    place = {name: int(world[name]) for name in ("world_size", "rank")}
    c10d.Backend.register_backend(
        BACKEND, lambda _, own, size, __: FakeGroup(own, size), devices=["cpu", "cuda"]
    )
    asked = {"backend": "gloo"}

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, *given: Any, **named: Any
    ) -> None:
        del init_method
        of = {**dict(zip(("world_size", "rank"), given, strict=False)), **named}
        for name, own in place.items():
            if of.get(name, -1) not in (-1, own):
                refuse(f"the script sets {name} to {of[name]}, but its world has {name} {own}")
        asked["backend"] = str(backend or "gloo").rpartition(":")[2].lower()
        own_of["init_process_group"](
            BACKEND,
            timeout=timeout,
            store=dist.HashStore(),
            **place,
            group_name=of.get("group_name", ""),
        )
        GROUPS["0"] = list(range(place["world_size"])), "default_pg"

    def new_group(size: int, rank: int, ranks: list[int], _: Any, *given: Any, **named: Any) -> Any:
        named |= {"backend_options": None, "device_id": None}
        return own_of["_new_process_group_helper"](size, rank, ranks, BACKEND, *given, **named)

    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, *_: Any, **named: Any
    ) -> Any:
        parent = dist.get_process_group_ranks(parent_pg)
        for part in split_ranks or ():
            if WORLD["rank"] in (ranks := [parent[one] for one in part]):
                return dist.new_group(ranks, timeout, group_desc=named.get("group_desc"))
        return None

    def gather_object(obj: Any, *given: Any, **named: Any) -> None:
        if type(obj).__name__ == "SavePlan":
            refuse(
                "a checkpoint holds the parts of all ranks, and there is one: leave saving out in a fake world"
            )
        own_of["gather_object"](obj, *given, **named)

    found: dict[str, Callable[..., Any]] = {
        "init_process_group": init_process_group,
        "_new_process_group_helper": new_group,
        "split_group": split_group,
        "gather_object": gather_object,
        "get_backend": lambda _=None: asked["backend"],
        "is_nccl_available": lambda: True,
        "monitored_barrier": lambda group=None, *_, **__: dist.barrier(group),
        "_store_based_barrier": lambda *_, **__: None,
        "broadcast_object_list": lambda *_, **__: None,  # they are what the script put there itself
        "recv_object_list": functools.partial(from_stage, stages),
        "send_object_list": functools.partial(to_stage, stages, dist.send_object_list),
    }
    if not hasattr(torch._C, "_nccl_version"):  # the profiler asks, where the backend is NCCL
        torch.cuda.nccl.version = lambda: (0, 0, 0)
    if not torch.cuda.is_available():  # an emulated one comes later, and replaces these, too
        for name in ("_lazy_init", "set_device"):
            setattr(torch.cuda, name, lambda *_, **__: refuse(NO_GPU))
    own_of = {name: getattr(c10d, name) for name in found}
    for name, function in found.items():
        functools.update_wrapper(function, own_of[name])
        for module in (dist, c10d):
            if hasattr(module, name):
                setattr(module, name, function)


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


def refuse(text: str) -> NoReturn:
    """End the script with one line."""
    raise SystemExit(f"daydream: {text}")
