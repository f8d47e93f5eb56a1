"""Nothing is imported that a command does not use."""

from __future__ import annotations

import subprocess
import sys

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
HEAVY = {"torch", "pandas", "networkx", "numba", "rich"}


def modules_after(*args: str, folder) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        cwd=folder,
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
        HEAVY | {"ctypes", "numpy", "pyarrow", "msgspec", "daydream.predict.whatif", "daydream.trace.trace"}
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


def test_import_of_json_needs_msgspec_and_not_torch(folder):
    loaded = modules_after("import", "step.json.gz", "-o", "new.parquet", folder=folder)

    assert "msgspec" in loaded
    assert not loaded & HEAVY
