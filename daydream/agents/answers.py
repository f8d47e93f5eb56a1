"""The answers that an agent gets: what `--json` prints, made small, with what would prove each wrong.

Times are in ns a step, a range is [low, high] of the 90 % interval. What is not known is None.
Names come from a trace, whoever wrote it: they are cut, and stripped of what is not printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from daydream.report.format import printable, shortened

Json: TypeAlias = Mapping[str, Any]
Range: TypeAlias = list[int] | None

LONGEST = 160  # characters of a name or a sentence of a trace
LONGEST_NOTE = 400
FEW, SEVERAL = 5, 10


@dataclass(frozen=True)
class Step:
    """The step as the profiler measured it and as the untouched simulation replays it."""

    measured_ns: int | None
    replayed_ns: int | None
    replay_error: float | None


@dataclass(frozen=True)
class Part:
    """A part of the step, a cause or a layer, and its time; of a comparison what it takes longer after."""

    name: str
    ns: int


@dataclass(frozen=True)
class Held:
    """What holds memory, and how much."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Info:
    """What a trace is of, and what it is good enough for: `yes`, `partly` or `no`, and why."""

    step: Step
    source: str | None
    devices: list[str]
    ranks: int
    steps_covered: int
    device_busy_share: float | None
    rows: int
    has_memory: bool
    good_for: dict[str, str]
    notes: list[str]
    falsified_by: str


@dataclass(frozen=True)
class Cost:
    """A cost that the step could do without, the what-if that removes it and the code that does it."""

    what: str
    cost_ns: int
    whatif: str | None
    options: dict[str, Any]
    predicted_ns: int | None
    range_ns: Range
    saving_ns: int | None
    code: str | None


@dataclass(frozen=True)
class Explained:
    """Why the step takes its time, and what would remove it; the largest first.

    Times are of the step that the answer is about, its `basis`.
    """

    step: Step
    basis: str
    verdict: str
    bound: str
    causes: list[Part]
    avoidable: list[Cost]
    notes: list[str]
    falsified_by: str


@dataclass(frozen=True)
class Candidate:
    """A change that applies: the step then, the code that makes it, and what it needs besides code.

    Times are of the step that the answer is about, its `basis`.
    """

    name: str
    predicted_ns: int | None
    range_ns: Range
    saving_ns: int | None
    speedup: float | None
    code: str | None
    needs: str | None
    waits_for: str | None
    reason: str | None


@dataclass(frozen=True)
class Ranked:
    """Every change that applies, by what it would save, the best pairs, and how many do not apply."""

    step: Step
    bound: str | None
    candidates: list[Candidate]
    pairs: list[Candidate]
    more: int
    left_out: int
    notes: list[str]
    falsified_by: str


@dataclass(frozen=True)
class MemoryChange:
    """The peak of memory before and after the change, in bytes; `fits` is None where no capacity is known."""

    before_bytes: int | None
    after_bytes: int | None
    range_bytes: Range
    capacity_bytes: int | None
    fits: bool | None


@dataclass(frozen=True)
class WhatIf:
    """What a change would give; `predicted_ns` is None where that cannot be told, and `reason` says why.

    Times are of the step that the answer is about, its `basis`.
    """

    optimization: str
    options: dict[str, Any]
    step: Step
    predicted_ns: int | None
    range_ns: Range
    speedup: float | None
    reason: str | None
    code: str | None
    causes_before: list[Part]
    causes_after: list[Part]
    memory: MemoryChange | None
    notes: list[str]
    falsified_by: str


@dataclass(frozen=True)
class DeviceMemory:
    """Who holds the peak on one device, in bytes."""

    device: str
    rank: int
    peak_bytes: int | None
    capacity_bytes: int | None
    fits: bool | None
    phase: str | None
    layer: str | None
    by_kind: list[Held]


@dataclass(frozen=True)
class Memory:
    """Who holds the peak of memory on each device, and whether it fits."""

    devices: list[DeviceMemory]
    notes: list[str]
    falsified_by: str


@dataclass(frozen=True)
class Side:
    """One of two steps that are compared; `range_ns` is where most of its steps lie."""

    name: str
    step_ns: int | None
    range_ns: Range
    steps: int


@dataclass(frozen=True)
class Compared:
    """Two steps side by side; with a what-if the first is the predicted one.

    `overlap` tells whether the ranges meet: two recordings then hardly differ, and a prediction holds.
    """

    before: Side
    after: Side
    speedup: float | None
    prediction_error: float | None
    overlap: bool | None
    largest_changes: list[Part]
    notes: list[str]
    falsified_by: str


@dataclass(frozen=True)
class Confirmed:
    """A change predicted from a run and then made in it: what came of it, timed without a profiler.

    `control` is the unchanged step against itself, 1 on a machine at rest; `inside_range` tells whether the
    confirmed step lies in the predicted range, None where there is no prediction.
    """

    optimization: str
    baseline_ns: int
    predicted_ns: int | None
    range_ns: Range
    confirmed_ns: int
    predicted_speedup: float | None
    confirmed_speedup: float
    error: float | None
    control: float
    inside_range: bool | None
    code: str | None
    notes: list[str]
    falsified_by: str


def said(text: Any, longest: int = LONGEST) -> str:
    """Return a text from a trace: on one line, cut, and with nothing that is not printed."""
    return shortened(printable(" ".join(str(text).split())), longest)


def known(text: Any) -> str | None:
    """Return a text from a trace, or None if there is none."""
    return None if text is None else said(text)


def notes(document: Json) -> list[str]:
    """Return the first notes of an answer."""
    found = [said(note, LONGEST_NOTE) for note in document.get("notes") or ()]
    more = len(found) - FEW
    return found if more <= 0 else [*found[:FEW], f"{more} more: `daydream` with -v shows them"]


def step(document: Json) -> Step:
    """Return the step that an answer is about."""
    error = rounded(document.get("replay_error"))
    return Step(document.get("measured_ns"), document.get("replayed_ns"), error)


def interval(document: Json, low: str = "predicted_low_ns", high: str = "predicted_high_ns") -> Range:
    """Return the range of a prediction, None if there is none."""
    ends = document.get(low), document.get(high)
    return None if None in ends else [int(end) for end in ends if end is not None]


def largest(parts: Mapping[str, int] | None, most: int = FEW) -> list[tuple[str, int]]:
    """Return the largest parts of a step, names and amounts, the largest first."""
    ordered = sorted((parts or {}).items(), key=lambda part: (-abs(part[1]), part[0]))
    return [(said(name), amount) for name, amount in ordered[:most]]


def rounded(number: float | None) -> float | None:
    """Return a ratio with the digits that say something."""
    return None if number is None else round(number, 4)


def milliseconds(range_ns: Sequence[float]) -> str:
    """Return a range as it is said in a sentence: `7.36 to 10.31 ms`."""
    low, high = range_ns
    return f"{low / 1e6:.4g} to {high / 1e6:.4g} ms"
