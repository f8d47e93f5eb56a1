"""A replay and a prediction: the step before and after a change, and where its time goes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import fsum
from typing import TYPE_CHECKING, Any

from daydream.errors import DaydreamError
from daydream.predict.basis import ESTIMATED, RECORDED, UNPROFILED, why_unmoved
from daydream.predict.interval import WORDS
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
    times,
)
from daydream.report.views.breakdown import breakdown, cause_table, moved_bound
from daydream.report.views.memory import about_memory, memory_line, memory_notes, recording_notes
from daydream.text import counted
from daydream.trace.recorded_steps import made_up, whole_recording
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.predict.prediction import Changed, Prediction
    from daydream.predict.replay import Replay, StepReplay
    from daydream.predict.suggest import WhatIfResult
    from daydream.simulate.steady_state import SteadyState

FAR = 0.1  # of the median step: a mean further from it needs a reason
APART = 1.5  # times the median, or that part of it: a step that makes the difference
MOST_STEPS = 12
WORST_STEPS = 5
MOST_NOTES = 3
STARTS_FROM = "what predictions start from"
MEANING = "A replay is the recording simulated without a change. Any error here carries over to every prediction."
OTHER_WORK = "the step computes something else (batch, layers, algorithm)"


def replay(found: Replay, *, verbose: bool = False) -> Iterator[Block]:
    """Return the replay's error, and that of its steps; `verbose` with what the graph was made of."""
    said = found.to_json()
    yield from opening(Headline(replay_answer(found)), found)
    measured: tuple[str, float | None, str]
    if found.steps_differ:
        measured = ("measured", found.typical_measured_ns, "")
        replayed = ("replayed", found.typical_replayed_ns, "")
        yield times("median step", measured, replayed)
    if found.basis != RECORDED:
        basis = (found.basis, found.basis_ns, _basis_error(found))
        measured = ("measured", found.basis_measured_ns, "")
        yield times("predictions start from", basis, measured)
    yield Text(MEANING)
    yield from _steps(found, verbose=verbose)
    if verbose:
        yield Facts(graph_facts(found, said))
        yield Notes(found.notes)
        return
    (starts, off), *_ = graph_facts(found, said)
    yield Text(f"{starts} {off}")
    yield from recording_notes(found.notes)


def prediction(
    found: Prediction,
    *,
    verbose: bool = False,
    suggestion: WhatIfResult | None = None,
) -> Iterator[Block]:
    """Return the answer, what changes by cause, what the step waits for then and what to try next.

    With `verbose` follows where the step's time goes by phase and layer, before and after, and every note.
    """
    sides = found.breakdowns()
    after = found.typical_predicted_ns
    before = found.replay.settled.typical_ns
    usual = options_text(found)
    yield from map(Text, whole_recording(found.replay.graph.trace))
    yield from throughput_line(found.optimization, found)
    yield headline(found)
    yield from about_steps(found.replay)
    if usual:
        yield Text(usual, "with ")
    yield Text(likely_text(found))
    yield from recorded_step(found)
    if after is not None and found.replay.steps_differ:
        measured = ("measured", found.replay.basis_typical_measured_ns, "")
        predicted = ("predicted", after, speedup(before, after))
        yield times("median step", measured, ("replayed", before, ""), predicted)
    yield from memory_line(found.memory_answer)
    yield from code_of(found.code)
    if found.reason is None:
        yield breakdown(*sides) if verbose else cause_table(*sides)
        moved = moved_bound(*sides)
        yield Text(f"{bottleneck_text(found)}. {moved}".removesuffix(". "))
        yield from _next(suggestion)
    if verbose:
        facts = [("options", options_text(found, usual=True)), ("changed", edits_text(found))]
        facts[1:1] = [("kernels", rule) for rule in found.graph.facts.rules]
        shown = Facts([each for each in facts if each[1]])
        yield step_figures(found)
        yield shown
        yield Notes(found.notes)
        return
    # The bottleneck's line tells why a step does not move, that of memory why it is not known.
    of_memory = about_memory([found.memory])
    told = {*found.replay.notes, why_unmoved(found), f"{found.memory_answer.unsaid}.", *of_memory}
    own = [note for note in dict.fromkeys(found.notes) if note not in told]
    first = own if len(own) <= MOST_NOTES + 1 else own[:MOST_NOTES]
    for note in first:
        yield Text(note, "note: ")
    if more := len(own) - len(first):
        yield Text(f"{counted(more, 'more note')} with -v", aside=True)
    yield from memory_notes(of_memory)
    yield from recording_notes(found.replay.notes)


