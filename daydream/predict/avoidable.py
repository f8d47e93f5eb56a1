"""Avoidable costs: what a step could do without, and the what-ifs that may remove it.

A rule looks for a general cause on the critical path, or beside it, and says what it costs a step now. What
its absence would save is never derived from that: `daydream.predict.suggest` simulates it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from daydream.arrays import distinct_rows
from daydream.errors import NotApplicableError
from daydream.graph.calls import call_rows, device_work
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.selection import Selection
from daydream.graph.tables import MEMCPY
from daydream.lazy import regex
from daydream.model.graph_breaks import breaks_of
from daydream.model.loading import TO_DEVICE, untraced_waits
from daydream.predict.breakdown import Chain, labels, waits
from daydream.results import Live, Record
from daydream.simulate.critical_path import PathCause
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.transforms.real_change import why_not_offered
from daydream.transforms.registry import find

if TYPE_CHECKING:
    from daydream.predict.suggest import WhatIfResult

LEAST = 0.005  # of a step: what costs less is not worth a sentence
LONG_GAP = 0.01  # of a step: untraced time in one piece that is told by itself, if it is
LONG_GAP_NS = 500_000  # more than Python takes between two operators
MOST_WAITS = 4  # groups of waiting calls
MOSTLY = 0.5  # of a cost: what holds more of it names its place
FROM_DEVICE = r"DtoH|DeviceToHost"
BREAKS = "graph breaks"
ALLOCATION = regex(r"(?i)malloc|free")
MODEL = ("forward", "loss", "backward")

WhatIf: TypeAlias = tuple[str, Mapping[str, Any]]  # a name and its options


class Place(NamedTuple):
    """What holds the largest part of a cost, that part, and where it is; None where unknown."""

    label: str | None = None
    label_share: float = 0.0
    layer: str | None = None
    phase: str | None = None
    source: str | None = None


class Avoidable(Record, eq=False):
    """One avoidable cost: what it is, where, what it costs a step, and the what-ifs that remove it.

    Attributes:
        sort: what it is.
        label: what holds the largest part of it: the operator on the CPU, the family of a kernel.
        label_share: that part of the cost, 0 to 1.
        layer: where that is; None where unknown.
        phase: likewise.
        source: its line of the program.
        count_per_step: tasks.
        cost_ns: what it takes a step: time on the critical path, or time that CPU calls are blocked.
        selection: its tasks in words.
        tasks: how many they are.
        saving_ns: what the best what-if would save, without one what the cost's absence would.
        code: the line of a training script that makes the best change, None if none does.
        whatifs: the changes that may remove it, the one that saves most first.
        without_ns: the step if the cost were gone, where no change takes it away as a whole.
    """

    sort: str
    label: str | None
    label_share: float
    layer: str | None
    phase: str | None
    source: str | None
    count_per_step: float
    cost_ns: int
    selection: str
    tasks: int
    saving_ns: int | None = None
    code: str | None = None
    whatifs: Sequence[WhatIfResult] = ()
    without_ns: int | None = None

    selected = Live[Selection]()
    asked = Live[Sequence[WhatIf]]()  # the what-ifs that may remove it, before any was simulated
    made_of = Live["Mapping[str, Any] | None"]()  # what it is made of, as options of `scale`
    best = Live["WhatIfResult | None"]()  # the what-if that saves most, None if none gives an answer
    limit = Live["WhatIfResult | None"]()  # what the cost's absence gives


def _cost(
    chain: Chain,
    sort: str,
    tasks: Selection,
    place: Place,
    count: int,
    cost_ns: int,
    asked: Sequence[WhatIf],
    made_of: Mapping[str, Any] | None = None,
) -> Avoidable:
    found = Avoidable(sort, *place, count / len(chain.steps), cost_ns, tasks.words, len(tasks))
    return found.having(selected=tasks, asked=asked, made_of=made_of)


def _calls_that_block(chain: Chain) -> Iterator[Avoidable]:
    """Yield calls that wait for the device: each holds up its thread, and the device runs dry behind it.

    Calls are told apart by their operator and by what they copy. A copy that blocks shows its
    wait in the copy itself or in the synchronization of the same operator call.
    """
    graph = chain.graph
    task, ns = waits(chain, Cause.SYNC)
    tasks = Selection(graph, task)
    groups: dict[str, list[int]] = {}
    calls = zip(_copied(graph, tasks), tasks.op, tasks.name, strict=True)
    for place, (copied, op, name) in enumerate(calls):
        called = name if op is None or ALLOCATION.search(name) else op
        groups.setdefault(f"{copied}|{called}", []).append(place)
    for key in sorted(groups, key=lambda key: (-ns[groups[key]].sum(), key))[:MOST_WAITS]:
        mine = groups[key]
        cost_ns = chain.per_step(ns[mine])
        if cost_ns < max(LEAST * chain.step_ns, 1):
            continue
        copied, _, called = key.partition("|")
        asked: list[WhatIf] = [("remove-sync", {"which": _exactly(called)})]
        if copied == "to the device":
            asked = [("pinned-memory", {}), ("prefetch", {}), *asked]
        sort = f"blocking copies {copied}" if copied else "synchronization"
        where = place_of(graph, task[mine], ns[mine])._replace(label=called)
        blocked = chain.tasks(task[mine], f"{sort}: waits of {called}")
        yield _cost(chain, sort, blocked, where, len(mine), cost_ns, asked)


def _add(
    chain: Chain,
    found: list[Avoidable],
    sort: str,
    words: str,
    mask: np.ndarray,
    *whatifs: str | WhatIf,
    made_of: Mapping[str, Any] | None = None,
    place: Place | None = None,
    with_source: bool = False,
) -> None:
    """Add stretches of the path, if they take long enough, and if a line of the program is known.

    Args:
        chain: the path.
        found: what they are added to.
        sort: the sort of cost.
        words: what the stretches hold.
        mask: of the stretches of the path.
        whatifs: what may remove them, with options if any.
        made_of: see `Avoidable`.
        place: where the cost lies; by default where most of it does.
        with_source: whether a line has to be known.
    """
    window, task, ns = chain.window[mask], chain.task[mask], chain.ns[mask]
    cost_ns = chain.per_step(ns)
    if cost_ns < max(LEAST * chain.step_ns, 1):
        return
    place = place or place_of(chain.graph, task, ns)
    if with_source and place.source is None:
        return
    count = len(distinct_rows([window, task])[0])
    tasks = chain.tasks(task, f"{words} on the critical path")
    asked = [(each, {}) if isinstance(each, str) else each for each in whatifs]
    found.append(_cost(chain, sort, tasks, place, count, cost_ns, asked, made_of))


def _stretches(chain: Chain) -> list[Avoidable]:
    """Return stretches of the path that have a cause in common, with the what-ifs that may remove it."""
    graph, of, found = chain.graph, chain.of, list[Avoidable]()
    add = partial(_add, chain, found)
    code, texts = graph.columns["name"][chain.task], graph.texts["name"]
    # Stretches in which a thread records nothing for long.
    idle = of(PathCause.UNTRACED, PathCause.OUTSIDE) & (
        chain.ns >= max(LONG_GAP * chain.step_ns, LONG_GAP_NS)
    )
    # Those in which a step waits for its batch: before its first copy, where no loader was recorded.
    batches = np.zeros(len(idle), bool)
    if not len(graph.select(phase="data")):
        with suppress(NotApplicableError):
            batches = idle & np.isin(chain.task, untraced_waits(graph).tasks.ids)
    # Where worker processes load already, as many of them are asked about as the trace suggests.
    suggests = find("dataloader").suggested_options
    workers = {} if suggests is None else suggests(graph)
    add(
        "data loading", "data loading", of(PathCause.LOADING) | batches,
        *([] if workers is None else [("dataloader", workers)]),
        made_of=None if workers == {} else {"on": "cpu", "phase": "data"},
    )  # fmt: skip
    # Where the critical path of a rank's step runs on another rank, it waits for that one.
    ranks = graph.column("rank", chain.task)
    elsewhere = ranks != chain.windows[chain.window, 2]
    if elsewhere.any():
        total = np.bincount(ranks[elsewhere], weights=chain.ns[elsewhere])
        slowest = int(np.argmax(total))
        place = Place(f"rank {slowest}", float(total[slowest] / total.sum()))
        add("stragglers", "work of other ranks", elsewhere, "no-stragglers", place=place)
    # Between two graphs of one compiled call the program is in Python, and guards come before the next.
    if breaks := breaks_of(graph):
        first, whole = breaks[0], max(sum(each.ns for each in breaks), 1)
        mask = np.isin(chain.task, np.concatenate([each.tasks.ids for each in breaks]))
        place = Place(first.reason, first.ns / whole, None, "forward", first.source)
        add(BREAKS, "work between compiled graphs", mask, "compile", place=place)
    # Time in one piece in which a thread records nothing while the step waits for it.
    for number in np.unique(code[idle & ~batches]).tolist():
        gap = {"on": "cpu", "name": _exactly(texts[number]), "only_gaps": True}
        mask = idle & ~batches & (code == number)
        add("idle gap", f"untraced time after {texts[number]}", mask, made_of=gap)
    # A collective costs what nothing else hides; a network without limits shows how much that is.
    add(
        "exposed communication", "collectives", of(PathCause.COMMUNICATION), "overlap", "compression",
        made_of={"kind": "collective"},
    )  # fmt: skip
    # A copy on the stream of the kernels holds them up for as long as it takes.
    copies, to_device = of(PathCause.COPIES), _named(graph, TO_DEVICE)[code]
    add("copies to the device", "copies to the device", copies & to_device, "prefetch", "pinned-memory")
    add(
        "other copies", "copies", copies & ~to_device,
        made_of={"kind": "memcpy", "name": f"^(?!.*({TO_DEVICE}))"},
    )  # fmt: skip
    phase = graph.columns["phase"][chain.task]
    model = np.isin(phase, [PHASES.index(name) for name in MODEL])
    optimizer, other = (phase == PHASES.index(name) for name in ("optimizer", "other"))
    if device_work(graph)[graph.alive].any():
        # Where the CPU is on the critical path of the model, it launches more slowly than the device works.
        launches = of(PathCause.CPU, PathCause.UNTRACED, PathCause.LATENCY) & (model | optimizer) & ~idle
        add(
            "launch-bound CPU", "CPU work of forward, backward and optimizer", launches,
            "cuda-graphs", "compile",
        )  # fmt: skip
    else:
        # Where nothing is launched to a device, the step is its operators: fewer of them cost fewer calls.
        operators = of(PathCause.OPERATORS, PathCause.UNTRACED) & model & ~idle
        fused = ("compile", "flash-attention", "fused-cross-entropy")
        add("CPU operators", "operators of forward and backward", operators, *fused)
    # Each small kernel costs its fixed part and the pause behind it: fused, they cost that once.
    small = of(PathCause.SMALL, PathCause.BETWEEN) & model
    add("small-kernel chains", "small kernels", small, "compile")
    # Kernels in a row read and write what one kernel would keep in registers: chains, scores, layouts.
    add(
        "memory-bound kernels", "memory-bound kernels", of(PathCause.MEMORY) & model,
        "compile", "flash-attention", "fused-cross-entropy", "fused-norm", "channels-last",
    )  # fmt: skip
    # Kernels that compute, or whose bound is unknown: attention and convolutions have others to choose.
    add(
        "other kernels", "kernels not known to be bound by memory",
        of(PathCause.COMPUTE, PathCause.KERNELS) & model, "flash-attention", "channels-last", "compile",
    )  # fmt: skip
    # Work of the program itself that the step waits for: preparing a batch needs no place in the step. Told
    # where lines of the program are recorded: without them nobody knows what it is.
    add(
        "work between batches", "CPU work",
        of(PathCause.CPU, PathCause.OPERATORS, PathCause.UNTRACED) & other & ~idle,
        made_of={"on": "cpu", "phase": "other"}, with_source=True,
    )  # fmt: skip
    # An update that goes parameter by parameter launches a kernel or more for each of them.
    add(
        "optimizer", "the optimizer's work", optimizer,
        "fused-adam", "fused-optimizer", "foreach-optimizer",
    )  # fmt: skip
    # Kernels in 32 bits move twice the bytes, and their products leave 16-bit units idle.
    kernels = of(PathCause.COMPUTE, PathCause.MEMORY, PathCause.SMALL, PathCause.KERNELS) & model
    in_32_bits = graph.column("dtype", chain.task) == "float32"
    add("32-bit kernels", "32-bit kernels", kernels & in_32_bits, "amp", "tf32")
    return found


def avoidable_costs(chain: Chain) -> list[Avoidable]:
    """Return the avoidable costs of the steps, the largest first, each with the what-ifs that may remove it.

    One what-if may remove several costs; it is named with the largest of them. What the recorded script
    cannot have is not named.
    """
    # What removes graph breaks is named with them: of compiled code it removes nothing else.
    costs = sorted(
        [*_calls_that_block(chain), *_stretches(chain)],
        key=lambda each: (each.sort != BREAKS, -each.cost_ns),
    )
    names = {name for cost in costs for name, _ in cost.asked}
    offered = {name for name in names if why_not_offered(find(name), chain.graph) is None}
    named: list[WhatIf] = []
    for cost in costs:
        cost.asked = [each for each in cost.asked if each not in named and each[0] in offered]
        named += cost.asked
    return [cost for cost in costs if cost.asked or cost.made_of is not None]


def place_of(graph: Graph, tasks: np.ndarray, weights: np.ndarray) -> Place:
    """Return where the largest part of a cost lies; `weights` is each task's part of it."""
    if not len(tasks) or weights.sum() <= 0:
        return Place()
    code, names = labels(graph, tasks)
    total = np.bincount(code, weights=weights)
    largest = int(np.argmax(total))
    share = float(total[largest] / weights.sum())
    tasks, weights = tasks[code == largest], weights[code == largest]
    columns, trace = graph.columns, graph.trace
    layer = _most(columns["layer"][tasks], graph.texts["layer"], weights)
    phase = _most(columns["phase"][tasks], PHASES, weights)
    source = None
    if trace is not None and trace.text("stack"):  # of the operator call that holds most of the cost
        rows = call_rows(graph, tasks, inner=True)
        codes = np.where(rows >= 0, trace["stack"][rows], UNKNOWN)
        source = _most(codes, trace.text("stack"), weights)
    return Place(names[largest], share, layer, phase, source)


