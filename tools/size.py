"""Measure the code by room, and fail where a room is larger than its budget.

    python tools/size.py            the table; exits with 1 and names each room that is over its budget
    python tools/size.py PATH...    tokens, lines of code and tokens a line of each file below these paths

Tokens are counted by `tokenize`, without comments, line ends, indentation and docstrings. Any other text
over several lines counts a token a word, and f-strings count what is in them, on every Python alike.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Budget(NamedTuple):
    """What a room may be at most."""

    amount: int  # tokens, lines or words
    files: int
    mean: float  # tokens a line of code


# Each issue lowers these, to 365,000 tokens in 280 files at 9.0 a line; worlds may add 13,000, plans 7,000.
BUDGETS = {
    "core": Budget(108_205, 52, 10.10),
    "reading and recording": Budget(133_570, 75, 9.48),
    "knowledge": Budget(196_050, 92, 10.50),
    "surface": Budget(104_715, 52, 9.53),
    "world": Budget(18_875, 11, 9.79),
    "plan": Budget(9_585, 6, 10.60),
    "product": Budget(570_980, 288, 9.97),
    "tests": Budget(319_800, 172, 10.41),
    "benchmarks, validation, tools": Budget(7_980, 41, 0.00),
    "README and docs": Budget(36_000, 35, 0.00),
    "C": Budget(186, 2, 0.00),
    "other code": Budget(1_200, 12, 0.00),
}
ROOMS = {  # the folders of `daydream/`; its loose files are of reading and recording
    "core": ("graph", "simulate", "predict", "transforms", "compiled"),
    "reading and recording": ("collect", "trace", "handles", "files", "parallel", "trainers"),
    "knowledge": ("costs", "model", "memory", "optimizations", "calibration"),
    "world": ("world",),
    "plan": ("plan",),
    "surface": ("report", "cli", "agents", "tools", "integrations", "instrument"),
}
WHAT = "tokens (lines, words)", "files", "tokens a line"
NOT_COUNTED = {"__pycache__", "build", "dist", "site", "node_modules", "changes"}
SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
OTHER_CODE = {".js", ".css", ".html", ".jinja", ".sql", ".c", ".h", ".cpp", ".cu", ".sh", ".ipynb"}


@dataclass
class Size:
    """What a room comes to: `amount` is tokens, lines or words."""

    amount: int = 0
    lines: int = 0
    files: int = 0

    def add(self, amount: int, lines: int) -> None:
        """Count a file."""
        self.amount, self.lines, self.files = self.amount + amount, self.lines + lines, self.files + 1

    @property
    def mean(self) -> float:
        """Tokens a line of code."""
        return round(self.amount / self.lines, 2) if self.lines else 0.0


def main(arguments: Sequence[str]) -> int:
    """Print the table or the sizes of some paths; return the exit code."""
    for path in [each for name in arguments for each in sorted(files(Path(name)))]:
        if path.suffix == ".py":
            tokens, lines = size(path.read_text(encoding="utf-8"))
            print(f"{tokens:>8,} {lines:>7,} {tokens / max(lines, 1):>6.1f}  {path}")
    if arguments:
        return 0
    found, over, row = rooms(ROOT), [], "{:<30} {:>9} {:>9} {:>6} {:>6} {:>7} {:>7}"
    print(row.format("room", "size", "at most", "files", "most", "a line", "most"))
    for room, most in BUDGETS.items():
        of = found[room]
        print(row.format(room, of.amount, most.amount, of.files, most.files, of.mean, most.mean))
        for what, here, there in zip(WHAT, (of.amount, of.files, of.mean), most, strict=True):
            over += [f"{room}: {here:,} {what}, at most {there:,}"] if here > there else []
    print("\n".join(over), file=sys.stderr)
    return int(bool(over))


def rooms(root: Path) -> dict[str, Size]:
    """Return the size of each room: benchmarks, C, other code in lines, docs in words, else tokens."""
    found = {name: Size() for name in BUDGETS}
    for path in files(root):
        top, *below = path.relative_to(root).parts
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py" and top in {"daydream", "optimizations", "tests"}:
            counted = size(text)
            places = below[:1] if top == "daydream" else [top]
            room = next((room for room, of in ROOMS.items() if {*places} & {*of}), "reading and recording")
            for name in ["tests"] if top == "tests" else [room, "product"]:
                found[name].add(*counted)
        elif path.suffix == ".py":
            found["benchmarks, validation, tools"].add(len(text.splitlines()), 0)
        elif path.suffix in {".c", ".h"} and top == "daydream":
            found["C"].add(len(text.splitlines()), 0)
        elif path.suffix == ".ipynb":
            cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
            found["other code"].add(sum(len("".join(cell["source"]).splitlines()) for cell in cells), 0)
        elif path.suffix in OTHER_CODE:
            found["other code"].add(len(text.splitlines()), 0)
        elif path.suffix == ".md" and (top in {"docs", "examples", "README.md"}):
            found["README and docs"].add(len(text.split()), 0)
    return found


def files(path: Path) -> Iterator[Path]:
    """Yield the files that may be counted: nothing hidden, built or linked."""
    if path.is_file():
        yield path
    elif path.name not in NOT_COUNTED and (path.name == ".github" or not path.name.startswith(".")):
        for each in path.iterdir():
            if not each.is_symlink() and (each.is_dir() or each.suffix in {".py", ".md", *OTHER_CODE}):
                yield from files(each)


def size(text: str) -> tuple[int, int]:
    """Return the tokens and the lines of code of a Python file."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docs = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    last_lines = {doc.lineno: doc.end_lineno or 0 for doc in docs}
    count, lines, end = 0, set(), 0  # `end` is the last line of the docstring that came last
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type == tokenize.STRING
        end = last_lines.get(token.start[0], end) if is_text else end
        if token.type not in SKIPPED and not (is_text and token.start[0] <= end):
            lines.update(range(token.start[0], token.end[0] + 1))
            count += _tokens(token)
    return count, len(lines)


def _tokens(token: tokenize.TokenInfo) -> int:
    """Return what a token counts: a text over several lines its words, an f-string its parts."""
    kind, text = tokenize.tok_name[token.type], token.string
    if kind == "STRING" and "f" in re.split("['\"]", text)[0].lower():
        return 2 + _parts(ast.parse(text, mode="eval").body, long="\n" in text)
    return len(text.split()) if "\n" in text else int(bool(text))


def _parts(node: ast.expr, *, long: bool) -> int:
    """Return the tokens of an f-string between its quotes, as Python 3.12 makes them."""
    count = 0
    for part in node.values if isinstance(node, ast.JoinedStr) else []:
        if isinstance(
            part, ast.FormattedValue
        ):  # braces, expression, conversion, colon and what is behind it
            inner = tokenize.generate_tokens(io.StringIO(ast.unparse(part.value)).readline)
            count += 2 + sum(_tokens(token) for token in inner if token.type not in SKIPPED)
            count += 2 * (part.conversion != -1)
            count += 1 + _parts(part.format_spec, long=long) if part.format_spec else 0
        elif isinstance(part, ast.Constant):  # doubled braces end a token
            text = str(part.value)
            count += len(text.split() if long and "\n" in text else re.findall(r"[^{}]*[{}]|[^{}]+", text))
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
