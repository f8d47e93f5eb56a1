"""Where a step's time goes, as reports show it: by cause, by phase, by layer, and what runs meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from daydream.explanation.beside import busy_ns, communication, launching, waits
from daydream.explanation.causes import trace_back
from daydream.graph.plan import Cause
from daydream.simulate.causes import CAUSES, by_bound
from daydream.simulate.timeline import per_step

if TYPE_CHECKING:
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.simulate.timeline import Timeline

Parts: TypeAlias = Mapping[str, Mapping[str, int]]
IDLE = "device idle"
SYNC_WAIT = "CPU waits for the device"
QUEUE_WAIT = "CPU waits in launch queue"
HIDDEN = "hidden communication"


def parts_of(timeline: Timeline, copy: int, steps: Collection[int]) -> dict[str, dict[str, int]]:
    """Return where the time of some steps goes: ns a step, by cause, bound, phase and layer.

    Each of these adds up to the mean of the steps. `by_cause` has the keys of `PathCause`, `by_bound` those
    of `Bound`.

    `beside` is what goes on meanwhile and adds up to nothing: the device's idle time, CPU calls that
    stand blocked, communication that something hides. It holds no zeros, but all that applies.
    """
    if not steps:  # a change has left them no work
        return {"by_cause": {}, "by_bound": {}, "by_phase": {}, "by_layer": {}, "beside": {}}
    chain = trace_back(timeline, copy, list(steps))
    total = np.zeros(len(CAUSES), np.int64)
    np.add.at(total, chain.cause, chain.ns)
    by_cause = per_step(
        {CAUSES[code]: int(total[code]) for code in np.argsort(-total, kind="stable")}, len(steps)
    )
    busy, calls, transfers = busy_ns(chain), launching(chain), communication(chain)
    beside = {
        IDLE: 0 if busy is None else round(chain.step_ns - busy),
        SYNC_WAIT: waits(chain, Cause.SYNC).per_step(),
        QUEUE_WAIT: 0 if calls is None else calls.queue_wait_ns,
        HIDDEN: 0 if transfers is None else transfers.hidden_ns,
    }
    return {
        "by_cause": {cause.value: ns for cause, ns in by_cause.items()},
        "by_bound": {bound.value: ns for bound, ns in by_bound(by_cause).items()},
        "by_phase": timeline.breakdown(copy, *steps)["by_phase"],
        "by_layer": timeline.by_layer(copy, *steps),
        "beside": {name: ns for name, ns in beside.items() if ns > 0},
    }


def parts_of_replay(replay: Replay) -> dict[str, dict[str, int]]:
    """Return the parts of a step as it replays, the mean over the steps; they are kept with the replay."""
    if replay.parts is None:
        replay.parts = parts_of(replay.timeline, replay.settled.copy, replay.settled.step_times())
    return {key: dict(parts) for key, parts in replay.parts.items()}


def parts_of_change(comparison: Prediction) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the parts of a step before and after a change, the mean over the steps."""
    after = comparison.after
    return parts_of_replay(comparison.replay), parts_of(after.timeline, after.copy, after.step_times())


def parts_json(parts: Parts) -> dict[str, Mapping[str, int]]:
    """Return the parts of a step as `--json` prints them."""
    return {
        "ns_by_cause": parts["by_cause"],
        "ns_by_bound": parts["by_bound"],
        **{key: parts[key] for key in ("by_phase", "by_layer", "beside")},
    }
