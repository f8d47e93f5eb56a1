"""What people see: the text of each command on the machine's trace, as files to read.

After a change that is meant, write them again with `DAYDREAM_GOLDEN=write pytest tests/cli`
and read the difference.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden"
COMMANDS = {
    "import": "import step.json.gz -o new.parquet",
    "info": "info step.parquet",
    "info_ranks": "info ranks",
    "replay": "replay --trace step.parquet",
    "replay_verbose": "replay -v --trace step.parquet",
    "explain": "explain --trace step.parquet",
    "explain_verbose": "explain -v --trace step.parquet",
    "whatif_scale": "whatif scale --on gpu --factor 0.5 --trace step.parquet",
    "whatif_scale_verbose": "whatif scale -v --on gpu --factor 0.5 --trace step.parquet",
    "whatif_amp": "whatif amp --math-speedup 2.5 --trace step.parquet",
    "whatif_amp_fused": "whatif amp+fused-adam --fused-adam.memory-speedup 2 --trace step.parquet",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_screen_is_as_reviewed(run, name):
    done = run(*shlex.split(COMMANDS[name]))

    assert done.code == 0, done.err
    golden = GOLDEN / f"{name}.txt"
    screen = f"$ daydream {COMMANDS[name]}\n{done.out}"
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        golden.write_text(screen, encoding="utf-8")
    assert screen == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_screen_is_plain_and_fits_a_terminal(name):
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")

    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 125  # a headline is one line
    assert len(text.splitlines()) <= (46 if "verbose" in name else 30)
    assert not any(line != line.rstrip() for line in text.splitlines())
