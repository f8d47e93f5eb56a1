"""Two steps side by side: a comparison of recordings, or of a prediction and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from daydream.costs.kernel_names import family
from daydream.predict.basis import ESTIMATED
from daydream.predict.breakdown import parts_of_change
from daydream.predict.compare import SAME, Change
from daydream.report.blocks import (
    HEADING,
    NEUTRAL,
    Block,
    Column,
    Facts,
    Figures,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
)
from daydream.report.format import (
    layer_name,
    listed,
    percent,
    shortened,
    speedup,
    step_change_text,
    time_text,
)
from daydream.report.views.breakdown import breakdown, columns, moved_bound
from daydream.text import counted
from daydream.text import listed as some_of

if TYPE_CHECKING:
    from daydream.predict.compare import Difference, Side
    from daydream.predict.confirm import Confirmation

TOP = 4
MOST_NAMES = 5
NAME_WIDTH = 46
COPIES = ("Memcpy ", "Memset ")  # named by what they copy, not as functions are
SHOWN_NS = 1_000  # a change of less time is not seen, if it is as often
HOW = "Medians of {rounds} rounds of blocks of steps with and without the change, in turns, without a profiler."


def difference(found: Difference, *, verbose: bool = False, top: int = TOP) -> list[Block]:
    """Return the change of the step, where the time of both goes by cause, and what changed most.

    Verbose adds phases and layers, the work by layer, operator, kernel and CPU operator.
    """
    one = found.before
    two = found.after
    judged = one.prediction is None
    blocks: list[Block] = [*_answer(found), steps_table(found)]
    blocks.append(
        Facts(
            [
                (name, side_text(side))
                for name, side in zip(sides_of(found), (one, two), strict=True)
            ]
        )
    )
    blocks.append(
        breakdown(
            one.breakdown,
            two.breakdown,
            names=sides_of(found),
            only_causes=not verbose,
            judged=judged,
        )
    )
    moved = moved_bound(one.breakdown, two.breakdown)
    blocks += [Text(moved)] if moved and judged else []
    blocks += [
        work_table(found, top, verbose=verbose),
        *(Text(said, aside=True) for said in unchanged(found)),
    ]
    if not verbose:
        blocks.append(
            Text("phases, layers and kernels, what runs meanwhile", "-v adds: ", aside=True)
        )
    return [*blocks, Notes(found.notes)]


def sides_of(found: Difference) -> tuple[str, str]:
    """Return what the two sides are called."""
    return ("predicted", _known(found.after)) if found.before.prediction else ("before", "after")


def _known(side: Side) -> str:
    """Return how the step of a recording is known."""
    return ESTIMATED if side.basis == ESTIMATED else "measured"


def side_text(side: Side) -> str:
    """Return what one of the two is: its file, its devices, how many steps."""
    text = f"{side.prediction} on {side.name}" if side.prediction else side.name
    gpus = listed(side.devices) if side.devices else "GPU of unknown name"
    text += f": {gpus if side.on_device else 'CPU only'}, {counted(side.steps, 'step')}"
    return text + (f" on {counted(side.ranks, 'rank')}" if side.ranks > 1 else "")


def _answer(found: Difference) -> list[Block]:
    """Return the step before and after, and whether that is clear; or what came of a prediction."""
    one = found.before
    two = found.after
    start = found.started_from_ns
    if not one.prediction:
        said = step_change_text(one.simulated_ns, two.simulated_ns)
        return [
            Headline(
                f"{said}; the step times overlap, so this may be noise" if found.overlap else said
            )
        ]
    measured = f"{_known(two)} {time_text(two.simulated_ns)}"
    if one.reason or found.error is None:
        return [
            Headline(
                f"{one.prediction}: predicted unknown, {measured} per step; no prediction to judge"
            )
        ]
    came = "as predicted" if found.overlap else "not as predicted"
    error = percent(found.error, signed=True)
    times = f"predicted {time_text(one.simulated_ns)}, {measured} per step"
    said = f"{one.prediction}: {times}; {came}, error {error}"
    if start is None:
        return [Headline(said)]
    gains = f"predicted {speedup(start, one.simulated_ns)}, {_known(two)} {speedup(start, two.simulated_ns)}"
    return [Headline(said), Text(f"from {time_text(start)}: {gains}")]


def steps_table(found: Difference) -> Table:
    """Return the steps before and after, and the predicted one, each with its range and speed-up."""
    one = found.before
    two = found.after
    start = found.started_from_ns
    before = start if one.prediction else one.simulated_ns

    def row(name: str, ns: int | None, side: Side | None) -> Row:
        times = before / ns if before and ns and name != "before" else None
        low, high = (side.low_ns, side.high_ns) if side is not None else (None, None)
        known = low is not None and high is not None and low != high
        return Row(
            (name, "unknown" if ns is None else ns, (low or 0, high or 0) if known else None, times)
        )

    rows = [row("before", before, None if one.prediction else one)]
    if one.prediction:
        rows.append(
            row(f"predicted: {one.prediction}", None if one.reason else one.simulated_ns, one)
        )
    rows.append(row("after", two.simulated_ns, two))
    return Table(
        [
            Column(""),
            Column("step", Kind.TIME),
            Column("range", Kind.INTERVAL),
            Column("speedup", Kind.RATIO),
        ],
        rows,
    )


def work_table(found: Difference, top: int = TOP, *, verbose: bool = True) -> Table:
    """Return the largest changes: how often a step does something, and how long that takes.

    If not verbose it has operators only, of the GPU or, where none of these changed, of the CPU.
    """
    on_device = found.before.on_device, found.after.on_device
    where = {(True, True): "GPU work", (False, False): "CPU work"}.get(on_device, "work")
    rows = [_work_row(where, found.layers)]
    sections: list[tuple[str, Sequence[Change], Callable[[Change], str]]] = [
        ("by layer", found.layers, _layer),
        ("by operator", found.operators, _became),
        ("by kernel", found.kernels, _kernel),
        ("CPU by operator", found.cpu, _became),
    ]
    for title, changes, label in sections:
        shown = [each for each in _grouped(changes, label) if _shows(each[1])]
        if title == "by layer" and len(shown) < 2 and any(each.layer is None for each in changes):
            continue  # no layers are known
        if shown and (verbose or title.endswith("by operator")):
            rows.append(Row((title,), style=HEADING))
            rows += [_work_row(f"  {name}", group) for name, group in shown[:top]]
            if not verbose:
                break
    if found.before.prediction:  # what differs from a prediction is neither better nor worse
        rows = [row._replace(style=row.style or NEUTRAL) for row in rows]
    name, *times = columns("largest changes of a step's work", sides_of(found))
    count = Column("count", Kind.COUNT, spare=1)
    return Table(
        [name._replace(keep="end"), count, *(each._replace(bar=False) for each in times)], rows
    )


def _grouped(
    changes: Sequence[Change], label: Callable[[Change], str]
) -> list[tuple[str, list[Change]]]:
    """Return the changes that read alike together, the largest sum first."""
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(label(change), []).append(change)
    return sorted(
        found.items(), key=lambda each: (-abs(sum(one.change_ns for one in each[1])), each[0])
    )


def _shows(group: Sequence[Change]) -> bool:
    """Tell whether there is anything to see of a change: some time, or how often."""
    return abs(sum(each.change_ns for each in group)) >= SHOWN_NS or _count(group, 0) != _count(
        group, 1
    )


def _work_row(name: str, group: Sequence[Change]) -> Row:
    old = sum(each.before_ns for each in group)
    new = sum(each.after_ns for each in group)
    times = _count(group, 0), _count(group, 1)
    return Row(
        (name, times[0] if times[0] == times[1] else " -> ".join(times), old, new, new - old)
    )


def _count(group: Sequence[Change], side: int) -> str:
    number = sum((each.before_count, each.after_count)[side] for each in group)
    return f"{number:,.0f}" if abs(number - round(number)) < 0.05 else f"{number:,.1f}"


def _layer(change: Change) -> str:
    return layer_name((change.before or change.after)[0])


def _kernel(change: Change) -> str:
    """Return the families of a kernel: what variants for other shapes and types have in common."""
    sides = [
        list(dict.fromkeys(_family(name) for name in names))
        for names in (change.before, change.after)
    ]
    return _arrow(*sides)


def _family(name: str) -> str:
    return name if name.startswith(COPIES) else family(name)


def _became(change: Change) -> str:
    return _arrow(change.before, change.after)


def _arrow(old: Sequence[str], new: Sequence[str]) -> str:
    """Return what something was called and, if it is called otherwise now, what has come in its place."""
    if not old or not new or list(old) == list(new):
        return _several(old or new, NAME_WIDTH)
    room = NAME_WIDTH - len(" -> ")
    first = _several(old, max(room // 2, room - len(_several(new, room))))
    return f"{first} -> {_several(new, room - len(first))}"


def _several(names: Sequence[str], width: int) -> str:
    """Return the first of some names and how many more there are, cut to a width."""
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return shortened(names[0], width - len(more)) + more


def unchanged(found: Difference) -> list[str]:
    """Return lines about what stayed as it was, what is new and what has vanished."""
    changes = found.kernels or found.operators
    what = "kernel" if found.kernels else "operator"
    whole = sum(each.before_ns for each in changes)
    same = [each for each in changes if each.state == "same"]
    share = sum(each.before_ns for each in same) / whole if whole else 0.0
    alike = f"{len(same):,} of {counted(len(changes), what)}, {percent(share)} of the time before"
    said = [f"unchanged (within {SAME:.0%}): {alike}"]
    sides = {"new": found.new, "vanished": found.vanished}
    known = {
        "new": {_family(name) for each in changes for name in each.before},
        "vanished": {_family(name) for each in changes for name in each.after},
    }
    for title, gone in sides.items():
        # A variant of a kernel that both sides have goes by its whole name.
        names = [name for each in gone for name in each.before + each.after]
        short = [
            shortened(name if _family(name) in known[title] else _family(name), NAME_WIDTH)
            for name in names
        ]
        if short:
            said.append(f"{title}: {some_of(list(dict.fromkeys(short)), MOST_NAMES)}")
    return said


# A change that was made for real


def confirmation(found: Confirmation, *, verbose: bool = False) -> list[Block]:
    """Return the predicted and the confirmed step, the error and the control, and where a step differs."""
    blocks = found.blocks
    base = found.blocks.baseline_ns
    predicted = speedup(base, found.predicted_ns)
    confirmed = speedup(base, blocks.confirmed_ns)
    error = "unknown" if found.error is None else percent(found.error, signed=True)
    low = found.predicted_low_ns
    high = found.predicted_high_ns
    inside = ""
    if found.inside is not None and low and high:
        where = "inside" if found.inside else "outside"
        inside = f", {where} the predicted {base / high:,.2f} to {base / low:,.2f}x"
    control = percent(blocks.control - 1, signed=True)
    rows = [
        Row(("without the change", base, None, None)),
        Row(
            ("predicted", "unknown", None, "unknown")
            if found.predicted_ns is None
            else (
                "predicted",
                found.predicted_ns,
                (low, high) if low is not None and high is not None else None,
                base / max(found.predicted_ns, 1),
            )
        ),
        Row(("confirmed", blocks.confirmed_ns, None, base / max(blocks.confirmed_ns, 1))),
    ]
    heads = [
        Column(""),
        Column("step", Kind.TIME),
        Column("90% interval", Kind.INTERVAL),
        Column("speedup", Kind.RATIO),
    ]
    said = [HOW.format(rounds=blocks.rounds), *_doubts(found)]
    shown: list[Block] = [
        Headline(
            f"{found.comparison.optimization}: predicted {predicted}, confirmed {confirmed}{inside}; "
            f"error of the predicted step {error}"
        ),
        Text(f"the unchanged step against itself {control}: what this machine's steps vary by"),
        Table(heads, rows),
    ]
    if found.difference is not None:
        shown += _recorded(found, found.difference, verbose=verbose)
    return [
        *shown,
        Notes([*said, *found.comparison.notes]),
    ]  # those of the recording too: it need not be kept


def _doubts(found: Confirmation) -> list[str]:
    said = []
    if found.error is None:
        said.append(
            f"The step could not be predicted from the trace, because {found.comparison.reason}."
        )
    if found.restless:
        said.append(
            "The unchanged step differs from itself by more than 5%: the machine was not at rest."
        )
    if found.difference is None:
        said.append("The steps with the change were not recorded: the script ended before.")
    if found.apart:
        said.append(
            f"The recorded steps say {found.recorded_speedup:.2f}x, those that were timed in turns "
            f"{found.blocks.speedup:.2f}x: the few recorded ones with the change were disturbed, or "
            "recording costs them another share. Trust the counts in the tables more than the times."
        )
    return said


def _recorded(found: Confirmation, difference: Difference, *, verbose: bool) -> list[Block]:
    """Return where in the recorded step the prediction came true, and where not."""
    predicted = difference.before.simulated_ns
    measured = difference.after.simulated_ns
    error = f"error {percent(predicted / measured - 1, signed=True)}"
    figures = [
        ("before", time_text(found.comparison.replayed_ns), ""),
        ("predicted", time_text(predicted), ""),
        ("measured", time_text(measured), error),
    ]
    was, _ = parts_of_change(found.comparison)
    sides = [
        {
            key: part for key, part in side.items() if key != "by_layer"
        }  # the layers' work is told below
        for side in (was, difference.before.breakdown, difference.after.breakdown)
    ]
    names = ("before", "predicted", "measured")
    table = breakdown(*sides, names=names, change="off by", only_causes=not verbose, judged=False)
    blocks: list[Block] = [Figures(figures, "the recorded step"), table]
    if verbose:
        return [*blocks, work_table(difference)]
    return [*blocks, Text("phases, layers and kernels", "-v adds: ", aside=True)]
