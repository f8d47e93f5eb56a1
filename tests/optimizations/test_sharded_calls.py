"""Sharding: what runs during transfers, and what the CPU's calls cost."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from daydream.optimizations import _fsdp_shards
from daydream.optimizations.fsdp import fsdp
from recorded import Program
from training_programs import ONE_UNIT, layer, times, training, two_layers_on_a_cpu

from daydream.costs.device.call_scaling import copies_into_new_ns, copies_ns, tiny_call_ns

MIB = 2**20
sharded = partial(fsdp, python=False)  # calls cost nothing: sums of a few ns


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


def test_a_gpu_that_waits_for_transfers_has_none_beside_its_kernels():
    graph = training()
    sharded(graph, bandwidth=25.0, overlap=False, **ONE_UNIT)
    ran = times(graph)
    transfers = [*ran["all-gather"], *ran["reduce-scatter"]]
    kernels = [
        span for name in ("forward 0", "forward 1", "grad 1", "grad 0", "update") for span in ran[name]
    ]
    assert len(transfers) == 6
    assert all(end <= begin or over <= start for start, end in transfers for begin, over in kernels)


@pytest.mark.parametrize(("ahead", "asked"), [(False, 400), (True, 0)])
def test_a_gather_is_launched_when_the_cpu_comes_to_its_unit_or_to_the_one_before(ahead, asked):
    program = Program()
    for number in (0, 1):
        with program.range("aten::linear", "operator", phase="forward", sequence=number):
            program.op("aten::addmm", "forward", (f"forward {number}", 50))
        program.now += 400 * (1 - number)  # the GPU has nothing to do meanwhile
    for number in (1, 0):
        layer(program, number, backward=True)
    with program.range("Optimizer.step#SGD.step", phase="optimizer"):
        program.op("aten::add_", "optimizer", ("update", 30))
    graph = program.graph()
    sharded(graph, bandwidth=25.0, forward_prefetch=ahead, **ONE_UNIT)
    first, second = (start for start, _ in times(graph)["all-gather"][:2])
    assert first == 6
    assert (second >= 400) == (asked == 400)
    assert ahead == (second == 86)  # right behind the first


@pytest.mark.parametrize(
    ("update", "more"),
    [
        ("aten::add_", _fsdp_shards.UPDATE_CALL),
        ("aten::_foreach_add_", 2 * _fsdp_shards.UPDATE_IN_LISTS),
        ("aten::item", 0),
    ],
)
def test_hooks_and_calls_on_sharded_parameters_take_time(update, more):
    # A unit has one parameter: gathered twice, scattered once.
    graph = two_layers_on_a_cpu(update)
    fsdp(graph, bandwidth=25.0, **ONE_UNIT)
    forward, backward = (sum(calls) for calls in (_fsdp_shards.FORWARD, _fsdp_shards.BACKWARD))
    asked = graph.select(name="ask for parameters").duration_ns.tolist()
    assert sorted(asked) == sorted([forward, forward, backward, backward])
    assert graph.select(name="ask for gradients").duration_ns.tolist() == [sum(_fsdp_shards.SCATTER)] * 2
    assert graph.select(name=update).duration_ns.tolist() == [30 + more]


def test_a_copy_into_new_memory_goes_by_operators_with_new_results():
    #  sqrt of 4 MiB into 4 MiB, twice: 16 MiB in 1 and 3 ms; mul_ in place is faster
    program = Program()
    for name, duration in (("sqrt", 1_000_000), ("sqrt", 3_000_000), ("mul_", 100_000)):
        with program.range(
            f"aten::{name}", "operator", phase="optimizer", op=f"aten::{name}", dtype="float32",
            shapes=json.dumps([[1024, 1024]]),
        ):  # fmt: skip
            program.now += duration
    graph = program.graph(vendor="cpu")
    assert copies_into_new_ns(graph, np.array([3 * MIB]), "cpu") == pytest.approx(
        [tiny_call_ns(graph) + 6 * MIB / (16 * MIB / 4_000_000)]
    )
    graph = training()
    assert copies_into_new_ns(graph, np.array([MIB])) == copies_ns(graph, np.array([MIB]))
