"""Clusters fitted to measurements, and the tables of nccl-tests these come from."""

from dataclasses import replace

import pytest
from collective_traces import collective, trace_of
from hypothesis import given
from hypothesis import strategies as st
from shared import shared_trace

import daydream
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster, Link
from daydream.costs.network.fitting import Measurement, StepCurve, calibrate, read_nccl_tests
from daydream.costs.network.world_size import fitted_to_trace, measured_in
from daydream.errors import DaydreamError

MB = 1 << 20
HEADER = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
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


def lab(nodes=1):
    return Cluster("lab", nodes, 8, Link(50.0, 2_000), Link(10.0, 20_000), "as described")


def sweep(machines, members, sizes=range(1, 40)):
    times = [machines.time_ns("all_reduce", size * MB, members) for size in sizes]
    return [
        Measurement("all_reduce", size * MB, members, time) for size, time in zip(sizes, times, strict=True)
    ]


# -- curves ----------------------------------------------------------------------------------------


def test_measured_sizes_and_members_come_back_as_they_were():
    truth = lab()
    fitted = calibrate(find_cluster("pcie3"), sweep(truth, 2) + sweep(truth, 8), "a sweep")
    assert fitted.all_reduce_ns(16 * MB, 2) == truth.all_reduce_ns(16 * MB, 2)
    assert fitted.all_reduce_ns(16 * MB, 8) == truth.all_reduce_ns(16 * MB, 8)
    assert "fitted to 78 measurements of 2, 8 GPUs in a sweep" in fitted.describe()


@pytest.mark.parametrize("members", [3, 4, 5, 7])
def test_what_is_linear_in_the_steps_is_found_between_two_group_sizes(members):
    truth = lab()
    fitted = calibrate(find_cluster("pcie3"), sweep(truth, 2) + sweep(truth, 8), "a sweep")
    for size in (4, 10):
        assert fitted.all_reduce_ns(size * MB, members) == pytest.approx(
            truth.all_reduce_ns(size * MB, members), rel=0.001
        )


def test_a_time_that_falls_with_the_size_is_bounded_by_the_longer_message():
    curve = StepCurve.of(
        [Measurement("all_reduce", MB * n, 4, t) for n, t in ((1, 10), (2, 30), (3, 20))], lab()
    )
    assert curve.times_ns[0].tolist() == [10, 20, 20]


def test_beyond_the_ends_of_a_curve_the_last_slope_and_the_formula_go_on():
    truth = lab()
    fitted = calibrate(truth, sweep(truth, 4), "a sweep")
    assert fitted.all_reduce_ns(400 * MB, 4) == pytest.approx(truth.all_reduce_ns(400 * MB, 4), rel=0.001)
    assert fitted.all_reduce_ns(1000, 4) == pytest.approx(truth.all_reduce_ns(1000, 4), rel=0.001)
    assert fitted.all_reduce_ns(20 * MB, 8) == pytest.approx(truth.all_reduce_ns(20 * MB, 8), rel=0.01)


@given(st.lists(st.integers(1, 10**6), min_size=8, max_size=20), st.integers(2, 8), st.integers(0, 10**8))
def test_laws_hold_for_any_curve(times, members, nbytes):
    measured = [
        Measurement("all_reduce", (place + 1) * MB, size, time * (1 + size))
        for place, time in enumerate(times)
        for size in (2, 8)
    ]
    fitted = calibrate(lab(), measured, "anything")
    time = fitted.all_reduce_ns(nbytes, members)
    assert fitted.all_reduce_ns(nbytes + MB, members) >= time - 1
    assert fitted.scaled(bandwidth=2).all_reduce_ns(nbytes, members) <= time + 1
    assert fitted.scaled(bandwidth=1, latency=1).all_reduce_ns(nbytes, members) == time


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
    fitted = calibrate(truth, measured, "a trace", upper_bounds=True)
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


# -- nccl-tests ------------------------------------------------------------------------------------


def test_a_log_says_sizes_times_and_members(tmp_path):
    path = tmp_path / "all_reduce.log"
    path.write_text(LOG)
    found = read_nccl_tests(path)
    assert {one.world_size for one in found} == {3}
    assert [(one.nbytes, one.time_ns) for one in found] == [
        (1024, 20_500), (1024, 19_500), (2048, 21_000), (2048, 20_000),
    ]  # fmt: skip


def test_members_are_told_by_bandwidths_where_no_ranks_are_listed(tmp_path):
    path = tmp_path / "allreduce.txt"
    path.write_text("size count time algbw busbw\n1048576 1 100 10.48 15.72\n")
    assert read_nccl_tests(path)[0].world_size == 4


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.csv", "a,b\n1,2\n", "no table of nccl-tests"),
        ("x.csv", "", "no table of nccl-tests"),
        ("x.csv", HEADER, "no table of nccl-tests"),
        ("x.csv", HEADER + "1024,256,float,5000,1,6000,1\n", "which collective"),
        ("allreduce.csv", HEADER + "1024,256,float,5000,1,6000,1\n", "how many GPUs"),
        ("allreduce_2gpus.csv", HEADER + "0,0,float,0,1,0,1\n", "is 0"),
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DaydreamError, match=message):
        read_nccl_tests(path)


def test_binary_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(DaydreamError, match="is not text"):
        read_nccl_tests(path)
    with pytest.raises(DaydreamError, match="cannot read"):
        read_nccl_tests(tmp_path / "none.log")


# -- measured all-reduces of A100s -----------------------------------------------------------------
