"""Option values that nobody means, on a sound trace; and optimizations of a user's own that go wrong."""

from __future__ import annotations

import random
from functools import cache

from fuzz.commands import NUMBERS, WORDS, command, optimizations
from fuzz.hostile import Case
from fuzz.kineto_cases import bases
from fuzz.parquet_cases import traces, written

NAMES = ("--trace", "--json", "--html", "-o", "--top", "--pairs", "--table", "--steps", "--step-marker", "--contention",
         "--engine", "--workers", "--set", "--sort", "--jitter", "--straggler", "--seed", "--whatif", "--force", "--help",
         "--no-curves", "--ranks", "--max-unpacked", "--factor", "--on", "--plot", "--debug", "--")  # fmt: skip
VALUES = (*NUMBERS, *WORDS, "t.parquet", "missing", "/dev/null", "/dev/zero", ".", "out.parquet", "0.5,0.8", "factor=1,2",
          "factor=1,...,9", "scale", "amp+", "+", "t.parquet,t.parquet", "\udc80", "a" * 5000, "processes:0", "local", "2:1")  # fmt: skip


@cache
def sound() -> list[bytes]:
    """Return sound traces as parquet files."""
    import pyarrow as pa

    return [written(pa.Table.from_batches([trace.to_arrow()])) for trace in traces()]


def values(chance: random.Random) -> Case:
    """Known options with odd values."""
    return Case("options", {"t.parquet": chance.choice(sound())}, command("t.parquet", chance, wild=True))


def words(chance: random.Random) -> Case:
    """Any words in any order."""
    commands = (
        "info",
        "replay",
        "explain",
        "rank",
        "whatif",
        "scaling",
        "compare",
        "sweep",
        "import",
        "x",
        "collect",
        "confirm",
        "calibrate",
    )
    first = chance.choice(commands)
    args = [first]
    if first in ("whatif", "sweep") and chance.random() < 0.9:
        args.append(chance.choice(optimizations()).name)
    if first not in ("collect", "confirm", "calibrate") and chance.random() < 0.7:
        args += ["--trace", "t.parquet"] if first not in ("info", "import", "compare") else ["t.parquet"]
    args += [chance.choice(NAMES if chance.random() < 0.5 else VALUES) for _ in range(chance.randrange(5))]
    if any(word.startswith(("processes", "dask")) for word in args):
        args = [word for word in args if not word.startswith(("processes", "dask"))]
    return Case("options", {"t.parquet": chance.choice(sound())}, args)


BODIES = (
    "raise SystemExit(3)", "import sys; sys.exit()", "raise KeyboardInterrupt", "raise BaseException('x')", "print('x' * 100)",
    "print('\\udc80')", "import sys; sys.stdout.close()", "import sys; sys.stdout = None", "import sys; sys.stderr.close()",
    "import threading, time; threading.Thread(target=lambda: 1 / 0).start(); time.sleep(0.05)",
    "import threading, time; threading.Thread(target=lambda: time.sleep(999)).start()", "1 / 0", "raise RuntimeError('\\x1b[31m')",
    "graph.nothing()", "raise StopIteration", "yield 1", "return 5", "import warnings; warnings.warn('hm')", "f()", "assert False",
    "raise ValueError", "import os; os.chdir('/')", "raise Exception('a\\nb')", "class E(Exception):\n        def __str__(self): return 1 / 0\n    raise E",
)  # fmt: skip
SELECTS = ("graph.select()", "graph.select(kind='cpu')", "graph.select(on='gpu')", "graph.select(kind='kernel').head(1)",
           "graph.select(name='a')", "graph.select(phase='backward')", "graph.select(kind='cpu').last()",
           "graph.select(kind='x')", "graph.select(name='(')", "graph.select(layer=3)", "graph.select(on=None)")  # fmt: skip
ODD = (
    "0",
    "-1",
    "1e300",
    "float('nan')",
    "float('inf')",
    "2**62",
    "2**70",
    "'a'",
    "None",
    "[]",
    "1e-300",
    "0.5",
    "-0.5",
    "2",
)
EDITS = (
    ".scale({})", ".set(duration_ns={})", ".set(gap_ns={})", ".remove()", ".head({}).remove()", ".where(name={})", ".set(name={})",
    ".total({})", ".runs({}, of='bytes')", ".group_by({})", ".first()", ".set(lane={})",
)  # fmt: skip
CALLS = (
    "graph.insert('x', kind='cpu', lane='thread 1', duration_ns={})", "graph.insert('x', kind='collective', lane='link', duration_ns=5, after=[{}])",
    "graph.insert('x', kind={}, lane='l', duration_ns=5)", "graph.schedule('link', key={})", "graph.note({})", "graph.link([0], [0], latency_ns={})",
    "graph.insert({}, kind='cpu', lane='thread 1', duration_ns=7)",
)  # fmt: skip


def own_file(chance: random.Random) -> Case:
    """An optimization from a file, with a mistake in it."""
    lines = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.3:
            lines.append(chance.choice(BODIES))
        elif chance.random() < 0.6:
            lines.append(chance.choice(SELECTS) + chance.choice(EDITS).format(chance.choice(ODD)))
        else:
            lines.append(chance.choice(CALLS).format(chance.choice((*ODD, *SELECTS))))
    at_import = chance.choice(BODIES) if chance.random() < 0.1 else ""
    if "return" in at_import or "yield" in at_import:
        at_import = ""
    options = chance.choice(
        ("", "", ", *, a: float = 1.0", ", *, a=None", ", a=1", ", *, a: list = []", ", **more", ", *rest")
    )
    head = chance.choice(
        (
            "def mine(graph{}):",
            "def mine(graph{}):",
            "def mine(graph{}):",
            "def other(graph{}):",
            "mine = 5 #",
            "class mine:\n  def __init__(graph{}):",
            "def mine{}(:",
        )
    )
    indent = "    "
    body = "\n".join(indent + line for line in lines)
    text = f"{at_import}\n{head.format(options)}\n{body}\n"
    ask = chance.choice((
        ["whatif", "./mine.py", "--trace", "t.parquet"], ["whatif", "./mine.py", "--trace", "t.parquet", "--json"],
        ["whatif", "./mine.py+amp", "--trace", "t.parquet"], ["explain", "--trace", "t.parquet", "--whatif", "./mine.py"],
        ["sweep", "./mine.py", "--trace", "t.parquet"], ["compare", "t.parquet", "t.parquet", "--whatif", "./mine.py"],
    ))  # fmt: skip
    return Case(
        "own file", {"t.parquet": chance.choice(sound()), "mine.py": text.encode("utf-8", "replace")}, ask
    )


def tables(chance: random.Random) -> Case:
    """A table of measured times with something wrong."""
    from fuzz.kineto_cases import bytes_changed

    text = b"name,duration_ns\nk,5\nampere_sgemm_32x32_tn,7\n"
    if chance.random() < 0.7:
        text = bytes_changed(text * chance.choice((1, 3)), chance)
    args = ["whatif", chance.choice(("amp", "scale", "gpu")), "--trace", "t.parquet", "--table", "t.csv"]
    if args[1] == "gpu":
        args += ["--name", "h100"]
    elif args[1] == "scale":
        args += ["--factor", "0.5", "--on", "gpu"]
    return Case("options", {"t.parquet": chance.choice(sound()), "t.csv": text}, args)


def base_count() -> int:
    """Return how many recordings all of this is made from."""
    return len(bases())
