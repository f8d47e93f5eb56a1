"""Mutation testing: is there a test that fails when one operator, number or statement of the code is changed?

    python validation/mutate.py --minutes 10 --work FOLDER      go on where the last run stopped

A seeded sample of mutants of the graph, the simulator, the transforms and the operator table; each runs against
the tests of its room that reach its line (`coverage` tells which), in a copy of the repository in FOLDER. A mutant
that no test notices survives and shows a missing test. `mutants.csv` beside this file keeps what became of each.
"""

from __future__ import annotations

import argparse
import ast
import csv
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("mutants.csv")
SEED, OF_CODE, OF_TABLE, CPU_S = 38, 520, 80, 90
PYTEST = "-m pytest -q -n 0 -p no:cacheprovider"
TABLE = "daydream/costs/operators.tsv"
CORE = "tests/graph tests/simulate tests/test_machine.py tests/test_machine_blocked.py tests/test_machine_whatif.py"
ROOMS = {  # the tests of each
    "daydream/graph": CORE,
    "daydream/simulate": CORE,
    "daydream/transforms": "tests/graph/test_compose.py tests/optimizations tests/cli/test_cli_own_files.py",
    TABLE: "tests/costs/test_work_by_hand.py tests/costs/test_operator_table.py",
}
PAIRS = "Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,Add Sub,Mult Div,BitAnd BitOr,And Or"
KINDS = [[getattr(ast, name) for name in pair.split()] for pair in PAIRS.split(",")]
SWAPPED = {one: other for pair in KINDS for one, other in (pair, pair[::-1])}
NO_CODE = {"annotation", "returns", "decorator_list", "bases"}  # what no step of the program depends on


class Mutant(NamedTuple):
    """A change of one part of a file: what is between two offsets in bytes becomes `after`."""

    file: str
    line: int  # of the statement
    begin: int
    end: int
    before: str
    after: str


def of_code(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a Python file."""
    text, starts = path.read_bytes(), [0]
    for each in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(each))

    def visit(node: ast.AST, line: int) -> Iterator[Mutant]:
        line = node.lineno if isinstance(node, ast.stmt) else line
        for changed in _changed(node):
            begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            after = changed if isinstance(node, ast.stmt) else f"({changed})"
            yield Mutant(str(path.relative_to(ROOT)), line, begin, end, ast.unparse(node), after)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if (
                    isinstance(child, ast.AST)
                    and name not in NO_CODE
                    and not isinstance(child, ast.JoinedStr)
                ):
                    yield from visit(child, line)

    yield from visit(ast.parse(text), 1)


def _changed(node: ast.AST) -> Iterator[str]:
    """Yield the text of a node with one thing changed."""
    match node:
        case ast.Compare(ops=[op]):
            yield ast.unparse(ast.Compare(node.left, [SWAPPED[type(op)]()], node.comparators))
        case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPPED:
            fields = {**dict(ast.iter_fields(node)), "op": SWAPPED[type(node.op)]()}
            yield ast.unparse(type(node)(**fields))
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield ast.unparse(node.operand)
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield str(value + 1)
        case ast.Expr(value=ast.Call()):
            yield "pass"


def of_table(path: Path) -> Iterator[Mutant]:
    """Yield a mutant for each cell of the operator table: a number is one more, anything else is left out."""
    text = path.read_text(encoding="ascii")
    for cell in re.finditer(r"(?<=\t)[^\t\n]+", text):
        line, after = (
            text.count("\n", 0, cell.start()) + 1,
            str(int(cell[0]) + 1) if cell[0].isdigit() else "",
        )
        yield from [Mutant(TABLE, line, *cell.span(), cell[0], after)] if line > 1 else []


def sample() -> list[Mutant]:
    """Return the mutants of the seed, in the order they are run in."""
    paths = [path for room in ROOMS if room != TABLE for path in sorted((ROOT / room).rglob("*.py"))]
    chance = random.Random(SEED)
    found = chance.sample([each for path in paths for each in of_code(path)], OF_CODE)
    found += chance.sample([*of_table(ROOT / TABLE)], OF_TABLE)
    chance.shuffle(found)
    return found


@cache
def reached(copy: Path, tests: str) -> dict[tuple[str, int], list[str]]:
    """Return which tests run a line: by file and line the tests' ids; all where it runs at import alone."""
    data, config = copy / f".coverage.{len(tests)}", copy / "coveragerc"
    if not data.exists():
        config.write_text("[run]\ndynamic_context = test_function\nsource = daydream\n")
        words = f"-m coverage run --rcfile={config} --data-file={data} {PYTEST} {tests}".split()
        subprocess.run([sys.executable, *words], cwd=copy, check=True)
    from coverage import CoverageData

    found, places = CoverageData(str(data)), {path.stem: path for path in (copy / "tests").rglob("test_*.py")}
    found.read()
    lines: dict[tuple[str, int], list[str]] = {}
    for file in found.measured_files():
        for line, contexts in found.contexts_by_lineno(file).items():
            named = [name.split(".")[-2:] for name in contexts if name]
            ids = [f"{places[module].relative_to(copy)}::{test}" for module, test in named]
            lines[str(Path(file).relative_to(copy)), line] = ids or tests.split()
    return lines


def judge(copy: Path, mutant: Mutant) -> str:
    """Return `killed`, `timeout`, `survived` or `not reached`, after a run of the tests with a mutant."""
    tests = ROOMS[next(room for room in ROOMS if mutant.file.startswith(room))]
    ids = tests.split() if mutant.file == TABLE else reached(copy, tests).get((mutant.file, mutant.line))
    if ids is None:
        return "not reached"
    file, text = copy / mutant.file, (ROOT / mutant.file).read_bytes()
    file.write_bytes(text[: mutant.begin] + mutant.after.encode() + text[mutant.end :])
    words = [sys.executable, "-B", *PYTEST.split(), "-x", *ids]
    with Popen(words, cwd=copy, stdout=DEVNULL, stderr=DEVNULL) as tests_:
        resource.prlimit(tests_.pid, resource.RLIMIT_CPU, (CPU_S, CPU_S))
    file.write_bytes(text)
    return {0: "survived", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}.get(
        tests_.returncode, "killed"
    )


def main() -> None:
    """Run mutants that have no row yet, and add theirs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no mutant later than this")
    parser.add_argument("--room", default="", help="mutants of this folder or file alone")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder, or that of the last run")
    options = parser.parse_args()
    until, copy = time.monotonic() + 60 * options.minutes, options.work.absolute()
    if not (copy / "daydream").exists():
        ignored = shutil.ignore_patterns(".*", "__pycache__", "evaluation")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True, dirs_exist_ok=True)
    for name in {mutant.file for mutant in sample()}:  # a run that was killed left its mutant
        (copy / name).write_bytes((ROOT / name).read_bytes())
    rows = list(csv.reader(ROWS.open(newline="")))[1:] if ROWS.exists() else []
    known = {tuple(row[:-1]) for row in rows}
    for mutant in sample():
        mine = mutant.file.startswith(options.room) and tuple(map(str, mutant)) not in known
        if mine and time.monotonic() < until:
            rows.append([*map(str, mutant), judge(copy, mutant)])
            with ROWS.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([[*Mutant._fields, "outcome"], *rows])
    alive = sum(row[-1] in {"survived", "not reached"} for row in rows)
    print(f"{len(rows)} mutants of seed {SEED}: {len(rows) - alive} killed, {alive} not")


if __name__ == "__main__":
    main()
