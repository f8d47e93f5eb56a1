"""The network, parameter servers, sharded parameters: each answer worked out by hand."""

import json
from functools import partial

import pytest
from daydream.optimizations._communication import no_stragglers, overlap
from daydream.optimizations.fsdp import BACKWARD, FORWARD, SCATTER, UPDATE_CALL, UPDATE_IN_LISTS, fsdp
from daydream.optimizations.p3 import p3
from graph.small_graphs import named, put
from recorded import (
    A100,
    GRADIENT,
    ONE_UNIT,
    Program,
    buckets_of,
    change,
    does_not_apply,
    layer,
    makespan,
    noted,
    reduce_bucket,
    refusals,
    refuses,
    steps_between,
    timelines,
    times,
    training,
    two_layers_on_a_cpu,
)
from shared import shared_replay

from daydream import Graph, GraphError, NotApplicableError, replay
from daydream.costs.device.call_scaling import scaled_time
from daydream.costs.network.cluster_names import find_cluster
from daydream.simulate.steady_state import settle
from daydream.transforms.compose import apply, in_order, parse

SHARDED = "fsdp python=False bandwidth=25 workers=2 unit_mb=ONE"
test_when_what_runs = timelines(globals(), {
    "a faster network": ("reduced", "network bandwidth_factor=2", "all-reduce 10-30, end 35"),
    "a slower network": ("reduced", "network bandwidth_factor=0.5", "all-reduce 10-90, end 95"),
    "a later network": ("reduced", "network latency_ns=3", "all-reduce 10-53, end 58"),
    "both": ("reduced", "network bandwidth_factor=4 latency_ns=3", "all-reduce 10-23, end 28"),
    "waiting for a peer is not scaled": (
        "meeting", "network bandwidth_factor=2", "all_reduce 30-50 30-50, end 50"
    ),
    "no rank waits for the slowest": ("meeting", "no-stragglers", "all_reduce 10-50 30-70, end 70"),
    "a rank waits for those that arrive later": ("meeting", "overlap", "all_reduce 30-30 30-30"),
    "or does not": ("meeting", "no-stragglers; overlap", "all_reduce 10-10 30-30"),
    #  stream 7             6|forward 0|forward 1|grad 1|grad 0 60|update 30|
    #  all-reduce, hidden  2|8,000 B: 80 ns, at 10 B/ns 800 ns|
    "a step as long as its work": ("training", "ddp workers=2 bandwidth=100; overlap", "end 256"),
    "a step as long as its transfers": ("training", "ddp workers=2 bandwidth=10; overlap", "end 802"),
    #  stream 7    6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|            |update 30|
    #  all-reduce                                    166|40|   226|40|   a ring of 2: 4,000 B at 100 B/ns
    "buckets are reduced beside the backward pass": (
        "training", "ddp workers=2 bandwidth=100 bucket_mb=ONE", "all-reduce 166-206 226-266, update 266-296"
    ),
    "of several backward passes the last": (
        "training passes=2", "ddp workers=2 bandwidth=100 bucket_mb=ONE", "all-reduce 386-426 446-486"
    ),
    "passes that are accumulated": (
        "training", "gradient-accumulation batches=2; ddp workers=2 bandwidth=100 bucket_mb=ONE",
        "all-reduce 386-426 446-486",
    ),
    "sizes are given": (
        "training shapes=None", "ddp workers=2 bandwidth=100 gradient_mb=TWO", "all-reduce 226-306"
    ),
    #  stream 7  6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|              |forward 0 50|...
    #  network                                     166|push 20|pull 20|226|push 20|pull 20|
    "the next forward pass waits for its parameters": (  # 4,000 B / 2 at 100 B/ns
        "training steps=2", "p3 workers=2 bandwidth=100 latency_us=0 update=server",
        "push 166-186 226-246 426-446 486-506, pull 186-206 246-266 446-466 506-526",
        "forward 0 6-56 266-316, forward 1 56-106 316-366, end 526",
    ),
    # 80 ns each. When push 1 has ended, pull 1 and push 0 are ready: for p3 layer 0 goes first, its pull too;
    # tictac pulls when all gradients are there, at 326.
    #  network    166|push 1|246|push 0|326|pull 0|406|pull 1|486|
    #  stream 7                                       |F 0 50|   |F 1 50|
    **{
        f"{name}: what is needed first goes first": (
            "training steps=2", f"{name} workers=2 bandwidth=25 latency_us=0 update=server",
            "push 166-246 246-326 596-676 676-756, pull 326-406 406-486 756-836 836-916",
            "forward 0 6-56 406-456, forward 1 56-106 486-536",
        )
        for name in ("p3", "tictac")
    },
    # Two slices of 40 ns each: push 1a 166-206, then push 1b or pull 1a (push 1b was ready first) 206-246,
    # layer 0 until 406.
    "slices let an urgent gradient overtake": (
        "training steps=2", "p3 workers=2 bandwidth=25 latency_us=0 update=server slice_mb=HALF",
        "push 166-206 206-246 246-286 286-326 596-636 636-676 676-716 716-756",
        "pull 326-366 366-406 406-446 446-486 756-796 796-836 836-876 876-916",
        "forward 0 6-56 406-456, forward 1 56-106 486-536",
    ),
    "without sequence numbers the first forward work waits for all": (
        "training steps=2 sequences=False", "p3 workers=2 bandwidth=25 latency_us=0 update=server",
        "forward 0 6-56 486-536",
    ),
    #  network   166|push 1 20|pull 1 20|  226|push 0 20|pull 0 20|
    #  stream 7  166|grad 0 60         |                     266|update 30|forward 0 50|
    "an update of all parameters waits for the last gradient": (
        "training steps=2", "p3 workers=2 bandwidth=100 latency_us=0",
        "pull 186-206 246-266 476-496 536-556, update 266-296 556-586, forward 0 6-56 296-346",
    ),
    "all pushes, then all pulls": (
        "training steps=2", "tictac workers=2 bandwidth=100 latency_us=0",
        "push 166-186 226-246 476-496 536-556, pull 246-266 266-286 556-576 576-596",
        "update 286-316 596-626, forward 0 6-56 316-366",
    ),
    # An update takes 4 of the CPU, a launch of 6 and its kernel of 10 (layer 0) or 30 (layer 1).
    #  thread    2|4|6|6|
    #  stream 7      10|update 0 10|forward 0 50|update 1 30|forward 1 50|grad 1 60|grad 0 60|
    #                  10           20            70          100          150       210       270
    #  network                                                 210|push 1|pull 1|  270|push 0|pull 0|310
    "a loop updates each parameter right before it is read": (
        "looping 10 30", "p3 workers=2 bandwidth=100 latency_us=0",
        "update of parameters 2-6 10-20 22-26 66-70 70-100 86-90 310-320 370-400",
        "forward 0 20-70 320-370, forward 1 100-150 400-450",
    ),
    # A ring of 2 passes half of 4,000 B at 25 B/ns: 80 ns each.
    #  shards   6|gather 0 80|gather 1 80|gather 1 80|gather 0 80|scatter 1 80|scatter 0 80|
    #  stream 7              |forward 0|  |forward 1|  |grad 1 60| |grad 0 60|              |update 30|
    #                        86         166            246        326        386          486
    "units are gathered one ahead and scattered one at a time": (  # the second waits until the first is
        "training", SHARDED,
        "all-gather 6-86 86-166 166-246 246-326, forward 0 86-136, forward 1 166-216, grad 1 246-306",
        "grad 0 326-386, copy gradients 306-306 406-406, reduce-scatter 326-406 406-486, update 486-516",
    ),
    #  shards   6|gather 0 80|gather 1 80|          |scatter 1 80|scatter 0 80|
    #  stream 7              |forward 0|  |forward 1|grad 1|grad 0|           |update 30|
    #                        86         166        216   276   336           436
    "stage 2 keeps the parameters for the backward pass": (
        "training", f"{SHARDED} stage=2",
        "all-gather 6-86 86-166, grad 1 216-276, grad 0 276-336, reduce-scatter 276-356 356-436",
        "update 436-466",
    ),
    #  stream 7  ...|grad 0 60|              |update 30|            |forward 0 of the next step
    #  all-reduce          226|8,000 B: 80 ns|
    #  shards                                       336|gather 40|
    "stage 1 reduces in buckets and gathers behind the update": (
        "training steps=2", "fsdp python=False stage=1 workers=2 bandwidth=100",
        "all-reduce 226-306 596-676, update 306-336 676-706, all-gather 336-376 706-746",
        "forward 0 6-56 376-426",
    ),
    # |gather 0|forward 0|gather 1|forward 1|gather 1|gather 0|backward 1|scatter 1|backward 0|scatter 0|
    "without streams nothing is beside compute": (
        "two_layers_on_a_cpu", SHARDED,
        "all-gather 0-80 130-210 260-340 340-420, reduce-scatter 482-562 624-704, aten::add_ 704-734",
    ),
    # as above, but gather 0 beside backward 1, and scatter 1 behind it beside backward 0
    "with overlap": (
        "two_layers_on_a_cpu", f"{SHARDED} overlap=True",
        "all-gather 0-80 130-210 260-340 340-420, reduce-scatter 420-500 500-580, aten::add_ 580-610",
    ),
    "and gather 1 beside forward 0": (
        "two_layers_on_a_cpu", f"{SHARDED} overlap=True forward_prefetch=True",
        "all-gather 0-80 80-160 210-290 290-370, reduce-scatter 370-450 450-530, aten::add_ 530-560",
    ),
})  # fmt: skip


