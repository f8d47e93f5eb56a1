"""`daydream collect` on scripts of a few lines, as people run it: real processes, a real torch."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from daydream.cli import main
from daydream.trace.trace import Trace

OWN = Path(__file__).with_name("own")  # holds a `sitecustomize`
BEGIN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


@dataclass
class Done:
    """A finished process, and the folder that it ran in."""

    code: int
    out: str
    err: str
    folder: Path

    def trace(self, name="train.parquet"):
        return Trace.load(self.folder / name)

    def steps(self, name="train.parquet"):
        return sum(step["covered"] for step in self.trace(name).metadata["steps"])

    def notes(self):
        """Return the notes among what was said, but not that this machine was busy, as it may be."""
        lines = [line for line in self.err.splitlines() if line.startswith("note:")]
        return [line for line in lines if "was busy during recording" not in line]

    def hidden(self):
        """Return what was left behind beside the output."""
        return [path.name for path in self.folder.iterdir() if path.name.startswith(".")]


class Folder:
    """A folder with scripts, in which commands are run."""

    def __init__(self, path, captured=None, patched=None):
        self.path, self.captured, self.patched = path, captured, patched

    def script(self, text, name="train.py", *, begin=BEGIN):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(begin + textwrap.dedent(text))

    def environment(self, **more):
        return {**os.environ, "PYTHONPATH": str(OWN), "OMP_NUM_THREADS": "1", **more}

    def start(self, *command, **environment):
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.path, env=self.environment(**environment), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def finish(self, process):
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        return Done(process.returncode, out, err, self.path)

    def python(self, *command, **environment):
        return self.finish(self.start(*command, **environment))

    def here(self, *args, **environment):
        """Run a command within this process; what it starts writes where this one does."""
        with self.patched.context() as patch:
            patch.chdir(self.path)
            for name, value in self.environment(**environment).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as done:
                main(args)
        return Done(done.value.code or 0, *self.captured.readouterr(), self.path)

    def collect(self, *args, suggestions=False, apart=False, **environment):
        own = [] if suggestions else ["--no-suggestions"]  # they take a few seconds
        if apart:  # in a process of its own, whose output is a pipe
            return self.python("-m", "daydream", "collect", *own, *args, **environment)
        return self.here("collect", *own, *args, **environment)

    def confirm(self, *args):
        return self.here("confirm", *args)

    def interrupt(self, number, *args, sign="training", **environment):
        """Collect, and send a signal once the script has made a file of that name."""
        process = self.start("-m", "daydream", "collect", *args, **environment)
        while not (self.path / sign).exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        return self.finish(process)


@pytest.fixture
def folder(tmp_path, capfd, monkeypatch):
    return Folder(tmp_path, capfd, monkeypatch)


@pytest.fixture(scope="module")
def folder_of_file(tmp_path_factory):
    """Return a folder for what all tests of a file share."""
    return Folder(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def ask(folder):
    """Ask where no script is to be run."""
    folder.script("", begin="")
    return folder.collect