def _most(codes: np.ndarray, texts: Sequence[str], weights: np.ndarray) -> str | None:
    """Return the text that holds more than half of the weight, None if there is none or it is unknown."""
    total = np.bincount(codes + 1, weights)
    most = int(np.argmax(total))
    return ["", *texts][most] or None if total[most] > MOSTLY * weights.sum() else None


def _exactly(name: str) -> str:
    """Return the regular expression that only this name matches."""
    return "^" + re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", name) + "$"


def _named(graph: Graph, words: str) -> np.ndarray:
    """Return a mask of the names of a graph by their codes: those with these words; at its end for none."""
    return np.array([*(bool(re.search(words, text)) for text in graph.texts["name"]), False])


def _copied(graph: Graph, tasks: Selection) -> list[str]:
    """Return for each waiting call what it copies: `to the device`, `from the device`, or an empty text."""
    columns, found = graph.columns, [""] * len(tasks)
    moved = np.flatnonzero(graph.alive & (columns["kind"] == MEMCPY) & (columns["launch"] >= 0))[::-1]
    if not len(moved) or not len(tasks):
        return found
    code = columns["name"][moved]
    words = np.where(_named(graph, FROM_DEVICE)[code], "from the device", "")
    words = np.where(_named(graph, TO_DEVICE)[code], "to the device", words)
    calls = Selection(graph, columns["launch"][moved].astype(np.int64))
    for column in ("call", "row"):  # the same operator call, else the very call; the latter is surer
        known = dict(zip(getattr(calls, column).tolist(), words.tolist(), strict=True))
        known.pop(-1, None)
        waiting = zip(getattr(tasks, column).tolist(), found, strict=True)
        found = [known.get(call, before) for call, before in waiting]
    return found
