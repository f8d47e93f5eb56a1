"""Mutation testing: is there a test that fails when one operator, number or statement of the code is changed?

    python validation/mutate.py --work FOLDER            go on where the last run stopped; `--minutes 10` of it
    python validation/mutate.py --work FOLDER --again    survivors once more, with the tests of today

A seeded sample of mutants of the graph, the simulator, the transforms and the operator table, as they were when
FOLDER got its copy of the repository. All tests are collected once. A first fork runs them and notes which of them
run a mutant's line, and for how long; then each mutant has a fork of its own, in which its function gets the changed
code and these tests run, fastest first, until one fails. What stands outside of functions is changed in the file,
and a new process runs the tests. A mutant that no test notices survives and shows a missing test. `mutants.csv`
beside this file keeps what became of each, and why a survivor is no other program, where it is not: `equivalent`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import csv
import functools
import gc
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = Path(__file__).with_name("mutants.csv")
SEED, OF_CODE, OF_TABLE = 38, 520, 80
CPU_S = 20  # of tests: a mutant has survived the fastest ones that take so long in all
TABLE, READER = "daydream/costs/operators.tsv", "daydream/costs/operators.py"
ROOMS = "daydream/graph", "daydream/simulate", "daydream/transforms"
TESTS = [
    *("tests/graph", "tests/simulate", "tests/optimizations", "tests/costs", "tests/handles"),
    *("tests/test_machine.py", "tests/test_machine_blocked.py", "tests/test_machine_whatif.py"),
    "tests/cli/test_cli_own_files.py",
]
PYTEST = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
PAIRS = "Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,Add Sub,Mult Div,BitAnd BitOr,And Or"
KINDS = [[getattr(ast, name) for name in pair.split()] for pair in PAIRS.split(",")]
SWAPPED = {one: other for pair in KINDS for one, other in (pair, pair[::-1])}
NO_CODE = {"annotation", "returns", "decorator_list", "bases"}  # what no step of the program depends on


class Mutant(NamedTuple):
    """A change of one part of a file: what is between two offsets in bytes becomes `after`."""

    file: str
    line: int  # of the statement
    function: int  # the line on which the outermost function around it begins; 0 outside of functions
    begin: int
    end: int
    before: str
    after: str

    def text(self, copy: Path) -> bytes:
        """Return the changed file."""
        text = (copy / self.file).read_bytes()
        return text[: self.begin] + self.after.encode() + text[self.end :]


def of_code(copy: Path, path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a Python file."""
    text, starts = path.read_bytes(), [0]
    for each in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(each))

    def visit(node: ast.AST, line: int, function: int) -> Iterator[Mutant]:
        line = node.lineno if isinstance(node, ast.stmt) else line
        for changed in _changed(node):
            begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
            end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
            after = changed if isinstance(node, ast.stmt) else f"({changed})"
            file = str(path.relative_to(copy))
            yield Mutant(file, line, function, begin, end, ast.unparse(node), after)
        for name, value in ast.iter_fields(node):
            inside = function
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and name == "body":
                inside = function or min(each.lineno for each in [node, *node.decorator_list])
            for child in value if isinstance(value, list) else [value]:
                skipped = name in NO_CODE or isinstance(child, ast.JoinedStr)
                if isinstance(child, ast.AST) and not skipped:
                    yield from visit(child, line, inside)

    yield from visit(ast.parse(text), 1, 0)


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


def of_table(copy: Path) -> Iterator[Mutant]:
    """Yield a mutant for each cell of the operator table: a number is one more, anything else is left out."""
    text = (copy / TABLE).read_text(encoding="ascii")
    for cell in re.finditer(r"(?<=\t)[^\t\n]+", text):
        line = text.count("\n", 0, cell.start()) + 1
        after = str(int(cell[0]) + 1) if cell[0].isdigit() else ""
        yield from [Mutant(TABLE, line, 0, *cell.span(), cell[0], after)] if line > 1 else []


def sample(copy: Path) -> list[Mutant]:
    """Return the mutants of the seed, in the order they are run in."""
    paths = [path for room in ROOMS for path in sorted((copy / room).rglob("*.py"))]
    chance = random.Random(SEED)
    found = chance.sample([each for path in paths for each in of_code(copy, path)], OF_CODE)
    found += chance.sample([*of_table(copy)], OF_TABLE)
    chance.shuffle(found)
    return found


