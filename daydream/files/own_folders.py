"""Folders that hold what is not finished: gone when we are done with them, also after we were killed.

SIGKILL lets nobody clean up. So whoever has such a folder holds a lock on a file in it, which the system
lets go of however the owner ends, and whoever makes the next folder for the same purpose removes those
that nobody holds. A process id would not do: it is given to others in time, and means nothing to another
container or machine that sees the same disk. Where a disk has no locks, or the system none of this kind,
nothing is ever removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".daydream"
LOCK = "lock"
LONGEST = 200  # bytes of a name that are used: with what is added, a name must not exceed 255


@contextlib.contextmanager
def own_folder(purpose: str, parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Make a folder that only we may enter, and remove it with all it holds at the end of the block.

    It lies, hidden, in `parent`, by default where temporary files do. Folders of the same purpose there
    whose owner is gone are removed first. Raises `OSError` if it cannot be made.
    """
    remove_abandoned(purpose, parent)
    above, begin = _where(purpose, parent)
    folder, lock = _locked_folder(above, begin)
    try:
        yield folder
    finally:
        try:
            _remove(folder)
        finally:
            os.close(lock)


def _where(purpose: str, parent: str | os.PathLike[str] | None) -> tuple[Path, str]:
    """Return what the folders lie in, and how their names begin: beside a user's files they are hidden."""
    named = os.fsdecode(os.fsencode(purpose)[:LONGEST]) + "."
    return (Path(tempfile.gettempdir()), named) if parent is None else (Path(parent), "." + named)


def _locked_folder(above: Path, begin: str) -> tuple[Path, int]:
    """Return a new folder and the open file in it that is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=begin, suffix=SUFFIX, dir=above))
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # empty as it was, another process took it for an abandoned one
            continue
        except OSError:
            folder.rmdir()
            raise
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a disk without locks: nobody else gets one either
                fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / LOCK).exists():
            return folder, lock
        os.close(lock)  # it was removed before we held the lock


def remove_abandoned(purpose: str, parent: str | os.PathLike[str] | None) -> None:
    """Remove the folders of this purpose whose owner is gone."""
    if fcntl is None:
        return
    above, begin = _where(purpose, parent)
    with contextlib.suppress(OSError), os.scandir(above) as entries:
        for entry in entries:
            named = entry.name.startswith(begin) and entry.name.endswith(SUFFIX)
            ours = named and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if ours and entry.is_dir(follow_symlinks=False):
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty: its owner came no further
        return
    except OSError:  # another user's
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its owner lives, or there are no locks here
        return
    else:
        _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, the lock last: who is killed on the way leaves one that the next run can remove."""
    with contextlib.suppress(OSError):  # what cannot be removed stays, and the lock with it
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()
        (folder / LOCK).unlink()
        folder.rmdir()
