"""Which forward work first reads a parameter, found from the gradient that its backward pass leaves."""

from __future__ import annotations

import numpy as np

from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU, phase_code
from daydream.model.buckets import Gradients
from daydream.trace.trace import Trace


def first_parameter_uses(graph: Graph, gradients: Gradients) -> Selection:
    """Return, for each gradient, the forward task of its step that first needs the parameter.

    A gradient is complete right behind the backward node that made it. That node and the forward
    operator share an autograd sequence number; without such numbers the layer tells. Where neither
    does it is the first forward task of the step, which is never too late.

    Args:
        graph: the graph of the trace.
        gradients: gradients of the parameters.

    Returns:
        tasks, one a gradient in their order; device work where there is any, else CPU tasks.

    Raises:
        NotApplicableError: a step with gradients has no forward work.
    """
    forward = graph.ids[graph.phase[graph.ids] == phase_code("forward")]
    device = forward[graph.kind[forward] != CPU]
    users = device if len(device) else forward
    nodes = gradients.nodes.ids
    begun = _operator_starts(graph, gradients)
    found = np.full(len(nodes), -1)
    cpu = forward[(graph.kind[forward] == CPU) & (graph.measured_start_ns[forward] >= 0)]
    cpu = cpu[np.argsort(graph.measured_start_ns[cpu], kind="stable")]
    ranks = gradients.nodes.rank
    for step, rank in sorted(set(gradients.step_and_rank)):
        here = np.flatnonzero((graph.step[nodes] == step) & (ranks == rank))
        mine, calls = (_of(graph, tasks, step, rank) for tasks in (users, cpu))
        if not len(mine):
            raise NotApplicableError(
                "a step of this trace has gradients but no forward work that needs them"
            )
        place = np.searchsorted(graph.measured_start_ns[calls], begun[here])
        known = (begun[here] >= 0) & (place < len(calls))
        at = graph.order[calls[place[known]]]
        use = np.searchsorted(graph.order[mine], at)
        found[here] = mine[0]
        found[here[known]] = mine[np.minimum(use, len(mine) - 1)]
        by_layer = here[~known & (graph.layer[nodes[here]] >= 0)]
        for one in by_layer.tolist():
            same = mine[graph.layer[mine] == graph.layer[nodes[one]]]
            found[one] = same[0] if len(same) else mine[0]
    return gradients.nodes.of(found, "first uses of parameters", ordered=True)


def _of(graph: Graph, tasks: np.ndarray, step: int, rank: int) -> np.ndarray:
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)
    return tasks[(graph.step[tasks] == step) & (ranks[graph.lane[tasks]] == rank)]


def _operator_starts(graph: Graph, gradients: Gradients) -> np.ndarray:
    """Return when the forward operator of each gradient's backward node began, -1 if not known."""
    rows = graph.row[gradients.nodes.ids].astype(np.int64)
    found = np.full(len(rows), -1, np.int64)
    trace = graph.recorded
    if not (trace["sequence"] >= 0).any():
        return found
    sequence = _sequence_before(trace, rows)
    operators = np.flatnonzero(trace.is_kind("operator") & (trace["sequence"] >= 0))
    phase = np.array([*trace.text("phase"), None], dtype=object)[trace["phase"][operators]]
    operators = operators[phase == "forward"]
    # The node belongs to the last operator with its number.
    keys = [trace["start_ns"][operators], trace["sequence"][operators], trace["rank"][operators]]
    operators = operators[np.lexsort(keys)]
    own = np.asarray(trace["rank"][operators], np.int64) * 2**48 + trace["sequence"][operators]
    wanted = np.asarray(trace["rank"][np.maximum(rows, 0)], np.int64) * 2**48 + sequence
    place = np.searchsorted(own, wanted, side="right") - 1
    known = (sequence >= 0) & (place >= 0)
    known[known] &= own[place[known]] == wanted[known]
    found[known] = trace["start_ns"][operators[place[known]]]
    return found


def _sequence_before(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the number of the last numbered backward operator that began before each row on its thread."""
    found = np.full(len(rows), -1, np.int64)
    numbered = np.flatnonzero(trace.is_kind("operator") & (trace["sequence"] >= 0))
    phase = np.array([*trace.text("phase"), None], dtype=object)[trace["phase"][numbered]]
    numbered = numbered[phase == "backward"]
    for rank, thread in {
        (int(trace["rank"][row]), int(trace["tid"][row])) for row in rows[rows >= 0].tolist()
    }:
        mine = numbered[(trace["rank"][numbered] == rank) & (trace["tid"][numbered] == thread)]
        mine = mine[np.argsort(trace["start_ns"][mine], kind="stable")]
        here = np.flatnonzero(
            (rows >= 0) & (trace["rank"][rows] == rank) & (trace["tid"][rows] == thread)
        )
        place = np.searchsorted(trace["start_ns"][mine], trace["start_ns"][rows[here]]) - 1
        there = place >= 0
        found[here[there]] = trace["sequence"][mine[place[there]]]
    return found
