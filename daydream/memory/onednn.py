"""The memory that oneDNN takes for itself on a CPU: workspaces of LSTM layers, and of products in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from daydream.costs.operators import operator
from daydream.costs.resize.new_shapes import result_size
from daydream.costs.workload.shapes import Argument, elements
from daydream.lazy import regex
from daydream.memory.allocations import Allocations
from daydream.memory.enclosing import arguments_of
from daydream.memory.liveness import in_phase
from daydream.trace.trace import Trace

COMPUTES = r"^aten::(addmm|mm|convolution_backward)$"  # that oneDNN adds up in 32 bits
LAYER = regex(
    r"^aten::mkldnn_rnn_layer(_backward)?$"
)  # torch's call of it; other recurrent layers have none
PAGE, LINE, WIDE = 4096, 64, 4  # bytes: of a page, of a line of the cache, of a number in 32 bits


def gradients_of_layers(held: Allocations, layer: np.ndarray) -> np.ndarray:
    """Return what holds gradients of recurrent layers, which oneDNN computes in 32 bits: bool, shape (n,).

    What its own call asks for, and not torch, is a copy of weights or room to compute in.

    Args:
        held: the allocations.
        layer: which `LAYER` of the trace each belongs to, of the first n; -1 for none.
    """
    tensors = ~held.where(op=LAYER.pattern)[: len(layer)]
    return np.asarray((layer >= 0) & in_phase(held, "backward")[: len(layer)] & tensors)


def resize_workspaces(held: Allocations, layer: np.ndarray) -> np.ndarray:
    """Give what recurrent layers keep for their backward pass, and is no tensor, its size in 16 bits.

    Where its recorded size is not that of `lstm_workspace`, some part of it is held in 32 bits.

    Args:
        held: the allocations.
        layer: which `LAYER` of the trace each belongs to, of the first n; -1 for none.

    Returns:
        which these are, bool, shape (n,).
    """
    trace, found = held.trace, np.zeros(len(layer), bool)
    for row in np.flatnonzero((layer >= 0) & held.where(kind="activation")[: len(layer)]).tolist():
        arguments = arguments_of(trace, int(layer[row]))
        nbytes, recorded = int(held["bytes"][row]), int(held["recorded_bytes"][row])
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
    same = np.all(
        [held[name][mine][1:] == held[name][mine][:-1] for name in ("repeat", "begin_row")], axis=0
    )
    last = mine[np.append(~same, True)[: len(mine)]]  # of each call
    found = np.array(
        [_scratch_bytes(held.trace, row) for row in held["begin_row"][last].tolist()], np.int64
    )
    least, expected, most = found.reshape(-1, 3).T
    nbytes, begin = held.among(least, expected, most), held["begin"][last]
    held.add(
        last, bytes=nbytes, recorded_bytes=nbytes, begin=begin, end=begin + 1, kind="workspace"
    )


def _scratch_bytes(trace: Trace, row: int) -> tuple[int, int, int]:
    op, arguments = operator(trace.text("name")[int(trace["name"][row])]), arguments_of(trace, row)
    if op.family == "convolution":
        gradient = WIDE * elements(arguments[2]) if len(arguments) > 2 else 0
        return 0, gradient, gradient + WIDE // 2 * sum(map(elements, arguments[:2]))
    operands = sum(elements(part) for part in arguments[op.first : op.first + 2])
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
    state, gradient = states * _row(hidden, width) * width, states * _row(hidden, WIDE) * WIDE
    return sum(-(-part // PAGE) * PAGE for part in (gates, results, state, state, *[gradient] * 3))


def _row(size: int, width: int) -> int:
    """Return the numbers between the beginnings of two rows of so many."""
    line = LINE // width
    found = -(-size // line) * line
    return found + line if found % 256 == 0 else found
