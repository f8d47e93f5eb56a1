"""What turned a graph into its changed copy: how much time of a step it affects, and what it does not reach.

A change may leave device work as it is that it should be about, since the recording does not tell that work
apart. That is no answer about the whole step, and a narrow interval around it would look like one.

- A *replay of a CUDA graph* names no operators and no shapes: what needs them (a type, a fusion, a size)
  changes the kernels outside alone.
- A replay and a *compiled call* launch the work of many layers as one. What is not told apart in them has the
  layer of the call, or none, and may be a part of any layer inside the call.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping
from math import hypot
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy import ndarray

from daydream.graph.calls import (
    GRAPH_LAUNCH,
    WholeCalls,
    device_work,
    in_replays,
    whole_calls,
    within,
)
from daydream.graph.select import among, matching, of_tasks
from daydream.graph.tables import (
    COLLECTIVE,
    CPU,
    MEMCPY,
    covered_steps,
    phase_code,
    step_rank,
)
from daydream.model import trained_parameters

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

# Errors over affected time, by sort, that hold 90% of measured changes, rounded up: `python
# validation/evaluate.py changes` fits them. These are of processes that gave freed memory back at times, as a
# user's does (`validation/` at revision 2ddd0fd); those of today need less, as docs/accuracy.md shows.
# `kernels` is from traces of the same models on two GPUs and at two batch sizes, `transfers` from an
# emulated link, the others from small models on a CPU.
MODEL_ERROR: Mapping[str, float] = {
    "moved": 0.14, "copied": 0.08, "computed": 0.22, "kernels": 0.20, "transfers": 0.08,
}  # fmt: skip
MUCH = 0.05  # of a step's device work: less that a change does not reach is not said
NOT_BY_LAYER = [
    phase_code("optimizer"),
    phase_code("data"),
]  # updates are told apart by their parameters
RECORD = {"CUDA graphs": "without CUDA graphs", "compiled calls": "without torch.compile"}


class Affected(NamedTuple):
    """What a change affects of a step, in ns: on each sort's busiest lane.

    `moved` goes away, or is CPU time that a factor changes. `copied` is recorded work that is done again,
    `computed` CPU time that a cost model gave. Of `kernels` and `transfers` (copies and collectives) it is
    what a model gave and what a factor changes. `waits` are what a step changes by beyond all that is
    affected, since something waits less or more: moved time, too. `doubt` is how far device work may be off
    beyond what its sort is as a rule, where the model that gave their times says so: an error, and no time
    affected. `waiting` is how far transfers are off, either way, if what was recorded of them was waiting
    for peers.
    """

    moved: float = 0.0
    copied: float = 0.0
    computed: float = 0.0
    kernels: float = 0.0
    transfers: float = 0.0
    waits: float = 0.0
    doubt: float = 0.0
    waiting: float = 0.0

    @property
    def together(self) -> float:
        """All sorts together."""
        return sum(self[:6])

    def by_sort(self) -> dict[str, float]:
        """Return the ns of each sort of `MODEL_ERROR`."""
        return dict(zip(MODEL_ERROR, (self.moved + self.waits, *self[1:5]), strict=True))

    @property
    def errors_ns(self) -> list[float]:
        """How far each sort may be off, in ns, where nothing hides it; with kernels, what models doubt too."""
        doubt = {"kernels": self.doubt}
        return [
            MODEL_ERROR[sort] * ns + doubt.get(sort, 0.0) for sort, ns in self.by_sort().items()
        ]


class OutOfReach(NamedTuple):
    """Device work of a step in ns: all, and what a change leaves though it may be about that, too.

    `share` is how far the work that is changed changes, as a part of it; `where` says what runs the rest.
    """

    device_ns: float
    left_ns: float
    share: float
    where: str

    @property
    def is_much(self) -> bool:
        """Whether it is more than a small part of all."""
        return self.left_ns > MUCH * self.device_ns

    @property
    def unknown_ns(self) -> float:
        """How far the step would be off if it changed as the rest does."""
        return self.share * self.left_ns

    def __str__(self) -> str:
        times = (
            f"{self.left_ns / 1e6:,.2f} of {self.device_ns / 1e6:,.2f} ms of device work per step"
        )
        return f"{times} {self.where}"


class GraphDiff:
    """What turned a copy of the graph `before` into `after`, task by task.

    Attributes:
        edited: whether a task was changed, inserted or removed, bool.
        counts: how many were changed, inserted and removed.
        was_there: whether each task of `after` was there before, bool; the others were inserted.
        was_ns, now_ns: how long each task took and takes, 0 where it is not there.
        covered: whether a task belongs to a covered step.
        ids: the tasks that take another time, were inserted or removed, int64, ascending.
        longer_ns: how much longer each of them takes with the gap behind it.
        affected_ns: by sort of `MODEL_ERROR`, how much time of each of them is affected.
        errors_ns: by how much each may be off.
        doubt_ns: by how much that is beyond its sort's error.
        waiting_ns: by how much each is longer if it waited for peers (see `Affected`).
    """

    def __init__(self, before: Graph, after: Graph) -> None:
        self.before = before
        self.after = after
        there = after.alive
        self.was_there = was_there = np.append(
            before.alive, np.zeros(after.size - before.size, bool)
        )
        differs = [
            self.old(name) != after.columns[name]
            for name in ("duration_ns", "gap_ns", "latency_ns", "lane")
        ]
        masks = was_there & there & np.any(differs, axis=0), there & ~was_there, was_there & ~there
        self.edited = np.any(masks, axis=0)
        self.counts = tuple(int(np.count_nonzero(mask)) for mask in masks)
        self.was_ns = np.where(was_there, self.old("duration_ns"), 0)
        self.now_ns = np.where(there, after.duration_ns, 0)
        self.covered = covered_steps(after)[after.step]
        self.ids = ids = np.flatnonzero(differs[0] | differs[1] | (was_there != there))
        is_new = ~was_there[ids]
        alive = there[ids]
        kind = after.kind[ids]
        now = self.now_ns[ids] + after.gap_ns[ids] * alive
        self.longer_ns = now - self.was_ns[ids] - self.old("gap_ns")[ids] * ~is_new
        copied = is_new & (after.row[ids] >= 0)
        given = among(after, np.concatenate([ids[:0], *after.modelled]))[ids]
        modelled = (is_new & ~copied) | (given & alive & (self.longer_ns != 0))
        cpu = kind == CPU
        transfer = np.isin(kind, [MEMCPY, COLLECTIVE])
        told = alive & (modelled | ~copied)
        ns = np.where(is_new | modelled, now, np.abs(self.longer_ns))
        self.affected_ns = {
            "moved": ns * (~alive | (cpu & ~copied & ~modelled)),
            "copied": ns * (copied & ~modelled),
            "computed": ns * (cpu & modelled),
            "kernels": ns * (told & ~cpu & ~transfer),
            "transfers": ns * (told & transfer),
        }
        doubted = np.zeros((2, after.size))
        for each, error, waiting in after.doubted:
            doubted[int(waiting), each] = error
        off, waited = doubted[:, ids]
        self.waiting_ns = waited * alive * np.maximum(after.duration_ns[ids], 1)
        usual_ns = np.asarray(sum(MODEL_ERROR[sort] * ns for sort, ns in self.affected_ns.items()))
        self.doubt_ns = np.maximum(off * now - usual_ns, 0) * (modelled & ~cpu)
        self.errors_ns = usual_ns + self.doubt_ns

    def old(self, name: str) -> ndarray:
        """Return a column as it was before the change, of inserted tasks as it is."""
        return np.append(self.before.columns[name], self.after.columns[name][self.before.size :])

    def _busiest_ns(self, ns: ndarray) -> float:
        """Return how long these tasks take on their busiest lane, per step."""
        ranks = [step_rank(step) for step in self.after.steps if step.get("covered")]
        steps = len(ranks) // len({*ranks}) if ranks else 1
        return np.bincount(self.after.lane[self.ids], ns).max(initial=0) / steps

    @property
    def unknown_longer_ns(self) -> float:
        """By how much device work of a step that was not recorded takes longer, on its busiest lane.

        What it is nobody knows: work of before the window, or a driver that loads modules. So nothing says
        that it takes longer at all.
        """
        after = self.after
        ids = self.ids
        if not self.before.facts.untraced_ns:
            return 0.0
        # Device work without a row stands for it, in a covered step or in none.
        untraced = (after.row[ids] < 0) & (after.kind[ids] != CPU) & self.was_there[ids]
        untraced &= self.covered[ids] | (after.step[ids] < 0)
        return self._busiest_ns(untraced * np.maximum(self.longer_ns, 0))

    def affected(self, changes_by_ns: int) -> Affected:
        """Return what the change affects of a step, which it makes longer or shorter by so much."""
        times = *self.affected_ns.values(), self.doubt_ns, np.abs(self.waiting_ns)
        *found, doubt, waiting = (self._busiest_ns(self.covered[self.ids] * ns) for ns in times)
        return Affected._make([*found, max(abs(changes_by_ns) - sum(found), 0.0), doubt, waiting])

    def longer(self, affected: Affected) -> Graph:
        """Return the changed graph with all that is affected longer by its sort's error.

        The sorts' errors are independent, so all are scaled down to the root of the sum of their squares.
        What was removed is missed where it was: behind the task before it on its lane.
        """
        parts = affected.errors_ns
        return self.longer_by(hypot(*parts) / (sum(parts) or 1) * self.errors_ns)

    def longer_by(self, more: ndarray) -> Graph:
        """Return the changed graph with these tasks so much longer, in ns."""
        graph = self.after
        ids = self.ids
        lane = graph.lane
        gap = graph.gap_ns
        alive = graph.alive[ids]
        duration = graph.duration_ns.copy()
        duration[ids] += np.rint(more * alive).astype(np.int64)
        if not alive.all():
            # Behind the last task before each on its lane that is still there.
            longer_ns = np.zeros(graph.size)
            longer_ns[ids] = more
            tasks = np.flatnonzero(np.isin(lane, lane[ids[~alive]]))
            tasks = tasks[np.lexsort((graph.order[tasks], lane[tasks]))]
            there = graph.alive[tasks]
            last = np.maximum.accumulate(np.where(there, np.arange(len(tasks)), -1))
            before = tasks[last]
            behind = ~there & (last >= 0) & (lane[before] == lane[tasks])
            missed_ns = np.bincount(before[behind], longer_ns[tasks[behind]], graph.size)
            gap = gap + np.rint(missed_ns).astype(np.int64)
        return graph.retimed(duration, gap)

    def out_of_reach(self, left: ndarray, changed: ndarray, where: str) -> OutOfReach:
        """Return what a change leaves of a step's device work, beside what it changes; both are masks."""
        counts = device_work(self.after) & self.covered
        steps = max(covered_steps(self.after).sum(), 1)
        device_ns, left_ns, was_ns = (
            self.was_ns[counts & mask].sum() / steps for mask in (counts, left, changed)
        )
        now_ns = self.now_ns[counts & changed].sum() / steps
        share = abs(now_ns - was_ns) / was_ns if was_ns else 1.0
        return OutOfReach(device_ns, left_ns, min(share, 1.0), where)


