"""`daydream compare` as text: two steps side by side, and the largest changes of their work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from daydream.costs.kernel_names import family
from daydream.predict.basis import ESTIMATED
from daydream.predict.compare import SAME, Change
from daydream.report.text.breakdown import Parts, breakdown_rows, breakdown_table, moved_bound
from daydream.report.text.layout import (
    MARGIN,
    NAME_WIDTH,
    Block,
    Facts,
    Screen,
    Table,
    Words,
    fitting,
    headed,
    layer_name,
    notes,
    printable,
    shortened,
)
from daydream.report.text.numbers import (
    count,
    listed,
    percent,
    range_text,
    scale,
    speedup,
    step_change_text,
    time_text,
)
from daydream.text import listed as some_of

if TYPE_CHECKING:
    from daydream.predict.compare import Difference, Side

TOP = 4
MOST_NAMES = 5
COPIES = ("Memcpy ", "Memset ")  # named by what they copy, not as functions are


def difference_text(
    difference: Difference, *, top: int = TOP, verbose: bool = False, fitted: bool = False
) -> Screen:
    """Return the change of the step, where the time of both goes by cause, and what changed most.

    Verbose adds phases and layers, the work by layer, operator, kernel and CPU operator, and the notes.
    `fitted` shows fewer than `top` rows where a usual terminal has no room for them.
    """
    one, two = difference.before, difference.after
    steps = step_rows(difference, verbose=verbose)
    top_of_all: list[Block] = [
        *headed(difference_headline(difference)),
        Facts(list(zip(columns_of(difference), (side_text(one), side_text(two)), strict=True))),
        "",
        Table(steps, judged=0) if one.prediction else breakdown_table(steps),
        *map(Words, step_remarks(difference)),
        "",
    ]  # fmt: skip
    same = [Words(said, MARGIN, MARGIN * 2) for said in unchanged(difference)]
    if verbose:
        return Screen([
            *top_of_all, work_table(difference, top), *same, *notes(difference.notes),
        ])  # fmt: skip

    said = notes(difference.notes)

    def screen(rows: int, lines: int, *, noted: bool = True) -> Screen:
        others = "" if lines == len(same) else ", what is new and what has vanished"
        hidden = f", {count(len(said) - 2, 'note')}" if said and not noted else ""
        more = f"-v adds: phases, layers and kernels, what runs meanwhile{others}{hidden}"
        return Screen([
            *top_of_all, work_table(difference, rows, verbose=False), *same[:lines],
            Words(more, MARGIN, 2 * MARGIN), *(said if noted else []),
        ])  # fmt: skip

    if not fitted:
        return screen(top, len(same))
    fewer = [(rows, len(same)) for rows in range(top, 1, -1)]
    fewer += [(2, lines) for lines in range(len(same) - 1, -1, -1)] + [(1, 0)]
    return fitting(screen(*each, noted=noted) for noted in (True, False) for each in fewer)


def columns_of(difference: Difference) -> tuple[str, str]:
    """Return what the two sides are called."""
    return ("predicted", _known(difference.after)) if difference.before.prediction else ("before", "after")


def _known(side: Side) -> str:
    """Return how the step of a recording is known."""
    return ESTIMATED if side.basis == ESTIMATED else "measured"


def side_text(side: Side) -> str:
    """Return what one of the two is: its file, its devices, how many steps."""
    name = printable(side.name)
    text = f"{printable(side.prediction)} on {name}" if side.prediction else name
    gpus = printable(listed(side.devices)) if side.devices else "GPU of unknown name"
    text += f": {gpus if side.on_device else 'CPU only'}"
    text += f", {count(side.steps, 'step')}"
    if side.ranks > 1:
        text += f" on {count(side.ranks, 'rank')}"
    if side.low_ns is None or side.high_ns is None or side.low_ns == side.high_ns:
        return text
    return (
        f"{text}, {'90 % interval' if side.prediction else 'mostly'} {range_text(side.low_ns, side.high_ns)}"
    )


def difference_headline(difference: Difference) -> list[str]:
    """Return lines about the step, before and after."""
    one, two = difference.before, difference.after
    return _judged(difference) if one.prediction else [step_change_text(one.simulated_ns, two.simulated_ns)]


def _judged(difference: Difference) -> list[str]:
    """Return what was predicted and what came of it."""
    one, two, start = difference.before, difference.after, difference.started_from_ns
    name, known = printable(one.prediction or ""), _known(two)
    measured = f"{known} {time_text(two.simulated_ns)}"
    if one.reason or difference.error is None:
        return [f"{name}: predicted unknown, {measured} per step; no prediction to judge"]
    error = percent(difference.error, signed=True)
    lines = [f"{name}: predicted {time_text(one.simulated_ns)}, {measured} per step; error {error}"]
    if start is not None:
        times = f"predicted {speedup(start, one.simulated_ns)}, {known} {speedup(start, two.simulated_ns)}"
        lines.append(f"from {time_text(start)}: {times}")
    return lines


def step_rows(difference: Difference, *, verbose: bool = True) -> list[list[str]]:
    """Return one table of where a step's time goes, its head first; by cause only, if not verbose."""
    sides: Sequence[Parts] = (difference.before.breakdown, difference.after.breakdown)
    return breakdown_rows(*sides, names=columns_of(difference), only_causes=not verbose)


def step_remarks(difference: Difference) -> list[str]:
    """Return that the step waits for something else after, if it does; a prediction is of the same step."""
    moved = moved_bound(difference.before.breakdown, difference.after.breakdown)
    return [moved] if moved and not difference.before.prediction else []


