"""The blocks of a recording of one GPU: what each takes, forward and backward, and what it holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from daydream.costs.device.input_sizes import recorded_length, samples_per_step
from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, CPU, covered_steps, phase_code
from daydream.memory.lifetimes import allocations
from daydream.memory.liveness import block_of_rows
from daydream.memory.report import memory_of
from daydream.model.blocks import block_of_layers, repeated_blocks
from daydream.plan.strategies import Sizes
from daydream.predict.replay import Replay
from daydream.world.compose import Block, Model, Pass

HEAD, TAIL = "head", "tail"  # what runs before the first block, and behind the last one


class Recorded(NamedTuple):
    """A model as it was recorded.

    Attributes:
        model: its blocks.
        sizes: what it can be divided by.
        micro_batch: samples of the recorded step, 0 where that is not known.
    """

    model: Model
    sizes: Sizes
    micro_batch: int


def recorded_model(replay: Replay) -> Recorded:
    """Return the blocks of the trace of one GPU.

    Raises:
        NotApplicableError: the model repeats no block, is not trained, or the trace has collectives.
        TraceError: no memory was recorded.
    """
    graph = replay.graph
    if (graph.kind[graph.ids] == COLLECTIVE).any():
        raise NotApplicableError("this is one of several ranks; plan from the trace of one GPU alone")
    families = repeated_blocks(graph)
    if not families:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    tasks = graph.select(phase=("forward", "backward"))
    longest = max(families, key=lambda one: tasks.group_by(block=one).tasks.total("duration_ns"))
    place_of, names = block_of_layers(graph, longest)
    times, update_ns, layers = _times(graph, place_of, len(names))
    device = memory_of(graph.recorded).devices[0]
    held = allocations(graph.recorded).of_graph(graph)
    activation = held.where(kind="activation", phase=("forward", "loss"))
    place = block_of_rows(held, names)[0] + 1
    place[place == 0] = len(names) + 1  # what no block asked for is mostly the loss's
    saved = np.zeros(len(names) + 2)
    of_steps = [activation & (held["step"] == step) for step in np.unique(held["step"][activation])]
    if of_steps:
        fullest = max(of_steps, key=lambda one: held["bytes"][one].sum())
        np.add.at(saved, place[fullest], held["bytes"][fullest])
    trained = [each for each in held.parameters.get(0, []) if each.get("requires_grad", True)]
    elements = np.zeros(len(names) + 2)
    nbytes = 0
    for each in trained:
        number = int(np.prod(each["shape"]))
        elements[layers.get(each.get("layer"), 0)] += number
        nbytes += number * (itemsize(each["dtype"]) or 4)
    total = elements.sum()
    if not total:
        raise NotApplicableError("the parameters of the layers are not known; record with `daydream collect`")
    of_kind = device.by_kind
    kept = [nbytes / total, nbytes / total, of_kind.get("optimizer_state", 0) / total]
    workspace = max((device.peak_allocated_bytes or 0) - sum(kept) * total - saved.sum(), 0)
    batch = samples_per_step(graph) or 0
    length = recorded_length(graph) or 0
    blocks = tuple(
        Block(
            name,
            *(Pass(gpu, cpu) for cpu, gpu in times[:, :, place].tolist()),
            parameters=elements[place],
            input_bytes=0,
            saved_bytes=saved[place],
            workspace_bytes=workspace,
            is_layer=name not in (HEAD, TAIL),
        )
        for place, name in enumerate([HEAD, *names, TAIL])
    )
    return Recorded(
        Model(blocks, *kept, optimizer_ns=update_ns / total), Sizes(len(names), sequence=length), batch
    )


def _times(graph: Graph, place_of: Any, count: int) -> tuple[Any, float, dict[str | None, int]]:
    """Return what each place takes in a step, its update, and the place of each layer.

    Returns:
        ns, shape (forward or backward, CPU or GPU, head, `count` blocks and tail), float64; ns; places.
    """
    times, update_ns, steps = np.zeros((2, 2, count + 2)), 0.0, 0
    layers: dict[str | None, int] = {}
    ids = graph.ids[~graph.in_background[graph.ids]]
    for step in np.flatnonzero(covered_steps(graph)).tolist():
        steps += 1
        of_step = ids[graph.step[ids] == step]
        for backward, phases in enumerate((("forward", "loss"), ("backward",))):
            codes = [phase_code(phase) for phase in phases]
            mine = of_step[np.isin(graph.phase[of_step], codes)]
            of_layer = place_of[graph.layer[mine]]
            known = np.flatnonzero(of_layer >= 0)
            if not len(known):
                raise NotApplicableError(f"a step has no {phases[0]} pass through its blocks")
            # What lies between two blocks goes with the one before.
            before = np.searchsorted(known, np.arange(len(mine)), side="right") - 1
            place = of_layer[known[np.maximum(before, 0)]] + 1
            place[: known[0]], place[known[-1] + 1 :] = ((count + 1, 0) if backward else (0, count + 1))
            for code, at in zip(graph.layer[mine].tolist(), place.tolist(), strict=True):
                layers.setdefault(graph.texts["layer"][code] if code >= 0 else None, at)
            on_gpu = graph.kind[mine] != CPU
            took = graph.duration_ns[mine] + np.where(on_gpu, 0, graph.gap_ns[mine])
            np.add.at(times, (backward, on_gpu.astype(int), place), took)
        update = of_step[graph.phase[of_step] == phase_code("optimizer")]
        on_gpu = graph.kind[update] != CPU
        update_ns += graph.duration_ns[update][on_gpu if on_gpu.any() else ~on_gpu].sum()
    if not times[:, 1].any():  # a recording of the CPU: its operators are the work
        times = times[:, ::-1]
    return times / max(steps, 1), update_ns / max(steps, 1), layers
