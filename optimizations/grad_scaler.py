"""Gradient scaler: what float16's loss scaling costs a step, with the synchronization it brings."""

from __future__ import annotations

import re

import numpy as np

from daydream import Graph
from daydream.costs import floor_ns
from daydream.memory import unchanged
from daydream.model import (
    FUSED_UPDATE_KERNEL,
    FUSED_UPDATE_OP,
    SCALER_CALL_NS,
    SCALER_TENSOR_NS,
    main_dtype,
    unscale_ns,
    update_of,
)
from daydream.transforms import stages

STAGE = stages.PRECISION
CODE = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"
memory = unchanged

SCALER = r"_amp_(foreach_non_finite_check_and_unscale|update_scale)|amp_update_scale"
SCALER_KERNEL = r"(?i)non_?finite_?check|amp_update_scale|unscale"


def grad_scaler(graph: Graph, *, sync: bool = True) -> None:
    """Predict the cost of `torch.amp.GradScaler`, as float16 training needs it: `amp+grad-scaler`.

    Before the update every gradient is read, checked for infinities, multiplied by 1/scale and written
    back, in as many launches as torch's foreach kernels need (torch/amp/grad_scaler.py). Then `.item()`
    copies the flag to the CPU and waits for it, so the CPU cannot launch the update before the backward
    pass is done. Behind the update a tiny kernel adjusts the scale. The loss is multiplied once, a tiny
    kernel forward and one backward. A fused optimizer reads the flag on the device: there is no wait then,
    nor without `sync` (`--no-sync`, as for `fused-optimizer+grad-scaler`). Python takes 30 us and 0.7 us a
    tensor (measured; see daydream/model/precision.py).

    Not modelled: steps that are skipped, the time from the end of the copy to the return of the call.
    bfloat16 has the range of float32 and needs no scaler.
    """
    update = graph.select(kind="kernel", phase="optimizer")
    update.need("optimizer kernels to unscale gradients for", lacks="device")
    if len(graph.select(op=SCALER)) or len(update.where(name=SCALER_KERNEL)):
        graph.does_not_apply("a gradient scaler runs already")
    if main_dtype(graph, graph.select(kind="kernel", phase=("forward", "backward")))[0] == "bfloat16":
        graph.does_not_apply("it runs in bfloat16, which has the range of float32 and needs no scaler")
    fused = len(update.where(op=FUSED_UPDATE_OP) | update.where(name=FUSED_UPDATE_KERNEL)) > 0
    calls = graph.select(kind="cpu", phase="optimizer").group_by("rank", "step")
    place = {key: number for number, key in enumerate(calls.keys)}
    updates = update.group_by("rank", "step")
    updates = updates.where(np.array([key in place for key in updates.keys], bool))
    if not len(updates):
        graph.does_not_apply("no step has CPU work of its optimizer, so where the scaler runs is not known")
    begins = calls.take(np.array([place[key] for key in updates.keys])).first()
    known = update_of(graph)
    time, launches, said = unscale_ns(graph, updates, known)
    tiny = floor_ns(graph)
    stream = re.sub(r"^rank \d+ ", "", str(update.lane[0]))
    losses = graph.select(kind="kernel", phase="backward").group_by("rank", "step").first()

    if len(losses):
        for name in ("scale loss", "gradient of scale"):
            graph.insert_before(losses, name, duration_ns=tiny)
    graph.insert_after(updates.last(), "update scale", phase="other", duration_ns=tiny)
    parts = [time - (launches - 1) * tiny] + [np.full(len(time), tiny)] * (launches - 1)
    python = SCALER_CALL_NS + SCALER_TENSOR_NS * max(known.tensors, 0)
    graph.insert_before(begins, "scaler in Python", phase="other", duration_ns=python)
    for part in parts:
        graph.insert_before(begins, "unscale", kind="kernel", lane=stream, phase="other", duration_ns=part)
    if sync and not fused:
        flag = {"lane": stream, "phase": "other", "op": "aten::item"}
        graph.insert_before(begins, "Memcpy DtoH of found_inf", kind="memcpy", duration_ns=tiny, **flag)
        cost = graph.facts.launch_cost_ns
        waits = graph.insert_before(begins, "synchronize", duration_ns=cost, phase="other", op="aten::item")
        waits.wait_for(stream)
    graph.note(said)
    graph.note("This is the scaler's cost alone; amp or autocast predict what 16 bits gain.")
