"""Mistakes in a user's own optimization: what went wrong, in which file and line, and what was meant."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from test_cli_errors import FAILED, USAGE, assert_clear

from daydream.graph.select import nearest_layers
from daydream.transforms import registry

HEAD = "from daydream import GraphError\n\n\ndef mine(graph, *, keep: float = 0.0):\n    n = 0\n    "
LINE = 6
EXAMPLE = Path(__file__).parents[2] / "examples" / "synthetic_gpt_gpu.json.gz"
MISTAKES = {
    "graph.select().scale(1 / n)": ["ZeroDivisionError: division by zero"],
    "graph.select(phas='forward').scale(0.5)": ["tasks have no column 'phas'. Did you mean 'phase'?"],
    "graph.select(kind='kernels').scale(0.5)": [
        "unknown kind 'kernels'; choose from cpu",
        "Did you mean 'kernel'?",
    ],
    "graph.select(layer='block.*').scale(0.5)": ["no task matched layer='block.*'.", "has no layers"],
    "graph.select(name='nothing like it').scale(0.5)": ["no task matched name='nothing like it'"],
    "graph.select().scale(-1)": ["a factor must be 0 or more"],
}
LAYERS = ["blocks.0", "blocks.0.attention", "blocks.0.attention.qkv", "blocks.1", "blocks.1.mlp", "head"]


FILES = {  # what a file of a user's holds, and what is said of it
    "def broken(graph:": "mine.py cannot be loaded: SyntaxError",
    "def something_else(graph): pass": "should define a function 'mine'",
    "FACTOR = 2": "a function 'mine', the optimization; it has no function",
    "def one(graph): ...\n\n\ndef other(graph): ...": "the optimization; it has one, other",
    "def mine(graph, *, sizes: list[int] | None = None): ...": "which cannot be typed on a command line",
    "def mine(graph):\n    graph.schedule(graph.lanes[0].name, key=key)\n\n\n"
    "def key(tasks):\n    return tasks.order + None": "mine.py, line 6: TypeError",
    "def mine(graph):\n    graph.select(on='gpu').where(lambda tasks: tasks.naem)":
        "mine.py, line 2: AttributeError: tasks have no column 'naem'",
}  # fmt: skip


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_is_no_optimization_is_told_why(ask, folder, text):
    (folder / "mine.py").write_text(text + "\n")

    done = ask("whatif ./mine.py --trace step.parquet")

    assert done.code == FAILED
    assert_clear(done)
    assert FILES[text] in done.err


@pytest.mark.parametrize("line", MISTAKES)
@pytest.mark.parametrize("command", ["whatif ./mine.py --trace", "compare step.parquet --whatif ./mine.py"])
def test_a_mistake_has_its_file_and_line(ask, folder, command, line):
    (folder / "mine.py").write_text(HEAD + line + "\n")

    done = ask(*command.split(), "step.parquet")

    assert done.code == FAILED
    assert_clear(done)
    assert f"mine.py, line {LINE}: {MISTAKES[line][0]}" in done.err
    assert all(words in done.err for words in [*MISTAKES[line], line])
    assert "--help" not in done.err
    assert "keep" not in done.err


def test_a_layer_that_is_not_there_gets_the_nearest(ask, folder):
    line = "graph.select(kind='kernel', layer='layer.*.atention.*').scale(0.5)"
    (folder / "mine.py").write_text(HEAD + line + "\n")
    (folder / "other.py").write_text(
        "def other(graph):\n    graph.select(kind='cpu', layer=('head', 'heads')).where(name='x').remove()\n"
    )

    done = ask("whatif mine.py --trace", str(EXAMPLE))
    other = ask("whatif other.py --trace", str(EXAMPLE))

    assert done.code == other.code == FAILED
    assert "No layer matches 'layer.*.atention.*'." in done.err
    assert "Layers are embedding, layers.0, " in done.err
    assert "No layer matches 'heads'. Did you mean 'head'?" in other.err
    assert "No layer matches 'head'." not in other.err


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("block.*", ["blocks.*"]),
        ("blocks.0.atention", ["blocks.0.attention"]),
        ("blocks.*.atention.*", ["blocks.*.attention.*"]),
        ("heads", ["head"]),
        ("something.else", []),
    ],
)
def test_layers_like_the_one_that_was_wanted(wanted, near):
    assert nearest_layers(wanted, LAYERS) == near


def test_one_that_cannot_be_imported_hides_no_other(ask, folder, monkeypatch):
    broken = EntryPoint("theirs", "no_such_package:theirs", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "_entry_points", lambda: [broken])
    why = "theirs, which is no_such_package:theirs, cannot be loaded: ModuleNotFoundError"

    listed = ask("whatif --list")
    ranked = ask("rank --trace step.parquet --pairs 0 --no-curves --json")
    asked = ask("whatif theirs --trace step.parquet")
    confirmed = ask("confirm scale train.py")

    assert (listed.code, ranked.code, asked.code, confirmed.code) == (0, 0, FAILED, USAGE)
    assert "  amp " in listed.out
    assert why in " ".join(listed.out.partition("cannot be loaded")[2].split())
    assert why in ranked.out
    assert asked.err.startswith(f"error: {why}")
    assert "fused-adam" in confirmed.err


@pytest.mark.parametrize(
    "command",
    [
        "whatif ./broken.py --trace step.parquet",
        "compare step.parquet step.parquet --whatif ./broken.py",
        "calibrate --optimization ./broken.py --trace step.parquet",
        "confirm ./broken.py train.py",
    ],
)
def test_a_file_that_cannot_be_loaded_is_no_matter_of_options(ask, folder, command):
    (folder / "broken.py").write_text("import no_such_module\n")

    done = ask(*command.split())

    assert done.code == FAILED
    assert_clear(done)
    assert "broken.py cannot be loaded: ModuleNotFoundError" in done.err
    assert "--help" not in done.err


def test_an_explanation_of_a_mistake_has_its_place_too(ask, folder):
    (folder / "mine.py").write_text(HEAD + "graph.select().scale(1 / n)\n")

    done = ask("explain --whatif ./mine.py --trace step.parquet")

    assert done.code == FAILED
    assert f"mine.py, line {LINE}: ZeroDivisionError" in done.err


def test_what_a_sweep_leaves_out_has_its_place_too(ask, folder):
    (folder / "mine.py").write_text(HEAD + "graph.select(phas=1).scale(keep)\n")

    done = ask("sweep ./mine.py --set keep=0.5,1 --trace step.parquet --json")

    assert done.code == FAILED
    assert f"mine.py, line {LINE}: tasks have no column 'phas'. Did you mean 'phase'?" in done.out
