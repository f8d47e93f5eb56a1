"""What `-o` and `--html` ask for: checked before the work, written behind it, and said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from daydream.cli.html import write_html

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay


def timeline_option(what: str) -> click.Option:
    """Return `-o` for a command that can show these timelines."""
    return click.Option(
        ["-o", "--output"],
        metavar="FILE",
        help=f"Write the timelines ({what}) as .json or .json.gz for https://ui.perfetto.dev.",
    )


def check_files(output: str | None, html: str | None, *, force: bool) -> None:
    """Raise `OutputError` or a usage error if one of the files could not be written."""
    from daydream.cli.output import check

    for path, name, suffixes, flag in (
        (output, output, (".json", ".json.gz"), "-o"),
        (html, html and html.lower(), (".html", ".htm"), "--html"),
    ):
        if path is None or name is None:
            continue
        if not name.endswith(suffixes):
            said = f"{path!r} ends in neither {' nor '.join(suffixes)}"
            raise click.BadParameter(said, click.get_current_context(), param_hint=flag)
        check(path, force=force)


def write_files(
    output: str | None,
    html: str | None,
    replay: Replay,
    comparison: Prediction | None,
    *,
    force: bool,
    ranked: bool,
    progress: Callable[[str, float], None],
    memory: MemoryReport | None = None,
) -> list[str]:
    """Write the files and return what is to be said about each. Raises `OutputError` if that fails."""
    said = []
    if output is not None:
        from daydream.report.perfetto.file import write

        progress(f"writing {output}", -1.0)
        write(output, replay, comparison, force=force)
        said.append(f"wrote {output}   open it at https://ui.perfetto.dev")
    if html is not None:
        said.append(
            write_html(html, replay, comparison, force=force, ranked=ranked, progress=progress, memory=memory)
        )
    return said


def tell(said: list[str]) -> None:
    """Say on stderr what was written."""
    for line in said:
        click.echo(line, err=True)
