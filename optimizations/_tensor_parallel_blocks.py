"""Tensor parallelism as Megatron does it: which work of a transformer is divided among the GPUs.

Within a block, linear layers pair up: those that open a *region* give each GPU some of the
output features ("column parallel"), the one that closes it takes those as its input and gives
partial sums of the whole output ("row parallel"), which an all-reduce adds up. In the backward pass
the region is run in the other direction and the sum is that of the gradient of its input.
All that lies between is heads of attention or features of the feed-forward part, and is
divided too; what lies outside, norms and residuals, every GPU does as a whole.

Regions are found by order and shape, within the blocks that a model repeats: of the linear layers
before an attention the next one behind it closes; else one that takes what an opened one gives
and gives back the width that it took. (Shoeybi et al., "Megatron-LM", 2019, section 3.)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from daydream import Graph, NotApplicableError, Selection
from daydream.costs import (
    Argument,
    arguments_now,
    calls_of,
    itemsize,
    operator,
    parse_shapes,
    work,
)
from daydream.model import repeated_blocks

COLUMN, ROW = "column", "row"
PASSES = ("forward", "loss", "backward")
LOOKUPS = ("embedding", "index_select")

Sizes = tuple[int, int, int]  # of a product: rows (tokens, in the forward pass), inner size, columns
Key = tuple[str, str | None, tuple[int, ...]]  # block, layer, sizes in ascending order


@dataclass(frozen=True)
class Sum:
    """An exchange after a task: `nbytes` are those that a GPU puts in."""

    task: int
    nbytes: int
    collective: str = "all_reduce"


@dataclass
class Divided:
    """Tasks of the passes, and which part of their FLOP and bytes is left on each of the GPUs."""

    tasks: Selection
    flop: np.ndarray
    nbytes: np.ndarray
    sums: list[Sum] = field(default_factory=list)
    layers: set[str] = field(default_factory=set)
    kinds: dict[int, str] = field(default_factory=dict)  # column or row, by the call of each product
    regions: int = 0  # of all blocks together, in one step
    blocks: int = 0
    heads: set[int] = field(default_factory=set)
    key_heads: set[int] = field(default_factory=set)
    vocabulary: int | None = None


@dataclass(frozen=True)
class _Linear:
    """A linear layer's call, by the sizes of its forward product; its gradients have them in other places."""

    call: int
    layer: str | None
    sizes: Sizes
    kind: str = COLUMN

    @property
    def key(self) -> tuple[int, ...]:
        """Sizes that it shares with its gradients' products."""
        return tuple(sorted(self.sizes))

    def bytes_left(self, degree: int) -> float:
        """Return the part of a product's bytes that one GPU moves; the same for all three products."""
        tokens, inner, outer = self.sizes
        x, weight, y = tokens * inner, inner * outer, tokens * outer
        whole, divided = (x, weight + y) if self.kind == COLUMN else (y, weight + x)
        return (whole + divided / degree) / (whole + divided)


@dataclass(frozen=True)
class _Region:
    """The first and last of a region's places among the tasks, and its linear layers."""

    begin: int
    end: int
    columns: list[_Linear]
    row: _Linear
    head_width: int | None


def divided_work(graph: Graph, degree: int) -> Divided:
    """Return what `degree` GPUs would divide of a transformer's work, and what they would add up.

    Raises `NotApplicableError` with the reason if the trace shows no transformer blocks with shapes, or
    sizes that cannot be divided.
    """
    graph.select(layer="*").need("layers, by which blocks are found; they are recorded by `daydream collect`")
    families = repeated_blocks(graph)
    if not families:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    on = "gpu" if len(graph.select(kind="kernel")) else "cpu"
    tasks, blocks = graph.select(on=on, phase=PASSES), [block for family in families for block in family]
    of_blocks = tasks.group_by(block=blocks).tasks
    found = _Finder(graph, of_blocks.of(tasks.ids, tasks.words), degree)
    found.blocks(blocks)
    found.vocabulary()
    return found.divided


