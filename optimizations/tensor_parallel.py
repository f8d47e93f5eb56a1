"""Tensor parallelism: several GPUs share the matrix products of every transformer block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import (
    Argument,
    arguments_now,
    calls_of,
    itemsize,
    network_of,
    operator,
    parse_shapes,
    retime,
    scaled_time,
    work,
)
from daydream.memory import Allocations, divide, nearest
from daydream.model import call_rows, joint_update, repeated_blocks, trained_parameters
from daydream.transforms import counted, listed, stages

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
        last = [
            row
            for row in sorted(forward & set(self.sizes))
            if tables.get(self.sizes[row][2]) == self.sizes[row][1]
        ]
        if not last:
            return
        head = self.sizes[last[-1]]
        size = self.divided.vocabulary = head[2]
        products = {
            row: _Linear(row, None, head) for row in rows if sorted(self.sizes.get(row, ())) == sorted(head)
        }
        lookups = {row: pair for row, pair in lookups.items() if pair[0][0] == size}
        most = max((prod(indices) for _, indices in lookups.values()), default=0)  # words, not positions
        lookups = {row: pair for row, pair in lookups.items() if prod(pair[1]) == most}
        wide = self._with_size(outside, size)
        self._divide(wide[~np.isin(self.call[wide], list(lookups))], products)
        used = wide[np.isin(self.call[wide], [*products, *lookups])]
        self.divided.layers |= {layer for layer in self.layer[used].tolist() if layer}
        for members in self.tasks[wide].group_by("rank", "step", "repeat"):
            self._sums_of_vocabulary(self.place[members.ids], products, lookups, head)

    def _with_size(self, places: np.ndarray, size: int) -> np.ndarray:
        """Return the places whose recorded shapes hold a size as that of features, or of rows of a table."""
        shapes = self.tasks.shapes[places].tolist()
        fit = {
            text: any(
                size in (shape[-1], shape[0] if len(shape) == 2 else shape[-1])
                for shape in parse_shapes(text) or []
                if isinstance(shape, tuple) and shape
            )
            for text in set(shapes)
        }
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


STAGE = stages.PARALLEL
EXCLUDES = frozenset({"ddp", "fsdp", "p3", "pipeline", "tictac"})
CODE = "torch.distributed.tensor.parallel.parallelize_module(model, mesh, plan)"

LANE = "all-reduce"


def tensor_parallel(
    graph: Graph,
    *,
    degree: int = 2,
    cluster: str | None = None,
    bandwidth: float | None = None,
    latency_us: float = 0.0,
) -> None:
    """Predict one of `degree` GPUs that share each transformer block, on the batch of the trace.

    As Megatron-LM does it: the linear layers that open attention and the feed-forward part keep
    1/degree of their outputs on each GPU, those that close them 1/degree of their inputs; heads and
    activations between are divided, norms and residuals are not. Each part ends with an all-reduce of its
    output, and in the backward pass with one of its input's gradient: two and two a block. All work
    waits for them. Where the last layer and an embedding are as wide, they and the loss are
    divided, with an all-reduce after the embedding and after the gradient of the last layer's input, and a
    small one for the loss; logits that no loss follows are gathered. The optimizer updates what a GPU has.

    Kernels get a time for their part of FLOP and bytes, and keep their fixed cost, their launches, the
    tiles of products, and what an unfilled GPU leaves idle; without device work operators keep their
    overhead. The network is `cluster` (machines of the trace's GPU if not given), or `bandwidth` in
    GB/s and `latency_us` a step between neighbours of a ring.

    Not modelled: sequence parallelism, an all-reduce hidden behind the weights' gradient, fused
    projections where the trace has three, smaller tiles that libraries pick for narrower
    products (so that those of small models gain less here than they would).

    Memory: a GPU holds its part of the divided layers, with gradients and states, and of what lies
    between them; inputs of a part, its output and all else it holds as a whole.

    Args:
        degree: Number of GPUs that share each layer.
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        bandwidth (GB/s): Link bandwidth per GPU.
        latency_us (us): Latency of a transfer between two neighbors.
    """
    if degree < 1:
        raise GraphError(f"degree must be 1 or more, not {degree}")
    if degree == 1:
        graph.does_not_apply("a degree of 1 leaves every product whole")
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")
    divided = divided_work(graph, degree)
    network = network_of(graph, degree, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    tasks, on_device = divided.tasks, len(graph.select(kind="kernel")) > 0
    if on_device:
        times = retime(graph, tasks, flop_factor=divided.flop, bytes_factor=divided.nbytes)
    else:
        times = scaled_time(graph, tasks, divided.flop)
    updated = _update_of_parts(graph, divided, degree)
    shared = divided.flop < 1
    before, after = (time[shared].sum() for time in (tasks.duration_ns, times.duration_ns))
    whole = tasks.duration_ns[~shared].sum()
    tasks.set(duration_ns=times.duration_ns)

    behind = graph.tasks([one.task for one in divided.sums])
    taken = [network.time_ns(one.collective, one.nbytes) for one in divided.sums]
    sums: dict[str, Any] = {
        "duration_ns": taken,
        "collective": [one.collective for one in divided.sums],
        "bytes": [one.nbytes for one in divided.sums],
    }
    if on_device:  # on the stream of the work, as that waits for it
        inserted = graph.insert_after(behind, LANE, kind="collective", gap_ns=0, **sums)
    else:
        waits = graph.insert_after(behind, "wait for all-reduce", duration_ns=0)
        inserted = graph.insert_after(
            behind, LANE, kind="collective", lane=LANE, launched=False, before=waits, **sums
        )
    inserted.set(name=[one.collective.replace("_", "-") for one in divided.sums])
    _say(graph, divided, degree)
    graph.note(
        f"Of the work of all passes in the trace, {before / 1e6:,.3f} ms are divided and take "
        f"{after / 1e6:,.3f} ms, {whole / 1e6:,.3f} ms stay; sums take {sum(taken) / 1e6:,.3f} ms."
    )
    graph.note(updated)
    graph.note(network.describe())


def _update_of_parts(graph: Graph, divided: Divided, degree: int) -> str:
    """Let the optimizer update a GPU's parts of the divided layers; return what to say of it."""
    optimizer = graph.select(phase="optimizer")
    if not len(optimizer):
        return "The trace has no optimizer step."
    trained = trained_parameters(graph)
    share = trained.part(divided.layers)[1]
    joint, time = joint_update(graph, 1.0, 1 - share * (1 - 1 / degree))
    own = optimizer.where(lambda each: np.isin(each.layer.astype(str), list(divided.layers)))
    own = own.where(kind="kernel" if len(graph.select(kind="kernel")) else "cpu")
    if len(joint):
        joint.set(duration_ns=time)
    if len(own):
        own.set(duration_ns=scaled_time(graph, own, 1 / degree).duration_ns)
    return f"{share:.0%} of the parameters are divided; the optimizer updates the others on every GPU."


def _say(graph: Graph, divided: Divided, degree: int) -> None:
    heads, few = divided.heads, [one for one in divided.key_heads if one % degree]
    graph.note(
        f"{counted(divided.regions, 'part')} of {counted(divided.blocks, 'transformer block')} are divided "
        f"among {degree} GPUs; heads of attention: {listed([str(one) for one in sorted(heads)])}."
    )
    if few:
        graph.note(
            f"Keys and values have {listed([str(one) for one in sorted(few)])} heads; what GPUs would hold "
            "of them more than once is not counted."
        )
    if divided.vocabulary is None:
        graph.note("No last layer as large as an embedding: what lies outside the blocks stays whole.")


def memory(held: Allocations, *, degree: int, **options: Any) -> None:
    """Hold one GPU's part of the divided layers and of what lies between them."""
    found = divided_work(held.graph, degree)
    rows = np.zeros(len(held.trace), bool)
    calls = call_rows(held.graph, found.tasks.ids[found.flop < 1])
    rows[calls[calls >= 0]] = True
    products = np.zeros(len(held.trace), bool)
    products[list(found.kinds)] = True
    product = nearest(held, products)
    kind = np.array([found.kinds.get(row, "") for row in product.tolist()])
    forward = held.where(phase="forward")
    whole = np.where(forward, kind == ROW, kind == COLUMN) & ~held.where(kind="gradient")

    which = held.where(kind=("activation", "temporary")) & (nearest(held, rows) >= 0) & ~whole
    layer = np.array([path in found.layers for path in held.texts("layer")], bool)
    which |= layer & held.where(kind=("parameter", "gradient", "optimizer_state"))
    which |= layer & held.where(phase="optimizer")
    divide(held, which, degree)
