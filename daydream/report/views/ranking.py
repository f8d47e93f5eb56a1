"""Many answers of one kind: a ranking and its curves, a sweep over options, and a number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from daydream.costs.device.input_sizes import samples_per_step
from daydream.report.blocks import (
    FADED,
    HEADING,
    NEUTRAL,
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
    answer_text,
    error_text,
    percent,
    shortened,
    speedup_of,
    tail,
    time_text,
    times,
)
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
from daydream.report.views.step import needs_legend, opening, per_s_text, throughput_line
from daydream.text import bytes_text, counted
from daydream.transforms.registry import typed

if TYPE_CHECKING:
    from daydream.predict.curves import Curve
    from daydream.predict.rank import Ranked, Ranking
    from daydream.predict.scaling import Scaling
    from daydream.predict.sweep import Answered, Refused, Sweep
    from daydream.results import Predicted

Named = TypeVar("Named")
NAME_WIDTH = 60  # so that a pair can be typed
CURVE_WIDTH = 30
MOST_CURVES = 12  # where nobody says how many
MOST_REASONS = 6
REASON_WIDTH = 110
MOST_PAIRS = 2  # where not all is shown
POINTS = ("at 75%", "at 25%")  # of a curve, which a narrow terminal does without
FLAT_SHARE = 0.001  # of a step: curves that save less are not shown
CURVES = (
    "own time: what the part takes in a step; at 50%: the step if it took half of that; gain ends at: "
    "from this share of its time on, making the part faster shortens the step no more"
)


def ranking(
    found: Ranking,
    *,
    verbose: bool = False,
    top: int | None = None,
    undrawn: bool = False,
) -> Iterator[Block]:
    """Return the best optimizations and pairs with the code that makes them; verbose what else was found.

    `undrawn`: there are curves, though the ranking holds none.
    """
    verbose = verbose or not found.optimizations  # then the reasons are the answer
    first, *others = _headline(found)
    yield from opening(Headline(first), found.replay)
    yield from map(Text, others)
    yield from changes(found, top, verbose=verbose)
    if not verbose:
        yield from _more(found, undrawn=undrawn)
        return
    shown = [curve for curve in found.curves if curve.saving_ns >= FLAT_SHARE * found.replayed_ns]
    if shown:
        yield curve_table(shown[:top])
        yield Text(CURVES, aside=True)
        more = len(found.curves) - len(shown[:top])
        if more:
            yield Text(f"{counted(more, 'other part')} in --json", aside=True)
    yield from _left_out(found)
    yield Notes(found.notes)


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
    bound = f"now {found.bound.label}"
    if found.bound_share:
        bound = f"bottleneck now: {found.bound.awaited}, {found.bound_share:.0%} of the step"
    error = error_text(found.replay)
    return [f"{said}; {error}", bound]


def named(each: Ranked) -> str:
    """Return the name of a change with the options that it has in this trace, as they are typed."""
    return " ".join([each.optimization, *typed(each.options)])


def changes(
    found: Ranking,
    top: int | None = None,
    *,
    verbose: bool = True,
    name: str = "",
) -> Iterator[Block]:
    """Return a table of the best and of pairs, the code that makes each below it, and what gains nothing."""
    if not found.optimizations:
        yield Text("no optimization applies to this trace")
        return
    better = effective(found)
    best = better[:top]
    pairs = found.pairs[: None if verbose else MOST_PAIRS]

    if best or pairs:
        yield _changes(found, best, pairs, verbose=verbose)._replace(name=name)
        yield from needs_legend([each.needs for each in best])
    if better[len(best) :]:
        others = ", ".join(f"{named(each)} {_gain(found, each)}" for each in better[len(best) :])
        said = f"{others} (show with --top {len(better)})"
        yield Text(said, "smaller gains: ", aside=True)
    for head, names in without_gain(found) if verbose else []:
        yield Text(", ".join(names), f"{head}: ", aside=True)
    unknown = [(each.reason, named(each)) for each in found.optimizations if each.reason]
    for reason, names in _by_reason(unknown):
        yield Text(f"{', '.join(names)}: {reason}", "cannot be predicted: ")


def _by_reason(pairs: Iterable[tuple[str, Named]]) -> list[tuple[str, list[Named]]]:
    """Return what shares a reason, the reason of most first."""
    found: dict[str, list[Named]] = {}
    for reason, each in pairs:
        found.setdefault(reason, []).append(each)
    return sorted(found.items(), key=lambda pair: -len(pair[1]))


def _changes(
    found: Ranking,
    best: Sequence[Ranked],
    pairs: Sequence[Ranked],
    *,
    verbose: bool,
) -> Table:
    columns = [
        Column("optimization", width=NAME_WIDTH),
        Kind.TIME("predicted"),
        Kind.INTERVAL("90% interval", spare=5),
        *([Kind.TIME("saves", spare=3, bar=True)] if verbose else []),
        Kind.RATIO("speedup"),
        *memory_columns((each.memory for each in (*best, *pairs)), 1),
        Column("new bottleneck", spare=4),
    ]
    told: set[str] = set()
    rows = [_row(each, told, verbose=verbose) for each in (*best, *pairs)]
    if pairs:
        rows.insert(len(best), Row(("pairs",), style=HEADING))
    return Table(columns, rows, found.replayed_ns)


def _row(each: Ranked, told: set[str], *, verbose: bool) -> Row:
    bound = each.bound.label
    if each.bound_share:
        bound = f"{each.bound.awaited.removeprefix('the ')}, {each.bound_share:.0%}"
    cells = [
        named(each),
        "unknown" if each.predicted_ns is None else each.predicted_ns,
        interval(each),
        *([each.saving_ns] if verbose else []),
        gain(each),
        *memory_cells(each.memory),
        bound,
    ]
    parts = [each.code or ""]
    if "+" in each.optimization:  # lines of its parts, those that are not told yet
        parts = [part for part in parts[0].split("; ") if part not in told]
    told.add(each.code or "")
    code = f"{f'[{each.needs}] ' if each.needs else ''}{';  '.join(parts)}".strip()
    return Row(cells, code, FADED if too_large(each.memory) else "")


def interval(each: Predicted) -> Cell:
    """Return the 90% interval of a predicted step as a cell."""
    low = each.predicted_low_ns
    high = each.predicted_high_ns
    return None if low is None or high is None else (low, high)


def gain(each: Predicted) -> Cell:
    """Return how many times faster a step gets as a cell."""
    return each.speedup if each.predicted_ns else speedup_of(each)


def _more(found: Ranking, *, undrawn: bool) -> Iterator[Block]:
    """Return a line on what `-v` adds."""
    left_out = len(found.optimizations_left_out)
    more = ["what each layer and kernel would save"] if found.curves or undrawn else []
    if left_out:
        more.append(f"{left_out} that were left out, and why")
    lines = [f"{head}: {counted(len(names), 'change')}" for head, names in without_gain(found)]
    if lines:
        yield Text("   ".join(lines), aside=True)
    if more:
        yield Text("; ".join(more), "-v adds: ", aside=True)
    notes = about_memory(each.memory for each in found.optimizations)
    yield from memory_notes(notes)
    yield from recording_notes(found.replay.notes)


def without_gain(found: Ranking) -> list[tuple[str, list[str]]]:
    """Return a title and names, if any, of what makes the step longer and of what leaves it as it is."""
    if found.by == "memory":
        better = effective(found)
        others = [named(each) for each in found.optimizations if each not in better]
        return [("no less memory", others)] if others else []
    slower = []
    nothing = []
    for each in found.optimizations:
        told = speedup_of(each)
        longer = (each.saving_ns or 0) < 0
        if each.changes_nothing or (longer and told == "1.00x"):
            nothing.append(named(each))
        elif longer:
            slower.append(f"{named(each)} {told}")
    return [(head, names) for head, names in (("slower", slower), ("no gain", nothing)) if names]


def _gain(found: Ranking, each: Ranked) -> str:
    if found.by == "memory" and each.memory is not None:
        return f"to {bytes_text(each.memory.after_bytes)}"
    return speedup_of(each)


def effective(found: Ranking) -> list[Ranked]:
    """Return those that make the step shorter, or by memory those that lower its peak, the best first."""
    if found.by == "memory":
        known = [(each, each.memory) for each in found.optimizations]
        return [each for each, of in known if of and of.after_bytes < of.before_bytes]
    return [each for each in found.optimizations if each.gains]


def best_of(found: Ranking) -> Ranked | None:
    """Return the first that may fit the device's memory; else the first of all; None without one."""
    better = effective(found)
    fitting = (each for each in better if not too_large(each.memory))
    return next(fitting, None) or next(iter(better), None)


