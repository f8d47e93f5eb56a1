"""What the processes of a collected run tell the one that started them: lines appended to one file.

A file and not a pipe, because it reaches through launchers that close what they do not
know. Lines are short, and appending one is a single write, so lines of several
processes do not mix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "DAYDREAM_COLLECT"  # the environment variable that holds the folder
OWNER = "DAYDREAM_COLLECT_OWNER"  # and the one that says which process started this one
SETTINGS = "settings.json"
MESSAGES = "messages"
HELLO = ".hello"
INTERRUPTED_EARLY = "interrupted before a step was captured"


def trace_path(folder: Path, pid: int | str, name: str) -> Path:
    """Return where a process leaves its trace; its file name is the final one, which becomes its source."""
    return folder / str(pid) / name


def changed_path(path: Path) -> Path:
    """Return where the trace of steps with a change stands, beside that of the unchanged ones."""
    return path.with_name(f"{path.stem}.changed{path.suffix}")


def tell(folder: Path, **message: Any) -> bool:
    """Append a message. Returns False if that is not possible, as on a full disk."""
    line = json.dumps({"pid": os.getpid(), **message}) + "\n"
    try:
        with open(folder / MESSAGES, "ab", buffering=0) as file:
            return file.write(line.encode()) == len(line)
    except OSError:
        return False


class Reader:
    """Reads the messages of a folder as they come in."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MESSAGES
        self._read = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Return the messages that came in since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                arrived = file.read()
        except FileNotFoundError:
            return
        whole = arrived[: arrived.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                message = json.loads(line)
            except ValueError:  # cut off when the disk was full
                continue
            if isinstance(message, dict):
                yield message
