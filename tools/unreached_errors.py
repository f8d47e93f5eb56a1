"""List the errors of its own that the product raises and no test reaches.

    PYTHONPATH=tools python -m pytest -n auto -p unreached_errors
    python tools/unreached_errors.py

The first, over any of the tests, notes in .reached_errors where errors are raised; the second prints
`file:line error` of each that is not there, and exits with 1 if there are any. What tests reach in
processes of their own is not seen.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daydream import errors

ROOT = Path(__file__).resolve().parents[1]
REACHED = ROOT / ".reached_errors"
ROOMS = ("daydream", "optimizations")
OURS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}


def raised(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield first line, last line and class of each `raise` of one of the product's own errors in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    own = OURS | {name for name, node in named.items() if OURS & {ast.unparse(base) for base in node.bases}}
    for node in ast.walk(tree):
        error = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(error, ast.Call) and isinstance(error.func, ast.Name) and error.func.id in own:
            yield node.lineno, node.end_lineno or node.lineno, error.func.id


def unreached(reached: set[tuple[str, int]]) -> list[str]:
    """Return `file:line error` of each such `raise` none of whose lines was reached."""
    return [
        f"{name}:{first} {error}"
        for path in sorted(each for room in ROOMS for each in (ROOT / room).rglob("*.py"))
        for name in [str(path.relative_to(ROOT))]
        for first, last, error in raised(path)
        if not any((name, line) in reached for line in range(first, last + 1))
    ]


def pytest_configure() -> None:
    """Note from now on where each error is made (a plugin of pytest)."""
    made = errors.DaydreamError.__init__

    def noted(self: errors.DaydreamError, *args: Any, **options: Any) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - that of the `raise`
        path = Path(frame.f_code.co_filename)
        if ROOT in path.parents:
            with REACHED.open("a", encoding="utf-8") as file:
                file.write(f"{path.relative_to(ROOT)}:{frame.f_lineno}\n")
        made(self, *args, **options)

    errors.DaydreamError.__init__ = noted  # type: ignore[method-assign]


def main() -> None:
    """Print what no test reaches."""
    lines = [line.rpartition(":") for line in REACHED.read_text(encoding="utf-8").splitlines()]
    found = unreached({(name, int(line)) for name, _, line in lines})
    print(*found, sep="\n")
    print(f"{len(found)} errors are raised that no test reaches")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
