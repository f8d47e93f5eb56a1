"""A replay in the user's cache: the graph, its plan and when each task starts, so that none is made again.

What is read is checked as a trace is, and worked out again where anything is odd.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from daydream.costs.contention import known, measured_contention
from daydream.costs.contention_evidence import evidence_json, evidence_of
from daydream.costs.workload.calls import work_known
from daydream.costs.workload.kept_work import kept_work, work_contents
from daydream.errors import DaydreamError
from daydream.files.cache_file import Contents, text_of, whole_of
from daydream.graph.cached_graph import INT64, cached_graph, graph_contents, is_plain, need, need_range
from daydream.graph.cached_plan import cached_plan, plan_arrays
from daydream.graph.tables import LONGEST_NS
from daydream.simulate.steady import Settled, repeatable
from daydream.simulate.timeline import Timeline
from daydream.trace.cached_trace import trace_contents

if TYPE_CHECKING:
    import numpy as np

    from daydream.graph.graph import Graph
    from daydream.trace.cached_trace import CacheEntry
    from daydream.trace.trace import Trace

TIMES = ("corrected.duration_ns", "corrected.gap_ns")
START = "start_ns"  # the array of when each task of the plan starts
LATEST_NS = 2**62
MISTAKES = (
    DaydreamError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, MemoryError,
)  # fmt: skip


class Kept(NamedTuple):
    """What is kept of a replay; `steps` are name, rank, measured and replayed time in ns."""

    graph: Graph
    settled: Settled
    steps: list[tuple[str, int, int, int]]
    start_error_ns: dict[str, int]
    said: list[str]
    parts: dict[str, dict[str, int]]
    times: tuple[np.ndarray, np.ndarray] | None  # durations and gaps without what recording cost, in ns


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
        "families": families,
        "contention": evidence_json(measured_contention(replay.graph)),
    }
    return Contents({**of_trace.document, "replay": document}, of_trace.arrays | arrays)


def _replay(trace: Trace, document: Mapping[str, Any], found: Contents) -> Kept:
    graph = cached_graph(trace, document["graph"], found.arrays)
    passes = whole_of(document["passes"])
    lowered = cached_plan(graph, passes, repeatable(graph), found.arrays)
    start = found.arrays[START]
    if start.shape != lowered.task.shape or start.dtype != lowered.plan.duration_ns.dtype:
        raise ValueError("there is no start for each task")
    need_range(start, 0, LATEST_NS)
    repeats = {whole_of(rank): (whole_of(first), whole_of(last)) for rank, first, last in document["repeats"]}
    timeline = Timeline(graph, lowered, start, start + lowered.plan.duration_ns, repeats=repeats)
    work, evidence = kept_work(trace, document["families"], found.arrays), evidence_of(document["contention"])
    kept = Kept(
        graph,
        _settled(timeline, document, passes),
        [
            (text_of(name), whole_of(rank), whole_of(was), whole_of(now))
            for name, rank, was, now in document["steps"]
        ],
        {name: whole_of(document["start_error_ns"][name]) for name in ("p50", "p95")},
        [text_of(each) for each in document["said"]],
        {
            text_of(key): {text_of(name): whole_of(ns) for name, ns in parts.items()}
            for key, parts in document["parts"].items()
        },
        _times(graph, found.arrays),
    )
    work_known[trace], known[trace] = work, evidence  # all of it is right: none is worked out again
    return kept


def _times(graph: Graph, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    if TIMES[0] not in arrays:
        return None
    duration, gap = (arrays[name] for name in TIMES)
    columns = {"duration_ns": duration, "gap_ns": gap, "order": graph.columns["order"]}
    need(columns, dict.fromkeys(columns, INT64))
    for values in (duration, gap):
        need_range(values, 0, LONGEST_NS)
    return duration, gap


def _settled(timeline: Timeline, document: Mapping[str, Any], passes: int) -> Settled:
    times = {(whole_of(copy), whole_of(step)): whole_of(ns) for copy, step, ns in document["times"]}
    steps, last = len(timeline.graph.steps), whole_of(document["copy"])
    if not all(0 <= copy < passes and 0 <= step < steps for copy, step in [*times, (last, 0)]):
        raise ValueError("a step that is not there")
    if type(document["settled"]) is not bool:
        raise TypeError("a yes or no was needed")
    return Settled(timeline, times, last, settled=document["settled"])
