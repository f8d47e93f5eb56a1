"""DDP's buckets and cheaper exchanges of gradients: each answer worked out by hand."""

import numpy as np
import pytest
import strategies  # noqa: F401 - sets hypothesis up
from daydream.optimizations._communication import blueconnect
from daydream.optimizations.bucket_size import bucket_size
from daydream.optimizations.compression import compression, dgc
from daydream.optimizations.ddp import ddp
from graph.small_graphs import named
from graph.small_traces import launched, trace
from hypothesis import given
from hypothesis import strategies as st
from recorded import (
    A100,
    ONE,
    buckets_of,
    distributed,
    does_not_apply,
    exchanged,
    makespan,
    noted,
    times,
    training,
    two_layers_on_a_cpu,
)
from shared import shared_replay

from daydream.costs.device.call_scaling import memory_bandwidth, tiny_call_ns
from daydream.costs.kernels import floor_ns
from daydream.costs.network.cluster_names import find_cluster
from daydream.graph.build import build
from daydream.model.gradients import assign

# DistributedDataParallel and its buckets: each answer worked out by hand


# ddp


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


def test_a_cpu_reads_what_copies_overwrite_and_copies_back_bucket_by_bucket():
    #  thread     ...|gradient 2|in|grad 0 60|gradient 2|in|   |back 1|         |back 0|update 30|
    #  all-reduce                  |10,000                     |10,000          |
    graph = two_layers_on_a_cpu(op="aten::add_", shapes="[[10000], [10000]]", dtype="float32")
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


# bucket-size


FIXED = find_cluster("dgx-a100").all_reduce_ns(1, 2)


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


def test_a_bucket_that_begins_later_may_no_longer_wait_for_peers():
    graph = distributed(1, 0)
    bucket_size(graph, bucket_mb=1.0)
    takes, alone = FIXED + 2 * (100_000 - FIXED), find_cluster("dgx-a100").all_reduce_ns(8000, 2)
    ((ids, doubt, _),) = graph.doubted
    assert graph.tasks(ids).duration_ns.tolist() == [takes]
    assert doubt.tolist() == [(alone - takes) / takes]
    quick = distributed(1, 0, duration=FIXED)  # as fast as the cluster: they waited for nobody
    bucket_size(quick, bucket_mb=1.0)
    assert all((each == 0).all() for _, each, _ in quick.doubted)


LONG_US = find_cluster("dgx-a100").all_reduce_ns(30 * 2**20, 2) / 1000  # of a bucket of 30 MiB


def unsized(*, phases=True):
    #  thread 2    |g1|g2|all-reduce|g3|g4|all-reduce|        thread 1   ... |update|
    #  stream 7    |g1 90|g2 90|g3 90|g4 90|                                              |update 30|
    #  stream 13               |all-reduce of 30 MiB    |all-reduce of 30 MiB|
    rows, number, start = [], 0, 10.0
    for at, name in enumerate(("g1", "g2", "reduce", "g3", "g4", "reduce")):
        number += 1
        more = {"tid": 2, "phase": "backward"} if phases else {"tid": 2}
        if name == "reduce":
            begin = start + 1000.0 * (at == 5)
            more |= {"kind": "collective", "collective": "all_reduce", "stream": 13}
            rows += launched(name, 10.0 * at, begin, begin + LONG_US, number, **more)
        else:
            rows += launched(name, 10.0 * at, start, start + 90, number, **more)
            start += 91
    rows += launched("update", 60.0, 3000, 3030, number + 1, phase="optimizer")
    return build(trace(rows, steps=(0.0, 4000.0), **A100))


@pytest.mark.parametrize("phases", [True, False])
def test_buckets_of_unknown_size_are_as_large_as_they_took_long(phases):
    graph = unsized(phases=phases)
    bucket_size(graph, bucket_mb=1000.0)
    one = graph.select(kind="collective")
    assert one.bytes.tolist() == pytest.approx([60 * 2**20], rel=0.02)
    assert one.duration_ns.tolist() == pytest.approx([2000 * LONG_US - FIXED], rel=1e-3)
    assert times(graph)["all-reduce"][0][0] >= times(graph)["g4"][0][1]
    assert times(graph)["update"][0][0] >= times(graph)["all-reduce"][0][1]
    assert noted(graph, "at most 30, 30 MiB")
    assert graph.lint() == []


UPDATE = "void at::native::vectorized_elementwise_kernel<4, at::native::add>"


def without_operators():
    #  thread 1 |f|            thread 2  |nt 0|nn|nt 1|     thread 1   |update|
    rows = launched("sgemm_128x64_tn", 0, 10, 90, 1, phase="forward")
    for number, name in enumerate(("sgemm_128x64_nt", "sgemm_128x64_nn", "sgemm_32x32_nt"), 2):
        at = 100.0 * number
        rows += launched(name, at, at + 10, at + 90, number, tid=2, phase="backward")
    more = {"grid": "2048,1,1", "block": "128,1,1", "phase": "optimizer"}
    for number in (5, 6):
        rows += launched(UPDATE, 100.0 * number, 100.0 * number + 10, 100.0 * number + 90, number, **more)
    return build(trace(rows, steps=(0.0, 1000.0), **A100))


