"""Input sizes: with which batch and sequence length a trace was recorded, and times at another size.

Sizes are read from the shapes of calls whose layout is known: convolutions, attention,
embeddings, linear layers, norms. The size that most calls have counts; where two are equally often
seen, nobody can tell which one is meant.

How work without recorded shapes grows with the tokens of a sequence, read off the grids of its kernels.

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
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, isqrt

import numpy as np

from daydream.arrays import take, unique
from daydream.costs.device.call_scaling import scaled_time
from daydream.costs.device.retime import Retimed, measured_first, retime
from daydream.costs.kernels import (
    WEIGHT_GRADIENT,
    elements_a_block,
    elements_a_thread,
    grid_blocks,
    is_matrix,
    work,
)
from daydream.costs.operators import MATRIX_FAMILIES, bare_name, kernels_are, names_fit, operator
from daydream.costs.resize.growth import SCALAR_BYTES, growth_of, resized_shapes
from daydream.costs.resize.new_shapes import is_feature, named_tile
from daydream.costs.workload.calls import Calls, calls_of
from daydream.costs.workload.formulas import Argument, Shape, parse_shapes
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.text import listed
from daydream.trace.trace import Trace

# Their tensors are batch x length x heads x width; those of other attention batch x heads x length x width.
LENGTH_SECOND = ("_flash_attention", "_efficient_attention")
MOST = 0.5  # of the time of work that grows: where less has shapes, they do not tell the answer


def recorded_batch(graph: Graph | Trace) -> int | None:
    """Return the batch size of the trace, as most calls show it; None where no shape tells it.

    Raises:
        NotApplicableError: as many calls show another one, or most layers do not hold it: the first
            convolutions may work on patches or frames, several a sample.
    """
    sure = Counter[int]()
    likely = Counter[int]()
    perhaps = Counter[int]()
    leading = Counter[Shape]()
    for name, arguments, times in _calls(graph):
        first = _tensor(arguments, 0)
        op = operator(name)
        if (
            op.formula == "convolution"
            or "statistic" in op.roles
            or name == "group_norm"
            or "attention" in name
        ):
            sure.update(
                {
                    size: times
                    for size in first[:1]
                    if len(first) > (3 if "attention" in name else 2)
                }
            )
        elif name == "embedding" and len(_tensor(arguments, 1)) == 2:
            sure[_tensor(arguments, 1)[0]] += times
        elif (op.formula in ("linear", "addmm") or name.endswith("layer_norm")) and len(
            given := _tensor(arguments, op.first)
        ) > 1:
            # A third dimension may stand first, where sequences do; a second one may be batch and sequence.
            (likely if len(given) > 2 else perhaps)[given[0]] += times
            leading[given[:-1]] += times * (len(given) > 2 and given[0] > 1)
    size = _most(sure or likely or perhaps, "batch size")
    without = sum(
        times for sizes, times in leading.items() if size and all(each % size for each in sizes)
    )
    if without > leading.total() / 2:
        raise NotApplicableError(
            f"the trace's shapes disagree: some calls show a batch of {size:,}, most layers do not.\n"
            "       Where those are patches or frames, several a sample, give the batch by --recorded."
        )
    return size


def need_batch(graph: Graph, size: int) -> None:
    """Raise `NotApplicableError` if no recorded shape can be of a batch of this size.

    It stands first, or second behind the length of sequences, in some tensor: where samples and tokens are
    one dimension, inputs, labels or losses hold it still.
    """
    first = Counter[int]()
    second = set[int]()
    for _, arguments, times in _calls(graph):
        for shape in arguments:
            if isinstance(shape, tuple) and shape:
                first[shape[0]] += times
                second |= set(shape[1:2] if len(shape) == 3 else ())  # length, batch, width
    if first and size not in first and size not in second:
        found = listed([f"{each:,}" for each, _ in first.most_common()])
        raise NotApplicableError(
            f"no recorded shape has a batch of {size:,}: their first sizes are {found}"
        )


def recorded_length(graph: Graph | Trace) -> int | None:
    """Return the sequence length of the trace, as most calls show it; None where no shape tells it.

    Raises:
        NotApplicableError: as many calls show another one.
    """
    sure = Counter[int]()
    perhaps = Counter[int]()
    for name, arguments, times in _calls(graph):
        first = _tensor(arguments, 0)
        if "attention" in name and len(first) == 4:
            sure[first[1 if name.startswith(LENGTH_SECOND) else 2]] += times
        elif operator(name).is_softmax and len(first) > 2 and first[-1] == first[-2]:
            sure[first[-1]] += times
        elif name == "embedding" and len(_tensor(arguments, 1)) == 2:
            sure[_tensor(arguments, 1)[1]] += times
        elif name == "linear" and len(first) == 3:
            perhaps[first[1]] += times
    return _most(sure or perhaps, "sequence length")


def samples_per_step(graph: Graph, unit: str = "samples") -> int | None:
    """Return how many samples or tokens a recorded step covers; None where the trace does not tell."""
    passes = graph.select(kind="cpu", phase=("forward", "backward"))
    passes = passes.where(lambda tasks: tasks.step >= 0)
    order = graph.columns["order"][passes.ids].argsort()
    backward = (passes.phase == "backward")[order]
    begun = (backward[1:] & ~backward[:-1]).sum()
    trained = unique(passes.step[order[backward]])
    # A step of several batches, or ranks, covers more than the batch that shapes show.
    if not begun or begun > len(trained) or len(graph.select(kind="collective")):
        return None
    try:
        batch = recorded_batch(graph)
        length = recorded_length(graph) if unit == "tokens" else 1
    except NotApplicableError:
        return None
    return batch * length if batch and length else None


def only_grids_tell(graph: Graph) -> bool:
    """Tell whether no shapes were recorded, but kernels of training, whose grids then tell how work grows.

    Of inference they do not: a product may take as long as reading its weights takes, whatever the rows.
    """
    shapes = bool(calls_of(graph.recorded).amounts)
    training = (
        len(graph.select(phase=("backward", "optimizer"))) > 0
    )  # not every trace tells the two passes apart
    return not shapes and training and len(graph.select(kind="kernel")) > 0


def is_feature_size(graph: Graph, size: int) -> bool:
    """Tell whether a size is also that of features or of a head."""
    return is_feature(calls_of(graph.recorded), size)


def is_channel_size(graph: Graph, size: int) -> bool:
    """Tell whether convolutions have channels of a size: these stand before the length, not behind it."""
    return any(
        operator(name).formula == "convolution" and size in _tensor(arguments, 0)[1:2]
        for name, arguments, _ in _calls(graph)
    )


def resized_time(
    graph: Graph, tasks: Selection, old: int, new: int, *, every: bool = False
) -> Retimed:
    """Return the durations of kernels or CPU tasks when a size of the input goes from `old` to `new`.

    Work goes with the recorded shapes (see `growth_of`); that of calls without a
    formula in proportion to the size. Copies go with their bytes, single numbers stay. Times
    that the graph's table holds at the new shapes come first.

    Args:
        graph: the graph of the trace.
        tasks: kernels, copies, or CPU tasks.
        old: the size as recorded: a batch, a length.
        new: the size to predict.
        every: all sizes equal to `old` change (a sequence length, which scores hold twice); else the first of
            a tensor (a batch).

    Returns:
        `Retimed`, arrays in the order of the tasks.

    Raises:
        NotApplicableError: no recorded shape holds the old size.
    """
    growth = growth_of(graph, tasks, old, new, every=every)
    flop = growth.flop
    nbytes = growth.nbytes
    known = growth.known
    shapes = (
        {} if graph.times is None else resized_shapes(graph, tasks, flop, old, new, every=every)
    )
    flop, nbytes = (np.where(known, factor, new / old) for factor in (flop, nbytes))
    if (tasks.kind == "cpu").all():
        scaled = scaled_time(
            graph,
            tasks,
            np.where(flop != 1, flop, nbytes),
            weights=_weights(graph, tasks, flop, nbytes),
        )
        return measured_first(graph, tasks, scaled, shapes=shapes)
    number = (tasks.bytes >= 0) & (tasks.bytes <= SCALAR_BYTES) & (tasks.kind != "kernel")
    return retime(
        graph,
        tasks,
        flop_factor=np.where(number, 1, flop),
        bytes_factor=np.where(number, 1, nbytes),
        grid_factor=np.where(known, growth.results, np.nan),
        shapes=shapes,
    )


@dataclass(frozen=True)
class Shares:
    """Parts of some tasks' time, 0 to 1: what grows as shapes say, in proportion to the size, not at all."""

    by_shapes: float
    in_proportion: float
    stays: float

    def words(self) -> str:
        """Return a clause that says which part goes by what."""
        if not self.by_shapes:
            return "in proportion, as no shapes show more"
        if round(self.by_shapes, 2) == 1:
            return "by the recorded shapes"
        others = [
            f"{part:.0%} {what}"
            for part, what in ((self.in_proportion, "in proportion"), (self.stays, "stays"))
            if part >= 0.005
        ]
        return f"by the recorded shapes for {self.by_shapes:.0%} of the time ({', '.join(others)})"


