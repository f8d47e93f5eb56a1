"""What a command prints and writes: one result on stdout, the rest on stderr, the next command last.

Files are checked before the work begins, so that nothing is overwritten and no work is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from daydream.errors import OutputError, TraceError

if TYPE_CHECKING:
    from daydream.cli.source import Progress
    from daydream.memory.result import MemoryReport
    from daydream.report.blocks import Block

SCHEMA = 1
OUTPUTS = ("output", "html", "plot")  # parameters that name what is written
TIMELINES = (".json", ".json.gz")
FORMATS = (".pt.trace.json", ".json", ".sqlite", ".db", ".etdp", ".parquet")  # longest first


@dataclass(frozen=True)
class Output:
    """What a command prints and writes.

    Args:
        as_json: Print one JSON object, nothing else.
        verbose: Show every part, row and note.
        output (FILE): Write timelines: .json[.gz] (Perfetto) or .et (Chakra).
        html (FILE): Write a report for the browser, in one file.
        no_ranking: Leave the ranked changes out of that report.
        force: Overwrite existing output files.
    """

    as_json: bool = False
    verbose: bool = False
    output: str | None = None
    html: str | None = None
    no_ranking: bool = False
    force: bool = False

    def emit(
        self,
        result: Any,
        screen: Callable[[], str | Iterable[Block]] | None = None,
        *,
        written: Sequence[str] = (),
        then: Sequence[str] = (),
        **head: Any,
    ) -> None:
        """Print a result, what was written, and what may be typed next.

        Args:
            result: an object with `to_json`, or what that returns.
            screen: makes the text or view that is printed where no JSON is wanted, if any.
            written: a line for each file that was written.
            then: the words of the next command; left out with JSON.
            **head: what JSON begins with.
        """
        if self.as_json:
            print_json({**head, **(result if isinstance(result, Mapping) else result.to_json())})
        elif screen is not None:
            print_screen(screen())
        for line in written:
            click.echo(line, err=True)
        if then and not self.as_json:
            print_next(*then)

    def answer(
        self,
        found: Any,
        head: Mapping[str, Any] | None = None,
        *,
        document: Any = None,
        written: Sequence[str] = (),
        then: Sequence[str] = (),
        **shown: Any,
    ) -> None:
        """Print a result by its view, or as JSON, and what `emit` prints below it.

        Args:
            found: what is answered.
            head: what JSON begins with.
            document: what JSON holds, if it is not the result.
            written: as for `emit`.
            then: as for `emit`.
            **shown: options of the view.
        """

        def screen() -> Sequence[Block]:
            from daydream.report.blocks import view

            return view(found, **{"verbose": self.verbose, **shown})

        self.emit(document or found, screen, written=written, then=then, **(head or {}))

    def check_files(self, *suffixes: str) -> None:
        """Raise `OutputError` or a usage error if the output or the report could not be written.

        `suffixes` are those of the output.
        """
        for path, ends, flag in (
            (self.output, suffixes, "-o"),
            (self.html, (".html", ".htm"), "--html"),
        ):
            if path is None:
                continue
            if not (path.lower() if flag == "--html" else path).endswith(ends):
                text = f"{path!r} ends in neither {', '.join(ends[:-1])} nor {ends[-1]}"
                raise click.BadParameter(
                    text,
                    click.get_current_context(),
                    param_hint=flag,
                )
            self.check(path)

    def check(self, path: str | os.PathLike[str]) -> None:
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
            raise OutputError(
                f"{target} is read by this command; choose another name for the output"
            )
        refuse_to_replace(target, force=self.force)

    def write_files(
        self,
        result: Any,
        progress: Progress,
        *,
        memory: MemoryReport | None = None,
        ranked: bool = False,
    ) -> list[str]:
        """Write the timelines and the report that are wanted; return a line about each.

        Args:
            result: what is answered. Timelines are of a `Replay` or a `Prediction`.
            progress: told what is being done.
            memory: who holds the memory, for the report.
            ranked: whether the report may rank what-ifs.
        """
        lines = []
        for path in filter(None, (self.output, self.html)):
            progress(f"writing {path}")
            if path == self.html:
                from daydream.predict.rank import rank
                from daydream.report.page import write as write_html

                ranking = None
                if ranked and not self.no_ranking:
                    begin = time.perf_counter()
                    ranking = rank(
                        getattr(result, "replay", result),
                        pairs=0,
                        with_curves=False,
                        capacity=getattr(result, "capacity_bytes", None),
                        progress=progress,
                    )
                    tried = len(ranking.optimizations) + len(ranking.optimizations_left_out)
                    taken = time.perf_counter() - begin
                    lines.append(
                        f"ranked {tried} what-ifs for it in {taken:.1f} s; --no-ranking does without"
                    )
                write_html(
                    path,
                    result,
                    ranking=ranking,
                    memory=memory,
                    force=self.force,
                )
                lines.append(f"wrote {path}   open it in a browser")
            elif path.endswith(".et"):
                from daydream.report.chakra import write_chakra

                written = write_chakra(path, result.timeline, force=self.force)
                lines.append(f"wrote {', '.join(map(str, written.files))}")
                lines += [f"  note: {note}" for note in written.notes]
            else:
                from daydream.report.perfetto import write

                replay = getattr(result, "replay", result)
                write(
                    path,
                    replay,
                    None if result is replay else result,
                    force=self.force,
                )
                lines.append(f"wrote {path}   open it at https://ui.perfetto.dev")
        return lines


def wrote(*paths: str | os.PathLike[str]) -> list[str]:
    """Return a line about each file that was written, with its size."""
    return [f"wrote {path} ({Path(path).stat().st_size:,} bytes)" for path in paths]


def print_next(*words: str) -> None:
    """Print on stderr the command to try next."""
    from daydream.report.blocks import printable

    click.echo(f"next: daydream {printable(shlex.join(words))}", err=True)


def print_screen(screen: str | Iterable[Block]) -> None:
    """Print a text, or a view: fitted to a terminal and with color there, else its plain text."""
    from daydream.report.text import show

    if isinstance(screen, str):
        click.echo(screen)
    else:
        show(screen)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one object, its schema first. What is not a finite number is null."""
    from daydream.results import plain

    click.echo(
        json.dumps(
            {"schema": SCHEMA, **plain(result)},
            indent=2,
            allow_nan=False,
        )
    )


