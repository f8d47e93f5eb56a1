"""Whose gradients are accumulated behind a compiled backward pass, which hands over many at once.

Autograd's queue has the nodes that accumulate gradients before all others, and those among each other without
an order: they come out of a binary heap of equal entries, as `std::priority_queue` of GNU's library makes and
empties it (torch/csrc/autograd/engine.cpp, `ReadyQueue`; bits/stl_heap.h). That is always the same order.

Where an optimizer that updates parameter by parameter turns from one to the next.

Layers of work that is done parameter by parameter: gradients accumulated, updates, bucket copies.

The profiler names no parameter there. What it does record, the order and the shapes, is
held against the parameters that the run's metadata describes; work that does not fit has no layer.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.collect.derive.nesting import nearest
from daydream.collect.derive.phases import BACKWARD, OPTIMIZER, OPTIMIZER_RANGE
from daydream.collect.derive.recording import Recording
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN


def queue_order(count: int) -> list[int]:
    """Return in which order equal entries leave the queue that were put into it as 0, 1, 2, ...

    An entry that is put in stays at its end. The first one leaves; the last one's place is then found from
    the top down: each time the right child moves up (the left one where there is no right one).
    """
    heap = list(range(count))
    order = []
    while heap:
        order.append(heap[0])
        last = heap.pop()
        hole = 0
        left = len(heap)
        while 2 * hole + 1 < left:
            child = 2 * hole + 2 if 2 * hole + 2 < left else 2 * hole + 1
            heap[hole] = heap[child]
            hole = child
        if heap:
            heap[hole] = last
    return order


def owners_behind_compiled(
    passes: Sequence[Sequence[str | None]], shapes: Sequence[str], owners: Sequence[str]
) -> list[list[str]] | None:
    """Return the owner of each gradient that is accumulated, or None where order and shapes do not fit.

    Args:
        passes: of each compiled backward call, the shapes of the gradients accumulated behind it, in order.
        shapes: of each parameter, in order of registration, taken to be that of use.
        owners: of each parameter, its layer.

    The graphs of one pass run backwards: each holds the parameters right before those of the last one. The
    queue then holds the next graph, too, so that within a graph the shapes alone tell, or nothing does.
    """
    found = []
    end = len(shapes)
    for accumulated in passes:
        begin = end - len(accumulated)
        if begin < 0:
            return None
        mine = _in_queue if len(accumulated) == len(shapes) else _by_shape
        named = mine(accumulated, shapes[begin:end], owners[begin:end])
        if named is None:
            return None
        found.append(named)
        end = begin or len(shapes)
    return found if end == len(shapes) else None


def _in_queue(
    accumulated: Sequence[str | None], shapes: Sequence[str], owners: Sequence[str]
) -> list[str] | None:
    order = queue_order(len(shapes))
    return (
        [owners[place] for place in order]
        if [shapes[place] for place in order] == [*accumulated]
        else None
    )


def _by_shape(
    accumulated: Sequence[str | None], shapes: Sequence[str], owners: Sequence[str]
) -> list[str] | None:
    of_shape: dict[str | None, str] = {}
    if Counter(accumulated) != Counter(shapes):
        return None
    if any(
        of_shape.setdefault(shape, owner) != owner
        for shape, owner in zip(shapes, owners, strict=True)
    ):
        return None
    return [of_shape[shape] for shape in accumulated]


LONGEST_HEAD = 3  # operators that a parameter's share is known by


def cut_by_parameter(
    names: Sequence[int], shapes: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[int]:
    """Return for each operator of an update which parameter it works on; empty if it cannot be told.

    `names` and `shapes` (of the first input) are those of the operators in order, `groups` the
    shapes of the parameters, group by group. A group's parameters all take the same operators,
    on tensors of the parameter's shape or on scalars (step counts). Where the operators depend on
    the parameter (matrices are factored, vectors are not), each begins with the same operator.
    """
    flat = [shape for group in groups for shape in group]
    if not flat or len(names) < len(flat):
        return []
    if len(names) % len(flat) == 0 and _same_body(names, shapes, flat, 0, len(names) // len(flat)):
        lengths = [len(names) // len(flat)] * len(flat)
    else:
        lengths = _bodies_of_groups(names, shapes, groups, 0) or _by_head(names, shapes, flat)
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


def _by_head(names: Sequence[int], shapes: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return how many operators each parameter takes if each begins with the first ones of all."""
    kinds = [(name, shape == SCALAR) for name, shape in zip(names, shapes, strict=True)]
    for length in range(1, LONGEST_HEAD + 1):
        head = kinds[:length]
        begins = [at for at in range(len(kinds)) if kinds[at : at + length] == head]
        ends = [*begins[1:], len(names)]
        if len(begins) == len(wanted) and all(
            shape in shapes[begin:end]
            for shape, begin, end in zip(wanted, begins, ends, strict=True)
        ):
            return [end - begin for begin, end in zip(begins, ends, strict=True)]
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


