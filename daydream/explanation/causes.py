"""The critical path of the covered steps as causes: what a step's time is spent on, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from daydream.arrays import unique
from daydream.costs.kernel_names import family
from daydream.costs.kernels import LATENCY_SHARE, bound, floor_ns
from daydream.errors import NotApplicableError
from daydream.graph.graph import KINDS, Graph
from daydream.graph.query.device import whole_duration_ns
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL
from daydream.simulate.causes import CAUSES, Bound, PathCause
from daydream.simulate.path_causes import Pieces, codes_of, pieces_of
from daydream.simulate.timeline import Timeline

OF_KERNELS = {
    "compute": PathCause.COMPUTE,
    "memory": PathCause.MEMORY,
    "latency": PathCause.SMALL,
    "unknown": PathCause.KERNELS,
}
MOST_PARTS = 5


class Part(NamedTuple):
    """What a share is made of: an operator, or kernels of one family."""

    name: str
    ns: int


class Share(NamedTuple):
    """One cause: its time on the critical path of a step, the tasks it lies in, and its largest parts."""

    cause: PathCause
    ns: int
    share: float
    tasks: Selection
    largest: tuple[Part, ...]

    @property
    def bound(self) -> Bound:
        """What the step waits for: GPU, CPU, copies, communication or other."""
        return self.cause.bound


@dataclass(frozen=True, eq=False)
class Chain(Pieces):
    """The critical path of some steps: pieces of time, each with its cause."""

    timeline: Timeline
    steps: tuple[int, ...]
    cause: np.ndarray  # int64, code of a `PathCause`

    @property
    def graph(self) -> Graph:
        """The graph that was simulated."""
        return self.timeline.graph

    @property
    def step_ns(self) -> float:
        """Mean time of the steps."""
        return float(self.ns.sum()) / len(self.steps)

    def per_step(self, mask: np.ndarray) -> int:
        """Return the time of some stretches, per step."""
        return round(float(self.ns[mask].sum()) / len(self.steps))

    def of(self, *causes: PathCause) -> np.ndarray:
        """Return a mask of the stretches of these causes."""
        return np.isin(self.cause, [each.code for each in causes])

    def column(self, name: str) -> np.ndarray:
        """Return a column of the graph for each stretch's task."""
        return self.graph.column(name, self.task)

    def tasks(self, mask: np.ndarray, words: str) -> Selection:
        """Return the tasks of some stretches as a selection."""
        some = Selection(self.graph, np.empty(0, np.int64), words)
        chosen = np.zeros(self.graph.size, bool)
        chosen[self.task[mask]] = True
        return some.of(np.flatnonzero(chosen), words)


def trace_back(timeline: Timeline, copy: int, steps: Sequence[int]) -> Chain:
    """Return the critical path of some covered steps of one copy of a timeline's window."""
    pieces, graph = pieces_of(timeline, copy, steps), timeline.graph
    cause = codes_of(graph, pieces.task, pieces.edge)
    # Work of kernels that were traced; memory sets are none, and their bound is not asked.
    chosen = (cause == PathCause.KERNELS.code) & (graph.columns["kind"][pieces.task] == KERNEL)
    kernels, place = np.unique(pieces.task[chosen], return_inverse=True)
    if len(kernels):
        cause[chosen] = _bounds(graph, kernels)[place.reshape(-1)]
    return Chain(**vars(pieces), timeline=timeline, steps=tuple(steps), cause=cause)


def shares(chain: Chain) -> list[Share]:
    """Return the causes of the critical path, those first that take longest; together they are the step."""
    found = []
    for code in unique(chain.cause).tolist():
        cause = CAUSES[code]
        mask = chain.cause == code
        tasks = chain.tasks(mask, f"{cause.label} on the critical path")
        ns = chain.per_step(mask)
        found.append(Share(cause, ns, ns / max(chain.step_ns, 1), tasks, tuple(_largest(chain, mask))))
    return sorted(found, key=lambda share: (-share.ns, share.cause))


def labels(graph: Graph, tasks: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return what each task is called in a sentence, as codes and the texts they point into.

    That is its operator on the CPU, the family of a kernel, the name of all else.
    """
    columns = graph.columns
    kind, row = columns["kind"][tasks].astype(np.int64), columns["row"][tasks]
    key = (columns["name"][tasks].astype(np.int64) + 1) * (len(graph.texts["op"]) + 1) + columns["op"][tasks]
    key = (key * len(KINDS) + kind) * 2 + (row >= 0)
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    some = tasks[first]
    texts = [
        _label(*each)
        for each in zip(
            graph.column("kind", some), graph.column("name", some), graph.column("op", some), row[first] >= 0,
            strict=True,
        )
    ]  # fmt: skip
    distinct = list(dict.fromkeys(texts))
    code = np.array([distinct.index(text) for text in texts], np.int64)
    return code[place.reshape(-1)], distinct


def _label(kind: str, name: str | None, op: str | None, recorded: object) -> str:
    if kind == "cpu":
        return op or name or "CPU work"
    return family(name or kind) if recorded and kind in {"kernel", "collective"} else name or kind


def _largest(chain: Chain, mask: np.ndarray) -> list[Part]:
    code, names = labels(chain.graph, chain.task[mask])
    total = np.bincount(code, weights=chain.ns[mask])
    order = np.argsort(-total, kind="stable")[:MOST_PARTS]
    return [Part(names[each], round(total[each] / len(chain.steps))) for each in order]


def _bounds(graph: Graph, kernels: np.ndarray) -> np.ndarray:
    """Return what bounds each kernel; without known peaks only the small ones are told from the others."""
    chosen = Selection(graph, kernels)
    try:
        kind = bound(graph, chosen).kind
    except NotApplicableError:
        small = whole_duration_ns(chosen) < LATENCY_SHARE * floor_ns(graph)
        kind = np.where(small, "latency", "unknown")
    return np.array([OF_KERNELS[each].code for each in kind.tolist()])
