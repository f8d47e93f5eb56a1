"""Memory in 16 bits: what `torch.autocast` makes of activations, gradients on their way, and weights.

Products read and write 16 bits, some operators 32, all others what they are given (ATen/autocast_mode.h;
for the CPU ATen/autocast_mode.cpp). Which tensor an operator reads is not recorded: types follow from the
order of the forward pass (`daydream/model/autocast.py`). Products in 8 bits hold casts of their operands.

On a CPU also the memory that oneDNN takes for itself: workspaces of LSTM layers, and of products in 16 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np

from daydream.arrays import distinct_rows, run_starts, take, turns
from daydream.costs.operators import Operator, operator, operators_that
from daydream.costs.workload.operator import itemsize
from daydream.costs.workload.shapes import Argument, elements
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    STEP,
    Allocations,
    Parts,
    between,
    parts_of,
    place_before,
)
from daydream.memory.enclosing import arguments_of, has_tensors, rows_that
from daydream.memory.liveness import (
    calls_that_made,
    first_elements,
    forward_calls,
    in_phase,
    nearest,
    next_call,
    used_until,
)
from daydream.model.autocast import Work, walk, wants
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace

COMPUTES = r"^aten::(addmm|mm|convolution_backward)$"  # that oneDNN adds up in 32 bits
LAYER = regex(
    r"^aten::mkldnn_rnn_layer(_backward)?$"
)  # torch's call of it; other recurrent layers have none
# Bytes: of a page, of a line of the cache, of a number in 32 bits
PAGE = 4096
LINE = 64
WIDE = 4


def resize_workspaces(held: Allocations, layer: np.ndarray) -> np.ndarray:
    """Give what recurrent layers keep for their backward pass, and is no tensor, its size in 16 bits.

    Where its recorded size is not that of `lstm_workspace`, some part of it is held in 32 bits.

    Args:
        held: the allocations.
        layer: which `LAYER` of the trace each belongs to, of the first n; -1 for none.

    Returns:
        which these are, bool, shape (n,).
    """
    trace = held.trace
    found = np.zeros(len(layer), bool)
    for row in np.flatnonzero((layer >= 0) & held.where(kind="activation")[: len(layer)]).tolist():
        arguments = arguments_of(trace, int(layer[row]))
        nbytes = int(held["bytes"][row])
        recorded = int(held["recorded_bytes"][row])
        if recorded <= WIDE * max(map(elements, arguments), default=0):
            continue
        found[row] = True
        part = lstm_workspace(arguments, WIDE // 2) / recorded
        if recorded != lstm_workspace(arguments, WIDE):
            part = held.among(0.5, 0.75, 1.0)
        held["bytes"][row] = round(nbytes * part)
    return found


def resize_scratch(held: Allocations, rows: np.ndarray) -> np.ndarray:
    """Give what recurrent layers hold while they run half its size, at the least nothing, at the most all.

    Args:
        held: the allocations.
        rows: which are computed in 16 bits, int64.

    Returns:
        which these are, bool, shape (rows of the table,).
    """
    inside = (held["begin_row"] == held["end_row"]) & held.where(kind="temporary", op=LAYER.pattern)
    found = np.zeros(len(held), bool)
    found[rows] = inside[rows]
    half = held["bytes"][found] // 2
    held["bytes"][found] = held.among(0 * half, half, 2 * half)
    return found


def add_scratch(held: Allocations, rows: np.ndarray) -> None:
    """Add what products and convolutions in 16 bits on a CPU hold while they run.

    They add up in 32 bits. Products also copy operands into the order in which they read them: at the most
    that is the result in 32 bits and both operands, at the least nothing, by blocks that depend on the
    processor. Expected is the middle. What convolutions copy is recorded; they add up gradients of weights.

    Args:
        held: the allocations.
        rows: which are computed in 16 bits, int64.
    """
    computed = np.zeros(len(held), bool)
    computed[rows] = True
    computed &= (held["device"] < 0) & held.where(op=COMPUTES)
    mine = np.flatnonzero(computed)
    keys = [held[name][mine] for name in ("rank", "repeat", "begin_row")]
    mine = mine[np.lexsort((held["begin"][mine], *keys))]
    backwards = mine[::-1]
    last = run_starts(held["repeat"][backwards]) | run_starts(held["begin_row"][backwards])
    last = mine[last[::-1]]  # of each call
    found = np.array(
        [_scratch_bytes(held.trace, row) for row in held["begin_row"][last].tolist()], np.int64
    )
    least, expected, most = found.reshape(-1, 3).T
    nbytes = held.among(least, expected, most)
    begin = held["begin"][last]
    held.add(
        last, bytes=nbytes, recorded_bytes=nbytes, begin=begin, end=begin + 1, kind="workspace"
    )


def _scratch_bytes(trace: Trace, row: int) -> tuple[int, int, int]:
    op = operator(trace.text("name")[int(trace["name"][row])])
    arguments = arguments_of(trace, row)
    if op.family == "convolution":
        gradient = WIDE * elements(arguments[2]) if len(arguments) > 2 else 0
        return 0, gradient, gradient + WIDE // 2 * sum(map(elements, arguments[:2]))
    operands = sum(elements(part) for part in arguments[op.first : op.first + 2])
    from daydream.costs.resize.new_shapes import result_size

    most = WIDE * math.prod(result_size(op.name, arguments)) + WIDE // 2 * operands
    return 0, most // 2, most


def lstm_workspace(arguments: Sequence[Argument], width: int) -> int:
    """Return the bytes of the workspace of a layer with numbers of so many bytes.

    Gates, results and both states of each step are held in the numbers of the layer, and three gradients of
    states in 32 bits; each begins on a page, and rows begin on a line and do not lie 256 numbers apart
    (oneDNN 3, src/cpu/rnn/rnn_utils: `get_good_ld`, `set_offsets`). Where the layer's input is wider
    than its state some sizes differ.

    Args:
        arguments: shapes of a call of `aten::mkldnn_rnn_layer`: input (steps, samples, features) and weights.
        width: bytes of a number.

    Returns:
        bytes; 0 if these are no such shapes.
    """
    tensors = [part for part in arguments[:3] if isinstance(part, tuple)]
    if [len(part) for part in tensors] != [3, 2, 2]:
        return 0
    steps, samples, hidden = *tensors[0][:2], tensors[2][1]
    gates = steps * samples * _row(4 * hidden, width) * width
    results = steps * samples * _row(hidden, width) * width
    states = 2 * (steps + 1) * samples
    state = states * _row(hidden, width) * width
    gradient = states * _row(hidden, WIDE) * WIDE
    return sum(-(-part // PAGE) * PAGE for part in (gates, results, state, state, *[gradient] * 3))


def _row(size: int, width: int) -> int:
    """Return the numbers between the beginnings of two rows of so many."""
    line = LINE // width
    found = -(-size // line) * line
    return found + line if found % 256 == 0 else found


def hold_16_bits(held: Allocations, **options: Any) -> None:  # noqa: ARG001 - those of any optimization
    """Let products and what follows them hold 16 bits, beside 16-bit copies of their weights.

    A weight is cast once in a forward pass, and its copy stays until that ends and the product's backward
    pass is done. What an operator keeps in 32 bits for itself (the probabilities of an attention that is
    written out) has a copy for the product that reads it. Gradients of weights come in 16 bits and are cast
    to 32. The loss is expected inside of autocast, in 32 bits, as in torch's recipe for it; outside, where
    it follows the model's output, is the least.

    Args:
        held: the allocations.
        **options: of the optimization, whatever they are.
    """
    types = _Types(held)
    if types.on_gpu:
        held.own_error = max(held.own_error, OWN_ERROR_ON_GPU)
    begin_row = held["begin_row"]
    call = forward_calls(held)
    backward = (held["phase"] == PHASES.index("backward")) & (call >= 0)
    maker = np.where(backward, call, begin_row)
    made_in = take(types.result, types.outermost[maker], 0)
    of_product = types.in_product[maker]
    is_float = (
        types.float32[begin_row]
        & (begin_row >= 0)
        & held.where(phase=("forward", "loss", "backward"))
    )
    is_float &= ~held.where(kind=("parameter", "optimizer_state"))
    is_float &= ~_of_other_types(held)
    gradient = held.where(kind="gradient")

    _add_copies(held, types, maker)
    size = len(begin_row)
    last = forward_calls(held, at="end")[:size]
    # torch's written-out attention works in 32 bits whatever it is given (attention.cpp).
    in_math = nearest(held, types.math, forward=True)[:size] >= 0
    into_math = take(types.in_math, last, False) & (last >= 0) & ~in_math
    into_math &= held.where(kind="activation")[:size] & is_float
    saved = (
        held.where(kind="activation")[:size]
        & types.in_product[last]
        & (last >= 0)
        & ~into_math
        & ~in_math
    )
    wide = made_in == 32
    copied = np.flatnonzero(is_float & saved & wide & ~backward)
    into_32 = (
        backward & of_product & ~gradient & (take(types.given, types.outermost[maker], 0) == 32)
    )
    half = is_float & ((made_in == 16) | saved) & ~gradient & ~into_32 & ~in_math
    recurrent = nearest(held, rows_that(held.trace, LAYER.search), forward=True)[:size]
    # oneDNN computes gradients of recurrent layers in 32 bits; what its own call asks for, and not torch, is a
    # copy of weights or room to compute in.
    half &= (
        (recurrent < 0) | ~in_phase(held, "backward")[:size] | held.where(op=LAYER.pattern)[:size]
    )
    forward = parts_of(held, held.where(phase=("forward", "loss")), held["step"])
    inside = copied[forward.of[copied] >= 0]
    held.add(inside, end=used_until(held, inside, forward), kind="temporary")
    _cast_values(held, types, np.flatnonzero(into_math & (forward.of[:size] >= 0)), last, forward)
    casts = is_float & backward & of_product & (gradient | into_32) & ~in_math & (recurrent < 0)
    _cast_gradients(held, np.flatnonzero(casts))
    half &= ~resize_workspaces(held, recurrent)
    half &= ~resize_scratch(held, np.flatnonzero(half))[:size]
    held.scale(np.append(half, np.zeros(len(held) - size, bool)), 0.5)
    add_scratch(held, np.flatnonzero(half | casts))


def hold_8_bits(held: Allocations) -> None:
    """Hold casts of the operands of linear layers, 1 B an element, while each product runs.

    At the least a linear layer saves its input so, as libraries do that keep the cast.

    Args:
        held: the allocations.
    """
    pattern = operators_that(lambda op: op.is_linear or op.name == "matmul")
    call = calls_that_made(held, pattern)
    products = parts_of(
        held, (call >= 0) & held.where(phase=("forward", "backward")), held["phase"], call
    )
    sizes = []
    for row in products.keys[:, -1].tolist():
        arguments = map(elements, arguments_of(held.trace, row))
        sizes.append(sum(sorted(arguments, reverse=True)[:2]))
    like = np.full(len(products), UNKNOWN)
    rows = np.flatnonzero(products.of >= 0)
    like[products.of[rows]] = rows
    ends = place_before(products.until)
    held.add(
        like, bytes=np.array(sizes, np.int64), begin=products.first, end=ends, kind="temporary"
    )
    last = forward_calls(held, at="end")
    linear = np.append(rows_that(held.trace, re.compile(pattern).search), False)
    saved = held.where(kind="activation") & (last >= 0) & linear[last]
    widths = np.array([*(itemsize(text) or 4 for text in held.trace.text("dtype")), 4])
    width = np.append(widths[held.trace["dtype"]], 4)[held["begin_row"]]
    held.scale(
        saved, held.among((1 / width)[saved], np.ones(int(saved.sum())), np.ones(int(saved.sum())))
    )


WRITTEN_OUT = "aten::_scaled_dot_product_attention_math"
FLOAT = "float32"
OWN_ERROR_ON_GPU = 0.06  # nine of ten of 16 bits on the H200 (docs/accuracy.md): types are inferred


def _cast_gradients(held: Allocations, rows: np.ndarray) -> None:
    """Let gradients come in 16 bits, and in 32 bits from a node of their own that casts them.

    It runs when what the product's node had saved is gone. Of several it is the one of the last argument
    first: autograd runs the youngest nodes first (torch/csrc/autograd/engine.cpp).
    """
    behind = next_call(held, rows)
    order = np.argsort(-held["begin"][rows], kind="stable")
    turn = np.empty(len(rows), np.int64)
    turn[order] = turns(behind[order])
    at = between(behind + STEP, turn + 1, len(rows) + 1)
    held.add(rows, bytes=held["recorded_bytes"][rows] // 2, end=at + 1, kind="temporary")
    held["begin"][rows] = at


def _cast_values(
    held: Allocations, types: _Types, rows: np.ndarray, last: np.ndarray, forward: Parts
) -> None:
    """Let what written-out attention reads go when that is done, and hold its values in 32 bits instead."""
    if not len(rows):
        return
    used = used_until(held, rows, forward)
    ends = held["end"][rows].copy()
    calls = [arguments_of(held.trace, row) for row in types.outermost[last[rows]].tolist()]
    sizes = np.array([4 * elements((call + [()] * 3)[2]) for call in calls], np.int64)
    held["end"][rows] = used
    held.add(rows, bytes=sizes, recorded_bytes=sizes, begin=used, end=ends)


def _of_other_types(held: Allocations) -> np.ndarray:
    """Return what is no number of 32 bits: indices beside values half as large, masks beside values."""
    found = np.zeros(len(held), bool)
    for trait, times in (("indices", 2.0), ("mask", 0.25)):
        made = held.where(op=operators_that(lambda op: trait in op.traits))  # noqa: B023 - asked at once
        rows = np.flatnonzero(made & (held["begin"] > BEFORE))
        nbytes: dict[tuple[int, int], set[int]] = {}
        keys = list(
            zip(held["begin_row"][rows].tolist(), held["repeat"][rows].tolist(), strict=True)
        )
        for key, size in zip(keys, held["recorded_bytes"][rows].tolist(), strict=True):
            nbytes.setdefault(key, set()).add(size)
        sizes = held["recorded_bytes"][rows].tolist()
        found[rows] = [size / times in nbytes[key] for key, size in zip(keys, sizes, strict=True)]
    return found | _statistics(held)


def _statistics(held: Allocations) -> np.ndarray:
    """Return what norms keep of mean and deviation, in 32 bits: all that is smaller than their result."""
    norm = nearest(
        held, rows_that(held.trace, lambda name: operator(name).family == "normalization")
    )
    rows = np.flatnonzero((norm >= 0) & held.where(phase=("forward", "loss")))
    first, call = distinct_rows([held["repeat"][rows], norm[rows]])
    largest = np.zeros(len(first), np.int64)
    np.maximum.at(largest, call, held["recorded_bytes"][rows])
    found = np.zeros(len(held), bool)
    found[rows] = held["recorded_bytes"][rows] < largest[call]
    return found


def _add_copies(held: Allocations, types: _Types, maker: np.ndarray) -> None:
    """Add 16-bit copies of products' weights and of inputs that no allocation of theirs holds.

    Such inputs are the model's own, and what an operator that computes in 32 bits keeps for its own backward
    pass: the probabilities of an attention that is written out.
    """
    outer = types.outermost[maker]
    product = (maker >= 0) & types.in_product[maker] & (held["begin"] > BEFORE)
    rows = np.flatnonzero(product)
    each, group = distinct_rows([held["repeat"][rows], outer[rows]])
    call = outer[rows[each]]
    backward = held["phase"][rows] == PHASES.index("backward")
    begin = held["begin"][rows]
    behind = next_call(held, rows)
    first = np.full(len(call), AFTER)
    done = np.full(len(call), BEFORE)
    np.minimum.at(first, group[~backward], begin[~backward])
    np.maximum.at(done, group[backward], behind[backward])
    leader = np.full(len(call), UNKNOWN)
    order = np.argsort(-begin, kind="stable")
    order = order[~backward[order]]
    leader[group[order]] = rows[order]
    there = np.flatnonzero(leader >= 0)
    passes = parts_of(held, held.where(phase="forward"), held["step"])
    ends = np.where(passes.of >= 0, place_before(take(passes.until, passes.of, 0)), held["end"])
    ends = np.maximum(ends[leader[there]], done[there])
    _hold(types, leader[there], call[there], types.weight_elements, first[there], ends)
    # They are held in 32 bits by whoever made them, and in 16 bits for the product.
    begins = there[take(types.is_first | types.reads_result, call[there], False)]
    ends = np.maximum(done[begins], first[begins])
    read = partial(first_elements, held.trace)
    _hold(types, leader[begins], call[begins], read, first[begins], ends)


def _hold(
    types: _Types,
    like: np.ndarray,
    calls: np.ndarray,
    elements: Callable[[int], int],
    begin: np.ndarray,
    end: np.ndarray,
) -> None:
    """Add copies in 16 bits, for the backward pass, of what calls read in 32, like allocations of these rows."""
    size = np.array([2 * elements(row) * types.float32[row] for row in calls.tolist()], np.int64)
    some = np.flatnonzero(size)
    ends = {"begin": begin[some], "end": end[some]}
    types.held.add(
        like[some], bytes=size[some], recorded_bytes=size[some], kind="activation", **ends
    )


@dataclass
class _Types:
    """Types of the forward pass' outermost operators, by row of the trace; a last entry stands for no row."""

    held: Allocations

    def __post_init__(self) -> None:
        trace = self.held.trace
        size = len(trace)
        is_call = np.append(trace.is_kind("operator"), False)

        def among(fits: Callable[[Operator], object]) -> np.ndarray:
            return is_call & np.append(rows_that(trace, lambda name: fits(operator(name))), False)

        outermost = enclosing(trace["parent"], is_call[:-1], np.arange(size), inner=False)
        outermost = np.append(outermost, UNKNOWN)
        # A row of no operator, such as a range between, belongs to the operator around it.
        self.outermost = outermost
        self.on_gpu = bool((self.held["device"] >= 0).any())
        product = among(lambda op: wants(op, on_gpu=self.on_gpu) == 16)
        wide = among(lambda op: wants(op, on_gpu=self.on_gpu) == 32)
        self.product = self._any_inside(product)
        self.wide = self._any_inside(wide) & ~self.product
        self.loss = self._any_inside(among(lambda op: "loss" in op.traits))
        # `softmax` is made of `_softmax`.
        self.keeps_result = self._any_inside(
            among(lambda op: op.keeps_result or op.name == "softmax")
        )
        self.view = among(lambda op: not op.traits.isdisjoint(("view", "no-work")))
        self.sum = among(lambda op: op.name in ("add", "sub"))
        self.factor = among(lambda op: op.name in ("mul", "div"))
        self.math = rows_that(trace, WRITTEN_OUT.__eq__)
        self.in_math = enclosing(trace["parent"], self.math, np.arange(size), inner=True) >= 0
        self.in_product = take(self.product, outermost, False) & (outermost >= 0)
        dtype = trace.text("dtype")
        codes = np.array([*(text == FLOAT for text in dtype), True])
        self.float32 = np.append(codes[trace["dtype"]], False)
        self._flow(np.append(trace["phase"], UNKNOWN))

    def _any_inside(self, rows: np.ndarray) -> np.ndarray:
        found = np.zeros(len(rows), bool)
        found[self.outermost[rows]] = True
        return found[:-1]

    def _flow(self, phase: np.ndarray) -> None:
        """Find each outermost operator's type, `result`, and that of what it is `given`; 0 for others."""
        trace = self.held.trace
        size = len(trace)
        self.result, self.given = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self.is_first, self.reads_result = np.zeros(size, bool), np.zeros(size, bool)
        passes = [trace.code("phase", name) for name in ("forward", "loss")]
        own = np.arange(size) == self.outermost[:-1]
        rows = np.flatnonzero(own & np.isin(phase[:-1], [code for code in passes if code >= 0]))
        rows = rows[rows_that(trace, has_tensors, "shapes")[rows]]
        order = np.lexsort(
            (rows, trace["start_ns"][rows], trace["step"][rows], trace["rank"][rows])
        )
        loss = int(
            self.held.among(np.array([0]), np.array([32]), np.array([32]))[0]
        )  # inside of autocast
        steps = zip(
            trace["rank"][rows[order]].tolist(), trace["step"][rows[order]].tolist(), strict=True
        )
        ordered = zip(steps, rows[order].tolist(), strict=True)
        for _, of_step in groupby(ordered, lambda each: each[0]):
            mine = [row for _, row in of_step]
            self.is_first[mine[0]] = True
            kept = False  # whether what the last operator made is kept in 32 bits by itself
            for row, types in zip(
                mine, walk([self._work(row, loss) for row in mine], calls=True), strict=True
            ):
                self.given[row] = types.given
                self.result[row] = types.runs
                self.reads_result[row] = kept and self.product[row]
                if not self.view[row]:  # a product behind it reads what this operator made
                    kept = bool(self.wide[row] and self.keeps_result[row])

    def _work(self, row: int, loss: int) -> Work:
        """Return what decides an operator's type, for a loss that has so many bits, 0 for what it is given."""
        bits = 16 if self.product[row] else 32 if self.wide[row] else loss if self.loss[row] else 0
        widens = not bits and (self.sum[row] or self.factor[row]) and self._reads_parameter(row)
        return Work(bits, adds=bool(self.sum[row]), widens=bool(widens))

    @cached_property
    def _parameters(self) -> set[tuple[int, ...]]:
        return {tuple(each["shape"]) for listed in self.held.parameters.values() for each in listed}

    def _reads_parameter(self, row: int) -> bool:
        """Tell whether a sum or factor takes a parameter, which is 32 bits wide, to a larger tensor."""
        tensors = [
            part
            for part in arguments_of(self.held.trace, row)[:2]
            if isinstance(part, tuple) and part
        ]
        return (
            len(tensors) == 2
            and tensors[0] != tensors[1]
            and not self._parameters.isdisjoint(tensors)
        )

    def weight_elements(self, row: int) -> int:
        """Return the elements of matrices and kernels, no biases, that a product takes as parameters."""
        trace = self.held.trace
        places = operator(trace.text("name")[trace["name"][row]]).parameters
        given = [part for at, part in enumerate(arguments_of(trace, row)) if at in places]
        return sum(elements(part) for part in given if len(part) > 1)
