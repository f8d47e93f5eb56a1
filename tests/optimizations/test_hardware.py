"""Other hardware and what counters decide: each answer worked out by hand."""

import numpy as np
import pytest
from daydream.optimizations._hardware import MODEL_ERROR, bank_conflicts, cpu, gpu, pcie, roofline
from daydream.optimizations.autocast import amp, autocast
from graph.small_graphs import kernels, put
from graph.small_traces import kernel, trace
from recorded import (
    Program,
    kernel_ns,
    makespan,
    noted,
    refusals,
    thread_and_stream,
    wait_before,
)

from daydream import Graph, NotApplicableError, build
from daydream.costs import bound, counted_kind, find_device, retime, under_load
from daydream.costs.device.retime import rule_of
from daydream.predict import graph_diff

# Another GPU, CPU or host link: each answer worked out by hand


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


A100 = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]


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
    (_, doubt, _), *_ = graph.doubted
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


def test_products_of_unknown_type_are_at_least_as_uncertain_as_other_kernels():
    assert graph_diff.MODEL_ERROR["kernels"] == MODEL_ERROR


def v100():
    return v100_program().graph(devices=V100)


def unknown():
    return v100_program().graph()


def on_cpu():
    program = Program()
    program.op("aten::mm", "forward")
    return program.graph()


