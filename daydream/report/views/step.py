"""A replay and a prediction: the step before and after a change, and where its time goes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError
from daydream.predict.basis import ESTIMATED, RECORDED, UNPROFILED, whole_recording
from daydream.predict.notes import why_unmoved
from daydream.report.blocks import (
    Block,
    Code,
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
    answer_text,
    change_text,
    error_text,
    gain_range_text,
    likely_gain,
    listed,
    percent,
    range_text,
    speedup,
    speedup_of,
    time_text,
)
from daydream.report.views.breakdown import breakdown, cause_table, moved_bound
from daydream.report.views.memory import memory_line, memory_notes, recording_notes
from daydream.text import counted
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.predict.prediction import Changed, Prediction
    from daydream.predict.replay import Replay
    from daydream.predict.suggest import WhatIfResult

FAR = 0.1  # of the median step: a mean further from it needs a reason
APART = 1.5  # times the median, or that part of it: a step that makes the difference
MOST_STEPS, WORST_STEPS = 12, 5
MOST_NOTES = 3
MEANING = (
    "A replay is the recording simulated without a change. Predictions start from it: what it gets wrong, "
    "they get wrong, too."
)
OTHER_WORK = "the step computes something else (batch, layers, algorithm)"


def replay(found: Replay, *, verbose: bool = False) -> list[Block]:
    """Return the replay's error, and that of its steps; `verbose` with what the graph was made of."""
    said = found.to_json()
    blocks: list[Block] = [
        *map(Text, whole_recording(found.graph.trace)),
        Headline(replay_answer(found)),
        *about_steps(found),
        *basis_line(found),
        Text(MEANING),
        *step_rows(found, always=verbose),
    ]
    if verbose:
        return [*blocks, Facts(graph_facts(found, said)), Notes(found.notes)]
    starts = (
        f"{'kernels' if said['kernels'] else 'tasks'} start {_starts_off(said['start_error_ns'])}"
    )
    return [*blocks, Text(starts), *recording_notes(found.notes)]


def prediction(
    found: Prediction, *, verbose: bool = False, suggestion: WhatIfResult | None = None
) -> list[Block]:
    """Return the answer, what changes by cause, what the step waits for then and what to try next.

    With `verbose` follows where the step's time goes by phase and layer, before and after, and every note.
    """
    before, after = found.breakdowns()
    blocks: list[Block] = [
        *map(Text, whole_recording(found.replay.graph.trace)),
        *throughput_line(found.optimization, found),
        headline(found),
        *about_steps(found.replay),
        *_options(found),
        Text(likely_text(found)),
        *recorded_step(found),
        *_median_step(found),
        *memory_line(found.memory_answer),
        *code_of(found.code),
    ]
    known = found.reason is None
    if known:
        blocks += [breakdown(before, after) if verbose else cause_table(before, after)]
        moved = moved_bound(before, after)
        blocks += [Text(f"{bottleneck_text(found)}. {moved}" if moved else bottleneck_text(found))]
        blocks += _next(suggestion)
    if verbose:
        options = _named_options(found, usual={})
        facts = [("options", options), *(("kernels", rule) for rule in found.graph.facts.rules)]
        facts += [("changed", edits_text(found))]
        return [
            *blocks,
            step_figures(found),
            Facts([each for each in facts if each[1]]),
            Notes(found.notes),
        ]
    own = own_notes(found)
    shown = own if len(own) <= MOST_NOTES + 1 else own[:MOST_NOTES]
    blocks += [Text(note, "note: ") for note in shown]
    if own[len(shown) :]:
        blocks.append(Text(f"{counted(len(own) - len(shown), 'more note')} with -v", aside=True))
    of_memory = () if found.memory is None else found.memory.recording_notes
    return [*blocks, *memory_notes(of_memory), *recording_notes(found.replay.notes)]


# The answer


def headline(found: Prediction) -> Headline:
    """Return the answer in one line: the step before and after, and how many times faster, with its range."""
    error = error_text(found.replay_error, found.replay.error)
    if found.predicted_ns is None:
        return Headline(f"{found.optimization}: cannot be predicted from this trace; {error}")
    return Headline(f"{found.optimization}: {answer_text(found)}; {error}")


