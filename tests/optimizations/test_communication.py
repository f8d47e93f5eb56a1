"""Communication: each answer worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import strategies  # noqa: F401 - sets hypothesis up
from daydream.optimizations.blueconnect import blueconnect
from daydream.optimizations.bucket_size import bucket_size
from daydream.optimizations.compression import compression
from daydream.optimizations.ddp import ddp
from daydream.optimizations.dgc import dgc
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from daydream.optimizations.network import network
from daydream.optimizations.no_stragglers import no_stragglers
from daydream.optimizations.p3 import p3
from hypothesis import given
from hypothesis import strategies as st
from recorded import Program
from shared import shared_replay

from daydream import Graph, GraphError, NotApplicableError, simulate
from daydream.costs.achieved import memory_bandwidth
from daydream.costs.buckets import assign
from daydream.costs.cluster_names import cluster
from daydream.costs.kernels import floor_ns
from daydream.costs.scaling import tiny_call_ns
from daydream.graph.selection import Selection
from daydream.graph.tables import Lane
from daydream.simulate.steady import settle
from daydream.transforms.compose import in_order, parse


def reduced() -> Graph:
    #  stream 7   |backward 10|             |update 5|
    #  stream 13              |all-reduce 40|
    graph = Graph()
    backward = graph.insert("backward", kind="kernel", lane="stream 7", duration_ns=10, phase="backward")
    transfer = graph.insert(
        "all-reduce", kind="collective", lane="stream 13", duration_ns=40, after=[backward]
    )
    graph.insert("update", kind="kernel", lane="stream 7", duration_ns=5, phase="optimizer", after=[transfer])
    return graph


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"bandwidth_factor": 2}, 10 + 40 // 2 + 5),
        ({"bandwidth_factor": 0.5}, 10 + 40 * 2 + 5),
        ({"latency_ns": 3}, 10 + 40 + 3 + 5),
        ({"bandwidth_factor": 4, "latency_ns": 3}, 10 + 40 // 4 + 3 + 5),
    ],
)
def test_transfers_follow_the_network(options, end):
    graph = reduced()
    assert simulate(graph).makespan_ns == 10 + 40 + 5
    network(graph, **options)
    assert simulate(graph).makespan_ns == end


def test_waiting_for_a_peer_is_not_scaled():
    #  rank 0 stream   |k 10|arrive|      |all-reduce 40|
    #  rank 1 stream   |k 30       |arrive|all-reduce 40|
    graph = Graph()
    arrivals = []
    for rank, work in ((0, 10), (1, 30)):
        lane = f"rank {rank} stream 7"
        graph.insert("k", kind="kernel", lane=lane, duration_ns=work, rank=rank)
        arrivals.append(graph.insert("arrival", kind="collective", lane=lane, duration_ns=0, rank=rank))
    for rank in (0, 1):
        lane = f"rank {rank} stream 7"
        graph.insert("all-reduce", kind="collective", lane=lane, duration_ns=40, rank=rank, after=arrivals)
    assert simulate(graph).makespan_ns == 30 + 40
    network(graph, bandwidth_factor=2)
    assert simulate(graph).makespan_ns == 30 + 40 // 2


def test_more_bandwidth_is_never_slower():
    times = []
    for factor in (0.25, 0.5, 0.9, 1.1, 2, 8):
        graph = reduced()
        network(graph, bandwidth_factor=factor)
        times.append(simulate(graph).makespan_ns)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, NotApplicableError, "as it is"),
        ({"bandwidth_factor": 0}, GraphError, "above 0"),
        ({"latency_ns": -1}, GraphError, "0 or more"),
    ],
)
def test_a_network_that_makes_no_sense_is_refused(options, error, words):
    graph = reduced()
    with pytest.raises(error, match=words):
        network(graph, **options)
    assert simulate(graph).makespan_ns == 10 + 40 + 5


def test_a_trace_without_collectives_is_refused():
    graph = Graph()
    graph.insert("k", kind="kernel", lane="stream 7", duration_ns=10)
    with pytest.raises(NotApplicableError, match="no collectives"):
        network(graph, bandwidth_factor=2)


# Recorded programs: two layers forward and backward, a gradient of 4,000 B each


GRADIENT = [[10, 100]]  # 1,000 floats, 4,000 B
ONE = 4000 / 2**20  # MiB: a bucket is full with one of them
A100 = {"devices": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]}


def layer(program: Program, number: int, *, backward: bool, shapes=GRADIENT, sequences: bool = True) -> None:
    """A forward operator of a kernel of 50 ns, or its backward node of 60 ns and the gradient's node."""
    known = {"sequence": 100 * program.step + number} if sequences else {}  # autograd never counts back
    if not backward:
        with program.range("aten::linear", "operator", phase="forward", **known):
            program.op("aten::addmm", "forward", (f"forward {number}", 50))
        return
    with program.range("AddmmBackward0", "operator", phase="backward", **known):
        program.op("aten::mm", "backward", (f"grad {number}", 60))
    text = None if shapes is None else json.dumps(shapes)
    with program.range(
        "torch::autograd::AccumulateGrad", "operator", phase="backward", shapes=text, dtype="float32"
    ):
        program.now += 2


