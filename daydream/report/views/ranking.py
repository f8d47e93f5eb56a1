"""A ranking: the best changes with the code that makes them, and how the step depends on each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from daydream.predict.basis import whole_recording
from daydream.report.blocks import (
    FADED,
    HEADING,
    Block,
    Cell,
    Column,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    Title,
)
from daydream.report.format import answer_text, error_text, shortened, speedup_of, tail, time_text
from daydream.report.views.memory import (
    about_memory,
    memory_cells,
    memory_change,
    memory_columns,
    memory_notes,
    recording_notes,
    too_large,
    verdict,
)
from daydream.report.views.step import about_steps, needs_legend
from daydream.text import bytes_text, counted
from daydream.transforms.registry import typed

if TYPE_CHECKING:
    from daydream.predict.curves import Curve
    from daydream.predict.rank import Ranked, Ranking
    from daydream.results import Predicted
    from daydream.simulate.critical_path import Bound

NAME_WIDTH = 60  # so that a pair can be typed
CURVE_WIDTH = 30
MOST_CURVES = 12  # where nobody says how many
MOST_REASONS = 6
REASON_WIDTH = 110
MOST_PAIRS = 2  # where not all is shown
POINTS = ("at 75%", "at 25%")  # of a curve, which a narrow terminal does without
FLAT_SHARE = 0.001  # of a step: curves that save less are not shown
CURVES = (
    "own time: what the part takes in a step; at 50%: the step if it took half of that; pays down to: below "
    "this share of its time, making it faster shortens the step no more"
)


def ranking(
    found: Ranking, *, verbose: bool = False, top: int | None = None, undrawn: bool = False
) -> list[Block]:
    """Return the best optimizations and pairs with the code that makes them; verbose what else was found.

    `undrawn`: there are curves, though the ranking holds none.
    """
    verbose = verbose or not found.optimizations  # then the reasons are the answer
    first, *others = _headline(found)
    blocks: list[Block] = [
        *map(Text, whole_recording(found.replay.graph.trace)),
        Headline(first),
        *about_steps(found.replay),
        *map(Text, others),
        *changes(found, top, verbose=verbose),
    ]
    if not verbose:
        return [*blocks, *_more(found, undrawn=undrawn)]
    shown = [curve for curve in found.curves if curve.saving_ns >= FLAT_SHARE * found.replayed_ns]
    if shown:
        blocks += [curve_table(shown[:top]), Text(CURVES, aside=True)]
        more = len(found.curves) - len(shown[:top])
        blocks += [Text(f"{counted(more, 'other part')} in --json", aside=True)] if more else []
    return [*blocks, *_left_out(found), Notes(found.notes)]


def _headline(found: Ranking) -> list[str]:
    """Return what the best change gives, and what the step is bound by now."""
    best = best_of(found)
    if found.by == "memory":
        said = "no optimization here lowers the peak of memory"
        if best is not None and best.memory is not None:
            memory = f"peak memory {memory_change(best.memory)}{verdict(best.memory)}"
            said = f"{named(best)}: {memory}; {answer_text(best)}"
    elif best is None:
        said = f"{time_text(found.replayed_ns)} per step; no optimization here makes it shorter"
    else:
        said = f"{named(best)}: {answer_text(best)}"
    if found.cannot_tell and found.by == "time":
        said = f"this recording cannot tell what helps: most intervals exceed 2x; record it again. {said}"
    share = f" ({found.bound_share:.0%} of the critical path)" if found.bound_share else ""
    error = error_text(found.replay.basis_error, found.replay.error)
    return [f"{said}; {error}", f"now {found.bound.label}{share}"]


def named(each: Ranked) -> str:
    """Return the name of a change with the options that it has in this trace, as they are typed."""
    return " ".join([each.optimization, *typed(each.options)])


def changes(
    found: Ranking, top: int | None = None, *, verbose: bool = True, name: str = ""
) -> list[Block]:
    """Return a table of the best and of pairs, the code that makes each below it, and what gains nothing."""
    if not found.optimizations:
        return [Text("no optimization applies to this trace")]
    better = effective(found)
    best = better[:top]
    pairs = found.pairs[: None if verbose else MOST_PAIRS]
    blocks: list[Block] = []
    if best or pairs:
        blocks += [_changes(found, best, pairs, verbose=verbose)._replace(name=name)]
        blocks += needs_legend([each.needs for each in best])
    if better[len(best) :]:
        names = ", ".join(f"{named(each)} {_gain(found, each)}" for each in better[len(best) :])
        blocks.append(
            Text(f"{names} (show with --top {len(better)})", "smaller gains: ", aside=True)
        )
    if verbose:
        blocks += [
            Text(", ".join(names), f"{head}: ", aside=True) for head, names in without_gain(found)
        ]
    by_reason: dict[str, list[str]] = {}
    for each in found.optimizations:
        if each.reason:
            by_reason.setdefault(each.reason, []).append(named(each))
    blocks += [
        Text(f"{', '.join(names)}: {reason}", "cannot be predicted: ")
        for reason, names in by_reason.items()
    ]
    return blocks


def _changes(
    found: Ranking, best: Sequence[Ranked], pairs: Sequence[Ranked], *, verbose: bool
) -> Table:
    columns = [
        Column("optimization", width=NAME_WIDTH),
        Kind.TIME("predicted"),
        Kind.INTERVAL("90% interval", spare=5),
        *([Kind.TIME("saves", spare=3, bar=True)] if verbose else []),
        Kind.RATIO("speedup"),
        *memory_columns((each.memory for each in (*best, *pairs)), 1),
        Column("then the step is", spare=4),
        *([Column("needs", spare=3)] if verbose else []),
    ]
    told: set[str] = set()
    rows = [_row(each, told, verbose=verbose) for each in best]
    if pairs:
        rows += [
            Row(("pairs",), style=HEADING),
            *(_row(each, told, verbose=verbose) for each in pairs),
        ]
    return Table(columns, rows, found.replayed_ns)


def _row(each: Ranked, told: set[str], *, verbose: bool) -> Row:
    cells = [
        named(each),
        "unknown" if each.predicted_ns is None else each.predicted_ns,
        interval(each),
        *([each.saving_ns] if verbose else []),
        gain(each),
        *memory_cells(each.memory),
        _bound_text(each.bound, each.bound_share),
        *([each.needs] if verbose else []),
    ]
    return Row(cells, _made_by(each, told), FADED if too_large(each.memory) else "")


def interval(each: Predicted) -> Cell:
    """Return the 90% interval of a predicted step as a cell."""
    low = each.predicted_low_ns
    high = each.predicted_high_ns
    return None if low is None or high is None else (low, high)


def gain(each: Predicted) -> Cell:
    """Return how many times faster a step gets as a cell."""
    return each.speedup if each.predicted_ns else speedup_of(each)


def _made_by(each: Ranked, told: set[str]) -> str:
    """Return the line of a training script that makes a change, and what else that takes.

    A pair's lines are those of its parts, and not told again.
    """
    if "+" in each.optimization:
        parts = [] if each.code is None else each.code.split("; ")
        return ";  ".join(part for part in parts if part not in told)
    told.add(each.code or "")
    return " ".join(
        [*([f"[{each.needs}]"] if each.needs else []), *([each.code] if each.code else [])]
    )


def _more(found: Ranking, *, undrawn: bool) -> list[Block]:
    """Return a line on what `-v` adds."""
    left_out = len(found.optimizations_left_out)
    more = [
        *(["what each layer and kernel would save"] if found.curves or undrawn else []),
        *([f"{left_out} that were left out, and why"] if left_out else []),
    ]
    lines = [f"{head}: {counted(len(names), 'change')}" for head, names in without_gain(found)]
    blocks: list[Block] = [Text("   ".join(lines), aside=True)] if lines else []
    blocks += [Text("; ".join(more), "-v adds: ", aside=True)] if more else []
    notes = about_memory(each.memory for each in found.optimizations)
    return [*blocks, *memory_notes(notes), *recording_notes(found.replay.notes)]


def without_gain(found: Ranking) -> list[tuple[str, list[str]]]:
    """Return a title and names, if any, of what makes the step longer and of what leaves it as it is."""
    if found.by == "memory":
        better = effective(found)
        others = [named(each) for each in found.optimizations if each not in better]
        return [("no less memory", others)] if others else []
    slower = []
    nothing = []
    for each in found.optimizations:
        times = speedup_of(each)
        longer = (each.saving_ns or 0) < 0
        if each.changes_nothing or (longer and times == "1.00x"):
            nothing.append(named(each))
        elif longer:
            slower.append(f"{named(each)} {times}")
    return [(head, names) for head, names in (("slower", slower), ("no gain", nothing)) if names]


def _gain(found: Ranking, each: Ranked) -> str:
    if found.by == "memory" and each.memory is not None:
        return f"to {bytes_text(each.memory.after_bytes)}"
    return speedup_of(each)


def effective(found: Ranking) -> list[Ranked]:
    """Return those that make the step shorter, or by memory those that lower its peak, the best first."""
    if found.by == "memory":
        known = [each for each in found.optimizations if each.memory is not None]
        return [
            each
            for each in known
            if each.memory and each.memory.after_bytes < each.memory.before_bytes
        ]
    return [each for each in found.optimizations if each.gains]


def best_of(found: Ranking) -> Ranked | None:
    """Return the first that may fit the device's memory; else the first of all; None without one."""
    better = effective(found)
    fitting = (each for each in better if not too_large(each.memory))
    return next(fitting, None) or next(iter(better), None)


