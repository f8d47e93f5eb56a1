"""The blocks of a recording: what each takes, forward and backward, what it holds, and what it exchanges."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from daydream.costs.device.input_sizes import recorded_length, samples_per_step
from daydream.costs.devices import device_of, known_devices
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.nccl import bytes_of_message
from daydream.costs.workload.operator import itemsize
from daydream.costs.workload.shapes import parse_shapes
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, CPU, covered_steps, phase_code
from daydream.memory.lifetimes import allocations
from daydream.memory.liveness import block_of_rows
from daydream.model.blocks import block_of_layers, repeated_blocks
from daydream.plan.predictor import Job
from daydream.plan.strategies import Sizes, Strategy
from daydream.predict.replay import Replay
from daydream.report.format import percent
from daydream.text import counted
from daydream.world.compose import GROUPS, Block, Exchange, Model, Pass, compose

OF_TRACE = (
    "From the trace of one GPU with {} a step: tp, ep, cp and other micro-batches are not predicted. Plan "
    "from the script for these."
)
ERROR = 0.05  # of kernels beside transfers, and of blocks that are not alike
PASSES = ("forward", "loss"), ("backward",)


def of_trace(replay: Replay, cluster: str) -> Job:
    """Return what the trace of one GPU tells of a job: everything but tp, ep, cp and other micro-batches.

    Raises:
        NotApplicableError: the model repeats no block, is not trained, or the trace has collectives.
        TraceError: no memory was recorded.
        DaydreamError: there is no such cluster.
    """
    graph, machines = replay.graph, find_cluster(cluster)
    if (graph.kind[graph.ids] == COLLECTIVE).any():
        raise NotApplicableError(
            "this is one of several ranks; plan from the trace of one GPU alone"
        )
    device, (model, sizes, samples) = device_of(graph), recorded_model(replay)
    if not samples:
        raise NotApplicableError(
            "the trace does not tell how many samples a step has: it has no shapes"
        )
    one_ns = compose(model, Strategy(micro_batch=samples), machines).step_ns
    off = one_ns / replay.replayed_ns - 1
    composed = f"Composed of its blocks the recorded step is {percent(off, signed=True)} off"
    usual = [one.name for one in known_devices() if one.machine == machines.name]
    notes = [OF_TRACE.format(counted(samples, "sample")), f"{composed}; the interval has that."]
    if usual and device.name not in usual:
        notes.insert(
            0, f"Time and memory are those of the recorded {device.name}; {cluster} has {usual[0]}."
        )
    known, *_ = graph.recorded.metadata.get("devices") or [{}]
    return Job(
        {(1, 1, 1, samples): model},
        machines,
        device.pcie,
        abs(off) + ERROR,
        sizes.but(gpus_per_node=machines.gpus_per_node),
        known.get("memory_bytes") or device.memory * 10**9,
        {"tp": [1], "ep": [1], "cp": [1], "micro_batch": [samples]},
        notes=notes,
    )


def recorded_model(replay: Replay, of: Strategy | None = None) -> tuple[Model, Sizes, int]:
    """Return the blocks of a trace, what they can be divided by, and the samples of a step, 0 where unknown.

    `of` is the strategy that was recorded, of one stage. Raises as `of_trace` does.
    """
    graph, trace = replay.graph, replay.graph.recorded
    families = repeated_blocks(graph)
    if not families:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    tasks = graph.select(phase=("forward", "backward"))
    longest = max(families, key=lambda one: tasks.group_by(block=one).tasks.total("duration_ns"))
    place_of, names = block_of_layers(graph, longest)
    count = len(names) + 2  # with what runs before and behind the blocks
    times, update_ns, layers, exchanges = _times(graph, place_of, count, of or Strategy())
    held = allocations(trace).of_graph(graph)
    activation = held.where(kind="activation", phase=PASSES[0])
    place = block_of_rows(held, names)[0] + 1
    place[place == 0] = count - 1  # what no block asked for is mostly the loss's
    saved, (places, now) = np.zeros(count), held.held(0, 0)
    computing = np.zeros(
        len(places), bool
    )  # where activations are held: not in the optimizer's update
    for step in np.unique(held["step"][activation]):
        mine = activation & (held["step"] == step)
        saved = np.maximum(saved, np.bincount(place[mine], held["bytes"][mine], count))
        computing |= (places >= held["begin"][mine].min()) & (places <= held["end"][mine].max())
    peak = int(now[computing].max(initial=0))
    if not saved[1:-1].any():  # nothing tells who asked: blocks are alike
        saved[1:-1] = saved.sum() / len(names)
        saved[-1] = 0
    elements, nbytes = np.zeros(count), 0
    for one in held.parameters.get(0, []):
        number = prod(one["shape"])
        elements[layers.get(one.get("layer"), 0)] += number
        nbytes += number * (itemsize(one["dtype"]) or 4)
    if not nbytes:
        raise NotApplicableError("the parameters are not known; record with `daydream collect`")
    total = float(elements.sum())
    lasting = held["bytes"][held.lasting & ~held.where(kind="workspace") & (held["device"] == 0)]
    reported = sum(one.get("state_bytes") or 0 for one in trace.metadata.get("optimizers", []))
    states = max(reported, int(lasting.sum()) - nbytes)
    workspace = max(peak - 2 * nbytes - states - saved.sum(), 0)
    states += max(
        int(now.max()) - peak, 0
    )  # what an update holds besides is divided as its state is
    inside = graph.select(phase="forward").group_by(block=[names[-1]]).tasks
    inputs = (
        prod(shape) * (itemsize(dtype) or 4)
        for text, dtype in zip(inside.shapes.tolist(), inside.dtype.tolist(), strict=True)
        for shape in parse_shapes(text) or ()
        if isinstance(shape, tuple) and len(shape) > 2
    )
    input_bytes = next(inputs, 0)
    blocks = [
        Block(
            name,
            Pass(times[at, 0, 1], times[at, 0, 0], tuple(exchanges[0, at])),
            Pass(times[at, 1, 1], times[at, 1, 0], tuple(exchanges[1, at])),
            parameters=elements[at],
            input_bytes=input_bytes,
            saved_bytes=saved[at],
            workspace_bytes=workspace,
            is_layer=0 < at < count - 1,
        )
        for at, name in enumerate(["head", *names, "tail"])
    ]
    model = Model(tuple(blocks), nbytes / total, nbytes / total, states / total, update_ns / total)
    sizes = Sizes(len(names), sequence=recorded_length(graph) or 0)
    return model, sizes, samples_per_step(graph) or 0


def _times(graph: Graph, place_of: Any, count: int, of: Strategy) -> tuple[Any, ...]:
    """Return what each place (head, blocks and tail) takes in a step.

    Returns:
        ns, shape (`count` places, forward or backward, CPU or GPU), float64; of the update, ns; the place of each
        layer; by (forward or backward, place) what is exchanged.
    """
    times, update = np.zeros((count, 2, 2)), np.zeros(2)
    layers: dict[str, int] = {}
    exchanges: dict[tuple[int, int], list[Exchange]] = {
        (back, at): [] for back in (0, 1) for at in range(count)
    }
    groups = {one["name"]: one for one in graph.recorded.metadata.get("groups", ())}
    ids = graph.ids[~graph.in_background[graph.ids]]
    steps = np.flatnonzero(covered_steps(graph)).tolist()
    for step in steps:
        of_step = ids[graph.step[ids] == step]
        for back, phases in enumerate(PASSES):
            mine = of_step[np.isin(graph.phase[of_step], [*map(phase_code, phases)])]
            of_layer = place_of[graph.layer[mine]]
            known = np.flatnonzero(of_layer >= 0)
            if not len(known):
                raise NotApplicableError(f"a step has no {phases[0]} pass through its blocks")
            # What lies between two blocks goes with the one before.
            before = np.searchsorted(known, np.arange(len(mine)), side="right") - 1
            place = of_layer[known[np.maximum(before, 0)]] + 1
            ends = (count - 1, 0) if back else (0, count - 1)
            place[: known[0]], place[known[-1] + 1 :] = ends
            kind = graph.kind[mine]
            took = graph.duration_ns[mine] * (kind != COLLECTIVE) + graph.gap_ns[mine] * (
                kind == CPU
            )
            np.add.at(times, (place, back, (kind != CPU).astype(int)), took / len(steps))
            where = dict(zip(mine.tolist(), place.tolist(), strict=True))
            tasks = graph.tasks(mine)
            for task, layer in zip(tasks.ids.tolist(), tasks.layer, strict=True):
                layers.setdefault(layer, where[task])
            tasks = tasks.where(kind="collective")
            columns = tasks.ids.tolist(), tasks.group, tasks.collective, tasks.bytes.tolist()
            for task, name, operation, nbytes in zip(*columns, strict=True):
                group = groups.get(name, {})
                members, said = len(group.get("ranks", ())), str(group.get("description"))
                for axis in sorted(GROUPS, key=lambda axis: axis not in said):
                    if getattr(of, axis) == members > 1:
                        size = bytes_of_message(operation, max(nbytes, 0), members)
                        exchanges[back, where[task]].append(Exchange(axis, operation, size))
                        break
        mine = of_step[graph.phase[of_step] == phase_code("optimizer")]
        is_cpu = graph.kind[mine] == CPU
        took = graph.duration_ns[mine] + graph.gap_ns[mine] * is_cpu
        np.add.at(update, (~is_cpu).astype(int), took / len(steps))
    on_cpu, on_gpu = times.sum((0, 1))  # whichever of the two the step waits for
    return times, update[int(on_gpu >= on_cpu)], layers, exchanges
