"""Write docs/json.md: every key of the JSON that commands print, from the records that they encode.

python tools/json_page.py            write the page
python tools/json_page.py --check    exit with 1 if it is not what the records say
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from daydream.results import Record

PAGE = Path(__file__).resolve().parent.parent / "docs" / "json.md"
COMMANDS = {
    "info": "daydream.report.info.Info",
    "whatif": "daydream.predict.prediction.Prediction",
    "rank": "daydream.predict.rank.Ranking",
    "replay": "daydream.predict.replay.ReplayFigures",
    "explain": "daydream.predict.explain.Explanation",
    "scaling": "daydream.predict.scaling.Scaling",
    "plan": "daydream.plan.search.Plan",
    "sweep": "daydream.predict.sweep.Sweep",
    "compare": "daydream.predict.compare.Difference",
    "compare A B C": "daydream.predict.compare.Series",
    "blame": "daydream.predict.curves.Blame",
    "plan --only checkpointing": "daydream.plan.checkpointing.Choice",
    "confirm": "daydream.predict.confirm.Confirmation",
    "calibrate": "daydream.calibration.run.Calibration",
    "calibrate --tool": "daydream.calibration.run.InPlaceCalibration",
    "memory": "daydream.memory.result.MemoryReport",
    "memory --by": "daydream.memory.report.MemoryView",
    "memory --largest": "daydream.predict.memory.Largest",
}
HEAD = """# JSON

`--json` prints one object, `"schema": 1` first; commands on one trace add `trace`, its name. `to_json()` of
a result in Python returns the same. Keys end in their unit: `_ns` is nanoseconds, a mean per step unless
stated otherwise, `_bytes` is bytes, `_share`, `_error` and `efficiency` are fractions (0.02 is 2%). A `?`
marks a value that can be null, `[x]` a list of x, `{x}` an object with values x by name; without a type it is
a number, null if it is not finite. A key is described where it occurs first.

Made by `python tools/json_page.py`.
"""
DESCRIBED = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def page() -> str:
    """Return the page."""
    shown: list[type[Record]] = []
    described: list[str] = []
    found = [HEAD]
    for command, path in COMMANDS.items():
        module, _, name = path.rpartition(".")
        root: type[Record] = getattr(importlib.import_module(module), name)
        found.append(f"## `daydream {command} --json`\n")
        for record in nested(root):
            if record not in shown:
                shown.append(record)
                found += section(record, described, top=record is root)
    return "\n".join(found)


def nested(record: type[Record]) -> Iterator[type[Record]]:
    """Yield a record and those that its fields hold, each once."""
    known = {each.__name__: each for each in subclasses(Record)}
    waiting, seen = [record], set[type[Record]]()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        yield one
        for kind in types(one).values():
            waiting += [known[name] for name in re.findall(r"\w+", kind) if name in known]


def subclasses(record: type[Record]) -> Iterator[type[Record]]:
    """Yield all kinds of a record."""
    for each in record.__subclasses__():
        yield each
        yield from subclasses(each)


def types(record: type[Record]) -> dict[str, str]:
    """Return the type of each field, as it is written."""
    found: dict[str, str] = {}
    for each in reversed(record.__mro__):
        found |= {
            name: str(kind)
            for name, kind in vars(each).get("__annotations__", {}).items()
            if name in record.__struct_fields__
        }
    return {name: found[name] for name in record.__struct_fields__}


def section(record: type[Record], described: list[str], *, top: bool) -> Iterator[str]:
    """Yield the table of a record's keys; those that were described before by their names alone."""
    said: dict[str, str] = {}
    for each in reversed(record.__mro__):
        said |= {name: " ".join(text.split()) for name, text in DESCRIBED.findall(inspect.getdoc(each) or "")}
    summary = (inspect.getdoc(record) or "").partition("\n\n")[0]
    yield ("" if top else f"### {record.__name__}\n\n") + " ".join(summary.split()) + "\n"
    plain, rows = [], []
    for key, (name, kind) in zip(record.__struct_encode_fields__, types(record).items(), strict=True):
        what = said.get(name, "").rstrip(".").replace("None", "null")
        field = f"`{key}: {in_json(kind)}`".replace(": number", "")
        row = f"{field} | {what}"
        if what and row not in described:
            rows.append(row)
        else:
            plain.append(field)
    described += rows
    if rows:
        yield "\n".join(["key | meaning", "---|---", *rows, ""])
    if plain:
        yield f"{', '.join(plain)}\n"


def in_json(kind: str) -> str:
    """Return a type of Python in the notation of the page."""
    words = {
        r"\b(?:Sequence|list|tuple)\[([^\[\]]*?)(?:, \.\.\.)?\]": r"<\1>",
        r"\b(?:Mapping|dict)\[(?:str|text), ([^\[\]]*)\]": r"{\1}", r"\b(?:float|int)\b": "number",
        r"\b(?:str|Basis|Bound|PathCause|By|Size)\b": "text", r"\bbool\b": "boolean",
        r"\bAny\b": "any", r" \| (?:UnsetType|None)\b": "?", r" \| ": " or ",
    }  # fmt: skip
    for pattern, word in [*words.items(), *words.items()]:  # twice: a list of lists
        kind = re.sub(pattern, word, kind)
    return kind.replace("<", "[").replace(">", "]").replace("??", "?")


def main() -> int:
    """Write the page, or check it; return the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