def training(
    *,
    steps: int = 1,
    layers: int = 2,
    passes: int = 1,
    shapes=GRADIENT,
    sequences: bool = True,
    uncovered: int = 0,
    **metadata,
) -> Graph:
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
    listed = [
        {"name": f"step {i}", "rank": 0, "start_ns": ends[i], "end_ns": ends[i + 1],
         "covered": i >= uncovered, "measured_ns": ends[i + 1] - ends[i]}
        for i in range(steps)
    ]  # fmt: skip
    return program.graph(steps=listed, **metadata)


def times(graph: Graph) -> dict[str, list[tuple[int, int]]]:
    """Return (start, end) of the tasks of each name, in the order they run."""
    timeline = simulate(graph)
    found: dict[str, list[tuple[int, int]]] = {}
    order = np.argsort(timeline.start_ns, kind="stable")
    for place in order.tolist():
        name = timeline.column("name")[place]
        found.setdefault(name, []).append((int(timeline.start_ns[place]), int(timeline.end_ns[place])))
    return found


# ddp


def test_buckets_are_reduced_beside_the_backward_pass_and_the_optimizer_waits():
    #  stream 7    6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|            |update 30|
    #  all-reduce                                    166|40|   226|40|
    graph = training()
    assert simulate(graph).makespan_ns == 6 + 2 * 50 + 2 * 60 + 30
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE)  # a ring of 2 moves 4,000 B at 100 B/ns
    ran = times(graph)
    assert ran["all-reduce"] == [(166, 166 + 40), (226, 226 + 40)]
    assert ran["update"] == [(266, 266 + 30)]
    assert graph.lint() == []


def test_one_bucket_begins_with_the_last_gradient():
    graph = training()
    ddp(graph, workers=2, bandwidth=100.0)
    assert times(graph)["all-reduce"] == [(226, 226 + 80)]
    assert simulate(graph).makespan_ns == 226 + 80 + 30


def test_each_all_reduce_brings_a_launch_and_the_thread_goes_on():
    #  thread  ... |grad 1 10|gradient 2|launch 6|grad 0 10|gradient 2|launch 6|update 10|
    graph = training()
    before = simulate(graph)
    cpu = before.end_ns[before.column("kind") == "cpu"].max()
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE)
    after = simulate(graph)
    assert after.end_ns[after.column("kind") == "cpu"].max() == cpu + 2 * 6


def test_copies_into_and_out_of_buckets_take_the_bandwidth_of_the_device():
    graph = training(**A100)
    copy = floor_ns(graph) + 2 * 4000 / memory_bandwidth(graph)
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE)
    copies = graph.select(name="^copy")
    assert copies.duration_ns.tolist() == [round(copy)] * 4
    one = round(copy)
    ran = times(graph)
    assert ran["all-reduce"] == [(166 + one, 206 + one), (226 + 2 * one, 266 + 2 * one)]
    # The first bucket's gradients go back while the second bucket is reduced.
    assert ran["copy from bucket"] == [(226 + 2 * one, 226 + 3 * one), (266 + 2 * one, 266 + 3 * one)]
    assert ran["update"][0][0] == 266 + 3 * one

    graph = training(**A100)
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE, gradient_as_bucket_view=True)
    assert times(graph)["update"][0][0] == 266 + 2 * one


def test_every_step_has_its_own_buckets():
    graph = training(steps=3)
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=1.0)
    reduced = graph.select(kind="collective")
    assert reduced.step.tolist() == [0, 1, 2]
    assert reduced.bytes.tolist() == [8000] * 3
    assert simulate(graph).makespan_ns == 6 + 3 * (2 * 50 + 2 * 60 + 80 + 30)


