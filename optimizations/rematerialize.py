"""Rematerialization: outputs of cheap operators are freed, and computed again in the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from daydream import Graph, Groups, NotApplicableError, Selection
from daydream.costs import in_place
from daydream.memory import (
    Allocations,
    calls_that_made,
    in_phase,
    input_of_parts,
    parts_of,
    place_before,
    put_away,
    renumber,
)
from daydream.model import backward_chains
from daydream.transforms import stages

STAGE = stages.WORK
EXCLUDES = frozenset({"checkpointing"})  # it computes the same work again, and more

# Cheap for the bytes they leave: a pass or two over their input, against products (Dynamic Tensor
# Rematerialization, Kirisame and others, arXiv 2006.09616, evicts by cost over size and staleness).
CHEAP = (
    r"^aten::(gelu|silu|relu|leaky_relu|elu|mish|tanh|sigmoid|softmax|_softmax|layer_norm|native_layer_norm|"
    r"rms_norm|group_norm|dropout|native_dropout)_?$"
)


def rematerialize(graph: Graph, *, op: str = CHEAP, layer: str | None = None) -> None:
    """Predict chosen operators that run again in the backward pass instead of keeping what they made.

    `op` is a regular expression on operators' names; of nested calls the outermost that matches. By
    default activations, softmax, norms and dropout, which cost little for the bytes they leave. `layer`
    limits it to layers that match. The work of each call runs once more, with its launches, on
    the thread of the backward pass, before the work of its autograd node; calls without one stay. For whole
    blocks see checkpointing.

    With a table of `daydream calibrate --tool` the calls take what was measured in place, what Python does
    around them included; without it that is not modelled.

    Memory: what a call made is gone from the next call of the forward pass until the node that
    uses it last; what the call reads is held until then.

    Args:
        op (REGEX): Operators to compute again.
        layer (GLOB): Modules, by path: blocks.*; by default all.
    """
    forward = graph.select(phase=("forward", "loss"), layer=layer).where(within=op)
    forward = forward - forward.where(kind="collective")
    forward.need(f"forward work of operators {op!r}{f' in layers {layer!r}' if layer else ''}")
    measured = in_place(graph, forward)
    if len(measured.tasks):
        measured.tasks.set(duration_ns=measured.duration_ns)
        graph.note(measured.words())
        return
    calls = forward.group_by("rank", "step", within=op)
    again, before = _with_nodes(graph, calls)
    time = again.total("duration_ns").sum()
    again.repeat(before=before)
    graph.note(f"Run again: {len(again):,} calls of {time / 1e6:,.3f} ms (CPU and device time together).")


def tool(*, op: str = CHEAP, layer: str | None = None) -> Any:
    """Return what runs a running model's operators again in its backward pass."""
    from daydream.instrument.tools import Rematerialization, chosen

    return Rematerialization(where=chosen(op, layer))


def _with_nodes(graph: Graph, calls: Groups) -> tuple[Groups, Selection]:
    """Return the calls that have autograd nodes, and the CPU task before which each runs again."""
    on_gpu = len(graph.select(on="gpu")) > 0
    nodes = backward_chains(calls)
    if not len(nodes):
        raise NotApplicableError(
            "no autograd node of these operators is known: there is no backward pass, or no sequence numbers"
        )
    first = nodes.first()
    ids = np.asarray(first.launch if on_gpu else first.ids, np.int64)
    place = {key: number for number, key in enumerate(calls.keys)}
    there = ids >= 0
    chosen = [place[key] for key, known in zip(nodes.keys, there.tolist(), strict=True) if known]
    return calls.take(np.array(chosen, np.int64)), graph.tasks(ids[there])


def memory(held: Allocations, *, op: str = CHEAP, layer: str | None = None) -> None:
    """Let what the calls made be gone between the two passes, and hold their inputs as long as needed."""
    every = parts_of(held, in_phase(held, "forward"), held["step"], calls_that_made(held, ""))
    call = calls_that_made(held, op)
    made = (call >= 0) & in_phase(held, "forward") & held.where(kind="activation", layer=layer)
    node = parts_of(held, in_phase(held, "backward"), held["step"], calls_that_made(held, ""))
    rows = np.flatnonzero(made & in_phase(held, "backward", at="end"))
    if not len(rows):
        raise NotApplicableError(f"no operator {op!r} leaves anything for the backward pass")
    begins = np.sort(every.first)
    at = np.searchsorted(begins, held["begin"][rows], side="right")
    gone = place_before(held, np.append(begins, [begins[-1:] + 1] * 2)[at + 1])  # the next call has read it
    firsts = np.sort(node.first)
    user = np.searchsorted(firsts, held["end"][rows], side="left") - 1  # the node during which it ends
    back = np.where(user >= 0, firsts[np.maximum(user, 0)] if len(firsts) else -np.inf, -np.inf)
    back = place_before(held, back)

    calls = parts_of(held, made, held["step"], call)
    inputs = input_of_parts(held, calls)[calls.of[rows]]
    known = inputs >= 0
    np.maximum.at(held["end"], inputs[known], back[known])
    put_away(held, rows, gone, back)
    renumber(held)
