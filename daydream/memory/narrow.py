"""Memory in 16 bits: what `torch.autocast` makes of activations, gradients on their way, and weights.

Products read and write 16 bits, some operators 32, all others what they are given (ATen/autocast_mode.h;
for the CPU ATen/autocast_mode.cpp). Which tensor an operator reads is not recorded: types follow from the
order of the forward pass (`daydream/model/autocast.py`). Products in 8 bits hold casts of their operands.

On a CPU also the memory that oneDNN takes for itself: workspaces of LSTM layers, and of products in 16 bits.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np

from daydream.arrays import distinct_rows, run_starts, take, turns
from daydream.costs.operators import operator, operators_that
from daydream.costs.workload.formulas import Argument, elements
from daydream.costs.workload.operator import itemsize
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    STEP,
    Allocations,
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
from daydream.model.precision import Work, walk, wants
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
    backward = in_phase(held, "backward") & (call >= 0)
    maker = np.where(backward, call, begin_row)
    outer = types.outermost[maker]
    of_product = types.in_product[maker]
    is_float = types.float32[begin_row] & held.where(phase=("forward", "loss", "backward"))
    is_float &= ~held.where(kind=("parameter", "optimizer_state")) & ~_of_other_types(held)
    gradient = held.where(kind="gradient")
    last = forward_calls(held, at="end")
    # torch's written-out attention works in 32 bits whatever it is given (attention.cpp).
    in_math = nearest(held, types.math, forward=True) >= 0
    kept = held.where(kind="activation") & (last >= 0) & ~in_math
    into_math = kept & take(types.in_math, last, False)
    saved = kept & types.in_product[last] & ~into_math
    recurrent = nearest(held, rows_that(held.trace, LAYER.search), forward=True)
    into_32 = backward & of_product & ~gradient & (types.given[outer] == 32)
    half = is_float & ((types.result[outer] == 16) | saved) & ~gradient & ~into_32 & ~in_math
    # oneDNN computes gradients of recurrent layers in 32 bits; what its own call asks for, and not torch, is a
    # copy of weights or room to compute in.
    half &= (recurrent < 0) | ~in_phase(held, "backward") | held.where(op=LAYER.pattern)
    casts = is_float & backward & of_product & (gradient | into_32) & ~in_math & (recurrent < 0)
    forward = parts_of(held, held.where(phase=("forward", "loss")), held["step"])
    copied = is_float & saved & (types.result[outer] == 32) & ~backward
    inside, values = (
        np.flatnonzero(rows & (forward.of >= 0)) for rows in (copied, into_math & is_float)
    )
    done, used = (used_until(held, rows, forward) for rows in (inside, values))

    size = len(held)
    _add_copies(held, types, maker)
    held.add(inside, end=done, kind="temporary")
    # What written-out attention reads goes when that is done, and it holds its values in 32 bits instead.
    ends = held["end"][values].copy()
    calls = [arguments_of(held.trace, row) for row in types.outermost[last[values]].tolist()]
    sizes = [4 * elements((call + [()] * 3)[2]) for call in calls]
    held["end"][values] = used
    held.add(values, bytes=sizes, recorded_bytes=sizes, begin=used, end=ends)
    _cast_gradients(held, np.flatnonzero(casts))
    half &= ~resize_workspaces(held, recurrent)
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
    begins = there[types.reads_32[call[there]]]
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


class _Types:
    """Types of the forward pass' outermost operators, by row of the trace; a last entry stands for no row.

    Attributes:
        outermost: the outermost operator around each row, -1 for none.
        in_product, in_math: whether a row is of a product, within written-out attention.
        float32: whether a row's own type is that.
        given, result: bits that an outermost operator of the forward pass is given and makes, 0 for others.
        reads_32: whether it is a product that reads what is held in 32 bits by whoever made it.
    """

    def __init__(self, held: Allocations) -> None:
        self.held = held
        self.on_gpu = bool((held["device"] >= 0).any())
        trace = held.trace
        size = len(trace)
        is_call = trace.is_kind("operator")
        outermost = enclosing(trace["parent"], is_call, np.arange(size), inner=False)
        # A row of no operator, such as a range between, belongs to the operator around it.
        self.outermost = np.append(outermost, UNKNOWN)
        self.math = rows_that(trace, WRITTEN_OUT.__eq__)
        self.in_math = enclosing(trace["parent"], self.math, np.arange(size), inner=True) >= 0
        self.float32 = np.append(rows_that(trace, FLOAT.__eq__, "dtype"), False)
        self.float32[:-1] |= trace["dtype"] < 0
        named = [operator(name) for name in trace.text("name")]
        inside: dict[int, set[int]] = defaultdict(set)  # the names within each outermost call
        codes = trace["name"].tolist()
        for row in np.flatnonzero(is_call).tolist():
            inside[int(outermost[row])].add(codes[row])
        wanted = [wants(op, on_gpu=self.on_gpu) for op in named]
        bits = {row: {wanted[code] for code in some} for row, some in inside.items()}
        product = np.zeros(size + 1, bool)
        product[[row for row, found in bits.items() if 16 in found]] = True
        self.in_product = product[self.outermost]

        self.given, self.result = np.zeros((2, size + 1), np.int64)
        self.reads_32 = np.zeros(size + 1, bool)
        loss = held.among(0, 32, 32)  # inside of autocast
        passes = [trace.code("phase", name) for name in ("forward", "loss")]
        tells = (np.arange(size) == outermost) & rows_that(trace, has_tensors, "shapes")
        rows = np.flatnonzero(tells & (trace["phase"] >= 0) & np.isin(trace["phase"], passes))
        keys = [trace[name][rows] for name in ("start_ns", "step", "rank")]
        steps = [key[np.lexsort((rows, *keys))].tolist() for key in (*keys[1:], rows)]
        for _, of_step in groupby(zip(*steps, strict=True), lambda each: each[:2]):
            mine = [row for *_, row in of_step]
            works = []
            for row in mine:
                op = named[codes[row]]
                is_loss = any("loss" in named[code].traits for code in inside[row])
                want = 16 if 16 in bits[row] else max(bits[row]) or loss * is_loss
                widens = not want and op.name in ("add", "sub", "mul", "div")
                widens = widens and self._reads_parameter(row)
                works.append(Work(want, adds=op.name in ("add", "sub"), widens=widens))
            kept = False  # whether what it reads is kept in 32 bits by what made it
            for row, types in zip(mine, walk(works, calls=True), strict=True):
                self.given[row], self.result[row] = types.given, types.runs
                self.reads_32[row] = kept and product[row]
                if named[codes[row]].traits.isdisjoint(("view", "no-work")):
                    # a product behind it reads what this operator made; `softmax` is made of `_softmax`
                    makers = [named[code] for code in inside[row]]
                    keeps = any(op.keeps_result or op.name == "softmax" for op in makers)
                    kept = keeps and 32 in bits[row] and 16 not in bits[row]
            self.reads_32[mine[0]] = True  # the model's own input

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
