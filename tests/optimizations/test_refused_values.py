"""Values of options that make no sense are refused in a line that names the option."""

from __future__ import annotations

import pytest
from daydream.optimizations.add_layers import add_layers
from daydream.optimizations.fused_adam import fused_adam
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from daydream.optimizations.metaflow import metaflow
from daydream.optimizations.pipeline import pipeline
from daydream.optimizations.sequence_length import sequence_length

from daydream import Graph, GraphError, NotApplicableError


def two_blocks() -> Graph:
    #  main  |block 0 10|block 1 10|backward 20|optimizer 5|
    graph = Graph()
    for name, duration, phase, layer in (
        ("a", 10, "forward", "blocks.0"),
        ("b", 10, "forward", "blocks.1"),
        ("c", 20, "backward", "blocks.1"),
        ("d", 5, "optimizer", None),
    ):
        graph.insert(name, kind="cpu", lane="main", duration_ns=duration, phase=phase, layer=layer, step=0)
    return graph


@pytest.mark.parametrize(
    ("optimization", "options", "words"),
    [
        (fused_adam, {"memory_speedup": 0.0}, "memory_speedup must be above 0, not 0"),
        (sequence_length, {"length": 8, "recorded": -2}, "recorded must be 1 or more, not -2"),
        (pipeline, {"activation_mb": -1.0}, "activation_mb must be 0 or more, not -1"),
        (add_layers, {"count": 1_000_000_000}, "count 1,000,000,000 would add .* tasks"),
        (gradient_accumulation, {"batches": 10**9}, "batches 1,000,000,000 would add 2,999,999,997 tasks"),
    ],
)
def test_it_names_the_option(optimization, options, words):
    graph = two_blocks()
    with pytest.raises(GraphError, match=words) as refused:
        optimization(graph, **options)
    assert not isinstance(refused.value, NotApplicableError)
    assert graph.ids.tolist() == [0, 1, 2, 3]


def test_layers_times_one_are_the_same_layers():
    with pytest.raises(NotApplicableError, match="a factor of 1 leaves the layers as they are"):
        metaflow(two_blocks(), layers="blocks.*", factor=1.0)
