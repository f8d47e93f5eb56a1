"""Times of collectives: by formula, fitted to a trace, simulated elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
from daydream.optimizations._hardware import collective_times
from graph.small_graphs import put
from graph.small_traces import collective, trace
from hypothesis import given
from hypothesis import strategies as st
from shared import TRACES, shared_trace

import daydream
from daydream import Graph, GraphError, simulate
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster
from daydream.costs.network.fitting import Measurement, calibrate, read_nccl_tests
from daydream.costs.network.nccl import COLLECTIVES, Link, bytes_of_message, choose, ring_ns
from daydream.costs.network.simulated_times import node_of
from daydream.costs.network.world_size import fitted_to_trace, measured_in
from daydream.errors import DaydreamError
from daydream.graph.tables import Lane

# Costs of collectives: the formulas by hand, and what holds for all of them


def lab(nodes=2, gpus=4, **switch):
    return Cluster("lab", nodes, gpus, Link(100.0, 1_000), Link(20.0, 10_000), "made up", **switch)


# -- times by hand ---------------------------------------------------------------------------------


def test_a_ring_passes_on_a_share_in_each_step():
    assert ring_ns(2, 8_000, 4, Link(10.0, 100.0)) == 6 * (2_000 / 10 + 100)
    assert ring_ns(1, 8_000, 4, Link(10.0, 100.0)) == 3 * 300


def test_an_all_gather_is_recorded_by_its_share():
    assert bytes_of_message("all_gather", 100, 8) == 800
    assert bytes_of_message("reduce_scatter", 800, 8) == 800


def test_one_member_takes_no_time():
    assert [lab().time_ns(collective, 8_000, 1) for collective in COLLECTIVES] == [0] * len(COLLECTIVES)


ACROSS = 2 * 1 * 10_000 + (14 - 2 + 1) * 1_000  # steps of an all-reduce of eight on two nodes
NODE = {"nodes": 1}
SWITCH = {"nodes": 1, "gpus": 8, "nvls": 0.8}


@pytest.mark.parametrize(
    ("machines", "collective", "nbytes", "members", "way", "expected"),
    [
        # six shares, and half a share taken over at the end
        (NODE, "all_reduce", 4e6, 4, "ring Simple", 8_400 + 7 * 1_000 + 6.5 * 1e6 / 100),
        (NODE, "all_reduce", 100, 4, "ring LL", 6_600 + 7 * 180 + 6 * 25 / 45),
        (
            {**SWITCH, "gpus": 16, "nvls": 0, "ll128": True},
            "all_reduce",
            1e6,
            16,
            "ring LL128",
            14_000 + 31 * 560 + 30.5 * 62_500 / 92,
        ),
        (NODE, "broadcast", 8e6, 4, "ring Simple", 8_400 + 3 * 1_000 + 8e6 / 100),
        (NODE, "gather", 8e6, 4, "ring Simple", 8_400 + 1_000 + 6e6 / 100),
        (NODE, "send", 8e6, 2, "ring Simple", 8_400 + 1_000 + 8e6 / 100),
        (NODE, "all_to_all", 8e6, 4, "ring Simple", 8_400 + 1_000 + 3.5 * 2e6 / 100),
        (NODE, "all_to_all", 8_000, 4, "ring LL", 6_600 + 180 + 3 * 2_000 / 45),
        # GPUs send their data once and get 1/8 of the sum, at 0.8 of 15/16 of the links
        (SWITCH, "all_reduce", 64e6, 8, "NVLS Simple", 8_400 + 18_000 + 9 * 8e6 / (100 * 0.8 * 0.94)),
        (SWITCH, "all_gather", 64e6, 8, "ring Simple", 8_400 + 8_000 + 7.5 * 8e6 / 100),
        # over nodes the ring is as fast as the way out, of which one GPU of a node has a quarter
        ({}, "all_reduce", 64e6, 8, "ring Simple", 8_400 + ACROSS + 14.5 * 8e6 / 20),
        ({}, "all_to_all", 64e6, 8, "ring Simple", 8_400 + 10_000 + 4 * 32e6 / 20),
        ({"nodes": 128}, "all_reduce", 100, 512, "tree LL", 6_800 + 2 * (3 * 180 + 7 * 3_600) + 200 / 4.8),
        (
            {**SWITCH, "nodes": 2},
            "all_reduce",
            64e6,
            16,
            "NVLS Simple",
            8_400 + 18_000 + 2 * 10_000 + 30 * 4e6 / 40,
        ),
    ],
)
def test_nccl_takes_the_fastest_way(machines, collective, nbytes, members, way, expected):
    found, chosen = choose(collective, nbytes, lab(**machines).group(nbytes, members))
    assert f"{chosen.algorithm} {chosen.protocol}" == way
    assert found == pytest.approx(expected)
    assert lab(**machines).time_ns(collective, nbytes, members) == round(found)


def test_a_group_of_one_gpu_a_node_leaves_the_others_their_share_of_the_way_out():
    alone = lab().time_ns("reduce_scatter", 64e6, 2, per_node=1)
    assert alone == round(8_400 + 10_000 + 1_000 + 1.5 * 32e6 / (20 / 4))


def test_one_member_a_node_gathers_along_trees():
    group = lab(nodes=64).group(1e6, 64, 1)
    found, way = choose("all_gather", 1e6, group)
    assert way.algorithm == "PAT"
    assert found == pytest.approx(8_000 + 6 * 2_900 + 64 * 2_800 + 63.5 * 1e6 / 64 / (5 * 0.75))


def test_a_barrier_is_the_least_all_reduce():
    assert lab().time_ns("barrier", 0) == lab().all_reduce_ns(4)


def test_a_hierarchical_all_reduce_goes_inside_across_and_back():
    inside, across = 2 * 3 * (2e6 / 100 + 1_000), 2 * (4e6 / 20 + 10_000)
    assert lab().hierarchical_all_reduce_ns(8e6) == inside + across + 3 * 8_400


def test_hierarchy_pays_where_the_way_out_is_narrow_and_the_cluster_says_what_it_is():
    ethernet = find_cluster("p3dn:4")
    assert ethernet.hierarchical_all_reduce_ns(100e6) < 1.3 * ethernet.all_reduce_ns(100e6)
    assert "p3dn, 4 nodes of 8 GPUs: 120 GB/s" in ethernet.describe()
    assert "not measured" in ethernet.describe()


# -- laws ------------------------------------------------------------------------------------------

collectives = st.sampled_from(COLLECTIVES)
clusters = st.builds(
    Cluster,
    st.just("any"),
    st.integers(1, 64),
    st.integers(1, 16),
    st.builds(Link, st.floats(0.1, 1e4), st.floats(0, 1e6)),
    st.builds(Link, st.floats(0.1, 1e4), st.floats(0, 1e6)),
    st.just("made up"),
    nvls=st.sampled_from([0, 0.8]),
    ll128=st.booleans(),
)


@given(clusters, collectives, st.integers(0, 10**10), st.floats(1, 100))
def test_more_bytes_are_never_faster(machines, collective, nbytes, factor):
    assert machines.time_ns(collective, nbytes) <= machines.time_ns(collective, nbytes * factor)


# -- what makes no sense ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lab().time_ns("all_sum", 1), "no cost is known for the collective 'all_sum'"),
        (lambda: lab().all_reduce_ns(1, 9), "9 GPUs do not fit. Name more nodes, as in lab:3"),
        (lambda: lab().all_reduce_ns(-1), "makes no sense"),
        (lambda: lab().time_ns("all_reduce", 1, 4, per_node=5), "makes no sense"),
        (lambda: Link(0.0), "a positive bandwidth"),
        (lambda: lab(nodes=0), "a whole number of 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(DaydreamError, match=message):
        call()


# -- names and files -------------------------------------------------------------------------------


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(DaydreamError, match="Did you mean 'dgx-a100'"):
        find_cluster("dgx-a10")


DESCRIPTION = """
nodes = 2
gpus_per_node = 4
[intra]
bandwidth_gb_per_s = 20
latency_us = 5
[inter]
bandwidth_gb_per_s = 12.5
"""


def test_a_file_describes_a_cluster(tmp_path):
    pytest.importorskip("tomllib", reason="TOML needs Python 3.11, or tomli")
    path = tmp_path / "lab.toml"
    path.write_text(DESCRIPTION)
    found = find_cluster(f"{path}:3")
    assert (found.name, found.nodes, found.gpus_per_node) == ("lab", 3, 4)
    assert (found.intra, found.inter) == (Link(20, 5_000), Link(12.5, 14_000))
    assert "description in lab.toml" in found.describe()


def test_so_does_json(tmp_path):
    path = tmp_path / "one.json"
    path.write_text('{"gpus_per_node": 2, "intra": {"bandwidth_gb_per_s": 7}}')
    assert find_cluster(str(path)).intra == Link(7, 3_400)


# Clusters fitted to measurements, and the tables of nccl-tests these come from


MB = 1 << 20
LOG = """\
# nThread 1 nGpus 3 minBytes 8 maxBytes 2048 step: 2(factor)
# Using devices
#  Rank  0 Group  0 Pid 1 on box device  0 [0x07] A GPU
#  Rank  1 Group  0 Pid 1 on box device  1 [0x0b] A GPU
#  Rank  2 Group  0 Pid 1 on box device  2 [0x48] A GPU
#
#                                                 out-of-place                in-place
#    size   count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
#     (B)  (elements)                   (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)
     1024     256  float    sum    -1  20.50   0.05   0.07      0  19.50   0.05   0.07    N/A
     2048     512  float    sum    -1  21.00   0.10   0.13      0  20.00   0.10   0.13    N/A
