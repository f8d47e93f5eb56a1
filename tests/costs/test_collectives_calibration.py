"""Clusters fitted to the collectives of a trace, and described ones against measured all-reduces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collective_traces import collective, trace_of
from shared import TRACES, shared_trace

import daydream
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster, Link
from daydream.costs.network.world_size import Measurement, calibrate, fitted_to_trace, measured_in
from daydream.errors import DaydreamError

MB = 1 << 20


def lab(nodes: int = 1) -> Cluster:
    return Cluster("lab", nodes, 8, Link(50.0, 2_000), Link(10.0, 20_000), "as described")


# -- a few sizes -----------------------------------------------------------------------------------


def test_a_way_out_is_fitted_to_groups_larger_than_a_node():
    truth = lab(nodes=4)
    measured = [
        Measurement("reduce_scatter", size * MB, 32, truth.time_ns("reduce_scatter", size * MB))
        for size in (1, 16, 64)
    ]
    fitted = calibrate(replace(truth, inter=Link(1.0, 1.0)), measured, "a log")
    assert fitted.inter.bandwidth == pytest.approx(10, rel=0.001)
    assert fitted.inter.latency_ns == pytest.approx(20_000, rel=0.001)
    assert fitted.intra == truth.intra


def test_times_that_hold_waiting_bound_the_fit_from_above():
    truth = lab()
    sizes = (2, 4, 8, 32)
    late = (1.0, 3.0, 1.0, 5.0)
    measured = [
        Measurement("all_reduce", size * MB, 8, factor * truth.all_reduce_ns(size * MB, 8))
        for size, factor in zip(sizes, late, strict=True)
    ]
    fitted = calibrate(truth, measured, "a trace")
    assert all(fitted.all_reduce_ns(one.nbytes, 8) <= one.time_ns + 1 for one in measured)
    assert fitted.intra.bandwidth > 10


def test_nothing_to_learn_is_said():
    with pytest.raises(DaydreamError, match="holds no collective of two or more members"):
        calibrate(lab(), [Measurement("all_reduce", MB, 1, 5.0)], "the log")


# -- traces ----------------------------------------------------------------------------------------


def test_a_rank_alone_gives_durations_and_several_the_time_from_the_last_arrival():
    alone = trace_of(collective(0, 100, 8 * MB), collective(200, 400, 8 * MB), world_size=2)
    assert [one.time_ns for one in measured_in(alone)] == [100_000, 200_000]

    both = trace_of(collective(0, 100, 8 * MB), collective(60, 101, 8 * MB, rank=1), world_size=2)
    assert measured_in(both) == [Measurement("all_reduce", 8 * MB, 2, 41_000)]


def test_the_members_of_a_group_count_not_the_world():
    groups = [{"name": "tp", "ranks": [0, 1]}]
    found = trace_of(collective(0, 100, MB, group="tp"), world_size=16, groups=groups)
    assert [one.world_size for one in measured_in(found)] == [2]


def test_a_trace_without_sizes_gives_none():
    unknown = trace_of(collective(0, 5, None), world_size=2)
    assert measured_in(unknown) == []
    with pytest.raises(DaydreamError, match="no collective of known operation"):
        fitted_to_trace(lab(), unknown)


def test_a_real_trace_fits_below_all_its_all_reduces():
    real = daydream.load(shared_trace("kineto/a100_resnet_ddp_rank0of2.json.gz"))
    fitted = fitted_to_trace(find_cluster("dgx-a100"), real)
    long = [one for one in measured_in(real) if one.nbytes > MB]
    assert len(long) == 15
    assert all(fitted.all_reduce_ns(one.nbytes, 2) <= one.time_ns + 1 for one in long)


# -- measured all-reduces of A100s -----------------------------------------------------------------


@pytest.mark.skipif(not (TRACES / "collectives").exists(), reason="the measured all-reduces are not at hand")
def test_all_reduces_of_four_gpus_are_predicted():
    # size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s): what nccl-tests prints, both runs
    rows = np.loadtxt(
        TRACES / "collectives/a100_allreduce_4gpus.csv", delimiter=",", skiprows=1, usecols=(0, 3, 5)
    )
    long = rows[rows[:, 0] >= 8e6]
    predicted = np.array([find_cluster("dgx-a100").all_reduce_ns(size, 4) for size in long[:, 0]])

    assert len(long) == 1017
    assert np.abs(predicted[:, None] / long[:, 1:] - 1).max() <= 0.25
