"""How every file of daydream is written: whole or not at all, and never over one that is to stay.

The file is made in a folder of our own beside its place, on the same disk, and gets its name when it is
complete. Without `force` it gets it by a step that fails where the name is taken, so that of several that
write at once exactly one succeeds.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daydream.errors import OutputError


def write_whole(path: str | os.PathLike[str], write: Callable[[str], Any], *, force: bool = False) -> None:
    """Call `write(temporary name)` and give the result its name, so that no half file is ever left there.

    With `force` a file that is there is replaced, and the new one has its mode; of a symbolic link,
    the file that it leads to. Raises `OutputError` if the file exists and `force` is not given, if
    something else than a file has the name, or if it cannot be written.
    """
    from daydream.files.own_folders import (
        own_folder,  # its imports cost more than those who only read should pay
    )

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
        from daydream.files.own_folders import remove_abandoned

        place = Path(os.path.realpath(target))
        remove_abandoned(place.name, place.parent)  # of one that was killed with the file in its place
        raise _taken(target)


def try_folder_of(target: Path) -> None:
    """Raise `OutputError` now if no file could be made in this file's folder later on."""
    from daydream.files.own_folders import own_folder

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
    except OSError:  # a disk without hard links (FAT, some network disks): take the name, then fill it
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, stat.S_IMODE(file.stat().st_mode)))
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
