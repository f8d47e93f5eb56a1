"""The one folder that an agent may read: every name that it gives is looked up there, links resolved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from daydream.errors import DaydreamError
from daydream.lazy import regex

MOST_FILES = 10_000  # of a folder given as a trace
LONGEST = 4096  # characters of a name
PIECES = regex(r"[=,;:]")  # what separates names in an option's value


class OutsideRootError(DaydreamError, PermissionError):
    """A name leads out of the root, or is none."""


class Root:
    """A folder, and whether what is asked for lies in it.

    Example::

        root = Root("runs")
        root.file("today/t.parquet")    # the path with no link left in it
        root.file("../secrets.json")    # raises OutsideRootError

    A name is resolved when it is asked for: a file that is exchanged for a link afterwards is not noticed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self.folder = Path(folder).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise DaydreamError(
                f"--root {folder}: {getattr(error, 'strerror', None) or error}"
            ) from None
        if not self.folder.is_dir():
            raise DaydreamError(f"--root {folder} is no folder")

    def file(self, given: str) -> str:
        """Return the absolute path of a file or folder below the root, links resolved.

        Raises:
            OutsideRootError: it leads out of the root, by itself or by a link in the folder that it is.
            DaydreamError: there is none.
        """
        path = self._inside(given)
        if not os.path.exists(path):  # noqa: PTH110 - of a name that is too long, too, it is no error
            raise DaydreamError(f"{given}: there is no such file below the root {self.folder}")
        if path.is_dir():
            self._check_folder(path)
        return str(path)

    def value(self, value: Any) -> Any:
        """Return an option's value, if no part of a text leads out of the root where it is taken for a file.

        Some options take files (a table of times, a cluster), and a value does not tell whether it is one.
        """
        if isinstance(value, str):
            for piece in {value, *PIECES.split(value)}:
                self._inside(piece)
        return value

    def _inside(self, given: str) -> Path:
        if len(given) > LONGEST or "\0" in given:
            raise OutsideRootError(
                "a name is too long, or holds a zero byte: give one below the root"
            )
        try:
            path = (self.folder / given).resolve()
        except (OSError, RuntimeError, ValueError):
            path = Path("/")
        if path != self.folder and self.folder not in path.parents:
            raise OutsideRootError(
                f"{given} is outside the root {self.folder}.\n"
                "Only what lies below it is read; start `daydream mcp --root DIR` with another one."
            )
        return path

    def _check_folder(self, folder: Path) -> None:
        """Raise if a link below a folder leads out of the root, or there is too much to look through."""
        count = 0
        for where, folders, files in os.walk(folder):
            for name in (*folders, *files):
                count += 1
                if count > MOST_FILES:
                    raise DaydreamError(f"{folder} holds over {MOST_FILES:,} files: name one")
                each = Path(where, name)
                if each.is_symlink():
                    self._inside(str(each))
