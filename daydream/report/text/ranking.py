"""A ranking as text, a screen of it: `daydream rank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.predict.ranking import NEEDS
from daydream.report.text.layout import (
    MARGIN,
    Block,
    Figures,
    Screen,
    Table,
    Title,
    Words,
    notes,
    printable,
    shortened,
    tail,
)
from daydream.report.text.numbers import count, replayed_text, scale, speedup, time_text
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.predict.ranking import Ranked, Ranking
    from daydream.predict.sensitivity import Curve
    from daydream.simulate.causes import Bound

NAME_WIDTH = 34
MOST_LINES = 5  # of code beside the best rows
MOST_REASONS = 6
REASON_WIDTH = 110
SPARE = ("at 75%", "at 25%")  # points of the curves that a narrow terminal does without
OTHER_WORK = "the step then computes something else (another batch, layers, algorithm)"
FLAT_SHARE = 0.001  # of a step: curves that save less are not shown


def ranking_text(ranking: Ranking, *, top: int) -> Screen:
    """Return the best optimizations, pairs and curves, and what was left out."""
    return Screen([
        Figures(ranking_headline(ranking)),
        "",
        *_optimizations(ranking, top),
        *_curves(ranking, top),
        *_left_out(ranking),
        *notes(ranking.notes()),
    ])  # fmt: skip


def ranking_headline(ranking: Ranking) -> str:
    """Return the measured and the replayed step, and what it is bound by."""
    parts = [
        f"step time   measured {time_text(ranking.replay.measured_ns)}",
        replayed_text(ranking.replay, ranking.replayed_ns),
        f"now {bound_text(ranking.bound, ranking.bound_share)}",
    ]
    return "   ".join(parts)


def _optimizations(ranking: Ranking, top: int) -> list[Block]:
    if not ranking.optimizations:
        return [f"{MARGIN}no optimization applies to this trace"]
    rows = optimization_rows(ranking, effective(ranking)[:top])
    blocks: list[Block] = (
        [Table(rows, spare=[rows[0].index(head) for head in ("then", "90 % interval") if head in rows[0]])]
        if len(rows) > 1
        else []
    )
    blocks += _in_code(effective(ranking)[:MOST_LINES])
    if len(rows) > 1 and any(row[-1] == NEEDS[stages.WORK] for row in rows):
        blocks.append(Words(f"{NEEDS[stages.WORK]}: {OTHER_WORK}", MARGIN, 2 * MARGIN))
    more = len(effective(ranking))
    if more > top:
        blocks.append(f"{MARGIN}{count(more - top, 'more applies', 'more apply')}: --top {more}")
    blocks += [
        Words(", ".join(names), f"{MARGIN}{head}: ", 2 * MARGIN) for head, names in without_gain(ranking)
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in unpredictable(ranking):
        by_reason.setdefault(reason, []).append(name)
    blocks += [
        Words(f"{', '.join(names)}: {reason}", f"{MARGIN}cannot be predicted: ", 2 * MARGIN)
        for reason, names in by_reason.items()
    ]
    return blocks


def _in_code(best: Sequence[Ranked]) -> list[Block]:
    """Return the lines of a training script that make the best changes."""
    lines = {each.code: each.name for each in reversed(best) if each.code}
    told = [[printable(lines[code]), printable(code)] for code in reversed(lines)]
    return (
        [MARGIN + "in code", *(Words(code, f"{2 * MARGIN}{name}: ", 3 * MARGIN) for name, code in told)]
        if told
        else []
    )


def without_gain(ranking: Ranking) -> list[tuple[str, list[str]]]:
    """Return a title and names, if any, of what makes the step longer and of what leaves it as it is."""
    slower, nothing = [], []
    for each in ranking.optimizations:
        times = times_faster(each)
        if each.changes_nothing or (each.saving_ns < 0 and times == "1.00x"):
            nothing.append(printable(each.name))
        elif each.saving_ns < 0:
            slower.append(f"{printable(each.name)} {times}")
    return [(head, names) for head, names in (("slower", slower), ("no gain", nothing)) if names]


def effective(ranking: Ranking) -> list[Ranked]:
    """Return those that make the step shorter, the best first."""
    return [each for each in ranking.optimizations if each.saving_ns > 0 and not each.changes_nothing]


def unpredictable(ranking: Ranking) -> list[tuple[str, str]]:
    """Return the name of each that applies and cannot be predicted, with the reason."""
    return [(printable(each.name), printable(each.reason)) for each in ranking.optimizations if each.reason]


def times_faster(each: Ranked) -> str:
    """Return the speed-up; a dash if nothing is left of the step."""
    return "-" if each.predicted_ns == 0 else speedup(each.replayed_ns, each.predicted_ns)


def optimization_rows(ranking: Ranking, shown: Sequence[Ranked]) -> list[list[str]]:
    """Return a head, a row for each of the optimizations shown, and one for each pair."""
    unit, size, digits = scale(ranking.replayed_ns)
    rows = [["optimization", f"predicted, {unit}", "90 % interval", "saves", "speedup", "then", "needs"]]

    def row(each: Ranked) -> list[str]:
        low, high = each.predicted_low_ns, each.predicted_high_ns
        known = low is not None and high is not None
        return [
            shortened(printable(each.name), NAME_WIDTH),
            "unknown" if each.predicted_ns is None else f"{each.predicted_ns / size:,.{digits}f}",
            f"{(low or 0) / size:,.{digits}f} to {(high or 0) / size:,.{digits}f}" if known else "",
            f"{each.saving_ns / size:,.{digits}f}",
            times_faster(each),
            bound_text(each.bound, each.bound_share),
            each.needs or "",
        ]

    rows += map(row, shown)
    if ranking.pairs:
        rows += [["pairs", *[""] * 6], *map(row, ranking.pairs)]
    empty = [place for place in range(1, len(rows[0])) if not any(row[place] for row in rows[1:])]
    return [[text for place, text in enumerate(row) if place not in empty] for row in rows]


def _curves(ranking: Ranking, top: int) -> list[Block]:
    shown = [curve for curve in ranking.curves if curve.saving_ns >= FLAT_SHARE * ranking.replayed_ns]
    if not shown:
        return []
    rows = curve_rows(shown[:top])
    spare = [place for place, head in enumerate(rows[0]) if head in SPARE]
    blocks: list[Block] = ["", Table(rows, spare=spare, least_name=NAME_WIDTH)]
    more = len(ranking.curves) - min(top, len(shown))
    return [*blocks, f"{MARGIN}{count(more, 'other part')} in --json"] if more else blocks


def curve_rows(shown: Sequence[Curve]) -> list[list[str]]:
    """Return a head and a row for each curve: the step time at every factor, and the knee."""
    unit, size, digits = scale(shown[0].step_ns[0])
    heads = [f"at {factor:.0%}" for factor in shown[0].factors[1:]]
    rows = [[f"step time if a part took less, {unit}", "own time", *heads, "pays down to"]]
    for curve in shown:
        times = [f"{ns / size:,.{digits}f}" for ns in (curve.own_ns, *curve.step_ns[1:])]
        sort = "CPU" if curve.sort == "cpu" else curve.sort
        cut = tail if curve.sort == "layer" else shortened
        rows.append([f"{sort} {cut(printable(curve.name), NAME_WIDTH)}", *times, _knee(curve)])
    return rows


def _left_out(ranking: Ranking) -> list[Block]:
    if not ranking.left_out:
        return []
    by_reason: dict[str, list[str]] = {}
    needed = []
    for name, reason in ranking.left_out.items():
        if reason.startswith("needs --"):
            needed.append(f"{printable(name)} {reason.removeprefix('needs ')}")
        else:
            by_reason.setdefault(shortened(printable(reason), REASON_WIDTH), []).append(printable(name))
    reasons = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    shown = [f"{', '.join(names)}: {reason}" for reason, names in reasons[:MOST_REASONS]]
    shown += [f"these need an option: {', '.join(needed)}"] if needed else []
    more = sum(len(names) for _, names in reasons[MOST_REASONS:])
    shown += [f"{count(more, 'other')}; --json says why"] if more else []
    return ["", Title("left out"), *(Words(said, MARGIN, 2 * MARGIN) for said in shown)]


def bound_text(bound: Bound, share: float) -> str:
    """Return what a step is bound by, and its share of the step if it is known."""
    return f"{bound.label} ({share:.0%})" if share else bound.label


def _knee(curve: Curve) -> str:
    return "never pays" if curve.knee is None else f"{curve.knee:.0%}"
