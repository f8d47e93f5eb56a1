"""Curves: the step time against the speed of each part of the work.

For every layer, operator, kernel family, link and CPU cost the question of a causal
profiler: if this part alone took 75%, 50%, 25% or none of its time, how long would a step
take? A part that takes long but is hidden behind other work has a flat curve. Where a curve
bends, something else has begun to decide: that is its knee.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from daydream.arrays import distinct
from daydream.costs.kernel_names import family
from daydream.graph.graph import Graph
from daydream.graph.tables import CODED, COLLECTIVE, COSTS, CPU, KERNEL, MEMCPY, covered_steps
from daydream.lazy import NotebookFigure
from daydream.predict.replay import Replay, Source, as_replay
from daydream.results import Record
from daydream.simulate.steady_state import settle

if TYPE_CHECKING:
    import pandas as pd


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


def curves(source: Replay | Graph | Source) -> Curves:
    """Return the curves of the parts that take longest, those first whose removal would save most.

    Returns:
        Of each layer, operator, kernel family, link and CPU cost: the step, in ns, at shares of its time.

    Raises:
        GraphError: the trace covers no step.

    """
    before = as_replay(source)
    now = before.settled.step_ns
    drawn = Curves()
    for sort, name, own_ns, ids, of in _parts(before.graph, now):
        steps_ns = [now]
        for factor in FACTORS:
            times = {each: before.graph.columns[each].copy() for each in COSTS}
            for each in of:
                times[each][ids] = np.floor(times[each][ids] * factor + 0.5)
            steps_ns.append(before.settled.mean_after(settle(before.graph.retimed(**times))))
        drawn.append(Curve(sort, name, own_ns, (1.0, *FACTORS), tuple(steps_ns)))
    drawn.sort(key=lambda curve: (-curve.saving_ns, -curve.own_ns, curve.sort, curve.name))
    return drawn


def drawable(before: Replay) -> bool:
    """Tell whether there is any curve to draw, without drawing one."""
    return any(True for _ in _parts(before.graph, before.settled.step_ns))


def _parts(graph: Graph, step_ns: int) -> Iterator[tuple[str, str, int, np.ndarray, Sequence[str]]]:
    """Yield the parts of each sort, those that take longest first.

    Sort, name, own time in ns, tasks, and which of their times are the part.
    """
    kind = graph.kind
    covered = covered_steps(graph)
    cpu = kind == CPU
    calls = graph.of_rows("runtime")
    work, gap = ([name] for name in COSTS)
    coded = {name: (graph.columns[name], graph.texts[name]) for name in CODED}
    coded["all"] = np.zeros(graph.size, int), ["untraced CPU time"]
    coded["lane"] = graph.lane, [f"all of {lane.name}" for lane in graph.lanes]
    for sort, mask, by, label, of in (
        ("layer", True, "layer", str, work),
        ("operator", True, "op", str, work),
        ("kernel", kind == KERNEL, "name", family, work),
        ("link", kind == MEMCPY, "name", str, work),
        ("link", kind == COLLECTIVE, "name", family, work),
        ("cpu", cpu & calls, "name", str, work),
        ("cpu", cpu & (graph.gap_ns > 0), "all", str, gap),
        ("cpu", cpu, "lane", str, [*COSTS]),
    ):
        code, names = coded[by]
        ids = np.flatnonzero(graph.alive & mask & (code >= 0))
        used, place = distinct(code[ids])
        labels: dict[str, int] = {}  # with their numbers: several names may have one
        numbers = [labels.setdefault(label(names[each]), len(labels)) for each in used.tolist()]
        part = np.array(numbers, np.int64)[place]
        counts = covered[graph.step[ids]]
        cost = sum(graph.columns[name][ids[counts]] for name in of)
        total = np.bincount(part[counts], cost, len(labels)) / max(int(covered.sum()), 1)
        for each in np.argsort(-total, kind="stable")[:MOST_PARTS].tolist():
            # A lane may go on behind the end of the step.
            own_ns = min(total[each], step_ns) if by == "lane" else total[each]
            if own_ns >= LEAST_SHARE * step_ns:
                yield sort, [*labels][each], round(own_ns), ids[part == each], of
