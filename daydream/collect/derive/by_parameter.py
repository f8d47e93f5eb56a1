"""Layers of work that is done parameter by parameter: gradients accumulated, updates, bucket copies.

The profiler names no parameter there. What it does record, the order and the shapes, is
held against the parameters that the run's metadata describes; work that does not fit has no layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.collect.derive.nesting import nearest
from daydream.collect.derive.phases import BACKWARD, OPTIMIZER, OPTIMIZER_RANGE
from daydream.collect.derive.recording import Recording
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN


def cut_by_parameter(
    names: Sequence[int], shapes: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[int]:
    """Return for each operator of an update which parameter it works on; empty if it cannot be told.

    `names` and `shapes` (of the first input) are those of the operators in order, `groups` the
    shapes of the parameters, group by group. A group's parameters all take the same operators,
    on tensors of the parameter's shape or on scalars (step counts). Where they depend on the parameter
    (Adafactor factors matrices, not vectors) it cannot.
    """
    flat = [shape for group in groups for shape in group]
    if not flat or len(names) < len(flat):
        return []
    if len(names) % len(flat) == 0 and _same_body(names, shapes, flat, 0, len(names) // len(flat)):
        lengths = [len(names) // len(flat)] * len(flat)
    else:
        lengths = _bodies_of_groups(names, shapes, groups, 0)
    return [index for index, length in enumerate(lengths) for _ in range(length)]


def _same_body(
    names: Sequence[int], shapes: Sequence[str], wanted: Sequence[str], begin: int, length: int
) -> bool:
    """Return whether parameters of the wanted shapes take `length` operators each, the same ones."""
    body = names[begin : begin + length]
    for index, shape in enumerate(wanted):
        at = begin + index * length
        if names[at : at + length] != body:
            return False
        seen = set(shapes[at : at + length])
        if shape not in seen or not seen <= {shape, SCALAR}:
            return False
    return True


def _bodies_of_groups(
    names: Sequence[int], shapes: Sequence[str], groups: Sequence[Sequence[str]], begin: int
) -> list[int]:
    """Return how many operators each parameter takes where each group has its own; empty if none fit."""
    group = groups[0]
    rest = groups[1:]
    left = sum(len(other) for other in rest)
    most = (len(names) - begin - left) // len(group)
    lengths = (
        range(1, most + 1) if rest else [most] if begin + most * len(group) == len(names) else []
    )
    for length in lengths:
        if not _same_body(names, shapes, group, begin, length):
            continue
        if not rest:
            return [length] * len(group)
        following = _bodies_of_groups(names, shapes, rest, begin + length * len(group))
        if following:
            return [length] * len(group) + following
    return []


ACCUMULATE = regex(r"^torch::autograd::AccumulateGrad$|^AccumulateGrad$")
COMPILED_NODE = regex(r"CompiledFunctionBackward")
BUCKET_COPY = regex(r"reducer::copy_bucket_to_grad$")
BUCKET_VIEW = regex(r"^aten::as_strided$")
SCALAR = "[]"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the run: who owns it, and its shape as the profiler writes it."""

    layer: str
    shape: str
    elements: int


def described(recording: Recording) -> dict[str, Parameter]:
    """Return the parameters that gradients can be accumulated for, by name, in order of registration."""
    return {
        each["name"]: Parameter(
            each["layer"],
            json.dumps(each["shape"], separators=(",", ":")),
            math.prod(each["shape"]),
        )
        for each in recording.metadata.get("parameters", [])
        if each.get("requires_grad", True)
    }


class Layers:
    """The layer column while it is filled: a code for each row, and the texts the codes stand for."""

    def __init__(self, own: np.ndarray, texts: list[str]) -> None:
        self.own = own
        self.texts = texts
        self._codes = {text: code for code, text in enumerate(texts)}

    def text(self, row: int) -> str | None:
        """Return a row's layer, None for none."""
        code = int(self.own[row])
        return self.texts[code] if code >= 0 else None

    def set(self, row: int, layer: str) -> None:
        """Give a row a layer."""
        if layer not in self._codes:
            self._codes[layer] = len(self.texts)
            self.texts.append(layer)
        self.own[row] = self._codes[layer]


def own_accumulated(
    recording: Recording, rows: np.ndarray, node_before: np.ndarray, layers: Layers
) -> None:
    """Give rows that accumulate a gradient the layer that owns the parameter.

    They hold the layer of the node before, which used the parameter. That is the owner, but for a
    module that hands its part's parameters to a function and never calls the part
    (`out_proj` of `nn.MultiheadAttention`): the gradient's shape then tells whose it is. Where several
    parameters of one shape can be meant, they come in reverse order of use, taken to be that of registration;
    behind a compiled backward pass, which hands over many at once, they do not, and the layer stays. So it
    does where a layer has no such parameter, but for the one owner of all: the gradient is that of an input.
    """
    parameters = list(described(recording).values())
    inner = recording.named(ACCUMULATE)[rows]
    called = set(recording.texts_of("layer", np.flatnonzero(recording.is_kind("module"))))
    compiled = np.append(recording.named(COMPILED_NODE), False)[node_before[inner]].tolist()
    inner = rows[inner]
    groups: dict[tuple[str | None, str | None], list[tuple[int, bool]]] = {}
    for row, shape, many in zip(
        inner.tolist(), _first_shapes(recording, inner), compiled, strict=True
    ):
        groups.setdefault((layers.text(row), shape), []).append((row, many))
    for (layer, shape), members in groups.items():
        alike = [one.layer for one in reversed(parameters) if one.shape == shape]
        below = [one for one in alike if one.startswith(f"{layer}.")]
        owners = [one for one in alike if one == layer or (one in below and one not in called)]
        if not owners:
            owners = below or alike
            owners = owners if len(set(owners)) == 1 else []
        several = len(set(owners)) > 1
        for index, (row, many) in enumerate(members):
            if owners and not (several and many):
                layers.set(row, owners[index % len(owners)])


