"""Options of what-ifs and a user's own files: what each means, and what is said of mistakes."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import daydream as typed
from shared import EXAMPLES, GPT

import daydream
from daydream.cli.whatif import above_gate
from daydream.files.atomic import write_whole
from daydream.graph.select import nearest_layers
from daydream.transforms import registry
from daydream.transforms.registry import names

# Bad input: one clear message, the right exit code, no traceback, nothing overwritten


HERE = Path(__file__).parent
FAILED, USAGE, INTERRUPTED = 1, 2, 130
REPLAY = ["replay", "--trace"]


def own_timeline(path):
    from daydream.report.perfetto import write

    write(path, daydream.replay(path.parent / "step.parquet"))


def foreign_parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2]}), path)


def first(of, size):
    """What writes the first bytes of a trace, for a file that was cut off."""
    return lambda path: path.write_bytes((path.parent / of).read_bytes()[:size])


BAD_TRACES = {  # a file, what it holds or what makes it, and what is said
    "truncated.json.gz": (first("step.json.gz", 20_000), "cut off or damaged"),
    "notes.txt": (b"dear diary\n", "is not JSON, SQLite or parquet"),
    "latin.json": ('{"traceEvents": "é"}'.encode("latin-1"), "latin.json"),
    "empty folder": (Path.mkdir, "holds no trace"),
    "timeline.json.gz": (own_timeline, "timeline.json.gz is a timeline that daydream wrote"),
    "empty.parquet": (b"", "empty.parquet is not a parquet file: it is empty"),
    "foreign.parquet": (foreign_parquet, "daydream did not write it"),
    "cut.parquet": (first("step.parquet", 5_000), "cut.parquet"),
}


@pytest.mark.parametrize("name", BAD_TRACES)
@pytest.mark.parametrize("command", [["info"], ["import", "-o", "out.parquet"]])
def test_a_bad_trace_is_one_clear_message(ask, folder, command, name):
    holds, said = BAD_TRACES[name]
    path = folder / name
    if isinstance(holds, bytes):
        path.write_bytes(holds)
    else:
        holds(path)
    before = set(folder.iterdir())

    done = ask(*command, str(path))

    assert done.code == FAILED
    assert_clear(done)
    assert said in done.err
    assert set(folder.iterdir()) == before


REFUSALS = [line.split("\t") for line in (HERE / "refusals.tsv").read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("code", "question", "said"), REFUSALS)
def test_a_bad_question_is_one_clear_message(ask, folder, code, question, said):
    (folder / "ranks.json").mkdir()
    for path in [*(HERE / "odd").iterdir(), *(HERE.parent / "collect" / "executorch").glob("portable.*")]:
        shutil.copy(path, folder)
    before = files_of(folder)

    done = ask(*question.split())

    assert_clear(done)
    assert said in done.err
    assert done.code == int(code)
    assert files_of(folder) == before


def assert_clear(done):
    """One `error:`, what belongs to it indented below, no traceback, no result."""
    first, *others = done.err.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith("       ") for line in others)
    assert len(others) <= 4
    assert done.out == ""


def test_force_overwrites_and_only_force(ask, folder):
    wanted = folder / "out.json"
    wanted.write_text("precious")

    refused = ask("whatif amp --trace step.parquet -o out.json")
    kept = wanted.read_text()
    done = ask("whatif amp --trace step.parquet -o out.json --force")

    assert refused.code == FAILED
    assert kept == "precious"
    assert done.code == 0
    assert wanted.read_text() != "precious"
    assert not list(folder.glob(".*"))


def test_an_interrupt_exits_130_without_a_traceback(ask, folder):
    own = "import signal, time\n\n\ndef waiting(graph):\n    signal.raise_signal(signal.SIGINT)\n"
    (folder / "waiting.py").write_text(f"{own}    time.sleep(60)\n")

    done = ask("whatif ./waiting.py --trace step.parquet")
    assert (done.code, done.out, done.err.strip()) == (INTERRUPTED, "", "")


@pytest.mark.skipif(os.name != "posix", reason="needs a named pipe")
def test_what_may_never_end_is_refused_at_once(ask, folder):
    os.mkfifo(folder / "pipe.json")
    for name, what in (("pipe.json", "a pipe"), ("/dev/zero", "a device")):
        for args in (["info", name], ["whatif", "amp", "--trace", name], ["import", name, "-o", "x.parquet"]):
            done = ask(*args)
            said = f"error: {name} is {what}; a regular file was needed. Save it to a file first.\n"
            assert (done.code, done.err) == (FAILED, said)


def test_a_reader_that_leaves_is_no_error(folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "daydream", "info", "step.parquet"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)

    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(folder):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "daydream", "whatif", "--list"],
            cwd=folder, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60,
        )  # fmt: skip

    assert done.returncode == FAILED
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(tmp_path):
    def write(temporary):
        # as pyarrow says it: the temporary name, and the number of the error behind "Detail:"
        raise PermissionError(
            13, f"Failed to open local file '{temporary}'. Detail: [errno 13] Permission denied"
        )

    with pytest.raises(daydream.OutputError) as raised:
        write_whole(tmp_path / "x.parquet", write)

    assert str(raised.value) == f"cannot write {tmp_path / 'x.parquet'}: Permission denied"


# Where an optimization does not apply: the reason, and what to do, on every example


@pytest.mark.parametrize("example", ["mlp_cpu.json.gz", "synthetic_gpt_gpu.json.gz"])
@pytest.mark.parametrize("name", names())
def test_every_refusal_has_a_next_step(ask, name, example):
    done = ask("whatif", name, "--json", "--trace", str(EXAMPLES / example))

    if done.code:
        assert re.search(r"daydream (rank|collect) |--help'|give --\w+", done.err), done.err


def test_info_notes_on_stderr_once_that_the_compiled_engine_is_missing(ask, monkeypatch):
    from daydream import compiled
    from daydream.cli import source

    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "_built", lambda: None)
    source.note_missing_engine.cache_clear()

    assert "compiled engine is missing" in ask("info step.json.gz").err
    assert "compiled engine" not in ask("info step.json.gz").err


# No command writes over what it was given to read, however it was given


READ = "is read by this command"
TABLE = "kernel,duration_us\nvolta,1\n"
OWN = "def mine(graph):\n    graph.select(kind='kernel').scale(0.5)\n"


@pytest.mark.parametrize(
    "question",
    [
        "import runs -o runs/trace.parquet --force",
        "import runs -o runs/../runs/trace.parquet --force",
        "import runs -o link.parquet --force",
        "sweep scale --set factor=0.5,1 --trace step.parquet --table table.csv -o table.csv --force",
        "sweep ddp --set workers=2,4 --set cluster=dgx,table.csv --trace step.parquet -o table.csv --force",
        "sweep scale --set factor=0.5,1 --trace step.json.gz --trace step.parquet -o step.parquet --force",
        "calibrate --trace step.parquet --optimization ./mine.py -o mine.py --force",
        "collect -o mine.py --force mine.py",
        "collect -o table.csv --force mine.py --data table.csv",
    ],
)
def test_a_file_that_is_read_is_not_written(question, ask, folder):
    (folder / "runs").mkdir()
    shutil.copy(folder / "step.parquet", folder / "runs" / "trace.parquet")
    (folder / "link.parquet").symlink_to(folder / "runs" / "trace.parquet")
    (folder / "table.csv").write_text(TABLE)
    (folder / "mine.py").write_text(OWN)
    before = files_of(folder)

    done = ask(*question.split())

    assert done.code == FAILED, done.err
    assert READ in done.err
    assert files_of(folder) == before


def files_of(folder):
    """Return what files hold, but for what Python keeps of a file that it ran."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    return {path: path.read_bytes() for path in files}


