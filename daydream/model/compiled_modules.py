"""The parts of a model that are compiled: all of it in one call, or each module that matches by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.model.optimizers import update_of
from daydream.model.parameters import trained_parameters


@dataclass(frozen=True)
class CompiledPart:
    """What one compiled call holds.

    Attributes:
        tasks: tasks of the eager step that it takes the place of.
        parameters: parameter tensors that it uses.
    """

    tasks: Selection
    parameters: int


def compiled_parts(graph: Graph, tasks: Selection, layers: str | None) -> list[CompiledPart]:
    """Return what is compiled, a part for each compiled call.

    Args:
        graph: the graph of the trace.
        tasks: what could be compiled.
        layers: a shell pattern: each outermost module that matches is compiled by itself. None: all as one.

    Raises:
        NotApplicableError: no task is of such a layer.

    """
    if layers is None:
        return [CompiledPart(tasks, max(update_of(graph).tensors, 0))]
    blocks = tasks.group_by(block=layers)
    blocks.tasks.need(
        f"forward or backward work of layers {layers!r}; layers are recorded by `daydream collect`, and "
        "`*` is any text"
    )
    ids = np.split(blocks.by_group.ids, np.cumsum(blocks.sizes)[:-1])
    trained = trained_parameters(graph).tensors
    found = []
    for key, mine in zip(blocks.keys, ids, strict=True):
        inside = f"{key}."
        own = sum(many for layer, many in trained.items() if layer == key or layer.startswith(inside))
        if len(mine):
            found.append(CompiledPart(tasks.of(np.sort(mine), tasks.words), own))
    return found
