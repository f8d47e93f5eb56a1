"""What `daydream mcp` says without a client, and without the package it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daydream.cli import main

WITHOUT = "import sys; sys.modules['mcp'] = None; from daydream.cli import main; main(sys.argv[1:])"


def run(*words):
    command = [sys.executable, "-c", WITHOUT, "mcp", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_help_and_the_skill_need_no_package():
    for words, first in ((["--help"], "Usage: daydream mcp"), (["--skill"], "---\nname: daydream")):
        done = run(*words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(first)
    path = Path(run("--skill-path").stdout.strip())
    assert path.read_text(encoding="utf-8") == run("--skill").stdout


def test_without_the_package_it_says_what_to_install():
    done = run()
    assert done.returncode == 1
    assert done.stdout == ""
    assert "pip install 'daydream[mcp]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_root_that_is_none_is_said(capsys):
    with pytest.raises(SystemExit) as done:
        main(["mcp", "--root", "/no/such/folder"])
    assert done.value.code == 1
    assert capsys.readouterr().err.startswith("error: --root /no/such/folder: ")
