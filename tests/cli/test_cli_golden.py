"""What people see: the text of each command on the machine's trace, as files to read.

After a change that is meant, write them again with `DAYDREAM_GOLDEN=write pytest tests/cli`
and read the difference.
"""

import os
import shlex
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden"
COMMANDS = {
    "import": "import step.json.gz -o new.parquet",
    "info": "info step.parquet",
    "replay": "replay --trace step.parquet",
    "explain": "explain --trace step.parquet",
    "whatif_scale": "whatif scale --on gpu --factor 0.5 --trace step.parquet",
    "rank": "rank --trace step.parquet",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_screen_is_as_reviewed(ask, name):
    done = ask(*shlex.split(COMMANDS[name]))

    assert done.code == 0, done.err
    golden = GOLDEN / f"{name}.txt"
    screen = f"$ daydream {COMMANDS[name]}\n{done.out}"
    if os.environ.get("DAYDREAM_GOLDEN") == "write":
        golden.write_text(screen, encoding="utf-8")
    assert screen == golden.read_text(encoding="utf-8")
