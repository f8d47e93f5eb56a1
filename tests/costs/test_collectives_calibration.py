"""Clusters fitted to measurements, and the tables of nccl-tests these come from."""

from dataclasses import replace

import numpy as np
import pytest
from collective_traces import collective, trace_of
from shared import TRACES, shared_trace

import daydream
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.clusters import Cluster
from daydream.costs.network.fitting import Measurement, calibrate, read_nccl_tests
from daydream.costs.network.nccl import Link
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


# -- links -----------------------------------------------------------------------------------------


def test_the_link_behind_a_clean_sweep_is_found():
    fitted = calibrate(find_cluster("pcie3"), sweep(lab(), 2) + sweep(lab(), 8), "a sweep")
    assert fitted.intra.bandwidth == pytest.approx(50, rel=0.01)
    assert fitted.intra.latency_ns == pytest.approx(2_000, rel=0.05)
    assert "fitted to 78 measurements of 2, 8 GPUs in a sweep" in fitted.describe()


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
