"""Whose gradients are accumulated behind a compiled backward pass, which hands over many at once.

Autograd's queue has the nodes that accumulate gradients before all others, and those among each other without
an order: they come out of a binary heap of equal entries, as `std::priority_queue` of GNU's library makes and
empties it (torch/csrc/autograd/engine.cpp, `ReadyQueue`; bits/stl_heap.h). That is always the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def queue_order(count: int) -> list[int]:
    """Return in which order equal entries leave the queue that were put into it as 0, 1, 2, ...

    An entry that is put in stays at its end. The first one leaves; the last one's place is then found from
    the top down: each time the right child moves up (the left one where there is no right one).
    """
    heap = list(range(count))
    order = []
    while heap:
        order.append(heap[0])
        last = heap.pop()
        hole, left = 0, len(heap)
        while 2 * hole + 1 < left:
            child = 2 * hole + 2 if 2 * hole + 2 < left else 2 * hole + 1
            heap[hole] = heap[child]
            hole = child
        if heap:
            heap[hole] = last
    return order


def owners_behind_compiled(
    passes: Sequence[Sequence[str | None]], shapes: Sequence[str], owners: Sequence[str]
) -> list[list[str]] | None:
    """Return the owner of each gradient that is accumulated, or None where order and shapes do not fit.

    Args:
        passes: of each compiled backward call, the shapes of the gradients accumulated behind it, in order.
        shapes: of each parameter, in order of registration, taken to be that of use.
        owners: of each parameter, its layer.

    The graphs of one pass run backwards: each holds the parameters right before those of the last one. The
    queue then holds the next graph, too, so that within a graph the shapes alone tell, or nothing does.
    """
    found, end = [], len(shapes)
    for accumulated in passes:
        begin = end - len(accumulated)
        if begin < 0:
            return None
        mine = _in_queue if len(accumulated) == len(shapes) else _by_shape
        named = mine(accumulated, shapes[begin:end], owners[begin:end])
        if named is None:
            return None
        found.append(named)
        end = begin or len(shapes)
    return found if end == len(shapes) else None


def _in_queue(
    accumulated: Sequence[str | None], shapes: Sequence[str], owners: Sequence[str]
) -> list[str] | None:
    order = queue_order(len(shapes))
    return (
        [owners[place] for place in order] if [shapes[place] for place in order] == [*accumulated] else None
    )


def _by_shape(
    accumulated: Sequence[str | None], shapes: Sequence[str], owners: Sequence[str]
) -> list[str] | None:
    of_shape: dict[str | None, str] = {}
    if Counter(accumulated) != Counter(shapes):
        return None
    if any(of_shape.setdefault(shape, owner) != owner for shape, owner in zip(shapes, owners, strict=True)):
        return None
    return [of_shape[shape] for shape in accumulated]
