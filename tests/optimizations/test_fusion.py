"""Fused kernels, fewer launches, restructured layers: each answer worked out by hand."""

import json

import pytest
from daydream.optimizations._fused_chains import (
    fused_bias_act,
    fused_cross_entropy,
    fused_norm,
    fused_softmax,
)
from daydream.optimizations._kernels import restructured_batchnorm
from daydream.optimizations._launches import cuda_graphs, remove_sync
from daydream.optimizations._substitution import metaflow
from daydream.optimizations.compile import compile as compile_
from graph.small_graphs import kernels, named, names
from recorded import (
    Program,
    does_not_apply,
    kernel_names,
    kernel_ns,
    makespan,
    refuses,
    thread_and_stream,
    wait_before,
)
from shared import shared_replay, shared_trace

import daydream
from daydream import GraphError, NotApplicableError, TraceError
from daydream.costs.device.fusion import fused_chain_ns
from daydream.graph.build import build


def cpu_graph(*work, phase="forward"):
    """Return a graph of operators on one thread: (name, time, untraced time behind)."""
    program = Program()
    for name, time, gap in work:
        program.row("operator", f"aten::{name}", program.now, time, phase=phase, op=f"aten::{name}", tid=1)
        program.now += time + gap
    return program.graph()


# Fused norm, softmax, cross entropy, bias and activation: each answer worked out by hand


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


# CUDA graphs, removed synchronizations, compiled chains: each answer worked out by hand


RELU = "vectorized_elementwise_kernel relu"


def three_kernels(*, phase="forward"):
    #  thread    |launch 6|launch 6|launch 6|
    #  stream 7     4|a 2|   10|b 2|  16|c 2|
    graph = thread_and_stream(("a", 2, phase), ("b", 2, phase), ("c", 2, phase))
    assert makespan(graph) == 6 + 6 + 4 + 2
    return graph


# CUDA graphs


def test_one_call_launches_the_whole_step():
    #  thread    |cudaGraphLaunch 10|        stream 7  4|a 2|b 2|c 2|
    graph = three_kernels()
    cuda_graphs(graph, launch_us=0.01)
    assert names(graph.select(kind="cpu")) == "begin, cudaGraphLaunch"
    assert makespan(graph) == max(10, 4 + 2 + 2 + 2)


def test_nodes_are_no_further_apart_than_a_graph_has_them():
    graph = three_kernels()
    kernels(graph).set(gap_ns=[5, 1, 0])
    cuda_graphs(graph, launch_us=0.001, node_us=0.003)
    assert makespan(graph) == 4 + 2 + 3 + 2 + 1 + 2


def test_waits_between_streams_hold_inside_a_graph():
    #  thread    |launch a|launch b|launch c|        stream 7  |a|  |c|   stream 8  |b|
    #  b waits for a, c waits for b
    graph = three_kernels()
    a, b, c = (graph.select(name=f"^{name}$") for name in "abc")
    b.move("stream 8", follows=False, held_for=False)
    for source, mark, target in ((a, b, b), (b, c, c)):
        lanes = {"source": source, "target": target}
        numbers = {name: graph.columns["lane"][tasks.ids[0]] for name, tasks in lanes.items()}
        call = mark.launches().ids[0]
        graph.waits.add(record=call, wait=call, latency_ns=0, **numbers)
    b.set(duration_ns=50)
    assert makespan(graph) == 6 + 4 + 50 + 2
    cuda_graphs(graph, launch_us=0.001)
    assert makespan(graph) == 4 + 2 + 50 + 2


def test_pauses_and_calls_that_are_no_dispatch_stay():
    #  |launch a 6|2 ms pause|launch b 6|launch c: 3 ms, its module is loaded|
    graph = three_kernels()
    launches = kernels(graph).launches()
    graph.tasks(launches.ids[:1]).set(gap_ns=2_000_000)
    graph.tasks(launches.ids[2:]).set(duration_ns=3_000_000)
    cuda_graphs(graph, launch_us=0.001)
    thread = graph.select(kind="cpu")
    assert names(thread) == "begin, cudaGraphLaunch, first use"
    assert thread.total("duration_ns") + thread.total("gap_ns") == 1 + 2_000_000 + 3_000_000
    assert "5.00 ms per step of CPU time between captured launches stay" in graph.facts.notes[-1]