def test_of_several_backward_passes_the_last_one_is_reduced():
    graph = training(passes=2)
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE)
    second = 6 + 2 * 50 + 2 * 60 + 2 * 50
    assert times(graph)["all-reduce"] == [(second + 60, second + 100), (second + 120, second + 160)]

    graph = training()
    gradient_accumulation(graph, steps=2)
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE)
    assert times(graph)["all-reduce"] == [(second + 60, second + 100), (second + 120, second + 160)]


def on_a_cpu(**update) -> Graph:
    """Two layers of 50 ns forward, 60 backward and 2 for each gradient, and an update of 30."""
    program = Program()

    def run(name: str, phase: str, duration: int, **columns) -> None:
        with program.range(name, "operator", phase=phase, **columns):
            program.now += duration

    gradient = {"shapes": json.dumps(GRADIENT), "dtype": "float32"}
    for _ in range(2):
        run("aten::addmm", "forward", 50)
    for _ in range(2):
        run("AddmmBackward0", "backward", 60)
        run("torch::autograd::AccumulateGrad", "backward", 2, **gradient)
    run("aten::add_", "optimizer", 30, **update)
    return program.graph(vendor="cpu")


def test_on_a_cpu_the_thread_waits():
    #  thread      |forward 50|forward 50|grad 1 60|gradient 2|grad 0 60|gradient 2|    |update 30|
    #  all-reduce                                          162|40|               224|40|
    graph = on_a_cpu()
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=ONE)
    ran = times(graph)
    assert ran["all-reduce"] == [(162, 202), (224, 264)]
    assert ran["aten::add_"] == [(264, 264 + 30)]


def test_a_cpu_reads_what_copies_overwrite_and_copies_back_bucket_by_bucket():
    #  thread     ...|gradient 2|in|grad 0 60|gradient 2|in|   |back 1|         |back 0|update 30|
    #  all-reduce                  |10,000                     |10,000          |
    graph = on_a_cpu(op="aten::add_", shapes="[[10000], [10000]]", dtype="float32")
    assert memory_bandwidth(graph, "cpu") == 3 * 40_000 / 30  # two read, one written
    copy = round(tiny_call_ns(graph) + 3 * 4000 / 4000)
    ddp(graph, workers=2, bandwidth=0.5, latency_us=1.0, bucket_mb=ONE)
    ran, took = times(graph), 2 * 1000 + 4000 * 2
    first = 162 + copy
    second = max(first + took, 224 + 2 * copy)
    assert ran["all-reduce"] == [(first, first + took), (second, second + took)]
    behind = second + took
    assert ran["copy from bucket"] == [(first + took, first + took + copy), (behind, behind + copy)]
    assert ran["aten::add_"] == [(behind + copy, behind + copy + 30)]


def test_a_bucket_is_full_at_its_size_and_never_divides_a_gradient():
    same = [(0, 0, "float32")] * 5
    assert assign([4, 4, 4, 4, 4], same, [8]).tolist() == [0, 0, 1, 1, 2]
    assert assign([1, 9, 1, 2, 9], same, [1, 10]).tolist() == [0, 1, 1, 2, 2]
    types = [(0, 0, "float32"), (0, 0, "float16"), (0, 0, "float32"), (0, 0, "float16"), (0, 0, "float32")]
    assert assign([4, 4, 4, 4, 4], types, [8]).tolist() == [0, 1, 0, 1, 2]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30),
    limits=st.lists(st.integers(1, 200), min_size=1, max_size=2),
)
def test_gradients_are_assigned_as_torch_assigns_them(sizes, limits):
    torch = pytest.importorskip("torch")
    tensors = [torch.empty(size, dtype=torch.float16 if half else torch.float32) for size, half in sizes]
    theirs, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, limits)
    nbytes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    ours = assign(nbytes, [(0, 0, str(tensor.dtype)) for tensor in tensors], limits)
    grouped = [np.flatnonzero(ours == number).tolist() for number in range(ours.max() + 1)]
    assert sorted(grouped) == sorted(map(list, theirs))


