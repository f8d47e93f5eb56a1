"""Communication: each answer worked out by hand."""

from __future__ import annotations

import pytest
from daydream.optimizations.network import network

from daydream import Graph, GraphError, NotApplicableError, simulate


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
