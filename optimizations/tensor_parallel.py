"""Tensor parallelism: several GPUs share the matrix products of every transformer block.

A region of a block is what lies from its first linear layer to the one that gives as many features as the
first one took: attention between its projections, or the feed-forward part. Layers that open a region keep
1/degree of their outputs on each GPU (`column`), the one that closes it 1/degree of its inputs (`row`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from daydream.optimizations._gradient_collectives import FAKE_WORLD, families_of_blocks, refuse_ranks

from daydream import Graph, GraphError, NotApplicableError
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
from daydream.model import call_rows, joint_update, trained_parameters
from daydream.transforms import counted, listed, stages

STAGE = stages.PARALLEL
EXCLUDES = {"ddp", "fsdp", "p3", "pipeline", "tictac"}
CODE = "torch.distributed.tensor.parallel.parallelize_module(model, mesh, plan)"

LANE = "all-reduce"
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


class Linear(NamedTuple):
    """A product with weights: rows (tokens), inner size and columns that it has in the forward pass.

    The products of its gradients have these sizes in other places.
    """

    call: int
    layer: str | None
    sizes: tuple[int, ...]
    kind: str = COLUMN


Region = tuple[list[Task], list[Linear], int | None]  # the row layer last; a head's width, None without


class Divided:
    """What GPUs would divide of a transformer's work, and what they would add up.

    Attributes:
        tasks: the work of the passes.
        flop: the part of each task's FLOP that is left on a GPU.
        nbytes: likewise of its bytes.
        shared: the tasks whose work is divided.
        sums: exchanges: the task each comes after, the bytes a GPU puts in, the collective.
        layers: that are divided.
        kinds: column or row, by the call of each product.

    Raises `NotApplicableError` where no block has attention between linear layers of recorded shapes, and
    where sizes cannot be divided by the degree.
    """

    def __init__(self, graph: Graph, degree: int) -> None:
        blocks = [block for family in families_of_blocks(graph) for block in family]
        self.on_device = len(graph.select(kind="kernel")) > 0
        phases = "forward", "loss", "backward"
        tasks = graph.select(on="gpu" if self.on_device else "cpu", phase=phases)
        self.graph, self.degree = graph, degree
        self.tasks = tasks.group_by(block=blocks).tasks.of(tasks.ids, tasks.words)
        amounts, tasks = work(graph, self.tasks), self.tasks
        columns = tasks.ids, amounts.call, amounts.family, tasks.layer, tasks.dtype, tasks.phase, tasks.shapes
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self.of_task = {row[0]: Task(*row) for row in rows}
        self.left: dict[int, tuple[float, float]] = {}  # parts of FLOP and bytes, by task; 1 of others
        self.sums: list[tuple[int, int, str]] = []
        self.layers: set[str] = set()
        self.kinds: dict[int, str] = {}
        self.heads: set[int] = set()
        self.key_heads: set[int] = set()

        calls = {task.call for task in self.of_task.values() if task.call >= 0}
        if graph.trace is None or not calls:
            raise NotApplicableError(
                "the trace has no shapes of operators; record it with `daydream collect`"
            )
        known = calls_of(graph.trace)
        arguments, self.sizes = arguments_now(graph, known), dict[int, tuple[int, ...]]()
        place = {call: int(known.which[call]) for call in calls}
        self.arguments = {call: arguments[at] for call, at in place.items()}
        self.operators = {call: operator(known.keys[at][0]) for call, at in place.items()}
        for call, op in self.operators.items():
            shapes = _tensors(self.arguments[call][op.first : op.first + 2])
            if op.is_linear and len(shapes) == 2 and len(shapes[0]) > 1 and len(shapes[1]) == 2:
                (*tokens, inner), weight = shapes
                self.sizes[call] = prod(tokens), inner, weight[op.formula != "linear"]

        self._of_vocabulary(self._of_blocks(blocks))
        parts = [self.left.get(task, (1.0, 1.0)) for task in self.of_task]
        self.flop: Any = [flop for flop, _ in parts]
        self.nbytes: Any = [nbytes for _, nbytes in parts]
        self.shared = graph.tasks([task for task, (flop, _) in self.left.items() if flop < 1])

    def _of_blocks(self, blocks: list[str]) -> set[int]:
        """Divide the regions of all blocks, in all steps and repetitions; return the tasks of the blocks."""
        linear: dict[tuple[Any, ...], tuple[int, Linear]] = {}
        inside: set[int] = set()
        found, passes, matched = [], set(), not len(self.tasks.where(phase="backward"))
        for phase in ("forward", "backward"):
            groups = self.tasks.where(phase=phase).group_by(*PASS, block=blocks)
            for (block, *one), members in groups.items():
                tasks = [self.of_task[task] for task in members.ids.tolist()]
                if phase == "backward":
                    done = self._backward(block, tasks, linear)
                    matched |= done
                else:
                    regions = self._regions(tasks)
                    done = len(regions) > 0
                    passes.add(tuple(one))
                    found += [len(regions)] * done
                    for number, region in enumerate(regions):
                        self._forward(*region)
                        for each in region[1]:
                            key = block, each.layer, *sorted(each.sizes)
                            linear[key] = number, each
                inside |= {task.id for task in tasks if done}
            if not linear:
                raise NotApplicableError(
                    "no block that the model repeats has attention between linear layers of recorded shapes"
                )
        if not matched:
            raise NotApplicableError(
                "the trace does not say which backward work belongs to which layer; "
                "record it with `daydream collect`"
            )
        self.regions, self.blocks = (each // len(passes) for each in (sum(found), len(found)))  # in a step
        return inside

    def _regions(self, tasks: list[Task]) -> list[Region]:
        """Return the regions of one block's forward pass; none without attention."""
        regions: list[Region] = []
        columns: list[Linear] = []
        begin, width = 0, None
        seen = {-1}  # a call's pieces on a CPU part to let those of inner calls between them
        ends = {task.call: place for place, task in enumerate(tasks, 1)}
        attention = {
            task.call
            for task in tasks
            if task.call >= 0 and (task.family == "attention" or self.operators[task.call].is_batched)
        }
        last_attention = max((ends[call] for call in attention), default=0)
        for at, task in enumerate(tasks):
            call = task.call
            if call in seen:
                continue
            seen.add(call)
            if columns and width is None and call in attention:
                first = self.arguments[call][-2 if self.operators[call].is_batched else 0]
                width = first[-1] if isinstance(first, tuple) and first else 0
            if call not in self.sizes:
                continue
            one = Linear(call, task.layer, self.sizes[call])
            _, inner, outer = one.sizes
            turns = columns and (inner, outer) == (columns[-1].sizes[2], columns[0].sizes[1])
            if columns and (width is not None or (turns and (inner != outer or at >= last_attention))):
                regions.append((tasks[begin : ends[call]], [*columns, one._replace(kind=ROW)], width))
                columns, width = [], None
            else:
                begin = begin if columns else at
                columns.append(one)
        return regions if any(width is not None for *_, width in regions) else []

    def _forward(self, tasks: list[Task], linear: list[Linear], width: int | None) -> None:
        *columns, row = linear
        tokens, inner, outer = row.sizes
        sizes = [(each.sizes[2], f"output features of {each.layer}") for each in columns]
        sizes.append((inner, f"input features of {row.layer}"))
        if width:
            self.heads.add(inner // width)
            sizes.append((inner // width, "heads of attention"))
            if len(columns) > 1:  # queries, keys and values apart: there may be fewer keys
                self.key_heads.add(min(each.sizes[2] for each in columns) // width)
        for size, what in sizes:
            if size % self.degree:
                raise NotApplicableError(f"{size:,} {what} cannot be divided among {self.degree} GPUs")
        self._divide(tasks, linear)
        self._add_up(tasks[-1], tokens * outer)
        self.layers |= {each.layer for each in linear if each.layer}

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
            if not begin or not ends:
                continue
            end, last = ends[-1]
            self._divide(tasks[begin[0] : end + 1], mine)
            # Sums are gradients of biases; that of the last layer is as long as the output.
            kinds = {(each.layer, each.kind) for _, each in of_region}
            for task in tasks:
                of_layer = [kind for layer, kind in kinds if layer == task.layer]
                if task.family == "reduction" and len(of_layer) == 1:
                    self.left[task.id] = (1 / self.degree if of_layer == [COLUMN] else 1.0,) * 2
            self._add_up(tasks[end], last.sizes[0] * last.sizes[1])
        return bool(products)

    def _of_vocabulary(self, inside: set[int]) -> None:
        """Divide the embedding, the last layer and the loss, where that layer has the embedding's rows."""
        outside = [task for task in self.of_task.values() if task.id not in inside]
        calls = sorted({task.call for task in outside if task.call >= 0})
        lookups = {  # the shape of the table, and how many indices look its rows up
            call: (shapes[0], prod(shapes[-1]))
            for call in calls
            if self.operators[call].name in LOOKUPS and len(shapes := _tensors(self.arguments[call])) > 1
        }
        # Where there are as many words as features, shapes do not tell which of the two is meant.
        tables = {table for table, _ in lookups.values() if len(table) == 2 and table[0] != table[1]}
        forward = {task.call for task in outside if task.phase == "forward"}
        sizes = {call: self.sizes[call] for call in calls if call in self.sizes}
        heads = [one for call, one in sizes.items() if call in forward and one[:0:-1] in tables]
        self.vocabulary = len(heads) > 0
        if not heads:
            return
        tokens, width, size = head = heads[-1]
        multiplied = {call for call, one in sizes.items() if sorted(one) == sorted(head)}
        words = {call: indices for call, (table, indices) in lookups.items() if table[0] == size}
        most = max(words.values())  # words, not positions
        looked_up = {call for call, indices in words.items() if indices == most}
        wide = []  # that have the size as that of features, or of rows of a table
        for task in outside:
            shapes = _tensors(parse_shapes(task.shapes) or [])
            if any(size in (shape if len(shape) == 2 else shape[-1:]) for shape in shapes):
                wide.append(task)
        products = [Linear(call, None, head) for call in multiplied]
        self._divide([task for task in wide if task.call not in looked_up], products)
        self.layers |= {task.layer for task in wide if task.layer and task.call in looked_up | multiplied}
        for members in self.graph.tasks([task.id for task in wide]).group_by(*PASS):
            last: dict[str, Task] = {}
            for task in (self.of_task[task] for task in members.ids.tolist()):
                if task.phase == "loss":
                    last["loss"] = task
                elif task.call in multiplied:
                    last[task.phase or ""] = task
                elif task.call in looked_up and task.phase == "forward":
                    last["table"] = task
            if "table" in last:
                self._add_up(last["table"], most * width)
            if "backward" in last:  # of each token the largest logit, the target's and the sum, in 32 bits
                self._add_up(last["backward"], tokens * width)
                behind = last.get("loss", last.get("forward"))
                self.sums += [(behind.id, 3 * 4 * tokens, "all_reduce")] if behind else []
            elif "forward" in last:
                self._add_up(last["forward"], tokens * size // self.degree, "all_gather")

    def _divide(self, tasks: list[Task], products: list[Linear]) -> None:
        """Leave each GPU its part of the work of tasks, its part of the bytes by the kind of layer."""
        of_call = {product.call: product for product in products}
        for task in tasks:
            nbytes, product = 1 / self.degree, of_call.get(task.call)
            if product is not None and task.family == "matmul":
                self.kinds[task.call] = product.kind
                tokens, inner, outer = product.sizes  # of all three products alike: one side stays whole
                whole, total = tokens * inner, tokens * inner + inner * outer + tokens * outer
                if product.kind == ROW:
                    whole = tokens * outer
                nbytes = (whole + (total - whole) / self.degree) / total
            self.left[task.id] = 1 / self.degree, nbytes

    def _add_up(self, task: Task, elements: int, collective: str = "all_reduce") -> None:
        self.sums.append((task.id, elements * (itemsize(task.dtype) or 4), collective))


def _tensors(arguments: Iterable[Argument]) -> list[tuple[int, ...]]:
    return [shape for shape in arguments if isinstance(shape, tuple) and shape]


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
    refuse_ranks(graph)
    divided = Divided(graph, degree)
    network = network_of(graph, degree, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    tasks, shared = divided.tasks, divided.shared
    if divided.on_device:
        times = retime(graph, tasks, flop_factor=divided.flop, bytes_factor=divided.nbytes)
    else:
        times = scaled_time(graph, tasks, divided.flop)
    optimizer, updated = graph.select(phase="optimizer"), "The trace has no optimizer step."
    if len(optimizer):
        share = trained_parameters(graph).part(divided.layers)[1]
        joint, time = joint_update(graph, 1.0, 1 - share * (1 - 1 / degree))
        own = optimizer[[layer in divided.layers for layer in optimizer.layer]]
        own = own.where(kind="kernel" if divided.on_device else "cpu")
        if len(joint):
            joint.set(duration_ns=time)
        if len(own):
            own.set(duration_ns=scaled_time(graph, own, 1 / degree).duration_ns)
        updated = f"{share:.0%} of the parameters are divided; the optimizer updates the others on every GPU."
    before = shared.total("duration_ns")
    whole = tasks.total("duration_ns") - before
    tasks.set(duration_ns=times.duration_ns)
    after = shared.total("duration_ns")

    ends, nbytes, collectives = map(list, zip(*divided.sums, strict=True))
    behind, taken = graph.tasks(ends), list(map(network.time_ns, collectives, nbytes))
    where: dict[str, Any] = {"gap_ns": 0}  # on the stream of the work, as that waits for it
    if not divided.on_device:
        waits = graph.insert_after(behind, "wait for all-reduce", duration_ns=0)
        where = {"lane": LANE, "launched": False, "before": waits}
    given = {"duration_ns": taken, "collective": collectives, "bytes": nbytes}
    inserted = graph.insert_after(behind, LANE, kind="collective", **given, **where)
    inserted.set(name=[one.replace("_", "-") for one in collectives])
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
    if not divided.vocabulary:
        graph.note("No last layer as large as an embedding: what lies outside the blocks stays whole.")
    graph.note(
        f"Of the work of all passes in the trace, {before / 1e6:,.3f} ms are divided and take "
        f"{after / 1e6:,.3f} ms, {whole / 1e6:,.3f} ms stay; sums take {sum(taken) / 1e6:,.3f} ms."
    )
    graph.note(updated)
    graph.note(network.describe())
    graph.note(FAKE_WORLD.format(degree))


def memory(held: Allocations, *, degree: int, **options: Any) -> None:
    """Hold one GPU's part of the divided layers and of what lies between them."""
    found = Divided(held.graph, degree)
    layer = [path in found.layers for path in held.texts("layer")]

    def around(calls: Iterable[int]) -> Any:
        """Return the innermost of some calls around what asked for each allocation, -1 for none."""
        rows = held.trace.is_kind("operator") & False
        rows[[call for call in calls if call >= 0]] = True
        return nearest(held, rows)

    product = zip(around(found.kinds).tolist(), held.texts("phase"), strict=True)
    kept_whole = [found.kinds.get(call) == (ROW if phase == "forward" else COLUMN) for call, phase in product]
    between = held.where(kind=("activation", "temporary")) & ~(kept_whole & ~held.where(kind="gradient"))
    which = between & (around(call_rows(held.graph, found.shared.ids).tolist()) >= 0)
    which |= layer & held.where(kind=("parameter", "gradient", "optimizer_state"))
    which |= layer & held.where(phase="optimizer")
    divide(held, which, degree)
