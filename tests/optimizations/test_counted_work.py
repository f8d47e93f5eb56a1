"""What counters decide: twelve kernels around the ridge by hand, and what each optimization makes of them.

The counters here are made: no public recording has a training trace and counters of it.
"""

import numpy as np
import pytest
from daydream.optimizations._hardware import bank_conflicts, roofline
from daydream.optimizations.autocast import amp, autocast
from graph.small_graphs import kernels
from recorded import kernel_ns, noted, refuses

from daydream import NotApplicableError, Trace, build
from daydream.costs import bound, counted_kind
from daydream.costs.device.retime import rule_of

# An A100 SXM 80GB: 19,500 FLOP a ns in float32, 2,039 B a ns; the ridge is at 9.56 FLOP a byte.
FLOP_RATE, BANDWIDTH = 19_500, 2_039
US = 1_000


def recorded(*kernels, device="NVIDIA A100-SXM4-80GB"):
    """A trace of kernels (name, ns, counters or None), one after the other, all of float32."""
    count, names = len(kernels), list(dict.fromkeys(name for name, _, _ in kernels))
    duration = np.array([ns for _, ns, _ in kernels])
    end = np.cumsum(duration)
    columns = {
        "kind": np.zeros(count, np.int32), "name": np.array([names.index(name) for name, *_ in kernels]),
        "start_ns": end - duration, "duration_ns": duration, "stream": np.full(count, 7),
        "step": np.zeros(count),
        "device": np.zeros(count), "correlation": np.arange(count), "dtype": np.zeros(count, np.int32),
        "phase": np.zeros(count, np.int32), "rank": np.zeros(count),
    }  # fmt: skip
    counters = [
        {"name": name, "rank": 0, "correlation": at, "flop": told.get("flop"),
         "bytes": told.get("dram_bytes"),
         "amounts": told}
        for at, (name, _, told) in enumerate(kernels) if told is not None
    ]  # fmt: skip
    metadata = {
        "notes": [], "counters": counters, "devices": [{"id": 0, "name": device, "multiprocessors": 108}],
        "steps": [{"name": "s", "start_ns": 0, "end_ns": int(end[-1]), "covered": True,
                   "measured_ns": int(end[-1])}],
    }  # fmt: skip
    columns = {name: np.asarray(values).astype(np.int64) if values.dtype == float else values
               for name, values in columns.items()}  # fmt: skip
    texts = {"kind": ["kernel"], "name": names, "dtype": ["float32"], "phase": ["forward"]}
    return Trace(columns, texts, metadata)


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
    work = [(gemm, 120 * US, at(0.9, 0.1, 120 * US)), (gemm, 120 * US, at(0.1, 0.9, 120 * US)),
               (gemm, 120 * US, at(0.1, 0.1, 120 * US)), (gemm, 120 * US, None)]  # fmt: skip
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


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (None, "no kernel has counters"), (at(0.5, 0.5), "no kernel has counters"),
        (conflicts(0), "have no bank conflicts"),
    ],
)  # fmt: skip
def test_without_conflict_counters_it_is_refused(counts, said):
    with pytest.raises(NotApplicableError, match=said):
        bank_conflicts(build(recorded(("a", 100 * US, counts), ("b", 50 * US, None))))


def test_the_roofline_by_hand():
    work = [("a", 100 * US, at(0.4, 0.1)), ("b", 100 * US, at(0.1, 0.9)), ("c", 100 * US, None),
               ("d", 100 * US, told(1_000, 1_000)), ("tiny", 2_000, None)]  # fmt: skip
    graph = build(recorded(*work))
    roofline(graph, reach=0.8)
    a, b, c, d, tiny = kernel_ns(graph)
    assert a == 50 * US  # 0.4 of the peak becomes 0.8
    assert (b, c, tiny) == (100 * US, 100 * US, 2_000)  # better already, unknown, smallest
    assert 2_000 <= d < 25 * US  # the fixed cost of any kernel
    assert "Unknown, and left as they are: 2 (25.4%)" in graph.facts.notes[-1]


@pytest.mark.parametrize("reach", [0, -1, 1.01, float("nan")])
def test_a_reach_is_a_part(reach):
    refuses("above 0 and at most 1", roofline, build(recorded(("a", 100, None))), reach=reach)
