"""Costs of collectives: the formulas by hand, and what holds for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster
from daydream.costs.network.nccl import COLLECTIVES, Link, bytes_of_message, choose, ring_ns
from daydream.errors import DaydreamError


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
        ({**SWITCH, "gpus": 16, "nvls": 0, "ll128": True}, "all_reduce", 1e6, 16, "ring LL128",
         14_000 + 31 * 560 + 30.5 * 62_500 / 92),
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
        ({**SWITCH, "nodes": 2}, "all_reduce", 64e6, 16, "NVLS Simple",
         8_400 + 18_000 + 2 * 10_000 + 30 * 4e6 / 40),
    ],
)  # fmt: skip
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
    Cluster, st.just("any"), st.integers(1, 64), st.integers(1, 16),
    st.builds(Link, st.floats(0.1, 1e4), st.floats(0, 1e6)),
    st.builds(Link, st.floats(0.1, 1e4), st.floats(0, 1e6)), st.just("made up"),
    nvls=st.sampled_from([0, 0.8]), ll128=st.booleans(),
)  # fmt: skip


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds no table"),
        ("{}", "does not say gpus_per_node"),
        ('{"gpus_per_node": 2}', "no table 'intra'"),
        ('{"gpus_per_node": 2, "intra": {"bandwidth_gb_per_s": "fast"}}', "'fast'; a number is needed"),
        ('{"gpus_per_node": 2, "intra": {"bandwidth": 7}}', "unknown key 'bandwidth'"),
        ('{"gpus_per_node": 2, "gpu": 3}', "unknown key 'gpu'"),
        ('{"gpus_per_node": 2.5, "intra": {"bandwidth_gb_per_s": 1}}', "whole numbers"),
        ('{"gpus_per_node": 2, "intra": {"bandwidth_gb_per_s": -1}}', "a positive bandwidth"),
        ('{"gpus_per_node": 2, "nodes": 2, "intra": {"bandwidth_gb_per_s": 1}}', "no table 'inter'"),
    ],
)
def test_a_file_that_describes_none_is_refused(tmp_path, text, message):
    path = tmp_path / "lab.json"
    path.write_text(text)
    with pytest.raises(DaydreamError, match=message):
        find_cluster(str(path))


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DaydreamError, match="cannot read the cluster file"):
        find_cluster(str(tmp_path / "none.toml"))