def functions(text: bytes, file: str) -> dict[tuple[str, int], CodeType]:
    """Return the code of the functions of a file that are in no other function, by name and line."""
    found, bodies = {}, [compile(text, file, "exec", dont_inherit=True)]
    for body in bodies:
        for code in body.co_consts:
            if isinstance(code, CodeType) and code.co_flags & 2:  # CO_NEWLOCALS: a function, not a class
                found[code.co_name, code.co_firstlineno] = code
            elif isinstance(code, CodeType):
                bodies.append(code)
    return found


CACHED = type(functools.cache(len))
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 3: "killed", 4: "killed"}  # by exit code


class Judge:
    """The plugin that forks where pytest would run what it collected."""

    def __init__(self, copy: Path, known: dict[Mutant, list[str]], until: float) -> None:
        self.copy, self.known, self.until = copy, known, until
        self.passed: dict[str, float] = {}  # the CPU seconds of each test that passed
        self.fails = False

    def pytest_sessionstart(self) -> None:
        """Import what is to be changed: a function that is not there cannot get other code."""
        for room in ROOMS:
            for path in sorted(Path(room).rglob("*.py")):
                importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run each mutant that has no row yet, and write its row."""
        items = {item.nodeid: item for item in session.items}
        self.caches = [each for each in gc.get_objects() if type(each) is CACHED]
        reach = self.copy / "reach.json"
        if not reach.exists():
            self.fork(lambda: self.note(items, reach))
        known: dict[str, Any] = json.loads(reach.read_text())
        self.passed = {name: cpu for name, cpu in known["passed"].items() if name in items}
        places: dict[tuple[str, int], list[FunctionType]] = {}
        for each in gc.get_objects():
            if type(each) is FunctionType:
                code = each.__code__
                places.setdefault((code.co_filename, code.co_firstlineno), []).append(each)
        for mutant in sample(self.copy):
            if mutant not in self.known and time.monotonic() < self.until:
                names = known["lines"].get(
                    f"{mutant.file}:{mutant.line}" if mutant.function else mutant.file, ()
                )
                order = sorted(self.passed.keys() & names, key=lambda name: (self.passed[name], name))
                spent = itertools.accumulate(self.passed[name] for name in order)
                chosen = [items[name] for name, sum_ in zip(order, spent, strict=True) if sum_ < CPU_S]
                outcome = self.judge(mutant, places, chosen)
                self.known[mutant] = [outcome, ""]
                write(self.known)
        return True

    def judge(self, mutant: Mutant, places: dict[Any, list[FunctionType]], items: list[Any]) -> str:
        """Return `killed`, `timeout`, `survived` or `not reached`."""
        file = self.copy / mutant.file
        if not items:
            return "not reached"
        before = file.read_bytes()
        if mutant.function:
            here = places[str(file), mutant.function]
            code = functions(mutant.text(self.copy), str(file))

            def changed() -> None:
                for each in here:
                    each.__code__ = code[each.__code__.co_name, mutant.function]
                self.run(items)

            return OUTCOMES.get(self.fork(changed), "timeout")
        file.write_bytes(mutant.text(self.copy))
        try:
            if mutant.file == TABLE:
                return OUTCOMES.get(self.fork(lambda: self.run(items)), "timeout")
            words = [sys.executable, "-B", "-m", "pytest", *PYTEST, *[item.nodeid for item in items]]
            limit = 300 + 20 * CPU_S  # by the clock
            done = subprocess.run(words, cwd=self.copy, capture_output=True, timeout=limit, check=False)
            return OUTCOMES.get(done.returncode, "timeout")
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            file.write_bytes(before)

    def fork(self, work: Any) -> int:
        """Return the exit code of a fork that does some work: minus the signal that ended it."""
        child = os.fork()
        if not child:
            os.setsid()
            try:
                work()
                os._exit(0)
            finally:  # no error may come back from here
                (self.copy / "error").write_text(traceback.format_exc())
                os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return code

    def run(self, items: list[Any]) -> None:
        """Run tests until one fails; a test that takes five times its time ends the process."""
        self.fails = True
        for cached in self.caches:  # what tests' files computed as they were imported
            cached.cache_clear()
        for each in signal.SIGPROF, signal.SIGALRM:
            signal.signal(each, signal.SIG_DFL)
        for item, later in zip(items, [*items[1:], None], strict=True):
            most = 3 + 5 * self.passed[item.nodeid]
            signal.setitimer(signal.ITIMER_PROF, most)
            signal.setitimer(signal.ITIMER_REAL, 120 + 20 * most)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=later)

    def note(self, items: dict[str, Any], reach: Path) -> None:
        """Write which tests pass, for how long, and which run each line and file of a mutant."""
        from coverage import Coverage

        files = {str(self.copy / mutant.file) for mutant in sample(self.copy)} - {str(self.copy / TABLE)}
        coverage = Coverage(data_file=None, config_file=False, include=[*files, str(self.copy / READER)])
        coverage.start()
        self.coverage = coverage
        for item, later in zip(items.values(), [*[*items.values()][1:], None], strict=True):
            begin = time.process_time()
            coverage.switch_context(item.nodeid)
            self.current = item.nodeid
            for cached in self.caches:
                if cached.__module__ == "daydream.costs.operators":  # each test that needs the table reads it
                    cached.cache_clear()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=later)
            if self.passed.get(item.nodeid) == 0.0:
                self.passed[item.nodeid] = time.process_time() - begin
        coverage.stop()
        data = coverage.get_data()
        lines: dict[str, Iterable[str]] = {}
        for mutant in sample(self.copy):
            file = READER if mutant.file == TABLE else mutant.file
            by_line = data.contexts_by_lineno(str(self.copy / file))
            lines[f"{mutant.file}:{mutant.line}"] = by_line.get(mutant.line, [])
            lines[mutant.file] = {name for names in by_line.values() for name in names}
        # What a fixture of a module ran counts for each test of the module.
        modules: dict[str, list[str]] = {}
        for name in items:
            modules.setdefault(name.split("::")[0], []).append(name)
        every = {
            key: sorted({name for each in names for name in modules.get(each, [each]) if name})
            for key, names in lines.items()
        }
        reach.write_text(json.dumps({"passed": self.passed, "lines": every}))

    def pytest_fixture_setup(self, fixturedef: Any) -> None:
        """Let lines that a fixture of many tests runs count for all tests of the file."""
        if fixturedef.scope != "function" and hasattr(self, "coverage"):
            self.coverage.switch_context(self.current.split("::")[0])

    def pytest_runtest_call(self) -> None:
        """Let what follows count for the test alone."""
        if hasattr(self, "coverage"):
            self.coverage.switch_context(self.current)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a mutant's fork at the first failure; else note what passed."""
        if report.failed and self.fails:
            os._exit(1)
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.passed.setdefault(report.nodeid, 0.0)
        elif report.failed:
            self.passed.pop(report.nodeid, None)