def work_rows(difference: Difference, top: int = TOP, *, verbose: bool = True) -> list[list[str]]:
    """Return one table of the largest changes, its head first: how often a step, and how long it takes.

    If not verbose it has operators only, of the GPU or, where none of these changed, of the CPU.
    """
    one, two = difference.before, difference.after
    longest = max(
        sum(each.before_ns for each in difference.layers), sum(each.after_ns for each in difference.layers)
    )
    unit, size, _ = scale(longest)
    where = {(True, True): "GPU work", (False, False): "CPU work"}.get((one.on_device, two.on_device), "work")
    names = columns_of(difference)
    rows = [[f"largest changes of a step's work, {unit}", "count", *names, "change"]]
    rows.append(_row(where, difference.layers, size))
    sections: list[tuple[str, Sequence[Change], Callable[[Change], str]]] = [
        ("by layer", difference.layers, _layer),
        ("by operator", difference.operators, _became),
        ("by kernel", difference.kernels, _kernel),
        ("CPU by operator", difference.cpu, _became),
    ]
    for title, changes, label in sections:
        found = [each for each in _grouped(changes, label) if _shows(each[1], size)]
        if title == "by layer" and len(found) < 2 and any(each.layer is None for each in changes):
            continue  # no layers are known
        if found and (verbose or title.endswith("by operator")):
            rows.append([title, "", "", "", ""])
            rows += [_row(MARGIN + name, group, size) for name, group in found[:top]]
            if not verbose:
                break
    return rows


def work_table(difference: Difference, top: int = TOP, *, verbose: bool = True) -> Table:
    """Return these rows as a table; what differs from a prediction is neither better nor worse."""
    rows = work_rows(difference, top, verbose=verbose)
    return Table(rows, spare=[1], judged=0 if difference.before.prediction else None)


def _grouped(changes: Sequence[Change], label: Callable[[Change], str]) -> list[tuple[str, list[Change]]]:
    """Return the changes that read alike together, the largest sum first."""
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(label(change), []).append(change)
    return sorted(found.items(), key=lambda each: (-abs(sum(one.change_ns for one in each[1])), each[0]))


def _shows(group: Sequence[Change], size: int) -> bool:
    """Tell whether there is anything to see of a change: some time, or how often."""
    return abs(sum(each.change_ns for each in group)) >= size / 1000 or _count(group, 0) != _count(group, 1)


def _row(name: str, group: Sequence[Change], size: int) -> list[str]:
    old, new = sum(each.before_ns for each in group), sum(each.after_ns for each in group)
    times = _count(group, 0), _count(group, 1)
    often = times[0] if times[0] == times[1] else f"{times[0]} -> {times[1]}"
    change = f"{(new - old) / size:+,.3f}"
    return [
        name,
        often,
        f"{old / size:,.3f}",
        f"{new / size:,.3f}",
        change if float(change.replace(",", "")) else "0.000",
    ]


def _count(group: Sequence[Change], side: int) -> str:
    number = sum((each.before_count, each.after_count)[side] for each in group)
    return f"{number:,.0f}" if abs(number - round(number)) < 0.05 else f"{number:,.1f}"


def _layer(change: Change) -> str:
    """Return a layer's name, the same for all blocks of a stack; of a long one the end says most."""
    return layer_name((change.before or change.after)[0])


def _kernel(change: Change) -> str:
    """Return the families of a kernel: what variants for other shapes and types have in common."""
    sides = [list(dict.fromkeys(_family(name) for name in names)) for names in (change.before, change.after)]
    return _arrow(*sides)


def _family(name: str) -> str:
    return name if name.startswith(COPIES) else family(name)


def _became(change: Change) -> str:
    return _arrow(change.before, change.after)


def _arrow(before: Sequence[str], after: Sequence[str]) -> str:
    """Return what something was called and, if it is called otherwise now, what has come in its place."""
    old, new = ([printable(name) for name in names] for names in (before, after))
    if not old or not new or old == new:
        return _several(old or new, NAME_WIDTH)
    room = NAME_WIDTH - len(" -> ")
    first = _several(old, max(room // 2, room - len(_several(new, room))))
    return f"{first} -> {_several(new, room - len(first))}"


def _several(names: Sequence[str], width: int) -> str:
    """Return the first of some names and how many more there are, cut to a width."""
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return shortened(names[0], width - len(more)) + more


def unchanged(difference: Difference) -> list[str]:
    """Return lines about what stayed as it was, what is new and what has vanished."""
    changes = difference.kernels or difference.operators
    what = "kernel" if difference.kernels else "operator"
    whole = sum(each.before_ns for each in changes)
    same = [each for each in changes if each.state == "same"]
    share = sum(each.before_ns for each in same) / whole if whole else 0.0
    alike = f"{len(same):,} of {count(len(changes), what)}, {percent(share)} of the time before"
    said = [f"unchanged (within {100 * SAME:g} %): {alike}"]
    sides = {"new": difference.new, "vanished": difference.vanished}
    known = {
        "new": {_family(name) for each in changes for name in each.before},
        "vanished": {_family(name) for each in changes for name in each.after},
    }
    for title, found in sides.items():
        # A variant of a kernel that both sides have goes by its whole name.
        names = [name for each in found for name in each.before + each.after]
        short = [printable(_end(name if _family(name) in known[title] else _family(name))) for name in names]
        if short:
            said.append(f"{title}: {some_of(list(dict.fromkeys(short)), MOST_NAMES)}")
    return said


def _end(name: str) -> str:
    return shortened(name, NAME_WIDTH)
