"""vDNN and Gist: each answer worked out by hand."""

from __future__ import annotations

import pytest
from daydream.optimizations.gist import gist
from daydream.optimizations.vdnn import vdnn
from recorded import Program, thread_and_stream

from daydream import Graph, GraphError, NotApplicableError, simulate

INPUT = [[10, 100], [8, 100]]  # 1,000 floats, 4,000 B


def convolutions(count: int = 3, *, forward: int = 50, backward: int = 60, shapes=INPUT) -> Graph:
    program = Program()
    for number in range(count):
        program.op("aten::conv2d", "forward", (f"conv {number}", forward), shapes=shapes)
    for number in reversed(range(count)):
        with program.range("ConvolutionBackward0", "operator", phase="backward"):
            program.op("aten::convolution_backward", "backward", (f"grad {number}", backward))
    return program.graph()


def start(graph: Graph) -> dict[str, int]:
    timeline = simulate(graph)
    return dict(zip(timeline.column("name").tolist(), timeline.start_ns.tolist(), strict=True))


# vDNN


def test_copies_that_fit_beside_the_layers_cost_nothing():
    #  stream 7  2+4|conv 0 50|conv 1 50|conv 2 50|grad 2 60|grad 1 60|grad 0 60|
    #  offload             56|0 20|   106|1 20|      prefetch     216|1 20|  276|0 20|
    # The copies of layer 1 hold up conv 2 by nothing less than 20, as memory is freed before the next layer.
    graph = convolutions()
    assert simulate(graph).makespan_ns == 6 + 3 * 50 + 3 * 60
    vdnn(graph, bandwidth=200.0)  # 4,000 B at 200 B/ns: 20 ns
    assert graph.select(name="^offload$").duration_ns.tolist() == [20, 20]
    begin = start(graph)
    assert begin["conv 1"] == 6 + 50 + 20
    assert begin["conv 2"] == 6 + 50 + 20 + 50 + 20
    assert begin["grad 2"] == 6 + 3 * 50 + 40
    # Prefetched behind the kernel of the layer before, so the next one waits for the whole copy.
    assert begin["grad 1"] == begin["grad 2"] + 60 + 20
    assert begin["grad 0"] == begin["grad 1"] + 60 + 20
    assert set(graph.select(kind="memcpy").lane) == {"vdnn offload", "vdnn prefetch"}


def test_an_earlier_prefetch_does_not_stall():
    # Both feature maps are asked for when grad 2 has run: the second copy comes while grad 1 runs.
    graph = convolutions()
    vdnn(graph, bandwidth=200.0, ahead=2)
    begin = start(graph)
    assert begin["grad 1"] == begin["grad 2"] + 60 + 20
    assert begin["grad 0"] == begin["grad 1"] + 60


def test_more_bandwidth_is_never_slower_and_none_of_it_is_free():
    times = []
    for bandwidth in (10.0, 100.0, 1e3, 1e6):
        graph = convolutions()
        vdnn(graph, bandwidth=bandwidth)
        times.append(simulate(graph).makespan_ns)
    assert times == sorted(times, reverse=True)
    assert times[-1] == 6 + 3 * 50 + 3 * 60


def test_the_memory_saved_is_told():
    graph = convolutions(shapes=[[2**20, 2]])
    vdnn(graph, bandwidth=1e9)
    assert graph.facts.notes[-1].startswith("Up to 16 MiB")  # two maps of 2**21 floats


@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (lambda: convolutions(shapes=None), {"bandwidth": 1.0}, NotApplicableError, "record it with shapes"),
        (lambda: convolutions(1), {"bandwidth": 1.0}, NotApplicableError, "last one stays"),
        (convolutions, {}, NotApplicableError, "--bandwidth"),
        (convolutions, {"ahead": 0}, GraphError, "1 or more"),
        (lambda: thread_and_stream(("gemm", 5, "forward")), {}, NotApplicableError, "no convolutions"),
    ],
)
def test_where_nothing_can_be_offloaded_it_says_why(graph, options, error, words):
    with pytest.raises(error, match=words):
        vdnn(graph(), **options)


# Gist


def activations(nodes: int = 2, tiny: int = 0) -> Graph:
    program = Program()
    for _ in range(2):
        program.op("aten::relu", "forward", ("relu", 40), shapes=[[1000, 1000]])
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
    assert simulate(graph).makespan_ns == 6 + 2 * (40 + 40) + 2 * (40 + 60)
    assert len(graph.select(name="^(encode|decode)$").launches()) == 4


def test_a_trace_with_short_kernels_tells_the_fixed_cost():
    # Of 40 ns 4 are fixed; of the rest encoding to half the size moves 1.5 of 2 parts.
    graph = activations(tiny=4)
    gist(graph, ratio=2.0)
    assert set(graph.select(name="^(encode|decode)$").duration_ns.tolist()) == {4 + 36 * 3 // 4}
    # Two outputs of 4,000,000 B at half their size.
    assert graph.facts.notes[-1].startswith(f"Feature maps take {4_000_000 / 2**20:,.0f} MiB less")


def test_a_higher_ratio_is_never_slower():
    times = []
    for ratio in (1.0, 2.0, 8.0, 32.0):
        graph = activations(tiny=1)
        gist(graph, ratio=ratio)
        times.append(simulate(graph).makespan_ns)
    assert times == sorted(times, reverse=True)


def test_layers_that_cannot_be_told_apart_are_refused():
    with pytest.raises(NotApplicableError, match="which belongs to which"):
        gist(activations(nodes=3))
    with pytest.raises(NotApplicableError, match="no ReLU"):
        gist(convolutions())
    with pytest.raises(GraphError, match="1 or more"):
        gist(activations(), ratio=0.5)
