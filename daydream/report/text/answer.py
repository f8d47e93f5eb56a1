"""The answer of a what-if: one line, what changes, what the step waits for then, and what to try next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.predict.basis import ESTIMATED, whole_recording
from daydream.predict.notes import why_unmoved
from daydream.report.text.breakdown import HIDDEN, REST, Parts, breakdown_table, shows, sums
from daydream.report.text.layout import (
    MARGIN,
    Block,
    Headline,
    Words,
    printable,
)
from daydream.report.text.numbers import (
    about_steps,
    answer_text,
    change_text,
    count,
    error_text,
    percent,
    range_text,
    scale,
    speedup,
    time_text,
)
from daydream.report.text.peak_memory import memory_notes, recording_notes
from daydream.simulate.critical_path import PathCause

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.suggest import WhatIfResult

WAITS_FOR = "what a step waits for"
MOST_CAUSES, FEWEST_CAUSES = 8, 2
MOST_DOUBTS, FEWEST_DOUBTS = 3, 1  # causes of a range that are named
AT_LEAST = 3  # causes of a step that are shown, changed or not, where there is room


def headline(comparison: Prediction) -> Headline:
    """Return the answer in one line: the step before and after, and how many times faster, with its range."""
    name = printable(comparison.optimization)
    error = error_text(comparison.replay_error, comparison.replay.error)
    if comparison.predicted_ns is None:
        return Headline(f"{name}: cannot be predicted from this trace; {error}")
    return Headline(f"{name}: {answer_text(comparison)}; {error}")


def options_words(comparison: Prediction) -> list[Block]:
    """Return the options that are not at their defaults."""
    from daydream.errors import DaydreamError
    from daydream.transforms.compose import option_names, parse

    try:
        named = option_names(parse(comparison.optimization))
    except DaydreamError:  # a function that was given as it is, and has no file
        named = {}
    usual = {name: option.default for name, (_, option) in named.items()}
    given = [
        f"{name.replace('_', '-')} {printable(str(value))}"
        for name, value in comparison.options.items()
        if value is not None and (name not in usual or value != usual[name])
    ]
    return [Words(f"with {', '.join(given)}", MARGIN, 2 * MARGIN)] if given else []


def range_words(comparison: Prediction, most_causes: int = MOST_DOUBTS) -> list[Block]:
    """Return the range as times and what it is made of, or why there is no prediction, wrapped.

    With it the recorded step, where the headline is about another one, and how much no change can move.
    """
    held = "" if comparison.held is None else f". {comparison.held}"
    if comparison.predicted_ns is None:
        now = f"The step takes {time_text(comparison.replayed_ns)} without the change"
        return [Words(f"because {printable(comparison.reason or '')}{held}. {now}.")]
    causes = comparison.uncertainty.words(comparison.simulated_ns, most_causes)
    made_of = f" ({causes})" if causes else ""
    ends = range_text(comparison.predicted_low_ns or 0, comparison.predicted_high_ns or 0)
    blocks: list[Block] = [Words(f"90 % interval {ends}{made_of}{held}")]
    return blocks + [Words(line) for line in recorded_step(comparison)]


def recorded_step(comparison: Prediction) -> list[str]:
    """Return the line about the recorded step before and after the change, where the answer is of another."""
    step = comparison.recorded
    if step is None or step.predicted_ns is None:
        return []
    change = change_text(step.replayed_ns, step.predicted_ns)
    times = speedup(step.replayed_ns, step.predicted_ns)
    error = percent(comparison.replay.error, signed=True)
    if comparison.replay.start_up_ns:
        return [f"with start-up, as recorded: {change}, {times}, replay error {error}"]
    if comparison.basis == ESTIMATED:  # the headline ends with this step's error
        return [f"with the profiler: {change}, {times}; without it: estimated"]
    return [f"with the profiler: {change}, {times}, replay error {error}"]


def code_words(code: str | None, margin: str = MARGIN) -> list[Block]:
    """Return the line of a training script that makes a change."""
    return [] if code is None else [Words(f"in code: {code}", margin, margin + MARGIN)]


def change_rows(before: Parts, after: Parts, most: int) -> list[list[str]]:
    """Return what changes of the step by cause, its head first: the largest changes, and all else as one row.

    Where little changes the largest causes are shown, too: they are what the step is made of.
    """
    sides = before["by_cause"], after["by_cause"]
    whole = sum(sides[0].values()), sum(sides[1].values())
    unit, size, digits = scale(max(whole))

    def row(name: str, old: int, new: int) -> list[str]:
        more = f"{(new - old) / size:+,.{digits}f}"
        changed = bool(float(more.replace(",", "")))
        return [name, f"{old / size:,.{digits}f}", f"{new / size:,.{digits}f}", more if changed else more[1:]]

    found = [
        (name, sides[0].get(name, 0), sides[1].get(name, 0)) for name in dict.fromkeys([*sides[0], *sides[1]])
    ]
    found.sort(key=lambda each: (-abs(each[2] - each[1]), -max(each[1:])))
    changed = [each for each in found if abs(each[2] - each[1]) >= HIDDEN * max(whole)]
    large = sorted(found, key=lambda each: -max(each[1:]))
    few = max(AT_LEAST - len(changed), 0)
    shown = (changed + [each for each in large if each not in changed][:few])[:most]
    others = [each for each in found if each not in shown]
    small = sums(others, len(sides))
    rows = [row(MARGIN + PathCause(name).explained, *ns) for name, *ns in shown]
    rows += [row(MARGIN + REST, *small)] if shows((REST, *small), max(whole)) else []
    return [[f"{WAITS_FOR}, {unit}", "before", "after", "change"], *rows, row("the step", *whole)]


def tables(before: Parts, after: Parts) -> list[list[Block]]:
    """Return what changes by cause, the longest table first."""
    lengths = range(MOST_CAUSES, FEWEST_CAUSES - 1, -1)
    return [["", breakdown_table(change_rows(before, after, most))] for most in lengths]


def bottleneck_text(comparison: Prediction) -> str:
    """Return what the step waits for after the change, and whether the change moves that."""
    what, share = comparison.bound
    said = f"bottleneck then: {what.awaited}, {percent(share)} of the step"
    return f"{said}. This change does not move it" if why_unmoved(comparison) else said


def answer_lines(comparison: Prediction) -> list[str]:
    """Return the answer as the first lines of a page: the headline, the line of code, the bottleneck."""
    return [
        str(headline(comparison)),
        *whole_recording(comparison.replay.graph.trace),
        *about_steps(comparison.replay),
        *([f"in code: {comparison.code}"] if comparison.code else []),
        *([bottleneck_text(comparison)] if comparison.reason is None else []),
    ]


def bottleneck(comparison: Prediction, moved: str, suggestion: WhatIfResult | None) -> list[Block]:
    """Return what the step waits for after the change, and what to try next, with its line of code."""
    said = bottleneck_text(comparison)
    blocks: list[Block] = ["", Words(f"{said}. {moved}" if moved else said)]
    if suggestion is None or suggestion.predicted_ns is None:
        return blocks
    before_ns, after_ns = suggestion.replayed_ns, suggestion.predicted_ns
    saved = f"{time_text(before_ns - after_ns)} more, {speedup(before_ns, after_ns)}"
    saved += f" [{suggestion.needs}]" if suggestion.needs else ""
    words = printable(shlex.join(suggestion.command[2:]))
    blocks.append(Words(f"try next: {words} saves {saved}", MARGIN, 2 * MARGIN))
    from daydream.report.text.ranking import needs_legend

    return [*blocks, *code_words(suggestion.code, 2 * MARGIN), *needs_legend([suggestion.needs])]


def own_notes(comparison: Prediction) -> list[str]:
    """Return the notes about this prediction that no other line of the screen tells."""
    # The bottleneck's line tells why a step does not move, that of memory why it is not known.
    memory, unsaid = comparison.memory, f"{comparison.memory_answer.unsaid}."
    of_recording = () if memory is None else memory.recording_notes
    told = {
        *comparison.replay.notes,
        *of_recording,
        why_unmoved(comparison),
        unsaid,
    }
    return [printable(note) for note in dict.fromkeys(comparison.notes) if note not in told]


def short_notes(comparison: Prediction, own: Sequence[str], most: int) -> list[Block]:
    """Return the first of its own notes, and how many others there are, also about the recording."""
    what = "more note" if most else "note"
    more = [f"{count(len(own) - most, what)} with -v"] if len(own) > most else []
    of_memory = () if comparison.memory is None else comparison.memory.recording_notes
    counted = [*memory_notes(of_memory), *recording_notes(comparison.replay.notes)]
    others = ", ".join([*more, *counted])
    blocks: list[Block] = [
        Words(note, f"{MARGIN}note: ", MARGIN + " " * len("note: ")) for note in own[:most]
    ]
    return [*blocks, *([Words(others)] if others else [])]
