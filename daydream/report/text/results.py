"""Results as text, a screen each: replay, what-if, an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from daydream.predict.basis import RECORDED, whole_recording
from daydream.report.text.breakdown import breakdown_rows, breakdown_table, moved_bound
from daydream.report.text.layout import (
    MARGIN,
    Block,
    Facts,
    Figures,
    Headline,
    Screen,
    Table,
    Words,
    fitting,
    notes,
    printable,
    shortened,
)
from daydream.report.text.numbers import (
    about_steps,
    count,
    listed,
    measured_text,
    percent,
    range_text,
    replayed_text,
    scale,
    speedup,
    time_text,
)
from daydream.report.text.peak_memory import memory_words, recording_notes

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay, StepReplay
    from daydream.predict.suggest import WhatIfResult
    from daydream.trace.trace import Trace

MOST_STEPS, FEWEST_STEPS = 12, 3  # of one screen
WORST_STEPS = 5
STEP_WIDTH = 40
MEANING = (
    "A replay is the recording simulated without a change. Predictions start from it: what it gets wrong, "
    "they get wrong, too."
)
HANGING = MARGIN + " " * len("step time   ")


def replay_text(replay: Replay, *, verbose: bool = False) -> Screen:
    """Return the replay's error, and that of the steps; `verbose` with what the graph was made of."""
    said = replay.to_json()
    off, several = said["start_error_ns"], len(said["ranks"]) > 1
    starts = Words(f"{'kernels' if said['kernels'] else 'tasks'} start {_starts_off(off)}")
    top: list[Block] = [
        *map(Words, whole_recording(replay.graph.trace)),
        Headline(replay_answer(replay)),
        *map(Words, about_steps(replay)),
        *map(Figures, [*typical_replay(replay), *basis_of_replay(replay)]),
        Words(MEANING),
    ]
    if verbose:
        rows = _steps(replay.steps, several_ranks=several, always=True)
        return Screen([*top, "", *rows, "", Facts(graph_facts(replay, said)), *notes(replay.notes)])
    bottom: list[Block] = ["", starts, *map(Words, recording_notes(replay.notes))]
    screens = (
        Screen([*top, "", *_steps(replay.steps, several_ranks=several, most=most), *bottom])
        for most in range(MOST_STEPS, FEWEST_STEPS - 1, -1)
    )
    return fitting(screens)


def whatif_text(
    comparison: Prediction,
    *,
    verbose: bool = False,
    suggestion: WhatIfResult | None = None,
) -> Screen:
    """Return the answer, what changes by cause, what the step waits for then and what to try next.

    With `verbose` follows where the step's time goes by phase and layer, before and after, and every note.
    """
    from daydream.predict.breakdown import parts_of_change  # which replays and imports do without
    from daydream.report.text import answer

    before, after = parts_of_change(comparison)
    moved = moved_bound(before, after)
    head: list[Block] = [
        *map(Words, whole_recording(comparison.replay.graph.trace)),
        answer.headline(comparison),
        *map(Words, about_steps(comparison.replay)),
        *answer.options_words(comparison),
    ]
    middle: list[Block] = [
        *map(Figures, typical_prediction(comparison)),
        *memory_words(comparison.memory_answer),
        *answer.code_words(comparison.code),
    ]
    known = comparison.reason is None
    bottoms = [answer.bottleneck(comparison, said, suggestion) for said in (moved, "")] if known else [[]]
    if verbose:
        whole = breakdown_table(breakdown_rows(before, after))
        top = [*head, *answer.range_words(comparison), *middle]
        return Screen([*top, "", whole, *bottoms[0], "", *_details(comparison), *notes(comparison.notes)])
    own = answer.own_notes(comparison)
    screens = (
        Screen([*head, *doubts, *middle, *table, *bottom, *answer.short_notes(comparison, own, most)])
        for bottom in bottoms
        for causes in (answer.MOST_DOUBTS, answer.FEWEST_DOUBTS)
        for doubts in [answer.range_words(comparison, causes)]
        for most in range(len(own) if causes == answer.MOST_DOUBTS else 0, -1, -1)
        for table in (answer.tables(before, after) if known else [[]])
    )
    return fitting(screens)


