"""Fused kernels, fewer launches, restructured layers: each answer worked out by hand."""

import json

import pytest
from daydream.optimizations._fused_chains import (
    fused_bias_act,
    fused_cross_entropy,
    fused_norm,
)
from daydream.optimizations._launches import cuda_graphs, remove_sync
from daydream.optimizations._substitution import metaflow
from daydream.optimizations.compile import compile as compile_
from graph.small_graphs import kernels, named, names
from recorded import (
    Program,
    answers,
    does_not_apply,
    kernel_names,
    kernel_ns,
    makespan,
    refusals,
    thread_and_stream,
    wait_before,
)
from shared import shared_replay, shared_trace

import daydream
from daydream import GraphError, TraceError
from daydream.costs.device.fusion import fused_chain_ns
from daydream.graph.build import build


def cpu_graph(work):
    """Return a graph of operators on one thread, `NAME TIME UNTRACED, ...`."""
    program = Program()
    for name, time, gap in (
        (name, int(time), int(gap)) for name, time, gap in map(str.split, work.split(", "))
    ):
        program.row(
            "operator", f"aten::{name}", program.now, time, phase="forward", op=f"aten::{name}", tid=1
        )
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


def norm(*names):
    return graph_of(("mm", 9), *[(name, 10) for name in names], ("mm", 9))


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


# Laws


# CUDA graphs, removed synchronizations, compiled chains: each answer worked out by hand


RELU = "vectorized_elementwise_kernel relu"


def three_kernels(*, phase="forward"):
    #  thread    |launch 6|launch 6|launch 6|
    #  stream 7     4|a 2|   10|b 2|  16|c 2|
    graph = thread_and_stream(("a", 2, phase), ("b", 2, phase), ("c", 2, phase))
    assert makespan(graph) == 6 + 6 + 4 + 2
    return graph


def spaced():
    graph = three_kernels()
    kernels(graph).set(gap_ns=[5, 1, 0])
    return graph


def line(text):
    return thread_and_stream(text.replace("relu", RELU))


# CUDA graphs


def test_one_call_launches_the_whole_step():
    #  thread    |cudaGraphLaunch 10|        stream 7  4|a 2|b 2|c 2|
    graph = three_kernels()
    cuda_graphs(graph, launch_us=0.01)
    assert names(graph.select(kind="cpu")) == "begin, cudaGraphLaunch"
    assert makespan(graph) == max(10, 4 + 2 + 2 + 2)


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


def test_a_residual_network_restructures_the_norms_within_its_blocks():
    # ResNet-50 has 16 blocks of three convolutions, each but the last followed by norm and activation,
    # and one convolution before them: 33 of its 53 norms.
    replay = shared_replay("kineto/a100_resnet_ddp_rank0of2.json.gz")
    found = daydream.whatif(replay, "restructured-batchnorm")
    assert any(note.startswith("99 of 159 batch") for note in found.notes)
    assert 1 < found.speedup < 1.2


# MetaFlow


def layered(*layers, on_cpu=False):
    """Return a step of layers `name:time,time`: a kernel each, and one of twice the time backward."""
    program = Program()
    told = [(layer.split(":")[0], [int(time) for time in layer.split(":")[1].split(",")]) for layer in layers]
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


def test_a_table_names_layers_operators_and_kernels(tmp_path):
    # a forward 50 -> 25: backward 100 -> 50. The operator op1 of b: 10 -> 40 a call. The kernel of c 0: gone.
    table = tmp_path / "times.csv"
    table.write_text("name,us\na,0.025\naten::op1,0.04\nc,0\n")
    graph = layered("a:50", "b:60,10", "c:5")
    metaflow(graph, layers="*", times=str(table))
    assert forward_times(graph) == [25, 60, 40]
    assert forward_times(graph, "backward") == [120, 40, 50]
    table = tmp_path / "times.json"
    table.write_text(json.dumps({"kernel 1": 0.033}))
    graph = layered("a:50", "b:60,10")
    metaflow(graph, layers="b", times=str(table))
    assert forward_times(graph) == [50, 60, 33]


