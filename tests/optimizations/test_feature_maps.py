"""vDNN and Gist: each answer worked out by hand."""

import pytest
from daydream.optimizations._offload import gist, vdnn
from graph.small_graphs import named
from recorded import Program, does_not_apply, makespan, refuses, thread_and_stream
from training_programs import times

from daydream import GraphError, NotApplicableError, simulate

INPUT = "10x100 8x100"  # 1,000 floats, 4,000 B


def convolutions(count=3, *, forward=50, backward=60, shapes=INPUT):
    program = Program()
    for number in range(count):
        program.op("aten::conv2d", "forward", (f"conv {number}", forward), shapes=shapes)
    for number in reversed(range(count)):
        with program.range("ConvolutionBackward0", "operator", phase="backward"):
            program.op("aten::convolution_backward", "backward", (f"grad {number}", backward))
    return program.graph()


def start(graph):
    timeline = simulate(graph)
    return dict(zip(timeline.column("name").tolist(), timeline.start_ns.tolist(), strict=True))


# vDNN


def test_copies_run_beside_their_layers_and_cost_nothing_where_they_fit():
    #  stream 7  6|conv 0 50|conv 1 50|conv 2 50|grad 2 60|grad 1 60|grad 0 60|
    #  offload     |0 40|   56|1 40|        prefetch 156|1 40| 216|0 40|
    # The first offload's launch follows conv 0's own, on the CPU: begun at 8, there 4 ns later.
    graph = convolutions()
    assert makespan(graph) == 6 + 3 * 50 + 3 * 60
    vdnn(graph, bandwidth=100.0)  # 4,000 B at 100 B/ns: 40 ns
    assert named(graph, "offload").duration_ns.tolist() == [40, 40]
    ran = times(graph)
    assert ran["offload"] == [(8 + 4, 52), (56, 96)]
    assert ran["prefetch"] == [(156, 196), (216, 256)]
    assert makespan(graph) == 6 + 3 * 50 + 3 * 60
    assert set(graph.select(kind="memcpy").lane) == {"vdnn offload", "vdnn prefetch"}
    assert graph.lint() == []


def test_a_layer_waits_for_the_copy_of_the_one_before_it():
    #  stream 7  6|conv 0 50|     92|conv 1 50|      172|conv 2 50|grad 2 60|    302|grad 1|    382|grad 0|
    #  offload     12|0 80      |92|1 80           |    prefetch 222|1 80     |302|0 80   |
    graph = convolutions()
    vdnn(graph, bandwidth=50.0)  # 80 ns
    begin = start(graph)
    assert [begin[f"conv {number}"] for number in range(3)] == [6, 92, 172]
    assert [begin[f"grad {number}"] for number in (2, 1, 0)] == [222, 302, 382]


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (lambda: convolutions(shapes=None), {"bandwidth": 1.0}, NotApplicableError, "record it with shapes"),
        (lambda: convolutions(1), {"bandwidth": 1.0}, NotApplicableError, "last one stays"),
        (convolutions, {}, NotApplicableError, "--bandwidth"),
        (convolutions, {"ahead": 0}, GraphError, "1 or more"),
        (convolutions, {"bandwidth": 0.0}, GraphError, "bandwidth must be above 0"),
        (lambda: thread_and_stream("gemm 5 forward"), {}, NotApplicableError, "no convolutions"),
    ],
)
def test_where_nothing_can_be_offloaded_it_says_why(graph, options, error, words):
    with pytest.raises(error, match=words):
        vdnn(graph(), **options)


# Gist


def activations(nodes=2, tiny=0):
    program = Program()
    for _ in range(2):
        program.op("aten::relu", "forward", ("relu", 40), shapes="1000x1000")
    for _ in range(nodes):
        with program.range("ReluBackward0", "operator", phase="backward"):
            program.op("aten::threshold_backward", "backward", ("grad", 60))
    for _ in range(80 if tiny else 0):
        program.op("aten::x", "other", ("tiny", tiny))
    return program.graph()


def test_a_kernel_as_short_as_any_is_all_fixed_cost():
    #  2+4|relu 40|encode 40|relu 40|encode 40|decode 40|grad 60|decode 40|grad 60|
    graph = activations()
    gist(graph, ratio=2.0)
    assert graph.select(name="^(encode|decode)$").duration_ns.tolist() == [40] * 4
    assert makespan(graph) == 6 + 2 * (40 + 40) + 2 * (40 + 60)
    assert len(graph.select(name="^(encode|decode)$").launches()) == 4


def test_layers_that_cannot_be_told_apart_are_refused():
    does_not_apply("which belongs to which", gist, activations(nodes=3))
    does_not_apply("no ReLU", gist, convolutions())
    refuses("1 or more", gist, activations(), ratio=0.5)
