"""What operators touch and what layers need, from shapes and allocations.

The operator footprint counts every tensor an operator is given as a whole, once for each argument, and all
that it asks for: an upper bound, as it may read a part of it, and two arguments may be one tensor.
"""

from __future__ import annotations

import numpy as np

from daydream.memory.allocations import BEFORE, KINDS, Allocations
from daydream.memory.argument_bytes import argument_bytes
from daydream.memory.enclosing import innermost, rows_that
from daydream.results import Record
from daydream.trace.schema import PHASES


class OperatorFootprint(Record):
    """What an operator touches.

    Attributes:
        name: the operator.
        calls: how often it was called, not counting calls within itself.
        footprint_bytes: the most that one call can touch: an upper bound.
        asked_bytes: the most that one call asks for.
        layer: the layer of that call, None if unknown.

    """

    name: str
    calls: int
    footprint_bytes: int
    asked_bytes: int
    layer: str | None


class LayerNeed(Record):
    """What a layer needs in its forward pass.

    Attributes:
        name: the layer.
        working_set_bytes: the largest footprint of its operators: what must be there at once for it to run.
        parameter_bytes: its own parameters, 0 where none are known.
        kept_bytes: what it asks for and leaves behind for the backward pass, the most of the passes.
        temporary_bytes: what it asks for and gives back before that, summed up over a pass.

    """

    name: str
    working_set_bytes: int
    parameter_bytes: int
    kept_bytes: int
    temporary_bytes: int


def operator_footprints(held: Allocations) -> list[OperatorFootprint]:
    """Return the footprint of each operator, the largest first."""
    trace = held.trace
    rows, total, asked = _footprints(held)
    names, layers = trace.text("name"), [*trace.text("layer"), None]
    largest: dict[int, int] = {}  # name -> the row of its largest call
    calls: dict[int, int] = {}
    for row, code in zip(rows.tolist(), trace["name"][rows].tolist(), strict=True):
        calls[code] = calls.get(code, 0) + 1
        if code not in largest or total[row] > total[largest[code]]:
            largest[code] = row
    found = [
        OperatorFootprint(
            names[code],
            calls[code],
            int(total[row]),
            int(asked[row]),
            layers[int(trace["layer"][row])],
        )
        for code, row in largest.items()
    ]
    return sorted(found, key=lambda each: (-each.footprint_bytes, each.name))


def layer_needs(held: Allocations) -> list[LayerNeed]:
    """Return what each layer needs in its forward pass, the largest working set first."""
    trace = held.trace
    rows, total, _ = _footprints(held)
    forward = rows[trace["phase"][rows] == trace.code("phase", "forward")]
    working: dict[str, int] = {}
    layers = trace.text("layer")
    for row, code in zip(forward.tolist(), trace["layer"][forward].tolist(), strict=True):
        if code >= 0:
            working[layers[code]] = max(working.get(layers[code], 0), int(total[row]))
    own = held.texts("layer")
    sums: dict[str, dict[str, dict[int, int]]] = {}
    for number in np.flatnonzero(
        (held["phase"] == PHASES.index("forward")) | (held["kind"] == KINDS.index("parameter"))
    ).tolist():
        layer, kind = own[number], KINDS[held["kind"][number]]
        if layer is None:
            continue
        by_step = sums.setdefault(layer, {}).setdefault(kind, {})
        step = int(held["step"][number])
        by_step[step] = by_step.get(step, 0) + int(held["bytes"][number])
    found = []
    for layer in {*working, *sums}:
        kinds = {kind: max(steps.values()) for kind, steps in sums.get(layer, {}).items()}
        found.append(
            LayerNeed(
                layer,
                working.get(layer, 0),
                kinds.get("parameter", 0),
                kinds.get("activation", 0),
                kinds.get("temporary", 0),
            )
        )
    return sorted(found, key=lambda each: (-each.working_set_bytes, -each.kept_bytes, each.name))


def _footprints(held: Allocations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the outermost operators, and for every row its footprint and what it asks for, in bytes."""
    trace = held.trace
    ranges = "autograd::", "torch::"  # such as autograd's nodes, around operators
    operators = rows_that(trace, lambda text: "::" in text and not text.startswith(ranges))
    operators &= trace.is_kind("operator")
    rows = np.flatnonzero(
        operators & (innermost(trace, np.asarray(trace["parent"], np.int64), operators) < 0)
    )
    asked = np.zeros(len(trace), np.int64)
    begun = np.flatnonzero((held["begin"] > BEFORE) & (held["begin_row"] >= 0))
    outer = np.zeros(len(trace), bool)
    outer[rows] = True
    row = innermost(trace, held["begin_row"][begun], outer)
    inside = row >= 0
    np.add.at(asked, row[inside], held["bytes"][begun[inside]])
    total = asked.copy()
    total[rows] += np.array(
        [sum(sizes) for sizes in argument_bytes(trace, rows)], np.int64
    ).reshape(-1)
    return rows, total, asked
