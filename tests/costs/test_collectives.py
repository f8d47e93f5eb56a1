"""Costs of collectives: the formulas by hand, and what holds for all of them."""

from functools import partial

import pytest
from hypothesis import strategies as st

from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import (
    COLLECTIVES,
    PROTOCOLS,
    Cluster,
    Link,
    bytes_of_message,
    chain_broadcast_ns,
    direct_all_to_all_ns,
    hierarchical_all_reduce_ns,
    hierarchical_all_to_all_ns,
    ring_ns,
)
from daydream.errors import DaydreamError

LINK = Link(10.0, 100.0)  # 10 bytes a ns, 100 ns a step
SIMPLE, LL = PROTOCOLS


def lab(nodes=2, gpus=4):
    return Cluster("lab", nodes, gpus, Link(100.0, 1_000), Link(20.0, 10_000), "made up")


# -- the formulas, written out ---------------------------------------------------------------------


def test_a_ring_passes_on_a_share_in_each_step():
    assert ring_ns(2, 8_000, 4, LINK) == 6 * (2_000 / 10 + 100)
    assert ring_ns(1, 8_000, 4, LINK) == 3 * 300


def test_broadcast_and_all_to_all():
    assert chain_broadcast_ns(8_000, 4, LINK) == 800 + 3 * 100
    assert direct_all_to_all_ns(8_000, 4, LINK) == 600 + 100


def test_a_hierarchical_all_reduce_goes_inside_across_and_back():
    inter = Link(2.0, 1_000.0)
    inside = 2 * 3 * (2_000 / 10 + 100)
    across = 2 * (4_000 / 2 + 1_000)
    assert hierarchical_all_reduce_ns(8_000, 4, 2, LINK, inter) == inside + across


def test_an_all_to_all_over_nodes_takes_what_its_slower_part_takes():
    leaving = 1 / 2 * 4 * 8_000 / 2 + 1_000
    assert hierarchical_all_to_all_ns(8_000, 4, 2, LINK, Link(2.0, 1_000.0)) == leaving
    inside = 3 / 8 * 8_000 / 10 + 100
    assert hierarchical_all_to_all_ns(8_000, 4, 2, LINK, Link(1e9, 0.0)) == inside


def test_one_member_takes_no_time():
    formulas = [partial(ring_ns, 2), partial(ring_ns, 1), chain_broadcast_ns, direct_all_to_all_ns]
    assert [formula(8_000, 1, LINK) for formula in formulas] == [0] * 4
    assert [lab().time_ns(collective, 8_000, 1) for collective in COLLECTIVES] == [0] * len(COLLECTIVES)


def test_an_all_gather_is_recorded_by_its_share():
    assert bytes_of_message("all_gather", 100, 8) == 800
    assert bytes_of_message("reduce_scatter", 800, 8) == 800


# -- a cluster -------------------------------------------------------------------------------------


def test_a_long_all_reduce_of_a_node_by_hand():
    moved = (6 + SIMPLE.tail) * 4e6 / 4 / 100  # six shares, and half a share taken over at the end
    assert lab().all_reduce_ns(4e6, 4) == round(SIMPLE.base_ns + 7 * 1_000 + moved)


def test_a_short_one_goes_by_the_protocol_of_low_latency():
    expected = LL.base_ns + 7 * 1_000 * LL.latency + 6 * 100 / 4 / 100 / LL.bandwidth
    assert lab().all_reduce_ns(100, 4) == round(expected)


def test_over_nodes_the_ring_is_as_fast_as_the_way_out():
    moved = (14 + SIMPLE.tail) * 64e6 / 8 / 20
    steps = 2 * 1 * 10_000 + (14 - 2 + 1) * 1_000
    assert lab().all_reduce_ns(64e6) == round(SIMPLE.base_ns + steps + moved)


def test_a_tree_takes_over_where_members_are_many():
    many = lab(nodes=128)
    depth = 2 * (3 * 1_000 + 7 * 10_000) * LL.latency
    assert many.all_reduce_ns(100) == round(LL.base_ns + depth + 2 * 100 / (0.9 * 20 * LL.bandwidth))


def test_a_group_of_one_gpu_a_node_leaves_the_others_their_share_of_the_way_out():
    alone = lab().time_ns("reduce_scatter", 64e6, 2, per_node=1)
    moved = (1 + SIMPLE.tail) * 64e6 / 2 / (20 / 4)
    assert alone == round(SIMPLE.base_ns + 10_000 + 1_000 + moved)


def test_a_barrier_is_the_least_all_reduce():
    assert lab().time_ns("barrier", 0) == lab().all_reduce_ns(4)


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
)  # fmt: skip


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
