"""What a replayed graph takes away on the CPU: operators, launches and Python between launches it holds.

A replay runs nothing else. What lies before the first launch of a captured region and behind its last
(loading, logging, the next batch's copies) stays, as do waits. Inside a region the time between two
launches is Python and dispatch, some 5 to 200 us an operator, and still below a millisecond where the
profiler records stacks. A longer piece of one call is no dispatch: memory is allocated, a module is loaded,
a library sets itself up, the CPU calculates; a longer pause is file access or waiting. A
recording that holds them once would give them to the graph, which never made them; so they stay.

Graph breaks of compiled code: where the program falls back to Python between compiled graphs. One call of a
compiled function is a range that the profiler records. Where Dynamo breaks the graph, it holds several calls
of compiled graphs, and between them guards, Python and what Dynamo left uncompiled. `daydream collect` keeps
where and why each compiled frame breaks, under the name of its range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from daydream.arrays import lookup, run_starts, take, unique
from daydream.costs.operators import names_fit
from daydream.costs.workload.calls import of_rows
from daydream.graph.calls import MAY_SYNC, call_rows, enclosing
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.rules import LARGEST_LATENCY_NS, LARGEST_STARTUP_NS
from daydream.graph.select import among
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.schema import PHASES
from daydream.trace.trace import Trace

DISPATCH_NS = 1_000_000


def capture_parts(graph: Graph, captured: Selection, by: Selection) -> Groups:
    """Return the work in groups that one graph each could hold: parted by `by`, each from one program.

    The thread that launches most is one program with those that launch in turn with it, as autograd's
    thread does. What other threads launch meanwhile (a loader's) is captured for itself: neither
    its waits part the model's graph, nor is it launched with it. Where a stream waits for work of
    another program, or has some between, a graph ends: it cannot wait for what is not in it.

    Args:
        graph: the graph of the trace.
        captured: device work that a graph may hold.
        by: what no graph may hold: waits, other launches.

    Returns:
        `Groups`, the work of a graph each.
    """
    lanes = graph.columns["lane"]
    kinds = graph.columns["kind"]
    launch = graph.columns["launch"]
    program = _programs(graph, captured)
    made_by = np.where(kinds == CPU, lanes, np.where(launch >= 0, lanes[launch], -1))
    number = np.full(len(captured), -1)
    count = 0
    by = by | captures(graph)
    for each in unique(program[program >= 0]).tolist():
        mine, theirs = (take(program, made_by[chosen.ids]) == each for chosen in (captured, by))
        held = captured.of(captured.ids[mine], captured.words)
        groups = held.stretches(by.of(by.ids[theirs], "") | _from_outside(held))
        of_task = np.full(graph.size, -1)
        of_task[groups.by_group.ids] = np.repeat(np.arange(len(groups)), groups.sizes) + count
        number = np.maximum(number, of_task[captured.ids])
        count += len(groups)
    return Groups(captured, number, list(range(count)))


def captures(graph: Graph) -> Selection:
    """Return the calls that begin to capture a graph: what the program captures itself runs in no region."""
    return graph.select(kind="cpu").where(name=r"StreamBeginCapture")


def _from_outside(held: Selection) -> Selection:
    """Return other work on the streams of some work, and the calls that let these wait for other streams."""
    graph = held.graph
    lane = graph.lane
    used = unique(lane[held.ids])
    device = graph.ids[graph.kind[graph.ids] != CPU]
    between = device[np.isin(lane[device], used) & ~np.isin(device, held.ids)]
    outside = np.isin(graph.waits["target"], used) & ~np.isin(graph.waits["source"], used)
    waits = graph.waits["wait"][outside]
    return held.of(np.union1d(between, waits[graph.alive[waits]]), "work of others")


def _programs(graph: Graph, captured: Selection) -> np.ndarray:
    """Return, by lane, the program of each thread that launches some of this work: a lane, -1 for none."""
    calls = captured.launches().ids
    lane = graph.lane[calls]
    step = graph.step[calls]
    phase = graph.phase[calls]
    ranks = np.array([each.rank for each in graph.lanes], np.int64)
    program = np.full(len(graph.lanes), -1)
    for rank in unique(ranks[lane]).tolist():
        threads, many = np.unique(lane[ranks[lane] == rank], return_counts=True)
        main = int(threads[np.argmax(many)])
        for thread in threads.tolist():
            both = (lane == main) | (lane == thread)
            begun = run_starts(lane[both]) | run_starts(step[both])
            runs = int((lane[both][begun] == thread).sum())
            steps = len(unique(step[lane == thread]))
            backward = bool((phase[lane == thread] == PHASES.index("backward")).all())
            program[thread] = main if thread == main or backward or runs <= steps else thread
    return program


def regions(graph: Graph, parts: Groups) -> np.ndarray:
    """Return, by task, which part's captured region a CPU task is in: a place among `parts`, -1 for none.

    On each thread a region goes from the first launch of a part to its last; the operators that made
    these two are in it.
    """
    lanes = graph.lane
    order = graph.order
    found = np.full(graph.size, -1)
    calls = graph.launch[parts.by_group.ids]
    part = np.repeat(np.arange(len(parts)), parts.sizes)
    found[calls] = part
    cpu = graph.ids[graph.kind[graph.ids] == CPU]
    for lane in unique(lanes[calls]).tolist():
        here = lanes[calls] == lane
        first = np.full(len(parts), 2**62)
        last = np.full(len(parts), -(2**62))
        np.minimum.at(first, part[here], order[calls[here]])
        np.maximum.at(last, part[here], order[calls[here]])
        of_part = np.flatnonzero(last >= first)
        of_part = of_part[np.argsort(first[of_part], kind="stable")]
        tasks = cpu[lanes[cpu] == lane]
        place = np.searchsorted(first[of_part], order[tasks], side="right") - 1
        inside = (place >= 0) & (order[tasks] <= last[of_part[place]])
        found[tasks[inside]] = of_part[place[inside]]
    made = call_rows(graph, calls, inner=True)
    known = np.flatnonzero(made >= 0)[::-1]  # the last launch of an operator counts
    by_operator = take(part[known], lookup(made[known], call_rows(graph, cpu, inner=True)))
    found[cpu] = np.where(found[cpu] >= 0, found[cpu], by_operator)
    return found


def no_dispatch(tasks: Selection) -> Selection:
    """Return those CPU tasks that no replay takes away: long pieces of a call, allocations, set-up."""
    stays = (tasks.duration_ns > DISPATCH_NS) | names_fit(tasks, MAY_SYNC.search)
    return tasks.where(lambda _: stays)


def pauses_that_stay(graph: Graph, region: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """Return a mask of those CPU tasks whose untraced time stays: long, or not inside one region."""
    cpu = graph.ids[graph.kind[graph.ids] == CPU]
    by_lane = cpu[np.argsort(graph.lane[cpu], kind="stable")]
    following = np.full(graph.size, -1)
    following[by_lane[:-1]] = np.where(
        graph.lane[by_lane[1:]] == graph.lane[by_lane[:-1]], region[by_lane[1:]], -1
    )
    stays: np.ndarray = (graph.gap_ns[tasks] > DISPATCH_NS) | (region[tasks] != following[tasks])
    return stays & (graph.gap_ns[tasks] > 0)


def start_as_nodes(captured: Selection, node_ns: int) -> None:
    """Let device work start as nodes of a graph do: without more latency or start-up cost than these have.

    A delay without a known cause is no launch latency and no start-up: it stays.

    Args:
        captured: the device work that a graph will launch.
        node_ns: most time between two nodes that follow each other on a stream, ns.

    """
    short = captured.where(lambda tasks: tasks.latency_ns <= LARGEST_LATENCY_NS)
    near = captured.where(lambda tasks: tasks.gap_ns <= LARGEST_STARTUP_NS)
    if len(short):
        short.set(latency_ns=np.minimum(short.latency_ns, captured.graph.facts.launch_latency_ns))
    if len(near):
        near.set(gap_ns=np.minimum(near.gap_ns, node_ns))


class Captured(Struct, frozen=True):
    """What a capture changes on the CPU in covered steps.

    Attributes:
        work: ns of calls that go.
        untraced: ns of untraced time between launches that goes.
        stays: ns of regions that stay: first uses, file access, waiting.
    """

    work: int
    untraced: int
    stays: int


def capture(
    graph: Graph,
    parts: Groups,
    *,
    name: str,
    launch_ns: int,
    stays: Selection,
    phases: Sequence[str],
) -> Captured:
    """Let one call launch each part's work, and take away what dispatched it.

    Args:
        graph: the graph of the trace.
        parts: the work of a graph each (`capture_parts`).
        name: what the call is called: `cudaGraphLaunch`.
        launch_ns: what it takes on the CPU, ns.
        stays: CPU tasks that are kept besides.
        phases: phases that are captured.

    Returns:
        `Captured`.
    """
    region = regions(graph, parts)
    launches = parts.tasks.launches()
    cpu = graph.select(kind="cpu", phase=phases)
    chosen = among(graph, cpu.ids[region[cpu.ids] >= 0]) | among(graph, launches.ids)
    tasks = cpu.of(np.flatnonzero(chosen), "captured regions")
    pausing = pauses_that_stay(graph, region, tasks.ids)
    gaps = np.where(pausing, tasks.gap_ns, 0)
    long = no_dispatch(tasks)
    first_uses = long & launches
    stays = ((stays & tasks) | long) - launches
    counts = np.array([bool(step.get("covered")) for step in graph.steps] + [not graph.steps])[
        tasks.step
    ]
    kept = tasks.is_in(stays) | tasks.is_in(first_uses)
    waited = tasks.is_in(stays.waiting())
    paused = int(gaps[counts & (gaps > DISPATCH_NS)].sum())
    taken = Captured(
        work=int(tasks.duration_ns[counts & ~kept].sum()),
        untraced=int((tasks.gap_ns - gaps)[counts].sum()),
        stays=int(tasks.duration_ns[counts & kept & ~waited].sum()) + paused,
    )

    if len(first_uses):
        graph.insert_before(first_uses, "first use", kind="cpu", duration_ns=first_uses.duration_ns)
    tasks.set(gap_ns=gaps)
    behind = (launches - parts.first().launches()).where(lambda calls: calls.gap_ns > 0)
    if len(behind):  # these calls go, the time behind them does not
        graph.insert_after(behind, "pause", kind="cpu", duration_ns=0, gap_ns=behind.gap_ns)
    if len(tasks - stays):
        (tasks - stays).set(duration_ns=0)
    calls = parts.share_launch(name)
    calls.set(duration_ns=launch_ns)
    gone = tasks.where(lambda _: graph.alive[tasks.ids] & (gaps == 0)) - stays - calls
    if len(gone):
        gone.remove()
    return taken


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


def remove_with_operators(tasks: Selection) -> None:
    """Remove work with its launches and the CPU time of operators that do nothing else."""
    graph = tasks.graph
    if (tasks.kind == "cpu").all():
        tasks.remove()
        return
    has_operators = bool(graph.recorded.is_kind("operator").any())
    operators = tasks.operators() if has_operators else tasks.launches()
    tasks.remove()
    left = (operators & graph.select(kind="cpu")) - graph.select(on="gpu").launches()
    if len(left):
        left.remove()