def throughput_line(what: str, found: Changed) -> list[Block]:
    """Return what a second of training covers before and after a change that alters what a step covers."""
    rate = found.throughput
    if rate is None or not found.predicted_ns:
        return []
    said = f"{rate.gain:.2f}x the {rate.unit} per second"
    if rate.before_per_s is not None and rate.after_per_s is not None:
        said = f"{rate.before_per_s:,.1f} -> {rate.after_per_s:,.1f} {rate.unit} per second, {rate.gain:.2f}x"
    if found.predicted_low_ns is not None and found.predicted_high_ns is not None:
        whole = rate.gain * found.predicted_ns
        said += likely_gain(whole, found.predicted_low_ns, found.predicted_high_ns)
    return [Headline(f"{what}: {said}")]


def step_figures(found: Prediction) -> Figures:
    """Return the step as measured, replayed and predicted, and the speed-up, each with its range."""
    replay, before = found.replay, found.replayed_ns
    low, high = found.predicted_low_ns, found.predicted_high_ns
    figures = []
    if found.measured_ns is not None:
        how = "without a profiler" if replay.basis == UNPROFILED else _mean_of(replay)
        figures.append(("measured", time_text(found.measured_ns), how))
    kept = "replayed" if replay.basis == RECORDED else replay.basis
    figures.append((kept, time_text(before), error_text(found.replay_error, replay.error)))
    if found.predicted_ns is None:
        figures.append(("predicted", "unknown", found.reason or ""))
        return Figures(figures, "step time")
    known = low is not None and high is not None
    interval = f"90 % interval {range_text(low or 0, high or 0)}" if known else ""
    figures.append(("predicted", time_text(found.predicted_ns), interval))
    gains = gain_range_text(before, low or 0, high or 0) if known else ""
    figures.append(("speed-up", speedup_of(found), gains))
    return Figures(figures, "step time")


def _mean_of(replay: Replay) -> str:
    said = f"mean of {counted(len(replay.steps), 'step')}"
    return (
        f"{said}, median {time_text(replay.typical_measured_ns)}" if replay.steps_differ else said
    )


def _options(found: Prediction) -> list[Block]:
    """Return the options that are not at their defaults."""
    from daydream.transforms.compose import option_names, parse

    try:
        named = option_names(parse(found.optimization))
    except DaydreamError:  # a function that was given as it is, and has no file
        named = {}
    said = _named_options(found, {name: option.default for name, (_, option) in named.items()})
    return [Text(said, "with ")] if said else []


def _named_options(found: Prediction, usual: Mapping[str, Any]) -> str:
    """Return the options with their values, without those that are as usual."""
    return ", ".join(
        f"{name.replace('_', '-')} {value}"
        for name, value in found.options.items()
        if value is not None and (name not in usual or value != usual[name])
    )


def likely_text(found: Prediction) -> str:
    """Return the range of the step and what it is made of, or why there is no prediction.

    With it how much of the step no change can move, where that is much.
    """
    held = "" if found.held is None else f". {found.held}"
    if found.reason is not None:
        return f"because {found.reason}{held}. The step takes {time_text(found.replayed_ns)} without the change."
    causes = found.uncertainty.words(found.simulated_ns)
    ends = range_text(found.predicted_low_ns or 0, found.predicted_high_ns or 0)
    return f"90 % interval {ends}{f' ({causes})' if causes else ''}{held}"


def recorded_step(found: Prediction) -> list[Block]:
    """Return the line about the recorded step before and after the change, where the answer is of another."""
    step = found.recorded
    if step is None or step.predicted_ns is None:
        return []
    change = change_text(step.replayed_ns, step.predicted_ns)
    times = speedup(step.replayed_ns, step.predicted_ns)
    error = f", replay error {percent(found.replay.error, signed=True)}"
    what = "with the profiler"
    if found.replay.start_up_ns:
        what = "with start-up, as recorded"
    elif found.basis == ESTIMATED:  # the headline ends with this step's error
        error = "; without it: estimated"
    return [Text(f"{what}: {change}, {times}{error}")]


def code_of(code: str | None, margin: int = 2) -> list[Block]:
    """Return the line of a training script that makes a change, if there is one."""
    return [] if code is None else [Code(code, margin)]


def bottleneck_text(found: Prediction) -> str:
    """Return what the step waits for after the change, and whether the change moves that."""
    what, share = found.bound
    said = f"new bottleneck: {what.awaited}, {percent(share)} of the step"
    return f"{said}. This change does not move it" if why_unmoved(found) else said


