"""A replay in the user's cache: the graph, its plan and when each task starts, so that none is made again.

An entry is taken as it was written where its digest fits; it is worked out again where a part is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from daydream.costs.contention import known, measured_contention
from daydream.costs.contention_evidence import evidence_json, evidence_of
from daydream.costs.workload.calls import kept_work, work_contents, work_known
from daydream.errors import DaydreamError
from daydream.files.cache import Contents
from daydream.graph.cached import cached_graph, cached_plan, graph_contents, is_plain, plan_arrays
from daydream.simulate.steady_state import SteadyState, repeatable
from daydream.simulate.timeline import Timeline
from daydream.trace.cached_trace import trace_contents

if TYPE_CHECKING:
    import numpy as np

    from daydream.graph.graph import Graph
    from daydream.trace.cached_trace import CacheEntry
    from daydream.trace.trace import Trace

TIMES = ("corrected.duration_ns", "corrected.gap_ns")
START = "start_ns"  # the array of when each task of the plan starts
MISTAKES = (
    DaydreamError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError,
)  # fmt: skip


class Kept(NamedTuple):
    """What is kept of a replay; `steps` are name, rank, measured and replayed time in ns."""

    graph: Graph
    settled: SteadyState
    steps: list[tuple[str, int, int, int]]
    start_error_ns: dict[str, int]
    said: list[str]
    parts: dict[str, dict[str, int]]
    times: tuple[np.ndarray, np.ndarray] | None  # durations and gaps of the basis, in ns; None if as recorded
    basis: dict[str, Any]  # the fields of `Replay` that say which step the answers are about


def keep(replay: Kept, entry: CacheEntry) -> bool:
    """Keep the replay of an unchanged trace; return whether that was done."""
    with suppress(*MISTAKES):
        if replay.graph.trace is not None and is_plain(replay.graph):
            return entry.write(_contents(replay, replay.graph.trace))
    return False


def cached_replay(trace: Trace, entry: CacheEntry) -> Kept | None:
    """Return the replay of a trace that is kept in its entry; None if none is, or none that is right."""
    found = entry.read()
    if found is None:
        return None
    try:
        return _replay(trace, found.document["replay"], found)
    except MISTAKES:
        return None


def _contents(replay: Kept, trace: Trace) -> Contents:
    of_trace = trace_contents(trace)
    graph, arrays = graph_contents(replay.graph)
    settled, timeline = replay.settled, replay.settled.timeline
    families, work = work_contents(trace)
    arrays |= work
    if replay.times is not None:
        arrays |= dict(zip(TIMES, replay.times, strict=True))
    arrays |= plan_arrays(replay.graph, settled.passes, repeatable(replay.graph))
    arrays[START] = timeline.start_ns
    if (timeline.end_ns != timeline.start_ns + timeline.plan.duration_ns).any():
        raise ValueError("tasks end later than their work does")
    document = {
        "graph": graph,
        "passes": settled.passes,
        "repeats": [[rank, *steps] for rank, steps in timeline.repeats.items()],
        "times": [[*key, ns] for key, ns in settled.times.items()],
        "copy": settled.copy,
        "settled": settled.settled,
        "steps": [list(step) for step in replay.steps],
        "start_error_ns": replay.start_error_ns,
        "said": replay.said,
        "parts": replay.parts,
        "basis": replay.basis,
        "families": families,
        "contention": evidence_json(measured_contention(replay.graph)),
    }
    return Contents({**of_trace.document, "replay": document}, of_trace.arrays | arrays)


def _replay(trace: Trace, document: Mapping[str, Any], found: Contents) -> Kept:
    graph = cached_graph(trace, document["graph"], found.arrays)
    lowered = cached_plan(graph, document["passes"], repeatable(graph), found.arrays)
    start = found.arrays[START]
    repeats = {rank: (first, last) for rank, first, last in document["repeats"]}
    timeline = Timeline(graph, lowered, start, start + lowered.plan.duration_ns, repeats=repeats)
    times = {(copy, step): ns for copy, step, ns in document["times"]}
    kept = Kept(
        graph,
        SteadyState(timeline, times, document["copy"], settled=document["settled"]),
        [(name, rank, was, now) for name, rank, was, now in document["steps"]],
        document["start_error_ns"],
        document["said"],
        document["parts"],
        (found.arrays[TIMES[0]], found.arrays[TIMES[1]]) if TIMES[0] in found.arrays else None,
        document["basis"],
    )
    work_known[trace] = kept_work(document["families"], found.arrays)
    known[trace] = evidence_of(document["contention"])
    return kept
