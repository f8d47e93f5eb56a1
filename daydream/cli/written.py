"""`--html`: the report of a replay or a what-if as one file for a browser.

What `-o` and `--html` ask for: checked before the work, written behind it, and said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.predict.explain import Explanation
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay


def html_option() -> click.Option:
    """Return `--html` for a command that has a report."""
    return click.Option(
        ["--html"],
        metavar="FILE",
        help="Write a report for the browser: one file that needs no network.",
    )


def ranking_option() -> click.Option:
    """Return the option that leaves the ranking out of a report."""
    return click.Option(
        ["--no-ranking"],
        is_flag=True,
        help="Leave the ranked what-ifs out of the report: each is simulated for it, as `rank` does.",
    )


def write_html(
    output: str,
    result: Replay | Prediction | Explanation,
    *,
    force: bool,
    ranked: bool,
    progress: Callable[[str, float], None],
    memory: MemoryReport | None = None,
) -> str:
    """Write the file and return what is said about it. Raises `OutputError` if that fails."""
    from daydream.report.html.page import write

    ranking, said = None, f"wrote {output}   open it in a browser"
    if ranked:
        from daydream.predict.rank import rank

        begin = time.perf_counter()
        replay: Replay = vars(result).get("replay", result)
        capacity = getattr(result, "capacity_bytes", None)
        ranking = rank(replay, pairs=0, with_curves=False, capacity=capacity, progress=progress)
        taken = time.perf_counter() - begin
        tried = len(ranking.optimizations) + len(ranking.optimizations_left_out)
        said = f"ranked {tried} what-ifs for it in {taken:.1f} s; --no-ranking does without\n{said}"
    progress(f"writing {output}", -1.0)
    write(output, result, ranking=ranking, memory=memory, force=force)
    return said


def timeline_option(what: str, *, chakra: bool = False) -> click.Option:
    """Return `-o` for a command that can show these timelines, or can write Chakra files as well."""
    more = "; as .et the last of them for network simulators (Chakra)" if chakra else ""
    return click.Option(
        ["-o", "--output"],
        metavar="FILE",
        help=f"Write the timelines ({what}) as .json or .json.gz for https://ui.perfetto.dev{more}.",
    )


def check_files(output: str | None, html: str | None, *, force: bool, chakra: bool = False) -> None:
    """Raise `OutputError` or a usage error if one of the files could not be written."""
    from daydream.cli.output import check

    timelines = (".json", ".json.gz", ".et") if chakra else (".json", ".json.gz")
    for path, name, suffixes, flag in (
        (output, output, timelines, "-o"),
        (html, html and html.lower(), (".html", ".htm"), "--html"),
    ):
        if path is None or name is None:
            continue
        if not name.endswith(suffixes):
            said = f"{path!r} ends in neither {', '.join(suffixes[:-1])} nor {suffixes[-1]}"
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
    if output is not None and output.endswith(".et"):
        from daydream.report.chakra.file import write_chakra

        progress(f"writing {output}", -1.0)
        written = write_chakra(output, (comparison or replay).timeline, force=force)
        said.append(f"wrote {', '.join(map(str, written.files))}")
        said += [f"  note: {note}" for note in written.notes]
    elif output is not None:
        from daydream.report.perfetto.file import write

        progress(f"writing {output}", -1.0)
        write(output, replay, comparison, force=force)
        said.append(f"wrote {output}   open it at https://ui.perfetto.dev")
    if html is not None:
        said.append(
            write_html(
                html, comparison or replay, force=force, ranked=ranked, progress=progress, memory=memory
            )
        )
    return said


def tell(said: list[str]) -> None:
    """Say on stderr what was written."""
    for line in said:
        click.echo(line, err=True)
