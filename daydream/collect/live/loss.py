"""The loss, and other work outside all modules, among the layers of a recorded script."""

from __future__ import annotations

import re

import numpy as np

from daydream.collect.derive.layers import link_forward
from daydream.collect.derive.nesting import nearest, nest
from daydream.collect.derive.phases import NODE_RANGE, OLD_NODE, REDUCER_RANGE, ZERO_GRAD_RANGE
from daydream.collect.derive.recording import Recording
from daydream.collect.live.layer_hooks import LOSS
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace

TOP = "<top>"
SHARDING_RANGE = re.compile(r"^FSDP::")
SHARDED_PART = re.compile(r"\(([\w.]+)\)")


def label_outside(recording: Recording) -> None:
    """Give operators outside all modules a layer, where backward work comes of them.

    After the last module's call and before the backward pass it is `loss`, and so is what is
    made of a gradient for another backward pass; elsewhere (a parameter that the script itself
    multiplies with) `<top>`. Without module rows nothing is said.
    """
    module = recording.is_kind("module")
    if not module.any():
        return
    nesting = nest(recording)
    host = recording.is_kind("operator", "annotation")
    operator = recording.is_kind("operator")
    node = operator & (recording.named(NODE_RANGE) | recording.named(OLD_NODE))
    closed = node | (host & (recording.named(REDUCER_RANGE) | recording.named(ZERO_GRAD_RANGE)))
    outside = np.flatnonzero(
        operator & (nesting.module < 0) & (nearest(closed, nesting.parent) < 0)
    )

    start = recording["start_ns"]
    is_loss = recording["layer"] == _code(recording, LOSS)
    turning = np.flatnonzero((module & ~is_loss) | node)
    turning = turning[np.argsort(start[turning], kind="stable")]
    slot = np.searchsorted(start[turning], start[outside])
    after_module = (slot > 0) & module[turning[np.maximum(slot - 1, 0)]]
    before_backward = (slot < len(turning)) & node[turning[np.minimum(slot, len(turning) - 1)]]
    forward_of = link_forward(recording)
    has_backward = np.zeros(len(recording), bool)
    has_backward[forward_of[forward_of >= 0]] = True
    in_loss = after_module & before_backward
    again = np.flatnonzero(before_backward & (slot > 0) & node[turning[np.maximum(slot - 1, 0)]])
    begins = again[has_backward[outside[again]]]
    first, place = np.unique(slot[begins], return_index=True)
    if len(first):  # from the first operator on that has a backward, up to the next node
        found = np.minimum(np.searchsorted(first, slot[again]), len(first) - 1)
        begun = (first[found] == slot[again]) & (
            start[outside[again]] >= start[outside[begins[place[found]]]]
        )
        in_loss[again[begun]] = True
    for rows, layer in ((outside[in_loss], LOSS), (outside[~in_loss & has_backward[outside]], TOP)):
        if len(rows):
            recording.set_texts("layer", rows, [layer] * len(rows))
    _label_sharding(recording, np.flatnonzero(host & (nesting.module < 0) & (nesting.parent < 0)))


def _label_sharding(recording: Recording, outside: np.ndarray) -> None:
    """Give what `fully_shard` does outside all modules the layer that its range names, else the model's."""
    rows = outside[recording.named(SHARDING_RANGE)[outside]]
    modules = np.flatnonzero(recording.is_kind("module"))
    known = set(recording.text("layer"))
    for row, name in zip(rows.tolist(), recording.texts_of("name", rows), strict=True):
        said = SHARDED_PART.search(name or "")
        if said and said.group(1) in known:
            recording.set_texts("layer", np.array([row]), [said.group(1)])
            continue
        before = modules[recording["start_ns"][modules] <= recording["start_ns"][row]]
        if len(before):
            # The model itself reaches furthest: no module before this range ended later.
            end = recording["start_ns"][before] + recording["duration_ns"][before]
            model = before[np.flatnonzero(end == end.max())[:1]]
            recording.set_texts("layer", np.array([row]), recording.texts_of("layer", model))


def set_loss_phase(trace: Trace) -> None:
    """Make the forward work of the layer `loss` the phase loss, on the device too."""
    if "layer" not in trace.columns or "phase" not in trace.columns:
        return
    rows = (trace["layer"] == trace.code("layer", LOSS)) & (
        trace["phase"] == PHASES.index("forward")
    )
    trace.columns["phase"][rows] = PHASES.index("loss")


def _code(recording: Recording, layer: str) -> int:
    texts = recording.text("layer")
    return texts.index(layer) if layer in texts else -2
