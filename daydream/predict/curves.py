"""Curves: the step time against the speed of each part of the work.

For every layer, operator, kernel family, link and CPU cost the question of a causal
profiler: if this part alone took 75 %, 50 %, 25 % or none of its time, how long would a step
take? A part that takes long but is hidden behind other work has a flat curve. Where a curve
bends, something else has begun to decide: that is its knee.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daydream.arrays import distinct
from daydream.costs.kernel_names import family
from daydream.display import NotebookFigure
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, CPU, KERNEL, MEMCPY, covered_steps
from daydream.predict.replay import Replay, as_replay
from daydream.results import Record
from daydream.simulate.steady_state import settle

if TYPE_CHECKING:
    import os

    import pandas as pd

    from daydream.trace.trace import Trace

FACTORS = (0.75, 0.5, 0.25, 0.0)
LEAST_SHARE = 0.002  # of a step: what takes less on its own is left out, it cannot save more
MOST_PARTS = 10  # of each sort, those that take longest
KNEE = 0.5  # beyond the knee a quarter of the part's time saves less than this much of what the first did
LEAST_GAIN = 0.0005  # of a step: what saves less is flat


class Curve(Record):
    """The step time when one part of the work takes some factors of its time.

    Attributes:
        sort: layer, operator, kernel, link or cpu.
        name: the part.
        own_ns: its own time per step, hidden or not.
        factors: of its time, from 1.
        step_ns: the step at each of these.
        knee: the factor at which making it faster stops paying: 0 if it pays to the end, None if never.
        saving_ns: what a step would save if it took no time.
    """

    sort: str
    name: str
    own_ns: int
    factors: tuple[float, ...]
    step_ns: tuple[int, ...]
    knee: float | None = None
    saving_ns: int = 0

    def __post_init__(self) -> None:
        """Fill in what the curve tells."""
        self.saving_ns = self.step_ns[0] - self.step_ns[-1]
        gains = -np.diff(self.step_ns) / -np.diff(self.factors)
        if gains[0] * (self.factors[0] - self.factors[1]) >= LEAST_GAIN * self.step_ns[0]:
            stops = np.flatnonzero(gains < KNEE * gains[0])
            self.knee = self.factors[stops[0]] if len(stops) else self.factors[-1]


class Curves(NotebookFigure, list[Curve]):
    """Curves in a list, those first whose absence would save most."""

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per curve: the part, its own time, the step time at each factor, the knee."""
        import pandas as pd

        return pd.DataFrame([curve.to_json() for curve in self])


@dataclass(frozen=True, eq=False)
class _Part:
    sort: str
    name: str
    ids: np.ndarray
    own_ns: int
    of: str = "duration_ns"  # which times of its tasks: durations, gaps or both

    def step_ns(self, before: Replay, factor: float) -> int:
        """Return the step, in ns, where the part takes so much of its time."""
        graph = before.graph.copy()
        tasks = graph.tasks(self.ids)
        if self.of == "gap_ns":
            tasks.set(gap_ns=np.floor(tasks.gap_ns * factor + 0.5).astype(np.int64))
        else:
            tasks.scale(factor, gaps=self.of == "both")
        return before.settled.mean_after(settle(graph))


def curves(source: Replay | Graph | Trace | str | os.PathLike[str]) -> Curves:
    """Return the curves of the parts that take longest, those first whose removal would save most.

    Returns:
        Of each layer, operator, kernel family, link and CPU cost: the step, in ns, at shares of its time.

    Raises:
        GraphError: the trace covers no step.

    """
    before = as_replay(source)
    now = before.settled.step_ns
    drawn = [
        Curve(
            part.sort, part.name, part.own_ns, (1.0, *FACTORS),
            (now, *(part.step_ns(before, factor) for factor in FACTORS)),
        )
        for part in _parts(before.graph, now)
    ]  # fmt: skip
    return Curves(sorted(drawn, key=lambda curve: (-curve.saving_ns, -curve.own_ns, curve.sort, curve.name)))


def drawable(before: Replay) -> bool:
    """Tell whether there is any curve to draw, without drawing one."""
    return any(True for _ in _parts(before.graph, before.settled.step_ns))


def _parts(graph: Graph, step_ns: int) -> Iterator[_Part]:
    """Yield the parts of each sort, those that take longest first."""
    columns, texts = graph.columns, graph.texts
    kind, covered = columns["kind"], covered_steps(graph)
    cpu, calls = kind == CPU, np.zeros(graph.size, bool)
    if graph.trace is not None and len(graph.trace):
        calls = graph.trace.is_kind("runtime")[np.maximum(columns["row"], 0)] & (columns["row"] >= 0)
    duration, gap = columns["duration_ns"], columns["gap_ns"]
    threads = [f"all of {lane.name}" for lane in graph.lanes]
    for sort, mask, code, names, label, of, cost in (
        ("layer", True, columns["layer"], texts["layer"], str, "duration_ns", duration),
        ("operator", True, columns["op"], texts["op"], str, "duration_ns", duration),
        ("kernel", kind == KERNEL, columns["name"], texts["name"], family, "duration_ns", duration),
        ("link", kind == MEMCPY, columns["name"], texts["name"], str, "duration_ns", duration),
        ("link", kind == COLLECTIVE, columns["name"], texts["name"], family, "duration_ns", duration),
        ("cpu", cpu & calls, columns["name"], texts["name"], str, "duration_ns", duration),
        ("cpu", cpu & (gap > 0), np.zeros(graph.size, int), ["untraced CPU time"], str, "gap_ns", gap),
        ("cpu", cpu, columns["lane"], threads, str, "both", duration + gap),
    ):
        ids = np.flatnonzero(graph.alive & mask & (code >= 0))
        used, place = distinct(code[ids])
        labels: dict[str, int] = {}  # with their numbers: several names may have one
        numbers = [labels.setdefault(label(names[each]), len(labels)) for each in used.tolist()]
        part, counts = np.array(numbers, np.int64)[place], covered[columns["step"][ids]]
        total = np.bincount(part[counts], cost[ids[counts]], len(labels)) / max(int(covered.sum()), 1)
        for each in np.argsort(-total, kind="stable")[:MOST_PARTS].tolist():
            if total[each] >= LEAST_SHARE * step_ns:
                yield _Part(sort, [*labels][each], ids[part == each], round(total[each]), of)