def shares_of_growth(
    tasks: Selection, retimed: Retimed, by_shapes: np.ndarray | None = None
) -> Shares:
    """Return which parts of the tasks' time before a change go by shapes, in proportion, or stay.

    On a CPU what only calls others, makes views or allocates stays.

    Args:
        tasks: the tasks that were given new times.
        retimed: their times, in the order of the tasks.
        by_shapes: mask of those whose shapes tell, shape (tasks,), bool; none if not given.

    Returns:
        `Shares`.
    """
    time = retimed.before_ns.astype(np.float64)
    total = max(time.sum(), 1.0)
    known = np.zeros(len(tasks), bool) if by_shapes is None else by_shapes
    stays = (retimed.model == "unchanged") & ~known
    return Shares(*(float(time[mask].sum() / total) for mask in (known, ~known & ~stays, stays)))


def need_shapes(graph: Graph, shares: Shares) -> None:
    """Note on the graph, or refuse, where most of the work that grows has no shapes.

    Inference may read its weights whatever the size: in proportion would promise a gain that is not there.
    In training, where activations and gradients take most of the traffic, it is a bound.

    Raises:
        NotApplicableError: it is inference, and most of its work that grows has no shapes.
    """
    grows = shares.by_shapes + shares.in_proportion
    if not grows or shares.by_shapes >= MOST * grows:
        return
    part = shares.in_proportion / grows
    if not len(graph.select(phase="backward")):
        raise NotApplicableError(
            f"no shapes show how {part:.0%} of the work would grow, and without a backward pass most of it "
            "may be on weights, which stay.\n"
            "       Record it with record_shapes=True, and without replayed CUDA graphs."
        )
    graph.note(
        f"No shapes show how {part:.0%} of the work would grow: it is assumed to grow in proportion. What is "
        "done with parameters alone stays, so a larger size takes at most that long, a smaller one at least."
    )


