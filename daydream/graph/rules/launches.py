"""Rule 3, launches that take long: what a call does before it submits its work.

The first launch of a kernel may load its module, a copy may pin its staging buffer:
the call lasts milliseconds and the device starts at its end, not at its start plus a
latency. That time is CPU work, so it is cut off in front of the call; kept as launch
latency it would outlive a faster CPU.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder
from daydream.graph.query.numbering import first_of
from daydream.graph.rules.queue import usual_costs

LONG_NS = 50_000
TIMES_USUAL = 4
STAGED_LATENCY_NS = 20_000  # from submission to the start of a small pageable copy, V100 and RTX 2080 Ti


def cut_long_calls(builder: GraphBuilder) -> None:
    """Cut the time before submission off calls that lasted long and whose work started at their end."""
    graph = builder.graph
    columns = graph.columns
    work = builder.tasks.launched()
    if builder.host_lanes:
        work = work[~np.isin(columns["lane"][work], list(builder.host_lanes))]
    first = first_of(columns["launch"][work], graph.size)
    calls = np.flatnonzero(first >= 0)
    first = first[calls]
    begun = builder.start_ns[work[first]]
    cost = usual_costs(builder, calls)[columns["name"][calls]]
    duration = columns["duration_ns"][calls]
    long = (duration > np.maximum(LONG_NS, TIMES_USUAL * cost)) & ~builder.waited[calls]
    long &= begun >= builder.start_ns[calls] + duration - 2 * cost - LONG_NS // 5
    before = np.where(long, duration - cost, 0)
    # A copy from pageable memory is staged by the CPU before its first piece leaves.
    staged = builder.waited[calls] & (begun - builder.start_ns[calls] > LONG_NS + STAGED_LATENCY_NS)
    staged &= builder.ended_before(work[first]) <= builder.start_ns[calls]
    before = np.where(staged, begun - builder.start_ns[calls] - STAGED_LATENCY_NS, before)
    calls, before = calls[long | staged], before[long | staged]
    if not len(calls):
        return
    kept = ("lane", "name", "op", "layer", "phase", "step", "row", "release_ns", "measured_start_ns")
    graph.add(
        len(calls), kind=0, duration_ns=before, order=columns["order"][calls] - 1,
        **{name: columns[name][calls] for name in kept},
    )  # fmt: skip
    builder.extend(columns["measured_start_ns"][calls] + before)
    columns["duration_ns"][calls] = np.where(
        builder.waited[calls], columns["duration_ns"][calls], columns["duration_ns"][calls] - before
    )
    columns["measured_start_ns"][calls] += before
    columns["release_ns"][calls] = 0
