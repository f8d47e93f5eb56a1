"""What is computed: batch size, accumulation, checkpointing, fewer layers, each answer worked out by hand."""

import pytest
from daydream.optimizations._hardware import scale
from daydream.optimizations._layers import add_layers, remove_layers
from daydream.optimizations._optimizer import fused_adam
from daydream.optimizations._substitution import metaflow
from daydream.optimizations.batch_size import batch_size, sequence_length
from daydream.optimizations.checkpointing import checkpointing
from daydream.optimizations.gradient_accumulation import gradient_accumulation
from daydream.optimizations.pipeline import pipeline
from graph.small_graphs import put
from recorded import does_not_apply, makespan, refuses, thread_and_stream

from daydream import Graph, GraphError, NotApplicableError


def cpu_step(steps=1):
    #  main  |load 5|a 10|b 20|loss 3|b' 40|a' 30|optimizer 7|
    graph = Graph()
    for step in range(steps):
        for name, duration, phase, layer in (
            ("load", 5, "data", None),
            ("a forward", 10, "forward", "a"),
            ("b forward", 20, "forward", "b"),
            ("loss", 3, "loss", None),
            ("b backward", 40, "backward", "b"),
            ("a backward", 30, "backward", "a"),
            ("optimizer", 7, "optimizer", None),
        ):
            put(graph, name, "main", duration, phase=phase, layer=layer, step=step)
    return graph


PASSES = 10 + 20 + 3 + 40 + 30


# Gradient accumulation


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_accumulation_repeats_all_but_the_optimizer(steps):
    graph = cpu_step(2)
    gradient_accumulation(graph, batches=steps)
    assert makespan(graph) == 2 * (steps * (5 + PASSES) + 7)
    assert len(graph.select(phase="optimizer")) == 2


def test_gradients_are_reduced_once():
    graph = cpu_step()
    put(
        graph,
        "all-reduce",
        "link",
        100,
        phase="backward",
        step=0,
        collective="all_reduce",
        after=[graph.select(name="b backward")],
        before=[graph.select(name="optimizer")],
    )
    gradient_accumulation(graph)
    assert len(graph.select(kind="collective")) == 1
    # The all-reduce of the last batch runs beside `a backward` (30) and ends 100 behind `b backward`.
    assert makespan(graph) == 2 * 5 + PASSES + (10 + 20 + 3 + 40) + 100 + 7


def test_accumulation_needs_a_training_step():
    refuses("2 or more", gradient_accumulation, cpu_step(), batches=1)
    does_not_apply("backward", gradient_accumulation, thread_and_stream("f 50 forward"))
    does_not_apply("optimizer", gradient_accumulation, thread_and_stream("b 50 backward"))


# Checkpointing


# Fewer layers


@pytest.mark.parametrize("what", [checkpointing, remove_layers])
def test_layers_that_are_not_there_are_refused(what):
    with pytest.raises(NotApplicableError, match="layers 'c'"):
        what(cpu_step(), layers="c")


def test_checkpointing_needs_a_backward_pass():
    graph = cpu_step()
    graph.select(phase="backward").remove()
    does_not_apply("both forward and backward", checkpointing, graph)


# Batch size


@pytest.mark.parametrize("factor", [0.5, 2, 4])
def test_kernels_copies_and_loading_grow_with_the_batch_and_the_optimizer_stays(factor):
    #  thread  |load 100|launch 6|launch 6|launch 6|launch 6|
    #  stream           4|copy 40|f 80,000|b 80,000|optimizer 80,000|
    # All kernels are alike, so 5,000 of each, the most that can be, count as its fixed cost.
    graph = thread_and_stream(
        "Memcpy HtoD 40 forward, f 80000 forward, b 80000 backward, o 80000 optimizer",
    )  # fmt: skip
    graph.insert_before(graph.select(name="begin"), "load", duration_ns=100, phase="data")
    batch_size(graph, factor=factor)
    assert makespan(graph) == 100 * factor + 4 + 40 * factor + 2 * (5_000 + 75_000 * factor) + 80_000


def test_a_batch_that_is_no_question_is_refused():
    for what in (scale, batch_size):
        with pytest.raises(NotApplicableError, match="as it is"):
            what(cpu_step(), factor=1)
    refuses("more than 0", batch_size, cpu_step(), factor=0)
    does_not_apply("forward or backward", batch_size, thread_and_stream("o 20 optimizer"), factor=2)


# Values of options that make no sense are refused in a line that names the option


def two_blocks():
    #  main  |block 0 10|block 1 10|backward 20|optimizer 5|
    graph = Graph()
    for name, duration, phase, layer in (
        ("a", 10, "forward", "blocks.0"),
        ("b", 10, "forward", "blocks.1"),
        ("c", 20, "backward", "blocks.1"),
        ("d", 5, "optimizer", None),
    ):
        put(graph, name, "main", duration, phase=phase, layer=layer, step=0)
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
    does_not_apply(
        "a factor of 1 leaves the layers as they are", metaflow, two_blocks(), layers="blocks.*", factor=1.0
    )