def test_without_operators_products_of_weights_complete_the_gradients():
    # Two parameters of 2,048 x 512 values, 4 MiB each; each fills a bucket behind its product.
    graph = without_operators()
    ddp(graph, workers=2, bandwidth=100.0, bucket_mb=4.0)
    reduced = graph.select(kind="collective")
    assert reduced.bytes.tolist() == [4 * 2**20] * 2
    ran = times(graph)
    assert ran["all-reduce"][0][0] >= ran["sgemm_128x64_nt"][0][1]
    assert ran["all-reduce"][1][0] >= ran["sgemm_32x32_nt"][0][1]
    assert ran[UPDATE][0][0] >= ran["all-reduce"][1][1]
    assert graph.lint() == []


# Cheaper all-reduces, blueconnect, dgc and compression: each answer worked out by hand


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


def parts_of(machines, nbytes):
    return [
        machines.time_ns("reduce_scatter", nbytes, 2),
        machines.time_ns("reduce_scatter", nbytes // 2, 2, per_node=1),
        machines.time_ns("all_gather", nbytes // 2, 2, per_node=1),
        machines.time_ns("all_gather", nbytes, 2),
    ]


def test_an_all_reduce_goes_through_the_levels(lab):
    machines, nbytes = find_cluster(lab), 10**8
    graph = buckets_of(nbytes, duration=machines.all_reduce_ns(nbytes, 4))
    blueconnect(graph, cluster=lab, workers=4)
    parts = graph.select(kind="collective")
    assert parts.duration_ns.tolist() == parts_of(machines, nbytes)
    assert parts.lane.tolist() == ["stream 13", "between nodes", "between nodes", "stream 13"]
    assert parts.bytes.tolist() == [nbytes, nbytes // 2, nbytes // 4, nbytes // 2]
    assert makespan(graph) == 10 + sum(parts_of(machines, nbytes)) + 5
    assert graph.lint() == []


def test_one_bucket_crosses_the_network_while_another_is_summed_inside(lab):
    #  stream 13      |scatter 0|scatter 1|              |gather 0|          |gather 1|
    #  between nodes            |scatter 0|gather 0|scatter 1|gather 1|
    machines, nbytes = find_cluster(lab), 10**8
    graph = buckets_of(nbytes, nbytes, duration=machines.all_reduce_ns(nbytes, 4))
    blueconnect(graph, cluster=lab, workers=4)
    first, over, back, last = parts_of(machines, nbytes)
    assert first < over
    assert last < over + back
    ran = times(graph)
    assert ran["reduce-scatter inside"] == [(10, 10 + first), (10 + first, 10 + 2 * first)]
    assert makespan(graph) == 10 + first + 2 * (over + back) + last + 5


# dgc and compression


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
    assert named(graph, "compress").lane.tolist() == ["stream 7"]
    assert len(graph.select(name="^(compress|all-gather|decompress)$").launches()) == 3
    assert graph.lint() == []


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
    does_not_apply("16 bits", compression, graph)


# compression in factors


def test_gradients_go_as_factors_one_behind_the_other():
    # A bucket of two matrices of 10 x 100: P has 2 x 10 values, Q 2 x 100, of 2,000. 8,000 B take 80 us.
    #  stream 7    ...|grad 0|copy|make P|
    #  all-reduce                        |P 6.6 us|make Q|Q 8 us|P times Q|
    graph = exchanged()
    rate, floor = memory_bandwidth(graph), floor_ns(graph)
    before = times(graph)["all-reduce"][0][0]
    compression(graph, rank=1)
    make = round(2 * floor + (5 * 2000 + 2000 + 20) * 4 / rate)
    between = round(2 * floor + (2000 + 20 + 200) * 4 / rate)
    back = round(2 * floor + (3 * 2000 + 2000 + 20 + 200) * 4 / rate)
    ran = times(graph)
    at = before + make
    assert ran["make P"] == [(before, at)]
    assert ran["all-reduce"] == [(at, at + 6600), (at + 6600 + between, at + 6600 + between + 8000)]
    assert ran["make Q"] == [(at + 6600, at + 6600 + between)]
    end = at + 6600 + between + 8000
    assert ran["P times Q"] == [(end, end + back)]
    assert ran["update"][0][0] == end + back
    assert graph.select(kind="collective").bytes.tolist() == [80, 800]
    assert "2 of 2 gradients per step" in " ".join(graph.facts.notes)
    assert graph.lint() == []


def test_what_saves_less_than_half_goes_whole_with_the_first_factors():
    program_shapes = "10x100"
    graph = training(shapes=program_shapes, **A100)
    nodes = graph.select(kind="cpu", within="AccumulateGrad")
    nodes.first().set(shapes="[[1000]]")  # a vector of as many values
    ddp(graph, workers=2, bandwidth=0.1, gradient_as_bucket_view=True)
    compression(graph, rank=2)
    # The matrix's P of 2 x 10 values with the vector's 1,000, then Q of 2 x 100.
    assert graph.select(kind="collective").bytes.tolist() == [(20 + 1000) * 4, 200 * 4]
    assert "1 of 2 gradients per step" in " ".join(graph.facts.notes)
