"""Pages and parts of pages as tests read them: tables, words, attributes and scripts."""

from __future__ import annotations

import json
from html.parser import HTMLParser

EMPTY = {"meta", "input"}  # elements without an end


class Document(HTMLParser):
    """The texts and elements of a page; refuses what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.attributes: set[tuple[str, str, str | None]] = set()
        self.scripts: dict[str, str] = {}
        self.words = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes |= {(tag, name, value) for name, value in attrs}
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts[dict(attrs).get("id") or f"program {len(self.scripts)}"] = ""
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script":
            self.scripts[list(self.scripts)[-1]] += data
        elif inside != "style":
            self.words += data
            if {"td", "th"} & set(self.open):
                self.tables[-1][-1][-1] += data

    def data(self, name):
        return json.loads(self.scripts[name])
