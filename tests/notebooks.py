"""Notebooks that run in a kernel of their own, as a reader runs them."""

import os
import sys
import warnings
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs nbclient, one of the test extra")
nbformat = pytest.importorskip("nbformat", reason="needs nbformat, one of the test extra")
pytest.importorskip("ipykernel", reason="needs ipykernel, one of the test extra")


def execute(notebook, folder, *, allow_errors=False, **environment):
    """Run all cells of a notebook in a folder; return them."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    own = {"IPYTHONDIR": str(folder / "ipython"), "PATH": path}  # nothing of the reader's own set-up
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the kernel's client are not ours
        client = nbclient.NotebookClient(
            notebook, timeout=300, kernel_name="python3", allow_errors=allow_errors,
            resources={"metadata": {"path": str(folder)}},
        )  # fmt: skip
        client.execute(env={**os.environ, **own, **environment})
    return notebook.cells
