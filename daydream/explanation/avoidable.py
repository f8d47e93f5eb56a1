"""Avoidable costs: what a step could do without, a rule a function, each with what-ifs that remove it.

A rule looks for a general cause on the critical path or beside it and says what it costs a
step now. What its absence would save is never derived from that: it is simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from daydream.errors import NotApplicableError
from daydream.explanation.asking import WhatIfResult, WhatIfRunner
from daydream.explanation.beside import Waits, waits
from daydream.explanation.causes import Chain
from daydream.explanation.places import Place, place_of
from daydream.graph.plan import Cause
from daydream.graph.query.device import device_work
from daydream.graph.selection import Selection
from daydream.graph.tables import MEMCPY
from daydream.lazy import regex
from daydream.model.graph_breaks import breaks_of
from daydream.model.loading import loads_by_processes, recorded_waits, untraced_waits
from daydream.simulate.causes import PathCause
from daydream.trace.schema import PHASES

LEAST = 0.005  # of a step: what costs less is not worth a sentence
LONG_GAP = 0.01  # of a step: untraced time in one piece that is told by itself, if it is
LONG_GAP_NS = 500_000  # more than Python takes between two operators
MOST_WAITS = 4  # groups of waiting calls
TO_DEVICE = regex(r"HtoD|HostToDevice")
FROM_DEVICE = regex(r"DtoH|DeviceToHost")
BREAKS = "graph breaks"
ALLOCATION = regex(r"(?i)malloc|free")
MODEL = [PHASES.index(name) for name in ("forward", "loss", "backward")]
OPTIMIZER, OTHER = PHASES.index("optimizer"), PHASES.index("other")


@dataclass(frozen=True, eq=False)
class Avoidable:
    """One avoidable cost: what it is, where, what it costs a step, and the what-ifs that remove it.

    `cost_ns` is what it takes a step: time on the critical path, or time that CPU calls stand
    blocked. `answers` are changes that a person can make, simulated, the one that saves most first.
    `limit` is the step if the cost were gone, where no change of the list takes it away as a whole.
    """

    sort: str
    place: Place
    count: float  # tasks a step
    cost_ns: int
    tasks: Selection
    answers: tuple[WhatIfResult, ...]
    limit: WhatIfResult | None = None

    @property
    def best(self) -> WhatIfResult | None:
        """The what-if that saves most, None if none gives an answer."""
        return next((answer for answer in self.answers if answer.saving_ns is not None), None)

    @property
    def saving_ns(self) -> int:
        """What the best what-if would save, without one what the cost's absence would; 0 if unknown."""
        told = self.best or self.limit
        return 0 if told is None or told.saving_ns is None else told.saving_ns


