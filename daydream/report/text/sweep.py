"""A sweep as text: `daydream sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daydream.report.text.layout import (
    MARGIN,
    USUAL_WIDTH,
    Block,
    Headline,
    Screen,
    Table,
    Title,
    Words,
    notes,
    printable,
    shortened,
)
from daydream.report.text.numbers import (
    UNITS,
    answer_text,
    count,
    measured_text,
    number,
    percent,
    speedup_of,
    time_text,
)
from daydream.report.text.peak_memory import about_memory, memory_columns, memory_notes, too_large

if TYPE_CHECKING:
    from daydream.predict.sweep import Answered, Refused, Sweep

NAME_WIDTH = 34
MOST_TRACES = 8
MOST_REASONS = 6
MOST_NAMED = 4  # scenarios that one reason names


def sweep_text(sweep: Sweep, *, top: int) -> Screen:
    """Return how the traces replay, the best scenarios, and what was left out."""
    blocks: list[Block] = [*_answer(sweep), *(MARGIN + line for line in _headlines(sweep)), ""]
    if sweep.scenarios:
        rows = scenario_rows(sweep, sweep.scenarios[:top])
        last = len(rows[0]) - 1
        interval = next(place for place, head in enumerate(rows[0]) if head.startswith("90 % interval"))
        faded = too_large([each.memory for each in sweep.scenarios[:top]])
        plain = USUAL_WIDTH if any(each.memory for each in sweep.scenarios[:top]) else None
        spare = [last, interval]  # notes, then the range
        blocks.append(Table(rows, spare=spare, faded=faded, plain=plain))
        more = len(sweep.scenarios) - top
        if more > 0:
            blocks.append(f"{MARGIN}{count(more, 'more scenario')}: --top {len(sweep.scenarios)}, or -o FILE")
    else:
        blocks.append(f"{MARGIN}no scenario could be answered")
    unknown = [each for each in sweep.scenarios if each.reason]
    if unknown:
        others = f" (and {len(unknown) - 1:,} more)" if len(unknown) > 1 else ""
        said = f"{_words(_labels(sweep, unknown[0]))}{others}: {printable(unknown[0].reason or '')}"
        blocks += ["", Words(said, f"{MARGIN}cannot be predicted: ", 2 * MARGIN)]
    if sweep.refused:
        blocks += ["", Title(f"left out: {count(len(sweep.refused), 'scenario')}")]
        blocks += [Words(f"{names}: {reason}", MARGIN, 2 * MARGIN) for names, reason in left_out_rows(sweep)]
    of_memory = about_memory(each.memory for each in sweep.scenarios)
    told = notes([*sweep.notes, *_common(sweep, of_memory)])
    return Screen([*blocks, *told, *map(Words, memory_notes(of_memory))])


def _answer(sweep: Sweep) -> list[Block]:
    """Return what the best scenario that may fit gives, if one could be predicted."""
    if sweep.scenarios and not sweep.possible:
        return [Headline(f"{sweep.optimization}: no scenario fits the device's memory")]
    best = max(sweep.possible, key=lambda each: each.speedup or 0.0, default=None)
    if best is None or best.predicted_ns is None:
        return []
    return [Headline(f"{sweep.optimization} {_words(_labels(sweep, best))}: {answer_text(best)}")]


def sweep_title(sweep: Sweep) -> str:
    """Return what was asked, and how often."""
    return f"{sweep.optimization}: {count(len(sweep), 'scenario')}"


def _headlines(sweep: Sweep) -> list[str]:
    several = len(sweep.traces) > 1
    lines = []
    for each in sweep.traces[:MOST_TRACES]:
        name = f"{printable(each.trace)}   " if several else ""
        if each.replayed_ns is None:
            lines.append(f"{name}not replayed")
            continue
        parts = [*measured_text(each.measured_ns), f"{each.basis} {time_text(each.replayed_ns)}"]
        if each.replay_error is not None:
            parts[-1] += f" (error {percent(each.replay_error, signed=True)})"
        lines.append(f"{name}step time   {'   '.join(parts)}")
    if len(sweep.traces) > MOST_TRACES:
        lines.append(count(len(sweep.traces) - MOST_TRACES, "more trace"))
    return lines


def scenario_rows(sweep: Sweep, shown: Sequence[Answered]) -> list[list[str]]:
    """Return a head and a row for each scenario."""
    several = len(sweep.traces) > 1
    longest = max((each.predicted_ns or 0 for each in shown), default=0)
    unit, size = UNITS[0] if longest >= 1e6 else UNITS[1]
    options = [name.replace("_", "-") for name in sweep.varied]
    head = [*options, f"predicted, {unit}", f"90 % interval, {unit}", "speedup", "notes"]
    rows = [["trace", *head] if several else head]
    width = max(len(options[0]), *(len(_value(value)) for value in next(iter(sweep.varied.values()))))
    for each in shown:
        after, low, high = each.predicted_ns, each.predicted_low_ns, each.predicted_high_ns
        known = low is not None and high is not None
        first, *others = (each.options[name] for name in sweep.varied)
        row = [
            _value(first) if isinstance(first, str | bool) else _value(first).rjust(width),
            *map(_value, others),
            "unknown" if after is None else number(after / size),
            f"{number((low or 0) / size)} to {number((high or 0) / size)}" if known else "",
            speedup_of(each),
            str(len(each.notes)) if each.notes else "",
        ]
        rows.append([_trace(each.trace), *row] if several else row)
    return memory_columns(rows, [each.memory for each in shown], len(rows[0]) - 1)


def left_out_rows(sweep: Sweep) -> list[tuple[str, str]]:
    """Return the scenarios that were refused, by reason, those that most share first."""
    by_reason: dict[str, list[Refused]] = {}
    for each in sweep.refused:
        by_reason.setdefault(printable(each.reason), []).append(each)
    reasons = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    rows = [(_together(sweep, each), reason) for reason, each in reasons[:MOST_REASONS]]
    more = sum(len(each) for _, each in reasons[MOST_REASONS:])
    return [*rows, (count(more, "other"), "--json says why")] if more else rows


def _together(sweep: Sweep, refused: Sequence[Refused]) -> str:
    """Return the scenarios by what they have in common, else the first of them."""
    if len(refused) == len(sweep):
        return "all"
    shared = _labels(sweep, refused[0])
    for each in refused[1:]:
        labels = _labels(sweep, each)
        shared = {name: value for name, value in shared.items() if labels[name] == value}
    every: list[Answered | Refused] = [*sweep.scenarios, *sweep.refused]
    alike = [each for each in every if shared.items() <= _labels(sweep, each).items()]
    if shared and len(alike) == len(refused):
        return _words(shared)
    if shared and len(refused) > 1:
        return f"{_words(shared)} ({len(refused):,} of {len(alike):,})"
    named = [_words(_labels(sweep, each)) for each in refused[:MOST_NAMED]]
    more = len(refused) - len(named)
    return "; ".join([*named, f"and {more:,} more"] if more else named)


def _labels(sweep: Sweep, each: Answered | Refused) -> dict[str, Any]:
    return {**({"trace": each.trace} if len(sweep.traces) > 1 else {}), **each.options}


def _words(labels: Mapping[str, Any]) -> str:
    shown = {name: _trace(value) if name == "trace" else _value(value) for name, value in labels.items()}
    return " ".join(f"{name.replace('_', '-')}={value}" for name, value in shown.items())


def _common(sweep: Sweep, of_memory: Sequence[str]) -> list[str]:
    """Return the notes that all scenarios share, and how many others there are; without those of memory."""
    said = [[note for note in each.notes if note not in of_memory] for each in sweep.scenarios]
    common = [note for note in (said[0] if said else ()) if all(note in notes for notes in said)]
    other = {note for notes in said for note in notes} - set(common)
    if not other:
        return common
    return [*common, f"{count(len(other), 'other note')} of some scenarios: --json, or -o FILE."]


def _trace(name: str) -> str:
    text = printable(name)
    return text if len(text) <= NAME_WIDTH else "..." + text[3 - NAME_WIDTH :]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return shortened(printable(str(value)), NAME_WIDTH)
