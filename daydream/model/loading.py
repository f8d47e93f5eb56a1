"""How long each step waits for its batch, and at what rate the loader makes batches.

Where a loader's range was recorded, that is the wait. Profilers of the device alone (Nsight Systems without
ranges) record none: then it is the longest untraced stretch of the thread that computes, between the last
work that it launched and the step's first copy to the device. Nothing else stands there in step after step:
what Python does in a step is spread between its launches.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from daydream.arrays import unique
from daydream.costs.operators import TO_DEVICE
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.selection import Selection

WORKER_LOADER = "MultiProcessing"  # in torch's range, where workers made the batch
LEAST_CYCLES = 4  # of a pattern, to be seen as one
UNLIKE = 0.3  # deviation of the waits' logarithms: those in a burst are short against the others
SHORT_NS = 1000  # waits below it are alike
ALIKE = 0.5  # correlation of waits one burst apart; of those in no pattern it is near 0


class LoaderWaits(Struct, frozen=True):
    """Waits for batches, one a step, in order.

    Attributes:
        tasks: the task in or behind which the thread waits.
        time_ns: how long, ns, int64.
        in_gap: the wait is untraced time behind the task, else the task's own; bool.
        arrived_ns: when the batch was there, ns, int64.
    """

    tasks: Selection
    time_ns: np.ndarray
    in_gap: np.ndarray
    arrived_ns: np.ndarray

    def batch_cost_ns(self, workers: int, least_ns: float) -> np.ndarray:
        """Return what each batch cost one of the workers that loaded, 0 for those that came with others.

        A batch that is waited for shows when it was made, so all since the last such batch took the
        workers the time between them; for the first one that is what is left of the covered steps, as these
        repeat: so many workers as were recorded give the steps that were. Without workers the wait is the
        cost.

        Args:
            workers: how many loaded; 0 for none.
            least_ns: ns; what is shorter is no wait.

        Returns:
            ns, shape (steps,).
        """
        if not workers:
            return self.time_ns
        cost = np.zeros(len(self.time_ns))
        rank = self.tasks.rank
        step = self.tasks.step
        steps = self.tasks.graph.steps
        covered = np.array([bool(each.get("covered")) for each in steps] + [False])[step]
        for each in unique(rank).tolist():
            mine = rank == each
            late = np.flatnonzero(
                mine & (self.time_ns > least_ns) & (covered | ~covered[mine].any())
            )
            if len(late) > 1:
                between = np.diff(self.arrived_ns[late])
                whole = sum(
                    one["measured_ns"]
                    for one in steps
                    if one.get("covered") and one.get("rank", 0) == each
                )
                left = whole - between.sum()
                cost[late] = np.append(left if left > 0 else np.median(between), between) * workers
        return cost

    def workers(self) -> int | None:
        """Return how many workers load, as their pattern shows; None where there is none.

        Workers begin together, take a batch each, and batches are handed out in turn: a program that waits
        for them gets as many batches at once as there are workers, then waits again.
        """
        time = np.log1p(self.time_ns / SHORT_NS)  # so that one long wait does not make the pattern
        most = len(time) // LEAST_CYCLES
        parts = [(time[lag:], time[:-lag]) for lag in range(2, most + 1)]
        found = np.array(
            [np.corrcoef(*part)[0, 1] if np.std(part, axis=1).all() else 0.0 for part in parts]
        )
        if not len(found) or found.max() < ALIKE or time.std() < UNLIKE:
            return None
        return int(np.flatnonzero(found >= 0.9 * found.max())[0]) + 2

    def take_away(self) -> None:
        """Let no step wait for its batch."""
        for chosen, time in ((~self.in_gap, "duration_ns"), (self.in_gap, "gap_ns")):
            if chosen.any():
                self.tasks.of(self.tasks.ids[chosen], "waits").set(**{time: 0})
        links = self.tasks.graph.links
        links.keep((links["cause"] != Cause.OUTSIDE) | ~np.isin(links["src"], self.tasks.ids))


def untraced_waits(graph: Graph) -> LoaderWaits:
    """Return the waits for batches in a trace that has no ranges of a loader.

    Raises:
        NotApplicableError: operators were recorded: torch's loader would have its range among them.
    """
    if graph.recorded.is_kind("operator").any():
        raise NotApplicableError("this trace has no loading of data: no data-loader range or phase")
    first = _first_copies(graph)
    order = graph.order
    lanes = graph.lane
    cpu = graph.select(kind="cpu").ids
    named = np.append(
        graph.recorded.is_kind("annotation"), False
    )  # time in a range, not in a driver's call
    calls = unique(graph.launch[graph.launch >= 0])
    found: list[tuple[int, int, bool]] = []
    for call in first.launches().ids.tolist():  # a handful: one a step
        lane = cpu[lanes[cpu] == lanes[call]]
        lane = lane[order[lane] < order[call]]
        before = calls[(lanes[calls] == lanes[call]) & (order[calls] < order[call])]
        behind = lane[order[lane] >= order[before].max()] if len(before) else lane
        if not len(behind):
            continue
        inside = np.where(named[graph.row[behind]], graph.duration_ns[behind], 0)
        lengths = np.stack([graph.gap_ns[behind], inside])
        which, place = np.unravel_index(np.argmax(lengths), lengths.shape)
        found.append((int(behind[place]), int(lengths[which, place]), not which))
    ids, time, in_gap = (
        (np.array(part) for part in zip(*found, strict=True)) if found else (np.empty(0, int),) * 3
    )
    waits = graph.tasks(ids).of(ids, "waits for batches", ordered=True)
    return LoaderWaits(waits, time, in_gap.astype(bool), _ends(graph, ids))


def _first_copies(graph: Graph) -> Selection:
    """Return each step's first copy to the device from a thread that launches kernels too."""
    copies = graph.select(kind="memcpy", name=TO_DEVICE)
    kernels = graph.select(kind="kernel").launches()
    main = unique(graph.lane[kernels.ids])
    copies = copies.where(
        lambda tasks: (
            (tasks.step >= 0) & (tasks.launch >= 0) & np.isin(graph.lane[tasks.launch], main)
        )
    )
    copies.need(
        "loading of data: no data-loader range, and no copy to the device from the thread that computes"
    )
    return copies.group_by("rank", "step").first()


def _ends(graph: Graph, ids: np.ndarray) -> np.ndarray:
    return graph.measured_start_ns[ids] + graph.duration_ns[ids] + graph.gap_ns[ids]


def loads_by_processes(loading: Selection) -> bool:
    """Tell whether the CPU work inside the ranges of a loader is that of one with worker processes."""
    return len(loading.where(within=WORKER_LOADER)) > 0


def recorded_waits(graph: Graph, loading: Selection) -> LoaderWaits:
    """Return the waits of a trace whose loader has ranges, from the CPU work inside them.

    Args:
        graph: the graph of the trace.
        loading: CPU work inside the ranges of the loader.

    Returns:
        `LoaderWaits`.
    """
    batches = loading.group_by("step", "lane")
    last = batches.last()
    time = batches.total("duration_ns") + batches.total("gap_ns")
    return LoaderWaits(last, time, np.zeros(len(last), bool), _ends(graph, last.ids))
