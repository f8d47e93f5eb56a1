"""A ranking as text, a screen of it: `daydream rank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.predict.basis import whole_recording
from daydream.predict.suggest import typed
from daydream.report.text.layout import (
    MARGIN,
    USUAL_WIDTH,
    Block,
    Screen,
    Table,
    Title,
    Words,
    fitting,
    headed,
    notes,
    printable,
    shortened,
    tail,
)
from daydream.report.text.numbers import (
    about_steps,
    answer_text,
    count,
    error_text,
    scale,
    speedup_of,
    time_text,
)
from daydream.report.text.peak_memory import (
    about_memory,
    memory_change,
    memory_columns,
    memory_notes,
    recording_notes,
    too_large,
    verdict,
)
from daydream.text import bytes_text
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction
    from daydream.predict.curves import Curve
    from daydream.predict.rank import Ranked, Ranking
    from daydream.simulate.critical_path import Bound

NAME_WIDTH = 34
MOST_REASONS = 6
REASON_WIDTH = 110
SPARE = ("at 75%", "at 25%")  # points of the curves that a narrow terminal does without
OTHER_WORK = "the step computes something else (batch, layers, algorithm)"
THEN = "then the step is"
ONLY_VERBOSE = ("saves", "needs")  # columns that follow from others, or stand below the row
PATH = "of the critical path, the work that sets its length"
MOST_PAIRS = 2  # on a screen that is not verbose
FEWEST = 3  # optimizations there, unless they take many lines
CURVES = (
    "own time: what the part takes in a step; at 50%: the step if it took half of that; pays down to: below "
    "this share of its time, making it faster shortens the step no more"
)
FLAT_SHARE = 0.001  # of a step: curves that save less are not shown


def ranking_text(
    ranking: Ranking,
    *,
    top: int,
    verbose: bool = False,
    fitted: bool = False,
    undrawn: bool = False,
) -> Screen:
    """Return the best optimizations and pairs with the code that makes them; verbose what else was found.

    `fitted` shows fewer than `top` rows where a usual terminal has no room for them. `undrawn`: there are
    curves, though the ranking holds none.
    """
    verbose = verbose or not ranking.optimizations  # then the reasons are the answer

    def screen(rows: int, pairs: int) -> Screen:
        return Screen([
            *map(Words, whole_recording(ranking.replay.graph.trace)),
            *headed(ranking_headline(ranking)),
            "",
            *_optimizations(ranking, rows, pairs, verbose=verbose),
            *([*_curves(ranking, rows), *_left_out(ranking), *notes(ranking.notes)] if verbose else []),
            *([] if verbose else _more(ranking, undrawn=undrawn)),
        ])  # fmt: skip

    if verbose or not fitted:
        return screen(top, len(ranking.pairs) if verbose else MOST_PAIRS)
    few = [(rows, pairs) for pairs in (MOST_PAIRS, 1) for rows in range(top, FEWEST - 1, -1)]
    return fitting(screen(*each) for each in [*few, (FEWEST, 0), (1, 0)])


def ranking_headline(ranking: Ranking) -> list[str]:
    """Return what the best change gives, and what the step is bound by now."""
    best = best_of(ranking)
    if ranking.by == "memory":
        said = _least_memory(best)
    elif best is None:
        said = f"{time_text(ranking.replayed_ns)} per step; no optimization here makes it shorter"
    else:
        said = f"{named(best)}: {answer_text(best)}"
    error = error_text(ranking.replay.basis_error, ranking.replay.error)
    share = f": {100 * ranking.bound_share:.0f} % {PATH}" if ranking.bound_share else ""
    steps = about_steps(ranking.replay)
    if ranking.cannot_tell and ranking.by == "time":
        wide = "most intervals are wider than 2x; record it again"
        said = f"this recording cannot tell what helps: {wide}. {said}"
    return [f"{said}; {error}", *steps, f"now {bound_text(ranking.bound, 0.0)}{share}"]


def named(each: Ranked) -> str:
    """Return the name of a change with the options that it has in this trace, as they are typed."""
    return printable(" ".join([each.optimization, *typed(each.options)]))


def _least_memory(best: Ranked | None) -> str:
    """Return what the change that holds least gives."""
    if best is None or best.memory is None:
        return "no optimization here lowers the peak of memory"
    memory = f"peak memory {memory_change(best.memory)}{verdict(best.memory)}"
    return f"{named(best)}: {memory}; {answer_text(best)}"


def _optimizations(ranking: Ranking, top: int, most_pairs: int, *, verbose: bool) -> list[Block]:
    if not ranking.optimizations:
        return [f"{MARGIN}no optimization applies to this trace"]
    better = effective(ranking)
    pairs = ranking.pairs[:most_pairs]
    blocks: list[Block] = [*_best(ranking, better[:top], pairs, verbose=verbose)]
    if better[top:]:
        names = ", ".join(f"{named(each)} {_gain(ranking, each)}" for each in better[top:])
        blocks.append(Words(f"{names} (--top {len(better)})", f"{MARGIN}less: ", 2 * MARGIN))
    blocks += [
        Words(", ".join(names), f"{MARGIN}{head}: ", 2 * MARGIN) for head, names in without_gain(ranking)
        if verbose
    ]  # fmt: skip
    by_reason: dict[str, list[str]] = {}
    for name, reason in unpredictable(ranking):
        by_reason.setdefault(reason, []).append(name)
    blocks += [
        Words(f"{', '.join(names)}: {reason}", f"{MARGIN}cannot be predicted: ", 2 * MARGIN)
        for reason, names in by_reason.items()
    ]
    return blocks


def _best(ranking: Ranking, best: Sequence[Ranked], pairs: Sequence[Ranked], *, verbose: bool) -> list[Block]:
    """Return a table of the best and of pairs, and below each row what makes that change."""
    if not best and not pairs:
        return []
    rows = optimization_rows(ranking, best, pairs)
    told: set[str] = set()
    below = ["", *(_made_by(each, told) for each in best), *([""] if pairs else [])]
    below += [_made_by(each, told) for each in pairs]
    kept = [place for place, head in enumerate(rows[0]) if verbose or head not in ONLY_VERBOSE]
    rows = [
        [row[place].replace("then", THEN) if row is rows[0] else row[place] for place in kept] for row in rows
    ]
    spare = [rows[0].index(head) for head in (THEN, "90 % interval") if head in rows[0]]
    memories = _memories(best, pairs)
    plain = None if verbose or not any(memories) else USUAL_WIDTH
    blocks: list[Block] = [Table(rows, spare=spare, below=below, faded=too_large(memories), plain=plain)]
    return [*blocks, *needs_legend([each.needs for each in best])]


def needs_legend(needs: Sequence[str | None]) -> list[Block]:
    """Return what the mark of other work means, if any of these is it; the other marks say it themselves."""
    work = stages.NEEDS[stages.WORK]
    return [Words(f"[{work}]: {OTHER_WORK}", MARGIN, 2 * MARGIN)] if work in needs else []


def _made_by(each: Ranked, told: set[str]) -> str:
    """Return the line of a training script that makes a change, and what else that takes.

    A pair's lines are those of its parts, and not told again.
    """
    if "+" in each.optimization:
        parts = [] if each.code is None else each.code.split("; ")
        return ";  ".join(printable(part) for part in parts if part not in told)
    told.add(each.code or "")
    needs = [f"[{each.needs}]"] if each.needs else []
    return " ".join([*needs, *([printable(each.code)] if each.code else [])])


def _more(ranking: Ranking, *, undrawn: bool) -> list[Block]:
    """Return a line on what `-v` adds."""
    left_out = len(ranking.optimizations_left_out)
    more = [
        *(["what each layer and kernel would save"] if ranking.curves or undrawn else []),
        *([f"{left_out} that were left out, and why"] if left_out else []),
    ]
    lines = [f"{head}: {count(len(names), 'change')}" for head, names in without_gain(ranking)]
    blocks: list[Block] = [Words("   ".join(lines))] if lines else []
    if more:
        blocks.append(Words("; ".join(more), f"{MARGIN}-v adds: ", 2 * MARGIN))
    counted = memory_notes(about_memory(each.memory for each in ranking.optimizations))
    return [*blocks, *map(Words, [*counted, *recording_notes(ranking.replay.notes)])]


def without_gain(ranking: Ranking) -> list[tuple[str, list[str]]]:
    """Return a title and names, if any, of what makes the step longer and of what leaves it as it is."""
    if ranking.by == "memory":
        better = effective(ranking)
        others = [named(each) for each in ranking.optimizations if each not in better]
        return [("no less memory", others)] if others else []
    slower, nothing = [], []
    for each in ranking.optimizations:
        times = times_faster(each)
        longer = (each.saving_ns or 0) < 0
        if each.changes_nothing or (longer and times == "1.00x"):
            nothing.append(named(each))
        elif longer:
            slower.append(f"{named(each)} {times}")
    return [(head, names) for head, names in (("slower", slower), ("no gain", nothing)) if names]


def _gain(ranking: Ranking, each: Ranked) -> str:
    if ranking.by == "memory" and each.memory is not None:
        return f"to {bytes_text(each.memory.after_bytes)}"
    return times_faster(each)


def effective(ranking: Ranking) -> list[Ranked]:
    """Return those that make the step shorter, or by memory those that lower its peak, the best first."""
    if ranking.by == "memory":
        known = [each for each in ranking.optimizations if each.memory is not None]
        return [each for each in known if each.memory and each.memory.after_bytes < each.memory.before_bytes]
    return [each for each in ranking.optimizations if each.gains]


def best_of(ranking: Ranking) -> Ranked | None:
    """Return the first that may fit the device's memory; else the first of all; None without one."""
    better = effective(ranking)
    fitting = (each for each in better if each.memory is None or each.memory.fits is not False)
    return next(fitting, None) or next(iter(better), None)


