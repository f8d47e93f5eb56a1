"""Add layers: a deeper model with more of the blocks that it repeats."""

from __future__ import annotations

import numpy as np
from daydream.optimizations._gradient_collectives import resize_parameters

from daydream import Graph, GraphError, NotApplicableError
from daydream.memory import (
    Allocations,
    Moved,
    block_of_rows,
    in_phase,
    parts_of,
    renumber,
    repeat,
    scale_owned,
)
from daydream.model import (
    autograd_node_count,
    repeated_blocks,
    scale_autograd_walks,
    trained_parameters,
)
from daydream.transforms import counted, listed, need_room, stages

STAGE = stages.WORK


def add_layers(graph: Graph, *, count: int = 1, layers: str | None = None) -> None:
    """Predict a model with `count` more layers, copies of those it has.

    The blocks whose path matches `layers` are copied in turn until there are `count` more: of
    `blocks.*` with 4 blocks and a count of 4 each one is there twice. By default the middle one
    of the blocks that the model repeats is copied; where modules take turns, as Linear and ReLU do, it is one
    turn more (`4 + 5`). A copy does the block's forward,
    backward and optimizer work again right after it, on the CPU and on the device, with its
    launches. An update of all parameters at once, and gradients reduced between ranks,
    grow in proportion to the parameters; other collectives are not copied. On a CPU autograd's walks
    over its graph take as much longer as it has more nodes.

    Memory: a copy has parameters, optimizer states and gradients of its own, and what the block makes it
    makes right after it, in the backward pass right before it.

    Not modelled: caches that the larger model no longer fits in, convergence.

    Args:
        count: How many layers to add.
        layers (GLOB): Modules to copy, by path: blocks.*.
    """
    if count < 1:
        raise GraphError(f"count must be 1 or more, not {count}: no layer more is the model of the trace")
    tasks = graph.select(phase=("forward", "loss", "backward", "optimizer"))
    pattern = _middle_block(graph) if layers is None else layers
    tasks = tasks - tasks.where(kind="collective") - tasks.where(kind="collective").launches()
    groups = tasks.group_by("rank", "step", "phase", block=pattern)
    groups.tasks.need(
        f"work of layers {layers or 'that are repeated'!r}; layers are recorded by `daydream collect`, "
        "and `*` stands for any text"
    )
    blocks = list(dict.fromkeys(key[0] for key in groups.keys))
    if not len(groups.tasks.where(phase="forward")):
        graph.does_not_apply(f"layers {layers!r} do no work in the forward pass")
    copies = dict(zip(blocks, _copies(count, len(blocks)), strict=True))
    sizes = zip(groups.keys, groups.sizes.tolist(), strict=True)
    need_room(sum(copies[key[0]] * size for key, size in sizes), "count", count)
    trained = trained_parameters(graph)
    tensors = elements = 1.0
    nodes, more_nodes = autograd_node_count(graph.select()), 0
    for block, members in graph.select().group_by(block=pattern).items():
        more = trained.part(set(members.layer.tolist()))
        more_nodes += copies[block] * autograd_node_count(members)
        tensors, elements = tensors + copies[block] * more[0], elements + copies[block] * more[1]

    resize_parameters(graph, "grow", tensors, elements)
    if nodes:
        scale_autograd_walks(graph, 1 + more_nodes / nodes)
    for times in sorted(set(copies.values()) - {0}):
        groups.where(np.array([copies[key[0]] == times for key in groups.keys], bool)).repeat(times)
    copied = [f"{block} {times} times" if times > 1 else block for block, times in copies.items() if times]
    graph.note(f"Added: {counted(count, 'layer')}, copies of {listed(copied)}.")


def memory(held: Allocations, *, count: int = 1, layers: str | None = None) -> None:
    """Let copies of blocks hold what those hold."""
    pattern = _middle_block(held.graph) if layers is None else layers
    block, _ = block_of_rows(held, pattern)
    forward, backward = (
        parts_of(held, (block >= 0) & in_phase(held, phase), held["step"], block)
        for phase in ("forward", "backward")
    )
    # In the order of their first work, as the graph's groups are.
    order = np.unique(forward.keys[np.argsort(forward.first), -1], return_index=True)
    blocks = order[0][np.argsort(order[1])]
    if not len(blocks):
        raise NotApplicableError(f"layers {layers!r} hold nothing in the forward pass")
    times = np.zeros(int(block.max()) + 2, np.int64)
    times[blocks] = _copies(count, len(blocks))
    numbers = int(held["repeat"].max(initial=0)) + 1
    mate = backward.find(forward.keys)

    for each in sorted(set(times[times > 0].tolist())):
        mine, behind = (
            np.flatnonzero((parts.of >= 0) & (times[block] == each)) for parts in (forward, backward)
        )
        there, back = Moved(held, forward, forward.until, each), Moved(held, backward, backward.first, each)
        node, end = mate[forward.of[mine]], held["end"][mine]
        inside = (node >= 0) & (end >= backward.first[node]) & (end < backward.until[node])
        _hand_to_copies(held, back, np.unique(backward.of[behind]))
        for turn in range(each):
            last = each - 1 - turn  # the backward pass runs through the copies the other way round
            number = numbers * (turn + 1)
            ends = np.where(inside, back(np.where(inside, end, 0), node, last), end)
            repeat(held, mine, there, turn=turn, end=ends, repeat=held["repeat"][mine] + number)
            repeat(held, behind, back, turn=last, repeat=held["repeat"][behind] + number)
    trained = trained_parameters(held.graph)
    paths, (block, _) = held.texts("layer"), block_of_rows(held, pattern)
    share = 0.0
    for one in blocks.tolist():
        named = zip(paths, block.tolist(), strict=True)
        share += times[one] * trained.part({path for path, of in named if of == one and path is not None})[1]
    scale_owned(held, block >= 0, times[block], share)
    renumber(held)


def _hand_to_copies(held: Allocations, back: Moved, parts: np.ndarray) -> None:
    """Let gradients that come into a block's backward pass go in that of its copies, which run before it."""
    gradient = held.where(phase="backward", kind="temporary")
    first, until, keys = back.parts.first, back.parts.until, back.parts.keys
    for part in parts.tolist():
        end = held["end"]
        rows = gradient & (held["begin"] < first[part]) & (end >= first[part]) & (end < until[part])
        taken = np.flatnonzero(rows & (held["rank"] == keys[part, 0]))
        end[taken] = back(end[taken], np.full(len(taken), part))


def _copies(count: int, blocks: int) -> list[int]:
    """Return how many times each block is copied."""
    return [(count + blocks - 1 - turn) // blocks for turn in range(blocks)]


def _middle_block(graph: Graph) -> str:
    """Return the middle one of the blocks that are repeated, of several families that with most time."""
    graph.select(layer="*").need("layers; they are recorded by `daydream collect`")
    families = repeated_blocks(graph)
    if not families:
        graph.does_not_apply(
            "the model repeats no numbered block (`blocks.0`, `blocks.1`) or turn of modules; "
            "name one by --layers"
        )
    time = [graph.select().group_by(block=family).tasks.total("duration_ns") for family in families]
    family = families[int(np.argmax(time))]
    return family[len(family) // 2]
