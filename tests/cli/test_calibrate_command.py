"""`daydream calibrate` and `--table` as people run them: real processes on a small recorded CPU trace."""

import json
from pathlib import Path

import pytest
from command_line import daydream as run_in
from command_line import process

RECORDED = Path(__file__).resolve().parents[2] / "validation" / "cpu" / "MLP-1.parquet"
BATCH = ("batch-size", "--factor", "2")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A folder with a trace and a table of what a doubled batch asks for."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "t.parquet").write_bytes(RECORDED.read_bytes())
    done = process(
        "calibrate --trace t.parquet --optimization", *BATCH, "-o", "times.parquet", "--json",
        "--call-limit", "0.01", folder=folder,
    )  # fmt: skip
    assert done.code == 0, done.err
    (folder / "said.json").write_text(done.out)
    return folder


def test_it_says_what_was_measured_and_what_was_not(calibrated):
    said = json.loads((calibrated / "said.json").read_text())
    assert said["schema"] == 1
    assert (said["device"], said["optimization"], said["output"]) == ("cpu", "batch-size", "times.parquet")
    assert said["asked"] == len(said["measured"]) + len(said["left_out"])
    assert {"aten::addmm", "aten::mm"} <= {row["op"] for row in said["measured"]}
    assert all(row["duration_ns"] >= 0 and row["repeats"] > 0 for row in said["measured"])
    reasons = {row["op"]: row["reason"] for row in said["left_out"]}
    assert "indices" in reasons["aten::nll_loss_forward"]
    assert (calibrated / "times.parquet").stat().st_size < 20_000


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ("calibrate --trace absent.parquet", 1, "absent.parquet"),
        ("calibrate --trace t.parquet --optimization apm", 1, "Did you mean 'amp'?"),
        ("calibrate --trace t.parquet --optimization amp", 1, "kernels"),
        ("calibrate --trace t.parquet --optimization batch-size", 2, "--factor"),
        ("calibrate --trace t.parquet --optimization scale --factor -1", 2, "factor"),
        ("calibrate --trace t.parquet --total-limit 0", 2, "above 0"),
        ("calibrate --trace t.parquet -o t.parquet", 1, "is read by this command"),
        ("calibrate --trace t.parquet -o times.parquet", 1, "--force"),
        ("rank --trace t.parquet --table absent.csv", 1, "absent.csv: no such file"),
        ("whatif batch-size --factor 2 --trace t.parquet --table t.parquet", 1, "not a table of times"),
        ("whatif batch-size --factor 2 --trace t.parquet --table said.json", 1, "a time needs"),
    ],
)
def test_bad_input_gets_one_clear_message(calibrated, asked, code, said):
    done = run_in(asked, folder=calibrated)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err
