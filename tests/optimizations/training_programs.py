"""Recorded programs and graphs that the tests of communication share."""

import json
from itertools import pairwise

from daydream.optimizations.ddp import ddp
from graph.small_graphs import put
from recorded import ONE, Program
from shapes import dims

from daydream import Graph
from daydream.graph.tables import Lane

GRADIENT = [[10, 100]]  # 1,000 floats, 4,000 B
A100 = {"devices": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}
ONE_UNIT = {"workers": 2, "unit_mb": ONE}  # one gradient of 4,000 B a unit


def reduced():
    """A gradient that is reduced, and the update behind it."""
    #  stream 7   |backward 10|             |update 5|
    #  stream 13              |all-reduce 40|
    graph = Graph()
    backward = put(graph, "backward", "stream 7", 10, phase="backward")
    transfer = graph.insert(
        "all-reduce", kind="collective", lane="stream 13", duration_ns=40, after=[backward]
    )
    put(graph, "update", "stream 7", 5, phase="optimizer", after=[transfer])
    return graph


def layer(
    program, number, *, backward, shapes=GRADIENT, sequences = True,
    on_device = True,
):  # fmt: skip
    """A forward operator of a kernel of 50 ns, or its backward node of 60 ns and the gradient's node."""
    known = {"sequence": 100 * program.step + number} if sequences else {}  # autograd never counts back
    if not backward:
        with program.range("aten::linear", "operator", phase="forward", **known):
            program.op("aten::addmm", "forward", *([(f"forward {number}", 50)] if on_device else []))
        return
    with program.range("AddmmBackward0", "operator", phase="backward", **known):
        program.op("aten::mm", "backward", *([(f"grad {number}", 60)] if on_device else []))
    text = None if shapes is None else json.dumps(dims(shapes))
    with program.range(
        "torch::autograd::AccumulateGrad", "operator", phase="backward", shapes=text, dtype="float32"
    ):
        program.now += 2


def training(
    *,
    steps=1,
    layers=2,
    passes=1,
    shapes=GRADIENT,
    sequences=True,
    uncovered=0,
    **metadata,
):
    """One thread and stream 7; each step ends with an update of 30 ns."""
    program = Program()
    ends = [0]
    for step in range(steps):
        program.step = step
        for _ in range(passes):
            for number in range(layers):
                layer(program, number, backward=False, sequences=sequences)
            for number in reversed(range(layers)):
                layer(program, number, backward=True, shapes=shapes, sequences=sequences)
        with program.range("Optimizer.step#SGD.step", phase="optimizer"):
            program.op("aten::add_", "optimizer", ("update", 30))
        ends.append(program.now)
    return program.graph(steps=steps_between(ends, uncovered), **metadata)


def steps_between(ends, uncovered=0):
    """Return the steps that begin and end at these times, the first of them not covered."""
    return [
        {
            "name": f"step {number}", "rank": 0, "start_ns": begin, "end_ns": end,
            "covered": number >= uncovered, "measured_ns": end - begin,
        }
        for number, (begin, end) in enumerate(pairwise(ends))
    ]  # fmt: skip


def two_layers_on_a_cpu(update="aten::add_", **columns):
    """Forward operators of 50 ns, backward nodes of 60 and 2 for each gradient, an update of 30."""
    program = Program()

    def run(name, phase, duration, **columns):
        with program.range(name, "operator", phase=phase, **columns):
            program.now += duration

    gradient = {"shapes": json.dumps(GRADIENT), "dtype": "float32"}
    for number in (0, 1):
        run("aten::addmm", "forward", 50, sequence=number)
    for number in (1, 0):
        run("AddmmBackward0", "backward", 60, sequence=number)
        run("torch::autograd::AccumulateGrad", "backward", 2, **gradient)
    run(update, "optimizer", 30, **columns)
    return program.graph(vendor="cpu")


def buckets_of(*sizes, duration=1000):
    """Backward kernels of 10 ns, an all-reduce behind each, an update behind the last."""
    graph = Graph()
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = 0, 0
    put(graph, "begin", "thread 1", 0, phase="backward")
    transfers = []
    for place, nbytes in enumerate(sizes):
        made = put(
            graph,
            f"grad {place}",
            "stream 7",
            10,
            phase="backward",
            launch_after=graph.select(kind="cpu").last(),
        )
        transfers.append(
            graph.insert(
                f"all-reduce {place}", kind="collective", lane="stream 13", phase="backward", after=[made],
                duration_ns=duration if isinstance(duration, int) else duration[place],
                collective="all_reduce", bytes=nbytes, dtype="float32",
            )
        )  # fmt: skip
    put(graph, "update", "stream 7", 5, phase="optimizer", after=transfers)
    return graph


def exchanged(**options):
    """One bucket of 8,000 B that takes 80 us, in training on an A100."""
    graph = training(**A100)
    ddp(graph, workers=2, bandwidth=0.1, gradient_as_bucket_view=True, **options)
    return graph


def meeting(operation="all_reduce"):
    #  rank 0 stream   |k 10|arrive|      |all-reduce 40|
    #  rank 1 stream   |k 30       |arrive|all-reduce 40|
    graph = Graph()
    arrivals = []
    for rank, work in ((0, 10), (1, 30)):
        lane = graph.add_lane(Lane(f"rank {rank} stream 7", rank, on_device=True))
        graph.insert("k", kind="kernel", lane=lane, duration_ns=work, step=rank)
        arrivals.append(graph.insert("arrival", kind="collective", lane=lane, duration_ns=0, step=rank))
    matched = graph.add_lane(Lane("collectives of the ranks", background=True))
    hub = graph.insert("last arrival", kind="cpu", lane=matched, duration_ns=0, after=arrivals)
    for rank in (0, 1):
        graph.insert(
            operation, kind="collective", lane=f"rank {rank} stream 7", duration_ns=40, after=[hub],
            collective=operation, bytes=8, step=rank,
        )  # fmt: skip
    return graph


def reduce_bucket(program, nbytes, duration):
    call = program.row("runtime", "cudaLaunchKernel", program.now, 6, correlation=1000 + program.now)
    program.rows[call]["phase"] = "backward"
    program.row(
        "collective", "ncclKernel_AllReduce", program.free, duration, device=0, stream=13, parent=call,
        correlation=1000 + program.now, collective="all_reduce", bytes=nbytes, dtype="float32",
        phase="backward",
    )  # fmt: skip
    program.now += 6


def distributed(*reduced_behind, duration=100_000, hooks=True, **metadata):
    """Training of two layers with DDP: behind these layers' gradients a bucket is reduced, on stream 13.

    Two of them are buckets of 4,000 B, a single one holds 8,000 B.
    """
    program = Program()
    for number in (0, 1):
        layer(program, number, backward=False)
    for number in (1, 0):
        with program.range("AddmmBackward0", "operator", phase="backward", sequence=number):
            program.op("aten::mm", "backward", (f"grad {number}", 60))
        name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        with program.range(name, "operator", phase="backward"):
            with program.range(
                "torch::autograd::AccumulateGrad", "operator", phase="backward",
                shapes=json.dumps(GRADIENT), dtype="float32",
            ):  # fmt: skip
                program.now += 2
            if number in reduced_behind and hooks:
                reduce_bucket(program, 8000 // len(reduced_behind), duration)
        if number in reduced_behind and not hooks:
            reduce_bucket(program, 8000 // len(reduced_behind), duration)
    with program.range("Optimizer.step#SGD.step", phase="optimizer"):
        program.op("aten::add_", "optimizer", ("update", 30))
    return program.graph(world_size=2, **{**A100, **metadata})
