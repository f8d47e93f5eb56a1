"""Many answers of one kind: a sweep over options, and how a trace scales with the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daydream.costs.device.input_sizes import samples_per_step
from daydream.report.blocks import (
    FADED,
    NEUTRAL,
    Block,
    Column,
    Figures,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    Title,
)
from daydream.report.format import answer_text, error_text, percent, tail, time_text
from daydream.report.views.memory import (
    about_memory,
    memory_cells,
    memory_columns,
    memory_notes,
    recording_notes,
    too_large,
)
from daydream.report.views.ranking import gain, interval
from daydream.report.views.step import per_s_text, throughput_line
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.predict.scaling import Scaling
    from daydream.predict.sweep import Answered, Refused, Sweep

NAME_WIDTH = 34
MOST_TRACES = 8
MOST_REASONS = 6
MOST_NAMED = 4  # scenarios that one reason names
MOST_SWEPT = 40  # where nobody says how many


def sweep(found: Sweep, *, verbose: bool = False, top: int = MOST_SWEPT) -> list[Block]:
    """Return how the traces replay, the best scenarios, and what was left out."""
    blocks: list[Block] = [*_answer(found), *_traces(found)]
    if found.scenarios:
        blocks.append(_scenarios(found, found.scenarios[:top]))
    else:
        blocks.append(Text("no scenario could be answered"))
    unknown = [each for each in found.scenarios if each.reason]
    if unknown:
        others = f" (and {len(unknown) - 1:,} more)" if len(unknown) > 1 else ""
        said = f"{_words(_labels(found, unknown[0]))}{others}: {unknown[0].reason}"
        blocks.append(Text(said, "cannot be predicted: "))
    if found.refused:
        blocks.append(Title(f"left out: {counted(len(found.refused), 'scenario')}"))
        blocks += [Text(f"{names}: {reason}") for names, reason in left_out(found)]
    of_memory = about_memory(each.memory for each in found.scenarios)
    return [*blocks, Notes([*found.notes, *_common(found, of_memory)]), *memory_notes(of_memory)]


def _answer(found: Sweep) -> list[Block]:
    """Return what the best scenario that may fit gives, if one could be predicted."""
    if found.scenarios and not found.possible:
        return [Headline(f"{found.optimization}: no scenario fits the device's memory")]
    best = max(found.possible, key=lambda each: each.gain, default=None)
    if best is None or best.predicted_ns is None:
        return [Headline(f"{found.optimization}: {counted(len(found), 'scenario')}")]
    what = f"{found.optimization} {_words(_labels(found, best))}"
    return [*throughput_line(what, best), Headline(f"{what}: {answer_text(best)}")]


def _traces(found: Sweep) -> list[Block]:
    """Return how each trace replays, the first ones of many."""
    blocks: list[Block] = []
    for each in found.traces[:MOST_TRACES]:
        name = each.trace if len(found.traces) > 1 else "step time"
        if each.replayed_ns is None:
            blocks.append(Text(f"{name}   not replayed"))
            continue
        error = (
            "" if each.replay_error is None else f"error {percent(each.replay_error, signed=True)}"
        )
        measured = (
            [] if each.measured_ns is None else [("measured", time_text(each.measured_ns), "")]
        )
        blocks.append(
            Figures([*measured, (each.basis or "", time_text(each.replayed_ns), error)], name)
        )
    if len(found.traces) > MOST_TRACES:
        blocks.append(Text(counted(len(found.traces) - MOST_TRACES, "more trace")))
    return blocks


def _scenarios(found: Sweep, shown: Sequence[Answered]) -> Table:
    several = len(found.traces) > 1
    columns = [
        *([Column("trace", width=NAME_WIDTH, keep="end")] if several else []),
        *(
            Column(name.replace("_", "-"), _kind(values), width=NAME_WIDTH)
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
    said = (
        f"{counted(more, 'more scenario')}: --top {len(found.scenarios)}, or -o FILE"
        if more
        else ""
    )
    return Table(columns, rows, more=said)


def _kind(values: Sequence[Any]) -> Kind:
    words = any(isinstance(value, str | bool) for value in values)
    return Kind.NAME if words else Kind.COUNT


def left_out(found: Sweep) -> list[tuple[str, str]]:
    """Return the scenarios that were refused, by reason, those that most share first."""
    by_reason: dict[str, list[Refused]] = {}
    for each in found.refused:
        by_reason.setdefault(each.reason, []).append(each)
    reasons = sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
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
        name: tail(value, NAME_WIDTH) if name == "trace" else _value(value)
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
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


# Scaling


def scaling(found: Scaling, *, verbose: bool = False) -> list[Block]:
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
    return [
        *scaling_answer(found),
        scaling_table(found),
        Text(said, aside=True),
        Notes(own if not verbose else found.notes),
        *memory_notes(of_memory),
        *recording_notes(found.replay.notes),
    ]


def scaling_answer(found: Scaling) -> list[Block]:
    """Return what the number of workers with the largest throughput gives, and what it was predicted from."""
    most = max(found.rows, key=lambda row: row.throughput)
    step_ns = found.replayed_ns if found.measured_ns is None else found.measured_ns
    recorded = f"{time_text(step_ns)} on {counted(found.recorded_workers, 'worker')}"
    workers = counted(most.workers, "worker")
    efficiency = percent(most.efficiency)
    lost = f"largest loss: {most.lost_to}; " if most.lost_to else ""
    error = error_text(found.replay_error, found.replay.error)
    alone = samples_per_step(found.replay.graph) if found.alone_ns else None
    rate = ""
    if alone is not None:
        rate = f"{per_s_text(most.throughput * alone / found.alone_ns * 1e9)} samples per second, "
    return [
        Headline(
            f"{workers}: {rate}{most.throughput:,.2f}x the throughput of one, efficiency {efficiency}"
        ),
        Text(f"{lost}from a step of {recorded}, {error}"),
    ]


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