def own_updates(
    recording: Recording,
    parent: np.ndarray,
    phase: np.ndarray,
    accumulated: np.ndarray,
    layers: Layers,
) -> None:
    """Give an optimizer's operators the layer of the parameter they update, where it goes one by one.

    It goes through all parameters, or those only that gradients were accumulated for: the rows `accumulated`.
    `foreach` and `fused` updates are of all parameters at once and have no layer.
    """
    parameters = described(recording)
    inner = accumulated[recording.named(ACCUMULATE)[accumulated]]
    used = {
        (layers.text(row), shape)
        for row, shape in zip(inner.tolist(), _first_shapes(recording, inner), strict=True)
    }
    ranges = np.flatnonzero(
        recording.is_kind("operator", "annotation") & recording.named(OPTIMIZER_RANGE)
    )
    work = np.flatnonzero(recording.is_kind("operator") & (phase == OPTIMIZER))
    work = work[np.isin(parent[work], ranges)]
    top = np.zeros(len(recording), bool)
    for holder, name in zip(ranges.tolist(), recording.texts_of("name", ranges), strict=True):
        rows = work[parent[work] == holder]
        names = np.asarray(recording["name"])[rows].tolist()
        shapes = [shape or SCALAR for shape in _first_shapes(recording, rows)]
        for optimizer in recording.metadata.get("optimizers", []):
            groups = optimizer["groups"]
            if f"#{optimizer['name']}." not in (name or "") or any(
                group["tensors"] != len(group["parameters"]) for group in groups
            ):
                continue  # another's range, or some tensors are of no module
            known = [
                [parameters[one] for one in group["parameters"] if one in parameters]
                for group in groups
            ]
            in_use = [[one for one in group if (one.layer, one.shape) in used] for group in known]
            for chosen in (known, in_use):
                parts = [[one.shape for one in group] for group in chosen if group]
                owners = [] if top[rows].any() else cut_by_parameter(names, shapes, parts)
                flat = [one.layer for group in chosen for one in group]
                for row, place in zip(rows.tolist(), owners, strict=False):
                    layers.set(row, flat[place])
                    top[row] = True
    if top.any():
        above = nearest(top, parent)
        inside = (above >= 0) & ~top & ~recording.is_kind("module")
        layers.own[inside] = layers.own[above[inside]]


def own_bucket_rows(
    recording: Recording, parent: np.ndarray, phase: np.ndarray, layers: Layers
) -> None:
    """Give the views of reduced buckets, and the copies out of them, the layers of the buckets' parameters.

    They come at the end of the backward pass, outside all nodes and in the buckets' order;
    their shapes must fit that order throughout.
    """
    parameters = described(recording)
    buckets = [
        bucket["parameters"]
        for wrapper in recording.metadata.get("ddp", [])
        for bucket in wrapper.get("buckets", [])
    ]
    if not buckets or any(name not in parameters for bucket in buckets for name in bucket):
        return
    members = [parameters[name] for bucket in buckets for name in bucket]
    flat = [
        f"[{sum(parameters[name].elements for name in bucket)}]"
        for bucket in buckets
        for _ in bucket
    ]
    host = recording.is_kind("operator", "annotation")
    copies = np.flatnonzero(host & recording.named(BUCKET_COPY))
    views = np.flatnonzero(host & (parent < 0) & recording.named(BUCKET_VIEW))
    views = views[np.isin(np.array(_first_shapes(recording, views), object), flat)]
    top = np.zeros(len(recording), bool)
    for rows, shapes in ((copies, [one.shape for one in members]), (views, flat)):
        if not len(rows) or _first_shapes(recording, rows) != shapes * (len(rows) // len(members)):
            continue
        for row, one in zip(rows.tolist(), members * (len(rows) // len(members)), strict=True):
            layers.set(row, one.layer)
        top[rows] = True
        phase[rows] = BACKWARD
    above = nearest(top, parent)
    inside = (above >= 0) & (layers.own < 0)
    layers.own[inside] = layers.own[above[inside]]


def _first_shapes(recording: Recording, rows: np.ndarray) -> list[str | None]:
    """Return the shape of each row's first input as JSON text, None for none."""
    codes = np.asarray(recording["shapes"])[rows]
    first: dict[int, str | None] = {UNKNOWN: None}
    for code in np.unique(codes).tolist():
        if code >= 0:
            inputs: list[Any] = json.loads(recording.text("shapes")[code])
            first[code] = json.dumps(inputs[0], separators=(",", ":")) if inputs else None
    return [first[code] for code in codes.tolist()]