# Names of files ------------------------------------------------------------------------------------


def trace_name(sources: Sequence[str]) -> str:
    """Return the parquet file name for these sources: `trace.json.gz` becomes `trace.parquet`.

    Several files give what their names have in common: `rank0.json rank1.json` becomes `rank.parquet`.
    """
    stems = []
    for source in sources:
        name = Path(source).resolve().name.removesuffix(".gz")
        ends = (suffix for suffix in FORMATS if name.endswith(suffix) and name != suffix)
        stems.append(name.removesuffix(next(ends, "")))
    common = stems[0]
    while not all(stem.startswith(common) for stem in stems):
        common = common[:-1].rstrip("-_. ")
    return (common or stems[0]) + ".parquet"


def free_name(stem: str, suffix: str) -> str:
    """Return a name in the current folder that no file has: the stem's, or with a number after it."""
    more = (f"{stem}-{count}{suffix}" for count in itertools.count(2))
    return next(
        name for name in itertools.chain([f"{stem}{suffix}"], more) if not Path(name).exists()
    )


def _files_read() -> Iterator[Path]:
    """Return the files that this command line names, but for its outputs, and the own files it has loaded."""
    from daydream.collect.importers.formats import trace_files
    from daydream.transforms.user_file import own_files

    params = click.get_current_context().params
    for text in _texts([value for name, value in params.items() if name not in OUTPUTS]):
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
