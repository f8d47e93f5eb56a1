"""Cheaper all-reduces, blueconnect, dgc and compression: each answer worked out by hand."""

import pytest
from daydream.optimizations._communication import blueconnect
from daydream.optimizations.compression import compression, dgc
from daydream.optimizations.ddp import ddp
from graph.small_graphs import named
from recorded import does_not_apply, makespan
from training_programs import A100, buckets_of, exchanged, times, training

from daydream import GraphError, NotApplicableError
from daydream.costs.device.call_scaling import memory_bandwidth
from daydream.costs.kernels import floor_ns
from daydream.costs.network.cluster_names import find_cluster

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


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (exchanged, {"rank": 0}, GraphError, "rank must be"),
        (exchanged, {"rank": 10}, NotApplicableError, "saves half"),
        (training, {"rank": 1}, NotApplicableError, "no all-reduce"),
        (lambda: buckets_of(8), {"rank": 1}, NotApplicableError, "memory bandwidth"),
    ],
)
def test_low_rank_compression_says_why_it_does_not_apply(graph, options, error, words):
    with pytest.raises(error, match=words):
        compression(graph(), **options)