def test_the_buckets_of_a_single_gpu_trace_are_those_that_real_ddp_reduced():
    # The same network, ResNet-50, on one V100 without DDP and on two A100s with it.
    single = shared_replay("kineto/v100_resnet50_loader_workers_4.json.gz").graph.copy()
    real = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz").graph
    ddp(single, workers=2)
    reduced = real.select(kind="collective", collective="all_reduce", step=1).bytes.tolist()
    assert single.select(kind="collective", step=1).bytes.tolist() == reduced


def test_sizes_that_the_trace_does_not_tell_can_be_given():
    graph = training(shapes=None)
    ddp(graph, workers=2, bandwidth=100.0, gradient_mb=2 * ONE)
    assert times(graph)["all-reduce"] == [(226, 226 + 80)]


def test_ddp_on_more_bandwidth_or_fewer_workers_is_never_slower():
    def makespan(**options) -> int:
        graph = training(steps=2)
        ddp(graph, bucket_mb=ONE, **options)
        return simulate(graph).makespan_ns

    by_bandwidth = [makespan(workers=4, bandwidth=rate) for rate in (1.0, 10.0, 100.0, 1e6)]
    assert by_bandwidth == sorted(by_bandwidth, reverse=True)
    # A network without limits costs the launches only, which the device does not wait for.
    assert by_bandwidth[-1] == 6 + 2 * (2 * 50 + 2 * 60 + 30)
    by_workers = [makespan(workers=count, bandwidth=10.0) for count in (2, 4, 8, 64)]
    assert by_workers == sorted(by_workers)


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (training, {"workers": 1}, NotApplicableError, "one worker"),
        (training, {"workers": 0}, GraphError, "1 or more"),
        (training, {}, NotApplicableError, "--cluster or --bandwidth"),
        (training, {"bandwidth": -1.0}, GraphError, "above 0"),
        (training, {"bandwidth": 1.0, "cluster": "p3"}, GraphError, "both"),
        (training, {"latency_us": 1.0, "cluster": "p3"}, GraphError, "goes with bandwidth"),
        (training, {"bandwidth": 1.0, "bucket_mb": 0.0}, GraphError, "bucket_mb"),
        (training, {"bandwidth": 1.0, "gradient_mb": 1.0}, GraphError, "tells the sizes"),
        (lambda: training(shapes=None), {"bandwidth": 1.0}, NotApplicableError, "sizes of gradients"),
        (reduced, {"bandwidth": 1.0}, NotApplicableError, "several ranks already"),
    ],
)
def test_ddp_says_why_it_does_not_apply(graph, options, error, words):
    with pytest.raises(error, match=words):
        ddp(graph(), **options)


def test_a_named_cluster_prices_the_buckets_and_grows_to_hold_the_workers():
    graph = training()
    ddp(graph, workers=16, cluster="dgx-a100")
    assert graph.select(kind="collective").duration_ns.tolist() == [
        cluster("dgx-a100:2").all_reduce_ns(8000, 16)
    ]
    assert "2 nodes of 8 GPUs" in " ".join(graph.facts.notes)


# p3


def test_the_next_forward_pass_waits_for_the_parameters_it_needs():
    #  stream 7  6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|              |forward 0 50|...
    #  network                                     166|push 20|pull 20|226|push 20|pull 20|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0)  # 4,000 B / 2 at 100 B/ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 186), (226, 246)]
    assert ran["pull"][:2] == [(186, 206), (246, 266)]
    assert ran["forward 0"] == [(6, 56), (266, 316)]
    assert ran["forward 1"][1] == (316, 366)
    assert ran["update"] == [(226, 256), (366 + 2 * 60, 366 + 2 * 60 + 30)]
    assert simulate(graph).makespan_ns == 366 + 2 * 60 + 20 + 20
    assert graph.lint() == []


def test_where_the_server_updates_the_optimizer_goes():
    graph = training()
    p3(graph, workers=2, bandwidth=1e6, latency_us=0.0, update="server")
    assert not len(graph.select(kind="kernel", phase="optimizer"))
    assert simulate(graph).makespan_ns == 6 + 2 * 50 + 2 * 60
    assert graph.lint() == []


def test_what_is_needed_first_goes_first():
    # 80 ns each. When push 1 has ended, pull 1 and push 0 are ready: layer 0 goes first, its pull too.
    #  network  166|push 1|246|push 0|326|pull 0|406|pull 1|486|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0)
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(326, 406), (406, 486)]
    assert ran["forward 0"][1] == (406, 456)
    assert ran["forward 1"][1] == (486, 536)


