"""`daydream confirm` as text: predicted and confirmed side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.explanation.parts import parts_of_change
from daydream.report.text.breakdown import breakdown_rows
from daydream.report.text.difference import work_table
from daydream.report.text.layout import MARGIN, Block, Figures, Screen, Table, notes, printable
from daydream.report.text.numbers import percent, speedup, time_or_unknown, time_text

if TYPE_CHECKING:
    from daydream.predict.confirmation import Confirmation
    from daydream.predict.difference import Difference

HOW = (
    "Medians of {rounds} rounds of blocks with and without the change, in turns, no profiler; the prediction "
    "knows only the steps that were recorded before."
)


def confirmation_text(confirmation: Confirmation) -> Screen:
    """Return the baseline, the predicted and the confirmed step, the error and the control."""
    blocks, comparison = confirmation.blocks, confirmation.comparison
    base = blocks.baseline_ns
    rows = [
        ("", "step", "speedup"),
        ("baseline", time_text(base), ""),
        ("predicted", time_or_unknown(confirmation.predicted_ns), speedup(base, confirmation.predicted_ns)),
        ("confirmed", time_text(blocks.confirmed_ns), speedup(base, blocks.confirmed_ns)),
    ]
    said = [HOW.format(rounds=blocks.rounds)]
    error = "unknown"
    if confirmation.error is not None:
        error = percent(confirmation.error, signed=True)
    else:
        said.append(f"The step could not be predicted from the trace, because {comparison.reason}.")
    if confirmation.restless:
        said.append("The unchanged step differs from itself by more than 5 %: the machine was not at rest.")
    difference = confirmation.difference
    if difference is None:
        said.append("The steps with the change were not recorded: the script ended before.")
    if confirmation.apart:
        said.append(
            f"The recorded steps say {confirmation.recorded_speedup:.2f}x, those that were timed in turns "
            f"{blocks.speedup:.2f}x: the few recorded ones with the change were disturbed, or recording "
            "costs them another share. Of the tables believe the counts more than the times."
        )
    said += comparison.notes
    return Screen([
        f"{printable(comparison.optimization)}   predicted and then made for real",
        Table(rows),
        "",
        (
            f"{MARGIN}error of the prediction {error}; "
            f"the unchanged step against itself {percent(blocks.control - 1, signed=True)}"
        ),
        *([] if difference is None else ["", *_compared(confirmation, difference)]),
        *notes(said),
    ])  # fmt: skip


def _compared(confirmation: Confirmation, difference: Difference) -> list[Block]:
    """Return where in the recorded step the prediction came true, and where not."""
    before, predicted = confirmation.comparison.replayed_ns, difference.before.step_ns
    measured = difference.after.step_ns
    head = (
        f"recorded    before {time_text(before)}   predicted {time_text(predicted)}   "
        f"measured {time_text(measured)}   error {percent(predicted / measured - 1, signed=True)}"
    )
    was, _ = parts_of_change(confirmation.comparison)
    sides = [
        {key: part for key, part in side.items() if key != "by_layer"}  # the layers' work is told below
        for side in (was, difference.before.breakdown, difference.after.breakdown)
    ]
    return [
        Figures(head),
        "",
        Table(breakdown_rows(*sides, names=("before", "predicted", "measured"), change="off by")),
        "",
        work_table(difference),
    ]