# The answer


def opening(first: Block, found: Replay) -> Iterator[Block]:
    """Return what an answer begins with: what part of the recording it is about, the headline, which step."""
    yield from map(Text, whole_recording(found.graph.trace))
    yield first
    yield from about_steps(found)


def headline(found: Prediction) -> Headline:
    """Return the answer in one line: the step before and after, and how many times faster, with its range."""
    said = "cannot be predicted from this trace"
    if found.predicted_ns is not None:
        said = answer_text(found)
    error = error_text(found.replay)
    return Headline(f"{found.optimization}: {said}; {error}")


def throughput_line(what: str, found: Changed) -> Iterator[Block]:
    """Return what a second of training covers before and after a change that alters what a step covers."""
    rate = found.throughput
    if rate is None or not found.predicted_ns:
        return
    said = f"{rate.gain:.2f}x the {rate.unit} per second"
    if rate.before_per_s is not None and rate.after_per_s is not None:
        rates = f"{per_s_text(rate.before_per_s)} -> {per_s_text(rate.after_per_s)}"
        said = f"{rates} {rate.unit} per second, {rate.gain:.2f}x"
    if found.speedup_low is not None and found.speedup_high is not None:
        more = rate.gain * found.predicted_ns / found.replayed_ns
        said += likely_gain(more * found.speedup_low, more * found.speedup_high)
    yield Headline(f"{what}: {said}")


def per_s_text(count: float) -> str:
    """Return a number of samples or tokens per second: `473.1`, `28,914`."""
    return f"{count:,.{0 if count >= 1000 else 1}f}"


def step_figures(found: Prediction) -> Figures:
    """Return the step as measured, replayed and predicted, and the speed-up, each with its range."""
    replay = found.replay
    before = found.replayed_ns
    how = "without a profiler" if replay.basis == UNPROFILED else _mean_of(replay)
    kept = replay.basis if replay.basis == ESTIMATED else "replayed"
    error = error_text(replay)
    recorded = times("step time", ("measured", found.measured_ns, how), (kept, before, error))
    after = [("predicted", "unknown", found.reason or "")]
    if found.predicted_ns is not None:
        interval = gains = ""
        low = found.speedup_low
        high = found.speedup_high
        if low is not None and high is not None:
            ends = range_text(found.predicted_low_ns or 0, found.predicted_high_ns or 0)
            interval = f"90% interval {ends}"
            gains = gain_range_text(low, high)
        after = [
            ("predicted", time_text(found.predicted_ns), interval),
            ("speedup", speedup_of(found), gains),
        ]
    return recorded._replace(figures=[*recorded.figures, *after])


def _mean_of(replay: Replay) -> str:
    said = f"mean of {counted(len(replay.steps), 'step')}"
    if replay.steps_differ:
        said += f", median {time_text(replay.typical_measured_ns)}"
    return said


def options_text(found: Prediction, *, usual: bool = False) -> str:
    """Return the options with their values, those at their defaults only if `usual`."""
    from daydream.transforms.compose import option_names, parse

    told = {name: value for name, value in found.options.items() if value is not None}
    if not usual:
        # A function that was given as it is has no file.
        with suppress(DaydreamError):
            for name, (_, option) in option_names(parse(found.optimization)).items():
                if name in told and told[name] == option.default:
                    del told[name]
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in told.items())


def likely_text(found: Prediction) -> str:
    """Return the range of the step and what it is made of, or why there is no prediction.

    With it how much of the step no change can move, where that is much.
    """
    held = "" if found.held is None else f". {found.held}"
    if found.reason is not None:
        return f"because {found.reason}{held}. The step takes {time_text(found.replayed_ns)} without the change."
    causes = found.uncertainty.words(found.simulated_ns)
    if "emulated" in found.replay.graph.recorded.metadata:  # its spread stands for how steps vary
        causes = causes.replace(WORDS["variation"], "emulation error")
    ends = range_text(found.predicted_low_ns or 0, found.predicted_high_ns or 0)
    return f"90% interval {ends}{f' ({causes})' if causes else ''}{held}"


