"""`whatif`: the options of an optimization are options of the command, wherever they are typed."""

from __future__ import annotations

import json
from itertools import permutations

import pytest

MINE = '''
from typing import Literal


def mine(graph, *, times: int, steps: float = 1.0, careful: bool = True, where: Literal["cpu", "gpu"] = "gpu",
         note: str | None = None):
    """Scale everything.

    `times` is how often.
    """
    for _ in range(times):
        graph.select(on=where).scale(steps)
'''


def options_of(done) -> dict:
    assert done.code == 0, done.err
    return json.loads(done.out)["options"]


@pytest.mark.parametrize(
    "order", list(permutations([["amp"], ["--math-speedup", "2"], ["--trace", "step.parquet", "--json"]]))
)
def test_options_may_stand_anywhere(ask, order):
    done = ask("whatif", *(word for words in order for word in words))

    assert options_of(done) == {"math_speedup": 2.0, "memory_speedup": 2.0}


def test_an_equals_sign_does_as_well(ask):
    done = ask("whatif", "--math-speedup=2", "amp", "--trace=step.parquet", "--json")

    assert options_of(done) == {"math_speedup": 2.0, "memory_speedup": 2.0}


def test_options_of_several_optimizations_are_qualified_where_they_clash(ask):
    done = ask(
        "whatif", "amp+fused-adam", "--amp.memory-speedup", "1.5", "--fused-adam.memory-speedup", "4",
        "--math-speedup", "2", "--trace", "step.parquet", "--json",
    )  # fmt: skip

    assert options_of(done) == {
        "math_speedup": 2.0,
        "amp.memory_speedup": 1.5,
        "fused_adam.memory_speedup": 4.0,
    }


def test_a_clashing_option_must_be_qualified(ask):
    done = ask("whatif", "amp+fused-adam", "--memory-speedup", "2", "--trace", "step.parquet")

    assert done.code == 2
    assert "no such option" in done.err.lower()


def test_a_users_file_has_options_of_every_type(ask, folder):
    (folder / "mine.py").write_text(MINE)

    plain = ask("whatif", "./mine.py", "--times", "2", "--trace", "step.parquet", "--json")
    full = ask(
        "whatif", "mine.py", "--times", "1", "--mine.steps", "0.5", "--no-careful", "--where", "cpu",
        "--note", "hi", "--trace", "step.parquet", "--json",
    )  # fmt: skip
    wrong = ask("whatif", "mine.py", "--times", "1", "--where", "moon", "--trace", "step.parquet")

    assert options_of(plain) == {"times": 2, "steps": 1.0, "careful": True, "where": "gpu", "note": None}
    assert options_of(full) == {"times": 1, "steps": 0.5, "careful": False, "where": "cpu", "note": "hi"}
    assert wrong.code == 2
    assert "'moon' is not one of 'cpu', 'gpu'" in wrong.err


def test_help_shows_the_docstring_and_the_options(ask, folder):
    (folder / "mine.py").write_text(MINE)

    done = ask("whatif", "mine.py", "--help")

    assert done.code == 0
    assert "Scale everything." in done.out
    assert "--careful / --no-careful" in done.out
    assert "--where [cpu|gpu]" in done.out
    assert "--mine.steps FLOAT" in done.out
    assert "1.0 by default" in done.out
    assert "[required]" in done.out


def test_help_without_a_name_lists_the_names(ask):
    done = ask("whatif", "--help")

    assert done.code == 0
    assert "amp, fused-adam" in done.out


def test_the_list_is_a_line_each(ask):
    done = ask("whatif", "--list")

    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines() if not line.startswith("    ")][:2] == [
        "amp",
        "fused-adam",
    ]


def test_the_last_line_is_the_next_command(ask, folder):
    asked = ask("whatif", "amp", "--trace", "step.parquet")
    next_command = asked.err.splitlines()[-1]

    assert next_command == "next: daydream whatif amp --trace step.parquet -o amp.json.gz"
    assert ask(*next_command.split()[2:]).code == 0
    assert (folder / "amp.json.gz").exists()
