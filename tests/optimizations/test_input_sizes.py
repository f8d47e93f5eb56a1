"""Sequence length and batch size, by recorded shapes: each answer worked out by hand."""

from __future__ import annotations

import pytest
from daydream.optimizations.batch_size import batch_size
from daydream.optimizations.sequence_length import sequence_length
from recorded import Program

from daydream import Graph, GraphError, NotApplicableError, simulate
from daydream.costs.input_sizes import is_feature_size, recorded_batch, recorded_length

BEGIN = 2 + 4  # an operator's own time before its launch, and the latency of the launch


def attention(tokens: int = 10, width: int = 16, head: int = 8) -> Graph:
    #  kernels of 80,000: all alike, so 5,000 of each, the most that can be, count as its fixed cost
    p = Program()
    ns = 80_000
    p.op("aten::linear", "forward", ("gemm", ns), shapes=[[2, tokens, width], [width, width], [width]])
    p.op("aten::bmm", "forward", ("gemm", ns), shapes=[[4, tokens, head], [4, head, tokens]])
    p.op("aten::_softmax", "forward", ("softmax", ns), shapes=[[2, 2, tokens, tokens], [], []])
    p.op("aten::gelu", "forward", ("gelu", ns), shapes=[[2, tokens, width]])
    p.op("my::op", "backward", ("unknown", ns), shapes=[[3]])
    p.op("aten::add_", "backward", ("add", ns), shapes=[[width, width], [width, width]])
    p.op("aten::add_", "optimizer", ("update", ns), shapes=[[width, width], [width, width]])
    return p.graph()


def without_shapes() -> Graph:
    p = Program()
    p.op("aten::linear", "forward", ("gemm", 10))
    return p.graph()


def test_work_by_token_grows_with_the_length_and_scores_with_its_square():
    graph = attention()
    assert recorded_length(graph) == 10
    sequence_length(graph, length=30)
    body = 75_000
    grown = [body * 3, body * 9, body * 9, body * 3, body * 3, body, body]
    assert (graph.select(kind="kernel").duration_ns - 5_000).tolist() == grown
    assert simulate(graph).makespan_ns == BEGIN + 7 * 5_000 + sum(grown)


def test_a_shorter_sequence_is_never_slower():
    times = []
    for length in (5, 20, 40, 80):
        graph = attention()
        sequence_length(graph, length=length)
        times.append(simulate(graph).makespan_ns)
    assert times == sorted(times)


@pytest.mark.parametrize("tokens", [16, 8])  # the width, and that of a head
def test_a_length_that_heads_or_features_have_too_is_refused(tokens):
    assert not is_feature_size(attention(), 10)
    with pytest.raises(NotApplicableError, match=f"heads of size {tokens} too"):
        sequence_length(attention(tokens), length=32)


def test_lengths_that_are_no_question_are_refused():
    with pytest.raises(NotApplicableError, match="10 tokens already"):
        sequence_length(attention(), length=10)
    with pytest.raises(GraphError, match="1 or more"):
        sequence_length(attention(), length=0)
    with pytest.raises(NotApplicableError, match="sequence length"):
        sequence_length(without_shapes(), length=10)
    with pytest.raises(NotApplicableError, match="forward or backward"):
        sequence_length(Graph(), length=10)


def training_by_shapes() -> Graph:
    ns = 80_000
    p = Program()
    p.op("aten::to", "data", ("Memcpy HtoD (Pinned -> Device)", 100), shapes=None)
    p.op("aten::linear", "forward", ("gemm", ns), shapes=[[6, 16], [32, 16], [32]])
    p.op("aten::mm", "backward", ("gemm", ns), shapes=[[32, 6], [6, 16]])  # the weight's gradient
    p.op("aten::add_", "backward", ("add", ns), shapes=[[32, 16], [32, 16]])  # its accumulation
    p.op("aten::add_", "optimizer", ("update", ns), shapes=[[32, 16], [32, 16]])
    return p.graph()


@pytest.mark.parametrize("factor", [0.5, 2, 3.5])
def test_what_is_done_with_parameters_alone_stays_with_another_batch(factor):
    graph = training_by_shapes()
    assert recorded_batch(graph) == 6
    batch_size(graph, factor=factor)
    loading = 2 * factor + 4 + 100 * factor  # the operator's own 2 and the copy grow, the latency does not
    assert simulate(graph).makespan_ns == loading + 2 * (5_000 + 75_000 * factor) + 80_000 + 80_000


def test_a_batch_of_no_whole_number_is_refused():
    with pytest.raises(GraphError, match="no whole number"):
        batch_size(training_by_shapes(), factor=0.3)


def test_sequence_first_layouts_do_not_hide_the_batch():
    p = Program()
    p.op("aten::linear", "forward", ("gemm", 10), shapes=[[43, 8, 16], [16, 16], [16]])
    p.op("aten::conv1d", "forward", ("conv", 10), shapes=[[8, 4, 43], [16, 4, 1], [16]])
    p.op("aten::relu", "forward", ("relu", 10), shapes=[[8, 16, 43]])  # shows the convolution's output
    assert recorded_batch(p.graph()) == 8