def _details(comparison: Prediction) -> list[Block]:
    """Return measured, replayed and predicted steps, the options that were used, and what was changed."""
    options = [
        f"{name.replace('_', '-')} {printable(str(value))}"
        for name, value in comparison.options.items() if value is not None
    ]  # fmt: skip
    used = [Words(", ".join(options), f"{MARGIN}options     ", HANGING)] if options else []
    figures = [Figures(whatif_headline(comparison))]
    rules = [Words(said, f"{MARGIN}kernels     ", HANGING) for said in comparison.graph.facts.rules]
    return [*figures, *used, *rules, MARGIN + edits_text(comparison)]


def import_text(trace: Trace, rows_by_kind: Mapping[str, int]) -> Screen:
    """Return what an import found."""
    metadata = trace.metadata
    steps = metadata.get("steps", [])
    covered = sum(bool(step.get("covered")) for step in steps)
    found = [f"{kind} {number:,}" for kind, number in rows_by_kind.items()]
    source = printable(str(metadata.get("step_source", "")))
    found_out = Facts([
        ("read", printable(str(metadata.get("source", "")))),
        ("rows", f"{len(trace):,}: {', '.join(found)}"),
        ("steps", f"{len(steps):,}, {covered:,} covered, from {source}"),
    ])  # fmt: skip
    return Screen([found_out, *notes(metadata.get("notes", []))])


def _steps(
    steps: Sequence[StepReplay], *, several_ranks: bool, most: int = MOST_STEPS, always: bool = False
) -> list[Block]:
    """Return a row for each step, or for the worst ones where there are many.

    Of many that all replay without a visible error none is the worst: that is one line, but for `always`.
    """
    exact = {percent(step.error, signed=True) for step in steps} == {percent(0.0)}
    if exact and len(steps) > min(most, MOST_STEPS) and not always:
        return [f"{MARGIN}each of the {len(steps)} steps replays with an error of {percent(0.0)}"]
    rows = step_rows(steps, several_ranks=several_ranks, most=most)
    if len(rows) - 1 == len(steps):
        return [Table(rows)]
    return [Table(rows), f"{MARGIN}the {len(rows) - 1} worst of {len(steps)} steps; --json has them all"]


def step_rows(steps: Sequence[StepReplay], *, several_ranks: bool, most: int = MOST_STEPS) -> list[list[str]]:
    """Return a head and a row for each step, or for the worst ones where there are many."""
    shown = list(steps)
    if len(steps) > min(most, MOST_STEPS):
        shown = sorted(steps, key=lambda step: -abs(step.error))[: min(most, WORST_STEPS)]
    longest = max(step.measured_ns for step in steps)
    unit, size, digits = scale(longest)
    digits = 1 if longest >= 100 * size else 3  # two replays that differ little should look different
    rows = [["step", f"measured, {unit}", f"replayed, {unit}", "error"]]
    for step in shown:
        name = shortened(printable(step.name), STEP_WIDTH)
        rows.append([
            f"rank {step.rank} {name}" if several_ranks else name,
            f"{step.measured_ns / size:,.{digits}f}",
            f"{step.replayed_ns / size:,.{digits}f}",
            percent(step.error, signed=True),
        ])  # fmt: skip
    return rows


def graph_facts(replay: Replay, said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) for what the graph was made of; `said` is the replay's JSON object."""
    rows = [
        ("kernel starts" if said["kernels"] else "task starts", _starts_off(said["start_error_ns"])),
        ("tasks", f"{said['tasks']:,} on {count(len(replay.graph.lanes), 'lane')}, {said['edges']:,} edges"),
    ]
    if said["kernels"]:
        rows.append(("kernels", f"{said['kernels']:,}, {said['kernels_linked']:,} with their launch"))
    waits = said["event_waits"]
    if sum(waits.values()):
        rows.append(("stream waits", ", ".join(f"{number:,} {how}" for how, number in waits.items())))
    if said["queue_depth"] is not None:
        learned = replay.graph.facts.queue_learned
        why = "learned from the trace" if learned else "assumed: it never runs full in this trace"
        rows.append(("launch queue", f"{said['queue_depth']:,} launches deep ({why})"))
    collectives = said["collectives"]
    if collectives:
        rows.append(("collectives", _collectives(collectives)))
    return rows


