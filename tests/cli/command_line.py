"""A command line run within this process, and in a process of its own."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest


@dataclass
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    def good(self):
        """Return this one, which must have ended well."""
        assert self.code == 0, self.err
        return self

    def json(self):
        """Return the object that was printed; NaN and infinity are none."""
        return json.loads(self.out, parse_constant=pytest.fail)


def words(args):
    return [*args[0].split(), *args[1:]] if args else []


def daydream(*args, folder, **environment):
    """Run a command line within this process, in a folder; its first words may be one text."""
    from daydream.cli import main

    out, err, code, before = io.StringIO(), io.StringIO(), 0, Path.cwd()
    try:
        os.chdir(folder)
        with (
            mock.patch.dict(os.environ, {"COLUMNS": "80", **environment}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main(words(args))
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    finally:
        os.chdir(before)
    return Done(code, out.getvalue(), err.getvalue())


def process(*args, folder, command=("-m", "daydream"), **environment):
    """Run the same in a process of its own."""
    done = subprocess.run(
        [sys.executable, *command, *words(args)], cwd=folder, capture_output=True, encoding="utf-8",
        env={**os.environ, "COLUMNS": "80", **environment}, timeout=300, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def held_to(golden, text):
    """Compare a screen to the letter with the file of it as reviewed; `DAYDREAM_GOLDEN=write` writes it."""
    golden = Path(__file__).parent.parent / "golden" / golden
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