def unpredictable(ranking: Ranking) -> list[tuple[str, str]]:
    """Return the name of each that applies and cannot be predicted, with the reason."""
    return [(named(each), printable(each.reason)) for each in ranking.optimizations if each.reason]


def times_faster(each: Ranked) -> str:
    """Return the speed-up; a dash if nothing is left of the step."""
    return speedup_of(each)


def optimization_rows(
    ranking: Ranking, shown: Sequence[Ranked], pairs: Sequence[Ranked] | None = None
) -> list[list[str]]:
    """Return a head, a row for each of the optimizations shown, and one for each pair, by default all."""
    unit, size, digits = scale(ranking.replayed_ns)
    rows = [["optimization", f"predicted, {unit}", "90 % interval", "saves", "speedup", "then", "needs"]]

    def row(each: Ranked) -> list[str]:
        after, low, high = each.predicted_ns, each.predicted_low_ns, each.predicted_high_ns
        known = low is not None and high is not None
        return [
            shortened(named(each), NAME_WIDTH),
            "unknown" if after is None else f"{after / size:,.{digits}f}",
            f"{(low or 0) / size:,.{digits}f} to {(high or 0) / size:,.{digits}f}" if known else "",
            f"{(each.saving_ns or 0) / size:,.{digits}f}",
            times_faster(each),
            bound_text(each.bound, each.bound_share),
            each.needs or "",
        ]

    rows += map(row, shown)
    together = ranking.pairs if pairs is None else pairs
    if together:
        rows += [["pairs", *[""] * 6], *map(row, together)]
    rows = memory_columns(rows, _memories(shown, together), len(rows[0]) - 2)
    empty = [place for place in range(1, len(rows[0])) if not any(row[place] for row in rows[1:])]
    return [[text for place, text in enumerate(row) if place not in empty] for row in rows]