@pytest.mark.parametrize("options", [{"launch_us": -5.0}, {"node_us": -1.0}])
def test_times_below_zero_are_refused_by_name(options):
    refuses("launch_us and node_us must be 0 or more", cuda_graphs, three_kernels(), **options)


def test_what_runs_in_graphs_or_not_on_a_device_is_refused():
    graph = three_kernels()
    cuda_graphs(graph)
    does_not_apply("graphs already", cuda_graphs, graph)
    does_not_apply("forward or backward", cuda_graphs, three_kernels(phase="other"))


# Synchronization


def test_a_removed_wait_lets_the_thread_run_ahead():
    #  thread    |launch 6|waits until 34, 3|launch 6|     stream 7  4|a 30|  37+4|b 2|
    graph = thread_and_stream("a 30 forward, b 2 forward")
    wait_before(graph, named(graph, "b").launches(), "cudaStreamSynchronize", op="aten::item")
    assert makespan(graph) == 4 + 30 + 3 + 4 + 2
    remove_sync(graph, which="item")
    assert makespan(graph) == 4 + 30 + 2
    assert "aten::item 1" in graph.facts.notes[-1]


def test_waits_that_are_not_there_are_refused():
    graph = three_kernels()
    does_not_apply("wait for the device", remove_sync, graph)
    wait_before(graph, named(graph, "b").launches(), "cudaMalloc")
    does_not_apply("wait for the device", remove_sync, graph)  # memory is not allocated for being waited for
    wait_before(graph, named(graph, "c").launches(), "cudaDeviceSynchronize")
    does_not_apply("'item'", remove_sync, graph, which="item")


# Compiled chains


def test_a_chain_between_products_becomes_its_longest_part():
    #  stream 7  4|gemm 50|relu 20|relu 30|gemm 50|relu 10|  ->  4|gemm 50|chain 30|gemm 50|relu 10|
    graph = thread_and_stream(
        ("gemm", 50, "forward"), (RELU, 20, "forward"), (RELU, 30, "forward"), ("gemm", 50, "forward"),
        (RELU, 10, "forward"),
    )  # fmt: skip
    assert makespan(graph) == 4 + 50 + 20 + 30 + 50 + 10
    compile_(graph)
    assert makespan(graph) == 4 + 50 + 30 + 50 + 10
    assert len(named(graph, "launch")) == 4  # a launch went with the kernel


def test_a_chain_of_known_shapes_loses_the_traffic_of_its_intermediates():
    # relu reads and writes 1,000 floats: 8,000 B; add reads two of them and writes one: 12,000 B. Fused:
    # relu's input, the other summand and the sum are left, 12,000 of 20,000 B, of 50 + 50 ns above the
    # fixed cost, which is 5 ns: the smallest kernels of the trace take no longer.
    program = Program()
    program.op("aten::relu", "forward", (RELU, 55), shapes="1000")
    program.op("aten::add", "forward", ("vectorized_elementwise_kernel add", 55), shapes="1000 1000 -")
    for _ in range(40):
        program.op("aten::empty_kernel", "other", ("tiny", 5))
    graph = program.graph()
    chains = graph.select(kind="kernel", phase="forward").stretches(graph.select(name="tiny"), on_lane=True)
    assert fused_chain_ns(graph, chains).tolist() == pytest.approx([5 + 100 * 12_000 / 20_000])
    compile_(graph)
    assert kernel_ns(graph, phase="forward") == [65]
    assert set(graph.select(kind="cpu", phase="forward").op) == {"aten::relu"}


