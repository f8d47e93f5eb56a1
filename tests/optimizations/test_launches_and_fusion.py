"""CUDA graphs, removed synchronizations, compiled chains: each answer worked out by hand."""

import pytest
from daydream.optimizations._launches import cuda_graphs, remove_sync
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
from shared import shared_replay

import daydream
from daydream.costs.device.fusion import fused_chain_ns

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