def test_what_an_exchange_leaves_and_notes():
    graph = change(training(steps=2), "fsdp python=False stage=1 workers=2 bandwidth=100")
    gathered = graph.select(kind="collective", collective="all_gather")
    assert gathered.bytes.tolist() == [4000, 4000]  # what each worker puts in
    together, one_by_one = (
        change(program, "p3 workers=2 bandwidth=100 latency_us=0")
        for program in (training(steps=2), looping(10, 30))
    )
    assert noted(together, "updates all parameters together")
    assert not len(one_by_one.select(op="add_", name="^update .$"))


def two_ranks():
    return shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz").graph.copy()


def kernel():
    graph = Graph()
    put(graph, "k", "stream 7", 10)
    return graph


test_an_exchange_says_why_it_does_not_apply = refusals(globals())


# A faster network, ranks and transfers that nobody waits for: each answer worked out by hand


# network


# no-stragglers


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


def recorded_reduction(*, awaited=False):
    """A step with an all-reduce of 1,000 ns on stream 13; an update that was launched begins behind it."""
    program = Program()
    program.op("aten::mm", "backward", ("grad", 60))
    reduce_bucket(program, 8000, 1000)
    if awaited:
        program.free += 1000
    program.op("aten::add_", "optimizer", ("update", 30))
    return program.graph(world_size=2, **A100)


def test_transfers_that_nothing_waited_for_are_hidden_already():
    graph = recorded_reduction(awaited=True)
    overlap(graph)
    assert named(graph, "transfers").duration_ns.tolist() == [1000]
    assert "waiting for peers" in " ".join(graph.facts.notes)


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


# all that exchange gradients


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


def test_the_update_is_divided_among_the_workers():
    graph = network_sharded()
    updates = graph.select(kind="kernel", phase="optimizer")
    half = scaled_time(graph, updates, 0.5).duration_ns.tolist()
    assert 15_000 <= half[0] < 15_100  # half of the work, and the fixed cost of a kernel
    sharded(graph, workers=2, bandwidth=25.0)
    assert named(graph, "update").duration_ns.tolist() == half


# What runs during transfers, and what the CPU's calls cost


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