def write(known: dict[Mutant, list[str]]) -> None:
    """Write the row of each mutant."""
    with ROWS.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*Mutant._fields, "outcome", "reason"])
        rows.writerows([*mutant, *outcome] for mutant, outcome in known.items())


def main() -> None:
    """Run mutants that have no row yet, and add theirs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no mutant later than this")
    parser.add_argument("--again", action="store_true", help="run survivors again, with the tests of today")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder, or that of the last run")
    options = parser.parse_args()
    until, copy = time.monotonic() + 60 * options.minutes, options.work.absolute()
    ignored = shutil.ignore_patterns(".*", "__pycache__", "evaluation")
    if not (copy / "daydream").exists():
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True, dirs_exist_ok=True)
    rows = list(csv.reader(ROWS.open(newline="")))[1:] if ROWS.exists() else []
    known = {
        Mutant(row[0], *map(int, row[1:5]), *row[5:7]): row[7:]  # type: ignore[arg-type]
        for row in rows
        if not options.again or row[7] not in {"survived", "not reached"}
    }
    if options.again:
        shutil.rmtree(copy / "tests")
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignored, symlinks=True)
        (copy / "reach.json").unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was changed is put back
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    pytest.main([*PYTEST, *TESTS], plugins=[Judge(copy, known, until)])
    alive = sum(outcome in {"survived", "not reached"} for outcome, _ in known.values())
    same = sum(outcome == "equivalent" for outcome, _ in known.values())
    print(
        f"{len(known)} mutants of seed {SEED}: {len(known) - alive - same} killed, {same} equivalent, {alive} not"
    )


if __name__ == "__main__":
    main()