def _starts_off(off: Mapping[str, int]) -> str:
    return f"off by {time_text(off['p50'])} in the median, {time_text(off['p95'])} at the 95th percentile"


def _collectives(collectives: Sequence[Mapping[str, Any]]) -> str:
    text = f"{len(collectives):,}"
    if len(collectives[0]["ranks"]) > 1:
        measured = max(each["measured_end_spread_ns"] for each in collectives)
        replayed = max(each["replayed_end_spread_ns"] for each in collectives)
        text += (
            f" on {len(collectives[0]['ranks'])} ranks, whose ends lie at most {time_text(measured)} apart "
            f"as measured, {time_text(replayed)} as replayed"
        )
    return text


def replay_answer(replay: Replay) -> str:
    """Return in one line how far the replayed step is from the measured one."""
    times = f"replayed {time_text(replay.replayed_ns)} per step, measured {time_text(replay.measured_ns)}"
    error = f"error {percent(replay.error, signed=True)}, worst step {percent(replay.max_error)}"
    return f"{times}: {error}"


def replay_headline(replay: Replay) -> str:
    """Return the measured and the replayed step with their difference."""
    error = f"error {percent(replay.error, signed=True)}, worst step {percent(replay.max_error)}"
    replayed = f"replayed {time_text(replay.replayed_ns)} ({error})"
    return f"step time   measured {time_text(replay.measured_ns)}   {replayed}"


def whatif_headline(comparison: Prediction) -> str:
    """Return the measured, the replayed and the predicted step, and the speedup."""
    parts = [
        *measured_text(comparison.measured_ns),
        replayed_text(comparison.replay),
    ]
    if comparison.predicted_ns is not None:
        parts.append(f"predicted {time_text(comparison.predicted_ns)}")
        parts.append(speedup(comparison.replayed_ns, comparison.predicted_ns))
    return f"step time   {'   '.join(parts)}"


def typical_replay(replay: Replay) -> list[str]:
    """Return the line about the median step, if the mean is not near it."""
    if not replay.steps_differ:
        return []
    measured, replayed = time_text(replay.typical_measured_ns), time_text(replay.typical_replayed_ns)
    return [f"median step   measured {measured}   replayed {replayed}"]


def typical_prediction(comparison: Prediction) -> list[str]:
    """Return the line about the median step before and after, if the mean is not near it."""
    after, before = comparison.typical_predicted_ns, comparison.replay.settled.typical_ns
    if after is None or not comparison.replay.steps_differ:
        return []
    measured = measured_text(comparison.replay.basis_typical_measured_ns)
    parts = [*measured, f"replayed {time_text(before)}", f"predicted {time_text(after)}"]
    return ["   ".join(["median step", *parts, speedup(before, after)])]


def basis_of_replay(replay: Replay) -> list[str]:
    """Return the line about the step that predictions start from, where it is not the recorded one."""
    if replay.basis == RECORDED:
        return []
    parts = [f"{replay.basis} {time_text(replay.basis_ns)}"]
    if replay.basis_measured_ns is not None and replay.basis_error is not None:
        parts.append(f"measured {time_text(replay.basis_measured_ns)}")
        parts.append(f"replay error {percent(replay.basis_error, signed=True)}")
    return [f"predictions start from   {'   '.join(parts)}"]


def likely_text(comparison: Prediction) -> str:
    """Return the range of the prediction, and what it is made of; or why there is no prediction.

    With it how much of the step no change can move, where that is much.
    """
    held = "" if comparison.held is None else f". {comparison.held}"
    if comparison.reason is not None:
        return f"cannot be predicted from this trace, because {printable(comparison.reason)}{held}"
    causes = comparison.uncertainty.words(comparison.simulated_ns)
    ends = range_text(comparison.predicted_low_ns or 0, comparison.predicted_high_ns or 0)
    return f"90 % interval {ends}" + (f" ({causes})" if causes else "") + held


def edits_text(comparison: Prediction) -> str:
    """Return how many tasks were changed, inserted and removed."""
    parts = [
        f"{number:,} {what}"
        for number, what in (
            (comparison.changed, "changed"),
            (comparison.inserted, "inserted"),
            (comparison.removed, "removed"),
        )
        if number
    ]
    return f"of {comparison.replay.graph.alive.sum():,} tasks {listed(parts) if parts else 'none changed'}"
