"""Time that no change can move: what is held to the moment at which the recording saw it begin.

Threads that were at work when the recording began, and device work whose launch was not recorded, start when
they did. A step that follows others does not depend on it; where a single step was recorded, the
wait for such a start may stand on the chain of causes that makes the step as long as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.simulate.causes import PathCause
from daydream.simulate.path_causes import ns_by_cause

if TYPE_CHECKING:
    from daydream.simulate.steady import Settled

MUCH = 0.05  # of a step: more is said


def held_ns(settled: Settled) -> int:
    """Return how long a step waits for recorded starts, in ns on its chain of causes; mean over the steps."""
    causes = ns_by_cause(settled.timeline, settled.copy, list(settled.step_times()))
    return causes.get(PathCause.RECORDING, 0)


def held_text(held: int, step_ns: int) -> str | None:
    """Return the sentence about what cannot move; None if it is little."""
    if held <= MUCH * step_ns:
        return None
    return (
        f"{held / step_ns:.0%} of the step cannot move: it waits for work from before the recording, whose "
        "causes were not recorded"
    )
