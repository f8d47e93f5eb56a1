"""`whatif`: the options of an optimization are options of the command, wherever they are typed."""

import json
from itertools import permutations

import pytest

MINE = '''
from typing import Literal


def mine(graph, times: int, steps: float = 1.0, *, careful: bool = True,
         where: Literal["cpu", "gpu"] = "gpu", note: str | None = None):
    """Scale everything.

    Args:
        times: How often.
        steps (s/step): What each
            step is scaled by.
    """
    for _ in range(times):
        graph.select(on=where).scale(steps)
'''


def test_no_option_of_an_optimization_is_hidden_by_one_of_every_what_if():
    from daydream.cli.whatif import whatif
    from daydream.transforms.registry import find, names

    taken = {flag for parameter in whatif.params for flag in parameter.opts if flag != "--cluster"}
    hidden = [
        f"{name} {option.flag}" for name in names() for option in find(name).options if option.flag in taken
    ]
    assert hidden == []


def test_cluster_is_of_the_trace_where_the_optimization_has_no_such_option(ask):
    own = ask("whatif ddp --gradient-mb 10 --workers 8 --cluster dgx-a100 step.parquet --json")
    of_trace = ask("whatif amp --cluster dgx-a100 step.parquet")

    assert options_of(own)["cluster"] == "dgx-a100"
    assert "--cluster goes with a trace of a fake world" in of_trace.err


def options_of(done):
    assert done.code == 0, done.err
    return json.loads(done.out)["options"]


@pytest.mark.parametrize(
    "order", list(permutations([["amp"], ["--math-speedup", "2"], ["--trace", "step.parquet", "--json"]]))
)
def test_options_may_stand_anywhere(ask, order):
    done = ask("whatif", *(word for words in order for word in words))

    assert options_of(done) == {"math_speedup": 2.0, "memory_speedup": 2.0, "model": "measured"}


def test_options_of_several_optimizations_are_qualified_where_they_clash(ask):
    done = ask(
        "whatif amp+fused-adam --amp.memory-speedup 1.5 --fused-adam.memory-speedup 4 --math-speedup 2",
        "--trace", "step.parquet", "--json",
    )  # fmt: skip

    assert (
        options_of(done).items()
        >= {
            "math_speedup": 2.0,
            "amp.memory_speedup": 1.5,
            "fused_adam.memory_speedup": 4.0,
        }.items()
    )


def test_a_users_file_has_options_of_every_type(ask, folder):
    (folder / "mine.py").write_text(MINE)

    plain = ask("whatif ./mine.py --times 2 --trace step.parquet --json")
    full = ask(
        "whatif mine.py --times 1 --mine.steps 0.5 --no-careful --where cpu --note hi --trace step.parquet",
        "--json",
    )  # fmt: skip
    wrong = ask("whatif mine.py --times 1 --where moon --trace step.parquet")

    assert options_of(plain) == {"times": 2, "steps": 1.0, "careful": True, "where": "gpu", "note": None}
    assert options_of(full) == {"times": 1, "steps": 0.5, "careful": False, "where": "cpu", "note": "hi"}
    assert wrong.code == 2
    assert "'moon' is not one of 'cpu', 'gpu'" in wrong.err


def test_help_shows_the_docstring_and_the_options(ask, folder):
    (folder / "mine.py").write_text(MINE)

    done = ask("whatif mine.py --help")

    assert done.code == 0
    assert "Scale everything." in done.out
    assert "--careful / --no-careful" in done.out
    assert "--where [cpu|gpu]" in done.out
    assert "--mine.steps s/step" in done.out
    assert "What each step is scaled by. [default: 1.0]" in done.out
    assert "How often.  [required]" in done.out


def test_a_change_of_nothing_is_an_error_with_a_reason(ask, folder):
    (folder / "idle.py").write_text("def idle(graph):\n    graph.select()\n")
    (folder / "same.py").write_text("def same(graph):\n    graph.select().scale(1)\n")
    (folder / "done.py").write_text("def done(graph):\n    graph.does_not_apply('already bf16')\n")

    idle, same, done = (ask("whatif", f"{n}.py", "--trace", "step.parquet") for n in ("idle", "same", "done"))
    assert (idle.code, same.code, done.code) == (1, 0, 1)
    assert "idle found nothing to change in this trace" in idle.err
    assert "already bf16" in done.err
    assert "1.00x" in same.out
