"""The user's cache: what was worked out once about a trace, until its place is needed.

It lies in `$DAYDREAM_CACHE`, else in `$XDG_CACHE_HOME/daydream`, else in `~/.cache/daydream`;
`DAYDREAM_CACHE=off` keeps nothing. Entries are files of a folder that only the user may enter. It is opened
once each time and not by its name again: nobody can put a link or a folder of theirs in its place meanwhile.

Nothing here is an error to the user. What cannot be read or written (a full disk, a home that is read-only, a
folder of somebody else, damage) means that the work is done again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from daydream.files.cache_file import Contents, pack, unpack

VARIABLE = "DAYDREAM_CACHE"
OFF = ("off", "0")
FOLDER = "replays"  # in the user's folder: ours alone
MOST_BYTES = 2 * 10**9  # of all entries; a trace of 100,000 rows takes 40 MB
ENTRY, UNFINISHED = ".entry", ".unfinished"
ABANDONED_S = 3600  # who writes for so long was killed
ERRORS = (OSError, ValueError, TypeError, OverflowError, MemoryError)


def cache_folder() -> Path | None:
    """Return where entries lie; None where nothing is to be kept."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) / FOLDER if named and named.lower() not in OFF else None
    beneath = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not beneath.is_absolute():  # as its specification says, another is not to be used
        try:
            beneath = Path.home() / ".cache"
        except RuntimeError:  # the user has no home
            return None
    return beneath / "daydream" / FOLDER


def read_entry(key: str) -> Contents | None:
    """Return what is kept under a key, None if nothing is; what is damaged is removed."""
    with contextlib.suppress(*ERRORS), _folder(make=False) as folder:
        name = key + ENTRY
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            _need_own(os.fstat(file), stat.S_ISREG)
            found = unpack(file, key)
        except ValueError:
            os.unlink(name, dir_fd=folder)
        else:
            with contextlib.suppress(OSError):
                os.utime(file)  # what was used last goes last
            return found
        finally:
            os.close(file)
    return None


def write_entry(key: str, contents: Contents) -> bool:
    """Keep something under a key; what was used longest ago goes where all is more than `MOST_BYTES`.

    Of several that write the same at once the last one stays; who reads sees one of them, whole. Returns
    whether it is kept.
    """
    with contextlib.suppress(*ERRORS), _folder(make=True) as folder:
        parts = pack(key, contents)
        size = sum(map(len, parts))
        if size > MOST_BYTES:
            return False
        _make_room(folder, MOST_BYTES - size)
        unfinished = f"{key}.{os.getpid()}.{time.monotonic_ns()}{UNFINISHED}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(unfinished, flags, 0o600, dir_fd=folder)
        try:
            with open(file, "wb", buffering=0) as opened:
                for part in parts:
                    _write_all(opened.fileno(), part)
            os.rename(unfinished, key + ENTRY, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(unfinished, dir_fd=folder)
            raise
        return True
    return False


def entry_bytes(key: str) -> int | None:
    """Return how many bytes an entry takes, None if there is none."""
    with contextlib.suppress(*ERRORS), _folder(make=False) as folder:
        return os.stat(key + ENTRY, dir_fd=folder, follow_symlinks=False).st_size
    return None


def _write_all(file: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


@contextlib.contextmanager
def _folder(*, make: bool) -> Iterator[int]:
    """Open the folder. Raises `OSError` or `ValueError` if it is not there, or not the user's alone."""
    path = cache_folder()
    if path is None or os.open not in os.supports_dir_fd:
        raise OSError("nothing is kept here")
    if make:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _need_own(os.fstat(folder), stat.S_ISDIR)
        yield folder
    finally:
        os.close(folder)


def _need_own(found: os.stat_result, is_sort: object) -> None:
    """Raise `ValueError` for what is of another sort, of another user, or open to others."""
    if not callable(is_sort) or not is_sort(found.st_mode):
        raise ValueError("it is something else")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError("others may have written it")


def _make_room(folder: int, most_bytes: int) -> None:
    """Remove what was used longest ago until the rest takes no more than this, and what was not finished."""
    entries: list[tuple[int, int, str]] = []
    with os.scandir(folder) as found:
        for each in found:
            with contextlib.suppress(FileNotFoundError):  # another process removes, too
                about = each.stat(follow_symlinks=False)
                if each.name.endswith(ENTRY):
                    entries.append((about.st_mtime_ns, about.st_size, each.name))
                elif each.name.endswith(UNFINISHED) and time.time() - about.st_mtime > ABANDONED_S:
                    os.unlink(each.name, dir_fd=folder)
    held = sum(size for _, size, _ in entries)
    for _, size, name in sorted(entries):
        if held <= most_bytes:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        held -= size