"""


def measured_lab(nodes=1):
    return Cluster("lab", nodes, 8, Link(50.0, 2_000), Link(10.0, 20_000), "as described")


def sweep(machines, members, sizes=range(1, 40)):
    times = [machines.time_ns("all_reduce", size * MB, members) for size in sizes]
    return [
        Measurement("all_reduce", size * MB, members, time) for size, time in zip(sizes, times, strict=True)
    ]


# -- links -----------------------------------------------------------------------------------------


def test_the_link_behind_a_clean_sweep_is_found():
    fitted = calibrate(
        find_cluster("pcie3"),
        sweep(measured_lab(), 2) + sweep(measured_lab(), 8),
        "a sweep",
    )
    assert fitted.intra.bandwidth == pytest.approx(50, rel=0.01)
    assert fitted.intra.latency_ns == pytest.approx(2_000, rel=0.05)
    assert "fitted to 78 measurements of 2, 8 GPUs in a sweep" in fitted.describe()


def test_a_way_out_is_fitted_to_groups_larger_than_a_node():
    truth = measured_lab(nodes=4)
    measured = [
        Measurement("reduce_scatter", size * MB, 32, truth.time_ns("reduce_scatter", size * MB))
        for size in (1, 16, 64)
    ]
    fitted = calibrate(replace(truth, inter=Link(1.0, 1.0)), measured, "a log")
    assert fitted.inter.bandwidth == pytest.approx(10, rel=0.001)
    assert fitted.inter.latency_ns == pytest.approx(20_000, rel=0.001)
    assert fitted.intra == truth.intra


def test_times_that_hold_waiting_bound_the_fit_from_above():
    truth = measured_lab()
    sizes = (2, 4, 8, 32)
    late = (1.0, 3.0, 1.0, 5.0)
    measured = [
        Measurement("all_reduce", size * MB, 8, factor * truth.all_reduce_ns(size * MB, 8))
        for size, factor in zip(sizes, late, strict=True)
    ]
    fitted = calibrate(truth, measured, "a trace", upper_bounds=True)
    assert all(fitted.all_reduce_ns(one.nbytes, 8) <= one.time_ns + 1 for one in measured)
    assert fitted.intra.bandwidth > 10


def test_nothing_to_learn_is_said():
    with pytest.raises(DaydreamError, match="holds no collective of two or more members"):
        calibrate(measured_lab(), [Measurement("all_reduce", MB, 1, 5.0)], "the log")


# -- traces ----------------------------------------------------------------------------------------


def test_a_rank_alone_gives_durations_and_several_the_time_from_the_last_arrival():
    alone = trace(collective(0, 100, 8 * MB), collective(200, 400, 8 * MB), world_size=2)
    assert [one.time_ns for one in measured_in(alone)] == [100_000, 200_000]

    both = trace(collective(0, 100, 8 * MB), collective(60, 101, 8 * MB, rank=1), world_size=2)
    assert measured_in(both) == [Measurement("all_reduce", 8 * MB, 2, 41_000)]


def test_a_trace_without_sizes_gives_none():
    unknown = trace(collective(0, 5, None), world_size=2)
    assert measured_in(unknown) == []
    with pytest.raises(DaydreamError, match="no collective of known operation"):
        fitted_to_trace(measured_lab(), unknown)


def test_a_real_trace_fits_below_all_its_all_reduces():
    real = daydream.load(shared_trace("kineto/a100_resnet_ddp_rank0of2.json.gz"))
    fitted = fitted_to_trace(find_cluster("dgx-a100"), real)
    long = [one for one in measured_in(real) if one.nbytes > MB]
    assert len(long) == 15
    assert all(fitted.all_reduce_ns(one.nbytes, 2) <= one.time_ns + 1 for one in long)


# -- nccl-tests ------------------------------------------------------------------------------------


def test_a_log_says_sizes_times_and_members(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(LOG)
    found = read_nccl_tests(path)
    assert {one.world_size for one in found} == {3}
    assert [(one.nbytes, one.time_ns) for one in found] == [
        (1024, 20_500),
        (1024, 19_500),
        (2048, 21_000),
        (2048, 20_000),
    ]


def test_members_are_told_by_bandwidths_where_no_ranks_are_listed(tmp_path):
    path = tmp_path / "allreduce.txt"
    path.write_text("size count time algbw busbw\n1048576 1 100 10.48 15.72\n")
    assert read_nccl_tests(path)[0].world_size == 4


# -- measured all-reduces of A100s -----------------------------------------------------------------


@pytest.mark.skipif(not (TRACES / "collectives").exists(), reason="the measured all-reduces are not at hand")
@pytest.mark.parametrize("fit", [True, False])
def test_all_reduces_of_four_gpus_are_predicted(fit):
    measured = {n: read_nccl_tests(TRACES / f"collectives/a100_allreduce_{n}gpus.csv") for n in (2, 4, 8)}
    model = find_cluster("dgx-a100")
    if fit:
        model = calibrate(model, measured[2] + measured[8], "2 and 8 GPUs")
    long = [one for one in measured[4] if one.nbytes >= 8e6]
    errors = np.array([model.all_reduce_ns(one.nbytes, 4) / one.time_ns - 1 for one in long])

    assert len(long) == 2 * 1017
    assert np.median(np.abs(errors)) <= 0.015
    assert np.abs(errors).max() <= 0.17


# Times of collectives from a network simulator: which they are, whose they are, what is refused


SIMULATED = "rank,node,duration_ns\n"


def log(*events):
    return "".join(
        f"[2026-01-01 00:00:00.000] [workload] [debug] {what},sys->id={rank}, tick={tick}, node->id={node}, "
        f"node->name={name}, node->type=7\n"
        for what, rank, tick, node, name in events
    )


def one_rank():
    #  stream 7  |k 10|      |end 5|        link  |all-reduce 40|all-gather 20|
    graph = Graph()
    k = put(graph, "k", "stream 7", 10)
    first = put(graph, "all-reduce", "link", 40, after=[k])
    second = put(graph, "all-gather", "link", 20)
    put(graph, "end", "stream 7", 5, after=[second])
    return graph, first.ids[0], second.ids[0]


def two_ranks():
    #  rank 0 stream   |k 10|arrive|      |all-reduce 40|
    #  rank 1 stream   |k 30       |arrive|all-reduce 40|
    graph = Graph()
    arrivals, transfers = [], []
    for rank, time in ((0, 10), (1, 30)):
        lane = f"rank {rank} stream 7"
        graph.add_lane(Lane(lane, rank=rank, on_device=True))
        graph.insert("k", kind="kernel", lane=lane, duration_ns=time)
        arrivals.append(graph.insert("arrival", kind="collective", lane=lane, duration_ns=0))
    hub = put(graph, "last arrival", "joined", 0, after=arrivals)
    for rank in (0, 1):
        lane = f"rank {rank} stream 7"
        transfers.append(
            graph.insert("all-reduce", kind="collective", lane=lane, duration_ns=40, after=[hub])
        )
    return graph, transfers[0].ids[0], transfers[1].ids[0]


def give(graph, folder, text):
    (folder / "times").write_text(text)
    collective_times(graph, collective_times=str(folder / "times"))


def test_a_table_gives_durations(tmp_path):
    graph, first, _ = one_rank()
    give(graph, tmp_path, f"{SIMULATED}0,{node_of(first)},100\n")
    assert simulate(graph).makespan_ns == 10 + 100 + 20 + 5
    assert any("1 of 2 collectives take" in note for note in graph.facts.notes)


def test_a_log_counts_from_the_last_rank_that_issues_to_the_last_that_is_done(tmp_path):
    #  one file used for two ranks: issued at 1,000 and 1,500, done at 1,700
    graph, first, _ = one_rank()
    node = node_of(first)
    text = log(
        ("issue", 0, 1_000, node, "all-reduce"),
        ("issue", 1, 1_500, node, "all-reduce"),
        ("callback", 0, 1_690, node, "all-reduce"),
        ("callback", 1, 1_700, node, "all-reduce"),
    )
    give(graph, tmp_path, "other lines\n" + text)
    assert simulate(graph).makespan_ns == 10 + 200 + 20 + 5


def test_waiting_for_a_peer_is_not_counted_as_transfer(tmp_path):
    #  rank 0 issues at 10 and waits for rank 1, which does at 30; both are done at 130
    graph, *tasks = two_ranks()
    nodes = [node_of(task) for task in tasks]
    text = log(
        ("issue", 0, 10, nodes[0], "all-reduce"),
        ("issue", 1, 30, nodes[1], "all-reduce"),
        ("callback", 0, 130, nodes[0], "all-reduce"),
        ("callback", 1, 130, nodes[1], "all-reduce"),
    )
    give(graph, tmp_path, text)
    assert [int(graph.columns["duration_ns"][task]) for task in tasks] == [100, 100]
    assert simulate(graph).makespan_ns == 30 + 100


def test_a_file_of_another_graph_is_refused(tmp_path):
    graph, first, _ = one_rank()
    with pytest.raises(GraphError, match="is no collective of this graph"):
        give(graph, tmp_path, f"{SIMULATED}0,{node_of(first) + 1},100\n")
    node = node_of(first)
    with pytest.raises(GraphError, match="no collective of this graph"):
        give(graph, tmp_path, log(("issue", 0, 1, node, "other"), ("callback", 0, 2, node, "other")))