def _left_out(found: Ranking) -> Iterator[Block]:
    """Return what was left out, by reason; the reasons of few at the end only counted."""
    others = []
    needed = []
    for name, reason in found.left_out.items():
        if reason.startswith("needs --"):
            needed.append(f"{name} {reason.removeprefix('needs ')}")
        else:
            others.append((shortened(reason, REASON_WIDTH), name))
    reasons = _by_reason(others)
    shown = [f"{', '.join(names)}: {reason}" for reason, names in reasons[:MOST_REASONS]]
    if needed:
        shown.append(f"these need an option: {', '.join(needed)}")
    more = sum(len(names) for _, names in reasons[MOST_REASONS:])
    if more:
        shown.append(f"{counted(more, 'other')}; --json says why")
    if shown:
        yield Title("left out")
        yield from (Text(said) for said in shown)


def reasons_table(found: Ranking) -> Iterator[Block]:
    """Return every optimization that was left out, with its reason."""
    rows = [Row(pair) for pair in found.optimizations_left_out.items()]
    columns = [Column("left out"), Column("why", width=REASON_WIDTH)]
    if rows:
        yield Table(columns, rows, name="left-out")


# Curves


def curves(found: Sequence[Curve], *, verbose: bool = False) -> Iterator[Block]:
    """Return the first curves, and how many more there are."""
    if not found:
        yield Headline("no curves")
        return
    others = len(found) - MOST_CURVES
    more = f"and {others:,} more" if others > 0 else ""
    yield curve_table(found[:MOST_CURVES])._replace(more=more)


