"""Where one step's time goes, as reports show it: by cause, by phase, by layer, and what runs beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from daydream.explanation.beside import busy_ns, communication, launching, waits
from daydream.explanation.causes import NAMES, trace_back
from daydream.graph.plan import Cause

if TYPE_CHECKING:
    from daydream.comparison import Comparison
    from daydream.simulate.replay import Replay
    from daydream.simulate.timeline import Timeline

Parts: TypeAlias = Mapping[str, Mapping[str, int]]
IDLE = "device idle"
SYNC_WAIT = "CPU waits for the device"
QUEUE_WAIT = "CPU waits in launch queue"
HIDDEN = "hidden communication"


def parts_of(timeline: Timeline, copy: int, step: int) -> dict[str, dict[str, int]]:
    """Return a step's time in ns, `by_cause`, `by_phase` and `by_layer`, each of which adds up to the step.

    `beside` is what goes on meanwhile and adds up to nothing: the device's idle time, CPU calls that
    stand blocked, communication that something hides. It holds no zeros, but all that applies.
    """
    chain = trace_back(timeline, [(copy, step)])
    total = np.bincount(chain.cause, weights=chain.ns, minlength=len(NAMES))
    by_cause = {NAMES[code]: round(total[code]) for code in np.argsort(-total, kind="stable") if total[code]}
    busy, calls, transfers = busy_ns(chain), launching(chain), communication(chain)
    beside = {
        IDLE: 0 if busy is None else round(chain.step_ns - busy),
        SYNC_WAIT: waits(chain, Cause.SYNC).per_step(),
        QUEUE_WAIT: 0 if calls is None else calls.queue_wait_ns,
        HIDDEN: 0 if transfers is None else transfers.hidden_ns,
    }
    return {
        "by_cause": by_cause,
        "by_phase": timeline.breakdown(copy, step)["by_phase"],
        "by_layer": timeline.by_layer(copy, step),
        "beside": {name: ns for name, ns in beside.items() if ns > 0},
    }


def parts_of_replay(replay: Replay) -> dict[str, dict[str, int]]:
    """Return the parts of a typical step as it replays."""
    step, _ = replay.settled.typical()
    return parts_of(replay.timeline, replay.settled.copy, step)


def parts_of_change(comparison: Comparison) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the parts of one typical step before and after a change."""
    before, after = comparison.shown_steps()
    return (
        parts_of(comparison.replay.timeline, comparison.replay.settled.copy, before),
        parts_of(comparison.timeline, comparison.after.copy, after),
    )
