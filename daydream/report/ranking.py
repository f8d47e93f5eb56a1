"""A ranking as text, a screen of it: `daydream rank`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.report.layout import (
    MARGIN,
    UNITS,
    count,
    facts,
    notes,
    percent,
    printable,
    shortened,
    speedup,
    table,
    time_text,
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
    error = percent(ranking.replay.error, signed=True)
    headline = [
        f"step time   measured {time_text(ranking.replay.measured_ns)}",
        f"replayed {time_text(ranking.replayed_ns)} (error {error})",
        f"now {_bound(ranking.bound, ranking.bound_share)}",
    ]
    lines = [
        MARGIN + "   ".join(headline),
        "",
        *_optimizations(ranking, top),
        *_curves(ranking, top),
        *_left_out(ranking),
        *notes(ranking.notes()),
    ]
    return "\n".join(lines)


def _optimizations(ranking: Ranking, top: int) -> list[str]:
    if not ranking.optimizations:
        return [f"{MARGIN}no optimization applies to this trace"]
    unit, size, digits = _scale(ranking.replayed_ns)
    rows = [["optimization", f"predicted, {unit}", "saves", "speedup", "then", "needs"]]

    def row(each: Ranked) -> list[str]:
        return [
            shortened(printable(each.name), NAME_WIDTH),
            f"{each.predicted_ns / size:,.{digits}f}",
            f"{each.saving_ns / size:,.{digits}f}",
            speedup(each.replayed_ns, each.predicted_ns) if each.predicted_ns else "-",
            _bound(each.bound, each.bound_share),
            each.needs or "",
        ]

    rows += [row(each) for each in ranking.optimizations[:top]]
    if ranking.pairs:
        rows += [["pairs", *[""] * 5], *map(row, ranking.pairs)]
    lines = table(rows)
    more = len(ranking.optimizations) - top
    if more > 0:
        lines.append(
            f"{MARGIN}{count(more, 'more applies', 'more apply')}: --top {len(ranking.optimizations)}"
        )
    return lines


def _curves(ranking: Ranking, top: int) -> list[str]:
    shown = [curve for curve in ranking.curves if curve.saving_ns >= FLAT_SHARE * ranking.replayed_ns]
    if not shown:
        return []
    unit, size, digits = _scale(ranking.replayed_ns)
    factors = shown[0].factors[1:]
    heads = [f"at {factor:.0%}" for factor in factors]
    rows = [[f"step time if a part took less, {unit}", "own time", *heads, "pays down to"]]
    for curve in shown[:top]:
        times = [f"{ns / size:,.{digits}f}" for ns in (curve.own_ns, *curve.step_ns[1:])]
        rows.append([f"{curve.sort} {shortened(printable(curve.name), NAME_WIDTH)}", *times, _knee(curve)])
    lines = ["", *table(rows)]
    more = len(ranking.curves) - min(top, len(shown))
    return [*lines, f"{MARGIN}{count(more, 'other part')} in --json"] if more else lines


def _left_out(ranking: Ranking) -> list[str]:
    if not ranking.left_out:
        return []
    reasons = list(ranking.left_out.items())
    shown = facts(
        (printable(name), shortened(printable(reason), REASON_WIDTH))
        for name, reason in reasons[:MOST_REASONS]
    )
    more = len(reasons) - MOST_REASONS
    rest = [f"{MARGIN}and {count(more, 'other')}; --json says why"] if more > 0 else []
    return ["", "left out", *shown, *rest]


def _bound(bound: str, share: float) -> str:
    word = f"{bound}-bound" if bound in {"GPU", "CPU"} else bound
    return f"{word} ({share:.0%})"


def _knee(curve: Curve) -> str:
    return "never pays" if curve.knee is None else f"{curve.knee:.0%}"


def _scale(ns: int) -> tuple[str, int, int]:
    unit, size = UNITS[0] if ns >= 1e6 else UNITS[1]
    return unit, size, 1 if ns >= 100 * size else 2 if ns >= 10 * size else 3
