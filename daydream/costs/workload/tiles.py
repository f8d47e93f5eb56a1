"""Output tiles of matrix products: how many blocks' worth of work a kernel has, whatever its grid says.

Persistent kernels (CUTLASS 3, cuBLAS from Hopper on) start a block for each unit, and each works through
many tiles. Libraries write the tile into the kernel's name: `tilesize128x128x64`, `_128x64_`, `MT128x128x32`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

import numpy as np

from daydream.costs.workload.calls import calls_of
from daydream.costs.workload.operator import bare_name
from daydream.costs.workload.shapes import Argument, parse_shapes
from daydream.graph.graph import Graph
from daydream.lazy import regex

TILE = regex(r"(?:tilesize|tile_|MT|_)(\d{2,3})x(\d{2,3})(?:x|_)")
LARGEST = (256, 128)  # of the tiles in use; without one in the name, so many there are at least
CONVOLUTIONS = {"convolution", "conv1d", "conv2d", "conv3d", "cudnn_convolution", "miopen_convolution"}
FIRST = {"linear": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # the first factor's place


def output_tiles(graph: Graph, names: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Return the tiles of each product's result, 0 where the call's product or shapes are unknown."""
    return _of_products(graph, names, calls, _tiles)


def tile_elements(graph: Graph, names: np.ndarray, calls: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Return the elements of the result that a block works out at once, 0 where nothing tells.

    By the tile in the kernel's name, else a product's result shared among the recorded blocks. Of
    convolutions those of the forward pass only: the gradient of a weight has no more tiles for more samples.
    """

    def size(_: str, op: str, arguments: list[Argument]) -> int:
        return -1 if op in CONVOLUTIONS else prod(result_size(op, arguments))

    results = _of_products(graph, names, calls, size)
    sizes = {name: named_tile(name or "") for name in set(names.tolist())}
    named = np.array([prod(sizes[name] or (0,)) for name in names.tolist()], np.int64)
    shared = -(-results // np.maximum(blocks, 1))
    return np.where((results != 0) & (named > 0), named, np.maximum(shared, 0))


def _of_products(
    graph: Graph, names: np.ndarray, calls: np.ndarray, count: Callable[[str, str, list[Argument]], int]
) -> np.ndarray:
    """Return a number for each task by its kernel, operator and arguments; distinct ones are asked once."""
    found = np.zeros(len(names), np.int64)
    trace = graph.trace
    if trace is None:
        return found
    known = calls_of(trace)
    which = np.where(calls >= 0, known.which[np.maximum(calls, 0)], -1)
    seen: dict[tuple[str | None, int], int] = {}
    for index in np.flatnonzero(which >= 0).tolist():
        key = (names[index], int(which[index]))
        if key not in seen:
            op, shapes, _ = known.keys[key[1]]
            seen[key] = count(key[0] or "", bare_name(op), parse_shapes(shapes) or [])
        found[index] = seen[key]
    return found


def _tiles(kernel: str, op: str, arguments: list[Argument]) -> int:
    batch, rows, columns = result_size(op, arguments)
    tall, wide = named_tile(kernel) or LARGEST
    upright, turned = (ceil(rows / a) * ceil(columns / b) for a, b in ((tall, wide), (wide, tall)))
    return batch * min(upright, turned)


def named_tile(kernel: str) -> tuple[int, int] | None:
    """Return the sizes of the tile in a kernel's name."""
    named = TILE.search(kernel)
    return (int(named[1]), int(named[2])) if named else None


def result_size(op: str, arguments: list[Argument]) -> tuple[int, int, int]:
    """Return batch, rows and columns of a product's result (`op` without its library); zeros for others."""
    place = FIRST.get(op, 0)
    factors = [part for part in arguments[place : place + 2] if isinstance(part, tuple) and len(part) > 1]
    if op not in FIRST or len(factors) < 2:
        return 0, 0, 0
    left, right = factors
    columns = right[-2] if op == "linear" else right[-1]
    batch = left[0] if op in ("bmm", "baddbmm") else 1
    return batch, prod(left[:-1]) // max(batch, 1), columns
