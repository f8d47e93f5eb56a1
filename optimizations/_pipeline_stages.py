"""Pipeline stages of a recorded step: which of its work runs with which block, forward and backward.

Blocks are those that a model repeats. Program order tells the rest: what runs before a block's first
task goes with the block before it (before the first block: with that), in the backward pass likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream import Graph, Groups, NotApplicableError, Selection
from daydream.costs import elements, itemsize, parse_shapes
from daydream.model import repeated_blocks

PASSES = ("forward", "loss", "backward")


@dataclass(frozen=True)
class Passes:
    """The tasks of all passes, the number of the block each runs with, and whether it runs backward."""

    tasks: Selection
    blocks: list[str]
    block: np.ndarray
    backward: np.ndarray

    def groups(self, chunk_of_block: np.ndarray) -> Groups:
        """Return the tasks by (step, chunk, backward), in program order."""
        step = self.tasks.step
        chunk = chunk_of_block[self.block]
        rows = np.stack([step, chunk, self.backward]).T
        keys, number = np.unique(rows, axis=0, return_inverse=True)
        named = [(int(one), int(part), bool(back)) for one, part, back in keys.tolist()]
        return Groups(self.tasks, number.reshape(-1), named)

    def work(self) -> np.ndarray:
        """Return a mask of the tasks that do the work: the device's where there are any."""
        on_device = self.tasks.kind != "cpu"
        return on_device if on_device.any() else ~on_device

    def time_of_blocks(self) -> list[int]:
        """Return the time of each block's work, of what runs with it too, over all steps."""
        mine = self.work()
        time = np.bincount(self.block[mine], self.tasks.duration_ns[mine], len(self.blocks))
        return [int(one) for one in time]

    def layers(self, blocks: set[int]) -> set[str]:
        """Return the layers that run forward with some of the blocks."""
        mine = ~self.backward & np.isin(self.block, list(blocks))
        return {layer for layer in self.tasks.layer[mine].tolist() if layer is not None}


def passes_by_block(graph: Graph) -> Passes:
    """Return the work of the forward and backward passes by the repeated block it runs with.

    Steps that lack a block, such as the first of a recording, are left out. Raises
    `NotApplicableError` where no step has one forward and one backward pass through repeated blocks.
    """
    graph.select(layer="*").need("layers, by which blocks are found; they are recorded by `daydream collect`")
    families = repeated_blocks(graph)
    if not families:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    background = np.array([lane.background for lane in graph.lanes] + [False])
    tasks = graph.select(phase=PASSES).where(lambda each: ~background[graph.columns["lane"][each.ids]])
    if not len(tasks.where(phase="backward")):
        raise NotApplicableError("the trace has no backward pass: a pipeline of training is predicted")
    time = [tasks.group_by(block=family).tasks.total("duration_ns") for family in families]
    names = families[int(np.argmax(time))]
    order = graph.columns["order"]
    parts = []
    blocks: list[str] | None = None
    for step, members in tasks.group_by("step").items():
        found = _first_of_blocks(graph, members, names)
        if found is None:
            continue
        forward, turn, backward = found
        of_step = sorted(forward, key=lambda block: forward[block])
        if blocks not in (None, of_step):
            raise NotApplicableError(f"step {step} runs its blocks in another order than those before it")
        blocks = of_step
        back = order[members.ids] >= turn
        place = np.searchsorted(np.sort(list(forward.values()))[1:], order[members.ids], side="right")
        cuts = np.array([backward[block] for block in of_step[::-1]])
        place[back] = len(of_step) - 1 - np.searchsorted(cuts[1:], order[members.ids][back], side="right")
        parts.append((members.ids, place, back))
    if blocks is None:
        raise NotApplicableError(f"no step runs all of {names[0]} to {names[-1]} forward and backward")
    ids, block, back = (np.concatenate(each) for each in zip(*parts, strict=True))
    of_blocks = tasks.group_by(block=names).tasks
    return Passes(of_blocks.of(ids, "passes by block", ordered=True), blocks, block, back)


def _first_of_blocks(
    graph: Graph, members: Selection, names: list[str]
) -> tuple[dict[str, int], int, dict[str, int]] | None:
    """Return where in program order each block begins forward, the backward pass begins, each block in it."""
    order = graph.columns["order"]
    of_blocks = members.group_by("phase", "repeat", block=names)
    first = dict(zip(of_blocks.keys, order[of_blocks.first().ids].tolist(), strict=True))
    last = dict(zip(of_blocks.keys, order[of_blocks.last().ids].tolist(), strict=True))
    begin = members.where(phase="backward")
    if not len(begin):
        return None
    turn = int(order[begin.first().ids[0]])
    forward = {name: first[name, "forward", 0] for name in names if (name, "forward", 0) in first}
    if any(last[name, "forward", 0] > turn for name in forward):
        raise NotApplicableError("a step runs forward again after a backward pass: it accumulates gradients")
    backward: dict[str, int] = {}
    for (name, _, _), at in first.items():  # a block that is computed again runs forward before that
        if at >= turn:
            backward[name] = min(at, backward.get(name, at))
    if len(forward) < len(names) or len(backward) < len(names):
        return None
    return forward, turn, backward


def input_bytes(graph: Graph, block: str) -> int | None:
    """Return the bytes of what a block takes in, by its first recorded shapes; None where there are none."""
    tasks = graph.select(phase="forward").group_by(block=[block]).tasks
    for text, dtype in zip(tasks.shapes.tolist(), tasks.dtype.tolist(), strict=True):
        arguments = parse_shapes(text) or []
        size = itemsize(dtype)
        if arguments and isinstance(arguments[0], tuple) and len(arguments[0]) > 1 and size:
            return elements(arguments[0]) * size
    return None
