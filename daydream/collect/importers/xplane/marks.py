"""By what profiles of JAX are known, and where JAX puts them, before anything that reads them is loaded."""

from __future__ import annotations

import re
from pathlib import Path

from daydream.lazy import regex

FIRST_PLANE = regex(rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12", re.DOTALL)
"""The first field of an XSpace, a plane: its length, perhaps its id, and the mark of its name."""
NAMES = (b"/host:", b"/device:", b"#Chip", b"/virtualdevice:", b"Task Environment", b"Host CPUs")


def is_xspace(head: bytes) -> bool:
    """Return whether a file that begins so is an XSpace: its first plane has a name that profilers give."""
    first = FIRST_PLANE.match(head)
    return first is not None and head[first.end() + 1 :].startswith(NAMES)


def profile_of(folder: Path) -> Path:
    """Return the folder of the last profile in a folder that JAX logs to, else the folder itself."""
    profiles = folder / "plugins" / "profile"
    if not profiles.is_dir():
        return folder
    found = sorted(child for child in profiles.iterdir() if child.is_dir())
    return found[-1] if found else folder