# Mistakes in a user's own optimization: what went wrong, in which file and line, and what was meant


HEAD = "from daydream import GraphError\n\n\ndef mine(graph, *, keep: float = 0.0):\n    n = 0\n    "
LINE = 6
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

    done = ask("whatif mine.py --trace", str(GPT))
    other = ask("whatif other.py --trace", str(GPT))

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


# `whatif`: the options of an optimization are options of the command, wherever they are typed


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

    assert options_of(own)["cluster"] == "dgx-a100"


def options_of(done):
    return done.good().json()["options"]


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


def test_a_change_of_nothing_is_an_error_with_a_reason(ask, folder):
    (folder / "idle.py").write_text("def idle(graph):\n    graph.select()\n")
    (folder / "same.py").write_text("def same(graph):\n    graph.select().scale(1)\n")
    (folder / "done.py").write_text("def done(graph):\n    graph.does_not_apply('already bf16')\n")

    idle, same, done = (ask("whatif", f"{n}.py", "--trace", "step.parquet") for n in ("idle", "same", "done"))
    assert (idle.code, same.code, done.code) == (1, 0, 1)
    assert "idle found nothing to change in this trace" in idle.err
    assert "already bf16" in done.err
    assert "1.00x" in same.out


# `whatif --fail-above`: a gate for CI, which shows the answer and tells by its exit code


def test_what_is_short_enough_passes_and_what_is_not_exits_with_3():
    asked = ("whatif", "amp", "--trace", GPT.name, "--fail-above")
    short, long = (
        typed(*asked, "11", folder=GPT.parent),
        typed(*asked, "9", folder=GPT.parent),
    )
    assert (short.code, long.code) == (0, 3)
    assert short.out == long.out  # the answer is there either way
    assert "gate failed" not in short.err
    assert "gate failed: 10.22 ms predicted, 9.00 ms allowed" in long.err
    assert typed(*asked, "8", "--json", folder=GPT.parent).json()["predicted_ns"] > 8e6


def test_what_is_not_known_does_not_pass():
    assert "step is unknown" in above_gate(SimpleNamespace(predicted_ns=None), 9.5)
    assert above_gate(SimpleNamespace(predicted_ns=None), None) is None