def test_a_table_of_other_names_and_one_that_is_not_there_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("name,us\nzzz,1\n")
    for name, error, words in (
        ("t.csv", GraphError, "no layer, operator or kernel 'zzz'"),
        ("no.csv", TraceError, "no such file"),
    ):
        with pytest.raises(error, match=words):
            metaflow(layered("a:50"), layers="a", times=str(tmp_path / name))


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


def test_the_norms_of_a_public_model_are_found():
    # Two in each of 24 layers, and one behind them; pow, mean, add, rsqrt, two products and two casts each.
    graph = build(daydream.load(shared_trace("kineto/h100_qwen_0.5b_inference.json.gz")))
    before = kernels(graph)
    fused_norm(graph)
    fused = named(graph, "fused norm")
    assert len(fused) == 49
    assert len(before) - len(kernels(graph)) == 49 * 7
    assert len(fused.launches()) == 49


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


test_what_is_fused_restructured_or_substituted = answers(
    globals(),
    {
        #  stream 7  4|bmm 50|div 20|add 20|softmax 40|bmm 50|  ->  4|bmm 50|fused softmax 40|bmm 50|
        "scale, mask and softmax become one kernel": (
            "graph_of 'bmm 50, div 20, add 20, _softmax 40, bmm 50'",
            "fused-softmax",
            "186 to 146, CPU 30, 3 launches: bmm kernel 50, fused softmax 40, bmm kernel 50",
        ),
        "bias and activation behind a product": (
            "graph_of 'mm 50, add 20, relu 15, add 20, relu 15'",
            "fused-bias-act",
            (
                "126 to 111, CPU 40, 4 launches: mm kernel 50, fused activation 20, add kernel 20, "
                "relu kernel 15"
            ),
        ),
        #  stream 7  4|mm 50|pow 20|mean 30|add 10|rsqrt 10|mul 20|mul 25|mm 50|  ->  4|mm 50|norm 30|mm 50|
        # Five calls of 2 + 6 + 2 ns go with their kernels, the first one stays.
        "a norm of unknown size takes as long as its longest part": (
            "graph_of 'mm 50, pow 20, mean 30, add 10, rsqrt 10, mul 20, mul 25, mm 50'",
            "fused-norm",
            "221 to 136, CPU 30, 3 launches: mm kernel 50, fused norm 30, mm kernel 50",
        ),
        "norm in 32 bits, as Llama's": (
            "norm _to_copy pow mean add rsqrt mul _to_copy mul",
            "fused-norm",
            "105 to 35, CPU 30, 3 launches: mm kernel 9, fused norm 10, mm kernel 9",
        ),
        "norm by its squares": (
            "norm mul mean add rsqrt mul mul",
            "fused-norm",
            "85 to 35, CPU 30, 3 launches: mm kernel 9, fused norm 10, mm kernel 9",
        ),
        "norm as it is defined": (
            "norm mean sub pow mean add sqrt div mul add",
            "fused-norm",
            "115 to 35, CPU 30, 3 launches: mm kernel 9, fused norm 10, mm kernel 9",
        ),
        "norm with the difference again": (
            "norm mean sub pow mean sub add sqrt div mul add",
            "fused-norm",
            "125 to 35, CPU 30, 3 launches: mm kernel 9, fused norm 10, mm kernel 9",
        ),
        "norm by variance": (
            "norm mean var sub add sqrt div mul add",
            "fused-norm",
            "105 to 35, CPU 30, 3 launches: mm kernel 9, fused norm 10, mm kernel 9",
        ),
        "norm by deviation": (
            "norm mean std sub mul add div add",
            "fused-norm",
            "95 to 35, CPU 30, 3 launches: mm kernel 9, fused norm 10, mm kernel 9",
        ),
        #  thread 1  |pow 20|3|mean 30|3|add 10|3|rsqrt 10|3|mul 20|3|mul 25|7|mm 50|  ->  |norm 30|7|mm 50|
        "on a CPU operators are the tasks": (
            "cpu_graph 'pow 20 3, mean 30 3, add 10 3, rsqrt 10 3, mul 20 3, mul 25 7, mm 50 0'",
            "fused-norm",
            "187 to 87, CPU 87, 0 launches: ",
        ),
        "nodes are no further apart than a graph has them": (
            "spaced",
            "cuda-graphs launch_us=0.001 node_us=0.003",
            "18 to 14, CPU 1, 1 launches: a 2, b 2, c 2",
        ),
        "a chain between products becomes its longest part": (
            "line 'gemm 50 forward, relu 20 forward, relu 30 forward, gemm 50 forward, relu 10 forward'",
            "compile",
            (
                "164 to 144, CPU 24, 4 launches: gemm 50, fused chain 30, gemm 50, "
                "vectorized_elementwise_kernel "
                "relu 10"
            ),
        ),
        #  stream 7  2+4|conv 50|norm 30|relu 20|conv 50|grad 100|relu grad 40|norm grad 60|grad 100|
        #        ->  2+4|conv 50|norm 15|conv 50|grad 100|norm grad 30|grad 100|
        "activations go and norms take half": (
            "convolutional convolution batch_norm relu_ convolution",
            "restructured-batchnorm",
            (
                "456 to 351, CPU 60, 6 launches: convolution kernel 50, batch_norm kernel 15, "
                "convolution kernel "
                "50, convolution grad 100, batch_norm grad 30, convolution grad 100"
            ),
            "1 of 1 batch",
        ),
        "the count of batches does not part a chain": (
            "convolutional convolution add_ batch_norm relu_ backward=False dtype=int64",
            "restructured-batchnorm",
            "116 to 81, CPU 30, 3 launches: convolution kernel 50, add_ kernel 10, batch_norm kernel 15",
        ),
        "without sequence numbers only the forward pass changes": (
            "convolutional convolution batch_norm relu_ sequences=False",
            "restructured-batchnorm",
            (
                "306 to 271, CPU 50, 5 launches: convolution kernel 50, batch_norm kernel 15, relu_ grad 40, "
                "batch_norm grad 60, convolution grad 100"
            ),
            "no sequence numbers",
        ),
        "missing kernels bring launches": (
            "layered a:50 b:7 c:30,20,10",
            "metaflow layers=a like=c",
            (
                "357 to 387, CPU 124, 14 launches: substitute 30, substitute 20, substitute 10, kernel 0 7, "
                "kernel 0 30, kernel 1 20, kernel 2 10, kernel 0 60, kernel 1 40, kernel 2 20, kernel 0 14, "
                "substitute 60, substitute 40, substitute 20"
            ),
        ),
        "every place is substituted": (
            "layered x.0.a:50 x.0.b:9 x.1.a:50 x.1.b:9 c:30",
            "metaflow layers=x.*.a like=c",
            (
                "450 to 330, CPU 100, 10 launches: substitute 30, kernel 0 9, substitute 30, kernel 0 "
                "9, kernel "
                "0 30, kernel 0 60, kernel 0 18, substitute 60, kernel 0 18, substitute 60"
            ),
        ),
        "many by as many": (
            "layered x.0.a:50 x.0.b:9 x.1.a:50 x.1.b:8",
            "metaflow layers=x.*.a like=x.*.b",
            (
                "357 to 114, CPU 80, 8 launches: substitute 9, kernel 0 9, substitute 8, kernel 0 8, "
                "kernel 0 "
                "16, substitute 16, kernel 0 18, substitute 18"
            ),
        ),
        "kernels that are too many go with their operators": (
            "layered a:50,10,10 c:30",
            "metaflow layers=a like=c factor=2",
            "306 to 276, CPU 40, 4 launches: substitute 60, kernel 0 30, kernel 0 60, substitute 120",
        ),
        "a factor alone": (
            "layered a:50 b:60",
            "metaflow layers=a factor=0.5",
            "336 to 261, CPU 40, 4 launches: kernel 0 25, kernel 0 60, kernel 0 120, kernel 0 50",
        ),
        #  |a 50|1|a 10|1|c 30|1|  backward |c 60|1|a 100|1|a 20|1|  ->  |30|1|c 30|1|c 60|1|60|1|
        "on a CPU operators are substituted": (
            "layered a:50,10 c:30 on_cpu=True",
            "metaflow layers=a like=c",
            "275 to 183, CPU 184, 0 launches: ",
        ),
    },
)

test_what_cannot_be_fused_or_substituted_is_refused = refusals(globals())
