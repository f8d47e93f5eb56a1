"""Replaced operators: an activation, a norm or any other becomes another one, of a cost measured or given."""

from __future__ import annotations

from typing import Any, Literal

from daydream import Graph, GraphError
from daydream.costs import in_place, replace_cost
from daydream.model import backward_chains
from daydream.transforms import stages

STAGE = stages.WORK

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
    layer norm), or identity. It changes nothing in a prediction.

    Not modelled: what another operator saves for the backward pass, and another course of training.
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
    nodes = backward_chains(called.group_by("step")).tasks if graph.trace is not None else called
    replace_cost(graph, called | nodes, factor)


def tool(*, op: str | None = None, layer: str | None = None, by: str | None = None) -> Any:
    """Return what replaces operators of a running model."""
    from daydream.optimizations._operator_tools import Replaced

    if op is None or by is None:
        raise GraphError("to replace operators for real, name them and what comes there: --op ... --by relu")
    return Replaced(op, layer, by)
