"""`daydream scaling`: the table, `--json`, plots, wrong options; and what the numbers must obey."""

import pytest
from graph.small_traces import call, launched, op, trace
from view_text import view_text

import daydream
from daydream import GraphError, NotApplicableError
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.world_size import fitted_to_trace

TRACE = ("--trace", "step.parquet", "--gradient-mb", "10")


def one_gpu(steps=6):
    #  thread 1  |launch 5|launch 5|AccumulateGrad|  ...   |optimizer|
    #  stream 7     |forward 30|backward 50        |          |update 10|     a step of 100
    rows = []
    for n in range(steps):
        at, first = 100 * n, 10 * n
        rows += [op("aten::mm", at, at + 8, phase="forward", op="aten::mm")]
        rows += launched("forward", at + 1, at + 6, at + 36, first + 1, phase="forward", op="aten::mm")
        rows += [op("MmBackward0", at + 10, at + 18, phase="backward", op="MmBackward0")]
        rows += launched("backward", at + 11, at + 37, at + 80, first + 2, phase="backward", op="MmBackward0")
        rows += [op(
            "torch::autograd::AccumulateGrad", at + 20, at + 22, phase="backward",
            op="torch::autograd::AccumulateGrad", shapes="[[1024, 1024]]", dtype="float32",
        )]  # fmt: skip
        rows += [op("Optimizer.step", at + 30, at + 40, phase="optimizer", op="Optimizer.step")]
        rows += launched(
            "update", at + 31, at + 82, at + 92, first + 3, phase="optimizer", op="Optimizer.step"
        )
    return trace(rows, steps=tuple(100.0 * n for n in range(steps + 1)), device_name="NVIDIA A100-SXM4-40GB")


def one_of_four(steps=6, **metadata):
    #  thread 1  |launch 5|launch 5|sync ..................... 2|data 12|
    #  stream 7       |work 50           |all-reduce 30        |             a step of 100
    rows = []
    for n in range(steps):
        at, first = 100 * n, 10 * n
        rows += launched("work", at, at + 6, at + 56, first + 1, phase="backward")
        rows += launched(
            "ncclAllReduce", at + 5, at + 56, at + 86, first + 2, phase="backward", kind="collective",
            collective="all_reduce", bytes=4_000_000, stream=7,
        )  # fmt: skip
        rows += [call("cudaDeviceSynchronize", at + 10, at + 88, first + 3), op("data", at + 88, at + 100)]
    return trace(rows, steps=tuple(100.0 * n for n in range(steps + 1)), **metadata)


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(one_gpu())


def test_a_step_is_that_of_ddp_and_its_parts_add_up(replay):
    found = daydream.scaling(replay, [1, 2, 8, 64], cluster="dgx-a100")

    for row in found.rows[1:]:
        alone = daydream.whatif(replay, "ddp", workers=row.workers, cluster="dgx-a100")
        assert row.step_ns == alone.predicted_ns
        assert row.step_ns == found.alone_ns + row.overhead_ns + row.exposed_ns + row.waiting_ns
        transfer = find_cluster("dgx-a100").holding(row.workers).all_reduce_ns(4 * 1024**2, row.workers)
        assert row.communication_ns == transfer
        assert row.throughput == row.workers * row.efficiency
    one = found.rows[0]
    assert (one.step_ns, one.efficiency, one.lost_to) == (found.alone_ns, 1.0, None)
    assert [row.nodes for row in found.rows] == [None, 1, 1, 8]


def test_one_straggler_is_what_all_wait_for(replay):
    found = daydream.scaling(replay, [1, 2, 1024], bandwidth=1e12, straggler=2.0)

    assert found.rows[0].waiting_ns == 0
    for row in found.rows[1:]:  # everything takes twice as long but the transfer, which takes nothing
        without_waiting = row.step_ns - row.waiting_ns
        assert row.step_ns == pytest.approx(2 * without_waiting, rel=0.02)
        assert row.lost_to == "slower workers"


