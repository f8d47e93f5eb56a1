"""The network, parameter servers, sharded parameters: each answer worked out by hand."""

import json
from functools import partial

import pytest
from daydream.optimizations._communication import network, no_stragglers, overlap
from daydream.optimizations.bucket_size import bucket_size
from daydream.optimizations.compression import dgc
from daydream.optimizations.ddp import ddp
from daydream.optimizations.fsdp import BACKWARD, FORWARD, SCATTER, UPDATE_CALL, UPDATE_IN_LISTS, fsdp
from daydream.optimizations.p3 import p3, tictac
from graph.small_graphs import named, put
from recorded import Program, does_not_apply, makespan, refuses
from shared import shared_replay
from training_programs import (
    A100,
    GRADIENT,
    ONE,
    ONE_UNIT,
    buckets_of,
    distributed,
    layer,
    meeting,
    reduce_bucket,
    reduced,
    steps_between,
    times,
    training,
    two_layers_on_a_cpu,
)

from daydream import Graph, GraphError, NotApplicableError, replay
from daydream.costs.device.call_scaling import scaled_time
from daydream.costs.network.cluster_names import find_cluster
from daydream.simulate.steady_state import settle
from daydream.transforms.compose import apply, in_order, parse

FIXED = find_cluster("dgx-a100").all_reduce_ns(1, 2)

# A faster network, ranks and transfers that nobody waits for: each answer worked out by hand


# network


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
    assert makespan(graph) == 10 + 40 + 5
    network(graph, **options)
    assert makespan(graph) == end


def test_waiting_for_a_peer_is_not_scaled():
    graph = meeting()
    assert makespan(graph) == 30 + 40
    network(graph, bandwidth_factor=2)
    assert makespan(graph) == 30 + 40 // 2


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
    assert makespan(graph) == 10 + 40 + 5


def test_a_trace_without_collectives_is_refused():
    graph = Graph()
    put(graph, "k", "stream 7", 10)
    does_not_apply("no collectives", network, graph, bandwidth_factor=2)


# no-stragglers


def test_no_rank_waits_for_the_slowest():
    graph = meeting()
    assert makespan(graph) == 30 + 40
    no_stragglers(graph)
    ran = times(graph)
    assert ran["all_reduce"] == [(10, 50), (30, 70)]


def test_a_receiver_still_waits_for_its_data():
    does_not_apply("messages", no_stragglers, meeting("send_recv"))


def test_of_one_rank_what_goes_beyond_the_cluster_is_waiting():
    plain = find_cluster("dgx-a100").all_reduce_ns(10**7, 8)
    graph = buckets_of(10**7, 10**7, duration=[plain + 500, plain - 500])
    does_not_apply("several ranks together", no_stragglers, graph)
    no_stragglers(graph, cluster="dgx-a100", workers=8)
    assert graph.select(kind="collective").duration_ns.tolist() == [plain, plain - 500]
    does_not_apply("no collective took longer", no_stragglers, graph, cluster="dgx-a100", workers=8)


# several at once


def test_optimizations_of_the_network_combine():
    assert [each.name for each in in_order(parse("dgc+ddp"))] == ["ddp", "dgc"]
    assert [each.name for each in in_order(parse("network+ddp"))] == ["ddp", "network"]
    refuses("exclude", parse, "ddp+p3")
    refuses("exclude", parse, "dgc+compression")


def test_workers_that_contradict_the_trace_are_refused():
    real = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz").graph.copy()
    refuses("job of 2", dgc, real, workers=8)


# The word that lets calls and streams wait


def test_a_lane_waits_from_a_call_on_and_a_call_until_the_lane_is_done():
    #  thread 1  |begin 2|call 3|          |end 1|
    #  link              |copy 50|
    #  stream 7  |a 4|                     |b 4|
    def drawn():
        graph = Graph()
        begin = put(graph, "begin", "thread 1", 2)
        call = put(graph, "call", "thread 1", 3)
        end = put(graph, "end", "thread 1", 1)
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
    with pytest.raises(GraphError, match="only CPU tasks wait"):
        graph.select(on="gpu").wait_for("link")


# overlap


@pytest.mark.parametrize(("bandwidth", "end"), [(100.0, 226 + 30), (10.0, 2 + 800)])
def test_a_step_is_as_long_as_its_work_or_its_transfers(bandwidth, end):
    #  stream 7             6|forward 0|forward 1|grad 1|grad 0 60|update 30|
    #  all-reduce, hidden  2|8,000 B: 80 ns, at 10 B/ns 800 ns|
    graph = training()
    ddp(graph, workers=2, bandwidth=bandwidth)
    assert makespan(graph) == 226 + 8000 / bandwidth + 30
    overlap(graph)
    assert makespan(graph) == end
    assert graph.lint() == []


def recorded_reduction(*, awaited):
    """A step with an all-reduce of 1,000 ns on stream 13; an update that was launched begins behind it."""
    program = Program()
    program.op("aten::mm", "backward", ("grad", 60))
    reduce_bucket(program, 8000, 1000)
    if awaited:
        program.free += 1000
    program.op("aten::add_", "optimizer", ("update", 30))
    return program.graph(world_size=2, **A100)