def test_slices_let_an_urgent_gradient_overtake():
    # Two slices of 40 ns each; at 206 the second push of layer 1 has begun, at 246 layer 0 takes over.
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0, slice_mb=ONE / 2)
    ran = times(graph)
    assert len(ran["push"]) == len(ran["pull"]) == 2 * 2 * 2
    # push 1a 166-206, then push 1b or pull 1a (both ready, push 1b first ready) 206-246, layer 0 until 406.
    assert ran["forward 0"][1][0] == 246 + 4 * 40
    assert ran["forward 1"][1][0] == max(406 + 50, 406 + 2 * 40)


def test_servers_of_their_own_take_pushes_and_pulls_at_once():
    graph = training(steps=2)
    p3(graph, workers=4, servers=2, bandwidth=100.0, latency_us=0.001)  # 4,000 B x 4/2 at 100 B/ns: 80 ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(247, 327), (327, 407)]
    assert ran["forward 0"][1][0] == 407


def test_p3_settles_over_repeated_steps():
    # 400 ns each, layer 0 first: its forward kernel runs beside pull 1, and while layer 1 goes forward
    # and backward the link has nothing to do.
    #  network  |push 1|push 0|pull 0|pull 1|                 |push 1|...
    #  stream 7                      |F 0|  |forward 1|grad 1|grad 0|
    graph = training(steps=3, uncovered=1)
    p3(graph, workers=2, bandwidth=5.0, latency_us=0.0)
    settled = settle(graph)
    assert settled.timeline.copy.max() > 0
    assert settled.step_ns == 4 * 400 + 50 + 60


def test_without_sequence_numbers_the_first_forward_work_waits_for_all():
    graph = training(steps=2, sequences=False)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0)
    assert times(graph)["forward 0"][1][0] == 486


def test_on_more_bandwidth_p3_is_never_slower():
    ends = []
    for bandwidth in (1.0, 5.0, 25.0, 1e6):
        graph = training(steps=3)
        p3(graph, workers=4, bandwidth=bandwidth, latency_us=0.0)
        ends.append(simulate(graph).makespan_ns)
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == simulate(training(steps=3)).makespan_ns  # and never faster than a single worker


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (training, {"workers": 1}, NotApplicableError, "one worker"),
        (training, {"servers": -1}, GraphError, "0 or more"),
        (training, {"bandwidth": 0.0}, GraphError, "above 0"),
        (lambda: training(shapes=None), {}, NotApplicableError, "sizes of gradients"),
        (reduced, {}, NotApplicableError, "several ranks already"),
    ],
)
def test_p3_says_why_it_does_not_apply(graph, options, error, words):
    with pytest.raises(error, match=words):
        p3(graph(), **options)


# blueconnect


@pytest.fixture
def lab(tmp_path):
    """Two nodes of two GPUs."""
    path = tmp_path / "lab.toml"
    path.write_text(
        "nodes = 2\ngpus_per_node = 2\n[intra]\nbandwidth_gb_per_s = 100\nlatency_us = 1\n"
        "[inter]\nbandwidth_gb_per_s = 10\nlatency_us = 5\n"
    )
    return str(path)


def buckets_of(*sizes: int, duration: int | list[int] = 1000) -> Graph:
    """Backward kernels of 10 ns, an all-reduce behind each, an update behind the last."""
    graph = Graph()
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = 0, 0
    graph.insert("begin", kind="cpu", lane="thread 1", duration_ns=0, phase="backward")
    transfers = []
    for place, nbytes in enumerate(sizes):
        made = graph.insert(
            f"grad {place}", kind="kernel", lane="stream 7", duration_ns=10, phase="backward",
            launch_after=graph.select(kind="cpu").last(),
        )  # fmt: skip
        transfers.append(
            graph.insert(
                f"all-reduce {place}", kind="collective", lane="stream 13", phase="backward", after=[made],
                duration_ns=duration if isinstance(duration, int) else duration[place],
                collective="all_reduce", bytes=nbytes, dtype="float32",
            )
        )  # fmt: skip
    graph.insert("update", kind="kernel", lane="stream 7", duration_ns=5, phase="optimizer", after=transfers)
    return graph


