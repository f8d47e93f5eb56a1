"""The blocks of a recording: what each takes, forward and backward, what it holds, and what it exchanges."""

from __future__ import annotations

from math import prod

import numpy as np

from daydream.costs.device.input_sizes import recorded_length, samples_per_step
from daydream.costs.devices import device_of, known_devices
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.nccl import bytes_of_message
from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.calls import has_device_work
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, CPU, covered_steps, phase_code
from daydream.memory.allocations import AFTER, BEFORE
from daydream.memory.lifetimes import allocations
from daydream.memory.prediction import last_whole_step, up_to
from daydream.model.blocks import repeated_blocks
from daydream.optimizations.pipeline import input_bytes
from daydream.plan.search import Job, Sizes, Strategy
from daydream.predict.replay import Replay
from daydream.report.blocks import percent
from daydream.text import counted
from daydream.world.compose import GROUPS, Exchange, Model, compose
from daydream.world.parts import Parts

OF_TRACE = (
    "From the trace of one GPU with {} a step: tp, ep, cp and other micro-batches are not predicted. Plan "
    "from the script for these."
)
NO_GPU = (
    "no GPU ran in this trace, and plans are for GPUs: give the script, which is emulated on one: "
    "`daydream plan train.py --gpus N --cluster {}`"
)
ERROR = 0.05  # of kernels beside transfers, and of blocks that are not alike
PASSES = ("forward", "loss"), ("backward",)
NO_MODULE = ("None", "loss", "<top>")


def of_trace(replay: Replay, cluster: str) -> Job:
    """Return what the trace of one GPU tells of a job: everything but tp, ep, cp and other micro-batches.

    Raises:
        NotApplicableError: the model repeats no block, is not trained, or the trace has collectives or no GPU.
        TraceError: no memory was recorded.
        DaydreamError: there is no such cluster.
    """
    graph, machines = replay.graph, find_cluster(cluster)
    if not has_device_work(graph):
        raise NotApplicableError(NO_GPU.format(cluster))
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
    tasks = graph.select(phase=("forward", "backward"))
    repeated = repeated_blocks(graph)
    families = repeated
    if not repeated:
        outermost = {str(layer).partition(".")[0]: None for layer in tasks.layer}
        families = [[one for one in outermost if one not in NO_MODULE]]
    longest = max(families, key=lambda one: tasks.group_by(block=one).tasks.total("duration_ns"))
    parts = Parts(longest)
    update_ns, steps = _times(graph, parts, of or Strategy())
    held = allocations(trace)
    step = last_whole_step(held)
    held, nbytes = up_to(held, step), 0
    for one in held.parameters.get(0, []):
        number = prod(one["shape"])
        parts.add_parameter(str(one.get("layer")), number)
        nbytes += number * (itemsize(one["dtype"]) or 4)
    if not nbytes:
        raise NotApplicableError("the parameters are not known; record with `daydream collect`")
    total, on_gpu = float(parts.elements.sum()), held["device"] == 0
    lasting = held["bytes"][held.lasting & ~held.where(kind="workspace") & on_gpu].sum()
    reported = sum(one.get("state_bytes") or 0 for one in trace.metadata.get("optimizers", []))
    states = max(reported, int(lasting) - nbytes)
    saved = np.flatnonzero(
        held.where(kind="activation", phase=PASSES[0]) & on_gpu & (held["step"] == step)
    )
    saved = saved[np.argsort(held["begin"][saved], kind="stable")]
    layers = held.texts("layer")
    place = parts.places([layers[row] for row in saved.tolist()], 0)
    np.add.at(parts.saved, place, held["bytes"][saved])
    places, now = held.held(0, 0)
    besides = []  # of parameters, gradients and state: while computing, and in the update
    for phases in ("forward", "loss", "backward"), ("optimizer",):
        begin = held["begin"][held.where(phase=phases) & on_gpu & (held["step"] == step)]
        within = (places >= begin.min(initial=AFTER)) & (places <= begin.max(initial=BEFORE))
        besides.append(max(int(now[within].max(initial=0)) - 2 * nbytes - states, 0))
    parts.workspace += max(besides[0] - parts.saved.sum(), 0)
    parts.inputs += input_bytes(graph, longest[-1]) or 0
    each = nbytes / total
    model = Model(
        parts.blocks(steps),
        parameter_bytes=each,
        gradient_bytes=each,
        optimizer_bytes=states / total,
        optimizer_ns=update_ns / total,
        update_bytes=besides[1] / total,
    )
    sizes = Sizes(len(longest) if repeated else 1, sequence=recorded_length(graph) or 0)
    return model, sizes, samples_per_step(graph) or 0


def _times(graph: Graph, parts: Parts, of: Strategy) -> tuple[float, int]:
    """Add what blocks take and exchange in all steps; return what an update takes, ns, and the number of steps."""
    groups = [
        (one["name"], len(one["ranks"]), axis)
        for one in graph.recorded.metadata.get("groups", ())
        for axis in sorted(GROUPS, key=lambda axis: axis in str(one.get("description")))
        if getattr(of, axis) == len(one["ranks"]) > 1
    ]
    axis_of = {name: (members, axis) for name, members, axis in groups}  # what its name says, last
    ids = graph.ids[~graph.in_background[graph.ids]]
    steps = np.flatnonzero(covered_steps(graph)).tolist()
    update = np.zeros(2)

    def took(mine: np.ndarray) -> np.ndarray:
        cpu = graph.kind[mine] == CPU
        own = graph.duration_ns[mine] * (graph.kind[mine] != COLLECTIVE) + graph.gap_ns[mine] * cpu
        return np.stack([own * ~cpu, own * cpu], axis=1)

    for step in steps:
        of_step = ids[graph.step[ids] == step]
        for back, phases in enumerate(PASSES):
            mine = of_step[np.isin(graph.phase[of_step], [*map(phase_code, phases)])]
            place = parts.places(graph.tasks(mine).layer, back)
            np.add.at(parts.ns[:, back], place, took(mine))
            sent = graph.kind[mine] == COLLECTIVE
            tasks = graph.tasks(mine[sent])
            columns = place[sent].tolist(), tasks.group, tasks.collective, tasks.bytes.tolist()
            for at, name, operation, nbytes in zip(*columns, strict=True):
                if name in axis_of:
                    members, axis = axis_of[name]
                    size = bytes_of_message(operation, max(nbytes, 0), members)
                    parts.exchanges[at, back][Exchange(axis, operation, size)] += 1
        update += took(of_step[graph.phase[of_step] == phase_code("optimizer")]).sum(axis=0)
    on_gpu, on_cpu = parts.ns.sum((0, 1))  # whichever of the two the step waits for
    return update[int(on_cpu > on_gpu)] / len(steps), len(steps)