def test_recorded_collectives_are_resized():
    before = daydream.replay(one_of_four(world_size=4)).recording
    found = daydream.scaling(before, [1, 2, 4, 8, 64], cluster="dgx-a100")
    rows = {row.workers: row for row in found.rows}

    assert found.recorded_workers == 4
    # All of the 30 us is exposed: with one worker there is no transfer, with four it is as recorded.
    assert rows[1].step_ns == found.alone_ns == before.replayed_ns - 30_000
    assert (rows[4].step_ns, rows[4].exposed_ns) == (before.replayed_ns, 30_000)
    fitted = fitted_to_trace(find_cluster("dgx-a100:8"), before.graph.trace)
    for workers, row in rows.items():
        if workers > 1:
            more = fitted.all_reduce_ns(4_000_000, workers) - fitted.all_reduce_ns(4_000_000, 4)
            assert row.exposed_ns == pytest.approx(30_000 + more, rel=0.001)
    efficiency = [row.efficiency for row in found.rows]
    assert efficiency == sorted(efficiency, reverse=True)
    assert found.rows[-1].lost_to in {"network latency", "intra-node bandwidth", "inter-node bandwidth"}


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"bandwidth": 10.0}, GraphError, "bandwidth has no meaning"),
        ({"bucket_mb": 1.0}, GraphError, "bucket_mb has no meaning"),
    ],
)
def test_options_of_ddp_mean_nothing_to_recorded_collectives(options, error, said):
    with pytest.raises(error, match=said):
        daydream.scaling(one_of_four(world_size=4), [2], **options)


def test_collectives_of_an_unknown_number_of_workers():
    with pytest.raises(NotApplicableError, match="does not say of how many workers"):
        daydream.scaling(one_of_four(), [2], cluster="p3")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": []}, "workers are whole numbers"),
        ({"workers": [0]}, "workers are whole numbers"),
        ({"workers": [2.5]}, "workers are whole numbers"),
        ({"workers": [2], "jitter": -0.1}, "jitter"),
        ({"workers": [2], "straggler": 0.5}, "straggler"),
        ({"workers": [2], "bandwidth": -1.0}, "bandwidth must be above 0"),
        ({"workers": [2], "buckets": 3}, "no option 'buckets'"),
    ],
)
def test_what_makes_no_sense_is_refused(replay, wrong, said):
    with pytest.raises(GraphError, match=said):
        daydream.scaling(replay, **wrong)


def test_the_screen_shows_a_row_for_each_number_and_fits(replay):
    found = daydream.scaling(replay, [1, 2, 1024], cluster="p3:128", jitter=0.02)
    screen = view_text(found)

    lines = screen.splitlines()
    assert lines[0] == "1,024 workers: 30.21x the throughput of one, efficiency 2.95%"
    assert lines[1].startswith("  largest loss: inter-node bandwidth; from a step of 100.0 us on 1 worker, ")
    heads = "workers  throughput  efficiency  step, us  overhead  exposed  waiting  bound by, lost to"
    assert lines[3].split() == heads.split()
    assert [line.split()[0] for line in lines[4:7]] == ["1", "2", "1,024"]
    assert found._repr_html_().count("<tr>") == 4
    assert "1,024 workers" in repr(found)


def test_the_rows_as_a_table_of_pandas(replay):
    pytest.importorskip("pandas")

    assert daydream.scaling(replay, [1, 2], cluster="p3").to_pandas()["workers"].tolist() == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        "--workers 1,,2",
        "--workers 0",
        "--workers 1,...,8",
        "--workers 1,2,...",
        "--workers 1,2,...,9",
        "--workers many",
        "--jitter 1.5",
        "--jitter nan",
        "--straggler 0.5",
        "--plot scaling.txt",
        "--bandwidth 0",
        "--bandwidth 10 --cluster p3",
    ],
)
def test_wrong_options_are_usage_errors(ask, wrong):
    done = ask("scaling", *TRACE, *wrong.split())

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--trace", "missing.json"],
        [*TRACE, "--cluster", "dgx-a1000"],
        ["--trace", "step.parquet", "--cluster", "p3"],
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(ask, wrong):
    done = ask("scaling", *wrong)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")


@pytest.mark.parametrize("name", ["scaling.png", "scaling.html"])
def test_a_plot_is_written_and_not_over_another(ask, folder, name):
    pytest.importorskip("matplotlib")
    asked = ("scaling", *TRACE, "--workers", "1,8", "--bandwidth", "10", "--plot", name)

    assert ask(*asked).err == f"wrote {name}\n"
    content = (folder / name).read_bytes()
    assert {"png": b"PNG", "html": b"<svg"}[name.rpartition(".")[2]] in content
    again = ask(*asked)
    assert (again.code, again.out) == (1, "")
    assert "--force" in again.err
    assert ask(*asked, "--force").code == 0
    assert (folder / name).read_bytes() == content


def test_the_legend_says_that_contention_is_in_what_is_exposed(replay):
    slowed = view_text(daydream.scaling(replay, [1, 4], cluster="dgx-a100", contention=1.3))
    assert "and how they slow kernels that run meanwhile." in " ".join(slowed.split())