def left_in_replays(diff: GraphDiff) -> OutOfReach | None:
    """Return what a change of device work leaves out in replays of graphs; None if that is little or nothing.

    Only work of the phases counts that the change is about.
    """
    before = diff.before
    after = diff.after
    if not any(GRAPH_LAUNCH in name for name in before.texts["name"]):
        return None
    counts = device_work(after) & diff.covered
    recorded = before.tasks(np.flatnonzero(counts & diff.was_there))
    replayed = among(after, in_replays(recorded).ids)
    same = diff.was_ns == diff.now_ns
    # A change of transfers leaves no kernels out.
    affected = counts & ~replayed & ~same & (diff.old("kind") != COLLECTIVE)
    phase = diff.old("phase")
    left = replayed & same & np.isin(phase, phase[affected & diff.was_there])
    found = diff.out_of_reach(
        left, affected,
        "run inside replays of CUDA graphs, whose kernels this change leaves as they are: the answer is "
        "about the rest.",
    )  # fmt: skip
    return found if found.is_much else None


def unplaced_work(diff: GraphDiff) -> OutOfReach | None:
    """Return what a change by layer may be about, too; None for other changes, and if there is none."""
    before = diff.before
    after = diff.after
    chosen_by = [dict(where) for where in after.edited_by if {"layer", "block"} & {*dict(where)}]
    calls = whole_calls(before) if chosen_by else None
    if calls is None:
        return None
    edited = _layers(after, diff.edited)
    parameters = trained_parameters(before).tensors
    paths = {*after.texts["layer"], *parameters}
    may_be = np.zeros(before.size, bool)
    chosen = set[str]()
    phase = before.phase
    on_device = device_work(before) & before.alive
    for words in chosen_by:
        if "layer" in words:
            fits = {
                path
                for path in paths
                if any(fnmatch.fnmatchcase(path, each) for each in words["layer"])
            }
        else:
            from daydream.model.blocks import matching_blocks

            fits = _in_blocks(paths, matching_blocks(after, words["block"]))
        if not fits & edited:
            continue
        chosen |= fits
        # The other words of the selection that are known in any call.
        where = {
            name: texts[0] if name == "on" else texts
            for name, texts in words.items()
            if name in {"on", "kind", "name", "phase"}
        }
        like = among(before, matching(before, np.arange(before.size), where))
        like &= _encloses(before, calls, fits, parameters)
        # Not where each with parameters, or with work in such a call, does its work outside: that of the
        # backward pass, or all other.
        needs = fits & {*parameters, *_layers(before, calls.inside)}
        backward = phase == phase_code("backward")
        for part in (backward, ~backward):
            outside = _layers(before, on_device & ~calls.inside & part)
            if not needs <= outside or not fits & outside:
                may_be |= like & part
    may_be &= calls.unplaced & ~np.isin(phase, NOT_BY_LAYER)
    found = diff.out_of_reach(
        among(after, np.flatnonzero(may_be)), _of_layers(after, chosen),
        f"are known only as part of {calls.where}: which of it is of these layers is not recorded "
        f"(record {RECORD[calls.where]})",
    )  # fmt: skip
    return found if found.left_ns else None


