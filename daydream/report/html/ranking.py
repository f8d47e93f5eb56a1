"""Ranked what-ifs in the HTML report: what each optimization that applies would save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.predict.basis import RECORDED
from daydream.report.html.elements import Cell, Html, Named, Number, element, facts, joined, sortable, table
from daydream.report.html.sections import Figures
from daydream.report.text.numbers import count, time_text
from daydream.report.text.peak_memory import memory_columns, too_large
from daydream.report.text.ranking import bound_text, effective, times_faster, unpredictable, without_gain

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction
    from daydream.predict.rank import Ranked, Ranking

HELP = (
    "Every optimization that applies, with its options at their defaults, each simulated alone. Then: what "
    "most of the step waits for after it. Needs: what it takes besides code."
)


def whatifs(ranking: Ranking) -> Html:
    """Return a table of what saves time, and what was tried or left out beside it."""
    shown = effective(ranking)
    figures = Figures(ranking.replayed_ns)
    rows = [_row(each, figures) for each in shown]
    head = [f"what if, {figures.unit}", "predicted", "90 % interval", "saves", "speed-up", "then", "needs"]
    if not any(each.needs for each in shown):
        head, rows = head[:-1], [row[:-1] for row in rows]
    memories = [each.memory for each in shown]
    told = memory_columns([["", ""], *([["", ""]] * len(rows))], memories, 1)
    if len(told[0]) > 2:  # the trace tells memory
        head = [*head[:5], *told[0][1:-1], *head[5:]]
        rows = [
            [*row[:5], *_memory(each.memory, own[1:-1]), *row[5:]]
            for each, row, own in zip(shown, rows, told[1:], strict=True)
        ]
    what = "what-ifs" if len(rows) != 1 else "what-if"
    nothing = element("p", "None would make the step shorter.")
    return joined(
        element(
            "p", f"Now {bound_text(ranking.bound, ranking.bound_share)}.{_which_step(ranking)}", class_="help"
        ),
        sortable("ranked", head, rows, what=what, faded=too_large(memories)) if rows else nothing,
        facts(
            [
                *((name, ", ".join(names)) for name, names in without_gain(ranking)),
                *((f"{name} cannot be predicted", reason) for name, reason in unpredictable(ranking)),
            ]
        ),
        _left_out(ranking),
    )


def _which_step(ranking: Ranking) -> str:
    if ranking.replay.basis == RECORDED:
        return ""
    return f" All are of the {ranking.replay.basis} step, {time_text(ranking.replayed_ns)} now."


def _row(each: Ranked, figures: Figures) -> list[Cell]:
    after = each.predicted_ns or 0  # those without a prediction stand below
    return [
        Named(each.optimization, each.summary.replace("`", "")),
        figures.time(after),
        _interval(each, figures),
        figures.time(each.saving_ns or 0, bar=True),
        Number(times_faster(each), each.speedup if after and each.speedup else 0.0),
        bound_text(each.bound, each.bound_share),
        each.needs or "",
    ]


def _memory(memory: MemoryPrediction | None, told: Sequence[str]) -> list[Cell]:
    """Return the peak as a figure to sort by, and whether it fits."""
    peak, *fits = told
    return [Number(peak, -1 if memory is None else memory.after_bytes), *fits]


def _interval(each: Ranked, figures: Figures) -> Cell:
    low, high = each.predicted_low_ns, each.predicted_high_ns
    if low is None or high is None:
        return ""
    return Number(f"{figures.time(low).text} to {figures.time(high).text}", low)


def _left_out(ranking: Ranking) -> Html:
    rows = [[name, reason] for name, reason in ranking.optimizations_left_out.items()]
    if not rows:
        return Html()
    title = f"{count(len(rows), 'other')}, and why they say nothing here"
    return element("details", element("summary", title), table(["left out", "why"], rows))
