"""Tables of the documentation: raw rows as CSV files, summaries between the markers of a page."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

BAR = re.compile(r"(?<!\\)\|")  # not an escaped one
RULER = re.compile(r"\|[-:| ]+\|?")


def keep(folder: Path | None, name: str, lines: Iterable[str]) -> None:
    """Write the tables of some Markdown lines to FOLDER/NAME.csv, a second one to NAME_2.csv; without a folder print the lines.

    Blanks in `name` become `_`. What stands between the tables is not kept.
    """
    lines = [part for line in lines for part in line.splitlines() or [""]]
    if folder is None:
        print(*lines, sep="\n")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(tables(lines), 1):
        path = folder / f"{name.replace(' ', '_')}{f'_{number}' * (number > 1)}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def tables(lines: Iterable[str]) -> Iterator[list[list[str]]]:
    """Yield each Markdown table: its header and rows, as the cells' text without backticks."""
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            if not RULER.fullmatch(line.strip()):
                inside = line.strip().removeprefix("|").removesuffix("|")
                row = [cell.strip().replace("`", "").replace(r"\|", "|") for cell in BAR.split(inside)]
                rows += [row] if row not in rows[:1] else []
        elif rows:
            yield rows
            rows = []


def put(page: Path | None, name: str, lines: Iterable[str]) -> None:
    """Put lines between the markers of a name on a page, at its end without them; print them without a page."""
    text = "\n".join(lines).strip()
    if page is None:
        print(text)
        return
    begin, end = (f"<!-- {mark}: {name} -->" for mark in ("begin", "end"))
    whole = page.read_text(encoding="utf-8") if page.exists() else ""
    head, _, rest = whole.partition(begin)
    made = f"{head.rstrip()}\n\n{begin}\n\n{text}\n\n{end}\n\n{rest.partition(end)[2].lstrip()}"
    page.write_text(f"{made.strip()}\n", encoding="utf-8")
