"""Tensor parallelism: several GPUs share the matrix products of every transformer block.

A region of a block is what lies from its first linear layer to the one that gives as many features as the
first one took: attention between its projections, or the feed-forward part. Layers that open a region keep
1/degree of their outputs on each GPU (`column`), the one that closes it 1/degree of its inputs (`row`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

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
PASS = "rank", "step", "repeat"
LOOKUPS = ("embedding", "index_select")


class Task(NamedTuple):
    """A task of the passes, and the call of an operator whose work it does, -1 for none."""

    id: int
    call: int
    family: str | None
    layer: str | None
    dtype: str | None
    phase: str | None
    shapes: str | None


class Sum(NamedTuple):
    """An exchange after a task: `nbytes` are those that a GPU puts in."""

    task: int
    nbytes: int
    collective: str = "all_reduce"


class Linear(NamedTuple):
    """A linear layer's call: rows (tokens), inner size and columns of its forward product.

    Its gradients' products have these sizes in other places.
    """

    call: int
    layer: str | None
    sizes: tuple[int, ...]
    kind: str = COLUMN

    def bytes_left(self, degree: int) -> float:
        """Return the part of a product's bytes that one GPU moves; the same for all three products."""
        tokens, inner, outer = self.sizes
        x, weight, y = tokens * inner, inner * outer, tokens * outer
        whole, divided = (x, weight + y) if self.kind == COLUMN else (y, weight + x)
        return (whole + divided / degree) / (whole + divided)


class Region(NamedTuple):
    """The tasks of a region, its linear layers, and the width of a head where attention is in it."""

    tasks: list[Task]
    columns: list[Linear]
    row: Linear
    head_width: int | None