def test_transfers_that_nothing_waited_for_are_hidden_already():
    does_not_apply("hidden already", overlap, recorded_reduction(awaited=False))
    graph = recorded_reduction(awaited=True)
    overlap(graph)
    assert named(graph, "transfers").duration_ns.tolist() == [1000]
    assert "waiting for peers" in " ".join(graph.facts.notes)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (training, "no collectives"),
        (lambda: meeting("send_recv"), "messages from one rank"),
        (lambda: buckets_of(8, duration=0), "transfers that take time"),
    ],
)
def test_overlap_says_why_it_does_not_apply(graph, words):
    with pytest.raises(NotApplicableError, match=words):
        overlap(graph())


@pytest.mark.parametrize("backward", [False, True])
def test_nothing_hides_what_the_next_layer_works_on(backward):
    #  stream 7   |layer 20|          |layer 20|          |
    #  stream 13           |reduce 30 |        |gather 30 |  each waits for the other: 100 in all
    graph, last = Graph(), []
    for name in ("reduce_scatter", "all_gather"):
        layer = put(graph, "layer", "stream 7", 20, step=0, after=last)
        place = {"kind": "collective", "lane": "stream 13", "duration_ns": 30, "step": 0, "phase": "forward"}
        last = [graph.insert(name, **place, collective=name, after=[layer])]
    if not backward:
        with pytest.raises(NotApplicableError, match="the next layer works on"):
            overlap(graph)
        return
    kernel = put(graph, "grad", "stream 7", 40, step=0, after=last)
    graph.insert(
        "all-reduce", kind="collective", lane="stream 13", duration_ns=25, step=0, phase="backward",
        collective="all_reduce", after=[kernel],
    )  # fmt: skip
    overlap(graph)
    assert makespan(graph) == 20 + 30 + 20 + 30 + 40


# Parameter servers, p3 and tictac: each answer worked out by hand


# p3


def test_the_next_forward_pass_waits_for_the_parameters_it_needs():
    #  stream 7  6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|              |forward 0 50|...
    #  network                                     166|push 20|pull 20|226|push 20|pull 20|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0, update="server")  # 4,000 B / 2 at 100 B/ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 186), (226, 246)]
    assert ran["pull"][:2] == [(186, 206), (246, 266)]
    assert ran["forward 0"] == [(6, 56), (266, 316)]
    assert ran["forward 1"][1] == (316, 366)
    assert makespan(graph) == 366 + 2 * 60 + 20 + 20
    assert graph.lint() == []


@pytest.mark.parametrize("optimization", [p3, tictac])
def test_what_is_needed_first_goes_first(optimization):
    # 4,000 B / 2 at 25 B/ns are 80 ns. When push 1 has ended, pull 1 and push 0 are ready: for p3 layer 0
    # goes first, its pull too; tictac pulls when all gradients are there, at 326.
    #  network    166|push 1|246|push 0|326|pull 0|406|pull 1|486|
    #  stream 7                                       |F 0 50|   |F 1 50|
    graph = training(steps=2)
    optimization(graph, workers=2, bandwidth=25.0, latency_us=0.0, update="server")
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(326, 406), (406, 486)]
    assert ran["forward 0"][1] == (406, 456)
    assert ran["forward 1"][1] == (486, 536)
    assert graph.lint() == []


def test_slices_let_an_urgent_gradient_overtake():
    # Two slices of 40 ns each; at 206 the second push of layer 1 has begun, at 246 layer 0 takes over.
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0, slice_mb=ONE / 2, update="server")
    ran = times(graph)
    assert len(ran["push"]) == len(ran["pull"]) == 2 * 2 * 2
    # push 1a 166-206, then push 1b or pull 1a (both ready, push 1b first ready) 206-246, layer 0 until 406.
    assert ran["forward 0"][1][0] == 246 + 4 * 40
    assert ran["forward 1"][1][0] == max(406 + 50, 406 + 2 * 40)


# tictac


# Where the worker updates


def looping(*kernels, steps=2):
    """Two layers whose update is a loop over their parameters, on a device with kernels of these times."""
    program = Program()
    ends = [0]
    for step in range(steps):
        program.step = step
        for backward, number in ((False, 0), (False, 1), (True, 1), (True, 0)):
            layer(program, number, backward=backward, on_device=bool(kernels))
        for number in range(2):
            update = (f"update {number}", kernels[number]) if kernels else None
            program.op("aten::add_", "optimizer", *([update] if update else []), shapes=GRADIENT)
        ends.append(program.now)
    return program.graph(steps=steps_between(ends))