def _weights(graph: Graph, tasks: Selection, flop: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """Return the bytes of each product's operand that stays: the bytes grow by so much less than the FLOP."""
    task_work = work(graph, tasks)
    family = task_work.family.astype(
        str
    )  # a recurrent layer has an overhead for each time step instead
    product = np.isin(family, MATRIX_FAMILIES) & (family != "recurrent") & (flop != 1)
    part = np.where(product, (flop - nbytes) / np.where(product, flop - 1, 1), 0.0)
    return np.clip(part, 0.0, 1.0) * np.maximum(task_work.nbytes, 0)


def need_size(size: int | None, what: str) -> int:
    """Return a size that was found.

    Args:
        size: what was found, None for nothing.
        what: what it is: `batch size`.

    Raises:
        NotApplicableError: there is none; the message says how to give it.
    """
    if size is None:
        raise NotApplicableError(
            f"the trace's shapes do not show its {what}.\n"
            "       Give it by --recorded; shapes must have been recorded, or grids of training."
        )
    return size


def _calls(source: Graph | Trace) -> Iterable[tuple[str, list[Argument], int]]:
    trace = source if isinstance(source, Trace) else source.recorded
    if not len(trace):
        return
    calls: Calls = calls_of(trace)
    times = np.bincount(calls.which[calls.which >= 0], minlength=len(calls.keys))
    for (name, shapes, _), count in zip(calls.keys, times.tolist(), strict=True):
        yield bare_name(name), parse_shapes(shapes) or [], count


def _tensor(arguments: list[Argument], place: int) -> Shape:
    part = arguments[place] if place < len(arguments) else ()
    return part if isinstance(part, tuple) else ()


def _most(votes: Counter[int], what: str) -> int | None:
    """Return the size with most votes, None if there are none; raise `NotApplicableError` if several have.

    A size of 1 may be that of a tensor which is the same for all, so any other one goes before it.
    """
    most = max(votes.values(), default=0)
    sizes = sorted(size for size, count in votes.items() if count == most)
    sizes = [size for size in sizes if size > 1] or sizes
    if len(sizes) > 1:
        raise NotApplicableError(
            f"the trace's shapes do not show its {what}: as many calls show {sizes[0]:,} as {sizes[1]:,}.\n"
            "       Give it by --recorded."
        )
    return sizes[0] if sizes else None


# ATen's PersistentSoftmax.cuh: 4 warps a block, of a row or two (up to 2**7); SoftMax.cu: a block a row.
WARP_SOFTMAX = regex(r"softmax_warp_\w+<.*?, (?:\(int\))?(\d+), ")
BLOCK_SOFTMAX = regex(r"cunn_SoftMax\w+<")
WARPS = 4
SHORT_ROW = 7
LEAST_ALIKE = 0.5  # of the kernels between products of as many heads: scores are all of one length
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
    amount = factor ** power.astype(np.float64)
    blocks = factor**growth.blocks
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
        names = [name or "" for name in tasks.name.tolist()]
        each = elements_a_thread(tasks.graph)
        known = {name: elements_a_block(name, each) for name in set(names)}
        blocks = grid_blocks(tasks.graph, tasks)
        self.block = np.array([known[name] for name in names], np.int64)
        self.most = np.where((self.block > 0) & (blocks > 0), blocks * self.block, -1)
        self.product = is_matrix(tasks.graph, tasks)
        self.names = names
        self.blocks = blocks
        # The third size of other grids, of convolutions and layout changes, is no batch of products.
        batched = kernels_are(tasks, "product")
        self.batch = np.where(self.product & batched, _deep(tasks), 1)
        self.fused = kernels_are(tasks, "attention")
        self.reduces = kernels_are(tasks, "softmax", "reduction")
        self.steps = max(len(unique(tasks.step)), 1)
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
        if votes[best, length] < LEAST_ALIKE * sum(
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
    return depth[take(trace["grid"], rows)]
