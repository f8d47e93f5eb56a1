"""A ranking as text, a screen of it: `daydream rank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.report.layout import (
    MARGIN,
    UNITS,
    count,
    notes,
    percent,
    printable,
    shortened,
    speedup,
    table,
    time_text,
    wrapped,
)

if TYPE_CHECKING:
    from daydream.ranking import Ranked, Ranking
    from daydream.sensitivity import Curve

NAME_WIDTH = 34
MOST_REASONS = 6
REASON_WIDTH = 110
FLAT_SHARE = 0.001  # of a step: curves that save less are not shown


def ranking_text(ranking: Ranking, *, top: int) -> str:
    """Return the best optimizations, pairs and curves, and what was left out."""
    lines = [
        MARGIN + ranking_headline(ranking),
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
        f"now {_bound(ranking.bound, ranking.bound_share)}",
    ]
    return "   ".join(parts)


def _optimizations(ranking: Ranking, top: int) -> list[str]:
    if not ranking.optimizations:
        return [f"{MARGIN}no optimization applies to this trace"]
    rows = optimization_rows(ranking, _effective(ranking)[:top])
    lines = table(rows) if len(rows) > 1 else []
    effective = len(_effective(ranking))
    if effective > top:
        lines.append(f"{MARGIN}{count(effective - top, 'more applies', 'more apply')}: --top {effective}")
    slower, nothing = [], []
    for each in ranking.optimizations:
        times = _times(each)
        if each.changes_nothing or (each.saving_ns < 0 and times == "1.00x"):
            nothing.append(printable(each.name))
        elif each.saving_ns < 0:
            slower.append(f"{printable(each.name)} {times}")
    for head, names in (("slower", slower), ("no gain", nothing)):
        if names:
            lines += wrapped(", ".join(names), f"{MARGIN}{head}: ", 2 * MARGIN)
    return lines


def _effective(ranking: Ranking) -> list[Ranked]:
    return [each for each in ranking.optimizations if each.saving_ns > 0 and not each.changes_nothing]


def _times(each: Ranked) -> str:
    return speedup(each.replayed_ns, each.predicted_ns) if each.predicted_ns else "-"


def optimization_rows(ranking: Ranking, shown: Sequence[Ranked]) -> list[list[str]]:
    """Return a head, a row for each of the optimizations shown, and one for each pair."""
    unit, size, digits = _scale(ranking.replayed_ns)
    rows = [["optimization", f"predicted, {unit}", "saves", "speedup", "then", "needs"]]

    def row(each: Ranked) -> list[str]:
        return [
            shortened(printable(each.name), NAME_WIDTH),
            f"{each.predicted_ns / size:,.{digits}f}",
            f"{each.saving_ns / size:,.{digits}f}",
            _times(each),
            _bound(each.bound, each.bound_share),
            each.needs or "",
        ]

    rows += map(row, shown)
    if ranking.pairs:
        rows += [["pairs", *[""] * 5], *map(row, ranking.pairs)]
    return rows


def _curves(ranking: Ranking, top: int) -> list[str]:
    shown = [curve for curve in ranking.curves if curve.saving_ns >= FLAT_SHARE * ranking.replayed_ns]
    if not shown:
        return []
    lines = ["", *table(curve_rows(shown[:top]))]
    more = len(ranking.curves) - min(top, len(shown))
    return [*lines, f"{MARGIN}{count(more, 'other part')} in --json"] if more else lines


def curve_rows(shown: Sequence[Curve]) -> list[list[str]]:
    """Return a head and a row for each curve: the step time at every factor, and the knee."""
    unit, size, digits = _scale(shown[0].step_ns[0])
    factors = shown[0].factors[1:]
    heads = [f"at {factor:.0%}" for factor in factors]
    rows = [[f"step time if a part took less, {unit}", "own time", *heads, "pays down to"]]
    for curve in shown:
        times = [f"{ns / size:,.{digits}f}" for ns in (curve.own_ns, *curve.step_ns[1:])]
        sort = "CPU" if curve.sort == "cpu" else curve.sort
        rows.append([f"{sort} {shortened(printable(curve.name), NAME_WIDTH)}", *times, _knee(curve)])
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


def _bound(bound: str, share: float) -> str:
    word = f"{bound}-bound" if bound in {"GPU", "CPU"} else bound
    return f"{word} ({share:.0%})"


def _knee(curve: Curve) -> str:
    return "never pays" if curve.knee is None else f"{curve.knee:.0%}"


def _scale(ns: int) -> tuple[str, int, int]:
    unit, size = UNITS[0] if ns >= 1e6 else UNITS[1]
    return unit, size, 1 if ns >= 100 * size else 2 if ns >= 10 * size else 3
