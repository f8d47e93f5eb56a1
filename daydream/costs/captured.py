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
from dataclasses import dataclass

import numpy as np

from daydream.graph.calls import call_rows
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.rules.synchronization import MAY_SYNC
from daydream.graph.selection import Selection

DISPATCH_NS = 1_000_000


def regions(graph: Graph, parts: Groups) -> np.ndarray:
    """Return, by task, which part's captured region a CPU task is in: a place among `parts`, -1 for none.

    On each thread a region goes from the first launch of a part to its last; the operators that made
    these two are in it.
    """
    columns = graph.columns
    lanes, order = columns["lane"], columns["order"]
    found = np.full(graph.size, -1)
    calls = columns["launch"][parts.by_group.ids]
    part = np.repeat(np.arange(len(parts)), parts.sizes)
    found[calls] = part
    cpu = graph.ids[columns["kind"][graph.ids] == 0]
    for lane in np.unique(lanes[calls]).tolist():
        here = lanes[calls] == lane
        first, last = np.full(len(parts), 2**62), np.full(len(parts), -(2**62))
        np.minimum.at(first, part[here], order[calls[here]])
        np.maximum.at(last, part[here], order[calls[here]])
        of_part = np.flatnonzero(last >= first)
        of_part = of_part[np.argsort(first[of_part], kind="stable")]
        tasks = cpu[lanes[cpu] == lane]
        place = np.searchsorted(first[of_part], order[tasks], side="right") - 1
        inside = (place >= 0) & (order[tasks] <= last[of_part[place]])
        found[tasks[inside]] = of_part[place[inside]]
    made = call_rows(graph, calls, inner=True)
    by_row = np.full(max(int(made.max(initial=-1)) + 2, 1), -1)  # the last one stands for no operator
    by_row[made[made >= 0]] = part[made >= 0]
    around = call_rows(graph, cpu, inner=True)
    around = np.where((around >= 0) & (around < len(by_row)), around, -1)
    by_operator = np.where(around >= 0, by_row[around], -1)
    found[cpu] = np.where(found[cpu] >= 0, found[cpu], by_operator)
    return found


def no_dispatch(tasks: Selection) -> Selection:
    """Return those CPU tasks that no replay takes away: long pieces of a call, allocations, set-up."""
    texts = tasks.graph.texts["name"]
    names, which = np.unique(tasks.graph.columns["name"][tasks.ids], return_inverse=True)
    allocates = np.array([bool(MAY_SYNC.search(texts[code])) for code in names.tolist()], bool)
    stays = tasks.duration_ns > DISPATCH_NS
    if len(tasks):
        stays = stays | allocates[which.reshape(-1)]
    return tasks.of(tasks.ids[stays], "CPU work that is no dispatch")


def pauses_that_stay(graph: Graph, region: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """Return a mask of those CPU tasks whose untraced time stays: long, or not inside one region."""
    columns = graph.columns
    cpu = graph.ids[columns["kind"][graph.ids] == 0]
    by_lane = cpu[np.argsort(columns["lane"][cpu], kind="stable")]
    following = np.full(graph.size, -1)
    following[by_lane[:-1]] = np.where(
        columns["lane"][by_lane[1:]] == columns["lane"][by_lane[:-1]], region[by_lane[1:]], -1
    )
    stays: np.ndarray = (columns["gap_ns"][tasks] > DISPATCH_NS) | (region[tasks] != following[tasks])
    return stays & (columns["gap_ns"][tasks] > 0)


@dataclass(frozen=True)
class Taken:
    """What a capture changes on the CPU, in ns: work and untraced time that go, and what stays in regions."""

    work: int
    untraced: int
    stays: int


def capture(
    graph: Graph, parts: Groups, *, name: str, launch_ns: int, stays: Selection, phases: Sequence[str]
) -> Taken:
    """Let one call launch each part's work, and take away what dispatched it; `stays` is kept besides."""
    region = regions(graph, parts)
    launches = parts.tasks.launches()
    cpu = graph.select(kind="cpu", phase=phases)
    tasks = cpu.of(np.union1d(cpu.ids[region[cpu.ids] >= 0], launches.ids), "captured regions")
    pausing = pauses_that_stay(graph, region, tasks.ids)
    gaps = np.where(pausing, tasks.gap_ns, 0)
    long = no_dispatch(tasks)
    first_uses = long & launches
    stays = ((stays & tasks) | long) - launches
    work = tasks.total("duration_ns") - stays.total("duration_ns") - first_uses.total("duration_ns")
    untraced = tasks.total("gap_ns") - int(gaps.sum())
    kept = stays.total("duration_ns") - stays.waiting().total("duration_ns")
    kept += first_uses.total("duration_ns") + int(gaps[gaps > DISPATCH_NS].sum())

    if len(first_uses):
        graph.insert_before(first_uses, "first use", kind="cpu", duration_ns=first_uses.duration_ns)
    tasks.set(gap_ns=gaps)
    if len(tasks - stays):
        (tasks - stays).set(duration_ns=0)
    calls = parts.share_launch(name)
    calls.set(duration_ns=launch_ns)
    gone = tasks.of(tasks.ids[graph.alive[tasks.ids] & (gaps == 0)], tasks.words) - stays - calls
    if len(gone):
        gone.remove()
    return Taken(work, untraced, kept)