def _next(suggestion: WhatIfResult | None) -> list[Block]:
    if suggestion is None or suggestion.predicted_ns is None:
        return []
    before_ns, after_ns = suggestion.replayed_ns, suggestion.predicted_ns
    needs = f" [{suggestion.needs}]" if suggestion.needs else ""
    saved = f"{time_text(before_ns - after_ns)} more, {speedup(before_ns, after_ns)}{needs}"
    words = shlex.join(suggestion.command[2:])
    return [
        Text(f"{words} saves {saved}", "try next: "),
        *code_of(suggestion.code, 4),
        *needs_legend([suggestion.needs]),
    ]


def needs_legend(needs: Sequence[str | None]) -> list[Block]:
    """Return what the mark of other work means, if any of these is it; the other marks say it themselves."""
    work = stages.NEEDS[stages.WORK]
    return [Text(OTHER_WORK, f"[{work}]: ", aside=True)] if work in needs else []


def own_notes(found: Prediction) -> list[str]:
    """Return the notes about this prediction that no other line of the screen tells."""
    # The bottleneck's line tells why a step does not move, that of memory why it is not known.
    memory = found.memory
    told = {*found.replay.notes, why_unmoved(found), f"{found.memory_answer.unsaid}."}
    told |= set() if memory is None else set(memory.recording_notes)
    return [note for note in dict.fromkeys(found.notes) if note not in told]


def edits_text(found: Prediction) -> str:
    """Return how many tasks were changed, inserted and removed."""
    numbers = {"changed": found.changed, "inserted": found.inserted, "removed": found.removed}
    parts = [f"{number:,} {what}" for what, number in numbers.items() if number]
    return (
        f"of {found.replay.graph.alive.sum():,} tasks {listed(parts) if parts else 'none changed'}"
    )


def _median_step(found: Prediction) -> list[Block]:
    """Return the line about the median step before and after, if the mean is not near it."""
    after, before = found.typical_predicted_ns, found.replay.settled.typical_ns
    if after is None or not found.replay.steps_differ:
        return []
    measured = found.replay.basis_typical_measured_ns
    figures = [] if measured is None else [("measured", time_text(measured), "")]
    figures += [
        ("replayed", time_text(before), ""),
        ("predicted", time_text(after), speedup(before, after)),
    ]
    return [Figures(figures, "median step")]


# The replay


def replay_answer(found: Replay) -> str:
    """Return in one line how far the replayed step is from the measured one."""
    times = (
        f"replayed {time_text(found.replayed_ns)} per step, measured {time_text(found.measured_ns)}"
    )
    error = f"error {percent(found.error, signed=True)}, worst step {percent(found.max_error)}"
    return f"{times}: {error}"


def replayed_text(found: Replay) -> str:
    """Return what the step of the answers replays in, with its error, and a steady step that differs."""
    steady = time_text(found.basis_ns)
    if found.basis != RECORDED:
        return f"{found.basis} {steady} ({error_text(found.basis_error, found.error)})"
    told = time_text(found.replayed_ns)
    after = "" if told == steady else f", steady {steady}"
    return f"replayed {told} (error {percent(found.error, signed=True)}){after}"


def replay_figures(found: Replay) -> Figures:
    """Return the step as measured and replayed, and the step that predictions start from, as cards."""
    figures = [
        ("measured", time_text(found.measured_ns), _mean_of(found)),
        (
            "replayed",
            time_text(found.replayed_ns),
            f"{percent(found.error, signed=True)} on average",
        ),
        ("worst step", percent(found.max_error), "off, of those that are covered"),
    ]
    if found.basis != RECORDED:
        error = (
            ""
            if found.basis_error is None
            else f", error {percent(found.basis_error, signed=True)}"
        )
        figures.append(
            (found.basis, time_text(found.basis_ns), f"what predictions start from{error}")
        )
    return Figures(figures, "step time")


def basis_line(found: Replay) -> list[Block]:
    """Return the median step if the mean is far from it, and the step that predictions start from."""
    blocks: list[Block] = []
    if found.steps_differ:
        times = found.typical_measured_ns, found.typical_replayed_ns
        names = zip(("measured", "replayed"), times, strict=True)
        blocks.append(Figures([(name, time_text(ns), "") for name, ns in names], "median step"))
    if found.basis == RECORDED:
        return blocks
    error = (
        None
        if found.basis_error is None
        else f"replay error {percent(found.basis_error, signed=True)}"
    )
    figures: list[tuple[str, str, str]] = [(found.basis, time_text(found.basis_ns), error or "")]
    if found.basis_measured_ns is not None:
        figures.append(("measured", time_text(found.basis_measured_ns), ""))
    return [*blocks, Figures(figures, "predictions start from")]