def parts_of(machines, nbytes: int) -> list[int]:
    return [
        machines.time_ns("reduce_scatter", nbytes, 2),
        machines.time_ns("reduce_scatter", nbytes // 2, 2, per_node=1),
        machines.time_ns("all_gather", nbytes // 2, 2, per_node=1),
        machines.time_ns("all_gather", nbytes, 2),
    ]


def test_an_all_reduce_goes_through_the_levels(lab):
    machines, nbytes = cluster(lab), 10**8
    graph = buckets_of(nbytes, duration=machines.all_reduce_ns(nbytes, 4))
    blueconnect(graph, cluster=lab, workers=4)
    parts = graph.select(kind="collective")
    assert parts.duration_ns.tolist() == parts_of(machines, nbytes)
    assert parts.lane.tolist() == ["stream 13", "between nodes", "between nodes", "stream 13"]
    assert parts.bytes.tolist() == [nbytes, nbytes // 2, nbytes // 4, nbytes // 2]
    assert simulate(graph).makespan_ns == 10 + sum(parts_of(machines, nbytes)) + 5
    assert graph.lint() == []


def test_one_bucket_crosses_the_network_while_another_is_summed_inside(lab):
    #  stream 13      |scatter 0|scatter 1|              |gather 0|          |gather 1|
    #  between nodes            |scatter 0|gather 0|scatter 1|gather 1|
    machines, nbytes = cluster(lab), 10**8
    graph = buckets_of(nbytes, nbytes, duration=machines.all_reduce_ns(nbytes, 4))
    blueconnect(graph, cluster=lab, workers=4)
    first, over, back, last = parts_of(machines, nbytes)
    assert first < over
    assert last < over + back
    ran = times(graph)
    assert ran["reduce-scatter inside"] == [(10, 10 + first), (10 + first, 10 + 2 * first)]
    assert simulate(graph).makespan_ns == 10 + first + 2 * (over + back) + last + 5


def test_half_the_time_of_a_plain_all_reduce_stays_half(lab):
    machines, nbytes = cluster(lab), 10**8
    graph = buckets_of(nbytes, duration=machines.all_reduce_ns(nbytes, 4) // 2)
    blueconnect(graph, cluster=lab, workers=4)
    halves = [round(part / 2) for part in parts_of(machines, nbytes)]
    assert all(
        abs(got - half) <= 1
        for got, half in zip(graph.select(kind="collective").duration_ns.tolist(), halves, strict=True)
    )


@pytest.mark.parametrize(
    ("graph", "options", "words"),
    [
        (lambda: buckets_of(8), {"workers": 4, "cluster": "dgx-a100"}, "one level"),
        (lambda: buckets_of(8), {"cluster": "dgx-a100"}, "--workers"),
        (lambda: buckets_of(8), {"workers": 1, "cluster": "dgx-a100"}, "one worker"),
        (lambda: buckets_of(-1), {"workers": 16, "cluster": "dgx-a100"}, "known size"),
        (training, {}, "no all-reduce"),
    ],
)
def test_blueconnect_says_why_it_does_not_apply(graph, options, words):
    with pytest.raises(NotApplicableError, match=words):
        blueconnect(graph(), **options)


# dgc and compression


def exchanged(**options) -> Graph:
    """One bucket of 8,000 B that takes 80 us, in training on an A100."""
    graph = training(**A100)
    ddp(graph, workers=2, bandwidth=0.1, gradient_as_bucket_view=True, **options)
    return graph


def test_workers_send_the_largest_gradients_only():
    #  stream 7    ...|grad 0|copy|compress|                              |update|
    #  all-reduce                          |all-gather|decompress|
    graph = exchanged()
    assert graph.select(kind="collective").duration_ns.tolist() == [80_000]
    rate, floor = memory_bandwidth(graph), floor_ns(graph)
    before = times(graph)["all-reduce"][0][0]
    dgc(graph, workers=2, ratio=0.25)
    # 500 of 2,000 values of 4 B with indices of 4 B: 4,000 B of each of 2 workers, for 2 x 8,000 B.
    sent, compress = 80_000 * (2 * 4000) // (2 * 8000), round(floor + 9 * 8000 / rate)
    decompress = round(floor + (8000 + 2 * 500 * (3 * 4 + 4)) / rate)
    ran = times(graph)
    assert ran["compress"] == [(before, before + compress)]
    assert ran["all-gather"] == [(before + compress, before + compress + sent)]
    assert ran["decompress"] == [(before + compress + sent, before + compress + sent + decompress)]
    assert ran["update"][0][0] == ran["decompress"][0][1]
    assert graph.select(name="^compress$").lane.tolist() == ["stream 7"]
    assert len(graph.select(name="^(compress|all-gather|decompress)$").launches()) == 3
    assert graph.lint() == []


def test_a_short_all_gather_takes_what_any_collective_takes():
    graph = exchanged()
    dgc(graph, workers=2)
    assert graph.select(kind="collective").duration_ns.tolist() == [6_600]


def test_sending_more_is_never_faster():
    ends = []
    for ratio in (0.001, 0.01, 0.1, 0.5, 1.0):
        graph = exchanged()
        dgc(graph, workers=2, ratio=ratio)
        ends.append(simulate(graph).makespan_ns)
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (exchanged, {"workers": 2, "ratio": 0.0}, GraphError, "ratio"),
        (exchanged, {}, NotApplicableError, "--workers"),
        (training, {"workers": 2}, NotApplicableError, "no all-reduce"),
        (lambda: buckets_of(8), {"workers": 2}, NotApplicableError, "memory bandwidth"),
    ],
)
def test_dgc_says_why_it_does_not_apply(graph, options, error, words):
    with pytest.raises(error, match=words):
        dgc(graph(), **options)


def test_gradients_in_16_bits_take_half_the_time_and_two_casts():
    graph = exchanged()
    rate, floor = memory_bandwidth(graph), floor_ns(graph)
    before = times(graph)["all-reduce"][0][0]
    compression(graph)
    cast = round(floor + 1.5 * 8000 / rate)
    ran = times(graph)
    assert ran["cast down"] == [(before, before + cast)]
    assert ran["all-reduce"] == [(before + cast, before + cast + 40_000)]
    assert ran["update"][0][0] == before + cast + 40_000 + cast
    assert graph.select(kind="collective").dtype.tolist() == ["float16"]
    with pytest.raises(NotApplicableError, match="16 bits"):
        compression(graph)


# no-stragglers


def meeting(operation: str = "all_reduce") -> Graph:
    #  rank 0 stream   |k 10|arrive|      |all-reduce 40|
    #  rank 1 stream   |k 30       |arrive|all-reduce 40|
    graph = Graph()
    arrivals = []
    for rank, work in ((0, 10), (1, 30)):
        lane = graph.add_lane(Lane(f"rank {rank} stream 7", rank, on_device=True))
        graph.insert("k", kind="kernel", lane=lane, duration_ns=work, step=rank)
        arrivals.append(graph.insert("arrival", kind="collective", lane=lane, duration_ns=0, step=rank))
    meetings = graph.add_lane(Lane("meetings of the ranks", background=True))
    hub = graph.insert("last arrival", kind="cpu", lane=meetings, duration_ns=0, after=arrivals)
    for rank in (0, 1):
        graph.insert(
            operation, kind="collective", lane=f"rank {rank} stream 7", duration_ns=40, after=[hub],
            collective=operation, bytes=8, step=rank,
        )  # fmt: skip
    return graph


def test_no_rank_waits_for_the_slowest():
    graph = meeting()
    assert simulate(graph).makespan_ns == 30 + 40
    no_stragglers(graph)
    ran = times(graph)
    assert ran["all_reduce"] == [(10, 50), (30, 70)]


def test_a_receiver_still_waits_for_its_data():
    with pytest.raises(NotApplicableError, match="messages"):
        no_stragglers(meeting("send_recv"))


def test_of_one_rank_what_goes_beyond_the_cluster_is_waiting():
    plain = cluster("dgx-a100").all_reduce_ns(10**7, 8)
    graph = buckets_of(10**7, 10**7, duration=[plain + 500, plain - 500])
    with pytest.raises(NotApplicableError, match="several ranks together"):
        no_stragglers(graph)
    no_stragglers(graph, cluster="dgx-a100", workers=8)
    assert graph.select(kind="collective").duration_ns.tolist() == [plain, plain - 500]
    with pytest.raises(NotApplicableError, match="no collective took longer"):
        no_stragglers(graph, cluster="dgx-a100", workers=8)


def test_optimizations_of_the_network_combine():
    assert [each.name for each in in_order(parse("dgc+ddp"))] == ["ddp", "dgc"]
    assert [each.name for each in in_order(parse("network+ddp"))] == ["ddp", "network"]
    with pytest.raises(GraphError, match="exclude"):
        parse("ddp+p3")
    with pytest.raises(GraphError, match="exclude"):
        parse("dgc+compression")


def test_workers_that_contradict_the_trace_are_refused():
    real = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz").graph.copy()
    with pytest.raises(GraphError, match="job of 2"):
        dgc(real, workers=8)


# bucket-size


def distributed(*reduced_behind: int, duration: int = 100_000, hooks: bool = True, **metadata) -> Graph:
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


def reduce_bucket(program: Program, nbytes: int, duration: int) -> None:
    call = program.row("runtime", "cudaLaunchKernel", program.now, 6, correlation=1000 + program.now)
    program.rows[call]["phase"] = "backward"
    program.row(
        "collective", "ncclKernel_AllReduce", program.free, duration, device=0, stream=13, parent=call,
        correlation=1000 + program.now, collective="all_reduce", bytes=nbytes, dtype="float32",
        phase="backward",
    )  # fmt: skip
    program.now += 6


FIXED = cluster("dgx-a100").all_reduce_ns(1, 2)


def test_two_buckets_become_one():
    #  stream 7   ...|grad 1 60|grad 0 60|                |update 30|
    #  stream 13                      226|all-reduce      |
    graph = distributed(1, 0)
    bucket_size(graph, bucket_mb=1.0)
    ran = times(graph)
    end = 226 + FIXED + 2 * (100_000 - FIXED)
    assert ran["all-reduce"] == [(226, end)]
    assert ran["update"] == [(end, end + 30)]
    assert graph.select(kind="collective").bytes.tolist() == [8000]
    assert len(graph.select(name="cudaLaunchKernel", kind="cpu")) == 5  # those of the kernels stay
    assert graph.lint() == []


def test_one_bucket_becomes_two():
    #  stream 7   ...|grad 1 60|grad 0 60|                       |update 30|
    #  stream 13            166|all-reduce 4,000 B|all-reduce 4,000 B|
    graph = distributed(0)
    bucket_size(graph, bucket_mb=ONE)
    half = FIXED + (100_000 - FIXED) // 2
    assert times(graph)["all-reduce"] == [(166, 166 + half), (166 + half, 166 + 2 * half)]
    assert times(graph)["update"][0][0] == 166 + 2 * half


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (lambda: distributed(1, 0), {"bucket_mb": ONE}, NotApplicableError, "already"),
        (lambda: distributed(0), {"bucket_mb": 0.0}, GraphError, "above 0"),
        (lambda: distributed(0, hooks=False), {"bucket_mb": ONE}, NotApplicableError, "no hook"),
        (training, {}, NotApplicableError, "no all-reduce"),
        (lambda: buckets_of(8), {}, NotApplicableError, "no all-reduce of known size"),
    ],
)
def test_bucket_size_says_why_it_does_not_apply(graph, options, error, words):
    with pytest.raises(error, match=words):
        bucket_size(graph(), **options)


