"""A ranking as text, a screen of it: `daydream rank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.ranking import NEEDS
from daydream.report.layout import (
    MARGIN,
    notes,
    printable,
    screen_width,
    shortened,
    spread,
    table,
    tail,
    wrapped,
)
from daydream.report.numbers import count, percent, scale, speedup, time_text
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.ranking import Ranked, Ranking
    from daydream.sensitivity import Curve

NAME_WIDTH = 34
MOST_REASONS = 6
REASON_WIDTH = 110
NARROW, FEW_FACTORS = 96, (0.5, 0.0)  # on a terminal narrower than that the curves have these points only
OTHER_WORK = "the step then computes something else (another batch, layers, algorithm)"
FLAT_SHARE = 0.001  # of a step: curves that save less are not shown


def ranking_text(ranking: Ranking, *, top: int) -> str:
    """Return the best optimizations, pairs and curves, and what was left out."""
    lines = [
        *spread(ranking_headline(ranking)),
        "",
        *_optimizations(ranking, top),
        *_curves(ranking, top),
        *_left_out(ranking),
        *notes(ranking.notes()),
    ]
    return "\n".join(lines)


def ranking_headline(ranking: Ranking) -> str:
    """Return the measured and the replayed step, and what it is bound by."""
    error = percent(ranking.replay.error, signed=True)
    parts = [
        f"step time   measured {time_text(ranking.replay.measured_ns)}",
        f"replayed {time_text(ranking.replayed_ns)} (error {error})",
        f"now {bound_text(ranking.bound, ranking.bound_share)}",
    ]
    return "   ".join(parts)


def _optimizations(ranking: Ranking, top: int) -> list[str]:
    if not ranking.optimizations:
        return [f"{MARGIN}no optimization applies to this trace"]
    rows = optimization_rows(ranking, effective(ranking)[:top])
    lines = table(rows) if len(rows) > 1 else []
    if any(row[-1] == NEEDS[stages.WORK] for row in rows):
        lines += wrapped(f"{NEEDS[stages.WORK]}: {OTHER_WORK}", MARGIN, 2 * MARGIN)
    more = len(effective(ranking))
    if more > top:
        lines.append(f"{MARGIN}{count(more - top, 'more applies', 'more apply')}: --top {more}")
    for head, names in without_gain(ranking):
        lines += wrapped(", ".join(names), f"{MARGIN}{head}: ", 2 * MARGIN)
    return lines


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


def times_faster(each: Ranked) -> str:
    """Return the speed-up; a dash if nothing is left of the step."""
    return speedup(each.replayed_ns, each.predicted_ns) if each.predicted_ns else "-"


def optimization_rows(ranking: Ranking, shown: Sequence[Ranked]) -> list[list[str]]:
    """Return a head, a row for each of the optimizations shown, and one for each pair."""
    unit, size, digits = scale(ranking.replayed_ns)
    rows = [["optimization", f"predicted, {unit}", "saves", "speedup", "then", "needs"]]

    def row(each: Ranked) -> list[str]:
        return [
            shortened(printable(each.name), NAME_WIDTH),
            f"{each.predicted_ns / size:,.{digits}f}",
            f"{each.saving_ns / size:,.{digits}f}",
            times_faster(each),
            bound_text(each.bound, each.bound_share),
            each.needs or "",
        ]

    rows += map(row, shown)
    if ranking.pairs:
        rows += [["pairs", *[""] * 5], *map(row, ranking.pairs)]
    return rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]


def _curves(ranking: Ranking, top: int) -> list[str]:
    shown = [curve for curve in ranking.curves if curve.saving_ns >= FLAT_SHARE * ranking.replayed_ns]
    if not shown:
        return []
    lines = ["", *table(curve_rows(shown[:top], FEW_FACTORS if screen_width() < NARROW else None))]
    more = len(ranking.curves) - min(top, len(shown))
    return [*lines, f"{MARGIN}{count(more, 'other part')} in --json"] if more else lines


def curve_rows(shown: Sequence[Curve], factors: Sequence[float] | None = None) -> list[list[str]]:
    """Return a head and a row for each curve: the step time at every factor (or at some), and the knee."""
    unit, size, digits = scale(shown[0].step_ns[0])
    chosen = [
        place for place, factor in enumerate(shown[0].factors)
        if place and (factors is None or factor in factors)
    ]  # fmt: skip
    heads = [f"at {shown[0].factors[place]:.0%}" for place in chosen]
    rows = [[f"step time if a part took less, {unit}", "own time", *heads, "pays down to"]]
    for curve in shown:
        times = [
            f"{ns / size:,.{digits}f}" for ns in (curve.own_ns, *(curve.step_ns[place] for place in chosen))
        ]
        sort = "CPU" if curve.sort == "cpu" else curve.sort
        cut = tail if curve.sort == "layer" else shortened
        rows.append([f"{sort} {cut(printable(curve.name), NAME_WIDTH)}", *times, _knee(curve)])
    return rows


def _left_out(ranking: Ranking) -> list[str]:
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
    return ["", "left out", *(line for said in shown for line in wrapped(said, MARGIN, 2 * MARGIN))]


def bound_text(bound: str, share: float) -> str:
    """Return what a step is bound by, and its share of the step."""
    word = f"{bound}-bound" if bound in {"GPU", "CPU"} else bound
    return f"{word} ({share:.0%})"


def _knee(curve: Curve) -> str:
    return "never pays" if curve.knee is None else f"{curve.knee:.0%}"
