"""Saved tensors: what autograd's nodes keep for the backward pass, which work comes behind the last one, and sizes.

By torch's derivative formulas: `derivatives.yaml` names what each one reads. A formula that reads inputs only
has them before the operator computes anything, one that reads the result when that is done.
"""

from __future__ import annotations

import re
from collections import Counter
from math import prod

import numpy as np

from daydream.arrays import distinct_rows, last_before
from daydream.costs.operators import saved_by
from daydream.costs.workload.calls import (
    forward_rows,
    innermost_makers,
    nodes,
    nodes_above,
    of_rows,
)
from daydream.costs.workload.formulas import parse_shapes
from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.calls import shapes_in
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
    tasks = backward.by_group
    trace = backward.tasks.graph.recorded
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
    graph = tasks.graph
    trace = tasks.graph.recorded
    if not len(trace) or not len(tasks):
        return tasks.of(tasks.ids[:0], "nothing"), np.zeros(len(forward), bool)
    place = np.flatnonzero(tasks.kind == "cpu")
    ids = tasks.ids[place]
    group = np.repeat(np.arange(len(forward)), forward.sizes)[place]
    order = graph.order[ids]
    backward = graph.select(kind="cpu", phase="backward")
    passes = last_before(backward.rank, graph.order[backward.ids], tasks.rank[place], order)
    _, key = distinct_rows([group, passes, graph.repeat[ids]])

    calls = innermost_makers(trace, graph.row[ids])
    when = np.where(calls >= 0, _when_saved(trace)[calls], UNKNOWN)
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
    found = np.where(nodes(trace), of_rows(trace, "name", _count, none=0), 0)
    rows = np.flatnonzero(found)
    found[rows[_with_a_number(trace, rows, forward_rows(trace, rows))]] = 0
    return found


def _count(node: str) -> int:
    if not re.match(NODE, _bare(node)):
        return 0
    saved = saved_by(_bare(node))
    return 1 if saved is None else sum(saved)


def _when_saved(trace: Trace) -> np.ndarray:
    """Return for each row when, as a forward call, it saves tensors."""
    found = np.full(len(trace), UNKNOWN)
    made = np.flatnonzero(nodes(trace))
    callers = forward_rows(trace, made)
    made = made[callers >= 0]
    callers = callers[callers >= 0]
    when = of_rows(trace, "name", _when, none=UNKNOWN)[made]
    when[_with_a_number(trace, made, callers)] = NONE
    found[callers] = when
    of_torch = of_rows(trace, "name", lambda name: "::" in name)
    operator = trace.is_kind("operator")
    parent = trace["parent"]
    # Functions of one's own: neither in a node, nor what torch calls (as `aten::detach` calls `detach`).
    called = (parent >= 0) & operator[parent] & of_torch[parent]
    own = operator & ~of_torch & ~nodes(trace) & (trace["sequence"] >= 0) & ~called
    functions = np.flatnonzero(own)
    found[functions[nodes_above(trace, functions) < 0]] = BEHIND
    return found


def _when(node: str) -> int:
    if not re.match(NODE, _bare(node)):
        return UNKNOWN
    inputs, results = saved_by(_bare(node)) or (0, 1)  # a function of one's own: its result
    return BEHIND if results else BEFORE if inputs else NONE


def _with_a_number(trace: Trace, made: np.ndarray, callers: np.ndarray) -> np.ndarray:
    """Return a mask of the nodes of products with a number, by the shapes of the forward calls: no tensor."""
    fits = of_rows(trace, "name", lambda name: bool(BY_SCALAR.match(_bare(name))))
    scalar = of_rows(trace, "shapes", lambda text: [*(parse_shapes(text) or []), 0, 0][1] == ())
    return fits[made] & (callers >= 0) & scalar[callers]


def _bare(name: str) -> str:
    return name.removeprefix("autograd::engine::evaluate_function: ")


def makers_and_users(
    work: Selection, forward: str, backward: str, what: str
) -> tuple[Groups, Groups]:
    """Return device work of forward calls and of the backward nodes that need what they made, pair by pair.

    The k-th call of a step belongs to the k-th node from the end.

    Args:
        work: device work of both passes.
        forward: regular expression on names of operators.
        backward: regular expression on names of autograd nodes.
        what: which layers these find, for the error.

    Returns:
        `Groups` of the forward and of the backward work, as many of one as of the other.

    Raises:
        NotApplicableError: there are none, or no step has as many of one as of the other.
    """
    calls = work.where(phase=("forward", "loss")).group_by("step", within=forward)
    nodes = work.where(phase="backward").group_by("step", within=backward)
    there = Counter(_steps(calls).tolist())
    needed = Counter(_steps(nodes).tolist())
    both = [step for step, count in there.items() if needed[step] == count]
    if not there:
        raise NotApplicableError(
            f"this trace has no {what} in the forward pass, or no operators at all"
        )
    if not both:
        raise NotApplicableError(
            f"this trace has {len(calls)} forward calls of {what} and {len(nodes)} backward nodes of them, "
            "so which belongs to which is not known"
        )
    calls = calls.where(np.isin(_steps(calls), both))
    nodes = nodes.where(np.isin(_steps(nodes), both))
    # Within a step nodes run in the reverse order of the calls.
    step = _steps(nodes)
    turned = np.lexsort((-np.arange(len(step)), step))
    ordered = np.argsort(_steps(calls), kind="stable")
    return calls.take(ordered), nodes.take(turned)


def input_bytes(calls: Groups) -> np.ndarray:
    """Return the bytes of the first argument of each call with two dimensions or more.

    Args:
        calls: work of a call each.

    Returns:
        bytes, shape (calls,), int64; -1 if unknown.
    """
    first = calls.first()
    sizes = []
    for text, dtype in zip(first.shapes.tolist(), first.dtype.tolist(), strict=True):
        shapes = [shape for shape in shapes_in(text or "") if len(shape) > 1]
        sizes.append(prod(shapes[0]) * (itemsize(dtype) or 0) if shapes else 0)
    found = np.array(sizes, np.int64)
    return np.where(found > 0, found, -1)


def _steps(groups: Groups) -> np.ndarray:
    return groups.first().step.astype(np.int64)