def _memories(shown: Sequence[Ranked], pairs: Sequence[Ranked]) -> list[MemoryPrediction | None]:
    """Return the memory of each row of their table but the head."""
    together = [None, *(each.memory for each in pairs)] if pairs else []
    return [*(each.memory for each in shown), *together]


def _curves(ranking: Ranking, top: int) -> list[Block]:
    shown = [curve for curve in ranking.curves if curve.saving_ns >= FLAT_SHARE * ranking.replayed_ns]
    if not shown:
        return []
    rows = curve_rows(shown[:top])
    spare = [place for place, head in enumerate(rows[0]) if head in SPARE]
    blocks: list[Block] = ["", Table(rows, spare=spare, least_name=NAME_WIDTH)]
    more = len(ranking.curves) - min(top, len(shown))
    blocks.append(Words(CURVES))
    return [*blocks, f"{MARGIN}{count(more, 'other part')} in --json"] if more else blocks


def curve_rows(shown: Sequence[Curve]) -> list[list[str]]:
    """Return a head and a row for each curve: the step time at every factor, and the knee."""
    unit, size, digits = scale(shown[0].step_ns[0])
    heads = [f"at {factor:.0%}" for factor in shown[0].factors[1:]]
    rows = [[f"recorded step if a part took less, {unit}", "own time", *heads, "pays down to"]]
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
    return f"{bound.label} ({100 * share:.0f} %)" if share else bound.label


def _knee(curve: Curve) -> str:
    return "never pays" if curve.knee is None else f"{curve.knee:.0%}"
