"""Saved tensors: what autograd's nodes keep for the backward pass, and which work comes behind the last one.

By torch's derivative formulas: `derivatives.yaml` names what each one reads. A formula that reads inputs only
has them before the operator computes anything, one that reads the result when that is done.
"""

from __future__ import annotations

import re

import numpy as np

from daydream.costs.operators import saved_by
from daydream.costs.workload.calls import forward_rows, innermost_makers, nodes, nodes_above
from daydream.costs.workload.shapes import parse_shapes
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.trace.trace import Trace

NODE = r"^\w+Backward\d*$"
BY_SCALAR = regex(r"^(Mul|Div)Backward0?$")
UNKNOWN, NONE, BEFORE, BEHIND = (
    -1,
    0,
    1,
    2,
)  # a forward call saves nothing, or before its work, or behind it


def saved_tensor_counts(backward: Groups) -> np.ndarray:
    """Return how many tensors the autograd nodes of each group had saved, 0 for one without nodes.

    Args:
        backward: backward work, a group a module.

    Returns:
        shape (groups,), int64.
    """
    tasks, trace = backward.by_group, backward.tasks.graph.recorded
    made = np.isin(tasks.ids, tasks.where(kind="cpu", op=NODE).ids)
    calls = tasks.call[made]
    if not len(calls):
        return np.zeros(len(backward), np.int64)
    number = np.repeat(np.arange(len(backward)), backward.sizes)[made]
    number, calls = np.unique(np.stack([number, calls])[:, calls >= 0], axis=1)
    return np.bincount(number, _counts(trace)[calls % len(trace)], len(backward)).astype(np.int64)


def behind_last_saved(forward: Groups) -> tuple[Selection, np.ndarray]:
    """Return the work of each group behind the last tensor that it saves, and a mask of groups that tell.

    A group is the forward work of one module. Of each pass, up to the next backward work, it is what
    comes behind the last call whose node saves something, and that call's own work too if its inputs are
    all that is saved. An operator that is not torch's own counts as saving its result. Work whose
    calls have no known nodes is in no answer.

    Args:
        forward: forward work, a group a module.

    Returns:
        the tasks; and a mask of the groups, shape (groups,), bool.
    """
    tasks = forward.by_group
    graph, trace = tasks.graph, tasks.graph.recorded
    if not len(trace) or not len(tasks):
        return tasks.of(tasks.ids[:0], "nothing"), np.zeros(len(forward), bool)
    place = np.flatnonzero(tasks.kind == "cpu")
    ids = tasks.ids[place]
    group = np.repeat(np.arange(len(forward)), forward.sizes)[place]
    order, rank = graph.order[ids], tasks.rank[place]
    passes = np.zeros(len(ids), np.int64)
    backward = graph.select(kind="cpu", phase="backward")
    for one in np.unique(rank).tolist():
        theirs = np.sort(graph.order[backward.ids[backward.rank == one]])
        passes[rank == one] = np.searchsorted(theirs, order[rank == one])
    keys = np.stack([group, passes, graph.repeat[ids].astype(np.int64)])
    key = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)

    calls = innermost_makers(trace, graph.row[ids].astype(np.int64))
    when = np.append(_when_saved(trace), UNKNOWN)[calls]
    known = (np.bincount(key, when > UNKNOWN) > 0)[key]
    by_order = np.lexsort((order, key))
    saving = by_order[when[by_order] > NONE]
    last = np.full(int(key.max(initial=-1)) + 1, -1)
    last[key[saving]] = saving  # of what goes to one place, the last stays
    mine = last[key]
    cut = np.where(mine >= 0, order[mine] + 1, np.iinfo(np.int64).min)
    own = np.flatnonzero((mine >= 0) & (calls == calls[mine]) & (when[mine] == BEFORE))
    first = np.full(len(last), np.iinfo(np.int64).max)
    np.minimum.at(first, key[own], order[own])
    cut = np.minimum(cut, first[key])
    behind = tasks.of(ids[known & (order >= cut)], "work after the last saved tensor")
    return behind | (behind.launched() & tasks), np.bincount(group, known, len(forward)) > 0


def _counts(trace: Trace) -> np.ndarray:
    """Return for each row how many tensors it saved as an autograd node, 0 for other rows."""
    by_name = np.array([*(_count(_bare(text)) for text in trace.text("name")), 0])
    found: np.ndarray = np.where(nodes(trace), by_name[trace["name"]], 0)
    rows = np.flatnonzero(found)
    found[rows[_with_a_number(trace, rows, forward_rows(trace, rows))]] = 0
    return found


def _count(node: str) -> int:
    if not re.match(NODE, node):
        return 0
    saved = saved_by(node)
    return 1 if saved is None else sum(saved)


def _when_saved(trace: Trace) -> np.ndarray:
    """Return for each row when, as a forward call, it saves tensors."""
    by_name = np.array([*(_when(_bare(text)) for text in trace.text("name")), UNKNOWN])
    found = np.full(len(trace), UNKNOWN)
    made = np.flatnonzero(nodes(trace))
    callers = forward_rows(trace, made)
    made, callers = made[callers >= 0], callers[callers >= 0]
    when = by_name[trace["name"]][made]
    when[_with_a_number(trace, made, callers)] = NONE
    found[callers] = when
    own = np.array([*("::" not in text for text in trace.text("name")), False])[trace["name"]]
    functions = np.flatnonzero(
        own & trace.is_kind("operator") & ~nodes(trace) & (np.asarray(trace["sequence"]) >= 0)
    )
    functions = functions[(nodes_above(trace, functions) < 0) & ~_inner(trace, functions)]
    found[functions] = BEHIND
    return found


def _when(node: str) -> int:
    if not re.match(NODE, node):
        return UNKNOWN
    inputs, results = saved_by(node) or (0, 1)  # a function of one's own: its result
    return BEHIND if results else BEFORE if inputs else NONE


def _with_a_number(trace: Trace, made: np.ndarray, callers: np.ndarray) -> np.ndarray:
    """Return a mask of the nodes of products with a number, by the shapes of the forward calls: no tensor."""
    fits = np.array([*(bool(BY_SCALAR.match(_bare(text))) for text in trace.text("name")), False])
    scalar = np.array([*(_second_is_a_number(text) for text in trace.text("shapes")), False])
    found: np.ndarray = (
        fits[trace["name"]][made] & (callers >= 0) & scalar[trace["shapes"]][callers]
    )
    return found


def _second_is_a_number(shapes: str) -> bool:
    arguments = parse_shapes(shapes) or []
    return len(arguments) > 1 and arguments[1] == ()


def _inner(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that an operator of torch calls, as `aten::detach` calls `detach`."""
    parent = np.asarray(trace["parent"], np.int64)[rows]
    torch_s = np.array([*("::" in text for text in trace.text("name")), False])[trace["name"]]
    found: np.ndarray = (parent >= 0) & trace.is_kind("operator")[parent] & torch_s[parent]
    return found


def _bare(name: str) -> str:
    return name.removeprefix("autograd::engine::evaluate_function: ")
