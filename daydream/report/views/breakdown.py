"""Where a step's time goes, before and after a change: by cause, phase and layer, and what runs meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from daydream.report.blocks import HEADING, NEUTRAL, Column, Kind, Row, Table, layer_name, time_text
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
BY_LAYER = "by layer"
NO_LAYER = "no layer"
REST = "the rest"
STEP = "the step"
SIDES = ("before", "after")
COLORS = {cause.label: f"--bound-{cause.bound.lower().replace(' ', '-')}" for cause in PathCause}


def columns(title: str, names: Sequence[str], change: str = "change") -> list[Column]:
    """Return columns of times: of one side with its share, of several with what the last has more."""
    sides = [Kind.TIME(name, bar=True) for name in names]
    if len(names) == 1:
        return [Column(title), *sides, Kind.PERCENT("share")]
    return [Column(title), *sides, *([Kind.CHANGE(change)] if change else [])]


def times_row(name: str, ns: Sequence[int], whole: int, style: str = "") -> Row:
    """Return a row of these columns, which need not have the last."""
    last = ns[-1] - ns[-2] if len(ns) > 1 else ns[0] / max(whole, 1)
    return Row((name, *ns, last), style=style, color=COLORS.get(name.strip(), ""))


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
    whole = max(total)

    def of(key: str) -> list[Mapping[str, int]]:
        return [side.get(key, {}) for side in sides]

    causes = [{PathCause(name).label: ns for name, ns in side.items()} for side in of("by_cause")]
    by_cause = _merged(causes, whole, SMALL if only_causes else HIDDEN)
    found = {"by cause": [*by_cause, (STEP, total)]}
    if not only_causes:
        found["by phase"] = _merged(of("by_phase"), whole)
        found[BY_LAYER] = _layers(of("by_layer"), whole)
        beside = _merged(of("beside"), whole)
        found[MEANWHILE] = [each for each in beside if each[0] != REST]
    rows = []
    for title, parts in found.items():
        if parts and not only_causes:
            rows.append(Row((title,), style=HEADING))
        style = NEUTRAL if title == MEANWHILE or not judged else ""
        for name, ns in parts:
            rows.append(times_row(name if name == STEP else f"  {name}", ns, whole, style))
    return Table(columns(PATH, names, change), rows, whole)


def cause_table(before: Parts, after: Parts) -> Table:
    """Return what a step waits for: what is largest before or after a change, and all else in one row."""
    sides = (before["by_cause"], after["by_cause"])
    total = [sum(side.values()) for side in sides]
    whole = max(total)
    found = _sides([{PathCause(name).explained: ns for name, ns in side.items()} for side in sides])
    most = MOST_CAUSES
    while most < len(found) and max(_sums(found[most:], 2)) > max(found[0][1]):
        most += 1
    shown = [each for each in found[:most] if max(each[1]) >= HIDDEN * whole]
    rest = _sums([each for each in found if each not in shown], 2)
    if max(rest) >= HIDDEN * whole:
        shown.append((REST, rest))
    heads = [column._replace(width=60) for column in columns("what a step waits for", SIDES)]
    rows = [times_row(f"  {name}", ns, whole) for name, ns in shown]
    return Table(heads, [*rows, times_row(STEP, total, whole)], whole)


def moved_bound(before: Parts, after: Parts) -> str:
    """Return that the step waits for the CPU where it waited for the device, or the other way; else nothing.

    Time of a phase or a layer may then appear that was there before, beside the critical path.
    """
    was = _waits_for(before)
    then = _waits_for(after)
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
    found = {"device": 0, "CPU": 0}
    for cause, ns in side["by_cause"].items():
        bound = PathCause(cause).bound
        if bound is Bound.CPU:
            found["CPU"] += ns
        elif bound in ON_DEVICE:
            found["device"] += ns
    return found


def _sides(sides: Sequence[Mapping[str, int]]) -> list[Times]:
    """Return each name with its time on each side, the largest first."""
    names = dict.fromkeys(name for side in sides for name in side)
    found: list[Times] = [(name, [side.get(name, 0) for side in sides]) for name in names]
    return sorted(found, key=lambda each: -max(each[1]))


def _merged(sides: Sequence[Mapping[str, int]], whole: int, least: float = HIDDEN) -> list[Times]:
    """Return phases in their order, causes by size, what is too small summed up."""
    found = sorted(_sides(sides), key=lambda each: (*PHASES, each[0]).index(each[0]))
    large = [each for each in found if max(map(abs, each[1])) >= least * whole]
    rest = _sums([each for each in found if each not in large], len(sides))
    if max(map(abs, rest)) >= HIDDEN * whole:
        large.append((REST, rest))
    return large


def _layers(sides: Sequence[Mapping[str, int]], whole: int) -> list[Times]:
    """Return the largest layers, those of all blocks of a stack as one, and all others; none if unknown."""
    merged = [Counter[str]() for _ in sides]
    for side, total in zip(sides, merged, strict=True):
        for layer, ns in side.items():
            total[NO_LAYER if layer == "unknown" else layer_name(layer)] += ns
    without = [total.pop(NO_LAYER, 0) for total in merged]
    found = _sides(merged)
    shown = [each for each in found[:MOST_LAYERS] if max(each[1]) >= HIDDEN * whole]
    if not shown:
        return []
    others = found[len(shown) :]
    if others:
        shown.append((counted(len(others), "other layer"), _sums(others, len(sides))))
    if any(without):
        shown.append((NO_LAYER, without))
    return shown


def _sums(parts: Sequence[Times], sides: int) -> list[int]:
    return [sum(ns[side] for _, ns in parts) for side in range(sides)]
