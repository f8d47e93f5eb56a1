"""`daydream memory --largest`: the largest batch, or the longest sequence, that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.cli.source import read, trace_words

if TYPE_CHECKING:
    from daydream.predict.memory import Size


def show_largest(
    trace: str, step_marker: str | None, steps: str | None, what: Size, capacity: int | None, *, as_json: bool
) -> None:
    """Read a trace, solve for the limit, and print it."""
    from daydream.cli.output import print_json, print_next, print_screen
    from daydream.cli.progress import Progress
    from daydream.predict.memory import largest
    from daydream.report.view import view

    with Progress() as progress:
        recording = read([trace], step_marker, steps, progress)
        progress(f"looking for the largest {what}")
        found = largest(recording, what, capacity=capacity)
    if as_json:
        print_json({"trace": trace, **found.to_json()})
        return
    print_screen(view(found))
    again = trace_words(trace, step_marker, steps)
    size = found.fits
    if not any(step.get("covered") for step in recording.metadata["steps"]):
        return  # no change of a step can be asked about
    if size in (0, found.recorded):  # nothing to grow: what would make it smaller?
        print_next("rank", "--by", "memory", *again)
    elif what == "batch":
        print_next("whatif", "batch-size", "--factor", f"{size / found.recorded:.17g}", *again)
    else:
        print_next("whatif", "sequence-length", "--length", str(size), *again)