def known_as_a_whole(graph: Graph) -> tuple[ndarray, str]:
    """Return a mask of the tasks that may be of any repeated block, and what runs most of them."""
    calls = whole_calls(graph)
    if calls is None:
        return np.zeros(graph.size, bool), ""
    from daydream.model.blocks import repeated_blocks

    blocks = [block for family in repeated_blocks(graph) for block in family]
    fits = _in_blocks(graph.texts["layer"], blocks)
    return calls.unplaced & _encloses(
        graph, calls, fits, trained_parameters(graph).tensors
    ), calls.where


def _layers(graph: Graph, tasks: ndarray) -> set[str]:
    """Return the layers of some tasks, a mask."""
    return {*filter(None, graph.column("layer", np.flatnonzero(tasks)))}


def _of_layers(graph: Graph, layers: Collection[str | None]) -> ndarray:
    """Return a mask of the tasks of some layers, and of no layer if None is among them."""
    return of_tasks(
        graph.tasks(np.arange(graph.size)), "layer", lambda layer: layer in layers, bool
    )


def _in_blocks(paths: Iterable[str], blocks: Iterable[str]) -> set[str]:
    """Return those of some paths that are blocks, or in them."""
    from daydream.model.blocks import TOGETHER

    parts = TOGETHER.join(blocks).split(TOGETHER)
    return {path for path in paths if any(within(path, part) for part in parts)}


def _encloses(
    graph: Graph, calls: WholeCalls, fits: set[str], parameters: Collection[str]
) -> ndarray:
    """Return a mask of the tasks of a layer, or of none, that may be of the layers that fit.

    A model's own name is in no path: calls of it hold other layers, and it has no parameters by that name.
    """
    found = {path for path in graph.texts["layer"] if any(within(each, path) for each in fits)}
    for code in calls.layers:
        path = graph.texts["layer"][code]
        if code in calls.around or (
            parameters and not any(within(each, path) for each in parameters)
        ):
            found.add(path)
    return _of_layers(graph, {*found - fits, None})
