"""The command line as people run it: real processes on a small trace of the machine model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Done, daydream
from machine.programs import PROGRAMS

Run = Callable[..., Done]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def folder(recorded: Path, tmp_path: Path) -> Path:
    """A fresh folder with `step.json.gz`, `step.parquet` and `ranks/`, to run commands in."""
    target = tmp_path / "work"
    shutil.copytree(recorded, target)
    return target


@pytest.fixture
def run(folder: Path) -> Run:
    """Run `daydream` with some arguments in the folder."""
    return lambda *args, **options: daydream(*args, folder=folder, **options)


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the same within this process, for tables of many questions."""
    from daydream.cli import main

    monkeypatch.chdir(folder)

    def call(*args: str) -> Done:
        with pytest.raises(SystemExit) as exit_:
            main(args)
        return Done(int(exit_.value.code or 0), *capsys.readouterr())

    return call
