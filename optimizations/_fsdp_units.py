"""Units that parameters are gathered and gradients scattered in: blocks of a model, or runs of gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.model import (
    BUCKET_MB,
    Gradients,
    block_of_layers,
    compute_lane,
    first_parameter_uses,
    repeated_blocks,
)


@dataclass(frozen=True)
class Units:
    """The units of all steps, one after the other in the order in which their gradients are complete.

    `forward` is the first task of the forward pass that reads a unit's parameters, `backward` the
    first one of its backward pass, `node` the one that completes its last gradient. The `root`
    holds what is in no other unit: it is there from the first task of the forward pass to the
    last of the backward pass, as with torch's `fully_shard`. `step` numbers the steps from 0, `number`
    is the unit of each gradient.
    """

    forward: Selection
    backward: Selection
    node: Selection
    nbytes: np.ndarray
    root: np.ndarray
    step: np.ndarray
    number: np.ndarray
    what: str

    def __len__(self) -> int:
        return len(self.nbytes)


def units_of(
    graph: Graph, gradients: Gradients, layers: str | None = None, unit_mb: float | None = None
) -> Units:
    """Return the units: modules that match `layers`, else runs of `unit_mb` MiB, else what the trace tells.

    That is the blocks that the model repeats, else its outermost modules, else runs of 25 MiB. A
    backward pass of a unit begins after the gradient before its first one.
    """
    label, what = _labels(graph, gradients, layers, unit_mb)
    place = np.arange(len(gradients))
    order = graph.columns["order"]
    step = np.unique(gradients.step_and_rank, axis=0, return_inverse=True)[1].reshape(-1)
    number = np.unique(np.stack([step, label]), axis=1, return_inverse=True)[1].reshape(-1)
    count = int(number.max()) + 1
    first, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    first[number[::-1]], last[number] = place[::-1], place  # of what goes to one place, the last stays
    root, of_step = label[last] < 0, step[last]

    users = first_parameter_uses(graph, gradients).ids
    by_use = np.lexsort((order[users], number))
    forward = users[by_use[np.searchsorted(number[by_use], np.arange(count))]]
    backward = _begins(graph, gradients, first, step)
    earliest = forward[np.lexsort((order[forward], of_step))[np.searchsorted(np.sort(of_step), of_step)]]
    opening = forward == earliest
    forward = np.where(root, earliest, forward)
    final = np.zeros(int(step.max()) + 1, np.int64)
    final[step] = place
    # Of a unit that nothing with parameters runs before, no gradient goes on: torch's hook on it never runs,
    # and it is scattered when the backward pass is over, behind the root.
    alone = np.bincount(of_step, opening)[of_step] == 1
    heads = ~root & opening & alone & np.isin(of_step, of_step[root])
    last = np.where(root | heads, final[of_step], last)
    ready = np.lexsort((root + 2 * heads, last))
    place_of = np.empty(count, np.int64)
    place_of[ready] = np.arange(count)
    return Units(
        graph.tasks(forward[ready]), graph.tasks(backward[ready]),
        graph.tasks(gradients.nodes.ids[last[ready]]),
        np.bincount(number, gradients.nbytes, count).astype(np.int64)[ready], root[ready], of_step[ready],
        place_of[number], what,
    )  # fmt: skip


def _labels(
    graph: Graph, gradients: Gradients, layers: str | None, unit_mb: float | None
) -> tuple[np.ndarray, str]:
    """Return a number for the unit of each gradient, -1 for the root, and what the units are."""
    if layers is not None and unit_mb is not None:
        raise GraphError("layers and unit_mb were both given; units are made by one of the two")
    code = graph.columns["layer"][gradients.nodes.ids]
    if unit_mb is None and (layers is not None or (code >= 0).any()):
        repeated = [block for family in repeated_blocks(graph) for block in family]
        label = block_of_layers(graph, layers if layers is not None else repeated or "*")[0][code]
        if (label >= 0).any():
            return label, f"layers {layers!r}" if layers is not None else "blocks" if repeated else "modules"
        if layers is not None:
            raise NotApplicableError(
                f"no layer that matches {layers!r} has gradients; layers are recorded by `daydream collect`"
            )
    size = BUCKET_MB if unit_mb is None else unit_mb
    return gradients.buckets(size).number, f"runs of {size:g} MiB"


def _begins(graph: Graph, gradients: Gradients, first: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the first backward task after the gradient that comes before each unit's first one.

    Before the first gradient of a step none comes: the backward pass begins after the forward pass.
    """
    order = graph.columns["order"]
    lane, on_cpu = compute_lane(graph), str(gradients.nodes.lane[0])
    where = {"kind": "kernel", "lane": lane} if lane is not None else {"kind": "cpu", "lane": on_cpu}
    tasks = graph.select(phase="backward", **where).ids
    ahead = graph.select(phase=("forward", "loss")).ids
    makers = gradients.makers.ids
    before, own = makers[np.maximum(first - 1, 0)], makers[first]
    opens = (first == 0) | (step[first - 1] != step[first])
    if len(ahead):
        place = np.searchsorted(order[ahead], order[own[opens]]) - 1
        before[opens] = ahead[np.maximum(place, 0)]
    at = np.searchsorted(order[tasks], order[before], side="right")
    begins = tasks[np.minimum(at, len(tasks) - 1)]
    return np.where(order[begins] <= order[own], begins, own)
