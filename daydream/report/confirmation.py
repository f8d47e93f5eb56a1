"""`daydream confirm` as text: predicted and confirmed side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.report.layout import MARGIN, notes, percent, printable, speedup, table, time_text

if TYPE_CHECKING:
    from daydream.confirmation import Confirmation

HOW = (
    "Medians of {rounds} rounds of blocks with and without the change, in turns, no profiler; the prediction "
    "knows only the steps that were recorded before."
)


def confirmation_text(confirmation: Confirmation) -> str:
    """Return the baseline, the predicted and the confirmed step, the error and the control."""
    blocks, comparison = confirmation.blocks, confirmation.comparison
    base = blocks.baseline_ns
    rows = [
        ("", "step", "speedup"),
        ("baseline", time_text(base), ""),
        ("predicted", time_text(confirmation.predicted_ns), speedup(base, confirmation.predicted_ns)),
        ("confirmed", time_text(blocks.confirmed_ns), speedup(base, blocks.confirmed_ns)),
    ]
    said = [HOW.format(rounds=blocks.rounds)]
    if confirmation.restless:
        said.append("The unchanged step differs from itself by more than 5 %: the machine was not at rest.")
    said += comparison.notes()
    lines = [
        f"{printable(comparison.optimization)}   predicted and then made for real",
        *table(rows),
        "",
        (
            f"{MARGIN}error of the prediction {percent(confirmation.error, signed=True)}; "
            f"the unchanged step against itself {percent(blocks.control - 1, signed=True)}"
        ),
        *notes(said),
    ]
    return "\n".join(lines)