def recorded_step(found: Prediction) -> Iterator[Text]:
    """Return the line about the recorded step before and after the change, where the answer is of another."""
    step = found.recorded
    if step is None or step.predicted_ns is None:
        return
    change = change_text(step.replayed_ns, step.predicted_ns)
    gain = speedup(step.replayed_ns, step.predicted_ns)
    error = f", replay error {percent(found.replay.error, signed=True)}"
    what = "with the profiler"
    if found.replay.start_up_ns:
        what = "with start-up, as recorded"
    elif found.basis == ESTIMATED:  # the headline ends with this step's error
        error = "; without it: estimated"
    yield Text(f"{what}: {change}, {gain}{error}")


def code_of(code: str | None, margin: int = 2) -> Iterator[Block]:
    """Return the line of a training script that makes a change, if there is one."""
    if code is not None:
        yield Code(code, margin)


def bottleneck_text(found: Prediction) -> str:
    """Return what the step waits for after the change, and whether the change moves that."""
    what, share = found.bound
    said = f"new bottleneck: {what.awaited}, {percent(share)} of the step"
    return f"{said}. This change does not move it" if why_unmoved(found) else said


def _next(suggestion: WhatIfResult | None) -> Iterator[Block]:
    if suggestion is None or suggestion.predicted_ns is None:
        return
    before_ns = suggestion.replayed_ns
    after_ns = suggestion.predicted_ns
    needs = f" [{suggestion.needs}]" if suggestion.needs else ""
    saved = f"another {time_text(before_ns - after_ns)}, a further {speedup(before_ns, after_ns)}{needs}"
    words = shlex.join(suggestion.command[2:])
    yield Text(f"{words} saves {saved}", "try next: ")
    yield from code_of(suggestion.code, 4)
    yield from needs_legend([suggestion.needs])


def needs_legend(needs: Sequence[str | None]) -> Iterator[Block]:
    """Return what the mark of another workload means, if any of these is it; the other marks say it themselves."""
    work = stages.NEEDS[stages.WORK]
    if work in needs:
        yield Text(OTHER_WORK, f"[{work}]: ", aside=True)


def edits_text(found: Prediction) -> str:
    """Return how many tasks were changed, inserted and removed."""
    numbers = {"changed": found.changed, "inserted": found.inserted, "removed": found.removed}
    parts = [f"{number:,} {what}" for what, number in numbers.items() if number]
    tasks = found.replay.graph.alive.sum()
    return f"of {tasks:,} tasks {listed(parts or ['none changed'])}"


# The replay


def replay_answer(found: Replay) -> str:
    """Return in one line how far the replayed step is from the measured one."""
    replayed = f"replayed {time_text(found.replayed_ns)} per step"
    error = f"error {percent(found.error, signed=True)}, worst step {percent(found.max_error)}"
    told = made_up(found.graph.recorded)
    measured = "recorded" if told else "measured"
    answer = f"{replayed}, {measured} {time_text(found.measured_ns)}: {error}"
    return f"{answer}; {told}" if told else answer


def replayed_figure(found: Replay) -> tuple[str, str, str]:
    """Return the step of the answers as a key figure, with its error and a steady step that differs."""
    steady = time_text(found.basis_ns)
    if found.basis != RECORDED:
        return found.basis, steady, error_text(found)
    told = time_text(found.replayed_ns)
    after = "" if told == steady else f", steady {steady}"
    return "replayed", told, f"error {percent(found.error, signed=True)}{after}"


def replay_figures(found: Replay) -> Figures:
    """Return the step as measured and replayed, and the step that predictions start from, as cards."""
    error = f"error {percent(found.error, signed=True)}, worst {percent(found.max_error)}"
    basis = None if found.basis == RECORDED else found.basis_ns
    return times(
        "step time",
        ("measured", found.measured_ns, _mean_of(found)),
        ("replayed", found.replayed_ns, error),
        (found.basis, basis, ", ".join(filter(None, [STARTS_FROM, _basis_error(found)]))),
    )


def _basis_error(found: Replay) -> str:
    trace = found.graph.recorded
    if told := made_up(trace):
        return (
            f"{told}, on {trace.metadata['fake_world']['cluster']}"
            if "fake_world" in trace.metadata
            else told
        )
    error = found.basis_error
    return "" if error is None else f"replay error {percent(error, signed=True)}"


