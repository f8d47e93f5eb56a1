"""What a benchmark hands over: tables, aims with what was measured for them, and what was left out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from timing import Ratio, short

CONTROL_OFF = 0.15  # an A/A control further from 1 than this is marked: the machine was too restless


@dataclass
class Table:
    """Rows of figures under headings; `columns` maps a row's key to its heading, with the unit in it."""

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    explanation: str = ""


@dataclass
class Aim:
    """A bar set before measuring, and the figure of every case; `least` tells which side of it is good."""

    what: str
    bar: float
    cases: dict[str, float]
    least: bool = True
    unit: str = "x"

    @property
    def missed(self) -> list[str]:
        """Cases on the wrong side of the bar."""
        return [
            case
            for case, value in self.cases.items()
            if (value < self.bar) == self.least and value != self.bar
        ]


@dataclass
class Part:
    """One benchmark's outcome."""

    title: str
    method: str
    tables: list[Table] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: bool = False


@dataclass(frozen=True)
class Settings:
    """What the command line chose."""

    quick: bool = False
    cache: Path | None = None

    def rounds(self, usual: int) -> int:
        """Return how many rounds to take."""
        return 2 if self.quick else usual


def options(description: str) -> argparse.ArgumentParser:
    """Return the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="two rounds and small sizes: to see that it runs"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR",
        help="keep HolisticTraceAnalysis's virtual environment here (default: a temporary one)",
    )  # fmt: skip
    return parser


def alone(measure: Callable[[Settings], Part]) -> None:
    """Run one benchmark as a script: its tables, or with --json its result, on stdout."""
    parser = options((sys.modules[measure.__module__].__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    chosen = parser.parse_args()
    part = measure(Settings(chosen.quick, chosen.cache))
    if chosen.json:
        json.dump(asdict(part), sys.stdout)
    else:
        sys.stdout.write("\n".join([*markdown(part), *aims_table([part])]))
    sys.stdout.write("\n")


def read(text: str) -> Part:
    """Return a part from the JSON that `alone` wrote."""
    raw = json.loads(text)
    raw["tables"] = [Table(**table) for table in raw["tables"]]
    raw["aims"] = [Aim(**aim) for aim in raw["aims"]]
    return Part(**raw)


def say(line: str) -> None:
    """Tell on stderr how far it is."""
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()


def markdown(part: Part) -> list[str]:
    """Return a part as lines of markdown."""
    lines = [f"## {part.title}", "", part.method, ""]
    for table in part.tables:
        lines += [f"### {table.title}", ""] if table.title else []
        lines += [table.explanation, ""] if table.explanation else []
        lines += grid(
            list(table.columns.values()),
            [[_cell(row.get(key)) for key in table.columns] for row in table.rows],
        )
        lines.append("")
    lines += [f"- {note}" for note in part.notes] + [""] * bool(part.notes)
    lines += [f"- Left out: {reason}" for reason in part.left_out] + [""] * bool(part.left_out)
    return lines


def aims_table(parts: Sequence[Part]) -> list[str]:
    """Return all aims with what came of them."""
    rows = []
    for aim in (aim for part in parts for aim in part.aims):
        values = sorted(aim.cases.values())
        if not values:
            continue
        measured = short(values[0]) if len(values) == 1 else f"{short(values[0])} to {short(values[-1])}"
        sign, unit = ">=" if aim.least else "<=", "" if aim.unit == "x" else f" {aim.unit}"
        verdict = "yes" if not aim.missed else "no" if len(aim.missed) == len(values) else "in part"
        where = f"{verdict}; missed on {', '.join(aim.missed)}" if verdict == "in part" else verdict
        rows.append([aim.what, f"{sign} {aim.bar:g}{unit}", measured + unit, str(len(values)), where])
    return grid(["aim", "bar", "measured", "cases", "met"], rows)


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a markdown table; every column but the first is aligned to the right."""
    rule = ["---"] + ["---:"] * (len(headings) - 1)
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *rows)]


def control(ratio: Ratio) -> str:
    """Return an A/A control, marked if it is off."""
    mark = " (off)" if abs(ratio.value - 1) > CONTROL_OFF else ""
    return f"{ratio.value:.2f}{mark}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else short(value)
