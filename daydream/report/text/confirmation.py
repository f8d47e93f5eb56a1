"""`daydream confirm` as text: predicted and confirmed side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.predict.breakdown import parts_of_change
from daydream.report.text.breakdown import breakdown_rows
from daydream.report.text.difference import work_table
from daydream.report.text.layout import (
    Block,
    Figures,
    Screen,
    Table,
    Words,
    headed,
    notes,
    printable,
)
from daydream.report.text.numbers import percent, speedup, time_or_unknown, time_text

if TYPE_CHECKING:
    from daydream.predict.compare import Difference
    from daydream.predict.confirm import Confirmation

HOW = (
    "Medians of {rounds} rounds of blocks of steps with and without the change, in turns, without a profiler."
)


def confirmation_text(confirmation: Confirmation, *, verbose: bool = False) -> Screen:
    """Return the predicted and the confirmed step, the error and the control, and where a step differs."""
    blocks, comparison = confirmation.blocks, confirmation.comparison
    base = blocks.baseline_ns
    rows = [
        ("", "step", "speedup"),
        ("without the change", time_text(base), ""),
        ("predicted", time_or_unknown(confirmation.predicted_ns), speedup(base, confirmation.predicted_ns)),
        ("confirmed", time_text(blocks.confirmed_ns), speedup(base, blocks.confirmed_ns)),
    ]
    said = [HOW.format(rounds=blocks.rounds)]
    if confirmation.error is None:
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
            "costs them another share. Trust the counts in the tables more than the times."
        )
    said += comparison.notes  # of the recording too: the trace need not have been kept for `info`
    return Screen([
        *headed(confirmation_headline(confirmation)),
        "",
        Table(rows),
        *([] if difference is None else ["", *_compared(confirmation, difference, verbose=verbose)]),
        *([] if verbose or difference is None else [Words("-v adds: phases, layers and kernels")]),
        *notes(said),
    ])  # fmt: skip


def confirmation_headline(confirmation: Confirmation) -> list[str]:
    """Return what was predicted, what came of it, and how far a step differs from itself."""
    blocks, base = confirmation.blocks, confirmation.blocks.baseline_ns
    name = printable(confirmation.comparison.optimization)
    predicted, confirmed = speedup(base, confirmation.predicted_ns), speedup(base, blocks.confirmed_ns)
    error = "unknown" if confirmation.error is None else percent(confirmation.error, signed=True)
    control = percent(blocks.control - 1, signed=True)
    low, high = confirmation.predicted_low_ns, confirmation.predicted_high_ns
    if confirmation.inside is not None and low and high:
        where = "inside" if confirmation.inside else "outside"
        confirmed += f", {where} the predicted {base / high:.2f} to {base / low:.2f}x"
    return [
        f"{name}: predicted {predicted}, confirmed {confirmed}; error of the predicted step {error}",
        f"the unchanged step against itself {control}: what this machine's steps vary by",
    ]


def _compared(confirmation: Confirmation, difference: Difference, *, verbose: bool) -> list[Block]:
    """Return where in the recorded step the prediction came true, and where not."""
    before, predicted = confirmation.comparison.replayed_ns, difference.before.simulated_ns
    measured = difference.after.simulated_ns
    head = (
        f"the recorded step   before {time_text(before)}   predicted {time_text(predicted)}   "
        f"measured {time_text(measured)}   error {percent(predicted / measured - 1, signed=True)}"
    )
    was, _ = parts_of_change(confirmation.comparison)
    sides = [
        {key: part for key, part in side.items() if key != "by_layer"}  # the layers' work is told below
        for side in (was, difference.before.breakdown, difference.after.breakdown)
    ]
    names = ("before", "predicted", "measured")
    rows = breakdown_rows(*sides, names=names, change="off by", only_causes=not verbose)
    blocks: list[Block] = [Figures(head), Table(rows)]
    return [*blocks, "", work_table(difference)] if verbose else blocks
