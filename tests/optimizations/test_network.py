"""A faster network, and ranks that nobody waits for: each answer worked out by hand."""

from __future__ import annotations

import pytest
import strategies  # noqa: F401 - sets hypothesis up
from daydream.optimizations.dgc import dgc
from daydream.optimizations.network import network
from daydream.optimizations.no_stragglers import no_stragglers
from recorded import does_not_apply, refuses
from shared import shared_replay
from training_programs import buckets_of, meeting, reduced, times

from daydream import Graph, GraphError, NotApplicableError, simulate
from daydream.costs.network.cluster_names import find_cluster
from daydream.graph.selection import Selection
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
    assert simulate(graph).makespan_ns == 10 + 40 + 5
    network(graph, **options)
    assert simulate(graph).makespan_ns == end


def test_waiting_for_a_peer_is_not_scaled():
    graph = meeting()
    assert simulate(graph).makespan_ns == 30 + 40
    network(graph, bandwidth_factor=2)
    assert simulate(graph).makespan_ns == 30 + 40 // 2


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
    does_not_apply("no collectives", network, graph, bandwidth_factor=2)


# no-stragglers


def test_no_rank_waits_for_the_slowest():
    graph = meeting()
    assert simulate(graph).makespan_ns == 30 + 40
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
    with pytest.raises(GraphError, match="only CPU tasks wait"):
        graph.select(on="gpu").wait_for("link")
