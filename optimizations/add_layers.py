"""Add layers: a deeper model with more of the blocks that it repeats."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.model import (
    autograd_node_count,
    joint_update,
    repeated_blocks,
    scale_autograd_walks,
    trained_parameters,
)
from daydream.transforms import counted, listed, need_room, stages

STAGE = stages.WORK

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # of gradients; others exchange activations
ARRIVAL = r"^arrival$"  # where a member of a collective waits for its peers


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

    Not modelled: memory, caches that the larger model no longer fits in, convergence.
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
    copies = {block: (count + len(blocks) - 1 - turn) // len(blocks) for turn, block in enumerate(blocks)}
    sizes = zip(groups.keys, groups.sizes.tolist(), strict=True)
    need_room(sum(copies[key[0]] * size for key, size in sizes), "count", count)
    trained = trained_parameters(graph)
    tensors = elements = 1.0
    nodes, more_nodes = autograd_node_count(graph.select()), 0
    for block, members in graph.select().group_by(block=pattern).items():
        more = trained.part(set(members.layer.tolist()))
        more_nodes += copies[block] * autograd_node_count(members)
        tensors, elements = tensors + copies[block] * more[0], elements + copies[block] * more[1]
    joint, time = joint_update(graph, tensors, elements)
    reductions = graph.select(kind="collective", phase="backward", collective=REDUCTIONS)
    reductions = reductions - reductions.where(name=ARRIVAL)

    if len(joint):
        joint.set(duration_ns=time)
    if len(reductions):
        reductions.scale(elements)
        graph.note("Reductions of gradients grow with the gradients, waiting for peers included.")
    if nodes:
        scale_autograd_walks(graph, 1 + more_nodes / nodes)
    for times in sorted(set(copies.values()) - {0}):
        groups.where(np.array([copies[key[0]] == times for key in groups.keys], bool)).repeat(times)
    copied = [f"{block} {times} times" if times > 1 else block for block, times in copies.items() if times]
    graph.note(f"Added: {counted(count, 'layer')}, copies of {listed(copied)}.")


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
