"""`--html`: the report of a replay or a what-if as one file for a browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
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
    replay: Replay,
    comparison: Prediction | None,
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
        from daydream.predict.ranking import rank

        begin = time.perf_counter()
        capacity = None if comparison is None else comparison.capacity_bytes
        ranking = rank(replay, pairs=0, with_curves=False, capacity=capacity, progress=progress)
        taken = time.perf_counter() - begin
        tried = len(ranking.optimizations) + len(ranking.optimizations_left_out)
        said = f"ranked {tried} what-ifs for it in {taken:.1f} s; --no-ranking does without\n{said}"
    progress(f"writing {output}", -1.0)
    write(output, replay, comparison, ranking=ranking, memory=memory, force=force)
    return said