def test_no_chain_and_no_device_are_refused():
    does_not_apply(
        "follow each other",
        compile_,
        thread_and_stream(("gemm", 50, "forward"), (RELU, 20, "forward"), ("gemm", 50, "forward")),
    )
    does_not_apply("forward or backward pass", compile_, thread_and_stream("gemm 50 other"))
    does_not_apply(
        "compiled kernels already",
        compile_,
        thread_and_stream("triton_poi_fused_add_0 50 forward, gemm 9 forward, triton_x 9 loss"),
    )


def test_work_inside_replays_and_work_that_was_not_recorded_is_not_compiled():
    graph = three_kernels()
    cuda_graphs(graph)
    does_not_apply("inside CUDA graphs", compile_, graph)
    graph = three_kernels()
    kernels(graph).launches().set(name="cudaLaunchKernel")
    alone = graph.copy()
    work = kernels(alone)
    alone.write("alive", work.ids, False)
    does_not_apply("not recorded", compile_, alone)


def test_compiled_graphs_are_predicted_from_the_eager_passes():
    # A forward pass of 2.7 B parameters on an A100, recorded eager, and compiled with CUDA graphs: there
    # 781.05 to 781.10 ms a pass. The device is busy all the time, so the gain is fused traffic.
    replay = shared_replay("nsys/a100_gpt2.7b_forward_eager.sqlite.gz")
    both = daydream.whatif(replay, "compile+cuda-graphs")
    assert replay.measured_ns == pytest.approx(841e6, rel=0.001)
    assert both.predicted_ns == pytest.approx(781e6, rel=0.02)
    assert daydream.whatif(replay, "cuda-graphs").speedup == pytest.approx(1.0, abs=0.005)


# The word both are written in


# Restructured batch normalization and MetaFlow: each answer worked out by hand


# Batch normalization


def convolutional(*operators, backward=True, sequences=True, dtype="float32"):
    """Return a pass of convolutions 50, norms 30, activations 20, others 10; backward twice as long."""
    times = {"convolution": 50, "batch_norm": 30, "relu_": 20}
    nodes = {
        "convolution": "ConvolutionBackward0",
        "batch_norm": "NativeBatchNormBackward0",
        "relu_": "ReluBackward0",
    }
    program = Program()
    for number, name in enumerate(operators):
        kind = dtype if name == "add_" else "float32"
        program.op(f"aten::{name}", "forward", (f"{name} kernel", times.get(name, 10)), dtype=kind)
        if sequences:
            program.rows[-3]["sequence"] = number
    for number, name in reversed(list(enumerate(operators))) if backward else ():
        sequence = {"sequence": number} if sequences else {}
        with program.range(nodes.get(name, "AddBackward0"), "operator", phase="backward", **sequence):
            program.op(f"aten::{name}backward", "backward", (f"{name} grad", 2 * times.get(name, 10)))
    return program.graph()


def kernel_times(graph):
    work = kernels(graph)
    return {name: work.where(name=f"^{name}$").duration_ns.tolist() for name in sorted(set(work.name))}


def test_activations_go_and_norms_take_half():
    #  stream 7  2+4|conv 50|norm 30|relu 20|conv 50|grad 100|relu grad 40|norm grad 60|grad 100|
    #        ->  2+4|conv 50|norm 15|conv 50|grad 100|norm grad 30|grad 100|
    graph = convolutional("convolution", "batch_norm", "relu_", "convolution")
    assert makespan(graph) == 6 + 50 + 30 + 20 + 50 + 100 + 40 + 60 + 100
    restructured_batchnorm(graph)
    assert makespan(graph) == 6 + 50 + 15 + 50 + 100 + 30 + 100
    assert "relu_ kernel" not in kernel_times(graph)
    assert len(graph.select(kind="cpu", op="relu_")) == 0  # nor the CPU time of its operators
    assert graph.facts.notes[-1].startswith("1 of 1 batch")


def test_the_count_of_batches_does_not_part_a_chain_and_a_sum_does():
    graph = convolutional("convolution", "add_", "batch_norm", "relu_", backward=False, dtype="int64")
    restructured_batchnorm(graph)
    assert kernel_times(graph)["batch_norm kernel"] == [15]
    does_not_apply(
        "between a convolution and an activation",
        restructured_batchnorm,
        convolutional("convolution", "add_", "batch_norm", "relu_", backward=False),
    )