def _left_out(found: Ranking) -> list[Block]:
    """Return what was left out, by reason; the reasons of few at the end only counted."""
    by_reason: dict[str, list[str]] = {}
    needed = []
    for name, reason in found.left_out.items():
        if reason.startswith("needs --"):
            needed.append(f"{name} {reason.removeprefix('needs ')}")
        else:
            by_reason.setdefault(shortened(reason, REASON_WIDTH), []).append(name)
    reasons = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    shown = [f"{', '.join(names)}: {reason}" for reason, names in reasons[:MOST_REASONS]]
    shown += [f"these need an option: {', '.join(needed)}"] if needed else []
    more = sum(len(names) for _, names in reasons[MOST_REASONS:])
    shown += [f"{counted(more, 'other')}; --json says why"] if more else []
    return [Title("left out"), *(Text(said) for said in shown)] if shown else []


def reasons_table(found: Ranking) -> list[Block]:
    """Return every optimization that was left out, with its reason."""
    rows = [Row(pair) for pair in found.optimizations_left_out.items()]
    columns = [Column("left out"), Column("why", width=REASON_WIDTH)]
    return [Table(columns, rows, name="left-out")] if rows else []


# Curves


def curves(found: Sequence[Curve], *, verbose: bool = False) -> list[Block]:
    """Return the first curves, and how many more there are."""
    if not found:
        return [Headline("no curves")]
    more = f"and {len(found) - MOST_CURVES:,} more" if len(found) > MOST_CURVES else ""
    return [curve_table(found[:MOST_CURVES])._replace(more=more)]


def curve_table(shown: Iterable[Curve]) -> Table:
    """Return a row for each curve: the step if the part took less of its time, and from where on it pays."""
    shown = list(shown)
    heads = [f"at {factor:.0%}" for factor in shown[0].factors[1:]]
    columns = [
        Column("recorded step if a part took less", width=NAME_WIDTH),
        Kind.TIME("own time"),
        *(Kind.TIME(head, spare=int(head in POINTS)) for head in heads),
        Kind.PERCENT("pays down to"),
    ]
    rows = []
    for curve in shown:
        sort = "CPU" if curve.sort == "cpu" else curve.sort
        knee = "never pays" if curve.knee is None else f"{curve.knee:.0%}"
        name = (tail if curve.sort == "layer" else shortened)(curve.name, CURVE_WIDTH)
        rows.append(Row((f"{sort} {name}", curve.own_ns, *curve.step_ns[1:], knee)))
    return Table(columns, rows, shown[0].step_ns[0])


def _bound_text(bound: Bound, share: float) -> str:
    return f"{bound.label} ({share:.0%})" if share else bound.label
