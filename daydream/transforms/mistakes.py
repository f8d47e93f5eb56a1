"""Mistakes in a user's own optimization: the file and the line that an error is about."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from daydream.errors import DaydreamError, NotApplicableError
from daydream.transforms.registry import OWN_FILE


class Mistake(NamedTuple):
    """What went wrong in which line of a file."""

    file: str
    line: int
    code: str
    said: str

    def __str__(self) -> str:
        """Return it in one line, with the file's name alone: the folder may be one of this run only."""
        return " ".join(f"{Path(self.file).name}, line {self.line}: {self.said}".split())

    @property
    def message(self) -> str:
        """The place and what was said, with the line of code behind the first of its lines."""
        first, *others = self.said.splitlines() or ["it failed"]
        return "\n".join([f"{self.file}, line {self.line}: {first}", self.code, *others])


def mistake_in_own_file(error: Exception) -> Mistake | None:
    """Return where in a user's own file an error was made, None if in none.

    What the file itself raises of daydream's errors speaks for itself, and so does that nothing
    applies. One that daydream raises is about a line of the file: a word that no task has, say.
    """
    own = {module.__file__ for name, module in sys.modules.items() if name.startswith(OWN_FILE)}
    import traceback  # for those whose file is wrong

    frames = list(traceback.extract_tb(error.__traceback__))
    mine = [frame for frame in frames if frame.filename in own]
    if not mine:
        return None
    place = mine[-1]
    said = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, DaydreamError):
        if isinstance(error, NotApplicableError) or place is frames[-1]:
            return None
        said = str(error)
    return Mistake(place.filename, place.lineno or 0, place.line or "", said)