def test_a_loop_updates_each_parameter_when_it_has_come_right_before_it_is_read():
    # An update takes 4 of the CPU, a launch of 6 and its kernel of 10 (layer 0) or 30 (layer 1).
    #  thread    2|4|6|6|
    #  stream 7      10|update 0 10|forward 0 50|update 1 30|forward 1 50|grad 1 60|grad 0 60|
    #                  10           20            70          100          150       210       270
    #  network                                                 210|push 1|pull 1|  270|push 0|pull 0|310
    graph = looping(10, 30)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0)
    ran = times(graph)
    assert ran["update of parameters"][:1] == [(2, 6)]  # on the CPU
    on_device = graph.select(kind="kernel", name="update of parameters")
    assert on_device.duration_ns.tolist() == [10, 30] * 2
    assert ran["forward 0"] == [(20, 70), (310 + 10, 310 + 10 + 50)]
    assert ran["forward 1"] == [(100, 150), (370 + 30, 370 + 30 + 50)]
    assert not len(graph.select(op="add_", name="^update .$"))
    assert graph.lint() == []


def test_more_slices_than_can_be_simulated_are_refused():
    refuses(r"slice_mb 1e-09 makes .* slices", p3, training(), slice_mb=1e-9)


# all that exchange gradients


@pytest.mark.parametrize("optimization", [ddp, fsdp, p3, tictac])
@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (training, {"workers": 1}, NotApplicableError, "one worker"),
        (training, {"workers": 0}, GraphError, "1 or more"),
        (training, {"bandwidth": 0.0}, GraphError, "above 0"),
        (lambda: training(shapes=None), {}, NotApplicableError, "gradients are unknown"),
        (reduced, {}, NotApplicableError, "several ranks already"),
    ],
)
def test_an_exchange_of_gradients_says_why_it_does_not_apply(optimization, graph, options, error, words):
    with pytest.raises(error, match=words):
        optimization(graph(), **{"bandwidth": 1.0, **options})


# Sharding: each answer worked out by hand


sharded = partial(fsdp, python=False)  # calls cost nothing: sums of a few ns
BLOCKS = ("blocks.0", "blocks.1", "head")


def network_sharded(names=BLOCKS, *, known=True, update=30_000, steps=1, **metadata):
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
    graph = network_sharded()
    updates = graph.select(kind="kernel", phase="optimizer")
    half = scaled_time(graph, updates, 0.5).duration_ns.tolist()
    assert 15_000 <= half[0] < 15_100  # half of the work, and the fixed cost of a kernel
    sharded(graph, workers=2, bandwidth=25.0)
    assert named(graph, "update").duration_ns.tolist() == half


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


def test_a_rank_still_waits_for_those_that_arrive_later():
    graph = meeting()
    overlap(graph)
    assert times(graph)["all_reduce"] == [(30, 30), (30, 30)]
    graph = meeting()
    no_stragglers(graph)
    overlap(graph)
    assert sorted(times(graph)["all_reduce"]) == [(10, 10), (30, 30)]


def test_sizes_that_the_trace_does_not_tell_can_be_given():
    graph = training(shapes=None)
    ddp(graph, workers=2, bandwidth=100.0, gradient_mb=2 * ONE)
    assert times(graph)["all-reduce"] == [(226, 226 + 80)]


def test_one_bucket_becomes_two():
    #  stream 7   ...|grad 1 60|grad 0 60|                       |update 30|
    #  stream 13            166|all-reduce 4,000 B|all-reduce 4,000 B|
    graph = distributed(0)
    bucket_size(graph, bucket_mb=ONE)
    half = FIXED + (100_000 - FIXED) // 2
    assert times(graph)["all-reduce"] == [(166, 166 + half), (166 + half, 166 + 2 * half)]
    assert times(graph)["update"][0][0] == 166 + 2 * half


def test_p3_settles_over_repeated_steps():
    # 400 ns each, layer 0 first: its forward kernel runs beside pull 1, and while layer 1 goes forward
    # and backward the link has nothing to do.
    #  network  |push 1|push 0|pull 0|pull 1|                 |push 1|...
    #  stream 7                      |F 0|  |forward 1|grad 1|grad 0|
    graph = training(steps=3, uncovered=1)
    p3(graph, workers=2, bandwidth=5.0, latency_us=0.0, update="server")
    settled = settle(graph)
    assert settled.timeline.copy.max() > 0
    assert settled.step_ns == 4 * 400 + 50 + 60


def test_without_sequence_numbers_the_first_forward_work_waits_for_all():
    graph = training(steps=2, sequences=False)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0, update="server")
    assert times(graph)["forward 0"][1][0] == 486


def test_an_update_of_all_parameters_waits_for_the_last_gradient_and_the_forward_pass_for_it():
    #  network   166|push 1 20|pull 1 20|  226|push 0 20|pull 0 20|
    #  stream 7  166|grad 0 60         |                     266|update 30|forward 0 50|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0)
    ran = times(graph)
    assert ran["pull"][:2] == [(186, 206), (246, 266)]
    assert ran["update"][0] == (266, 296)
    assert ran["forward 0"][1] == (296, 346)
    assert "updates all parameters together" in graph.facts.notes[-1]
    # tictac: all pushes, then all pulls
    #  network  166|push 1|   226|push 0|pull 0|pull 1|
    graph = training(steps=2)
    tictac(graph, workers=2, bandwidth=100.0, latency_us=0.0)
    ran = times(graph)
    assert ran["update"][0] == (286, 316)
    assert ran["forward 0"][1] == (316, 366)


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
