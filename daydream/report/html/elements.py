"""Pieces of an HTML page: elements whose texts are escaped, and tables that can be sorted and searched."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from daydream.report.text.layout import printable

VOID = ("input",)  # elements that have no end
MOST_AT_ONCE = 15  # rows of a table that stand there before the rest is asked for


class Html(str):
    """HTML that is finished; any other text still has to be escaped."""

    __slots__ = ()


@dataclass(frozen=True)
class Number:
    """A cell that shows a figure, sorts by its value, and may have a bar of that share of its width."""

    text: str
    value: float
    bar: float | None = None
    kind: str = ""  # class of the cell
    color: str = ""  # of the bar: a variable of the page's style


@dataclass(frozen=True)
class Named:
    """A cell that shows a name, and below it what it stands for."""

    name: str
    said: str


Cell = str | Number | Named


def element(name: str, *children: str, **attributes: str | bool | int) -> Html:
    """Return an element, texts and attributes escaped; `data_x` becomes `data-x`."""
    said = ""
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            said += f" {attribute}"
        elif value is not False:
            said += f' {attribute}="{escape(printable(str(value)))}"'
    if name in VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """Return pieces one behind the other, texts escaped."""
    return Html("".join(each if isinstance(each, Html) else escape(printable(each)) for each in children))


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Html:
    """Return a table."""
    body = joined(_head(head, rows), element("tbody", *(_row(row) for row in rows)))
    return element("div", element("table", body), class_="scroll")


def sortable(
    name: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], *, what: str = "rows",
    faded: Collection[int] = (),
) -> Html:  # fmt: skip
    """Return a table that can be sorted by its columns and searched; long ones begin short.

    Rows at the places `faded`, counted from 1, are grey.
    """
    buttons = [element("button", text, type="button") for text in head]
    search = element(
        "input", type="search", class_="search", placeholder=f"search {len(rows):,} {what}",
        aria_label=f"search {what}",
    )  # fmt: skip
    body = element(
        "table",
        _head(buttons, rows),
        element(
            "tbody",
            *(
                _row(row, hidden=place >= MOST_AT_ONCE, faded=place + 1 in faded)
                for place, row in enumerate(rows)
            ),
        ),
    )
    more = element("button", f"show all {len(rows):,}", type="button", class_="more")
    return element(
        "div", search, element("div", body, class_="scroll"), more if len(rows) > MOST_AT_ONCE else "",
        id=name, class_="sortable", data_most=MOST_AT_ONCE,
    )  # fmt: skip


def facts(rows: Sequence[tuple[str, str]]) -> Html:
    """Return names and what is said about them."""
    return element(
        "dl", *(joined(element("dt", name), element("dd", said)) for name, said in rows), class_="facts"
    )


def data(name: str, value: Any) -> Html:
    """Return JSON for the page's program, in which nothing can end its element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def _head(names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Html:
    """Return the head of a table, each name above its column's side."""
    first = rows[0] if rows else [""] * len(names)
    sides = ["n" if isinstance(cell, Number) else "t" for cell in first]
    cells = (element("th", name, scope="col", class_=side) for name, side in zip(names, sides, strict=True))
    return element("thead", element("tr", *cells))


def _row(cells: Sequence[Cell], *, hidden: bool = False, faded: bool = False) -> Html:
    return element("tr", *(_cell(cell) for cell in cells), hidden=hidden, class_="faded" if faded else False)


def _cell(cell: Cell) -> Html:
    if isinstance(cell, str):
        return element("td", element("span", cell), class_="t")
    if isinstance(cell, Named):
        return element("td", element("span", cell.name), element("small", cell.said), class_="t named")
    inside: str = cell.text
    kind = f"n {cell.kind}".strip()
    if cell.bar is not None:
        kind += " b"
        style = f"--w:{100 * min(max(cell.bar, 0.0), 1.0):.2f}%"
        style += f";--bar:var({cell.color})" if cell.color else ""
        inside = joined(cell.text, element("span", "", class_="bar", style=style))
    return element("td", inside, class_=kind, data_v=f"{cell.value:.12g}")
