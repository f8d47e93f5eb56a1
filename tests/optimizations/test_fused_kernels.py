"""Fused norm, softmax, cross entropy, bias and activation: each answer worked out by hand."""

import pytest
from daydream.optimizations._fused_chains import (
    fused_bias_act,
    fused_cross_entropy,
    fused_norm,
    fused_softmax,
)
from graph.small_graphs import named, names
from recorded import (
    Program,
    kernel_names,
    kernel_ns,
    makespan,
)

from daydream.model.chains import backward_chains, find_chains

FLOOR = 5  # ns: what the tiny kernels below take
ROWS = [[256, 1024]]  # 262,144 floats: 1 MiB
MIB = 2**20


def calls(program, *work, phase="forward", shapes=None, sequence=None):
    """Record an operator with a kernel for each (name, time), or as `mm 50, add 9`; some are numbered."""
    if isinstance(work[0], str):
        work = [(name, int(time)) for name, time in map(str.split, work[0].split(", "))]
    for number, (name, time) in enumerate(work):
        program.op(f"aten::{name}", phase, (f"{name} kernel", time), shapes=shapes)
        if sequence is not None:
            program.rows[-3]["sequence"] = sequence + number  # the operator, before its launch and kernel


def node(program, name, sequence, *work, shapes=None):
    with program.range(name, "operator", phase="backward", sequence=sequence):
        calls(program, *work, phase="backward", shapes=shapes)


def graph_of(*work, **how):
    program = Program()
    calls(program, *work, **how)
    return program.graph()


