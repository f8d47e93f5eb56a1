"""Blocks that a model repeats: modules of one kind, and modules that take turns."""

import pytest
from daydream.optimizations._layers import add_layers, remove_layers
from shared import ROOT
from small_graphs import put

import daydream
from daydream import Graph, simulate
from daydream.model.blocks import repeated_blocks

RECORDED = ROOT / "validation" / "cpu"


def model(*modules, calls="", backward=False):
    """Return a graph whose modules run forward one after the other, 10 ns each, and maybe backward, 20 ns.

    `calls` are modules that only call those inside them.
    """
    graph = Graph()
    for path in calls.split():
        put(graph, "call", "main", 0, phase="forward", layer=path, step=0)
    pairs = [(one, "aten::linear") if isinstance(one, str) else one for one in modules]
    work = [("forward", 10, pairs), ("backward", 20, pairs[::-1] if backward else [])]
    for phase, ns, some in work:
        for path, operator in some:
            put(graph, "work", "main", ns, phase=phase, layer=path, op=operator, step=0)
    return graph


def sequential(*operators):
    return [(str(place), f"aten::{operator}") for place, operator in enumerate(operators)]


@pytest.mark.parametrize(
    ("operators", "blocks"),
    [
        (["linear"] * 3, ["0", "1", "2"]),
        (["linear", "relu"] * 2, ["0 + 1", "2 + 3"]),
        (["linear", "relu"] * 2 + ["linear"], ["0 + 1", "2 + 3"]),
        (["relu", "linear", "relu", "linear"], ["0 + 1", "2 + 3"]),
        (["flatten", "linear", "relu", "linear", "relu"], ["1 + 2", "3 + 4"]),
        (["conv2d", "batch_norm", "relu"] * 3 + ["linear"], ["0 + 1 + 2", "3 + 4 + 5", "6 + 7 + 8"]),
        (["linear", "relu", "softmax"], []),
        (["linear", "relu", "dropout", "linear"], []),
    ],
)
def test_modules_that_take_turns_are_blocks_together(operators, blocks):
    assert repeated_blocks(model(*sequential(*operators))) == ([blocks] if blocks else [])


def test_blocks_differ_in_some_of_their_modules():
    # The first residual block of a stage has one module more; every other layer has experts.
    residual = [f"layer1.{block}.{part}" for block in (0, 1, 2) for part in ("conv1", "bn1", "conv2", "bn2")]
    blocks = ["layer1.0", "layer1.1", "layer1.2"]
    larger = model(
        *residual, "layer1.0.downsample.0", "layer1.0.downsample.1", calls=" ".join(["layer1", *blocks])
    )
    assert repeated_blocks(larger) == [blocks]
    shared = ("attention.q", "attention.k", "attention.v", "attention.o", "norm_1", "norm_2")
    dense = [*shared, "mlp.up", "mlp.down"]
    experts = [f"mlp.experts.{number}.{part}" for number in range(8) for part in ("up", "down")]
    expert = [*shared, "mlp.gate", *experts]
    layers = [f"layers.{number}.{part}" for number in range(4) for part in (dense, expert)[number % 2]]
    blocks = [f"layers.{number}" for number in range(4)]
    assert repeated_blocks(model(*layers, calls=" ".join(blocks))) == [blocks]


def test_a_layer_more_is_a_turn_more():
    # Five modules of 10 + 20; a turn is two of them.
    graph = model(*sequential("linear", "relu", "linear", "relu", "linear"), backward=True)
    assert simulate(graph).makespan_ns == 5 * 30
    add_layers(graph)
    assert simulate(graph).makespan_ns == 7 * 30
    forward = graph.select(phase="forward")
    assert forward.layer.tolist() == ["0", "1", "2", "3", "2", "3", "4"]
    assert "Added: 1 layer, copies of 2 + 3." in graph.facts.notes
    remove_layers(graph, layers="2 + 3")
    assert simulate(graph).makespan_ns == 3 * 30


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("MLP", [["0 + 1", "2 + 3", "4 + 5", "6 + 7", "8 + 9"]]),
        ("CNN", [["1", "2", "3"]]),
        ("GPT-64", [["blocks.0", "blocks.1", "blocks.2", "blocks.3"]]),
        ("LSTM", []),
    ],
)
def test_blocks_of_recorded_models(name, blocks):
    assert repeated_blocks(daydream.replay(RECORDED / f"{name}-1.parquet").graph) == blocks