def about_steps(found: Replay) -> list[Block]:
    """Return why the mean step is far from the median, and which steps stand for all, where that is so."""
    trace = found.graph.trace
    read = None if trace is None else trace.metadata.get("typical_run")
    return [Text(said) for said in (far_mean(found), read) if said]


def far_mean(found: Replay) -> str:
    """Return why the mean step is far from the median, an empty text where it is not.

    `the step is the mean: 2 of 30 steps take 4.0x the median`.
    """
    median, mean = found.typical_measured_ns, found.measured_ns
    if not median or abs(mean - median) <= FAR * median:
        return ""
    times = [step.measured_ns / median for step in found.steps]
    odd = [each for each in times if (each > APART if mean > median else each < 1 / APART)]
    if not odd:
        return f"the step is the mean: steps take {min(times):.2f}x to {max(times):.2f}x the median"
    takes = f"{'takes' if len(odd) == 1 else 'take'} {fsum(odd) / len(odd):.1f}x the median"
    return f"the step is the mean: {len(odd):,} of {counted(len(times), 'step')} {takes}"


def step_rows(found: Replay, *, always: bool) -> list[Block]:
    """Return a row for each step, or for the worst ones where there are many.

    Of many that all replay without a visible error none is the worst: that is a line, but for `always`.
    """
    steps, several = found.steps, len({step.rank for step in found.steps}) > 1
    more = ""
    if len(steps) > MOST_STEPS:
        if not always and all(percent(step.error, signed=True) == percent(0.0) for step in steps):
            return [Text(f"each of the {len(steps)} steps replays with an error of {percent(0.0)}")]
        steps = sorted(steps, key=lambda step: -abs(step.error))[:WORST_STEPS]
        more = f"the {len(steps)} worst of {len(found.steps)} steps; --json has them all"
    rows = [
        Row((
            f"rank {step.rank} {step.name}" if several else step.name, step.measured_ns, step.replayed_ns,
            step.error,
        ))
        for step in steps
    ]  # fmt: skip
    columns = [
        Column("step"), Column("measured", Kind.TIME, bar=True), Column("replayed", Kind.TIME, bar=True),
        Column("error", Kind.ERROR),
    ]  # fmt: skip
    return [Table(columns, rows, more=more)]


def graph_facts(found: Replay, said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) for what the graph was made of; `said` is the replay's JSON object."""
    lanes = counted(len(found.graph.lanes), "lane")
    rows = [
        (
            "kernel starts" if said["kernels"] else "task starts",
            _starts_off(said["start_error_ns"]),
        ),
        ("tasks", f"{said['tasks']:,} on {lanes}, {said['edges']:,} edges"),
    ]
    if said["kernels"]:
        rows.append(
            ("kernels", f"{said['kernels']:,}, {said['kernels_linked']:,} with their launch")
        )
    waits = said["event_waits"]
    if sum(waits.values()):
        rows.append(
            ("stream waits", ", ".join(f"{number:,} {how}" for how, number in waits.items()))
        )
    if said["queue_depth"] is not None:
        learned = found.graph.facts.queue_learned
        why = "learned from the trace" if learned else "assumed: it never runs full in this trace"
        rows.append(("launch queue", f"{said['queue_depth']:,} launches deep ({why})"))
    if said["collectives"]:
        rows.append(("collectives", _collectives(said["collectives"])))
    return rows


def _starts_off(off: Mapping[str, int]) -> str:
    return f"off by {time_text(off['p50'])} in the median, {time_text(off['p95'])} at the 95th percentile"


def _collectives(collectives: Sequence[Mapping[str, Any]]) -> str:
    ranks = len(collectives[0]["ranks"])
    if ranks == 1:
        return f"{len(collectives):,}"
    measured, replayed = (
        time_text(max(each[f"{how}_end_spread_ns"] for each in collectives))
        for how in ("measured", "replayed")
    )
    return (
        f"{len(collectives):,} on {ranks} ranks, whose ends are at most {measured} apart as measured, "
        f"{replayed} as replayed"
    )
