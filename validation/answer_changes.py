"""Answers that are meant to differ from another revision's: who owns a difference.

An owner is a predicate of a row. It recomputes the new value from the old one, or names its rows with the public truth
that decides. Its docstring's first line is printed beside the number of values that it owns. It goes when the
answers are kept anew (`answers.py --keep`); CHANGELOG.md then says what changed and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]  # number (or null) by path, or {"refused": why}


@dataclass(frozen=True)
class Row:
    """A value that differs; a refusal or a missing answer is a text."""

    trace: str
    question: str
    key: str
    before: Any
    now: Any
    owner: str = ""


OWNERS: tuple[Callable[[Row], bool], ...] = ()
