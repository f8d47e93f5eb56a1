"""A faster network, ranks and transfers that nobody waits for: each answer worked out by hand."""

import pytest
from daydream.optimizations._communication import network, no_stragglers, overlap
from daydream.optimizations.compression import dgc
from daydream.optimizations.ddp import ddp
from graph.small_graphs import named, put
from recorded import Program, does_not_apply, makespan, refuses
from shared import shared_replay
from training_programs import A100, buckets_of, meeting, reduce_bucket, reduced, times, training

from daydream import Graph, GraphError, NotApplicableError
from daydream.costs.network.cluster_names import find_cluster
from daydream.transforms.compose import in_order, parse

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
