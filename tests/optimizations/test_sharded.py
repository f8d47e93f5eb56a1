"""Sharding: each answer worked out by hand."""

import json
from functools import partial

import pytest
from daydream.optimizations.fsdp import BACKWARD, FORWARD, SCATTER, UPDATE_CALL, UPDATE_IN_LISTS, fsdp
from graph.small_graphs import named
from recorded import Program
from training_programs import A100, GRADIENT, ONE, ONE_UNIT, times, training, two_layers_on_a_cpu

from daydream import GraphError, NotApplicableError, replay
from daydream.costs.device.call_scaling import scaled_time
from daydream.transforms.compose import apply, parse

sharded = partial(fsdp, python=False)  # calls cost nothing: sums of a few ns
BLOCKS = ("blocks.0", "blocks.1", "head")


def network(names=BLOCKS, *, known=True, update=30_000, steps=1, **metadata):
    """A forward kernel of 50 ns and a backward one of 60 ns a module, then an update of 6,000,000 values."""
    program = Program()
    for step in range(steps):
        program.step = step
        for number, name in enumerate(names):
            where = {"layer": name if known else None}
            with program.range(
                "aten::linear", "operator", phase="forward", sequence=100 * step + number, **where
            ):
                program.op("aten::addmm", "forward", (f"forward {name}", 50), **where)
        for number, name in reversed(list(enumerate(names))):
            where = {"layer": name if known else None}
            with program.range(
                "AddmmBackward0", "operator", phase="backward", sequence=100 * step + number, **where
            ):
                program.op("aten::mm", "backward", (f"grad {name}", 60), **where)
            with program.range(
                "torch::autograd::AccumulateGrad", "operator", phase="backward",
                shapes=json.dumps(GRADIENT), dtype="float32", **where,
            ):  # fmt: skip
                program.now += 2
        with program.range("Optimizer.step#SGD.step", phase="optimizer"):
            program.op("aten::add_", "optimizer", ("update", update), shapes="3000000 3000000")
    return program.graph(**{**A100, **metadata})


def test_units_are_gathered_one_ahead_and_scattered_one_at_a_time():
    # A ring of 2 passes half of 4,000 B at 25 B/ns: 80 ns each.
    #  shards   6|gather 0 80|gather 1 80|gather 1 80|gather 0 80|scatter 1 80|scatter 0 80|
    #  stream 7              |forward 0|  |forward 1|  |grad 1 60| |grad 0 60|              |update 30|
    #                        86         166            246        326        386          486
    graph = training()
    sharded(graph, bandwidth=25.0, **ONE_UNIT)
    ran = times(graph)
    assert ran["all-gather"] == [(6, 86), (86, 166), (166, 246), (246, 326)]
    assert ran["forward 0"] == [(86, 136)]
    assert ran["forward 1"] == [(166, 216)]
    assert ran["grad 1"] == [(246, 306)]
    assert ran["grad 0"] == [(326, 386)]
    assert ran["copy gradients"] == [(306, 306), (406, 406)]  # the second waits for the first to be scattered
    assert ran["reduce-scatter"] == [(326, 406), (406, 486)]
    assert ran["update"] == [(486, 516)]
    assert graph.lint() == []


def test_stage_2_keeps_the_parameters_for_the_backward_pass():
    #  shards   6|gather 0 80|gather 1 80|          |scatter 1 80|scatter 0 80|
    #  stream 7              |forward 0|  |forward 1|grad 1|grad 0|           |update 30|
    #                        86         166        216   276   336           436
    graph = training()
    sharded(graph, stage=2, bandwidth=25.0, **ONE_UNIT)
    ran = times(graph)
    assert ran["all-gather"] == [(6, 86), (86, 166)]
    assert ran["grad 1"] == [(216, 276)]
    assert ran["grad 0"] == [(276, 336)]
    assert ran["reduce-scatter"] == [(276, 356), (356, 436)]
    assert ran["update"] == [(436, 466)]


def test_stage_1_reduces_in_buckets_and_gathers_behind_the_update():
    #  stream 7  ...|grad 0 60|              |update 30|            |forward 0 of the next step
    #  all-reduce          226|8,000 B: 80 ns|
    #  shards                                       336|gather 40|
    graph = training(steps=2)
    sharded(graph, stage=1, workers=2, bandwidth=100.0)
    ran = times(graph)
    assert ran["all-reduce"][0] == (226, 306)
    assert ran["update"][0] == (306, 336)
    assert ran["all-gather"][0] == (336, 376)
    assert ran["forward 0"][1] == (376, 426)
    gathered = graph.select(kind="collective", collective="all_gather")
    assert gathered.bytes.tolist() == [4000, 4000]  # what each worker puts in
    assert graph.lint() == []


def test_the_update_is_divided_among_the_workers():
    graph = network()
    updates = graph.select(kind="kernel", phase="optimizer")
    half = scaled_time(graph, updates, 0.5).duration_ns.tolist()
    assert 15_000 <= half[0] < 15_100  # half of the work, and the fixed cost of a kernel
    sharded(graph, workers=2, bandwidth=25.0)
    assert named(graph, "update").duration_ns.tolist() == half


