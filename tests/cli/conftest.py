"""The command line as people type it, on a small trace of the machine model."""

import shutil
from functools import partial

import pytest
from command_line import daydream
from machine.programs import PROGRAMS


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A folder with one recording of each kind that the tests need, and one imported trace."""
    folder = tmp_path_factory.mktemp("recorded")
    PROGRAMS["synchronizing"]().run(steps=30).write(folder / "step.json.gz", 24, 27)
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(2):
        PROGRAMS["multi_stream"]().run(steps=6).write(ranks / f"rank{rank}.json", 2, 4)
    daydream("import", "step.json.gz", folder=folder)
    return folder


@pytest.fixture
def folder(recorded, tmp_path, monkeypatch):
    """A fresh folder with `step.json.gz`, `step.parquet` and `ranks/`, to run commands in."""
    target = tmp_path / "work"
    shutil.copytree(recorded, target)
    monkeypatch.chdir(target)
    return target


@pytest.fixture
def ask(folder):
    """Run `daydream` with some arguments in the folder."""
    return partial(daydream, folder=folder)
