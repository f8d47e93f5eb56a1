"""Pages that several commands write: each replaces its own section, between two marker comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write_section(page: Path, name: str, lines: Sequence[str], *, head: str = "") -> None:
    """Replace the section `name` of a page, or add it at the end; a new page begins with `head`."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    section = "\n".join([begin, *lines, end])
    text = page.read_text() if page.exists() else f"{head}\n"
    if begin in text and end in text:
        before, rest = text.split(begin, 1)
        text = before + section + rest.split(end, 1)[1]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    page.write_text(text)
