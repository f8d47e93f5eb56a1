"""What a replayed graph takes away on the CPU: operators, launches and Python between launches it holds.

A replay runs nothing else. What lies before the first launch of a captured region and behind its last
(loading, logging, the next batch's copies) stays, as do waits. Inside a region the time between two
launches is Python and dispatch, some 5 to 200 us an operator, and still below a millisecond where the
profiler records stacks. A longer piece of one call is no dispatch: memory is allocated, a module is loaded,
a library sets itself up, the CPU calculates; a longer pause is file access or waiting. A
recording that holds them once would give them to the graph, which never made them; so they stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from daydream.arrays import lookup, run_starts, take, unique
from daydream.costs.kernel_names import names_fit
from daydream.graph.calls import MAY_SYNC, call_rows
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.rules import LARGEST_LATENCY_NS, LARGEST_STARTUP_NS
from daydream.graph.select import among
from daydream.graph.selection import Selection
from daydream.graph.tables import CPU
from daydream.trace.schema import PHASES

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