def curve_table(shown: Iterable[Curve]) -> Table:
    """Return a row for each curve: the step if the part took less of its time, and from where on it pays."""
    shown = list(shown)
    heads = [f"at {factor:.0%}" for factor in shown[0].factors[1:]]
    columns = [
        Column("recorded step if a part took less", width=NAME_WIDTH),
        Kind.TIME("own time"),
        *(Kind.TIME(head, spare=int(head in POINTS)) for head in heads),
        Kind.PERCENT("gain ends at"),
    ]
    rows = []
    for curve in shown:
        sort = "CPU" if curve.sort == "cpu" else curve.sort
        knee = "no gain" if curve.knee is None else f"{curve.knee:.0%}"
        name = (tail if curve.sort == "layer" else shortened)(curve.name, CURVE_WIDTH)
        rows.append(Row((f"{sort} {name}", curve.own_ns, *curve.step_ns[1:], knee)))
    return Table(columns, rows, shown[0].step_ns[0])


SWEPT_WIDTH = 34
MOST_TRACES = 8
MOST_NAMED = 4  # scenarios that one reason names
MOST_SWEPT = 40  # where nobody says how many


def sweep(found: Sweep, *, verbose: bool = False, top: int = MOST_SWEPT) -> Iterator[Block]:
    """Return how the traces replay, the best scenarios, and what was left out."""
    yield from _answer(found)
    yield from _traces(found)
    if found.scenarios:
        yield _scenarios(found, found.scenarios[:top])
    else:
        yield Text("no scenario could be answered")
    unknown = [each for each in found.scenarios if each.reason]
    if unknown:
        others = f" (and {len(unknown) - 1:,} more)" if len(unknown) > 1 else ""
        said = f"{_words(_labels(found, unknown[0]))}{others}: {unknown[0].reason}"
        yield Text(said, "cannot be predicted: ")
    if found.refused:
        yield Title(f"left out: {counted(len(found.refused), 'scenario')}")
        for names, reason in left_out(found):
            yield Text(f"{names}: {reason}")
    of_memory = about_memory(each.memory for each in found.scenarios)
    yield Notes([*found.notes, *_common(found, of_memory)])
    yield from memory_notes(of_memory)


