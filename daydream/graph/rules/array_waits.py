"""Rule 4 for calls that wait for arrays: JAX's `block_until_ready`, and what copies an array to the host.

Such a call returns when its arrays are computed, which may be before the last work that was launched. Which
task computes them was not recorded: it is the last one, launched before the call, that had ended as the call
returned. Where all had ended, the call waited for all.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import ALL_LANES
from daydream.graph.tables import CPU
from daydream.lazy import regex

Waits = list[
    tuple[int, int, int, int]
]  # call, lane waited for, when that had ended, program point (-1: the call)

ARRAY_WAIT = regex(r"^(block_until_ready|_value)$")
SKEW_NS = 5_000  # a call may seem to return this much before the work that it waited for


def array_waits(builder: GraphBuilder) -> Waits:
    """Return what each call that waits for arrays waited for: a task, or all that was launched before it."""
    columns = builder.graph.columns
    calls = np.flatnonzero(builder.named(ARRAY_WAIT.search))
    calls = calls[columns["kind"][calls] == CPU]
    if not len(calls):
        return []
    ranks = np.array([lane.rank for lane in builder.graph.lanes])[columns["lane"]]
    waits = []
    for call in calls.tolist():
        work = (columns["kind"] != CPU) & (ranks == ranks[call]) & (columns["order"] < columns["order"][call])
        tasks = np.flatnonzero(work)
        done = builder.end_ns[tasks]
        ended = done <= int(builder.end_ns[call]) + SKEW_NS
        if not ended.any():
            builder.graph.facts.unresolved_syncs += 1
        elif ended.all():
            waits.append((call, ALL_LANES, int(done.max()), -1))
        else:
            last = int(tasks[ended][np.argmax(done[ended])])
            waits.append((call, int(columns["lane"][last]), int(builder.end_ns[last]), last))
    return waits
