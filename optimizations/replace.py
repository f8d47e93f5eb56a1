"""Replaced operators: an activation, a norm or any other becomes another one, of a cost measured or given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import in_place, replace_cost
from daydream.memory import Allocations, KeptCalls, kept_calls, renumber
from daydream.model import backward_chains
from daydream.transforms import stages

STAGE = stages.WORK

# What autograd keeps of each (derivatives.yaml of torch 2.13): its result, its input or neither.
KEEPS_RESULT, KEEPS_INPUT = ("relu", "tanh", "sigmoid"), ("silu", "rms_norm")
By = Literal["identity", "relu", "silu", "tanh", "sigmoid", "rms_norm"]


def replace(
    graph: Graph,
    *,
    op: str | None = None,
    layer: str | None = None,
    factor: float | None = None,
    by: By | None = None,
) -> None:
    """Predict operators that are replaced by others, such as GELU by ReLU or a layer norm by an RMS norm.

    `op` is a regular expression on operators' names, which the operators around a task count for too;
    `layer` a shell pattern. In the forward pass these choose calls; the autograd nodes of those
    calls are replaced with them. What the new code takes no trace tells: with a table of `daydream
    calibrate --tool` it is what was measured in place, call by call; for calls that were not
    measured `factor` times the old, and without a factor there is no prediction. Without `op` and
    `layer` all calls that the table holds are replaced.

    `by` says what `daydream confirm` and `calibrate --tool` put there in a running model: a function of
    torch.nn.functional of the operator's first input (rms_norm also takes shape and weight of a
    layer norm), or identity. It changes nothing in the time that is predicted.

    Memory: `by` says what the new code keeps for its gradient: its result (relu, tanh, sigmoid), its input
    (silu, rms_norm) or nothing (identity). Without it that is not known: from its result alone to
    what the old one keeps and as much as its result besides.

    Not modelled: another course of training.

    Args:
        op (REGEX): Operators to replace.
        layer (GLOB): Modules, by path: blocks.*; by default all.
        factor: How many times as long they take.
        by: The operator that takes their place.
    """
    if factor is not None and factor < 0:
        raise GraphError(f"factor must be 0 or more, not {factor:g}")
    if op is None and layer is None:
        measured = in_place(graph).tasks
        if not len(measured):
            raise GraphError("name what is replaced: --op '^aten::gelu$', or --layer 'blocks.*.norm'")
        replace_cost(graph, measured, factor)
        return
    if factor == 1:
        graph.does_not_apply("a factor of 1 leaves every operator as it is")
    on = "gpu" if len(graph.select(on="gpu")) else "cpu"
    called = graph.select(on=on, phase=("forward", "loss"), layer=layer)
    called = called if op is None else called.where(within=op)
    called.need(f"work of operators {op or '*'!r} in layers {layer or '*'!r}")
    nodes = _nodes(graph, called, on, op, layer) if graph.trace is not None else called
    replace_cost(graph, called | nodes, factor)


def _nodes(graph: Graph, called: Selection, on: str, op: str | None, layer: str | None) -> Selection:
    """Return the backward work of calls; in compiled code, one node for all calls, that of the layers."""
    try:
        return backward_chains(called.group_by("step")).tasks
    except NotApplicableError:
        of_layers = graph.select(on=on, phase="backward", layer=layer)
        if op is not None or not len(of_layers):
            raise
        return of_layers


def memory(
    held: Allocations,
    *,
    op: str | None = None,
    layer: str | None = None,
    factor: float | None = None,
    by: By | None = None,
) -> None:
    """Keep for the backward pass what the new code keeps, and not what the old one did."""
    calls = kept_calls(held, op or "", layer)
    if (op is None and layer is None) or not len(calls):
        raise NotApplicableError("which memory is due to the calls that are replaced is not known")
    size = np.where(calls.output >= 0, held["recorded_bytes"][calls.output], 0)
    if by is None:
        calls.add(held, held.among(0 * size, 0 * size, size))
        ends = held["end"].copy()
        calls.drop_inputs(held)
        held["end"][:] = held.among(held["end"], ends, ends)
    elif by in KEEPS_INPUT:
        calls.drop_outputs(held)
        calls.keep(held, calls.input)
        if by == "rms_norm":  # on a CPU it is made of others, and the product with the weight keeps its input
            calls.add(held, np.where(held["device"][calls.output] < 0, size, 0))
    elif by in KEEPS_RESULT:
        calls.drop_inputs(held)
        calls.keep(held, calls.output)
    else:
        _take_out(held, calls)
    renumber(held)


def _take_out(held: Allocations, calls: KeptCalls) -> None:
    """Take calls away: what reads their results reads their inputs, which live as long as those would."""
    there = (calls.input >= 0) & (calls.output >= 0)
    calls.drop_inputs(held)
    np.maximum.at(held["end"], calls.input[there], held["end"][calls.output[there]])
    goes = calls.besides >= 0
    goes[calls.output[there]] = True
    held.remove(goes)


def tool(*, op: str | None = None, layer: str | None = None, by: str | None = None) -> Any:
    """Return what replaces operators of a running model."""
    from daydream.instrument.tools import Replacing, chosen

    if op is None or by is None:
        raise GraphError("to replace operators for real, name them and what comes there: --op ... --by relu")
    return Replacing(chosen(op, layer), _function(by), (0, 1, 2) if by == "rms_norm" else (0,))


def _function(by: str) -> Callable[..., Any]:
    if by == "identity":
        return lambda value: value
    from torch.nn import functional

    found: Callable[..., Any] = getattr(functional, by)
    return found
