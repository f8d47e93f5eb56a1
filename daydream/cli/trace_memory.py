"""`daydream memory --trace`: who holds the peak of a trace, and does it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.cli.source import read, trace_words
from daydream.cli.written import check_files, tell, write_files

if TYPE_CHECKING:
    from daydream.memory.result import MemoryReport
    from daydream.memory.settings import Settings


def show_trace(
    trace: str,
    step_marker: str | None,
    steps: str | None,
    by: str | None,
    allocator: Settings | None,
    capacity: int | None,
    output: str | None,
    html: str | None,
    *,
    force: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Read a trace, print the answer, and write the files that were asked for."""
    from daydream.cli.output import print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.memory.report import memory_of
    from daydream.report.view import view

    check_files(output, html, force=force)
    again = trace_words(trace, step_marker, steps)
    if by is not None:
        _show_view(trace, step_marker, steps, by, verbose=verbose, as_json=as_json)
        return
    with Progress() as progress:
        recording = read([trace], step_marker, steps, progress)
        progress("pairing allocations and frees")
        report = memory_of(recording, capacity=capacity, settings=allocator)
        written: list[str] = []
        if output is not None or html is not None:
            import daydream

            progress("replaying")
            replay = daydream.replay(recording)
            written = write_files(
                output, html, replay, None, force=force, ranked=False, progress=progress, memory=report
            )  # fmt: skip
    if as_json:
        print_json(report.to_json())
    else:
        print_screen(view(report, verbose=verbose))
    tell(written)
    if not written and not as_json and (whatif := _advice(report)) is not None:
        print_next("whatif", whatif, *["--factor", "0.5"] * (whatif == "batch-size"), *again)


def _show_view(
    trace: str, step_marker: str | None, steps: str | None, by: str, *, verbose: bool,
    as_json: bool,
) -> None:  # fmt: skip
    from daydream.cli.output import print_json, print_screen
    from daydream.cli.progress import Progress
    from daydream.memory.views import view_of
    from daydream.report.view import view as shown

    with Progress() as progress:
        recording = read([trace], step_marker, steps, progress)
        progress("pairing allocations and frees")
        view = view_of(recording, by)
    if as_json:
        print_json(view.to_json())
    else:
        print_screen(shown(view, verbose=verbose))


def _advice(report: MemoryReport) -> str | None:
    """Return the what-if that would shrink the largest holder that one is known for."""
    largest = max(report.devices, key=lambda each: each.peak_allocated_bytes or 0)
    return next((each.whatif for each in largest.holders if each.whatif is not None), None)
