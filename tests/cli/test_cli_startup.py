"""Nothing is imported that a command does not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from daydream.cli import main
try:
    main(sys.argv[1:])
except SystemExit as done:
    code = done.code
print("\\n".join(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "pandas", "networkx", "numba", "rich"}


def modules_after(*args: str, folder, cache: str = "off") -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        cwd=folder,
        env={**os.environ, "DAYDREAM_CACHE": cache},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_imports_click_and_nothing_heavy(folder, args):
    loaded = modules_after(*args, folder=folder)

    assert not loaded & (
        HEAVY
        | {"ctypes", "numpy", "pyarrow", "msgspec", "daydream.predict.prediction", "daydream.trace.trace"}
    )


@pytest.mark.parametrize(
    "args",
    [
        ["whatif", "amp", "--trace", "step.parquet"],
        ["whatif", "amp", "--trace", "step.parquet", "--json"],
        ["whatif", "amp", "--trace", "step.parquet", "-o", "out.json.gz"],
        ["replay", "--trace", "step.parquet"],
        ["info", "step.parquet"],
        ["explain", "--trace", "step.parquet"],
        ["compare", "step.parquet", "step.parquet"],
        ["sweep", "scale", "--set", "factor=0.5,0.8", "--on", "gpu", "--trace", "step.parquet"],
    ],
)
def test_questions_to_a_parquet_trace_import_no_more_than_they_use(folder, args):
    loaded = modules_after(*args, folder=folder)

    assert {"numpy", "pyarrow.parquet"} <= loaded
    assert not loaded & HEAVY  # msgspec checks the metadata; it takes a few ms


@pytest.mark.parametrize(
    "args",
    [
        ["whatif", "amp", "--trace", "step.parquet", "--json"],
        ["whatif", "amp", "--trace", "step.parquet"],
        ["replay", "--trace", "step.parquet"],
        ["explain", "--trace", "step.parquet"],
    ],
)
def test_a_kept_answer_reads_no_parquet_and_builds_no_graph(folder, tmp_path, args):
    kept = str(tmp_path / "kept")
    first = modules_after(*args, folder=folder, cache=kept)
    second = modules_after(*args, folder=folder, cache=kept)

    building = {"pyarrow", "daydream.graph.build", "daydream.trace.trace_file"}
    assert building <= first
    assert not second & (building | HEAVY)


@pytest.mark.parametrize(
    ("args", "used"),
    [
        (["whatif", "amp", "--trace", "step.parquet", "--json"], {"csv"}),  # the peaks of the GPU
        (["replay", "--trace", "step.parquet"], set()),
    ],
)
def test_a_kept_answer_loads_nothing_that_it_does_not_use(folder, tmp_path, args, used):
    kept = str(tmp_path / "kept")
    modules_after(*args, folder=folder, cache=kept)
    loaded = modules_after(*args, folder=folder, cache=kept)

    unused = {
        "csv", "difflib", "numpy.ma", "pyarrow",
        "daydream.costs.resize.growth", "daydream.predict.suggest", "daydream.graph.build",
        "daydream.memory.lifetimes", "daydream.memory.narrow", "daydream.report.views.ranking",
    }  # fmt: skip
    assert (loaded & unused) - modules_of_bare_imports() == used


def modules_of_bare_imports() -> set[str]:
    """Return what click and numpy load by themselves, which differs between their versions."""
    program = "import sys, click, numpy; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    return set(done.stdout.split())


def test_import_of_json_needs_msgspec_and_not_torch(folder):
    loaded = modules_after("import", "step.json.gz", "-o", "new.parquet", folder=folder)

    assert "msgspec" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("theirs", [None, "3"])
def test_numpy_is_loaded_without_threads_and_leaves_the_environment_as_it_was(folder, theirs):
    program = (
        "import os; from daydream.cli import load_numpy; load_numpy(); import numpy, threading\n"
        "tasks = os.listdir('/proc/self/task') if os.path.isdir('/proc/self/task') else [0]\n"
        "print(len(tasks), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {} if theirs is None else {"OPENBLAS_NUM_THREADS": theirs}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )

    threads, left = done.stdout.split()
    assert left == str(theirs)
    assert theirs or threads == "1"


def test_a_first_question_loads_few_modules_of_our_own(folder):
    trace = str(ROOT / "examples" / "synthetic_gpt_gpu.json.gz")
    loaded = modules_after("whatif", "amp", "--trace", trace, folder=folder)

    ours = {name for name in loaded if name.split(".")[0] in {"daydream", "optimizations"}}
    assert len(ours) <= 190, sorted(ours)
