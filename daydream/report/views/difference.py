"""Two steps side by side: a comparison of recordings, or of a prediction and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from daydream.costs.operators import family
from daydream.predict.basis import ESTIMATED
from daydream.predict.compare import SAME, Change
from daydream.report.blocks import (
    HEADING,
    NEUTRAL,
    Block,
    Column,
    Facts,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    layer_name,
    listed,
    percent,
    shortened,
    speedup,
    step_change_text,
    time_text,
    times,
)
from daydream.report.views.breakdown import breakdown, columns, moved_bound
from daydream.text import counted
from daydream.text import listed as some_of
from daydream.trace.recorded_steps import made_up

if TYPE_CHECKING:
    from daydream.predict.compare import Difference, Series, Side
    from daydream.predict.confirm import Confirmation
    from daydream.predict.curves import Blame

TOP = 4
MOST_NAMES = 5
NAME_WIDTH = 46
ARROW = " -> "  # from what was before to what is after
COPIES = ("Memcpy ", "Memset ")  # named by what they copy, not as functions are
SHOWN_NS = 1_000  # a change of less time is not seen, if it is as often
HOW = (
    "Medians of {rounds} rounds. In each, blocks of steps with and without the change take turns, without a "
    "profiler."
)


def difference(found: Difference, *, verbose: bool = False, top: int = TOP) -> Iterator[Block]:
    """Return the change of the step, where the time of both goes by cause, and what changed most.

    Verbose adds phases and layers, the work by layer, operator, kernel and CPU operator.
    """
    one = found.before
    two = found.after
    judged = one.prediction is None
    names = sides_of(found)
    sides = (one.breakdown, two.breakdown)
    more = "phases, layers and kernels, what runs meanwhile"
    moved = moved_bound(*sides) if judged else ""
    yield from _answer(found)
    before = found.started_from_ns if one.prediction else one.simulated_ns
    if not one.prediction:
        rows = [_step_row("before", before, None, one.low_ns, one.high_ns)]
    else:
        ns = None if one.reason else one.simulated_ns
        name = f"predicted: {one.prediction}"
        rows = [_step_row("before", before), _step_row(name, ns, before, one.low_ns, one.high_ns)]
    rows.append(_step_row("after", two.simulated_ns, before, two.low_ns, two.high_ns))
    yield _step_table(rows, "range")
    yield Facts([(names[0], _side(one)), (names[1], _side(two))])
    yield breakdown(*sides, names=names, only_causes=not verbose, judged=judged)
    if moved:
        yield Text(moved)
    yield _work(found, top, verbose=verbose)
    yield from (Text(said, aside=True) for said in _unchanged(found))
    if not verbose:
        yield Text(more, "-v adds: ", aside=True)
    yield Notes(found.notes)


def sides_of(found: Difference) -> tuple[str, str]:
    """Return what the two sides are called."""
    return ("predicted", _known(found.after)) if found.before.prediction else ("before", "after")


def _known(side: Side) -> str:
    """Return how the step of a recording is known."""
    return ESTIMATED if side.basis == ESTIMATED else "measured"


def _side(side: Side) -> str:
    """Return what one of the two is: its file, its devices, how many steps."""
    name = f"{side.prediction} on {side.name}" if side.prediction else side.name
    devices = listed(side.devices) if side.devices else "GPU of unknown name"
    ranks = f" on {counted(side.ranks, 'rank')}" if side.ranks > 1 else ""
    steps = counted(side.steps, "step")
    parts = [devices if side.on_device else "CPU only", steps + ranks]
    return f"{name}: {', '.join(filter(None, [*parts, made_up(side.graph.recorded)]))}"


def _answer(found: Difference) -> Iterator[Block]:
    """Return the step before and after, and whether that is clear; or what came of a prediction."""
    one = found.before
    two = found.after
    if not one.prediction:
        noise = "; the step times overlap, so this may be noise" if found.overlap else ""
        yield Headline(step_change_text(one.simulated_ns, two.simulated_ns) + noise)
        return
    known = _known(two)
    measured = f"{known} {time_text(two.simulated_ns)} per step"
    if one.reason or found.error is None:
        said = f"predicted unknown, {measured}; no prediction to judge"
        yield Headline(f"{one.prediction}: {said}")
        return
    came = "within" if found.overlap else "outside"
    error = percent(found.error, signed=True)
    said = (
        f"predicted {time_text(one.simulated_ns)}, {measured}; {came} its interval, error {error}"
    )
    yield Headline(f"{one.prediction}: {said}")
    start = found.started_from_ns
    if start is not None:
        gains = [speedup(start, side.simulated_ns) for side in (one, two)]
        yield Text(f"from {time_text(start)}: predicted {gains[0]}, {known} {gains[1]}")


def _step_row(
    name: str,
    ns: float | None,
    base: float | None = None,
    low: int | None = None,
    high: int | None = None,
) -> Row:
    """Return a step with its range, and how many times faster than the base it is, if there is one."""
    ends = None if low is None or high is None or low == high else (low, high)
    gain = base / max(ns, 1) if base and ns is not None else None
    return Row((name, "unknown" if ns is None else ns, ends, gain))


def _step_table(rows: Sequence[Row], interval: str) -> Table:
    heads = [
        Column(""),
        Kind.TIME("step"),
        Kind.INTERVAL(interval),
        Kind.RATIO("speedup"),
    ]
    return Table(heads, rows)


def _work(found: Difference, top: int = TOP, *, verbose: bool = True) -> Table:
    """Return the largest changes: how often a step does something, and how long that takes.

    If not verbose it has operators only, of the GPU or, where none of these changed, of the CPU.
    """
    on_device = found.before.on_device, found.after.on_device
    where = {(True, True): "GPU work", (False, False): "CPU work"}.get(on_device, "work")
    rows = [Row(_work_cells(where, found.layers))]
    sections: list[tuple[str, Sequence[Change], Callable[[Change], str]]] = [
        ("by layer", found.layers, lambda change: layer_name((change.before or change.after)[0])),
        ("by operator", found.operators, _renamed),
        ("by kernel", found.kernels, _kernel),
        ("CPU by operator", found.cpu, _renamed),
    ]
    for title, changes, label in sections:
        groups: dict[str, list[Change]] = {}
        for change in changes:
            groups.setdefault(label(change), []).append(change)
        every = [_work_cells(f"  {name}", group) for name, group in groups.items()]
        every.sort(key=lambda cells: (-abs(cells[-1]), cells[0]))
        shown = [Row(each) for each in every if abs(each[-1]) >= SHOWN_NS or ARROW in each[1]]
        if title == "by layer" and len(shown) < 2 and any(each.layer is None for each in changes):
            continue  # no layers are known
        if shown and (verbose or title.endswith("by operator")):
            rows.append(Row((title,), style=HEADING))
            rows += shown[:top]
            if not verbose:
                break
    if found.before.prediction:  # what differs from a prediction is neither better nor worse
        rows = [row._replace(style=row.style or NEUTRAL) for row in rows]
    name, *sides = columns("largest changes per step", sides_of(found))
    plain = [each._replace(bar=False) for each in sides]
    return Table([name._replace(keep="end"), Kind.COUNT("count", spare=1), *plain], rows)


def _work_cells(name: str, group: Sequence[Change]) -> tuple[str, str, int, int, int]:
    """Return a name, how often a step does it before and after, how long that takes, and how much longer."""
    old = sum(each.before_ns for each in group)
    new = sum(each.after_ns for each in group)
    before = _count_text(sum(each.before_count for each in group))
    after = _count_text(sum(each.after_count for each in group))
    return name, ARROW.join(dict.fromkeys([before, after])), old, new, new - old


def _count_text(number: float) -> str:
    return f"{number:,.0f}" if abs(number - round(number)) < 0.05 else f"{number:,.1f}"


def _renamed(change: Change) -> str:
    return _arrow(change.before, change.after)


def _kernel(change: Change) -> str:
    """Return the families of a kernel: what variants for other shapes and types have in common."""
    before = dict.fromkeys(map(_family, change.before))
    return _arrow(list(before), list(dict.fromkeys(map(_family, change.after))))


def _family(name: str) -> str:
    return name if name.startswith(COPIES) else family(name)


def _arrow(old: Sequence[str], new: Sequence[str]) -> str:
    """Return what something was called and, if it is called otherwise now, what has come in its place."""
    if not old or not new or list(old) == list(new):
        return _several(old or new, NAME_WIDTH)
    room = NAME_WIDTH - len(ARROW)
    first = _several(old, max(room // 2, room - len(_several(new, room))))
    return first + ARROW + _several(new, room - len(first))


def _several(names: Sequence[str], width: int) -> str:
    """Return the first of some names and how many more there are, cut to a width."""
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return shortened(names[0], width - len(more)) + more


def _unchanged(found: Difference) -> list[str]:
    """Return lines about what stayed as it was, what is new and what has vanished."""
    changes = found.kernels or found.operators
    what = counted(len(changes), "kernel" if found.kernels else "operator")
    whole = sum(each.before_ns for each in changes)
    same = [each for each in changes if each.state == "same"]
    share = percent(sum(each.before_ns for each in same) / max(whole, 1))
    alike = f"{len(same):,} of {what}, {share} of the time before"
    said = [f"unchanged (within {SAME:.0%}): {alike}"]
    before = {_family(name) for each in changes for name in each.before}
    after = {_family(name) for each in changes for name in each.after}
    for title, gone, there in (("new", found.new, before), ("vanished", found.vanished, after)):
        # A variant of a kernel that both sides have goes by its whole name.
        names = [name for each in gone for name in each.before + each.after]
        short = (
            shortened(name if _family(name) in there else _family(name), NAME_WIDTH)
            for name in names
        )
        if names:
            said.append(f"{title}: {some_of(list(dict.fromkeys(short)), MOST_NAMES)}")
    return said


# Many runs, many ranks


def series(found: Series, *, verbose: bool = False, top: int = TOP) -> Iterator[Block]:
    """Return which run is the first slower one, all of them, and what is slower in it."""
    runs = Table(
        [Column("run", keep="end"), Kind.TIME("step", bar=True), Column("")],
        [Row((run.name, run.step_ns, "slower" if run.slow else "")) for run in found.runs],
    )
    shift = found.step
    if shift is None:
        steps = [run.step_ns for run in found.runs]
        spread = f"steps differ by {percent(stdev(steps) / fmean(steps))} from run to run"
        said = "no run is slower than the spread from run to run explains"
        yield Headline(said)
        yield Text(f"{spread}; a smaller change does not show")
        yield runs
        return
    first, *chances = (
        percent(each.chance) if each.chance >= 1e-4 else "under 0.01%"
        for each in (shift, *found.operators[: None if verbose else top])
    )
    rows = [
        Row((each.name, each.before_ns, each.after_ns, each.change_ns, chance))
        for each, chance in zip(found.operators, chances, strict=False)
    ]
    changed = step_change_text(shift.before_ns, shift.after_ns)
    spread = percent(shift.spread_ns / shift.before_ns)
    heads = [*columns("slower operators", ("others", "slower runs")), Column("by chance")]
    yield Headline(f"first slower run: {found.first_slow}, {changed}")
    yield Text(f"by chance: {first}; steps differ by {spread} from run to run")
    yield runs
    if rows:
        yield Table(heads, rows)


def blame(found: Blame, *, verbose: bool = False, top: int = TOP) -> Iterator[Block]:
    """Return what each rank, stage and kind of work costs, and what would be without it."""
    whole = found.replayed_ns
    said = "no rank or stage makes the step longer"
    first = max(found.parts, key=lambda each: each.saving_ns, default=None)
    if first and first.saving_ns > 0:
        without = percent(first.saving_ns / whole)
        said = f"without {first.who}'s longer {first.work}: {without} less"
    rows = [
        Row((f"{each.who}: {each.work}", each.longer_ns, each.saving_ns, each.cost_ns))
        for each in found.parts[: None if verbose else top]
    ]
    less = found.parts[len(rows) :]
    for head, costs in (
        ("by rank", found.ns_by_rank),
        ("by stage", found.ns_by_stage),
        ("by work", found.ns_by_work),
    ):
        shown = [Row((f"  {name}", None, None, ns)) for name, ns in costs.items() if ns]
        if len(shown) > 1:
            rows += [Row((head,), style=HEADING), *shown[:top]]
    rest = [
        ("other parts", found.others_ns + sum(each.cost_ns for each in less)),
        ("the balanced step", found.balanced_ns),
        ("the step", whole),
    ]
    rows += [Row((name, None, None, ns)) for name, ns in rest if ns]
    heads = [Kind.TIME(head) for head in ("takes longer by", "saves alone", "costs")]
    yield Headline(said)
    yield Table([Column("what"), *heads], rows, whole)
    yield Notes(found.notes)


# A change that was made for real


def confirmation(found: Confirmation, *, verbose: bool = False) -> Iterator[Block]:
    """Return the predicted and the confirmed step, the error and the control, and where a step differs."""
    blocks = found.blocks
    base = blocks.baseline_ns
    low = found.predicted_low_ns
    high = found.predicted_high_ns
    gains = [speedup(base, ns) for ns in (found.predicted_ns, blocks.confirmed_ns)]
    error = "unknown" if found.error is None else percent(found.error, signed=True)
    inside = ""
    if found.inside is not None and low and high:
        where = "inside" if found.inside else "outside"
        inside = f", {where} the predicted {base / high:,.2f} to {base / low:,.2f}x"
    said = f"predicted {gains[0]}, confirmed {gains[1]}{inside}"
    control = percent(blocks.control - 1, signed=True)
    rows = [
        _step_row("without the change", base),
        _step_row("predicted", found.predicted_ns, base, low, high),
        _step_row("confirmed", blocks.confirmed_ns, base),
    ]
    if found.predicted_ns is None:
        rows[1] = Row(("predicted", "unknown", None, "unknown"))
    name = found.comparison.optimization
    yield Headline(f"{name}: {said}; error of the predicted step {error}")
    yield Text(f"control (baseline vs. baseline): {control}, this machine's noise")
    yield _step_table(rows, "90% interval")
    if found.difference is not None:
        yield from _recorded(found, found.difference, verbose=verbose)
    how = HOW.format(rounds=blocks.rounds)
    yield Notes([how, *_doubts(found), *found.comparison.notes])


def _doubts(found: Confirmation) -> Iterator[str]:
    if found.error is None:
        yield f"The step could not be predicted from the trace, because {found.comparison.reason}."
    if found.restless:
        yield "The unchanged step differs from itself by more than 5%: the machine was busy."
    if found.difference is None:
        yield "The steps with the change were not recorded: the script ended before."
    if found.apart:
        yield (
            f"The recorded steps say {found.recorded_speedup:.2f}x, those that were timed in turns "
            f"{found.blocks.speedup:.2f}x: the few recorded ones with the change were disturbed, or "
            "recording costs them another share. Trust the counts in the tables more than the times."
        )


def _recorded(found: Confirmation, difference: Difference, *, verbose: bool) -> Iterator[Block]:
    """Return where in the recorded step the prediction came true, and where not."""
    predicted = difference.before.simulated_ns
    measured = difference.after.simulated_ns
    error = f"error {percent(predicted / measured - 1, signed=True)}"
    figures = times(
        "the recorded step",
        ("before", found.comparison.replayed_ns, ""),
        ("predicted", predicted, ""),
        ("measured", measured, error),
    )
    was, _ = found.comparison.breakdowns()
    sides = (was, difference.before.breakdown, difference.after.breakdown)
    parts = [{**side, "by_layer": {}} for side in sides]  # the layers' work is told below
    names = ("before", "predicted", "measured")
    table = breakdown(*parts, names=names, change="off by", only_causes=not verbose, judged=False)
    adds = Text("phases, layers and kernels", "-v adds: ", aside=True)
    yield figures
    yield table
    yield _work(difference) if verbose else adds