def _answer(found: Sweep) -> Iterator[Block]:
    """Return what the best scenario that may fit gives, if one could be predicted."""
    if found.scenarios and not found.possible:
        yield Headline(f"{found.optimization}: no scenario fits the device's memory")
        return
    best = max(found.possible, key=lambda each: each.gain, default=None)
    if best is None or best.predicted_ns is None:
        yield Headline(f"{found.optimization}: {counted(len(found), 'scenario')}")
        return
    what = f"{found.optimization} {_words(_labels(found, best))}"
    yield from throughput_line(what, best)
    yield Headline(f"{what}: {answer_text(best)}")


def _traces(found: Sweep) -> Iterator[Block]:
    """Return how each trace replays, the first ones of many."""
    for each in found.traces[:MOST_TRACES]:
        name = each.trace if len(found.traces) > 1 else "step time"
        if each.replayed_ns is None:
            yield Text(f"{name}   not replayed")
            continue
        off = each.replay_error
        error = "" if off is None else f"error {percent(off, signed=True)}"
        replayed = (each.basis or "", each.replayed_ns, error)
        yield times(name, ("measured", each.measured_ns, ""), replayed)
    if len(found.traces) > MOST_TRACES:
        yield Text(counted(len(found.traces) - MOST_TRACES, "more trace"))


def _scenarios(found: Sweep, shown: Sequence[Answered]) -> Table:
    several = len(found.traces) > 1
    columns = [
        *([Column("trace", width=SWEPT_WIDTH, keep="end")] if several else []),
        *(
            Column(name.replace("_", "-"), _kind(values), width=SWEPT_WIDTH)
            for name, values in found.varied.items()
        ),
        Kind.RATIO("throughput"),
        Kind.TIME("predicted"),
        Kind.INTERVAL("90% interval", spare=4),
        Kind.RATIO("speedup"),
        *memory_columns((each.memory for each in shown), 2),
        Kind.COUNT("notes", spare=1),
    ]
    rows = [
        Row(
            (
                *([each.trace] if several else []),
                *(_value(each.options[name]) for name in found.varied),
                each.throughput.gain if each.throughput else None,
                "unknown" if each.predicted_ns is None else each.predicted_ns,
                interval(each),
                gain(each),
                *memory_cells(each.memory),
                len(each.notes) or None,
            ),
            style=FADED if too_large(each.memory) else "",
        )
        for each in shown
    ]
    more = len(found.scenarios) - len(shown)
    all_of = f"--top {len(found.scenarios)}, or -o FILE"
    return Table(columns, rows, more=f"{counted(more, 'more scenario')}: {all_of}" if more else "")


def _kind(values: Sequence[Any]) -> Kind:
    words = any(isinstance(value, str | bool) for value in values)
    return Kind.NAME if words else Kind.COUNT


def left_out(found: Sweep) -> list[tuple[str, str]]:
    """Return the scenarios that were refused, by reason, those that most share first."""
    reasons = _by_reason((each.reason, each) for each in found.refused)
    rows = [(_together(found, each), reason) for reason, each in reasons[:MOST_REASONS]]
    more = sum(len(each) for _, each in reasons[MOST_REASONS:])
    return [*rows, (counted(more, "other"), "--json says why")] if more else rows


def _together(found: Sweep, refused: Sequence[Refused]) -> str:
    """Return the scenarios by what they have in common, else the first of them."""
    if len(refused) == len(found):
        return "all"
    shared = _labels(found, refused[0])
    for each in refused[1:]:
        labels = _labels(found, each)
        shared = {name: value for name, value in shared.items() if labels[name] == value}
    every: list[Answered | Refused] = [*found.scenarios, *found.refused]
    alike = [each for each in every if shared.items() <= _labels(found, each).items()]
    if shared and len(alike) == len(refused):
        return _words(shared)
    if shared and len(refused) > 1:
        return f"{_words(shared)} ({len(refused):,} of {len(alike):,})"
    named = [_words(_labels(found, each)) for each in refused[:MOST_NAMED]]
    more = len(refused) - len(named)
    return "; ".join([*named, f"and {more:,} more"] if more else named)


