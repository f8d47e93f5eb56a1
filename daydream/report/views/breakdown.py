"""Where a step's time goes, before and after a change: by cause, phase and layer, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from daydream.report.blocks import HEADING, NEUTRAL, Column, Kind, Row, Table
from daydream.report.format import layer_name, time_text
from daydream.simulate.critical_path import Bound, PathCause
from daydream.text import counted
from daydream.trace.schema import PHASES

Parts: TypeAlias = Mapping[str, Mapping[str, int]]
Times: TypeAlias = tuple[str, Sequence[int]]  # a name, and its ns on each side

MOVED = 0.1  # of the step: what waits for the other side after a change, if it is worth a sentence
ON_DEVICE = (Bound.GPU, Bound.COPIES, Bound.COMMUNICATION)
HIDDEN = 0.0005  # of the step: what is smaller on every side is summed up
SMALL = 0.01  # the same, where a table has causes only
MOST_LAYERS = 10
MOST_CAUSES = 6  # of an answer, but for more where what is left would be the largest
PATH = "critical path, mean of the steps"
MEANWHILE = "meanwhile (not part of the step)"
NO_LAYER, REST, STEP = "no layer", "the rest", "the step"
SIDES = ("before", "after")
COLORS = {cause.label: f"--bound-{cause.bound.value.lower()}" for cause in PathCause}


def columns(title: str, names: Sequence[str], change: str = "change") -> list[Column]:
    """Return the columns of times on several sides, and of what the last has more than the one before it."""
    sides = [Column(name, Kind.TIME, bar=True) for name in names]
    return [Column(title), *sides, *([Column(change, Kind.CHANGE)] if len(names) > 1 else [])]


def times_row(name: str, ns: Sequence[int], style: str = "") -> Row:
    """Return a row of these columns."""
    more = [ns[-1] - ns[-2]] if len(ns) > 1 else []
    return Row((name, *ns, *more), style=style, color=COLORS.get(name.strip(), ""))


def breakdown(
    *sides: Parts,
    names: Sequence[str] = SIDES,
    change: str = "change",
    only_causes: bool = False,
    judged: bool = True,
) -> Table:
    """Return where a step's time goes on one side or more.

    Times by cause, by phase and by layer are shares of the critical path and add up to the step; what runs
    meanwhile does not. With `only_causes` there is nothing else, and small causes are summed up.
    """
    total = [sum(side["by_cause"].values()) for side in sides]
    found = sections(sides, max(total), SMALL if only_causes else HIDDEN)
    rows = []
    for title, parts in found[: 1 if only_causes else None]:
        rows += [] if only_causes else [Row((title,), style=HEADING)]
        rows += [times_row(f"  {name}", ns) for name, ns in parts]
    rows.append(times_row(STEP, total))
    beside = [] if only_causes else meanwhile(sides, max(total))
    if beside:
        rows.append(Row((MEANWHILE,), style=HEADING))
        rows += [times_row(f"  {name}", ns, NEUTRAL) for name, ns in beside]
    if not judged:
        rows = [row._replace(style=row.style or NEUTRAL) for row in rows]
    return Table(columns(PATH, names, change), rows, max(total))


def cause_table(before: Parts, after: Parts) -> Table:
    """Return what a step waits for: what is largest before or after a change, and all else in one row."""
    sides = (before["by_cause"], after["by_cause"])
    total = [sum(side.values()) for side in sides]
    names = dict.fromkeys([*sides[0], *sides[1]])
    found = [(PathCause(name).explained, [side.get(name, 0) for side in sides]) for name in names]
    found.sort(key=lambda each: -max(each[1]))
    most = MOST_CAUSES
    while most < len(found) and max(_sums(found[most:], 2)) > max(found[0][1]):
        most += 1
    small = [each for each in found[:most] if max(each[1]) < HIDDEN * max(total)]
    shown, rest = found[: most - len(small)], _sums([*small, *found[most:]], 2)
    rows = [times_row(f"  {name}", ns) for name, ns in shown]
    rows += [times_row(f"  {REST}", rest)] if max(rest) >= HIDDEN * max(total) else []
    heads = [column._replace(width=60) for column in columns("what a step waits for", SIDES)]
    return Table(heads, [*rows, times_row(STEP, total)], max(total))


def moved_bound(before: Parts, after: Parts) -> str:
    """Return that the step waits for the CPU where it waited for the device, or the other way; else nothing.

    Time of a phase or a layer may then appear that was there before, beside the critical path.
    """
    was, then = _waits_for(before), _waits_for(after)
    if not was["device"] + then["device"]:
        return ""
    more = {side: then[side] - was[side] for side in was}
    to = max(more, key=lambda side: more[side])
    other = "CPU" if to == "device" else "device"
    moved = min(more[to], -more[other])
    if moved <= MOVED * sum(was.values()):
        return ""
    return f"{time_text(moved)} of {to} time that {other} work used to hide is now on the critical path."


def _waits_for(side: Parts) -> dict[str, int]:
    """Return how long a step waits for device and CPU."""
    waits = {PathCause(cause).bound: 0 for cause in side["by_cause"]}
    for cause, ns in side["by_cause"].items():
        waits[PathCause(cause).bound] += ns
    on_device = sum(waits.get(bound, 0) for bound in ON_DEVICE)
    return {"device": on_device, "CPU": waits.get(Bound.CPU, 0)}


def sections(
    sides: Sequence[Parts], whole: int, least: float = HIDDEN
) -> list[tuple[str, list[Times]]]:
    """Return the parts that add up to the step, each a title and its largest names with their times."""
    causes = [{PathCause(key).label: ns for key, ns in side["by_cause"].items()} for side in sides]
    phases = [side.get("by_phase", {}) for side in sides]
    found = [("by cause", _merged(causes, whole, least)), ("by phase", _merged(phases, whole))]
    layers = _layers([side.get("by_layer", {}) for side in sides], whole)
    return [*found, ("by layer", layers)] if layers else found


def meanwhile(sides: Sequence[Parts], whole: int) -> list[Times]:
    """Return what runs or waits beside the step's path; it adds up to nothing."""
    return [
        each
        for each in _merged([side.get("beside", {}) for side in sides], whole)
        if each[0] != REST
    ]


