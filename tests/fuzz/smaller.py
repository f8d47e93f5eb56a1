"""The smallest case that still fails: fewer events, fewer keys, fewer words."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

from fuzz.hostile import Case

MOST_TRIES = 300


def smaller(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return a case, as small as a few hundred tries make it, that fails as this one does."""
    budget = [MOST_TRIES]

    def still(one: Case) -> bool:
        budget[0] -= 1
        return budget[0] > 0 and fails(one)

    for name, content in case.files.items():
        document = _document(content)
        if document is None:
            continue
        plain = case.without(files={**case.files, name: _text(document)})
        if not still(plain):
            continue
        case = plain
        for part in _lists(document):
            case = _fewer(case, name, document, part, still)
    words = list(case.args)
    for at in range(len(words) - 1, 0, -1):
        shorter = case.without(args=words[:at] + words[at + 1 :])
        if still(shorter):
            case, words = shorter, shorter.args
    return case


def _document(content: bytes) -> Any:
    try:
        found = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (ValueError, OSError, EOFError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(document: Any) -> bytes:
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _lists(document: dict[str, Any]) -> list[Any]:
    """Return what can lose items: the events, then the document, then each event's keys (looked up late)."""
    return [document.get("traceEvents"), document, *range(8)]


def _fewer(case: Case, name: str, document: dict[str, Any], part: Any, still: Callable[[Case], bool]) -> Case:
    """Take items out of one list or dictionary, in halves, quarters, ... while it still fails."""
    if isinstance(part, int):
        events = document.get("traceEvents")
        if not isinstance(events, list) or part >= len(events) or not isinstance(events[part], dict):
            return case
        inner = events[part].get("args")
        for each in (inner, events[part]):
            if isinstance(each, dict):
                case = _fewer(case, name, document, each, still)
        return case
    if not isinstance(part, (list, dict)):
        return case
    size = max(len(part) // 2, 1)
    while size and part:
        at = 0
        while at < len(part):
            before = copy.copy(part)
            if isinstance(part, list):
                del part[at : at + size]
            else:
                for key in list(part)[at : at + size]:
                    del part[key]
            shorter = case.without(files={**case.files, name: _text(document)})
            if still(shorter):
                case = shorter
            else:
                part.clear()
                part.extend(before) if isinstance(part, list) else part.update(before)
                at += size
        size //= 2
    return case
