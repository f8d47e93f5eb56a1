"""Many questions at once: rank, sweep, scaling, suggestions."""

import os
import shutil
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest
from graph.small_traces import repeated

import daydream
from daydream import GraphError
from daydream.cli import collect as module
from daydream.cli.collect import Suggestions, suggestions
from daydream.cli.sweep import values_of
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.world_size import fitted_to_trace

# `daydream rank`: the screen, and the object of `--json`


# `daydream sweep`: the table, `--json`, files, engines, wrong options, Ctrl-C


SCALE = "sweep scale --trace step.parquet --set factor=1,0.5,...,0.125 --set on=cpu,gpu"


def test_if_nothing_is_answered_the_reasons_are_shown_and_it_has_failed(ask):
    asked = ("sweep", "scale", "--trace", "step.parquet", "--set", "factor=1", "--on", "gpu")
    done = ask(*asked)

    assert done.code == 1
    assert "  all: a factor of 1 leaves every task as it is" in done.out
    assert done.err == "error: no scenario could be answered; the reasons are listed\n"
    assert len(ask(*asked, "--json").json()["refused"]) == 1


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
@pytest.mark.parametrize("engine", ["processes:2", pytest.param("dask:2", marks=pytest.mark.slow)])
def test_ctrl_c_ends_the_workers(folder, engine):
    if engine.startswith("dask"):
        pytest.importorskip("distributed", reason="needs the extra `dask`")
    (folder / "slow.py").write_text(
        "import pathlib, time\n\n\ndef slow(graph, *, part: int = 0):\n"
        "    pathlib.Path(f'begun{part}').touch()\n    time.sleep(60)\n", encoding="utf-8",
    )  # fmt: skip
    command = [sys.executable, "-m", "daydream", "sweep", "./slow.py", "--trace", "step.parquet"]
    with subprocess.Popen(
        [*command, "--set", "part=1,2,3,4", "--engine", engine], cwd=folder, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True,
    ) as process:  # fmt: skip
        for _ in range(600):
            if list(folder.glob("begun*")):
                break
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert (out, err.strip()) == ("", "")
    for _ in range(100):  # what is left is gone in no time
        if not running(process.pid):
            break
        time.sleep(0.05)
    assert running(process.pid) == []


def running(group):
    """Return the processes of a group that have not ended."""
    done = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,pid="], capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [pid for pgid, state, pid in rows if pgid == str(group) and not state.startswith("Z")]


# Lists of values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("1,2,4,...,16", int, [1, 2, 4, 8, 16]),
        ("64,32,...,8", int, [64, 32, 16, 8]),
        ("0.1,0.2,0.3,...,0.6", float, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        ("1,0.5,...,0.125", float, [1.0, 0.5, 0.25, 0.125]),
        ("1,0.75,0.5,...,0", float, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("0,2,...,6", int, [0, 2, 4, 6]),
        ("-1,-2,-3,...,-5", int, [-1, -2, -3, -4, -5]),
        ("1e3", float, [1000.0]),
        ("yes,no", bool, [True, False]),
        ("p3, dgx-a100", str, ["p3", "dgx-a100"]),
    ],
)
def test_lists_of_values(text, kind, values):
    assert values_of(text, kind) == values


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.5", int),
        ("1/2", float),
        ("inf", float),
        ("", int),
        ("maybe", bool),
        ("a,,b", str),
        ("2,2,...,4", int),
    ],
)
def test_what_is_no_list_of_values(text, kind):
    with pytest.raises(ValueError, match=r"\S"):
        values_of(text, kind)


def test_all_scenarios_go_to_a_file(ask, folder):
    assert ask(SCALE, "-o", "all.csv", "--top", "1").err == "wrote all.csv\n"
    assert len((folder / "all.csv").read_text(encoding="utf-8").splitlines()) == 1 + 8
    assert [ask(SCALE, "-o", "all.csv", *more).code for more in ([], ["--force"])] == [1, 0]


# `daydream scaling`: the table, `--json`, plots, wrong options; and what the numbers must obey


TRACE = ("--trace", "step.parquet", "--gradient-mb", "10")


def one_gpu():
    #  thread 1  |launch 5|launch 5|AccumulateGrad|  ...   |optimizer|
    #  stream 7     |forward 30|backward 50        |          |update 10|     a step of 100
    grad = "torch::autograd::AccumulateGrad"
    step = f"""
        op aten::mm 0 8 phase=forward op=aten::mm
        launch forward 1 6 36 phase=forward op=aten::mm
        op MmBackward0 10 18 phase=backward op=MmBackward0
        launch backward 11 37 80 phase=backward op=MmBackward0
        op {grad} 20 22 phase=backward op={grad} shapes="[[1024, 1024]]" dtype=float32
        op Optimizer.step 30 40 phase=optimizer op=Optimizer.step
        launch update 31 82 92 phase=optimizer op=Optimizer.step
    """
    return repeated(step, 100, times=6, device_name="NVIDIA A100-SXM4-40GB")


def one_of_four(**metadata):
    #  thread 1  |launch 5|launch 5|sync ..................... 2|data 12|
    #  stream 7       |work 50           |all-reduce 30        |             a step of 100
    step = """
        launch work 0 6 56 phase=backward
        launch ncclAllReduce 5 56 86 phase=backward kind=collective collective=all_reduce bytes=4000000
        call cudaDeviceSynchronize 10 88
        op data 88 100
    """
    return repeated(step, 100, times=6, **metadata)


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
    ("world", "options", "said"),
    [
        ({"world_size": 4}, {"bandwidth": 10.0}, "bandwidth has no meaning"),
        ({"world_size": 4}, {"bucket_mb": 1.0}, "bucket_mb has no meaning"),
        ({}, {"cluster": "p3"}, "does not say of how many workers"),
    ],
)
def test_what_recorded_collectives_cannot_be_asked(world, options, said):
    with pytest.raises(GraphError, match=said):
        daydream.scaling(one_of_four(**world), [2], **options)


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


# What `collect` suggests at its end: the largest gains, with their code; nothing that harms the run


def test_the_three_largest_of_a_trace_are_those_of_rank(folder, ask):
    found = suggestions(folder / "step.parquet", patience_s=100)
    ranked = ask("rank --trace step.parquet --json").json()["changes"]

    assert found.missing is None
    assert found.entries[0] == ranked[0]
    assert 1 <= len(found.entries) <= 3
    assert len({each["code"] for each in found.entries}) == len(found.entries)
    lines = found.lines(folder / "step.parquet")
    assert lines[0].startswith("top suggestions")
    assert [line.strip() for line in lines[2::2]] == [each["code"] for each in found.entries]


def test_a_trace_that_cannot_be_ranked_is_told_in_a_line(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    found = suggestions(tmp_path / "broken.parquet", patience_s=100)

    assert found.entries == ()
    (line,) = found.lines(tmp_path / "broken.parquet")
    assert line.startswith("no suggestions: ranking failed (")


@pytest.mark.parametrize(
    ("error", "said"),
    [(OSError, ""), (KeyboardInterrupt, ""), (subprocess.TimeoutExpired("rank", 5), "took longer than 5 s")],
)
def test_nothing_that_goes_wrong_gets_out(folder, monkeypatch, error, said):
    monkeypatch.setattr(module.subprocess, "run", Mock(side_effect=error))

    assert said in suggestions(folder / "step.parquet", patience_s=5).missing


def test_that_nothing_helps_is_said():
    (line,) = Suggestions().lines(module.Path("t.parquet"))

    assert line.startswith("no code change is predicted to shorten this step")