def test_without_sequence_numbers_only_the_forward_pass_changes():
    graph = convolutional("convolution", "batch_norm", "relu_", sequences=False)
    restructured_batchnorm(graph)
    times = kernel_times(graph)
    assert times["batch_norm kernel"] == [15]
    assert times["batch_norm grad"] == [60]
    assert times["relu_ grad"] == [40]
    assert "no sequence numbers" in graph.facts.notes[-1]


def test_traces_without_such_chains_are_refused():
    does_not_apply("no batch normalization", restructured_batchnorm, convolutional("convolution", "relu_"))
    does_not_apply("no operators", restructured_batchnorm, thread_and_stream("bn_fw 5 forward"))


def test_a_residual_network_restructures_the_norms_within_its_blocks():
    # ResNet-50 has 16 blocks of three convolutions, each but the last followed by norm and activation,
    # and one convolution before them: 33 of its 53 norms.
    replay = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz")
    found = daydream.whatif(replay, "restructured-batchnorm")
    assert any(note.startswith("99 of 159 batch") for note in found.notes)
    assert 1 < found.speedup < 1.2


# MetaFlow


def layered(*layers, on_cpu=False):
    """Return a step of layers `name=time,time`: a kernel each, and one of twice the time backward."""
    program = Program()
    told = [(layer.split("=")[0], [int(time) for time in layer.split("=")[1].split(",")]) for layer in layers]
    for phase, order, factor in (("forward", told, 1), ("backward", told[::-1], 2)):
        for layer, times in order:
            for number, time in enumerate(times):
                if on_cpu:
                    program.row(
                        "operator",
                        "aten::x",
                        program.now,
                        time * factor,
                        phase=phase,
                        op="aten::x",
                        layer=layer,
                    )
                    program.now += time * factor + 1
                else:
                    before = len(program.rows)
                    program.op(f"aten::op{number}", phase, (f"kernel {number}", time * factor))
                    for row in program.rows[before:]:
                        row["layer"] = layer
    return program.graph()


def forward_times(graph, phase="forward"):
    return kernel_ns(graph, phase=phase)


def test_missing_kernels_bring_launches():
    graph = layered("a=50", "b=7", "c=30,20,10")
    metaflow(graph, layers="a", like="c")
    assert forward_times(graph) == [30, 20, 10, 7, 30, 20, 10]
    assert len(named(graph, "launch")) == 4


def test_every_place_is_substituted_and_many_by_as_many():
    graph = layered("x.0.a=50", "x.0.b=9", "x.1.a=50", "x.1.b=9", "c=30")
    metaflow(graph, layers="x.*.a", like="c")
    assert forward_times(graph) == [30, 9, 30, 9, 30]
    graph = layered("x.0.a=50", "x.0.b=9", "x.1.a=50", "x.1.b=8")
    metaflow(graph, layers="x.*.a", like="x.*.b")
    assert forward_times(graph) == [9, 9, 8, 8]
    graph = layered("x.0.a=50", "b=1", "x.1.a=50", "b=2", "x.2.a=50", "c.0=8", "d=1", "c.1=9")
    refuses(r"in 3 places of a forward pass, 'c.\*' in 2", metaflow, graph, layers="x.*.a", like="c.*")


