"""Views as Markdown, for a pull request: the answer and its first table, the rest folded away.

Names come from traces, whoever wrote them: they stand between backticks, where a page takes them for
neither markup nor people nor issues.
"""

from __future__ import annotations

from collections.abc import Sequence

from daydream.lazy import regex
from daydream.report.blocks import (
    HEADING,
    Block,
    Code,
    Facts,
    Figures,
    Headline,
    Kind,
    Notes,
    Table,
    Text,
    Title,
    flat,
)
from daydream.report.format import printable, shortened

NAME_WIDTH = 60
ARROW = "->", "\N{RIGHTWARDS ARROW}"
OF_TEXT = "-v adds: "  # what says this is of no use elsewhere
MARKUP = regex(r"([\\`*_\[\]()|~$])")  # what GitHub's Markdown takes for its own in a sentence


def markdown(blocks: Sequence[Block]) -> str:
    """Return a view as Markdown: what follows its first table is folded away."""
    parts = []
    folded = 0
    for block in flat(blocks):
        if isinstance(block, Text) and block.head == OF_TEXT:
            continue
        parts.append(_block(block))
        if isinstance(block, Table) and not folded:
            folded = len(parts)
    shown = parts[: folded or None]
    rest = parts[folded:] if folded else []
    if rest:
        inside = "\n\n".join(rest)
        shown.append(f"<details><summary>Where it comes from</summary>\n\n{inside}\n\n</details>")
    return "\n\n".join(shown) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Headline):
        return f"**{sentence(block.replace(*ARROW))}**"
    if isinstance(block, Title):
        return f"**{sentence(block.text)}**"
    if isinstance(block, Code):
        return "in code: " + "  \n".join(map(code, block.code.splitlines()))
    if isinstance(block, Figures):
        return sentence(", ".join(block.texts()))
    if isinstance(block, Facts):
        return "\n".join(f"- {sentence(f'{name}: {said}')}" for name, said in block.rows)
    if isinstance(block, Notes):
        return "\n".join(
            [f"{sentence(block.title)}:", "", *(f"- {sentence(note)}" for note in block.sentences)]
        )
    if isinstance(block, Table):
        return _table(block)
    return sentence(block.head + block.text) if isinstance(block, Text) else ""


def _table(table: Table) -> str:
    heads, texts = table.texts()
    kept = table.used()
    names = [table.columns[at].kind is Kind.NAME for at in kept]
    lines = [[sentence(heads[at]) for at in kept], ["---" if name else "---:" for name in names]]
    for row, cells in zip(table.rows, texts, strict=True):
        if row.style == HEADING:
            lines.append([f"**{sentence(cells[0])}**", *[""] * (len(kept) - 1)])
        else:
            shown = [cells[at] for at in kept]
            lines.append(
                [
                    code(cell) if name and cell else sentence(cell)
                    for cell, name in zip(shown, names, strict=True)
                ]
            )
    more = f"\n\n{sentence(table.more)}" if table.more else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def code(name: str) -> str:
    """Return a name from a trace as it stands between backticks, also in a table."""
    plain = shortened(printable(" ".join(name.split())), NAME_WIDTH)
    return f"`{plain.replace('`', chr(39)).replace('|', '/')}`" if plain.strip() else "` `"


def sentence(text: str) -> str:
    """Return a sentence with names from a trace in it as text: no markup, nobody and no issue mentioned."""
    plain = (
        printable(" ".join(text.split()))
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    return (
        MARKUP.sub(r"\\\1", plain)
        .replace("@", "&#64;")
        .replace("#", "&#35;")
        .replace("://", ":&#47;/")
    )