def _merged(sides: Sequence[Mapping[str, int]], whole: int, least: float = HIDDEN) -> list[Times]:
    """Return phases in their order, causes by size, what is too small summed up."""
    names = dict.fromkeys(name for side in sides for name in side)
    found = [(name, [side.get(name, 0) for side in sides]) for name in names]
    found.sort(
        key=lambda each: (
            PHASES.index(each[0]) if each[0] in PHASES else len(PHASES),
            -max(each[1]),
        )
    )
    large = [each for each in found if max(map(abs, each[1])) >= least * whole]
    rest = _sums([each for each in found if each not in large], len(sides))
    return [*large, *([(REST, rest)] if max(map(abs, rest)) >= HIDDEN * whole else [])]


def _layers(sides: Sequence[Mapping[str, int]], whole: int) -> list[Times]:
    """Return the largest layers, those of all blocks of a stack as one, and all others; none if unknown."""
    found: dict[str, list[int]] = {NO_LAYER: [0] * len(sides)}
    for place, side in enumerate(sides):
        for layer, ns in side.items():
            name = NO_LAYER if layer == "unknown" else layer_name(layer)
            found.setdefault(name, [0] * len(sides))[place] += ns
    without = found.pop(NO_LAYER)
    by_size = sorted(found.items(), key=lambda each: -max(each[1]))
    shown: list[Times] = [each for each in by_size[:MOST_LAYERS] if max(each[1]) >= HIDDEN * whole]
    if not shown:
        return []
    others = by_size[len(shown) :]
    if others:
        shown.append((counted(len(others), "other layer"), _sums(others, len(sides))))
    return [*shown, *([(NO_LAYER, without)] if any(without) else [])]


def _sums(parts: Sequence[Times], sides: int) -> list[int]:
    return [sum(ns[side] for _, ns in parts) for side in range(sides)]