class Divided:
    """Tasks of the passes, the part of their FLOP and bytes that each GPU has, and what is added up."""

    def __init__(self, graph: Graph, tasks: Selection, degree: int) -> None:
        self.graph, self.tasks, self.degree = graph, tasks, degree
        amounts = work(graph, tasks)
        columns = tasks.ids, amounts.call, amounts.family, tasks.layer, tasks.dtype, tasks.phase, tasks.shapes
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.of_task = {row[0]: Task(*row) for row in rows}
        self.left: dict[int, tuple[float, float]] = {}  # parts of FLOP and bytes, by task; 1 of others
        self.sums: list[Sum] = []
        self.layers: set[str] = set()
        self.kinds: dict[int, str] = {}  # column or row, by the call of each product
        self.in_block: set[int] = set()
        self.heads: set[int] = set()
        self.key_heads: set[int] = set()
        self.regions, self.blocks = 0, 0  # in one step
        self.vocabulary: int | None = None

        calls = {task.call for task in self.of_task.values() if task.call >= 0}
        if graph.trace is None or not calls:
            raise NotApplicableError(
                "the trace has no shapes of operators; record it with `daydream collect`"
            )
        known = calls_of(graph.trace)
        arguments = arguments_now(graph, known)
        place = {call: int(known.which[call]) for call in calls}
        self.arguments = {call: arguments[at] for call, at in place.items()}
        self.operators = {call: operator(known.keys[at][0]) for call, at in place.items()}
        self.sizes = {call: sizes for call in calls if (sizes := self._sizes(call)) is not None}

    @property
    def flop(self) -> Any:
        """The part of each task's FLOP that is left on a GPU."""
        return [self.left.get(task, (1.0, 1.0))[0] for task in self.of_task]

    @property
    def nbytes(self) -> Any:
        """The part of each task's bytes that is left on a GPU."""
        return [self.left.get(task, (1.0, 1.0))[1] for task in self.of_task]

    def shared(self) -> Selection:
        """Return the tasks whose work is divided."""
        return self.graph.tasks([task for task, (flop, _) in self.left.items() if flop < 1])

    def of_blocks(self, blocks: list[str]) -> None:
        """Divide the regions of all blocks, in all steps and repetitions."""
        linear: dict[tuple[Any, ...], tuple[int, Linear]] = {}
        passes = set()
        for (block, *one), members in self._passes("forward", blocks):
            passes.add(tuple(one))
            regions = self._regions(members)
            self.regions += len(regions)
            self.blocks += len(regions) > 0
            if regions:
                self.in_block |= {task.id for task in members}
            for number, region in enumerate(regions):
                self._forward(region)
                for each in (*region.columns, region.row):
                    key = block, each.layer, *sorted(each.sizes)
                    linear[key] = number, each
        if not linear:
            raise NotApplicableError(
                "no block that the model repeats has attention between linear layers of recorded shapes"
            )
        self.regions, self.blocks = self.regions // len(passes), self.blocks // len(passes)
        backward = self._passes("backward", blocks)
        matched = [self._backward(block, members, linear) for (block, *_), members in backward]
        if not any(matched) and any(task.phase == "backward" for task in self.of_task.values()):
            raise NotApplicableError(
                "the trace does not say which backward work belongs to which layer; "
                "record it with `daydream collect`"
            )

    def _passes(self, phase: str, blocks: list[str]) -> list[tuple[Any, list[Task]]]:
        groups = self.tasks.where(phase=phase).group_by(*PASS, block=blocks)
        return [(key, self._read(members)) for key, members in groups.items()]

    def _read(self, members: Selection) -> list[Task]:
        return [self.of_task[task] for task in members.ids.tolist()]

    def _regions(self, tasks: list[Task]) -> list[Region]:
        """Return the regions of one block's forward pass; none without attention."""
        regions: list[Region] = []
        columns: list[Linear] = []
        begin, width = 0, None
        seen: set[int] = set()  # a call's pieces on a CPU part to let those of inner calls between them
        ends = {task.call: place for place, task in enumerate(tasks, 1)}
        last_attention = max((at for at, task in enumerate(tasks) if self._is_attention(task)), default=-1)
        for at, task in enumerate(tasks):
            if task.call < 0 or task.call in seen:
                continue
            seen.add(task.call)
            if columns and width is None and self._is_attention(task):
                first = self.arguments[task.call][-2 if self.operators[task.call].is_batched else 0]
                width = first[-1] if isinstance(first, tuple) and first else 0
            if task.call not in self.sizes:
                continue
            one = Linear(task.call, task.layer, self.sizes[task.call])
            _, inner, outer = one.sizes
            turns = columns and (inner, outer) == (columns[-1].sizes[2], columns[0].sizes[1])
            if columns and (width is not None or (turns and (inner != outer or at > last_attention))):
                row = one._replace(kind=ROW)
                regions.append(Region(tasks[begin : ends[task.call]], columns, row, width))
                columns, width = [], None
            else:
                begin = begin if columns else at
                columns = [*columns, one]
        return regions if any(region.head_width is not None for region in regions) else []

    def _is_attention(self, task: Task) -> bool:
        return task.call >= 0 and (task.family == "attention" or self.operators[task.call].is_batched)

    def _forward(self, region: Region) -> None:
        every = (*region.columns, region.row)
        self._divide(region.tasks, every)
        tokens, inner, outer = region.row.sizes
        self._add_up(region.tasks[-1], tokens * outer)
        self.layers |= {each.layer for each in every if each.layer}
        for each in region.columns:
            self._need_divisible(each.sizes[2], f"output features of {each.layer}")
        self._need_divisible(inner, f"input features of {region.row.layer}")
        if region.head_width:
            self.heads.add(inner // region.head_width)
            self._need_divisible(inner // region.head_width, "heads of attention")
            if len(region.columns) > 1:  # queries, keys and values apart: there may be fewer keys
                least = min(each.sizes[2] for each in region.columns)
                self.key_heads.add(least // region.head_width)

    def _backward(
        self, block: str, tasks: list[Task], linear: dict[tuple[Any, ...], tuple[int, Linear]]
    ) -> bool:
        """Divide each region from the first product of its last layer to the last one of its first."""
        products: dict[int, list[tuple[int, Linear]]] = {}  # by region
        for at, task in enumerate(tasks):
            found = linear.get((block, task.layer, *sorted(self.sizes.get(task.call, ()))))
            if found is not None:
                products.setdefault(found[0], []).append((at, found[1]._replace(call=task.call)))
        mine = [each for of_region in products.values() for _, each in of_region]
        for of_region in products.values():
            begin = [at for at, each in of_region if each.kind == ROW]
            ends = [(at, each) for at, each in of_region if each.kind == COLUMN]
            if begin and ends:
                end, last = ends[-1]
                self._divide(tasks[begin[0] : end + 1], mine)
                self._divide_biases(tasks, [each for _, each in of_region])
                self._add_up(tasks[end], last.sizes[0] * last.sizes[1])
        if products:
            self.in_block |= {task.id for task in tasks}
        return bool(products)

    def _divide_biases(self, tasks: list[Task], linear: list[Linear]) -> None:
        """Divide the sums that are gradients of divided biases; the last layer's is as long as the output."""
        kinds = {each.layer: each.kind for each in linear}
        both = {each.layer for each in linear if each.kind != kinds[each.layer]}
        for task in tasks:
            if task.family == "reduction" and task.layer in kinds and task.layer not in both:
                part = 1 / self.degree if kinds[task.layer] == COLUMN else 1.0
                self.left[task.id] = part, part

    def of_vocabulary(self) -> None:
        """Divide the embedding, the last layer and the loss, where that layer has the embedding's rows."""
        outside = [task for task in self.of_task.values() if task.id not in self.in_block]
        calls = sorted({task.call for task in outside if task.call >= 0})
        lookups = {}  # the shape of the table, and how many indices look its rows up
        for call in calls:
            if self.operators[call].name in LOOKUPS:
                shapes = _tensors(self.arguments[call])
                lookups[call] = (shapes[0], prod(shapes[-1])) if len(shapes) > 1 else ((), 1)
        # Where there are as many words as features, shapes do not tell which of the two is meant.
        tables = [table for table, _ in lookups.values() if len(table) == 2 and table[0] != table[1]]
        width_of = dict(tables)
        forward = {task.call for task in outside if task.phase == "forward"}
        sizes = [self.sizes[call] for call in calls if call in forward and call in self.sizes]
        heads = [each for each in sizes if width_of.get(each[2]) == each[1]]
        if not heads:
            return
        tokens, width, size = head = heads[-1]
        self.vocabulary = size
        products = [
            Linear(call, None, head) for call in calls if sorted(self.sizes.get(call, ())) == sorted(head)
        ]
        words = {call: indices for call, (table, indices) in lookups.items() if table[:1] == (size,)}
        most = max(words.values(), default=0)  # words, not positions
        looked_up = {call for call, indices in words.items() if indices == most}
        multiplied = {product.call for product in products}
        wide = []  # that have the size as that of features, or of rows of a table
        for task in outside:
            shapes = _tensors(parse_shapes(task.shapes) or [])
            if any(size in (shape if len(shape) == 2 else shape[-1:]) for shape in shapes):
                wide.append(task)
        self._divide([task for task in wide if task.call not in looked_up], products)
        self.layers |= {task.layer for task in wide if task.layer and task.call in looked_up | multiplied}
        for members in self.graph.tasks([task.id for task in wide]).group_by(*PASS):
            mine = self._read(members)
            tables_read = [task for task in mine if task.call in looked_up and task.phase == "forward"]
            forward_, backward = (
                [task for task in mine if task.call in multiplied and task.phase == phase]
                for phase in ("forward", "backward")
            )
            behind = [task for task in mine if task.phase == "loss"] or forward_
            if tables_read:
                self._add_up(tables_read[-1], most * width)
            if backward:  # of each token the largest logit, the target's and the sum, in 32 bits
                self._add_up(backward[-1], tokens * width)
                self.sums += [Sum(task.id, 3 * 4 * tokens) for task in behind[-1:]]
            elif forward_:
                self._add_up(forward_[-1], tokens * size // self.degree, "all_gather")

    def _divide(self, tasks: list[Task], products: Iterable[Linear]) -> None:
        """Leave each GPU its part of the work of tasks, its part of the bytes by the kind of layer."""
        of_call = {product.call: product for product in products}
        for task in tasks:
            nbytes, product = 1 / self.degree, of_call.get(task.call)
            if product is not None and task.family == "matmul":
                nbytes = product.bytes_left(self.degree)
                self.kinds[task.call] = product.kind
            self.left[task.id] = 1 / self.degree, nbytes

    def _add_up(self, task: Task, elements: int, collective: str = "all_reduce") -> None:
        self.sums.append(Sum(task.id, elements * (itemsize(task.dtype) or 4), collective))

    def _need_divisible(self, size: int, what: str) -> None:
        if size % self.degree:
            raise NotApplicableError(f"{size:,} {what} cannot be divided among {self.degree} GPUs")

    def _sizes(self, call: int) -> tuple[int, ...] | None:
        """Return rows, inner size and columns of a product with a matrix of weights, None for other calls."""
        op = self.operators[call]
        factors = self.arguments[call][op.first : op.first + 2]
        if not op.is_linear or [len(each) > 1 for each in _tensors(factors)] != [True, True]:
            return None
        (*rows, inner), right = _tensors(factors)
        if len(right) != 2:
            return None
        return prod(rows), inner, right[0] if op.formula == "linear" else right[1]


def _tensors(arguments: Iterable[Argument]) -> list[tuple[int, ...]]:
    return [shape for shape in arguments if isinstance(shape, tuple) and shape]


def divided_work(graph: Graph, degree: int) -> Divided:
    """Return what `degree` GPUs would divide of a transformer's work, and what they would add up.

    Raises `NotApplicableError` where no block has attention between linear layers of recorded shapes, and
    where sizes cannot be divided by the degree.
    """
    graph.select(layer="*").need("layers, by which blocks are found; they are recorded by `daydream collect`")
    blocks = [block for family in repeated_blocks(graph) for block in family]
    if not blocks:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    on = "gpu" if len(graph.select(kind="kernel")) else "cpu"
    tasks = graph.select(on=on, phase=("forward", "loss", "backward"))
    found = Divided(graph, tasks.group_by(block=blocks).tasks.of(tasks.ids, tasks.words), degree)
    found.of_blocks(blocks)
    found.of_vocabulary()
    return found


STAGE = stages.PARALLEL
EXCLUDES = {"ddp", "fsdp", "p3", "pipeline", "tictac"}
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
    shared = divided.shared()
    before = shared.total("duration_ns")
    whole = tasks.total("duration_ns") - before
    tasks.set(duration_ns=times.duration_ns)
    after = shared.total("duration_ns")

    behind = graph.tasks([one.task for one in divided.sums])
    taken = [network.time_ns(one.collective, one.nbytes) for one in divided.sums]
    where: dict[str, Any] = {"gap_ns": 0}  # on the stream of the work, as that waits for it
    if not on_device:
        waits = graph.insert_after(behind, "wait for all-reduce", duration_ns=0)
        where = {"lane": LANE, "launched": False, "before": waits}
    inserted = graph.insert_after(
        behind,
        LANE,
        kind="collective",
        duration_ns=taken,
        collective=[one.collective for one in divided.sums],
        bytes=[one.nbytes for one in divided.sums],
        **where,
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
    own = optimizer[[layer in divided.layers for layer in optimizer.layer]]
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
    layer = [path in found.layers for path in held.texts("layer")]

    def around(calls: Iterable[int]) -> Any:
        """Return the innermost of some calls around what asked for each allocation, -1 for none."""
        rows = held.trace.is_kind("operator") & False
        rows[[call for call in calls if call >= 0]] = True
        return nearest(held, rows)

    product = zip(around(found.kinds).tolist(), held.texts("phase"), strict=True)
    kept_whole = [found.kinds.get(call) == (ROW if phase == "forward" else COLUMN) for call, phase in product]
    between = held.where(kind=("activation", "temporary")) & ~(kept_whole & ~held.where(kind="gradient"))
    which = between & (around(call_rows(held.graph, found.shared().ids).tolist()) >= 0)
    which |= layer & held.where(kind=("parameter", "gradient", "optimizer_state"))
    which |= layer & held.where(phase="optimizer")
    divide(held, which, degree)