def about_steps(found: Replay) -> Iterator[Block]:
    """Return why the mean step is far from the median, and which steps stand for all, where that is so."""
    trace = found.graph.trace
    read = None if trace is None else trace.metadata.get("typical_run")
    yield from [Text(said) for said in (_far_mean(found), read) if said]


def _far_mean(found: Replay) -> str:
    """Return why the mean step is far from the median, an empty text where it is not.

    `the step is the mean: 2 of 30 steps take 4.0x the median`.
    """
    median = found.typical_measured_ns
    mean = found.measured_ns
    if not median or abs(mean - median) <= FAR * median:
        return ""
    ratios = [step.measured_ns / median for step in found.steps]
    odd = [each for each in ratios if (each > APART if mean > median else each < 1 / APART)]
    said = f"steps take {min(ratios):.2f}x to {max(ratios):.2f}x"
    if odd:
        takes = f"{'takes' if len(odd) == 1 else 'take'} {fsum(odd) / len(odd):.1f}x"
        said = f"{len(odd):,} of {counted(len(ratios), 'step')} {takes}"
    return f"the step is the mean: {said} the median"


def _steps(found: Replay, *, verbose: bool) -> Iterator[Block]:
    """Return a row for each step, of many for the worst ones.

    Of many that all replay without a visible error none is the worst: that is a line, but for `verbose`.
    """
    steps = found.steps
    if len(steps) <= MOST_STEPS:
        yield steps_table(found, steps)
        return
    if not verbose and all(percent(step.error, signed=True) == percent(0.0) for step in steps):
        yield Text(f"each of the {len(steps)} steps replays with an error of {percent(0.0)}")
        return
    worst = sorted(steps, key=lambda step: -abs(step.error))[:WORST_STEPS]
    more = f"the {len(worst)} worst of {len(steps)} steps; --json has them all"
    yield steps_table(found, worst)._replace(more=more)


def steps_table(
    found: Replay,
    steps: Sequence[StepReplay],
    after: SteadyState | None = None,
) -> Table:
    """Return steps as measured and replayed and, with what comes `after` a change, predicted."""
    several = len({step.rank for step in found.steps}) > 1
    numbers = dict(zip(map(id, found.steps), found.recording.settled.step_times(0), strict=True))
    rows = []
    for step in steps:
        name = f"rank {step.rank} {step.name}" if several else step.name
        then = None if after is None else after.times.get((after.copy, numbers[id(step)]))
        rows.append(Row((name, step.measured_ns, step.replayed_ns, step.error, then)))
    columns = [
        Column("step"),
        Kind.TIME("measured", bar=True),
        Kind.TIME("replayed", bar=True),
        Kind.ERROR("error"),
        Kind.TIME("predicted", bar=True),
    ]
    return Table(columns, rows, max(step.measured_ns for step in steps))


def graph_facts(found: Replay, said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) for what the graph was made of; `said` is the replay's JSON object."""
    off = said["start_error_ns"]
    kernels = said["kernels"]
    waits = said["event_waits"]
    typical = time_text(off["p50"])
    rare = time_text(off["p95"])
    starts = f"within {typical} of the recorded start in the median, {rare} at the 95th percentile"
    lanes = f"{len(found.graph.lanes):,} threads and streams"
    rows = [
        ("kernels start" if kernels else "tasks start", starts),
        ("tasks", f"{said['tasks']:,} on {lanes}, {said['edges']:,} edges"),
    ]
    if kernels:
        rows.append(("kernels", f"{kernels:,}, {said['kernels_linked']:,} with their launch"))
    if sum(waits.values()):
        rows.append(("stream waits", ", ".join(f"{many:,} {how}" for how, many in waits.items())))
    if said["queue_depth"] is not None:
        learned = found.graph.facts.queue_learned
        why = "learned from the trace" if learned else "assumed: it never runs full in this trace"
        rows.append(("launch queue", f"{said['queue_depth']:,} launches deep ({why})"))
    if collectives := said["collectives"]:
        text = f"{len(collectives):,}"
        ranks = len(collectives[0]["ranks"])
        if ranks > 1:
            measured = time_text(max(each["measured_end_spread_ns"] for each in collectives))
            replayed = time_text(max(each["replayed_end_spread_ns"] for each in collectives))
            text += f" on {ranks} ranks; ends at most {measured} apart as measured, {replayed} as replayed"
        rows.append(("collectives", text))
    return rows
