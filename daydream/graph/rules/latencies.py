"""Rules 2 and 3, the small costs: launch latency and the start-up between back-to-back tasks.

A device task starts when all of its causes allow: its launch plus a latency, the
task before it on its stream plus a start-up cost, the events it waits for. The
recording shows only the cause that came last, so only that one's cost is measured
there; the others take the trace's median. Whatever a recorded start lies later
than its known causes by more than such a cost can be is a wait for something the
trace does not show: counted, kept, and said.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder
from daydream.graph.query.numbering import once

LARGEST_QUEUED_NS = 12_000  # launched this long before its stream came free, a task was waiting there
LARGEST_STARTUP_NS = 50_000  # back-to-back tasks are 1 to 2 us apart, copies and memsets up to 10
# Assumed where no task of the trace follows another back to back. Medians: A100 1,024 ns, RTX 3070 Ti
# 1,376 ns, V100 1 to 3 us (whole us); consecutive kernels on MI300X leave no space between them.
USUAL_STARTUP_NS = {"cuda": 1_000}
USUAL_LATENCY_NS = 8_000  # where no launch met an idle stream: A100 8 to 12 us, V100 10, MI300X 13 to 20
LEAST_SAMPLES = 3
LARGEST_LATENCY_NS = 200_000  # launches of an idle stream take 5 to 30 us, first uses more


def measure_latencies(builder: GraphBuilder, *, measured: bool = True) -> None:
    """Set launch latencies and start-up costs of all device tasks.

    Without `measured` every task gets the typical cost: what is known of a launch that
    was not recorded. Its replay error shows what the causes alone explain.
    """
    graph = builder.graph
    columns = graph.columns
    unexplained = []
    nothing_launched = not (columns["launch"] >= 0).any()
    runs = builder.tasks.streams()
    events = _event_ends(builder)
    for learning in (True, False):
        latencies, startups = [], []
        for _, tasks in runs:
            start = builder.start_ns[tasks]
            launch = columns["launch"][tasks].astype(np.intp)
            launched = np.where(launch >= 0, builder.start_ns[launch], -(2**60))
            before = np.append(-(2**60), builder.end_ns[tasks[:-1]])
            event = events[tasks]
            if learning:
                idle = (launch >= 0) & (launched >= before) & (event <= launched)
                latencies.append((start - launched)[idle])
                arrived = np.maximum(launched + LARGEST_QUEUED_NS, event + LARGEST_QUEUED_NS)
                startups.append((start - before)[(arrived <= before) & (launch >= 0)])
            else:
                unexplained.append(
                    _settle(
                        builder, tasks, start, launched, before, event,
                        measured=measured, nothing_launched=nothing_launched,
                    )
                )  # fmt: skip
        if learning:
            graph.facts.launch_latency_ns = _typical(latencies, LARGEST_LATENCY_NS, USUAL_LATENCY_NS)
            graph.facts.startup_ns = _typical(
                startups,
                LARGEST_STARTUP_NS,
                USUAL_STARTUP_NS.get(builder.trace.metadata.get("vendor", ""), 0),
            )
    if nothing_launched:  # each pause of the device has a cause that was not recorded
        unexplained = [_idle(builder, [tasks for _, tasks in runs])]
    late = np.concatenate(unexplained) if unexplained else np.empty(0, np.int64)
    if len(late):
        graph.facts.unexplained = len(late)
        graph.facts.unexplained_ns = int(late.sum())
    launched = builder.tasks.launched()
    if builder.host_lanes:
        launched = launched[~np.isin(columns["lane"][launched], list(builder.host_lanes))]
    calls = once(columns["launch"][launched], graph.size)
    graph.facts.launch_cost_ns = int(np.median(columns["duration_ns"][calls])) if len(calls) else 0


def _typical(samples: list[np.ndarray], largest: int, otherwise: int = 0) -> int:
    values = np.concatenate(samples) if samples else np.empty(0, np.int64)
    values = values[(values >= 0) & (values <= largest)]
    return int(np.median(values)) if len(values) >= LEAST_SAMPLES else otherwise


def _settle(
    builder: GraphBuilder,
    tasks: np.ndarray,
    start: np.ndarray,
    launched: np.ndarray,
    before: np.ndarray,
    event: np.ndarray,
    *,
    measured: bool,
    nothing_launched: bool,
) -> np.ndarray:
    """Give each task of a stream the costs its recorded start allows; return the waits left unexplained."""
    graph = builder.graph
    columns = graph.columns
    launched_here = columns["launch"][tasks] >= 0
    if not measured:
        columns["latency_ns"][tasks] = np.where(launched_here, graph.facts.launch_latency_ns, 0)
        columns["gap_ns"][tasks[:-1]] = graph.facts.startup_ns
        return np.empty(0, np.int64)
    latency = np.clip(start - launched, 0, graph.facts.launch_latency_ns)
    startup = np.clip(start - before, 0, graph.facts.startup_ns)
    by_launch, by_stream = launched + latency, before + startup
    known = np.maximum(np.maximum(by_launch, by_stream), event)
    rest = start - known
    last = np.where(by_launch >= np.maximum(by_stream, event), 0, np.where(by_stream >= event, 1, 2))
    last[~launched_here] = np.where(by_stream >= event, 1, 2)[~launched_here] if nothing_launched else 1
    latency = np.where((last == 0) & (rest > 0), latency + rest, latency)
    startup = np.where((last == 1) & (rest > 0), startup + rest, startup)
    builder.event_latency_ns[tasks] = np.where((last == 2) & (rest > 0), rest, 0)
    columns["latency_ns"][tasks] = np.where(launched_here, latency, 0)
    columns["gap_ns"][tasks[:-1]] = startup[1:]
    limit = np.where(last == 0, LARGEST_LATENCY_NS, LARGEST_STARTUP_NS)
    return rest[(rest > limit) & launched_here]


def _idle(builder: GraphBuilder, tasks: list[np.ndarray]) -> np.ndarray:
    """Return how long the device did nothing, where no stream had work, before tasks of covered steps."""
    every = np.concatenate(tasks) if tasks else np.empty(0, np.int64)
    every = every[np.argsort(builder.start_ns[every], kind="stable")]
    latest = np.maximum.accumulate(builder.end_ns[every])
    idle = builder.start_ns[every[1:]] - latest[:-1]
    covered = [number for number, step in enumerate(builder.graph.steps) if step.get("covered")]
    counts = np.isin(builder.graph.columns["step"][every[1:]], covered)
    return np.asarray(idle[counts & (idle > LARGEST_STARTUP_NS)])


def _event_ends(builder: GraphBuilder) -> np.ndarray:
    """Return, by task, when the work of other streams it waits for had ended; far past for none."""
    ends = np.full(builder.graph.size, -(2**60), np.int64)
    for target, source in builder.event_pairs + builder.matched:
        ends[target] = max(ends[target], builder.end_ns[source])
    return ends
