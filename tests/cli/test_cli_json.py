"""`--json`: one object with exactly the keys of docs/json.md, and nothing else on stdout."""

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def parsed(done):
    """Return the one object a command printed; anything else, NaN and infinity included, fails."""
    assert done.code == 0, done.err

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(done.out, parse_constant=refuse)


@pytest.mark.parametrize(
    "command",
    [
        "info step.parquet", "replay --trace step.parquet", "whatif amp --trace step.parquet",
        "explain --trace step.parquet", "rank --pairs 0 --no-curves --trace step.parquet",
        "sweep scale --on gpu --set factor=0.5 --trace step.parquet", "compare step.parquet step.parquet",
        "scaling --workers 1,4 --bandwidth 10 --gradient-mb 10 --trace step.parquet",
    ],
)  # fmt: skip
def test_json_has_the_keys_of_the_page(ask, command):
    result = parsed(ask(*command.split(), "--json"))

    section = PAGE.partition(f"## `daydream {command.split()[0]} --json`\n")[2].partition("\n##")[0]
    assert result.pop("schema") == 1
    assert result.pop("trace", "step.parquet") == "step.parquet"
    rows = [line.partition(" | ")[0] for line in section.splitlines() if line.startswith("`")]
    assert set(re.findall(r"`(\w+)", " ".join(rows))) - {"schema", "trace"} <= set(result)


def test_what_a_users_code_prints_goes_to_stderr(ask, folder):
    (folder / "chatty.py").write_text(
        "print('loading')\n\ndef chatty(graph, *, loud: bool = False):\n    print('editing', loud)\n"
        "    graph.select().scale(1)\n"
    )

    done = ask("whatif ./chatty.py --loud --trace step.parquet --json")

    assert parsed(done)["options"] == {"loud": True}
    # Once for the estimated step, once for the recorded one.
    assert done.err == "loading\nediting True\nediting True\n"