@pytest.mark.parametrize(
    ("names", "known", "options", "units", "said"),
    [
        (BLOCKS, True, {}, 3, "blocks"),
        (BLOCKS, True, {"layers": "blocks.*"}, 3, "layers 'blocks.*'"),
        (BLOCKS, True, {"layers": "blocks"}, 2, "layers 'blocks'"),
        (BLOCKS, True, {"unit_mb": 2 * ONE}, 2, "runs"),
        (("stem", "body", "head"), True, {}, 3, "modules"),
        (BLOCKS, False, {}, 1, "runs of 25 MiB"),
        (BLOCKS, False, {"unit_mb": ONE}, 3, "runs"),
    ],
)
def test_units_are_blocks_or_layers_or_runs_of_gradients(names, known, options, units, said):
    graph = network(names, known=known)
    sharded(graph, stage=2, workers=2, bandwidth=25.0, **options)
    assert len(graph.select(collective="all_gather")) == units
    assert len(graph.select(collective="reduce_scatter")) == units
    assert said in " ".join(graph.facts.notes)
    assert graph.select(collective="reduce_scatter").total("bytes") == 3 * 4000


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (training, {"stage": 4}, GraphError, "1, 2 or 3"),
        (training, {"stage": 1, "unit_mb": 1.0}, GraphError, "of stages 2 and 3"),
        (training, {"stage": 1, "overlap": False}, GraphError, "of stages 2 and 3"),
        (training, {"overlap": False, "forward_prefetch": True}, GraphError, "without overlap"),
        (training, {"bandwidth": 1.0, "unit_mb": 1.0, "layers": "*"}, GraphError, "both"),
        (training, {"bandwidth": 1.0, "unit_mb": 0.0}, GraphError, "above 0"),
        (training, {"bandwidth": 1.0, "layers": "blocks.*"}, NotApplicableError, "no layer that matches"),
        (training, {}, NotApplicableError, "--cluster or --bandwidth"),
    ],
)
def test_fsdp_says_why_it_does_not_apply(graph, options, error, words):
    with pytest.raises(error, match=words):
        sharded(graph(), **options)


# What runs during transfers, and what the CPU's calls cost


@pytest.mark.parametrize(
    ("options", "gathers", "scatters", "update"),
    [
        # |gather 0|forward 0|gather 1|forward 1|gather 1|gather 0|backward 1|scatter 1|backward 0|scatter 0|
        ({}, [0, 130, 260, 340], [482, 624], 704),
        # as above, but gather 0 beside backward 1, and scatter 1 behind it beside backward 0
        ({"overlap": True}, [0, 130, 260, 340], [420, 500], 580),
        # and gather 1 beside forward 0
        ({"overlap": True, "forward_prefetch": True}, [0, 80, 210, 290], [370, 450], 530),
    ],
)
def test_transfers_are_beside_compute_only_where_there_are_streams(options, gathers, scatters, update):
    graph = two_layers_on_a_cpu()
    sharded(graph, bandwidth=25.0, **ONE_UNIT, **options)
    ran = times(graph)
    assert [start for start, _ in ran["all-gather"]] == gathers
    assert [start for start, _ in ran["reduce-scatter"]] == scatters
    assert ran["aten::add_"] == [(update, update + 30)]
    assert graph.lint() == []


@pytest.mark.parametrize(
    ("update", "more"),
    [
        ("aten::add_", UPDATE_CALL),
        ("aten::_foreach_add_", 2 * UPDATE_IN_LISTS),
        ("aten::item", 0),
    ],
)
def test_hooks_and_calls_on_sharded_parameters_take_time(update, more):
    # A unit has one parameter: gathered twice, scattered once.
    graph = two_layers_on_a_cpu(update)
    fsdp(graph, bandwidth=25.0, **ONE_UNIT)
    forward, backward = (sum(calls) for calls in (FORWARD, BACKWARD))
    asked = graph.select(name="ask for parameters").duration_ns.tolist()
    assert sorted(asked) == sorted([forward, forward, backward, backward])
    assert graph.select(name="ask for gradients").duration_ns.tolist() == [sum(SCATTER)] * 2
    assert graph.select(name=update).duration_ns.tolist() == [30 + more]


@pytest.mark.parametrize("name", ["ddp", "fsdp", "p3", "pipeline", "tensor-parallel"])
def test_a_rank_of_a_job_whose_collectives_are_missing_takes_no_more_gpus(name):
    program = Program()
    with program.range("FSDP::all_gather (0)"):
        program.op("c10d::_allgather_base_", "forward", ("copy", 50))
    of_64 = program.graph(**A100, world_size=64, backend="fake")

    with pytest.raises(NotApplicableError, match=r"one of 64 ranks, which share.*collect --world 64 SCRIPT"):
        apply(parse(name), of_64, {})
    notes = str(replay(of_64).notes)
    assert "one of 64 ranks" in notes
    assert "fake backend does not tell which group" in notes
