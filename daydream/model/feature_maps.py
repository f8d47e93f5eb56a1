"""Feature maps that a forward layer leaves for its backward pass: makers, users, sizes."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.calls import shapes_in
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection


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
    there, needed = Counter(_steps(calls).tolist()), Counter(_steps(nodes).tolist())
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