# Gradients ---------------------------------------------------------------------------------------


def own_accumulated(
    recording: Recording, rows: np.ndarray, node_before: np.ndarray, layers: Layers
) -> None:
    """Give rows that accumulate a gradient the layer that owns the parameter.

    They hold the layer of the node before, which used the parameter. That is the owner, but for a
    module that hands its part's parameters to a function and never calls the part
    (`out_proj` of `nn.MultiheadAttention`): the gradient's shape then tells whose it is. Where
    several parameters of one shape can be meant, they come in reverse order of use, taken to be
    that of registration. A gradient of no parameter's shape is that of an input, and stays.
    """
    parameters = list(described(recording).values())
    inner = rows[recording.named(ACCUMULATE)[rows]]
    shapes = _first_shapes(recording, inner)
    if not parameters or not len(inner):
        return
    called = {
        text
        for text in recording.texts_of("layer", np.flatnonzero(recording.is_kind("module")))
        if text
    }
    compiled = recording.named(COMPILED_NODE)
    found: dict[int, str] = {}
    groups: dict[tuple[str | None, str], list[int]] = {}
    for row, shape in zip(inner.tolist(), shapes, strict=True):
        if shape is not None:
            groups.setdefault((layers.text(row), shape), []).append(row)
    before = dict(zip(rows.tolist(), node_before.tolist(), strict=True))
    claimed: set[Parameter] = set()
    unsure = []
    for (layer, shape), members in groups.items():
        alike = [one for one in reversed(parameters) if one.shape == shape]
        likely = [
            one
            for one in alike
            if one.layer == layer or (_below(one.layer, layer) and one.layer not in called)
        ]
        claimed.update(likely)
        if likely:
            _in_turn(found, members, likely, compiled, before)
        else:
            unsure.append((layer, shape, members))
    for layer, shape, members in unsure:
        others = [one for one in reversed(parameters) if one.shape == shape and one not in claimed]
        below = [one for one in others if _below(one.layer, layer)]
        if below or others:
            _in_turn(found, members, below or others, compiled, before)
    found.update(_behind_compiled(inner.tolist(), shapes, compiled, before, parameters))
    for row, owner in found.items():
        layers.set(row, owner)


def _behind_compiled(
    rows: list[int],
    shapes: list[str | None],
    compiled: np.ndarray,
    before: dict[int, int],
    parameters: list[Parameter],
) -> dict[int, str]:
    """Return the owners of rows behind compiled backward calls; nothing where their order does not tell."""
    calls: dict[int, list[tuple[int, str | None]]] = {}
    for row, shape in zip(rows, shapes, strict=True):
        if before[row] >= 0 and compiled[before[row]]:
            calls.setdefault(before[row], []).append((row, shape))
    owners = owners_behind_compiled(
        [[shape for _, shape in call] for call in calls.values()],
        [one.shape for one in parameters],
        [one.layer for one in parameters],
    )
    pairs = zip(calls.values(), owners or [], strict=False)
    return {
        row: owner for call, named in pairs for (row, _), owner in zip(call, named, strict=True)
    }


