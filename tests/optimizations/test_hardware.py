"""Another GPU, CPU or host link: each answer worked out by hand."""

import pytest
from daydream.optimizations._hardware import MODEL_ERROR, cpu, gpu, pcie
from graph.small_graphs import kernels, put
from recorded import (
    Program,
    does_not_apply,
    kernel_ns,
    makespan,
    noted,
    refuses,
    thread_and_stream,
    wait_before,
)

from daydream import Graph, GraphError, NotApplicableError
from daydream.costs import find_device, under_load
from daydream.predict import graph_diff

MIB = 2**20
V100 = [{"id": 0, "name": "Tesla V100-SXM2-16GB", "multiprocessors": 80}]
BEGIN = 2 + 4


# CPU


def test_a_faster_cpu_shortens_work_and_pauses_but_no_waits():
    #  thread  |begin 0|launch 6|        sync 4, waits for the kernel|work 20|gap 10|work 20|
    #  stream           4|kernel 100|
    graph = thread_and_stream("k 100 forward")
    put(graph, "work", "thread 1", 20, gap_ns=10)
    put(graph, "work", "thread 1", 20)
    wait_before(graph, graph.select(name="work").first(), cost=4)
    assert makespan(graph) == 4 + 100 + 4 + 20 + 10 + 20
    cpu(graph, speedup=2)
    assert makespan(graph) == 4 + 100 + (4 + 20 + 10 + 20) / 2


def test_no_step_gains_more_than_its_cpu_does():
    #  three tasks of 300 ns with 10 ns between them: 1 ns each at the least, and never 0
    graph = Graph()
    for _ in range(3):
        put(graph, "work", "main", 300, gap_ns=10)
    cpu(graph, speedup=1000)
    assert makespan(graph) == 3 * 1 + 2 * 1


def test_cpus_that_are_no_question_are_refused():
    refuses("more than 0", cpu, Graph(), speedup=0)
    does_not_apply("as it is", cpu, thread_and_stream("k 5 forward"), speedup=1)
    does_not_apply("work on the CPU", cpu, Graph(), speedup=2)


# GPU


def v100_program():
    p = Program()
    p.op("aten::to", "data", ("Memcpy HtoD (Pinned -> Device)", 6_400))
    p.op("my::op", "forward", ("streaming", 905_000))
    p.op("my::op", "forward", ("sgemm", 905_000))
    return p


def products(*dtypes, device="Tesla V100-SXM2-16GB"):
    """Return products of unknown work, each of 905 us, by their names alone."""
    p = Program()
    for _ in dtypes:
        p.op("my::op", "forward", ("my_gemm", 905_000))
    graph = p.graph(devices=[{"id": 0, "name": device}])
    graph.select(name="my_gemm").set(dtype=list(dtypes))
    return graph


def test_kernels_of_unknown_work_go_with_the_bandwidth_or_the_peak():
    graph = v100_program().graph(devices=V100)
    graph.select(kind="memcpy").set(bytes=6_400 * 12)
    gpu(graph, to="h100")
    # 5,000 of each kernel are its fixed cost. V100 to H100: 900 to 3352 GB/s of memory, 16 to 64 GB/s
    # of PCIe, 15.7 to 66.9 TFLOP/s in 32 bits.
    streaming = round(5_000 + 900_000 * 900 / 3352)
    product = round(5_000 + 900_000 * 15.7 / 66.9)
    assert graph.select(on="gpu").duration_ns.tolist() == [6_400 * 16 / 64, streaming, product]
    assert makespan(graph) == BEGIN + 1_600 + streaming + product
    assert noted(graph, "From a V100 SXM2 to a H100 SXM")


def test_a_gpu_by_a_factor_leaves_the_link_alone():
    graph = v100_program().graph()
    gpu(graph, speedup=2)
    assert makespan(graph) == BEGIN + 6_400 + 905_000


def test_gpus_that_cannot_be_asked_for_are_refused():
    graph = v100_program().graph(devices=V100)
    with pytest.raises(GraphError, match="one of them"):
        gpu(graph)
    with pytest.raises(GraphError, match="one of them"):
        gpu(graph, to="h100", speedup=2)
    with pytest.raises(NotApplicableError, match="V100 SXM2 already"):
        gpu(graph, to="v100")
    with pytest.raises(NotApplicableError, match="unknown GPU"):
        gpu(graph, to="z9")
    with pytest.raises(NotApplicableError, match="as it is"):
        gpu(graph, speedup=1)
    with pytest.raises(GraphError, match="more than 0"):
        gpu(graph, speedup=0)
    with pytest.raises(NotApplicableError, match="does not name its GPU"):
        gpu(v100_program().graph(), to="h100")
    on_cpu = Program()
    on_cpu.op("aten::mm", "forward")
    with pytest.raises(NotApplicableError, match="recorded on a CPU"):
        gpu(on_cpu.graph(), to="h100")


A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]


@pytest.mark.parametrize(
    "kernel", ["ampere_bf16_s16816gemm_bf16_128x128", "void pytorch_fmha::fmha_fwd_loop_kernel<bf16>"]
)
def test_products_that_are_known_by_name_only_are_refused_alike(kernel):
    p = Program()
    p.op("my::op", "forward", (kernel, 10_000), dtype="bfloat16")
    for device in ("v100", "t4"):
        with pytest.raises(NotApplicableError, match="no bfloat16 units"):
            gpu(p.graph(devices=A100), to=device)


