"""What a coding agent should know to go from a trace to a merged change: a file that ships with daydream."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

NAME = "SKILL.md"


def skill_path() -> Path:
    """Return where the file lies, for an agent that reads skills from folders."""
    return Path(str(files("daydream.agents") / NAME))


def skill() -> str:
    """Return its text."""
    return (files("daydream.agents") / NAME).read_text(encoding="utf-8")
