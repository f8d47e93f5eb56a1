"""Where a step's time goes, before and after a change, as rows of one table: by cause, phase and layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from daydream.report.text.layout import MARGIN, NAME_WIDTH, Table, layer_name
from daydream.report.text.numbers import count, scale, time_text
from daydream.simulate.critical_path import Bound, PathCause
from daydream.trace.schema import PHASES

Parts: TypeAlias = Mapping[str, Mapping[str, int]]
Row: TypeAlias = tuple[Any, ...]  # a name, and a time in ns on each side

MOVED = 0.1  # of the step: what waits for the other side after a change, if it is worth a sentence
ON_DEVICE = (Bound.GPU, Bound.COPIES, Bound.COMMUNICATION)
HIDDEN = 0.0005  # a row that is less than this part of the step before and after is left out
SMALL = 0.01  # the same, where a table has causes only
MOST_LAYERS = 10
PATH = "along the critical path, mean of the steps"
MEANWHILE = "meanwhile (not part of the step)"
NO_LAYER, REST = "no layer", "the rest"


def breakdown_rows(
    *sides: Parts,
    names: tuple[str, ...] = ("before", "after"),
    change: str = "change",
    only_causes: bool = False,
) -> list[list[str]]:
    """Return one table of the step's time on two sides or more, its head first; see `parts_of`.

    Times by cause, by phase and by layer are shares of the critical path and add up to the step; what runs
    meanwhile does not. The last column is what the last side has more than the one before it. With
    `only_causes` there are no phases and layers, and small causes are summed up.
    """
    total = tuple(sum(side["by_cause"].values()) for side in sides)
    unit, size, digits = scale(max(total))

    def row(name: str, *ns: int) -> list[str]:
        more = f"{(ns[-1] - ns[-2]) / size:+,.{digits}f}"
        nothing = not float(more.replace(",", ""))
        return [name, *(f"{each / size:,.{digits}f}" for each in ns), more[1:] if nothing else more]

    rows = [[f"{PATH}, {unit}", *names, change]]

    def title(text: str) -> list[str]:
        return [text, *[""] * (len(sides) + 1)]

    for text, found in [_causes(sides, max(total), SMALL)] if only_causes else sections(sides, max(total)):
        rows.append(title(text))
        rows += [row(MARGIN + name, *ns) for name, *ns in found]
    rows.append(row("the step", *total))
    beside = [] if only_causes else meanwhile(sides, max(total))
    if beside:
        rows.append(title(MEANWHILE))
        rows += [row(MARGIN + name, *ns) for name, *ns in beside]
    return rows


def breakdown_table(rows: list[list[str]]) -> Table:
    """Return these rows as a table of changes: what runs meanwhile is no better if it takes less time."""
    return Table(rows, judged=next((at for at, row in enumerate(rows) if row[0] == MEANWHILE), None))


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
    return (
        f"For {time_text(moved)} the step then waits for the {to} where it waited for the {other}: "
        "work that was hidden shows."
    )


def _waits_for(side: Parts) -> dict[str, int]:
    """Return how long a step waits for device and CPU."""
    waits = {PathCause(cause).bound: 0 for cause in side["by_cause"]}
    for cause, ns in side["by_cause"].items():
        waits[PathCause(cause).bound] += ns
    on_device = sum(waits.get(bound, 0) for bound in ON_DEVICE)
    return {"device": on_device, "CPU": waits.get(Bound.CPU, 0)}


def sections(sides: Sequence[Parts], whole: int) -> list[tuple[str, list[Row]]]:
    """Return the parts that add up to the step, each a title and rows of a name and its time on each side."""
    found = [_causes(sides, whole), ("by phase", merged_parts(_each(sides, "by_phase"), whole))]
    layers = merged_layers(_each(sides, "by_layer"), whole)
    return [*found, ("by layer", layers)] if layers else found


def _causes(sides: Sequence[Parts], whole: int, least: float = HIDDEN) -> tuple[str, list[Row]]:
    causes = [{PathCause(key).label: ns for key, ns in side.items()} for side in _each(sides, "by_cause")]
    return "by cause", merged_parts(causes, whole, least)


def meanwhile(sides: Sequence[Parts], whole: int) -> list[Row]:
    """Return rows of what runs or stands beside the step's path; they add up to nothing."""
    return [each for each in merged_parts(_each(sides, "beside"), whole) if each[0] != REST]


def merged_parts(sides: Sequence[Mapping[str, int]], whole: int, least: float = HIDDEN) -> list[Row]:
    """Return rows, phases in their order, causes by size, what is too small summed up."""
    names = dict.fromkeys(name for side in sides for name in side)
    rows: list[Row] = [(name, *(side.get(name, 0) for side in sides)) for name in names]
    rows.sort(key=lambda row: (PHASES.index(row[0]) if row[0] in PHASES else len(PHASES), -max(row[1:])))
    small = [row for row in rows if not shows(row, whole, least)]
    rest = (REST, *sums(small, len(sides)))
    return [*(row for row in rows if row not in small), *([rest] if shows(rest, whole) else [])]


def merged_layers(sides: Sequence[Mapping[str, int]], whole: int) -> list[Row]:
    """Return rows of the largest layers and of all others; nothing if none are known.

    The same layer of all blocks of a stack is one row: `h.*.mlp.fc`.
    """
    found: dict[str, list[int]] = {NO_LAYER: [0] * len(sides)}
    for place, side in enumerate(sides):
        for layer, ns in side.items():
            name = NO_LAYER if layer == "unknown" else layer_name(layer, NAME_WIDTH)
            found.setdefault(name, [0] * len(sides))[place] += ns
    without = (NO_LAYER, *found.pop(NO_LAYER))
    rows: list[Row] = sorted(((name, *ns) for name, ns in found.items()), key=lambda row: -max(row[1:]))
    shown = [row for row in rows[:MOST_LAYERS] if shows(row, whole)]
    if not shown:
        return []
    others = rows[len(shown) :]
    if others:
        shown.append((count(len(others), "other layer"), *sums(others, len(sides))))
    return [*shown, *([without] if any(without[1:]) else [])]


def _each(sides: Sequence[Parts], key: str) -> list[Mapping[str, int]]:
    return [side.get(key, {}) for side in sides]


def shows(row: Row, whole: int, least: float = HIDDEN) -> bool:
    """Tell whether a row is large enough to be shown beside a step of this length."""
    return max(abs(ns) for ns in row[1:]) >= least * whole


def sums(rows: Sequence[Row], sides: int) -> list[int]:
    """Return the sum of the rows on each side."""
    return [sum(row[1 + side] for row in rows) for side in range(sides)]
