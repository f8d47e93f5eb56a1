"""`daydream.instrument` is an attribute of the front page, loaded when it is first used, without torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import daydream
assert "daydream.instrument" not in sys.modules
assert daydream.instrument.Tool.__module__ == "daydream.instrument.tool"
assert "torch" not in sys.modules
"""


def test_the_front_page_knows_the_tools() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
