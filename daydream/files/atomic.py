"""How every file of daydream is written: whole or not at all, and never over one that is to stay.

The file is made in a folder of our own beside its place, on the same disk, and gets its name when it is
complete. Without `force` it gets it by a step that fails where the name is taken, so that of several that
write at once exactly one succeeds.

Folders that hold what is not finished: gone when we are done with them, also after we were killed.

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
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from daydream.errors import OutputError

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


def write_whole(
    path: str | os.PathLike[str], write: Callable[[str], Any], *, force: bool = False
) -> None:
    """Call `write(temporary name)` and give the result its name, so that no half file is ever left there.

    With `force` a file that is there is replaced, and the new one has its mode; of a symbolic link,
    the file that it leads to. Raises `OutputError` if the file exists and `force` is not given, if
    something else than a file has the name, or if it cannot be written.
    """
    target = Path(path)
    refuse_to_replace(target, force=force)
    place = Path(os.path.realpath(target))
    try:
        with own_folder(place.name, place.parent) as folder:
            temporary = folder / place.name
            write(str(temporary))
            if force:
                _replace(temporary, place)
            else:
                _give_name(temporary, place)
    except FileExistsError:
        raise _taken(target) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error.strerror or error
        raise OutputError(f"cannot write {target}: {why}") from None


def refuse_to_replace(target: Path, *, force: bool) -> None:
    """Raise `OutputError` if something has this name that must not be replaced."""
    if not target.exists():
        return
    if not target.is_file():
        raise OutputError(f"cannot write {target}: it is not a regular file. Choose another name.")
    if not force:
        place = Path(os.path.realpath(target))
        remove_abandoned(
            place.name, place.parent
        )  # of one that was killed with the file in its place
        raise _taken(target)


def try_folder_of(target: Path) -> None:
    """Raise `OutputError` now if no file could be made in this file's folder later on."""
    place = Path(os.path.realpath(target))
    try:
        with own_folder(place.name, place.parent):
            pass
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or error}") from None


def _taken(target: Path) -> OutputError:
    return OutputError(f"{target} exists already; choose another name or give --force")


def _give_name(file: Path, place: Path) -> None:
    """Give a file its name. Raises `FileExistsError` if it is taken, at whatever moment that happened."""
    try:
        os.link(file, place)  # a rename would replace
    except FileExistsError:
        raise
    except (
        OSError
    ):  # a disk without hard links (FAT, some network disks): take the name, then fill it
        os.close(
            os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, stat.S_IMODE(file.stat().st_mode))
        )
        try:
            file.replace(place)
        except OSError:
            place.unlink(missing_ok=True)
            raise


def _replace(file: Path, place: Path) -> None:
    """Put a file in the place of another, whose owner, as far as we may, and mode it gets."""
    with contextlib.suppress(FileNotFoundError):
        before = place.stat()
        with contextlib.suppress(OSError):  # only root gives files away
            os.chown(file, before.st_uid, before.st_gid)
        with contextlib.suppress(OSError):  # a disk without modes
            file.chmod(before.st_mode & 0o777)
    file.replace(place)