def with_bandwidth(program):
    """Return the graph, after 8 MiB moved at 64 B/ns, which says how this device streams, and tiny work."""
    calls(program, ("relu", FLOOR + 8 * MIB // 64), phase="other", shapes=[[MIB]])
    calls(program, *[("nothing", FLOOR)] * 60, phase="other")
    return program.graph()


def cpu_graph(*work, phase="forward"):
    """Return a graph of operators on one thread: (name, time, untraced time behind)."""
    program = Program()
    for name, time, gap in work:
        program.row("operator", f"aten::{name}", program.now, time, phase=phase, op=f"aten::{name}", tid=1)
        program.now += time + gap
    return program.graph()


RMS = [("pow", 20), ("mean", 30), ("add", 10), ("rsqrt", 10), ("mul", 20), ("mul", 25)]


# Norms


def test_a_norm_of_known_size_moves_its_input_and_output_once():
    # 1 MiB read and 1 MiB written at 64 B/ns: 2 * 16,384 ns, behind the fixed cost of 5. The mean reads
    # 1 MiB in 5 + 16,384 ns: as fast as all streaming work.
    program = Program()
    times = [(name, FLOOR + MIB // 64 * (1 if name == "mean" else 2)) for name, _ in RMS]
    calls(program, *times, shapes=ROWS)
    graph = with_bandwidth(program)
    fused_norm(graph)
    assert named(graph, "fused norm").duration_ns.tolist() == [FLOOR + 2 * MIB // 64]


def test_the_residual_before_a_norm_is_no_part_of_it():
    graph = graph_of(("add", 9), *RMS)
    fused_norm(graph)
    assert kernel_names(graph) == ["add kernel", "fused norm"]


def test_backward_nodes_are_found_by_their_sequence_numbers():
    # forward pow 10 .. mul 15; their nodes run backwards, and one of another call stays as it is.
    program = Program()
    calls(program, "mm 9", sequence=9)
    calls(program, *RMS, sequence=10)
    node(program, "MulBackward0", 15, "mul 20, sum 30")
    node(program, "MulBackward0", 14, "mul 20")
    node(program, "MmBackward0", 9, "mm 18")
    graph = program.graph()
    chains = find_chains(graph, {"P": "pow|mean|add|rsqrt|mul"}, "P+")
    assert [group.name.tolist() for group in backward_chains(chains)] == [
        ["mul kernel", "sum kernel", "mul kernel"]
    ]
    fused_norm(graph)
    assert kernel_names(graph, phase="backward") == ["fused norm backward", "mm kernel"]
    assert named(graph, "fused norm backward").duration_ns.tolist() == [30]


@pytest.mark.parametrize("inside", ["mm", "all_reduce"])
def test_a_node_that_holds_a_product_or_a_collective_is_no_part_of_a_chain(inside):
    # The node has the number of an operator of the chain, and runs a custom function's whole backward pass.
    program = Program()
    calls(program, "mm 50, add 20, relu 30", shapes=ROWS, sequence=1)
    node(program, "MyFunctionBackward", 3, f"threshold 20, {inside} 40, mul 20", shapes=ROWS)
    graph = program.graph()
    if inside == "all_reduce":
        graph.select(name="all_reduce kernel").set(kind="collective")
    before = graph.select(phase="backward", kind=("kernel", "collective")).duration_ns.tolist()
    fused_bias_act(graph)
    after = graph.select(phase="backward", kind=("kernel", "collective")).duration_ns.tolist()
    assert before == after
    assert len(named(graph, "fused activation")) == 1


def test_on_a_cpu_operators_are_the_tasks():
    #  thread 1  |pow 20|3|mean 30|3|add 10|3|rsqrt 10|3|mul 20|3|mul 25|7|mm 50|  ->  |norm 30|7|mm 50|
    graph = cpu_graph(*[(name, time, 3) for name, time in RMS[:-1]], ("mul", 25, 7), ("mm", 50, 0))
    assert makespan(graph) == 115 + 5 * 3 + 7 + 50
    fused_norm(graph)
    assert makespan(graph) == 30 + 7 + 50


# Softmax


def test_scale_mask_and_softmax_become_one_kernel():
    #  stream 7  4|bmm 50|div 20|add 20|softmax 40|bmm 50|  ->  4|bmm 50|fused softmax 40|bmm 50|
    graph = graph_of("bmm 50, div 20, add 20, _softmax 40, bmm 50")
    fused_softmax(graph)
    assert kernel_ns(graph) == [50, 40, 50]
    assert makespan(graph) == 2 + 4 + 50 + 40 + 50


# Cross entropy


def test_a_loss_reads_its_logits_once_forward_and_once_backward():
    # Logits of 1 MiB. Forward they are read: 16,384 ns behind 5; backward read, and a gradient written.
    # The softmax moves 2 MiB in 5 + 32,768 ns, its gradient 3 in 5 + 49,152: 64 B/ns both.
    program = Program()
    one = MIB // 64
    calls(program, ("_log_softmax", FLOOR + 2 * one), sequence=5, shapes=ROWS)
    calls(program, ("nll_loss_forward", 100), sequence=6, shapes=[*ROWS, [256]])
    node(program, "NllLossBackward0", 6, ("nll_loss_backward", FLOOR + one), shapes=[[], *ROWS, [256]])
    node(program, "LogSoftmaxBackward0", 5, ("_log_softmax_backward_data", FLOOR + 3 * one), shapes=ROWS * 2)
    graph = with_bandwidth(program)
    fused_cross_entropy(graph)
    fused = graph.select(name="^fused")
    assert names(fused) == "fused cross entropy, fused cross entropy backward"
    assert fused.duration_ns.tolist() == [FLOOR + one, FLOOR + 2 * one]
    assert len(fused.launches()) == 2


# Bias and activation


def test_bias_and_activation_behind_a_product_become_one_kernel():
    #  stream 7  4|mm 50|add 20|relu 15|add 20|relu 15|  ->  4|mm 50|fused 20|add 20|relu 15|
    graph = graph_of("mm 50, add 20, relu 15, add 20, relu 15")
    fused_bias_act(graph)
    assert kernel_ns(graph) == [50, 20, 20, 15]
    assert makespan(graph) == 2 + 4 + 50 + 20 + 20 + 15


# Laws
