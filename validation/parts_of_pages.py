"""The parts of documentation pages that commands make: what stands between two marks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def put(page: Path | None, name: str, lines: Iterable[str]) -> None:
    """Put lines between the marks of a name on a page, at its end without them; print them without a page."""
    text = "\n".join(lines).strip()
    if page is None:
        print(text)
        return
    begin, end = (f"<!-- {mark}: {name} -->" for mark in ("begin", "end"))
    whole = page.read_text(encoding="utf-8") if page.exists() else ""
    head, _, rest = whole.partition(begin)
    made = f"{head.rstrip()}\n\n{begin}\n\n{text}\n\n{end}\n\n{rest.partition(end)[2].lstrip()}"
    page.write_text(f"{made.strip()}\n", encoding="utf-8")
