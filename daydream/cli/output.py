"""Where a result is written, and why it must not be: asked before the work begins, not after it.

What goes to stdout: the text of a result, or one JSON object.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daydream.errors import OutputError, TraceError

if TYPE_CHECKING:
    from daydream.report.blocks import Block

PACKED = ".gz"
OUTPUTS = ("output", "html", "plot")  # parameters that name what is written
FORMATS = (".pt.trace.json", ".json", ".sqlite", ".db", ".etdp", ".parquet")  # longest first


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


def check(path: str | os.PathLike[str], *, force: bool) -> None:
    """Raise `OutputError` if a file could not be written there, or should not be.

    No command writes over a file that it was given to read: a trace, also in a folder of them, a table,
    a script, a user's own optimization.
    """
    from daydream.files.atomic import refuse_to_replace

    target = Path(path)
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {target}: there is no folder {target.parent}")
    refuse_to_replace(target, force=True)
    if target.exists() and any(target.samefile(each) for each in _files_read()):
        raise OutputError(f"{target} is read by this command; choose another name for the output")
    refuse_to_replace(target, force=force)


def _files_read() -> Iterator[Path]:
    """Return the files that this command line names, but for its outputs, and the own files it has loaded."""
    from daydream.collect.importers.formats import trace_files
    from daydream.transforms.user_file import own_files

    context = click.get_current_context()
    given = [value for name, value in context.params.items() if name not in OUTPUTS]
    for text in _texts(given):
        if os.path.isdir(text):  # noqa: PTH112 - of what cannot be a path, as a text too long, it is no error
            with contextlib.suppress(TraceError):
                yield from trace_files([text])
        elif os.path.exists(text):  # noqa: PTH110 - the same
            yield Path(text)
    yield from map(Path, own_files())


def _texts(value: object) -> Iterator[str]:
    """Return the texts in an option's value, also those that a list in it, as `table=a,b`, is made of."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str) and value:
        yield from {value, *filter(None, re.split("[=,]", value))}


def free_name(stem: str, suffix: str) -> str:
    """Return a name in the current folder that no file has: the stem's, or with a number after it."""
    more = (f"{stem}-{count}{suffix}" for count in itertools.count(2))
    return next(name for name in itertools.chain([f"{stem}{suffix}"], more) if not Path(name).exists())


def quoted(path: str | os.PathLike[str]) -> str:
    """Return a path as typed in a shell, without what could steer a terminal."""
    from daydream.report.format import printable

    return printable(shlex.quote(os.fspath(path)))


SCHEMA = 1


def print_next(*words: str) -> None:
    """Say on stderr what may be typed next."""
    from daydream.report.format import printable

    click.echo(f"next: daydream {printable(shlex.join(words))}", err=True)


def print_screen(blocks: Sequence[Block]) -> None:
    """Print a view: fitted to a terminal and with color there, else its plain text."""
    from daydream.report.text import show

    show(blocks)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, its schema first. What is not a finite number is null."""
    click.echo(json.dumps({"schema": SCHEMA, **_finite(result)}, indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """Return the value with NumPy's numbers as Python's, and null for NaN and infinity."""
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if not isinstance(value, str | bool | int | float | None) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