class _Finder:
    def __init__(self, graph: Graph, tasks: Selection, degree: int) -> None:
        self.graph, self.tasks, self.degree = graph, tasks, degree
        amounts = work(graph, tasks)
        self.call, self.family = amounts.call, amounts.family.astype(str)
        self.layer, self.dtype, self.phase = tasks.layer, tasks.dtype, tasks.phase
        self.divided = Divided(tasks, np.ones(len(tasks)), np.ones(len(tasks)))
        self.place = np.full(graph.size, -1)
        self.place[tasks.ids] = np.arange(len(tasks))
        self.in_block = np.zeros(len(tasks), bool)
        self.names: dict[int, str] = {}
        self.arguments: dict[int, list[Argument]] = {}
        self.sizes: dict[int, Sizes] = {}
        self._read_calls()

    def _read_calls(self) -> None:
        rows = np.unique(self.call[self.call >= 0]).tolist()
        if self.graph.trace is None or not rows:
            raise NotApplicableError(
                "the trace has no shapes of operators; record it with `daydream collect`"
            )
        calls = calls_of(self.graph.trace)
        arguments = arguments_now(self.graph, calls)
        for row in rows:
            place = int(calls.which[row])
            self.names[row], self.arguments[row] = operator(calls.keys[place][0]).name, arguments[place]
            sizes = _sizes(self.names[row], self.arguments[row])
            if sizes is not None:
                self.sizes[row] = sizes

    def blocks(self, blocks: list[str]) -> None:
        """Divide the regions of all blocks, in all steps and repetitions."""
        linear: dict[Key, tuple[int, _Linear]] = {}
        passes = set()
        count = np.zeros(2, np.int64)
        groups = self.tasks.where(phase="forward").group_by("rank", "step", "repeat", block=blocks)
        for (block, *one), members in groups.items():
            places = self.place[members.ids]
            regions = self._regions(places)
            self.in_block[places] = len(regions) > 0
            passes.add(tuple(one))
            count += len(regions) > 0, len(regions)
            for number, region in enumerate(regions):
                self._forward(places, region)
                for each in (*region.columns, region.row):
                    linear[block, each.layer, each.key] = (number, each)
        if not linear:
            raise NotApplicableError(
                "no block that the model repeats has attention between linear layers of recorded shapes"
            )
        self.divided.blocks, self.divided.regions = (int(one) for one in count // len(passes))
        backward = self.tasks.where(phase="backward").group_by("rank", "step", "repeat", block=blocks)
        matched = [self._backward(key[0], self.place[part.ids], linear) for key, part in backward.items()]
        if len(self.tasks.where(phase="backward")) and not any(matched):
            raise NotApplicableError(
                "the trace does not say which backward work belongs to which layer; "
                "record it with `daydream collect`"
            )

    def _regions(self, places: np.ndarray) -> list[_Region]:
        """Return the regions of one block's forward pass; none without attention."""
        regions: list[_Region] = []
        columns: list[_Linear] = []
        begin, width = 0, None
        seen: set[int] = set()  # a call's pieces on a CPU part to let those of inner calls between them
        rows = self.call[places]
        attends = np.array([self._is_attention(at) for at in places.tolist()], bool)
        last_attention = int(places[attends][-1]) if attends.any() else -1
        for at, row in zip(places.tolist(), rows.tolist(), strict=True):
            if row < 0 or row in seen:
                continue
            seen.add(row)
            if columns and width is None and self._is_attention(at):
                first = self.arguments[row][-2 if operator(self.names[row]).is_batched else 0]
                width = first[-1] if isinstance(first, tuple) and first else 0
            if row not in self.sizes:
                continue
            one = _Linear(row, self.layer[at], self.sizes[row])
            turns = _turns_back(columns, one) and (one.sizes[1] != one.sizes[2] or at > last_attention)
            if columns and (width is not None or turns):
                end = int(places[np.flatnonzero(rows == row)[-1]])
                regions.append(_Region(begin, end, columns, replace(one, kind=ROW), width))
                columns, width = [], None
            else:
                begin = begin if columns else at
                columns = [*columns, one]
        return regions if any(region.head_width is not None for region in regions) else []

    def _is_attention(self, at: int) -> bool:
        row = int(self.call[at])
        return row >= 0 and (self.family[at] == "attention" or operator(self.names[row]).is_batched)

    def _forward(self, places: np.ndarray, region: _Region) -> None:
        every = (*region.columns, region.row)
        self._divide(
            places[(places >= region.begin) & (places <= region.end)], {one.call: one for one in every}
        )
        tokens, inner, outer = region.row.sizes
        self._add_up(region.end, tokens * outer)
        self.divided.layers |= {each.layer for each in every if each.layer}
        for each in region.columns:
            self._need_divisible(each.sizes[2], f"output features of {each.layer}")
        self._need_divisible(inner, f"input features of {region.row.layer}")
        if region.head_width:
            self.divided.heads.add(inner // region.head_width)
            self._need_divisible(inner // region.head_width, "heads of attention")
            if len(region.columns) > 1:  # queries, keys and values apart: there may be fewer keys
                least = min(each.sizes[2] for each in region.columns)
                self.divided.key_heads.add(least // region.head_width)

    def _backward(self, block: str, places: np.ndarray, linear: dict[Key, tuple[int, _Linear]]) -> bool:
        """Divide each region from the first product of its last layer to the last one of its first."""
        mine: dict[int, _Linear] = {}
        of_region: dict[int, list[tuple[int, _Linear]]] = {}
        for at, row in zip(places.tolist(), self.call[places].tolist(), strict=True):
            if row in self.sizes:
                found = linear.get((block, self.layer[at], tuple(sorted(self.sizes[row]))))
                if found is not None:
                    mine[row] = found[1]
                    of_region.setdefault(found[0], []).append((at, found[1]))
        for products in of_region.values():
            begin = [at for at, each in products if each.kind == ROW]
            ends = [(at, each) for at, each in products if each.kind == COLUMN]
            if begin and ends:
                end, last = ends[-1]
                self._divide(places[(places >= begin[0]) & (places <= end)], mine)
                self._divide_biases(places, [each for _, each in products])
                self._add_up(end, last.sizes[0] * last.sizes[1])
        self.in_block[places] = len(of_region) > 0
        return bool(of_region)

    def _divide_biases(self, places: np.ndarray, linear: list[_Linear]) -> None:
        """Divide the sums that are gradients of divided biases; the last layer's is as long as the output."""
        sums = places[self.family[places] == "reduction"]
        columns, rows = ({each.layer for each in linear if each.kind == kind} for kind in (COLUMN, ROW))
        for layers, part in ((columns - rows, 1 / self.degree), (rows - columns, 1.0)):
            mine = sums[np.isin(self.layer[sums].astype(str), [str(layer) for layer in layers])]
            self.divided.flop[mine] = self.divided.nbytes[mine] = part

    def vocabulary(self) -> None:
        """Divide the embedding, the last layer and the loss, where that layer has the embedding's rows."""
        outside = np.flatnonzero(~self.in_block)
        rows = np.unique(self.call[outside][self.call[outside] >= 0]).tolist()
        lookups = {row: _lookup(self.arguments[row]) for row in rows if self.names[row] in LOOKUPS}
        # Where there are as many words as features, shapes do not tell which of the two is meant.
        tables = {
            table[0]: table[1] for table, _ in lookups.values() if len(table) == 2 and table[0] != table[1]
        }
        forward = {row for row in self.call[outside[self.phase[outside] == "forward"]].tolist() if row >= 0}
        last = [row for row in sorted(forward & set(self.sizes))
                if tables.get(self.sizes[row][2]) == self.sizes[row][1]]  # fmt: skip
        if not last:
            return
        head = self.sizes[last[-1]]
        size = self.divided.vocabulary = head[2]
        products = {row: _Linear(row, None, head) for row in rows
                    if sorted(self.sizes.get(row, ())) == sorted(head)}  # fmt: skip
        lookups = {row: pair for row, pair in lookups.items() if pair[0][0] == size}
        most = max((prod(indices) for _, indices in lookups.values()), default=0)  # words, not positions
        lookups = {row: pair for row, pair in lookups.items() if prod(pair[1]) == most}
        wide = self._with_size(outside, size)
        self._divide(wide[~np.isin(self.call[wide], list(lookups))], products)
        used = wide[np.isin(self.call[wide], [*products, *lookups])]
        self.divided.layers |= {layer for layer in self.layer[used].tolist() if layer}
        for members in self.graph.tasks(self.tasks.ids[wide]).group_by("rank", "step", "repeat"):
            self._sums_of_vocabulary(self.place[members.ids], products, lookups, head)

    def _with_size(self, places: np.ndarray, size: int) -> np.ndarray:
        """Return the places whose recorded shapes hold a size as that of features, or of rows of a table."""
        shapes = self.tasks.shapes[places].tolist()
        fit = {text: any(size in (shape[-1], shape[0] if len(shape) == 2 else shape[-1])
                         for shape in parse_shapes(text) or [] if isinstance(shape, tuple) and shape)
               for text in set(shapes)}  # fmt: skip
        return places[np.array([fit[text] for text in shapes], bool)]

    def _sums_of_vocabulary(
        self,
        places: np.ndarray,
        products: dict[int, _Linear],
        lookups: dict[int, tuple[tuple[int, ...], tuple[int, ...]]],
        head: Sizes,
    ) -> None:
        """Add up what parts of the table give, the loss, and the gradient of the last layer's input."""
        tokens, width, size = head
        rows, phases = self.call[places], self.phase[places]
        looked_up = places[np.isin(rows, list(lookups)) & (phases == "forward")]
        if len(looked_up):
            indices = lookups[int(self.call[looked_up[-1]])][1]
            self._add_up(int(looked_up[-1]), prod(indices) * width)
        product = np.isin(rows, list(products))
        forward, backward = (places[product & (phases == phase)] for phase in ("forward", "backward"))
        if len(backward):
            self._add_up(int(backward[-1]), tokens * width)
            loss = places[phases == "loss"]
            behind = loss if len(loss) else forward
            if len(behind):  # of each token the largest logit, the target's and the sum, in 32 bits
                self.divided.sums += [Sum(int(self.tasks.ids[behind[-1]]), 3 * 4 * tokens)]
        elif len(forward):
            self._add_up(int(forward[-1]), tokens * size // self.degree, "all_gather")

    def _divide(self, places: np.ndarray, products: dict[int, _Linear]) -> None:
        """Leave each GPU its part of the work at these places, its part of the bytes by the kind of layer."""
        self.divided.flop[places] = self.divided.nbytes[places] = 1 / self.degree
        for at in places.tolist():
            product = products.get(int(self.call[at]))
            if product is not None and self.family[at] == "matmul":
                self.divided.nbytes[at] = product.bytes_left(self.degree)
                self.divided.kinds[int(self.call[at])] = product.kind

    def _add_up(self, at: int, elements: int, collective: str = "all_reduce") -> None:
        size = itemsize(self.dtype[at]) or 4
        self.divided.sums.append(Sum(int(self.tasks.ids[at]), elements * size, collective))

    def _need_divisible(self, size: int, what: str) -> None:
        if size % self.degree:
            raise NotApplicableError(f"{size:,} {what} cannot be divided among {self.degree} GPUs")


def _turns_back(columns: list[_Linear], one: _Linear) -> bool:
    """Say whether a layer takes what the last opened one gives, and gives what the first one took."""
    return bool(columns) and one.sizes[1:] == (columns[-1].sizes[2], columns[0].sizes[1])


def _sizes(name: str, arguments: list[Argument]) -> Sizes | None:
    """Return rows, inner size and columns of a product with a matrix of weights, None for other calls."""
    op = operator(name)
    if not op.is_linear or len(arguments) < op.first + 2:
        return None
    left, right = arguments[op.first : op.first + 2]
    if not (isinstance(left, tuple) and isinstance(right, tuple) and len(right) == 2 and len(left) > 1):
        return None
    return prod(left[:-1]), left[-1], right[0] if op.formula == "linear" else right[1]


def _lookup(arguments: list[Argument]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the table and of the indices of a call that looks rows up."""
    shapes = [part for part in arguments if isinstance(part, tuple) and part]
    return (shapes[0], shapes[-1]) if len(shapes) > 1 else ((), ())