def _in_turn(
    found: dict[int, str],
    rows: list[int],
    owners: list[Parameter],
    compiled: np.ndarray,
    before: dict[int, int],
) -> None:
    """Note the owners of rows, which come in turn, pass after pass; behind compiled calls they do not."""
    several = len({one.layer for one in owners}) > 1
    for index, row in enumerate(rows):
        if not (several and before[row] >= 0 and compiled[before[row]]):
            found[row] = owners[index % len(owners)].layer


def _below(layer: str, above: str | None) -> bool:
    return above is not None and layer.startswith(f"{above}.")


# Updates -----------------------------------------------------------------------------------------


def own_updates(
    recording: Recording,
    parent: np.ndarray,
    phase: np.ndarray,
    accumulated: np.ndarray,
    layers: Layers,
) -> None:
    """Give an optimizer's operators the layer of the parameter they update, where it goes one by one.

    `foreach` and `fused` updates are of all parameters at once and have no layer.
    `accumulated` are the rows that accumulate gradients, with their layers.
    """
    parameters = described(recording)
    ranges = np.flatnonzero(
        recording.is_kind("operator", "annotation") & recording.named(OPTIMIZER_RANGE)
    )
    work = np.flatnonzero(recording.is_kind("operator") & (phase == OPTIMIZER) & (parent >= 0))
    if not parameters or not len(ranges) or not len(work):
        return
    used = {
        (layers.text(row), shape)
        for row, shape in zip(
            accumulated.tolist(), _first_shapes(recording, accumulated), strict=True
        )
        if shape is not None
    }
    work = work[np.isin(parent[work], ranges)]
    order = np.argsort(parent[work], kind="stable")
    work = work[order]
    holders, begins = np.unique(parent[work], return_index=True)
    top = np.zeros(len(recording), bool)
    for holder, members in zip(holders.tolist(), np.split(work, begins[1:]), strict=True):
        for groups in _groups_of(recording, holder, parameters, used):
            owners = _cut(recording, members, groups)
            if owners:
                top[members] = True
                for row, owner in zip(members.tolist(), owners, strict=True):
                    layers.set(row, owner)
                break
    if top.any():
        above = nearest(top, parent)
        inside = (above >= 0) & ~top & ~recording.is_kind("module")
        layers.own[inside] = layers.own[above[inside]]


def _groups_of(
    recording: Recording,
    holder: int,
    parameters: dict[str, Parameter],
    used: set[tuple[str | None, str]],
) -> list[list[list[Parameter]]]:
    """Return what an optimizer's range may go through: the groups of each optimizer of its name.

    First all their parameters, then those only that gradients were accumulated for.
    """
    (name,) = recording.texts_of("name", [holder])
    ways = []
    for optimizer in recording.metadata.get("optimizers", []):
        if f"#{optimizer['name']}." not in (name or ""):
            continue
        if any(group["tensors"] != len(group["parameters"]) for group in optimizer["groups"]):
            continue  # some are of no module
        groups = [
            [parameters[one] for one in group["parameters"] if one in parameters]
            for group in optimizer["groups"]
        ]
        ways.append(groups)
        ways.append([[one for one in group if (one.layer, one.shape) in used] for group in groups])
    return [[group for group in groups if group] for groups in ways]


def _cut(recording: Recording, rows: np.ndarray, groups: list[list[Parameter]]) -> list[str]:
    names = np.asarray(recording["name"])[rows].tolist()
    shapes = [shape or SCALAR for shape in _first_shapes(recording, rows)]
    owners = cut_by_parameter(names, shapes, [[one.shape for one in group] for group in groups])
    flat = [one.layer for group in groups for one in group]
    return [flat[index] for index in owners]


# Buckets -----------------------------------------------------------------------------------------


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
