"""Which entry of the user's cache a trace has: that of the bytes of its files and of how they are read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from daydream.trace.cached_trace import CacheEntry

LAYOUT = 3  # of what an entry holds: goes up with every change of it
BLOCK = 1 << 20


def cache_entry(source: str, step_marker: str | None, steps: str | None) -> CacheEntry | None:
    """Return the entry of a trace file, or a folder of them; None if nothing is to be kept of it.

    The key is a digest of all bytes of the files, so that an answer is never that of other bytes: time and
    size of a file may stay as they were when its content changes. Traces are small beside the work that they
    make: a digest takes a second a gigabyte, importing ten, and parquet is a tenth of JSON.
    """
    from daydream.files.cache import cache_folder

    if cache_folder() is None:
        return None

    def key_now() -> str | None:
        return _key(source, [str(step_marker), str(steps)])

    key = key_now()
    if key is None:
        return None
    from daydream.trace.cached_trace import CacheEntry

    return CacheEntry(key, key_now)


def _key(source: str, asked: list[str]) -> str | None:
    import numpy as np

    import daydream

    digest = hashlib.blake2b(digest_size=24)
    try:
        files = _files(Path(source))
        for part in (f"{LAYOUT} {daydream.__version__} {np.__version__}", *asked, *_code()):
            digest.update(part.encode() + b"\0")
        for path in files:
            digest.update(os.fsencode(path.name) + b"\0" + _content(path))
    except (OSError, ValueError):
        return None  # reading it says why
    return digest.hexdigest()


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    from daydream.collect.importers.formats import trace_files
    from daydream.errors import TraceError

    try:
        return trace_files([source])
    except TraceError:
        raise ValueError("it holds no trace") from None


def _content(path: Path) -> bytes:
    digest = hashlib.blake2b()
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    with path.open("rb", buffering=0) as file:
        block = bytearray(BLOCK)
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.digest()


def _code() -> Iterable[str]:
    """Return which code works here: a checkout that is worked on has one version for many."""
    folders, found = [str(Path(__file__).parent.parent)], []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith((".py", ".so", ".pyd")):
                    about = entry.stat()
                    found.append(f"{entry.path} {about.st_size} {about.st_mtime_ns}")
                elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    folders.append(entry.path)
    return sorted(found)
