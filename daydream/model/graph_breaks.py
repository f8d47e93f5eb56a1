"""Graph breaks of compiled code: where the program falls back to Python between compiled graphs.

One call of a compiled function is a range that the profiler records. Where Dynamo breaks the graph, it
holds several calls of compiled graphs, and between them guards, Python and what Dynamo left uncompiled.
`daydream collect` keeps where and why each compiled frame breaks, under the name of its range.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from msgspec import Struct

from daydream.arrays import take
from daydream.costs.workload.calls import of_rows
from daydream.graph.calls import enclosing
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.model.captured import DISPATCH_NS
from daydream.text import counted
from daydream.trace.trace import Trace

REGION = regex(r"Torch-Compiled Region: (\S+)")
PIECE = "CompiledFunction"  # one compiled graph, with what wraps it
PIECE_BACKWARD = r"^CompiledFunctionBackward$"
GRAPH = r"^## Call CompiledFxGraph"
MOST_SAID = 5  # sentences of a kind
UNKNOWN_BREAK = "a graph break, or code that Dynamo left uncompiled"


class GraphBreak(Struct, frozen=True, eq=False):
    """Graph breaks at one place of the program.

    Attributes:
        source: the line, `train.py(12): forward`; None where it was not recorded.
        reason: why, in the compiler's words.
        count: how many of them a step has.
        tasks: the CPU work between the compiled graphs, operators aside.
        ns: its time and the untraced time behind it, ns per step.
    """

    source: str | None
    reason: str
    count: float
    tasks: Selection
    ns: int


class _Calls(Struct, frozen=True, eq=False):
    """Calls of compiled functions: what of them is no calculation, and which call and break it belongs to."""

    tasks: Selection  # forward: overhead in calls with several compiled graphs
    call: np.ndarray  # of each task, the row of the outermost call
    key: np.ndarray  # of each task, the region of its break, "" unknown; None outside of all graphs
    counts: dict[str, int]  # region -> how many breaks the trace has
    pieces: dict[int, int]  # row of a call -> how many compiled graphs it ran


def breaks_of(graph: Graph) -> list[GraphBreak]:
    """Return the graph breaks of the steps, the costliest first; empty where no compiled call has any."""
    calls = _calls(graph)
    if calls is None:
        return []
    steps = max(len(calls.tasks.group_by("step")), 1)
    known = _reasons(graph.recorded)
    found = []
    for region, count in calls.counts.items():
        mine = calls.tasks.of(calls.tasks.ids[calls.key == region], "work between compiled graphs")
        ns = mine.total("duration_ns") + mine.total("gap_ns")
        source, reason = known.get(region, (None, UNKNOWN_BREAK))
        found.append(GraphBreak(source, reason, count / steps, mine, round(ns / steps)))
    return sorted(found, key=lambda one: (-one.ns, one.source or ""))


def remove_breaks(graph: Graph) -> str:
    """Make one compiled graph of each call that has several; return a sentence on it.

    What wraps the graphs (guards, Python, the compiler's wrappers, an autograd node each) is there once
    instead of once a graph. The graphs' own kernels and the operators that ran uncompiled stay as they are.
    """
    calls = _calls(graph)
    assert calls is not None  # noqa: S101 - the caller asked for breaks before
    left = 1 / np.array([calls.pieces[row] for row in calls.call.tolist()])
    before = _shrink(calls.tasks, left)
    many = sum(calls.pieces.values())
    several = len(calls.pieces)
    backward = _overhead(graph.select(kind="cpu").where(within=PIECE_BACKWARD))
    steps = np.unique(calls.tasks.step)
    backward = backward.where(lambda _: np.isin(backward.step, steps))
    before += _shrink(backward, np.full(len(backward), several / many))
    per_step = before / max(len(steps), 1) / 1e6
    return (
        f"Without graph breaks {many / max(len(steps), 1):,.0f} compiled graphs per step become "
        f"{several / max(len(steps), 1):,.0f}: {per_step:,.3f} ms of guards, Python and wrappers go. What "
        "Dynamo left uncompiled stays as it is, and nothing more is fused."
    )


def _shrink(tasks: Selection, left: np.ndarray) -> int:
    """Leave a part of each task's time and of the untraced time behind it; return what goes, ns."""
    if not len(tasks):
        return 0
    duration = np.round(tasks.duration_ns * left)
    gap = np.round(np.maximum(tasks.gap_ns, 0) * left)
    gone = tasks.duration_ns.sum() + np.maximum(tasks.gap_ns, 0).sum() - duration.sum() - gap.sum()
    tasks.set(duration_ns=duration, gap_ns=gap)
    return int(gone)


def _overhead(tasks: Selection) -> Selection:
    """Return the tasks in no compiled graph's kernel calls and in no library's operator, pauses aside."""
    rest = tasks - tasks.where(within=GRAPH) - tasks.where(within=r"^\w+::")
    pauses = np.maximum(rest.duration_ns, rest.gap_ns) > DISPATCH_NS
    return rest.where(lambda _: ~pauses)


def _calls(graph: Graph) -> _Calls | None:
    """Return what wraps compiled graphs where a call has several; None where none has."""
    trace = graph.recorded
    if not len(trace):
        return None
    names = [found[1] if (found := REGION.fullmatch(text)) else "" for text in trace.text("name")]
    is_region = of_rows(trace, "name", lambda text: bool(REGION.fullmatch(text)))
    graphs = np.flatnonzero(of_rows(trace, "name", lambda text: text == PIECE))
    outermost = enclosing(trace["parent"], is_region, np.arange(len(trace)), inner=False)
    ran = Counter(outermost[graphs[outermost[graphs] >= 0]].tolist())
    pieces = {row: many for row, many in sorted(ran.items()) if many > 1}
    if not pieces:
        return None
    cpu = graph.select(kind="cpu", phase="forward")
    rows = graph.row[cpu.ids]
    call = take(outermost, rows)
    tasks = _overhead(cpu.where(lambda _: np.isin(call, list(pieces))))
    call = outermost[graph.row[tasks.ids]]
    when = graph.measured_start_ns[tasks.ids]
    start = trace["start_ns"]
    end = start + trace["duration_ns"]
    broken = _reasons(trace)
    counts = Counter[str]()
    key = np.full(len(tasks), None, dtype=object)
    for one in pieces:  # a handful for each step
        mine, nested = (
            rows[np.argsort(start[rows], kind="stable")].tolist()
            for rows in (
                graphs[outermost[graphs] == one],
                np.flatnonzero(is_region & (outermost == one)),
            )
        )
        for before, behind in pairwise(mine):
            earlier = [row for row in nested if start[row] < start[behind]]
            # The frame of the next graph itself broke later, if at all.
            frame = [row for row in earlier if end[row] > start[behind]][-1]
            named = [names[trace["name"][row]] for row in earlier if row != frame]
            last = next((name for name in reversed(named) if name in broken), "")
            counts[last] += 1
            here = (call == one) & (start[before] <= when) & (when < start[behind])
            key[here] = last
    return _Calls(tasks, call, key, counts, pieces)


def _reasons(trace: Trace) -> dict[str, tuple[str | None, str]]:
    """Return source line and reason of each region that breaks, as `collect` recorded them."""
    known: dict[str, tuple[str | None, str]] = {}
    for one in trace.metadata.get("graph_breaks") or []:
        known.setdefault(one["region"], (one.get("source"), one.get("reason") or UNKNOWN_BREAK))
    return known


def sentences(breaks: list[GraphBreak]) -> list[str]:
    """Return a sentence a break, for notes; the rest is counted."""
    said = [
        f"Graph break {'at ' + one.source if one.source else '(place not recorded)'}: {one.reason}; "
        f"{one.count:,.0f} per step, {one.ns / 1e6:,.3f} ms per step of guards and Python around them."
        for one in breaks
    ]
    return _first(said, "further place", "break the graph")


def uncompiled_sentences(trace: Trace) -> list[str]:
    """Return a sentence for each function that the compiler left as it is, as `collect` recorded them."""
    said = [
        f"{one['source']} was left uncompiled: {one['reason'] or 'an error'}"
        f"{' at ' + at if (at := one.get('at')) else ''}. What it calls is compiled by itself."
        for one in (trace.metadata.get("uncompiled_frames") or [])
    ]
    return _first(said, "further function", "were left uncompiled")


def _first(said: list[str], what: str, did: str) -> list[str]:
    rest = len(said) - MOST_SAID
    return said if rest <= 0 else [*said[:MOST_SAID], f"{counted(rest, what)} {did}."]
