"""Nothing is imported that a command does not use."""

import os
from pathlib import Path

import pytest
from command_line import process

PROGRAM = """
import sys
from daydream.cli import main
for words in " ".join(sys.argv[1:]).split(", "):
    try:
        main(words.split())
    except SystemExit as done:
        if done.code:
            sys.exit(done.code)
print("\\n".join(sorted(sys.modules)), file=sys.stderr)
"""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HEAVY = {"torch", "pandas", "networkx", "numba", "rich", "matplotlib", "distributed", "dask"}
LIGHT = {"ctypes", "numpy", "pyarrow", "msgspec", "daydream.predict.prediction", "daydream.trace.trace"}


def modules_after(*args, folder, cache="off"):
    done = process(*args, folder=folder, command=("-c", PROGRAM), DAYDREAM_CACHE=cache)
    assert done.code == 0, done.err
    return set(done.err.splitlines())


def test_commands_import_no_more_than_they_use(folder):
    assert not modules_after("--help", folder=folder) & (LIGHT | HEAVY)
    loaded = modules_after(
        "whatif amp -o o.json --trace step.parquet, explain --trace step.parquet, rank --trace step.parquet, "
        "compare step.parquet step.parquet, import step.json.gz -o new.parquet, "
        "sweep scale --set factor=0.5 --on gpu --trace step.parquet, "
        "scaling --gradient-mb 10 --workers 1 --bandwidth 10 --trace step.parquet",
        folder=folder,
    )

    assert {"numpy", "pyarrow.parquet"} <= loaded
    assert not loaded & {"daydream.report.html", *HEAVY}


def test_a_kept_answer_reads_no_parquet_and_builds_no_graph(folder, tmp_path):
    first, second = (
        modules_after("replay", "--trace", "step.parquet", folder=folder, cache=str(tmp_path / "kept"))
        for _ in range(2)
    )

    building = {"pyarrow", "daydream.graph.build", "daydream.trace.trace_file"}
    unused = {
        "difflib", "daydream.costs.resize.growth", "daydream.predict.suggest", "daydream.memory.lifetimes",
        "daydream.memory.narrow", "daydream.report.views.ranking",
    }  # fmt: skip
    assert building <= first
    assert not second & (building | unused | HEAVY)
    assert "csv" not in second  # the peaks of a GPU


@pytest.mark.parametrize("theirs", [None, "3"])
def test_numpy_is_loaded_without_threads_and_leaves_the_environment_as_it_was(folder, theirs, monkeypatch):
    program = (
        "import os; from daydream.cli import load_numpy; load_numpy(); import numpy, threading\n"
        "tasks = os.listdir('/proc/self/task') if os.path.isdir('/proc/self/task') else [0]\n"
        "print(len(tasks), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    for name in [name for name in os.environ if name.endswith("_NUM_THREADS")]:
        monkeypatch.delenv(name)
    own = {} if theirs is None else {"OPENBLAS_NUM_THREADS": theirs}

    threads, left = process(folder=folder, command=("-c", program), **own).out.split()
    assert left == str(theirs)
    assert theirs or threads == "1"


@pytest.mark.parametrize(
    ("example", "most"),
    [("synthetic_gpt_gpu.json.gz", 143), ("train_gpt_h200.parquet", 132)],
)
def test_a_first_question_loads_few_modules_of_our_own(example, most, folder):
    loaded = modules_after("whatif", "amp", "--trace", str(EXAMPLES / example), folder=folder)

    ours = {name for name in loaded if name.split(".")[0] in {"daydream", "optimizations"}}
    assert len(ours) <= most, sorted(ours)
