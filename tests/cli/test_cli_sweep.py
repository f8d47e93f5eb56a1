"""`daydream sweep`: the table, `--json`, files, engines, wrong options, Ctrl-C."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from daydream.cli.sweep import values_of
from daydream.errors import MissingPackageError

SCALE = "sweep scale --trace step.parquet --set factor=1,0.5,...,0.125 --set on=cpu,gpu"


def test_if_nothing_is_answered_the_reasons_are_shown_and_it_has_failed(ask):
    asked = ("sweep", "scale", "--trace", "step.parquet", "--set", "factor=1", "--on", "gpu")
    done = ask(*asked)

    assert done.code == 1
    assert "  all: a factor of 1 leaves every task as it is" in done.out
    assert done.err == "error: no scenario could be answered; the reasons are listed\n"
    assert len(json.loads(ask(*asked, "--json").out)["refused"]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "--set factor",
        "--set factor=fast",
        "--set factor=1,...,4",
        "--set factor=2,2",
        "--set speed=1,2",
        "--set on=cpu,gpu",
        "--set factor=2 --set factor=3",
        "--set factor=2 --factor 3",
        "--set factor=2 --top 0",
        "--set factor=2 --sort name",
        "--set factor=2 --engine ray",
        "--set factor=2 --engine processes:0",
        "--set factor=2 -o all.txt",
        "--set factor=2 --trace missing.json",
    ],
)
def test_wrong_options_are_usage_errors_before_anything_is_read(ask, wrong):
    done = ask("sweep scale --trace missing.json", *wrong.split())

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")


@pytest.mark.parametrize(
    "asked", [["--trace", "missing.json", "--set", "factor=2"], ["--trace", "step.parquet"]]
)
def test_what_is_no_usage_error_fails_in_a_line(ask, asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    engine = [] if "missing.json" in asked else ["--set", "factor=2", "--engine", "dask"]
    done = ask("sweep scale", *asked, *engine)

    assert (done.code, done.out) == (1, "")
    assert done.err in {
        "error: missing.json: no such file\n",
        f"error: {MissingPackageError('distributed', 'dask')}\n",
    }


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
