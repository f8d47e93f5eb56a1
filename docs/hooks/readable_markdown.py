"""Pages as they are written for a code host, in the Markdown that the site's parser reads."""

from __future__ import annotations

import re

FENCE = re.compile(r"^ *(```|~~~)")
ITEM = re.compile(r"^([-*]|\d+\.) +")
COMMENT = re.compile(r"^<!--.*-->$")
PIPE = re.compile(r"`([^`]*)\\\|([^`]*)`")  # in a table; this parser would show the backslash
BLOCK = re.compile(r"^(\||[-*] |1\. )")


def for_the_site(text: str, place: str) -> str:
    """Return a page with lists indented by 4, tables and lists behind an empty line, no comments.

    `place` is the page's among the documents. Links to files beside docs/ become plain text.
    """
    above = place.count("/") + 1
    link_out = re.compile(rf"\[([^\]]+)\]\((?:\.\./){{{above},}}[^)]*\)")
    found: list[str] = []
    fenced, shift = False, 0
    for line in text.splitlines():
        inside = fenced
        if FENCE.match(line):
            fenced = not fenced
        elif not inside:
            if COMMENT.match(line):
                found.append("")
                continue
            if line and not line.startswith(" "):
                item = ITEM.match(line)
                if BLOCK.match(line) and _begins(line, found):
                    found.append("")
                shift = 4 - len(item.group(0)) if item else 0
        said = line if inside else PIPE.sub(r"<code>\1&#124;\2</code>", link_out.sub(r"\1", line))
        found.append(" " * shift + said if said.startswith(" ") else said)
    return "\n".join(found) + "\n"


def _begins(line: str, before: list[str]) -> bool:
    """Tell whether a line begins a table or a list right behind a paragraph."""
    last = before[-1] if before else ""
    if FENCE.match(last):
        return True
    if not last or last.startswith(("#", " ")):
        return False
    return not last.startswith("|") if line.startswith("|") else _paragraph(before)


def _paragraph(before: list[str]) -> bool:
    """Tell whether the lines since the last empty one have no item of a list."""
    for line in reversed(before):
        if not line:
            break
        if ITEM.match(line):
            return False
    return True