# The word that lets calls and streams wait


def test_a_lane_waits_from_a_call_on_and_a_call_until_the_lane_is_done():
    #  thread 1  |begin 2|call 3|          |end 1|
    #  link              |copy 50|
    #  stream 7  |a 4|                     |b 4|
    def drawn() -> tuple[Graph, Selection]:
        graph = Graph()
        begin = graph.insert("begin", kind="cpu", lane="thread 1", duration_ns=2)
        call = graph.insert("call", kind="cpu", lane="thread 1", duration_ns=3)
        end = graph.insert("end", kind="cpu", lane="thread 1", duration_ns=1)
        graph.insert_after(begin, "copy", kind="memcpy", lane="link", duration_ns=50, launched=False)
        graph.insert_after(begin, "a", kind="kernel", lane="stream 7", duration_ns=4, launched=False)
        graph.insert_after(end, "b", kind="kernel", lane="stream 7", duration_ns=4, launched=False)
        return graph, call

    graph, call = drawn()
    call.wait_for("link", on="stream 7")
    ran = times(graph)
    assert ran["call"] == [(2, 5)]
    assert ran["b"] == [(52, 56)]
    graph, call = drawn()
    call.wait_for("link")
    assert times(graph)["call"] == [(52, 55)]
    with pytest.raises(GraphError, match="no device lane 'linx'"):
        call.wait_for("linx")
    with pytest.raises(GraphError, match="one for each"):
        call.wait_for(["link", "link"])
    with pytest.raises(GraphError, match="waits by links"):
        graph.select(on="gpu").wait_for("link")