def test_products_of_unknown_type_may_be_in_the_type_of_other_16_bit_kernels():
    #  my_gemm  of unknown type, and a kernel in `beside`; from an A100, whose peaks of both types are alike,
    #  to an MI100, which has 184.6 TFLOP/s in float16 and 92.3 in bfloat16, or to a V100 without bfloat16
    def graph_with(beside):
        p = Program()
        p.op("my::op", "forward", ("my_gemm", 905_000))
        p.op("my::op", "forward", ("gelu", 905_000), dtype=beside)
        graph = p.graph(devices=A100)
        graph.select(name="my_gemm").set(dtype=None)
        return graph

    fixed, wide = 5_000, 900_000 * 19.5 / 46.1
    for beside, rate in (("float32", 184.6), ("float16", 184.6), ("bfloat16", 92.3)):
        graph = graph_with(beside)
        gpu(graph, to="mi100")
        sustained = under_load(find_device("a100-80gb"), find_device("mi100"))[0]
        middle = (round(fixed + wide) + round(fixed + 900_000 * 312 / (rate * sustained))) // 2
        assert graph.select(name="my_gemm").duration_ns.tolist() == [middle]
    with pytest.raises(NotApplicableError, match="no bfloat16 units"):
        gpu(graph_with("bfloat16"), to="v100")


def half_product_ns(here, there):
    graph = products("float16", device=here)
    gpu(graph, to=there)
    return graph


MI300X, MI355X = "AMD Instinct MI300X", "AMD Instinct MI355X"


def test_a_gpu_without_figures_of_its_own_sustains_what_others_of_its_vendor_do():
    # From an MI300X, which sustains 0.45 of 1307.4 TFLOP/s; NVIDIA's 0.93: of 989.4 on an H100, and so of
    # 312 on an A100. What the fixed cost is there is known of an H100 only.
    graph = half_product_ns(MI300X, "a100-80gb")
    new = 5_000 + 900_000 * 0.45 * 1307.4 / (0.93 * 312)
    assert kernel_ns(graph) == [round(new)]
    fixed = 5_000 * 1_400 / 5_000
    h100 = kernels(half_product_ns(MI300X, "h100")).duration_ns[0] - fixed
    assert (new - 5_000) / h100 == pytest.approx(989.4 / 312, rel=1e-4)
    (_, doubt), *_ = graph.doubted
    assert doubt.tolist() == [0.5]  # between other units; of this vendor's figures alone it would be 22%
    assert half_product_ns("NVIDIA H100 80GB HBM3", "h200").doubted == []  # of one design: by peaks


def test_a_card_that_the_slot_powers_holds_the_middle_of_its_base_and_boost_clocks():
    #  a T4 of 8.1 TFLOP/s at 1,590 MHz, whose base clock is 585 MHz: 0.61 of that
    graph = products("float32", device="Tesla V100-SXM2-16GB")
    gpu(graph, to="t4")
    assert kernel_ns(graph) == [pytest.approx(5_000 + 900_000 * 15.7 / (8.1 * 0.61))]


# Host link


def copies(*given):
    #  stream 4|copy|copy|kernel 1,000|
    work = [(name, ns, "forward") for name, _, ns in given]
    graph = thread_and_stream(*work, ("k", 1_000, "forward"))
    graph.select(kind="memcpy").set(bytes=[nbytes for _, nbytes, _ in given])
    return graph


PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"
BACK = "Memcpy DtoH (Device -> Pinned)"


def test_the_part_of_a_copy_that_is_on_the_link_changes():
    # The pinned copy goes at 8 GB/s; the pageable one takes twice its time on the link: half is staging.
    graph = copies((PINNED, 4 * MIB, 4 * MIB // 8), (PAGEABLE, 2 * MIB, 2 * MIB // 4))
    assert makespan(graph) == 4 + 4 * MIB / 8 + 2 * MIB / 4 + 1_000
    pcie(graph, bandwidth=16)
    assert makespan(graph) == 4 + 4 * MIB / 16 + (2 * MIB / 8 + 2 * MIB / 16) + 1_000


def test_each_direction_goes_from_its_own_rate():
    graph = copies((PINNED, 4 * MIB, 4 * MIB // 8), (BACK, 4 * MIB, 4 * MIB // 4))
    pcie(graph, bandwidth=16)
    assert graph.select(kind="memcpy").duration_ns.tolist() == [4 * MIB / 16, 4 * MIB / 16]


def test_links_that_are_no_question_are_refused():
    graph = copies((PINNED, 4 * MIB, 4 * MIB // 8))
    does_not_apply("8 GB/s already", pcie, graph, bandwidth=8)
    refuses("more than 0", pcie, graph, bandwidth=0)
    does_not_apply(
        "not known; give --recorded", pcie, copies((PAGEABLE, 2 * MIB, 2 * MIB // 4)), bandwidth=16
    )
    does_not_apply("copies between CPU and device", pcie, thread_and_stream("k 5 forward"), bandwidth=16)


def test_products_of_unknown_type_are_at_least_as_uncertain_as_other_kernels():
    assert graph_diff.MODEL_ERROR["kernels"] == MODEL_ERROR