def pinned():
    return copies((PINNED, 4 * MIB, 4 * MIB // 8))


def pageable():
    return copies((PAGEABLE, 2 * MIB, 2 * MIB // 4))


def counted(kind="none"):
    counts = {"none": None, "plain": at(0.5, 0.5), "zero": conflicts(0)}
    return build(recorded(("a", 100 * US, counts[kind]), ("b", 50 * US, None)))


# What counters decide: twelve kernels around the ridge by hand, and what each optimization makes of them


# An A100 SXM 80GB: 19,500 FLOP a ns in float32, 2,039 B a ns; the ridge is at 9.56 FLOP a byte.
FLOP_RATE, BANDWIDTH = 19_500, 2_039
US = 1_000


def recorded(*kernels, device="NVIDIA A100-SXM4-80GB"):
    """A trace of kernels (name, ns, counters or None), one after the other, all of float32."""
    rows, counters, end = [], [], 0
    for number, (name, ns, told) in enumerate(kernels):
        begin, end = end, end + ns
        rows.append(kernel(name, begin / US, end / US, number, dtype="float32", phase="forward"))
        if told is not None:
            counters.append(
                {
                    "name": name,
                    "rank": 0,
                    "correlation": number,
                    "flop": told.get("flop"),
                    "bytes": told.get("dram_bytes"),
                    "amounts": told,
                }
            )
    devices = [{"id": 0, "name": device, "multiprocessors": 108}]
    return trace(rows, steps=(0, end / US), notes=[], counters=counters, devices=devices)


def device_ns(kernels):
    """What they take together, without the starts that a recording without launches holds them to."""
    return int(kernels.duration_ns.sum())


def told(flop, nbytes):
    return {"flop": round(flop), "dram_bytes": round(nbytes)}


def at(arithmetic, memory, ns=100 * US):
    """Counters of a kernel that reaches these parts of both peaks."""
    return told(arithmetic * FLOP_RATE * ns, memory * BANDWIDTH * ns)


# Twelve families. 9.56 FLOP a byte divide them: there arithmetic takes as long as memory.
FAMILIES = [
    ("ampere_sgemm_128x64_tn", at(0.90, 0.20), "compute"),
    (
        "ampere_sgemm_32x32_sliced1x4_nn",
        at(0.20, 0.85),
        "memory",
    ),  # few rows: weights are read, not used twice
    ("cudnn::implicit_convolve_sgemm", at(0.75, 0.70), "compute"),
    ("cudnn::winograd_nonfused", at(0.62, 0.63), "memory"),
    ("vectorized_elementwise_kernel", at(0.02, 0.88), "memory"),
    ("elementwise_kernel", at(0.80, 0.30), "compute"),  # a long formula
    ("reduce_kernel", at(0.05, 0.60), "memory"),
    ("layer_norm_kernel", at(0.10, 0.70), "memory"),
    ("softmax_warp_forward", at(0.12, 0.15), "latency"),
    ("multi_tensor_apply_kernel", at(0.03, 0.90), "memory"),
    ("CatArrayBatchedCopy", at(0.0, 0.31), "memory"),
    ("indexSelectLargeIndex", at(0.001, 0.05), "latency"),
]


def families(*more):
    """Return a graph of the twelve, 100 us each, and of other kernels."""
    return build(recorded(*((name, 100 * US, counts) for name, counts, _ in FAMILIES), *more))


def test_twelve_families_are_classified_as_by_hand():
    graph = families(("tiny", 1_400, None))
    work = kernels(graph)
    assert bound(graph, work).kind.tolist() == [kind for *_, kind in FAMILIES] + ["latency"]
    assert rule_of(graph, work).tolist() == ["counters"] * 12 + ["names"]
    assert counted_kind(graph, work).tolist() == [kind for *_, kind in FAMILIES] + [None]


def test_the_papers_amp_goes_by_counters_and_says_so():
    gemm = "ampere_sgemm_128x64_tn"
    work = [
        (gemm, 120 * US, at(0.9, 0.1, 120 * US)),
        (gemm, 120 * US, at(0.1, 0.9, 120 * US)),
        (gemm, 120 * US, at(0.1, 0.1, 120 * US)),
        (gemm, 120 * US, None),
    ]
    graph = build(recorded(*work))
    amp(graph, model="paper")
    assert kernel_ns(graph) == [40 * US, 60 * US, 120 * US, 40 * US]
    assert noted(graph, "Counters contradict the names of 2 kernels, 50.0% of the time")


@pytest.mark.parametrize("change", [amp, autocast])
def test_16_bits_move_when_counters_contradict_names(change):
    #  made counters: the same product, whose name says arithmetic, moves bytes or waits
    found = {}
    for what, counts in (("compute", at(0.9, 0.1)), ("memory", at(0.1, 0.9)), ("latency", at(0.1, 0.1))):
        trace = recorded(("ampere_sgemm_128x64_tn", 100 * US, counts), ("tiny", 1_400, None))
        graph = build(trace)
        change(graph)
        found[what] = device_ns(graph.select(name="sgemm"))
        said = noted(graph, "Counters contradict the names of 1 kernel")
        assert said == (what != "compute")
    assert found["compute"] < found["memory"] < found["latency"]
    assert found["latency"] == 100 * US
    assert found["memory"] >= 50 * US  # half the bytes are no less than half the time


def conflicts(share):
    return {"shared_conflict_cycles": round(share * 108 * 1_000), "cycles": 1_000}


def test_bank_conflicts_take_their_share_of_the_cycles_by_hand():
    work = ("a", 100 * US, conflicts(0.25)), ("b", 50 * US, conflicts(0)), ("c", 50 * US, None)
    graph = build(recorded(*work))
    bank_conflicts(graph)
    assert kernel_ns(graph) == [75 * US, 50 * US, 50 * US]
    (note,) = [note for note in graph.facts.notes if note.startswith("Bank conflicts")]
    assert "0.025 ms of 1 kernels, 12.5% of the kernels' time" in note
    assert "1 kernels (25.0% of the time) have no counters" in note


def test_the_roofline_by_hand():
    work = [
        ("a", 100 * US, at(0.4, 0.1)),
        ("b", 100 * US, at(0.1, 0.9)),
        ("c", 100 * US, None),
        ("d", 100 * US, told(1_000, 1_000)),
        ("tiny", 2_000, None),
    ]
    graph = build(recorded(*work))
    roofline(graph, reach=0.8)
    a, b, c, d, tiny = kernel_ns(graph)
    assert a == 50 * US  # 0.4 of the peak becomes 0.8
    assert (b, c, tiny) == (100 * US, 100 * US, 2_000)  # better already, unknown, smallest
    assert 2_000 <= d < 25 * US  # the fixed cost of any kernel
    assert "Unknown, and left as they are: 2 (25.4%)" in graph.facts.notes[-1]


def test_the_range_covers_what_an_unknown_element_type_may_be():
    graph = products(None, "float32")
    open_type = graph.select(name="my_gemm").first()
    gpu(graph, to="h100")

    wide = 5_000 + 900_000 * 15.7 / 66.9
    in_half = products("float16")
    narrow = retime(in_half, in_half.select(name="my_gemm"), device="h100")
    middle = (round(wide) + int(narrow.duration_ns[0])) // 2
    assert open_type.duration_ns.tolist() == [middle]
    ((ids, error, _),) = graph.doubted
    assert ids.tolist() == open_type.ids.tolist()
    half = abs(wide - narrow.duration_ns[0]) / 2
    assert error[0] == pytest.approx(np.hypot(half / middle, 0.2), rel=1e-3)
    said = "Products of unknown element type take 50.0% of the kernels' time"
    assert noted(graph, said)


test_other_hardware_that_is_no_question_is_refused = refusals(globals())
