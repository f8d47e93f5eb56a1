"""Where an optimizer that updates parameter by parameter turns from one to the next."""

from __future__ import annotations

from collections.abc import Sequence

SCALAR = "[]"
LONGEST_HEAD = 3  # operators that a parameter's share is known by


def cut_by_parameter(
    names: Sequence[int], shapes: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[int]:
    """Return for each operator of an update which parameter it works on; empty if it cannot be told.

    `names` and `shapes` (of the first input) are those of the operators in order, `groups` the
    shapes of the parameters, group by group. A group's parameters all take the same operators,
    on tensors of the parameter's shape or on scalars (step counts). Where the operators depend on
    the parameter (matrices are factored, vectors are not), each begins with the same operator.
    """
    flat = [shape for group in groups for shape in group]
    if not flat or len(names) < len(flat):
        return []
    if len(names) % len(flat) == 0 and _same_body(names, shapes, flat, 0, len(names) // len(flat)):
        lengths = [len(names) // len(flat)] * len(flat)
    else:
        lengths = _bodies_of_groups(names, shapes, groups, 0) or _by_head(names, shapes, flat)
    return [index for index, length in enumerate(lengths) for _ in range(length)]


def _same_body(
    names: Sequence[int], shapes: Sequence[str], wanted: Sequence[str], begin: int, length: int
) -> bool:
    """Return whether parameters of the wanted shapes take `length` operators each, the same ones."""
    body = names[begin : begin + length]
    for index, shape in enumerate(wanted):
        at = begin + index * length
        if names[at : at + length] != body:
            return False
        seen = set(shapes[at : at + length])
        if shape not in seen or not seen <= {shape, SCALAR}:
            return False
    return True


def _bodies_of_groups(
    names: Sequence[int], shapes: Sequence[str], groups: Sequence[Sequence[str]], begin: int
) -> list[int]:
    """Return how many operators each parameter takes where each group has its own; empty if none fit."""
    group, rest = groups[0], groups[1:]
    left = sum(len(other) for other in rest)
    most = (len(names) - begin - left) // len(group)
    lengths = range(1, most + 1) if rest else [most] if begin + most * len(group) == len(names) else []
    for length in lengths:
        if not _same_body(names, shapes, group, begin, length):
            continue
        if not rest:
            return [length] * len(group)
        following = _bodies_of_groups(names, shapes, rest, begin + length * len(group))
        if following:
            return [length] * len(group) + following
    return []


def _by_head(names: Sequence[int], shapes: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return how many operators each parameter takes if each begins with the first ones of all."""
    kinds = [(name, shape == SCALAR) for name, shape in zip(names, shapes, strict=True)]
    for length in range(1, LONGEST_HEAD + 1):
        head = kinds[:length]
        begins = [at for at in range(len(kinds)) if kinds[at : at + length] == head]
        ends = [*begins[1:], len(names)]
        if len(begins) == len(wanted) and all(
            shape in shapes[begin:end] for shape, begin, end in zip(wanted, begins, ends, strict=True)
        ):
            return [end - begin for begin, end in zip(begins, ends, strict=True)]
    return []
