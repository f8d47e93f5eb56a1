"""The roof of the L2 cache, by counters made for small kernels: rates and classes written out."""

import pytest
from graph.small_graphs import kernels
from shared import shared_trace
from test_counter_files import OPS, attached, long_table
from test_counters_on_traces import launches

import daydream
from daydream import build
from daydream.costs import bound
from daydream.costs.kernels import counted_tasks
from daydream.costs.workload.counters import LEAST_NS, reached_l2

H100 = "kineto/h100_vit_inference.json.gz"


@pytest.fixture
def counted(tmp_path):
    """Return a graph of the H100 trace, each kernel counted: 1 FLOP and 100 bytes of memory a ns."""

    def graph(l2_rate):
        path = shared_trace(H100)
        rows = [
            (name, blocks, {
                OPS.format("fadd"): ("inst", "0"), OPS.format("fmul"): ("inst", "0"),
                OPS.format("ffma"): ("inst", f"{ns / 2:.0f}"), "dram__bytes.sum": ("byte", f"{100 * ns}"),
                **({} if l2_rate is None else {"lts__t_bytes.sum": ("byte", f"{l2_rate(at, ns) * ns:.0f}")}),
            })
            for at, (name, blocks, ns) in enumerate(launches(daydream.load(path)))
        ]  # fmt: skip
        return build(attached(daydream.load(path), tmp_path, long_table(*rows)))

    return graph


def by_kind(graph):
    work = kernels(graph)
    kinds = bound(graph, work).kind
    both = counted_tasks(graph, work).all(axis=0)  # FLOP of products on tensor cores are not counted
    return work, kinds, both & (work.duration_ns >= LEAST_NS)


def test_a_kernel_that_l2_holds_up_is_bound_by_memory_and_not_by_latency(counted):
    _, kinds, long = by_kind(counted(None))
    assert set(kinds[long]) == {"latency"}  # 3 % of memory's bandwidth, no arithmetic to speak of
    graph = counted(lambda at, ns: 6_000)
    _, kinds, long = by_kind(graph)
    assert long.any()
    assert reached_l2(graph) == pytest.approx(6_000, rel=1e-3)
    assert set(kinds[long]) == {"memory"}


def test_roofline_leaves_kernels_at_the_roof_of_l2(counted):
    with pytest.raises(daydream.DaydreamError, match="reaches 1 of its bound already"):
        daydream.whatif(counted(lambda at, ns: 6_000), "roofline", reach=1.0)
    answer = daydream.whatif(counted(None), "roofline", reach=1.0)  # by memory alone 97 % could go
    assert answer.changed
