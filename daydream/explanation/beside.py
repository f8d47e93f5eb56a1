"""What happens beside the critical path: waits of CPU calls, the device's idle time, hidden communication."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from daydream.arrays import unique
from daydream.explanation.causes import Chain
from daydream.graph.plan import Cause
from daydream.graph.query.coverage import Coverage
from daydream.graph.query.device import device_work
from daydream.graph.query.program_order import among
from daydream.graph.selection import Selection
from daydream.graph.tables import COLLECTIVE, CPU
from daydream.simulate.causes import CAUSES, PathCause
from daydream.simulate.path_causes import untraced_device_work


class Waits(NamedTuple):
    """CPU calls that stand blocked within the steps: the task, the time of each, per call."""

    task: np.ndarray
    ns: np.ndarray
    steps: int

    def per_step(self, mask: np.ndarray | slice = slice(None)) -> int:
        """Return the time some of them stand blocked, per step."""
        return round(float(self.ns[mask].sum()) / self.steps)


class Launching(NamedTuple):
    """Time in launch calls per step, and how much of it is waiting for room in the launch queue."""

    calls: float
    total_ns: int
    queue_wait_ns: int
    tasks: Selection


class Communication(NamedTuple):
    """Collectives per step: how long at least one runs, how much of that is on the critical path.

    Those of the step's own rank count, and those of others that the step waits for. `behind` is
    what the critical path does meanwhile, longest first: why the rest is hidden.
    """

    total_ns: int
    exposed_ns: int
    behind: tuple[tuple[PathCause, int], ...]
    tasks: Selection

    @property
    def hidden_ns(self) -> int:
        """What runs beside the critical path."""
        return max(self.total_ns - self.exposed_ns, 0)


def waits(chain: Chain, cause: Cause) -> Waits:
    """Return the CPU calls that stand blocked for a cause within the steps, clipped to them.

    The profiler's own wait, behind all launches of the window and like no wait before, is left out.
    """
    graph, timeline = chain.graph, chain.timeline
    plan, start = timeline.plan, timeline.start_ns
    edges = np.flatnonzero(plan.edge_cause == cause)
    src, dst = plan.edge_src[edges], plan.edge_dst[edges]
    delay = np.where(plan.edge_from_start[edges], 0, plan.duration_ns[src]) + plan.edge_latency_ns[edges]
    held = unique(dst[start[src] + delay == start[dst]])
    held = held[(graph.columns["kind"][timeline.task[held]] == CPU) & (timeline.waits_of(held) > 0)]
    on_device = graph.alive & device_work(graph)
    last_launch = graph.columns["order"][on_device].max(initial=0)
    at_end = graph.columns["order"][timeline.task[held]] > last_launch
    names = graph.columns["name"][timeline.task[held]]
    held = held[~at_end | np.isin(names, names[~at_end])]
    found = list(_within(chain, held, waiting=True))
    task = timeline.task[np.concatenate([entries for entries, _ in found])]
    return Waits(task, np.concatenate([inside for _, inside in found]), len(chain.steps))


def launching(chain: Chain) -> Launching | None:
    """Return what launch calls take within the steps; None if nothing is launched."""
    graph, timeline = chain.graph, chain.timeline
    calls = np.zeros(graph.size, bool)
    launch = graph.columns["launch"][graph.alive & device_work(graph)]
    calls[launch[launch >= 0]] = True
    found = list(_within(chain, np.flatnonzero(calls[timeline.task])))
    inside_steps = among(graph, timeline.task[np.concatenate([entries for entries, _ in found])])
    tasks = np.flatnonzero(inside_steps)
    if not len(tasks):
        return None
    queue = waits(chain, Cause.QUEUE)
    waited = queue.per_step(calls[queue.task])
    steps = len(chain.steps)
    work = sum(int(inside.sum()) for _, inside in found)
    number = sum(len(inside) for _, inside in found) / steps
    selection = Selection(graph, tasks[:0]).of(tasks, "launch calls of the steps")
    return Launching(number, round(work / steps) + waited, waited, selection)


def busy_share(chain: Chain) -> float | None:
    """Return the share of the steps in which their device runs recorded work; None without a device."""
    busy = busy_ns(chain)
    return None if busy is None else busy / max(chain.step_ns, 1)


def busy_ns(chain: Chain) -> float | None:
    """Return how long the device runs recorded work, per step; None without a device."""
    timeline = chain.timeline
    on_device = np.flatnonzero(device_work(timeline.graph)[timeline.task])
    untraced = untraced_device_work(timeline.graph, timeline.task[on_device])
    on_device = on_device[~untraced]
    if not len(on_device):
        return None
    busy = 0.0
    for (entries, _), (begin, end, _) in zip(_within(chain, on_device), chain.windows, strict=True):
        busy += float(Coverage(timeline.start_ns[entries], timeline.end_ns[entries]).within(begin, end))
    return busy / len(chain.steps)


def communication(chain: Chain) -> Communication | None:
    """Return what collectives take and what hides them; None if the steps have none."""
    graph, timeline = chain.graph, chain.timeline
    transfers = np.flatnonzero(graph.columns["kind"][timeline.task] == COLLECTIVE)
    exposed = chain.of(PathCause.COMMUNICATION)
    total, tasks, behind = 0.0, [], np.zeros(len(CAUSES))
    for number, (entries, _) in enumerate(_within(chain, transfers)):
        begin, end, _ = chain.windows[number]
        cover = Coverage(timeline.start_ns[entries], timeline.end_ns[entries])
        mine = chain.window == number
        # The critical path may go through a collective of another rank.
        waited = mine & exposed
        first, last = chain.begin_ns[waited], chain.begin_ns[waited] + chain.ns[waited]
        running = Coverage(
            np.append(timeline.start_ns[entries], first), np.append(timeline.end_ns[entries], last)
        )
        total += float(running.within(begin, end))
        tasks += [timeline.task[entries], chain.task[waited]]
        covered = cover.within(chain.begin_ns[mine], chain.begin_ns[mine] + chain.ns[mine])
        behind += np.bincount(chain.cause[mine], weights=covered, minlength=len(CAUSES))
    found = unique(np.concatenate(tasks)) if tasks else np.empty(0, np.int64)
    if not len(found):
        return None
    steps = len(chain.steps)
    behind[PathCause.COMMUNICATION.code] = 0
    order = [code for code in np.argsort(-behind, kind="stable").tolist() if behind[code] > 0]
    return Communication(
        round(total / steps),
        chain.per_step(exposed),
        tuple((CAUSES[code], round(behind[code] / steps)) for code in order),
        Selection(graph, found[:0]).of(found, "collectives of the steps"),
    )


def _within(
    chain: Chain, entries: np.ndarray, *, waiting: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each step, its rank's entries that run (or stand waiting) in it, and for how long."""
    timeline = chain.timeline
    lanes = timeline.graph.lanes
    ranks = np.array([-1 if lane.background else lane.rank for lane in lanes], np.int64)
    rank = ranks[timeline.graph.columns["lane"][timeline.task[entries]]]
    start = timeline.start_ns[entries]
    begin = start - timeline.waits_of(entries) if waiting else start
    end = start if waiting else timeline.end_ns[entries]
    for opens, closes, own in chain.windows.tolist():
        inside = np.minimum(end, closes) - np.maximum(begin, opens)
        there = (inside > 0) & (rank == own)
        yield entries[there], inside[there]
