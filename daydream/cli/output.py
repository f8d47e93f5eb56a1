"""Where a result is written, and why it must not be: asked before the work begins, not after it."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from daydream.errors import OutputError

PACKED = ".gz"
FORMATS = (".pt.trace.json", ".json", ".sqlite", ".parquet")  # longest first


def trace_name(sources: list[str]) -> str:
    """Return the parquet file name for these sources: `trace.json.gz` becomes `trace.parquet`.

    Several files give what their names have in common: `rank0.json rank1.json` becomes `rank.parquet`.
    """
    stems = [_stem(Path(source).resolve().name) for source in sources]
    common = stems[0]
    while not all(stem.startswith(common) for stem in stems):
        common = common[:-1].rstrip("-_. ")
    return (common or stems[0]) + ".parquet"


def _stem(name: str) -> str:
    name = name.removesuffix(PACKED)
    for suffix in FORMATS:
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


def help_of(command: Callable[..., object]) -> str:
    r"""Return a command's help: its docstring, where a line of `\b` keeps the lines of a paragraph."""
    return (command.__doc__ or "").replace("\\b", "\b")


def check(path: str | os.PathLike[str], *, force: bool, sources: Iterable[str]) -> None:
    """Raise `OutputError` if a file could not be written there, or should not be."""
    target = Path(path)
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {target}: there is no folder {target.parent}")
    if not target.exists():
        return
    if not target.is_file():
        raise OutputError(f"cannot write {target}: it is not a regular file. Choose another name.")
    if any(Path(source).exists() and target.samefile(source) for source in sources):
        raise OutputError(f"{target} is the trace that is read; choose another name for the output")
    if not force:
        raise OutputError(f"{target} exists already; choose another name or give --force")


def free_name(stem: str, suffix: str) -> str:
    """Return a name in the current folder that no file has: the stem's, or with a number behind it."""
    more = (f"{stem}-{count}{suffix}" for count in itertools.count(2))
    return next(name for name in itertools.chain([f"{stem}{suffix}"], more) if not Path(name).exists())


def quoted(path: str | os.PathLike[str]) -> str:
    """Return a path as typed in a shell."""
    return shlex.quote(os.fspath(path))
