"""How work without recorded shapes grows with the tokens of a sequence, read off the grids of its kernels.

An element-wise kernel of torch has a block for so many elements of its result (`costs/kernels.py`). Three
kinds of tensors can be told apart by them:

- Parameters: as large as those that the optimizer's element-wise kernels update, and as many a step (or twice
  as many, forward and backward). Work on them alone, as copies of gradients into place, stays.
- Attention scores: between two batched products over all heads of all samples, `heads` x length x length.
  They grow as the square, with those products, softmax and fused attention. So the length is read, too.
- All else in the passes holds tokens, once.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import ceil, isqrt

import numpy as np

from daydream.costs.device.retime import retime
from daydream.costs.kernel_names import kernels_are, names_fit
from daydream.costs.kernels import (
    WEIGHT_GRADIENT,
    elements_a_block,
    elements_a_thread,
    grid_blocks,
    is_matrix,
)
from daydream.costs.resize.new_shapes import named_tile
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.lazy import regex

# ATen's PersistentSoftmax.cuh: 4 warps a block, of a row or two (up to 2**7); SoftMax.cu: a block a row.
WARP_SOFTMAX = regex(r"softmax_warp_\w+<.*?, (?:\(int\))?(\d+), ")
BLOCK_SOFTMAX = regex(r"cunn_SoftMax\w+<")
WARPS, SHORT_ROW = 4, 7
MOST = 0.5  # of the kernels between products of as many heads: scores are all of one length
LEAST_LENGTH = 8


@dataclass(frozen=True)
class GridGrowth:
    """How work grows with the length of the sequence, read off the grids of kernels; an entry a task.

    Attributes:
        work: power of the length that the work grows by: 0, 1 or 2; int64.
        blocks: power that the blocks of the grid grow by, float64; NaN where as the work.
        length: the length, as the grids of scores show it; None without any.
    """

    work: np.ndarray
    blocks: np.ndarray
    length: int | None  # read off the grids of scores


def growth_by_grids(graph: Graph, tasks: Selection, recorded: int | None = None) -> GridGrowth:
    """Return how the work of tasks grows with the length, 1 for each that nothing tells more of.

    Args:
        graph: the graph of the trace.
        tasks: kernels.
        recorded: the length, where it is known; else it is the one that most scores show.

    Returns:
        `GridGrowth`, arrays in the order of the tasks.
    """
    kernels = _Kernels(tasks)
    heads, length = kernels.attention(recorded)
    work = np.ones(len(tasks), np.int64)
    work[kernels.on_parameters(_Kernels(graph.select(kind="kernel", phase="optimizer")))] = 0
    work[kernels.fused] = 2
    if length is not None:
        work[kernels.within_attention(heads, length)] = 2
    blocks = np.where(kernels.weight_gradient & (work == 1), 0.0, np.nan)
    return GridGrowth(work, blocks, length)


def grown_time(
    tasks: Selection, growth: GridGrowth, factor: float, *, squares: bool = True
) -> tuple[np.ndarray, str]:
    """Return durations with so many times the tokens, and a sentence that tells what grows.

    Args:
        tasks: kernels.
        growth: how their work grows (`growth_by_grids`).
        factor: how many times the tokens.
        squares: sequences get longer; else there are so many more samples, as long as before.

    Returns:
        ns, shape (tasks,), int64; and the sentence.
    """
    power = growth.work if squares else np.minimum(growth.work, 1)
    amount, blocks = factor ** power.astype(np.float64), factor**growth.blocks
    retimed = retime(
        tasks.graph, tasks, flop_factor=amount, bytes_factor=amount, grid_factor=blocks
    )
    before = retimed.before_ns
    once, squared, stays = (
        before[power == each].sum() / max(before.sum(), 1) for each in (1, 2, 0)
    )
    attention = f"{squared:.0%} as the square (attention), " if squares else ""
    said = (
        f"Shapes were not recorded: by the grids of its kernels {once:.0%} of the time grows in proportion, "
        f"{attention}{stays:.0%} is work on parameters and stays."
    )
    return retimed.duration_ns, said


class _Kernels:
    """Kernels in the order of their streams, with what their names and grids tell."""

    def __init__(self, tasks: Selection) -> None:
        names, each = [name or "" for name in tasks.name.tolist()], elements_a_thread(tasks.graph)
        known = {name: elements_a_block(name, each) for name in set(names)}
        blocks = grid_blocks(tasks.graph, tasks)
        self.block = np.array([known[name] for name in names], np.int64)
        self.most = np.where((self.block > 0) & (blocks > 0), blocks * self.block, -1)
        self.product = is_matrix(tasks.graph, tasks)
        self.names, self.blocks = names, blocks
        # The third size of other grids, of convolutions and layout changes, is no batch of products.
        batched = kernels_are(tasks, "product")
        self.batch = np.where(self.product & batched, _deep(tasks), 1)
        self.fused = kernels_are(tasks, "attention")
        self.reduces = kernels_are(tasks, "softmax", "reduction")
        self.steps = max(len(np.unique(tasks.step)), 1)
        lane = tasks.graph.lane[tasks.ids]
        self.order = np.lexsort((tasks.graph.order[tasks.ids], lane))
        split = kernels_are(tasks, "partial sum")[self.order]
        self.batch[self.order[:-1][split[1:]]] = 1  # its third size is the parts of its sum
        sums = names_fit(tasks, re.compile(WEIGHT_GRADIENT).search)
        self.weight_gradient = sums & (self.batch == 1)

    def counts(self) -> dict[tuple[str, int], float]:
        """Return how many kernels a step have a name and work on so many elements, of more than one block."""
        large = np.flatnonzero(self.most > self.block).tolist()
        found = Counter((self.names[place], int(self.most[place])) for place in large)
        return {key: count / self.steps for key, count in found.items()}

    def on_parameters(self, update: _Kernels) -> np.ndarray:
        """Mask of the kernels that work on each parameter of a size once or twice a step."""
        tensors: dict[int, float] = {}
        for (
            _,
            size,
        ), count in update.counts().items():  # every kind of kernel sees each at least once
            tensors[size] = min(count, tensors.get(size, count))
        alike = {
            key
            for key, count in self.counts().items()
            if count / tensors.get(key[1], np.inf) in (1, 2)
        }
        return np.array(
            [key in alike for key in zip(self.names, self.most.tolist(), strict=True)], bool
        )

    def runs(self) -> list[np.ndarray]:
        """Return the kernels from each batched product to the next of the same batch, with sums between."""
        found = []
        products = np.flatnonzero(self.product[self.order])
        for first, last in zip(products[:-1].tolist(), products[1:].tolist(), strict=True):
            run = self.order[first : last + 1]
            alike = self.batch[run[0]] == self.batch[run[-1]] > 1
            if alike and self.reduces[run].any():
                found.append(run)
        return found

    def attention(self, recorded: int | None) -> tuple[set[int], int | None]:
        """Return the batches of products with scores between them, and the length; None without any."""
        votes = Counter[tuple[int, int]]()
        for run in self.runs():
            heads = int(self.batch[run[0]])
            sides = [self._side(place, heads, recorded) for place in run[1:-1].tolist()]
            votes.update((heads, side) for side in sides if side and self._is_square(run[0], side))
        if not votes:
            return set(), None
        best, length = max(votes, key=lambda key: votes[key])  # of as many, the first seen
        if votes[best, length] < MOST * sum(
            count for (heads, _), count in votes.items() if heads == best
        ):
            return set(), None
        return {heads for heads, side in votes if side == length}, length

    def _is_square(self, product: int, side: int) -> bool:
        """Tell whether a product's results may be squares of this side, by its tiles."""
        tile = named_tile(self.names[product])
        if tile is None:
            return True
        tiles = ceil(side / tile[0]) * ceil(side / tile[1])
        # Libraries fold grids, and round them up where they do.
        return bool(tiles <= self.blocks[product] // self.batch[product] < 2 * tiles)

    def _side(self, place: int, heads: int, recorded: int | None) -> int | None:
        """Return the side of the squares that a kernel works on, one a head; None where they are none."""
        most = int(self.most[place])
        block = int(self.block[place])
        side = isqrt(most // heads) if most > block else 0
        if not side or heads * side * side <= most - block:
            side = self._softmax_rows(place) // heads
        return side if side >= LEAST_LENGTH and recorded in (None, side) else None

    def _softmax_rows(self, place: int) -> int:
        """Return the rows of a softmax: torch's has a block a row, for short rows a warp for one or two."""
        warp = WARP_SOFTMAX.search(self.names[place])
        if warp:
            return int(self.blocks[place]) * WARPS * (2 if int(warp[1]) <= SHORT_ROW else 1)
        return int(self.blocks[place]) if BLOCK_SOFTMAX.search(self.names[place]) else 0

    def within_attention(self, heads: set[int], length: int) -> np.ndarray:
        """Mask of batched products over these heads and what works on scores."""
        mask = np.isin(self.batch, [*heads]) & self.product
        for run in self.runs():
            mine = int(self.batch[run[0]])
            if mine in heads and self._is_square(run[0], length):
                mask[run] |= np.array(
                    [
                        self._side(place, mine, length) is not None or self.reduces[place]
                        for place in run
                    ]
                )
        return mask


def _deep(tasks: Selection) -> np.ndarray:
    """Return the third size of each grid: the batch of a product, or the parts that its sum is split into."""
    trace = tasks.graph.recorded
    texts = trace.text("grid")
    rows = tasks.graph.row[tasks.ids]
    if not texts:
        return np.ones(len(rows), np.int64)
    depth = np.array([*(int(text.split(",")[-1]) for text in texts), 1], np.int64)
    return depth[np.where(rows >= 0, trace["grid"][np.maximum(rows, 0)], -1)]