def test_a_table_names_layers_operators_and_kernels(tmp_path):
    # a forward 50 -> 25: backward 100 -> 50. The operator op1 of b: 10 -> 40 a call. The kernel of c 0: gone.
    table = tmp_path / "times.csv"
    table.write_text("name,us\na,0.025\naten::op1,0.04\nc,0\n")
    graph = layered("a=50", "b=60,10", "c=5")
    metaflow(graph, layers="*", times=str(table))
    assert forward_times(graph) == [25, 60, 40]
    assert forward_times(graph, "backward") == [120, 40, 50]
    table = tmp_path / "times.json"
    table.write_text(json.dumps({"kernel 1": 0.033}))
    graph = layered("a=50", "b=60,10")
    metaflow(graph, layers="b", times=str(table))
    assert forward_times(graph) == [50, 60, 33]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "layer,time\na,1\n", "it needs name and us"),
        ("t.csv", "name,us\na,soon\n", "needs microseconds"),
        ("t.csv", "name,us\n", "no times"),
        ("t.json", "[1]", "one JSON object"),
        ("t.json", "{", "not JSON"),
    ],
)
def test_tables_that_say_nothing_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=words):
        metaflow(layered("a=50"), layers="a", times=str(tmp_path / name))


def test_options_that_make_no_sense_are_refused(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,us\nzzz,1\n")
    for options, error, words in (
        ({"layers": "a"}, GraphError, "say what"),
        ({"layers": "a", "like": "b", "times": str(table)}, GraphError, "times alone"),
        ({"layers": "a", "factor": -1.0}, GraphError, "0 or more"),
        ({"layers": "a", "like": "[ab]"}, GraphError, "in common"),
        ({"layers": "a", "like": "z"}, NotApplicableError, "forward work of layers 'z'"),
        ({"layers": "z", "like": "a"}, NotApplicableError, "work of layers 'z'"),
        ({"layers": "a", "times": str(table)}, GraphError, "no layer, operator or kernel 'zzz'"),
        ({"layers": "a", "times": str(tmp_path / "no.csv")}, TraceError, "no such file"),
    ):
        with pytest.raises(error, match=words):
            metaflow(layered("a=50", "b=60"), **options)


def test_a_norm_of_unknown_size_takes_as_long_as_its_longest_part():
    #  stream 7  4|mm 50|pow 20|mean 30|add 10|rsqrt 10|mul 20|mul 25|mm 50|  ->  4|mm 50|norm 30|mm 50|
    graph = graph_of(("mm", 50), *RMS, ("mm", 50))
    assert makespan(graph) == 2 + 4 + 50 + 115 + 50
    fused_norm(graph)
    work = kernels(graph)
    assert names(work) == "mm kernel, fused norm, mm kernel"
    assert work.duration_ns.tolist() == [50, 30, 50]
    assert makespan(graph) == 2 + 4 + 50 + 30 + 50
    # Five calls of 2 + 6 + 2 ns went with their kernels, the first one stays.
    assert graph.select(kind="cpu").total("duration_ns") == 3 * 10


@pytest.mark.parametrize(
    "operators",
    [
        "_to_copy pow mean add rsqrt mul _to_copy mul",  # in 32 bits, Llama's
        "mul mean add rsqrt mul mul",
        "mean sub pow mean add sqrt div mul add",  # layer norm as it is defined
        "mean sub pow mean sub add sqrt div mul add",  # the difference again
        "mean var sub add sqrt div mul add",
        "mean std sub mul add div add",
    ],
)
def test_norms_are_recognized_as_people_write_them(operators):
    graph = graph_of(("mm", 9), *[(name, 10) for name in operators.split()], ("mm", 9))
    fused_norm(graph)
    assert kernel_names(graph) == ["mm kernel", "fused norm", "mm kernel"]


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


def test_a_chain_that_the_thread_waits_in_is_none():
    graph = graph_of("mm 50, add 20, relu 30", shapes=ROWS)
    wait_before(graph, graph.select(name="relu kernel").launches(), phase="forward")
    does_not_apply("activation", fused_bias_act, graph)


def test_on_a_cpu_operators_are_the_tasks():
    #  thread 1  |pow 20|3|mean 30|3|add 10|3|rsqrt 10|3|mul 20|3|mul 25|7|mm 50|  ->  |norm 30|7|mm 50|
    graph = cpu_graph(*[(name, time, 3) for name, time in RMS[:-1]], ("mul", 25, 7), ("mm", 50, 0))
    assert makespan(graph) == 115 + 5 * 3 + 7 + 50
    fused_norm(graph)
    assert makespan(graph) == 30 + 7 + 50


def test_the_norms_of_a_public_model_are_found():
    # Two in each of 24 layers, and one behind them; pow, mean, add, rsqrt, two products and two casts each.
    graph = build(daydream.load(shared_trace("kineto/h100_qwen_0.5b_inference.json.gz")))
    before = kernels(graph)
    fused_norm(graph)
    fused = named(graph, "fused norm")
    assert len(fused) == 49
    assert len(before) - len(kernels(graph)) == 49 * 7
    assert len(fused.launches()) == 49


def test_an_activation_behind_a_product_that_adds_the_bias_stays():
    does_not_apply("no separate bias", fused_bias_act, graph_of("addmm 50, relu 15"))
    does_not_apply("already", fused_bias_act, graph_of("_addmm_activation 50"))


@pytest.mark.parametrize(("runs", "refused"), [(1, True), (4, False)])
def test_programs_of_several_operators_are_compiled_by_xla_already(runs, refused):
    #  four kernels of one program, or a program each: `jax.jit` makes one of these
    program = Program()
    work = ["loop_add_fusion", "loop_tanh_fusion", "loop_sub_fusion", "loop_exp_fusion"]
    for number in range(runs):
        with program.range("GpuExecutable::ExecuteThunks"):
            for kernel in work[number::runs]:
                program.op(kernel, "forward", (f"vectorized_elementwise_kernel {kernel}", 20))
    graph = program.graph()
    if refused:
        does_not_apply("compiled kernels already", compile_, graph)
    else:
        compile_(graph)
        assert kernel_names(graph) == ["fused chain"]


def test_kernels_that_are_too_many_go_with_their_operators():
    graph = layered("a=50,10,10", "c=30")
    before = len(graph.select(kind="cpu"))
    metaflow(graph, layers="a", like="c", factor=2.0)
    assert forward_times(graph) == [60, 30]
    assert forward_times(graph, "backward") == [60, 120]
    # Of each removed operator a piece before its launch, the launch, a piece behind.
    assert len(graph.select(kind="cpu")) == before - 4 * 3


def test_a_factor_alone_is_the_same_kernels_for_other_sizes():
    graph = layered("a=50", "b=60")
    metaflow(graph, layers="a", factor=0.5)
    assert forward_times(graph) == [25, 60]


def test_on_a_cpu_operators_are_substituted():
    #  |a 50|1|a 10|1|c 30|1|  backward |c 60|1|a 100|1|a 20|1|  ->  |30|1|c 30|1|c 60|1|60|1|
    graph = layered("a=50,10", "c=30", on_cpu=True)
    before = makespan(graph)
    metaflow(graph, layers="a", like="c")
    assert graph.select(kind="cpu", layer="a").duration_ns.tolist() == [30, 60]
    assert before - makespan(graph) == (60 - 30 + 1) + (120 - 60 + 1)


def test_a_slow_reduction_stays_as_slow():
    # The mean reads its MiB in 5 + 65,536 ns, 16 B/ns: so does the fused kernel, 2 MiB in 131,072.
    program = Program()
    times = [(name, FLOOR + 4 * MIB // 64 if name == "mean" else FLOOR + 2 * MIB // 64) for name, _ in RMS]
    calls(program, *times, shapes=ROWS)
    graph = with_bandwidth(program)
    fused_norm(graph)
    assert named(graph, "fused norm").duration_ns.tolist() == [FLOOR + 2 * MIB // 16]


def test_what_lies_before_the_first_launch_and_behind_the_last_stays():
    graph = three_kernels()
    begin = graph.select(name="begin")
    begin.set(duration_ns=500, gap_ns=70)  # a loader's call
    graph.tasks(kernels(graph).launches().ids[2:]).set(gap_ns=800)
    cuda_graphs(graph, launch_us=0.001)
    thread = graph.select(kind="cpu")
    assert thread.total("duration_ns") + thread.total("gap_ns") == 500 + 70 + 1 + 800