def _labels(found: Sweep, each: Answered | Refused) -> dict[str, Any]:
    return {**({"trace": each.trace} if len(found.traces) > 1 else {}), **each.options}


def _words(labels: Mapping[str, Any]) -> str:
    shown = {
        name: tail(value, SWEPT_WIDTH) if name == "trace" else _value(value)
        for name, value in labels.items()
    }
    return " ".join(f"{name.replace('_', '-')}={value}" for name, value in shown.items())


def _common(found: Sweep, of_memory: Sequence[str]) -> list[str]:
    """Return the notes that all scenarios share, and how many others there are; without those of memory."""
    said = [[note for note in each.notes if note not in of_memory] for each in found.scenarios]
    common = [note for note in (said[0] if said else ()) if all(note in notes for notes in said)]
    other = {note for notes in said for note in notes} - set(common)
    if not other:
        return common
    return [*common, f"{counted(len(other), 'other note')} of some scenarios: --json, or -o FILE."]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Scaling


def scaling(found: Scaling, *, verbose: bool = False) -> Iterator[Block]:
    """Return what most workers give, and a row for each number of workers."""
    said = (
        "efficiency: throughput per worker, relative to one worker. overhead: what exchanging gradients "
        "costs besides transfers. exposed: transfers that the step waits for."
    )
    if found.contention is not None and found.contention.slows:
        said = said.removesuffix(".") + ", and how they slow kernels that run meanwhile."
    if found.waits:
        said += " waiting: for slower workers."
    of_memory = about_memory(row.memory for row in found.rows)
    own = [note for note in found.notes if note not in {*found.replay.notes, *of_memory}]
    yield from scaling_answer(found)
    yield scaling_table(found)
    yield Text(said, aside=True)
    yield Notes(own if not verbose else found.notes)
    yield from memory_notes(of_memory)
    yield from recording_notes(found.replay.notes)


def scaling_answer(found: Scaling) -> Iterator[Block]:
    """Return what the number of workers with the largest throughput gives, and what it was predicted from."""
    most = max(found.rows, key=lambda row: row.throughput)
    step_ns = found.replayed_ns if found.measured_ns is None else found.measured_ns
    recorded = f"{time_text(step_ns)} on {counted(found.recorded_workers, 'worker')}"
    workers = counted(most.workers, "worker")
    efficiency = percent(most.efficiency)
    lost = f"largest loss: {most.lost_to}; " if most.lost_to else ""
    error = error_text(found.replay)
    alone = samples_per_step(found.replay.graph) if found.alone_ns else None
    rate = ""
    if alone is not None:
        rate = f"{per_s_text(most.throughput * alone / found.alone_ns * 1e9)} samples per second, "
    yield Headline(
        f"{workers}: {rate}{most.throughput:,.2f}x the throughput of one, efficiency {efficiency}"
    )
    yield Text(f"{lost}from a step of {recorded}, {error}")


def scaling_table(found: Scaling) -> Table:
    """Return a row for each number of workers."""
    columns = [
        Kind.COUNT("workers"),
        Kind.RATIO("throughput"),
        Kind.PERCENT("efficiency"),
        Kind.TIME("step"),
        Kind.TIME("overhead", spare=1),
        Kind.TIME("exposed", spare=2),
        *([Kind.TIME("waiting", spare=3)] if found.waits else []),
        *memory_columns((row.memory for row in found.rows), 4),
        Column("bound by, lost to"),
    ]
    rows = [
        Row(
            (
                row.workers,
                row.throughput,
                row.efficiency,
                row.step_ns,
                row.overhead_ns,
                row.exposed_ns,
                *([row.waiting_ns] if found.waits else []),
                *memory_cells(row.memory),
                # If a loss is what bounds a step, it is the largest one too.
                row.bound if row.lost_to in {row.bound, None} else f"{row.bound}, {row.lost_to}",
            ),
            style=FADED if too_large(row.memory) else NEUTRAL,
        )
        for row in found.rows
    ]
    return Table(columns, rows, found.alone_ns)