class Scene:
    """What the rules look at: the critical paths, the waits beside them, and somebody to ask."""

    def __init__(self, chain: Chain, asker: WhatIfRunner) -> None:
        self.chain, self.asker = chain, asker
        self.graph = chain.graph
        self.least_ns = LEAST * chain.step_ns

    @cached_property
    def phase(self) -> np.ndarray:
        """Phase of each stretch of the critical path."""
        return self.graph.columns["phase"][self.chain.task]

    @cached_property
    def idle(self) -> np.ndarray:
        """Stretches in which a thread records nothing for long."""
        chain = self.chain
        return chain.of(PathCause.UNTRACED) & (chain.ns >= max(LONG_GAP * chain.step_ns, LONG_GAP_NS))

    @cached_property
    def batches(self) -> np.ndarray:
        """Those in which a step waits for its batch: before its first copy, where no loader was recorded."""
        if len(self.graph.select(phase="data")):
            return np.zeros(len(self.idle), bool)
        try:
            awaited = untraced_waits(self.graph).tasks
        except NotApplicableError:
            return np.zeros(len(self.idle), bool)
        return np.asarray(self.idle & np.isin(self.chain.task, awaited.ids))

    @cached_property
    def syncs(self) -> Waits:
        """Calls that stand blocked until device work is done."""
        return waits(self.chain, Cause.SYNC)

    def found(
        self,
        sort: str,
        mask: np.ndarray,
        whatifs: Sequence[str],
        words: str,
        limit: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Iterator[Avoidable]:
        """Yield stretches of the critical path as an avoidable cost, if they take long enough.

        `limit` says what the cost is made of, as options of `scale`. `options` are those of the what-ifs.
        """
        chain = self.chain
        cost = chain.per_step(mask)
        if cost < max(self.least_ns, 1):
            return
        tasks = chain.tasks(mask, f"{words} on the critical path")
        count = len(np.unique(np.stack([chain.window[mask], chain.task[mask]]), axis=1).T) / len(chain.steps)
        place = place_of(self.graph, chain.task[mask], chain.ns[mask])
        answers = self.asker.best([(name, options or {}) for name in whatifs])
        without = None if limit is None else self.asker.without(**limit)
        yield Avoidable(sort, place, count, cost, tasks, tuple(answers), without)


def avoidable(chain: Chain, asker: WhatIfRunner) -> list[Avoidable]:
    """Return the avoidable costs, those first whose removal would save most.

    One what-if may remove several costs; it is told with the largest of them.
    """
    scene = Scene(chain, asker)
    found: list[Avoidable] = []
    costs = [each for rule in RULES for each in rule(scene)]
    # What removes graph breaks is told with them: of compiled code it removes nothing else.
    for each in sorted(costs, key=lambda each: (each.sort != BREAKS, -each.cost_ns)):
        told = {answer.command for other in found for answer in other.answers}
        answers = tuple(answer for answer in each.answers if answer.command not in told)
        if answers or each.limit is not None:
            found.append(replace(each, answers=answers))
    return sorted(found, key=lambda each: (-each.saving_ns, -each.cost_ns, each.sort))


def blocking_calls(scene: Scene) -> Iterator[Avoidable]:
    """A call that waits for the device holds up its thread, and the device runs dry behind it.

    Calls are told apart by their operator and by what they copy. A copy that blocks shows its
    wait in the copy itself or in the synchronization of the same operator call.
    """
    graph, found = scene.graph, scene.syncs
    tasks = Selection(graph, found.task)
    direction = _copied(graph, tasks)
    op, name = tasks.op, tasks.name
    allocates = np.array([bool(ALLOCATION.search(text)) for text in name.tolist()], bool)
    label = np.where((op != None) & ~allocates, op, name).astype(str)  # noqa: E711 - a column of texts and None
    keys, group = np.unique(np.char.add(np.char.add(direction.astype(str), "|"), label), return_inverse=True)
    group = group.reshape(-1)
    total = np.bincount(group, weights=found.ns, minlength=len(keys))
    for number in np.argsort(-total, kind="stable")[:MOST_WAITS].tolist():
        mine = group == number
        cost = found.per_step(mine)
        if cost < max(scene.least_ns, 1):
            continue
        copied = str(direction[mine][0])
        which = {"which": _exactly(str(label[mine][0]))}
        asked: list[tuple[str, Mapping[str, Any]]] = [("remove-sync", which)]
        if copied == "to the device":
            asked = [("pinned-memory", {}), ("prefetch", {}), *asked]
        sort = f"blocking copies {copied}" if copied else "synchronization"
        yield Avoidable(
            sort,
            replace(place_of(graph, found.task[mine], found.ns[mine]), label=str(label[mine][0])),
            int(mine.sum()) / found.steps,
            cost,
            tasks.of(np.unique(found.task[mine]), f"{sort}: waits of {label[mine][0]}"),
            tuple(scene.asker.best(asked)),
        )


def data_loading(scene: Scene) -> Iterator[Avoidable]:
    """The step waits for its batch where loading is on the critical path.

    Where worker processes load already, twice as many of them are asked about.
    """
    mask = scene.chain.of(PathCause.LOADING) | scene.batches
    loading, asked, limit = scene.graph.select(kind="cpu", phase="data"), ["dataloader"], None
    options: Mapping[str, Any] = {}
    if loads_by_processes(loading):
        seen = recorded_waits(scene.graph, loading).workers()
        asked, options = (["dataloader"], {"workers": 2 * seen}) if seen else ([], {})
        limit = {"on": "cpu", "phase": "data"}
    yield from scene.found("data loading", mask, asked, "data loading", limit, options)


def exposed_communication(scene: Scene) -> Iterator[Avoidable]:
    """A collective costs what nothing else hides; a network without limits shows how much that is."""
    mask, asked = scene.chain.of(PathCause.COMMUNICATION), ["overlap", "compression"]
    yield from scene.found("exposed communication", mask, asked, "collectives", {"kind": "collective"})


def stragglers(scene: Scene) -> Iterator[Avoidable]:
    """Where the critical path of a rank's step runs on another rank, it waits for that one."""
    chain = scene.chain
    ranks = chain.column("rank")
    elsewhere = ranks != chain.windows[chain.window, 2]
    for cost in scene.found("stragglers", elsewhere, ["no-stragglers"], "work of other ranks"):
        total = np.bincount(ranks[elsewhere], weights=chain.ns[elsewhere])
        slowest = int(np.argmax(total))
        place = Place(f"rank {slowest}", float(total[slowest] / total.sum()))
        yield replace(cost, place=place)


def copies(scene: Scene) -> Iterator[Avoidable]:
    """A copy on the stream of the kernels holds them up for as long as it takes."""
    chain = scene.chain
    names = np.array([bool(TO_DEVICE.search(text)) for text in scene.graph.texts["name"]], bool)
    fits = names[scene.graph.columns["name"][chain.task]]
    on_path = chain.of(PathCause.COPIES)
    asked = ["prefetch", "pinned-memory"]
    yield from scene.found("copies to the device", on_path & fits, asked, "copies to the device")
    rest = {"kind": "memcpy", "name": f"^(?!.*({TO_DEVICE.pattern}))"}
    yield from scene.found("other copies", on_path & ~fits, [], "copies", rest)


def launching_by_the_cpu(scene: Scene) -> Iterator[Avoidable]:
    """Where the CPU is on the critical path of the model, it launches more slowly than the device works."""
    if not device_work(scene.graph)[scene.graph.alive].any():
        return
    mask = (
        scene.chain.of(PathCause.CPU, PathCause.UNTRACED, PathCause.LATENCY)
        & np.isin(scene.phase, [*MODEL, OPTIMIZER])
        & ~scene.idle
    )
    asked = ["cuda-graphs", "compile"]
    yield from scene.found("launch-bound CPU", mask, asked, "CPU work of forward, backward and optimizer")


def operators_on_the_cpu(scene: Scene) -> Iterator[Avoidable]:
    """Where nothing is launched to a device, the step is its operators: fewer of them cost fewer calls."""
    if device_work(scene.graph)[scene.graph.alive].any():
        return
    mask = scene.chain.of(PathCause.OPERATORS, PathCause.UNTRACED) & np.isin(scene.phase, MODEL) & ~scene.idle
    asked = ["compile", "flash-attention", "fused-cross-entropy"]
    yield from scene.found("CPU operators", mask, asked, "operators of forward and backward")


def graph_breaks(scene: Scene) -> Iterator[Avoidable]:
    """Between two graphs of one compiled call the program is in Python, and guards come before the next."""
    breaks = breaks_of(scene.graph)
    if not breaks:
        return
    ids = np.concatenate([each.tasks.ids for each in breaks])
    mask = np.isin(scene.chain.task, ids)
    first = breaks[0]
    for cost in scene.found(BREAKS, mask, ["compile"], "work between compiled graphs"):
        share = first.ns / max(sum(each.ns for each in breaks), 1)
        yield replace(cost, place=Place(first.reason, share, None, "forward", first.source))


def small_kernels(scene: Scene) -> Iterator[Avoidable]:
    """Each small kernel costs its fixed part and the pause behind it: fused, they cost that once."""
    mask = scene.chain.of(PathCause.SMALL, PathCause.BETWEEN) & np.isin(scene.phase, MODEL)
    yield from scene.found("small-kernel chains", mask, ["compile"], "small kernels")


def memory_bound_kernels(scene: Scene) -> Iterator[Avoidable]:
    """Kernels in a row read and write what one kernel would keep in registers: chains, scores, layouts."""
    mask = scene.chain.of(PathCause.MEMORY) & np.isin(scene.phase, MODEL)
    asked = ["compile", "flash-attention", "fused-cross-entropy", "fused-norm", "channels-last"]
    yield from scene.found("memory-bound kernels", mask, asked, "memory-bound kernels")


def other_kernels(scene: Scene) -> Iterator[Avoidable]:
    """Kernels that compute, or whose bound is unknown: attention and convolutions have others to choose."""
    mask = scene.chain.of(PathCause.COMPUTE, PathCause.KERNELS) & np.isin(scene.phase, MODEL)
    asked = ["flash-attention", "channels-last", "compile"]
    yield from scene.found("other kernels", mask, asked, "kernels not known to be bound by memory")


def between_batches(scene: Scene) -> Iterator[Avoidable]:
    """Work of the program itself that the step waits for: preparing a batch needs no place in the step.

    Told where lines of the program are recorded: without them nobody knows what it is.
    """
    chain = scene.chain
    mask = (
        chain.of(PathCause.CPU, PathCause.OPERATORS, PathCause.UNTRACED)
        & (scene.phase == OTHER)
        & ~scene.idle
    )
    for cost in scene.found("work between batches", mask, [], "CPU work", {"on": "cpu", "phase": "other"}):
        if cost.place.source is not None:
            yield cost


def updates(scene: Scene) -> Iterator[Avoidable]:
    """An update that goes parameter by parameter launches a kernel or more for each of them."""
    mask = scene.phase == OPTIMIZER
    asked = ["fused-adam", "fused-optimizer", "foreach-optimizer"]
    yield from scene.found("optimizer", mask, asked, "the optimizer's work")


def full_precision(scene: Scene) -> Iterator[Avoidable]:
    """Kernels in 32 bits move twice the bytes, and their products leave 16-bit units idle."""
    chain = scene.chain
    mask = chain.of(PathCause.COMPUTE, PathCause.MEMORY, PathCause.SMALL, PathCause.KERNELS)
    mask &= np.isin(scene.phase, MODEL) & (chain.column("dtype") == "float32")
    yield from scene.found("32-bit kernels", mask, ["amp", "autocast", "tf32"], "32-bit kernels")


def idle_gaps(scene: Scene) -> Iterator[Avoidable]:
    """Time in one piece in which a thread records nothing while the step waits for it."""
    code, texts = scene.graph.columns["name"][scene.chain.task], scene.graph.texts["name"]
    idle = scene.idle & ~scene.batches
    for number in np.unique(code[idle]).tolist():
        name = texts[number]
        gap = {"on": "cpu", "name": _exactly(name), "only_gaps": True}
        yield from scene.found("idle gap", idle & (code == number), [], f"untraced time after {name}", gap)


RULES: tuple[Callable[[Scene], Iterator[Avoidable]], ...] = (
    blocking_calls,
    data_loading,
    exposed_communication,
    stragglers,
    copies,
    launching_by_the_cpu,
    operators_on_the_cpu,
    graph_breaks,
    small_kernels,
    memory_bound_kernels,
    other_kernels,
    between_batches,
    updates,
    full_precision,
    idle_gaps,
)


def _exactly(name: str) -> str:
    """Return the regular expression that only this name matches."""
    return "^" + re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", name) + "$"


def _copied(graph: Any, tasks: Selection) -> np.ndarray:
    """Return for each waiting call what it copies: `to the device`, `from the device`, or an empty text."""
    columns = graph.columns
    moved = np.flatnonzero(graph.alive & (columns["kind"] == MEMCPY) & (columns["launch"] >= 0))
    texts = graph.texts["name"]
    words = np.array([
        "to the device" if TO_DEVICE.search(text) else "from the device" if FROM_DEVICE.search(text) else ""
        for text in texts
    ])  # fmt: skip
    found = np.full(len(tasks), "", dtype="<U16")
    if not len(moved) or not len(tasks):
        return found
    word = words[columns["name"][moved]]
    calls = Selection(graph, columns["launch"][moved].astype(np.int64))
    for column in ("call", "row"):  # the same operator call, else the very call; the latter is surer
        known = getattr(calls, column)
        order = np.argsort(known, kind="stable")
        mine = getattr(tasks, column)
        at = np.minimum(np.searchsorted(known[order], mine), len(order) - 1)
        same = (known[order][at] == mine) & (mine >= 0)
        found[same] = word[order][at][same]
    return found
