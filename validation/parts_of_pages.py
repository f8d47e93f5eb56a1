"""The parts of documentation pages that commands make: what stands between two marks."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, text: str, begin: str, end: str) -> None:
    """Put a text, its marks included, in the place of what stands between these on a page; else at its end."""
    whole = page.read_text(encoding="utf-8")
    if begin in whole:
        head, rest = whole.split(begin)
        whole = head + text + rest.split(end)[1]
    else:
        whole = f"{whole.rstrip()}\n\n{text}\n"
    page.write_text(whole, encoding="utf-8")
