"""How figures and names are written: times with their unit, shares, ratios, counts. ASCII only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.lazy import regex
from daydream.results import Predicted
from daydream.trace.recorded_time import made_up

if TYPE_CHECKING:
    from daydream.predict.replay import Replay

INSTANCE = regex(r"(?<![^._])\d+(?=\.|$)")  # the number of a block: h.3.mlp, ViTLayer_3.Linear_17


def time_text(ns: float) -> str:
    """Return a time with four digits or so and its unit: `222.4 ms`, `7.00 us`."""
    unit, size, _ = scale(ns)
    return f"{number(ns / size)} {unit}"


def number(value: float) -> str:
    """Return a figure with four digits or so and thousands separators."""
    return f"{value:,.{_digits(value)}f}" if value else "0"


def _digits(value: float) -> int:
    return 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3


def range_text(low_ns: float, high_ns: float) -> str:
    """Return a range with its unit once: `120.1 to 130.3 ms`."""
    unit, size, _ = scale(high_ns)
    return f"{number(low_ns / size)} to {number(high_ns / size)} {unit}"


def change_text(before_ns: float, after_ns: float) -> str:
    """Return a time before and after a change, its unit once: `16.65 -> 8.82 ms`."""
    unit, size, digits = scale(max(before_ns, after_ns))
    small = after_ns < before_ns / 10  # as many digits would tell little of it
    after = number(after_ns / size) if small else f"{after_ns / size:,.{digits}f}"
    return f"{before_ns / size:,.{digits}f} -> {after} {unit}"


def gain_range_text(before_ns: float, low_ns: float, high_ns: float) -> str:
    """Return how many times faster a step gets that then takes this range: `1.49 to 2.58x`."""
    if high_ns <= 0:
        return ""
    least = f"{before_ns / high_ns:,.2f}"
    return f"{least} to {before_ns / low_ns:,.2f}x" if low_ns > 0 else f"{least}x or more"


def likely_gain(before_ns: float, low_ns: float, high_ns: float) -> str:
    """Return that range in brackets, behind a space: ` (90% interval 1.49 to 2.58x)`.

    One on both sides of 1x leaves undecided whether there is a gain: ` (may help or hurt: 0.94 to 1.07x)`.
    """
    gain = gain_range_text(before_ns, low_ns, high_ns)
    undecided = round(before_ns / max(high_ns, 1), 2) < 1 and (
        low_ns <= 0 or round(before_ns / low_ns, 2) > 1
    )
    return f" ({'may help or hurt:' if undecided else '90% interval'} {gain})" if gain else ""


def percent(share: float, *, signed: bool = False) -> str:
    """Return a share in percent: `0.70%`, `12.3%`."""
    value = 100 * share
    digits = 2 if abs(value) < 10 else 1
    if abs(value) < 0.5 * 10**-digits:
        return f"{0:.{digits}f}%"
    return f"{value:{'+' if signed else ''},.{digits}f}%"


def scale(step_ns: float) -> tuple[str, int, int]:
    """Return the unit of a table about a step, its size in ns, and how many digits its times get."""
    unit, size = ("ms", 1_000_000) if abs(step_ns) >= 1e6 else ("us", 1_000)
    return unit, size, _digits(step_ns / size)


def speedup(before_ns: float, after_ns: float | None) -> str:
    """Return how many times faster, that nothing is left, or that it is unknown."""
    if after_ns is None:
        return "unknown"
    return f"{before_ns / after_ns:,.2f}x" if after_ns else "nothing is left of the step"


def answer_text(answer: Predicted) -> str:
    """Return the step of an answer before and after its change, as `step_change_text` does."""
    return step_change_text(
        answer.replayed_ns, answer.predicted_ns, answer.predicted_low_ns, answer.predicted_high_ns
    )


def speedup_of(answer: Predicted) -> str:
    """Return how many times faster the step of an answer is, a dash if nothing is left of it."""
    if answer.predicted_ns is None:
        return "unknown"
    return speedup(answer.replayed_ns, answer.predicted_ns) if answer.predicted_ns else "-"


def error_text(replay: Replay) -> str:
    """Return the replay error of an answer's step; where that step is estimated that of the recorded one.

    And which rank of a fake world was recorded.
    """
    error = replay.error if replay.basis_error is None else replay.basis_error
    told = f"replay error {percent(error, signed=True)}"
    return ", ".join(filter(None, [told, made_up(replay.graph.recorded)]))


def step_change_text(
    before_ns: float,
    after_ns: float | None,
    low_ns: float | None = None,
    high_ns: float | None = None,
) -> str:
    """Return a step before and after a change, and how many times faster: `16.65 -> 8.82 ms per step, 1.89x`.

    With the range of the step after it follows that of the speed-up: `(90% interval 1.49 to 2.58x)`.
    """
    if after_ns is None:
        return f"{time_text(before_ns)} per step, unknown with the change"
    told = f"{change_text(before_ns, after_ns)} per step, {speedup(before_ns, after_ns)}"
    return (
        told
        if low_ns is None or high_ns is None
        else told + likely_gain(before_ns, low_ns, high_ns)
    )


def listed(parts: Sequence[str]) -> str:
    """Return a list in words: `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def printable(text: str) -> str:
    """Return a name from a trace without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def shortened(text: str, width: int) -> str:
    """Return a text cut to a width, with dots where it was cut."""
    return text if len(text) <= width else text[: width - 3] + "..."


def tail(text: str, width: int) -> str:
    """Return a path cut to a width: its end says more than its beginning."""
    return text if len(text) <= width else "..." + text[3 - width :]


def layer_name(layer: str) -> str:
    """Return a layer's name, the same for all blocks of a stack: `h.*.mlp.fc`."""
    return INSTANCE.sub("*", layer)
