"""Convolutions in compiled code on a CPU: their tensors lie channels last, whatever the program does.

Inductor changes the layout of all convolutions of a graph (`layout_optimization`). oneDNN then pads no
channels to whole blocks, and what it wrote in blocks needs no reordering.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.workload.shapes import parse_shapes
from daydream.graph.query.calls import call_rows
from daydream.graph.selection import Selection

CONVOLUTION = r"^aten::(convolution|convolution_backward)$"
WEIGHT = {"forward": 1, "backward": 2}  # place among the arguments
# Channels of a block, and the time channels last of what it was: of whole blocks, and at the least. Measured
# with images of 4 x 12 to 28 squared, of 8 to 64 channels; torch 2.13.0 on an x86 server CPU with AVX-512.
BLOCK = 16
WHOLE = {"forward": 0.87, "backward": 0.92}
LEAST = 0.65
DOUBT = 0.12  # what the measured ones were off by, nine in ten


def channels_last_factors(library: Selection) -> np.ndarray:
    """Return the part of each task's time that is left: (tasks,); 1 if it is no convolution of images."""
    graph, trace = library.graph, library.graph.trace
    assert trace is not None  # noqa: S101 - what is compiled was recorded
    factors = np.ones(len(library))
    rows = call_rows(graph, library.ids, CONVOLUTION)
    shapes = np.where(rows >= 0, trace["shapes"][rows], -1)
    for code in np.unique(shapes[shapes >= 0]).tolist():
        arguments = parse_shapes(trace.text("shapes")[code]) or []
        for phase, place in WEIGHT.items():
            weight = arguments[place] if len(arguments) > place else None
            if isinstance(weight, tuple) and len(weight) == 4:
                filled = max(many / (-(-many // BLOCK) * BLOCK) for many in weight[:2])
                mine = (shapes == code) & (library.phase == phase)
                factors[mine] = np.clip(filled, LEAST, WHOLE[phase])
    return factors
