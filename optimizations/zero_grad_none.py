"""Gradients set to None instead of zeroed: no fills, and first gradients are taken over, not added."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from daydream import Graph
from daydream.memory import Allocations, in_phase, renumber
from daydream.transforms import stages

STAGE = stages.FUSION
CODE = "optimizer.zero_grad(set_to_none=True)"

ZERO_GRAD = r"(?i)zero_?grad"
FILL = r"aten::(_foreach_)?(zero_|fill_)$"
ACCUMULATE = r"AccumulateGrad$"
ADD = r"aten::add_?$"


def zero_grad_none(graph: Graph) -> None:
    """Predict `zero_grad(set_to_none=True)`, torch's default since 2.0.

    The fills of the zero_grad range go with their operators, and so does what Python does there
    for each parameter but for one assignment. In the first backward pass after it
    `AccumulateGrad` takes the incoming gradient over, so its addition goes too; with
    gradient accumulation the additions of later passes stay: of each step as many go as
    tensors were zeroed. Where one fill covers many tensors (foreach), all of the step go.

    Not modelled: gradients that are views of buckets (DistributedDataParallel with
    `gradient_as_bucket_view`), which are copied instead.

    Memory: gradients are held from the backward pass that makes them to zero_grad, not all the time.
    """
    on = "gpu" if len(graph.select(on="gpu")) else "cpu"
    fills = graph.select(on=on, within=ZERO_GRAD, op=FILL)
    if not len(fills):
        graph.does_not_apply("no zero_grad range fills gradients with zeros: they may be set to None already")
    additions = graph.select(on=on, phase="backward", within=ACCUMULATE, op=ADD)
    gone = fills.operators() | fills
    if len(additions):
        each = additions.group_by("step", "call").first()
        if not len(fills.where(op="_foreach_")):
            zeroed = fills.group_by("step", "call").first().group_by("step").sizes
            tensors = int(np.median(zeroed))
            each = graph.tasks(np.concatenate([step.ids[:tensors] for step in each.group_by("step")]))
        first = additions.where(lambda tasks: np.isin(tasks.call, each.call))
        gone = gone | first.operators() | first
    gone.remove()


def memory(held: Allocations) -> None:
    """Let a backward pass make the gradients, and zero_grad free them."""
    lasting = held.where(kind="gradient") & (held["begin"] == -np.inf) & (held["end"] == np.inf)
    taken = np.array(
        [re.search(ACCUMULATE, text or "") is not None for text in held.texts("op", at="end")], bool
    )
    made = in_phase(held, "backward") & held.where(kind="temporary") & taken
    zeroed = held.where(phase=("forward", "data"))
    for rank in np.unique(held["rank"]).tolist():
        own = made & (held["rank"] == rank)
        begins = np.sort(held["begin"][zeroed & (held["rank"] == rank)])
        held["end"][own] = np.append(begins, np.inf)[np.searchsorted(begins, held["begin"][own])]
    held.become(made, "gradient")
    held.remove(lasting)
    renumber(held)


@contextmanager
def apply(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: every zero_grad of the optimizer sets gradients to None."""
    before = optimizer.zero_grad
    optimizer.zero_grad = lambda set_to_none=True: before(set_to_none=True)  # noqa: ARG005 - whatever was asked
    try:
        yield
    finally:
        del optimizer.zero_grad  # the class's own is found again
