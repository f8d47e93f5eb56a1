"""Device work of calls that run many layers as one: replays of CUDA graphs, and compiled code.

What the recording does not tell apart in them has the layer of the call, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.graph.query.calls import call_rows
from daydream.graph.query.device import device_work, in_replays

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

# Calls of what torch.compile (its piece, its region, its node) and ExecuTorch made of a model.
COMPILED_CALL = r"CompiledFxGraph|CompiledFunction|^Torch-Compiled Region|^Method::execute$"


class WholeCalls(NamedTuple):
    """Device work of calls that run many layers as one.

    `inside` and `unplaced` are masks of the tasks, bool: what such calls launch, and what of it has no layer
    but the call's. `layers` are the codes of the calls' layers, `around` of those that hold others besides
    what is in their paths, as a model does; `where` says what runs most of the unplaced work.
    """

    inside: np.ndarray
    unplaced: np.ndarray
    layers: frozenset[int]
    around: frozenset[int]
    where: str


def whole_calls(graph: Graph) -> WholeCalls | None:
    """Return the device work of replays and of compiled calls; None where all of it has a layer of its own.

    Read off a graph once: it is kept until the next structural edit.
    """
    if "whole_calls" not in graph._derived:
        graph._derived["whole_calls"] = _whole_calls(graph)
    found: WholeCalls | None = graph._derived["whole_calls"]
    return found


def within(path: str, outer: str) -> bool:
    """Tell whether a layer is another one, or inside it."""
    return path == outer or path.startswith(f"{outer}.")


def _whole_calls(graph: Graph) -> WholeCalls | None:
    device = np.flatnonzero(device_work(graph) & graph.alive)
    if graph.trace is None or not len(device):
        return None
    layers, trace = graph.columns["layer"], graph.trace
    code_of = {text: code for code, text in enumerate(graph.texts["layer"])}
    codes = np.array([*(code_of.get(text, -1) for text in trace.text("layer")), -1])
    row = call_rows(graph, device, COMPILED_CALL)
    replayed = np.isin(device, in_replays(graph.tasks(device)).ids)
    call = np.where(row >= 0, codes[trace["layer"][row]], layers[graph.columns["launch"][device]])
    inside = (row >= 0) | replayed
    unplaced = inside & ((layers[device] < 0) | (layers[device] == call))
    if not unplaced.any():
        return None
    texts = graph.texts["layer"]
    pairs = {*zip(call[inside].tolist(), layers[device][inside].tolist(), strict=True)}
    around = {one for one, other in pairs if min(one, other) >= 0 and not within(texts[other], texts[one])}
    layers_of_calls = frozenset(one for one, _ in pairs if one >= 0)
    of_replays = 2 * graph.columns["duration_ns"][device[unplaced & replayed]].sum()
    mostly = of_replays > graph.columns["duration_ns"][device[unplaced]].sum()
    masks = np.zeros((2, graph.size), bool)
    masks[0, device], masks[1, device] = inside, unplaced
    where = "CUDA graphs" if mostly else "compiled calls"
    return WholeCalls(masks[0], masks[1], layers_of_calls, frozenset(around), where)
