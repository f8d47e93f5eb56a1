"""Views as HTML, every text escaped: for a page with sections, cards and sorted tables, or for a notebook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from daydream.lazy import regex
from daydream.report.blocks import (
    FADED,
    HEADING,
    NEUTRAL,
    Beside,
    Block,
    Code,
    Facts,
    Figures,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    Title,
)
from daydream.report.format import printable

VOID = ("input",)  # elements that have no end
MOST_AT_ONCE = 15  # rows of a page's table that stand there before the rest is asked for
MOST_NOTES = 4  # likewise
# What a notebook has no style for: of classes only the side of a cell is left, and that a row is faded.
PAGE_ONLY = regex(
    r'<span class="bar".*?</span>| class="(t|n|faded)?[^"]*"| (?:data-v|scope)="[^"]*"'
)
SIDES = {
    "t": ' style="text-align:left"',
    "n": ' style="text-align:right"',
    "faded": ' style="opacity:0.5"',
}


class Html(str):
    """HTML that is finished; any other text still has to be escaped."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | bool | int) -> Html:
    """Return an element, texts and attributes escaped; `data_x` becomes `data-x`."""
    said = ""
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            said += f" {attribute}"
        elif value is not False and value != "":
            said += f' {attribute}="{escape(printable(str(value)))}"'
    if name in VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """Return pieces one behind the other, texts escaped."""
    return Html(
        "".join(each if isinstance(each, Html) else escape(printable(each)) for each in children)
    )


def data(name: str, value: Any) -> Html:
    """Return JSON for the page's program, in which nothing can end its element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def notebook_html(blocks: Sequence[Block]) -> Html:
    """Return a view for a notebook: no styles but sides, in the notebook's own colors."""
    page = element("div", *map(_block, blocks))
    return Html(PAGE_ONLY.sub(lambda found: SIDES.get(found[1] or "", ""), page))


def page_html(blocks: Sequence[Block]) -> Html:
    """Return a view for a page: what follows a title with a name is a section of that id."""
    sections: list[tuple[str, list[Html]]] = [("", [])]
    for block in blocks:
        if isinstance(block, Title) and block.name:
            sections.append((block.name, []))
        sections[-1][1].append(_block(block))
    (_, first), *others = sections
    return joined(*first, *(element("section", *parts, id=name) for name, parts in others))


def _block(block: Block) -> Html:
    if isinstance(block, Headline):
        return element("p", element("strong", block), class_="answer")
    if isinstance(block, Title):
        said = element("p", block.help, class_="help") if block.help else ""
        return joined(element("h2" if block.name else "h3", block.text), said)
    if isinstance(block, Text):
        return element("p", block.head, block.text, class_="help" if block.aside else "")
    if isinstance(block, Code):
        return element("p", "in code: ", element("code", block.code))
    if isinstance(block, Facts):
        rows = (joined(element("dt", name), element("dd", said)) for name, said in block.rows)
        return element("dl", *rows, class_="facts")
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Beside):
        return element("div", *map(_table, block.tables), class_="pair")
    if isinstance(block, Figures):
        return element("div", *(_card(*figure) for figure in block.figures), class_="cards")
    return _notes(block) if isinstance(block, Notes) else Html(block.html)


def _card(name: str, value: str, more: str) -> Html:
    parts = element("span", name), " ", element("strong", value), " ", element("span", more)
    return element("div", *parts, class_=f"card {name.replace(' ', '-')}")


def _notes(block: Notes) -> Html:
    """Return notes as a list, of many those at the end folded away."""
    said = list(dict.fromkeys(block.sentences))
    shown = said if len(said) <= MOST_NOTES + 1 else said[:MOST_NOTES]
    parts = [element("h3", block.title)] if block.title and said else []
    parts += [element("ul", *(element("li", note) for note in shown))] if said else []
    rest = said[len(shown) :]
    if rest:
        more = element("ul", *(element("li", note) for note in rest))
        parts.append(element("details", element("summary", f"{len(rest)} more"), more))
    return joined(*parts)


def _table(table: Table) -> Html:
    heads, texts = table.texts()
    kept = table.used()
    head = []
    for at in kept:
        title = element("button", heads[at], type="button") if table.name else heads[at]
        side = "t" if table.columns[at].kind is Kind.NAME else "n"
        head.append(element("th", title, scope="col", class_=side))
    rows = []
    for place, (row, cells) in enumerate(zip(table.rows, texts, strict=True)):
        if row.style == HEADING:
            inside = [element("th", cells[0], colspan=len(kept), class_="t")]
        else:
            inside = [_cell(table, row, at, cells[at]) for at in kept]
        hidden = bool(table.name) and place >= MOST_AT_ONCE
        rows.append(
            element("tr", *inside, hidden=hidden, class_="faded" if row.style == FADED else "")
        )
    if table.more:
        rows.append(element("tr", element("td", table.more, colspan=len(kept), class_="t")))
    body = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    scrolled = element("div", body, class_="scroll")
    if not table.name:
        return scrolled
    number = f"{len(rows):,}"
    search = element(
        "input",
        type="search",
        class_="search",
        placeholder=f"search {number} rows",
        aria_label=f"search {table.columns[0].title}",
    )
    more = element("button", f"show all {number}", type="button", class_="more")
    return element(
        "div",
        search,
        scrolled,
        more if len(rows) > MOST_AT_ONCE else "",
        id=table.name,
        class_="sortable",
        data_most=MOST_AT_ONCE,
    )


def _cell(table: Table, row: Row, at: int, text: str) -> Html:
    column = table.columns[at]
    cell = row.cells[at]
    if column.kind is Kind.NAME:
        name = element("span", Html("&emsp;") if text.startswith(" ") else "", text.strip())
        below = joined(" ", element("small", row.below)) if not at and row.below else ""
        return element("td", name, below, class_="t named" if below else "t")
    value = cell[0] if isinstance(cell, tuple) else None if isinstance(cell, str) else cell
    kind = "n"
    bar = Html()
    if (
        column.kind is Kind.CHANGE
        and row.style != NEUTRAL
        and any(digit in text for digit in "123456789")
    ):
        kind += " less" if value is not None and value < 0 else " more-time"
    if column.bar and value is not None and table.whole:
        kind += " b"
        style = f"--w:{100 * min(max(value / table.whole, 0.0), 1.0):.2f}%"
        style += f";--bar:var({row.color})" if row.color else ""
        bar = element("span", "", class_="bar", style=style)
    return element("td", text, bar, class_=kind, data_v="" if value is None else f"{value:.12g}")
