"""What can be said before, or without, a single training step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from daydream.collect.launcher import runner

FAILED, USAGE = 1, 2
PLAIN = {"begin": ""}


def test_a_script_without_torch_is_told_so_and_nothing_is_written(folder):
    folder.script("print('done')", **PLAIN)
    done = folder.collect("train.py")

    assert (done.code, done.out) == (FAILED, "done\n")
    assert done.err.splitlines()[-1].startswith("error: the script never imported torch")
    assert sorted(path.name for path in folder.path.iterdir()) == ["train.py"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gone.py"], "'gone.py' is not a file"),
        (["python", "train.py"], "Name the training script alone"),
        (["--steps", "0", "train.py"], "--steps"),
        (["--nproc-per-node", "0", "train.py"], "--nproc-per-node"),
        (["--epochs", "3", "train.py"], "--epochs"),
        ([], "-m MODULE | SCRIPT"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(args, said, ask):
    done = ask(*args)

    assert done.code == USAGE
    assert said in done.err


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("taken.parquet", "taken.parquet exists already; choose another name or give --force"),
        ("gone/t.parquet", "there is no folder gone"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_script_runs(output, said, ask, folder):
    folder.script("open('ran', 'w')", **PLAIN)
    (folder.path / "taken.parquet").write_text("kept")
    done = ask("-o", output, "train.py")

    assert done.code == FAILED
    assert said in done.err
    assert not (folder.path / "ran").exists()
    assert (folder.path / "taken.parquet").read_text() == "kept"


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(ask, folder):
    folder.script("open('/dev/null')", **PLAIN)
    locked = folder.path / "locked"
    locked.mkdir(mode=0o500)

    assert "cannot write locked" in ask("-o", "locked/t.parquet", "train.py").err


def test_an_isolated_interpreter_is_noticed_by_its_silence(tmp_path):
    command = [sys.executable, "-I", "-c", "raise SystemExit(0)"]
    done = runner.collect(command, tmp_path / "t.parquet", runner.Recording())

    assert done.path is None
    assert "does not read PYTHONPATH" in done.problems[0]


def test_a_script_sees_what_it_sees_without_us(folder):
    folder.script(
        """
        import json, os, pickle, sys
        class Thing: pass
        pickle.loads(pickle.dumps(Thing()))
        with open(sys.argv[-1], "w") as file:
            json.dump([__name__, __file__, __spec__ is None, sys.argv[:-1], sys.orig_argv[1:-1], os.getcwd(),
                       sys.path, sys.modules["sitecustomize"].__file__, sorted(sys.modules),
                       len(sys.meta_path)], file)
        """,
        **PLAIN,
    )
    rest = ["train.py", "--epochs", "1", "--json", "--", "-o", "x", ""]
    folder.python(*rest, "plain.json")
    done = folder.collect("-o", "t.parquet", *rest, "collected.json")
    plain, collected = (
        json.loads((folder.path / f"{name}.json").read_text()) for name in ("plain", "collected")
    )

    assert done.out == ""
    assert plain.pop() + 1 == collected.pop()  # the one that waits for torch
    assert plain == collected


def test_a_process_that_outlives_the_run_is_left_alone(folder):
    environment = folder.environment(
        DAYDREAM_COLLECT=str(folder.path / "over"), PYTHONPATH=str(runner.INJECT)
    )
    code = "import sys; print(len(sys.meta_path), any('AfterImport' in repr(each) for each in sys.meta_path))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )

    assert done.stdout.split()[1] == "False"


def test_a_process_whose_environment_does_not_hold_daydream_finds_it(tmp_path):
    """As where a checkout is not installed: the script's process has the folder of the package told."""
    code = (
        "import sys, sitecustomize, importlib.util\n"
        "assert importlib.util.find_spec('daydream') is None\n"
        "sys.path.append(sitecustomize.PACKAGES)\n"
        "print(importlib.util.find_spec('daydream').origin)"
    )
    environment = {"PYTHONPATH": str(runner.INJECT)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).samefile(Path(runner.__file__).parents[2] / "__init__.py")
