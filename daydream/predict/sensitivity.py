"""Sensitivity: the step time against the speed of each part of the work.

For every layer, operator, kernel family, link and CPU cost the question of a causal
profiler: if this part alone took 75 %, 50 %, 25 % or none of its time, how long would a step
take? A part that takes long but is hidden behind other work has a flat curve. Where a curve
bends, something else has begun to decide: that is its knee.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.kernel_names import family
from daydream.display import NotebookFigure, as_json
from daydream.graph.graph import Graph
from daydream.graph.tables import COLLECTIVE, CPU, KERNEL, MEMCPY
from daydream.predict.replay import Replay, as_replay
from daydream.simulate.steady_variants import Speedup, settle_all

if TYPE_CHECKING:
    import os

    import pandas as pd

    from daydream.trace.trace import Trace

FACTORS = (0.75, 0.5, 0.25, 0.0)
LEAST_SHARE = 0.002  # of a step: what takes less on its own is left out, it cannot save more
MOST_PARTS = 40  # of each sort, those that take longest
KNEE = 0.5  # beyond the knee a quarter of the part's time saves less than this much of what the first did
LEAST_GAIN = 0.0005  # of a step: what saves less is flat


@dataclass(frozen=True)
class Curve:
    """The step time when one part of the work takes `factors` of its time.

    `own_ns` is the part's own time per step, hidden or not.
    """

    sort: str  #: layer, operator, kernel, link or cpu
    name: str
    own_ns: int
    factors: tuple[float, ...]
    step_ns: tuple[int, ...]

    @property
    def saving_ns(self) -> int:
        """What a step would save if the part took no time."""
        return self.step_ns[0] - self.step_ns[-1]

    @property
    def knee(self) -> float | None:
        """The factor at which making the part faster stops paying: 0 if it pays to the end, None if never."""
        gains = -np.diff(self.step_ns) / -np.diff(self.factors)
        if gains[0] * (self.factors[0] - self.factors[1]) < LEAST_GAIN * self.step_ns[0]:
            return None
        stops = np.flatnonzero(gains < KNEE * gains[0])
        return self.factors[stops[0]] if len(stops) else self.factors[-1]

    def to_json(self) -> dict[str, Any]:
        """Return the curve as `rank --json` prints it."""
        return as_json(self, "sort name own_ns factors step_ns knee saving_ns")


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
    gaps: bool = False
    durations: bool = True


def curves(source: Replay | Graph | Trace | str | os.PathLike[str]) -> Curves:
    """Return the curves of everything that takes time, those first whose removal would save most.

    Returns:
        Of each layer, operator, kernel family, link and CPU cost: the step, in ns, at shares of its time.

    Raises:
        GraphError: the trace covers no step.

    """
    before = as_replay(source)
    now, settled = before.settled.step_ns, before.settled.step_times()
    parts = list(_parts(before.graph, now))
    speedups = [Speedup(p.ids, FACTORS, p.gaps, p.durations) for p in parts]
    found = settle_all(before.graph, speedups, passes=before.settled.judged)
    columns = [column for column, step in enumerate(found.steps) if step in settled]
    times = found.step_ns[:, columns]
    work = np.array([settled[found.steps[column]] for column in columns])
    there = times >= 0
    whole = np.where(there, work, 0).sum(axis=1)  # 0 where no step takes any time
    share = np.where(there, times, 0).sum(axis=1) / np.maximum(whole, 1)
    step = np.floor(now * share + 0.5).astype(np.int64).reshape(len(parts), len(FACTORS))
    drawn = [
        Curve(part.sort, part.name, part.own_ns, (1.0, *FACTORS), (now, *row))
        for part, row in zip(parts, step.tolist(), strict=True)
    ]
    return Curves(sorted(drawn, key=lambda curve: (-curve.saving_ns, -curve.own_ns, curve.sort, curve.name)))


def drawable(before: Replay) -> bool:
    """Tell whether there is any curve to draw, without drawing one."""
    return any(True for _ in _parts(before.graph, before.settled.step_ns))


def _parts(graph: Graph, step_ns: int) -> Iterator[_Part]:
    columns = graph.columns
    kind = np.where(graph.alive, columns["kind"], -1)
    cpu = kind == CPU
    yield from _by_code(
        graph, "layer", np.where(graph.alive, columns["layer"], -1), graph.texts["layer"], step_ns
    )
    yield from _by_code(
        graph, "operator", np.where(graph.alive, columns["op"], -1), graph.texts["op"], step_ns
    )
    names = graph.texts["name"]
    for sort, mask, label in (
        ("kernel", kind == KERNEL, family),
        ("link", kind == MEMCPY, str),
        ("link", kind == COLLECTIVE, family),
        ("cpu", cpu & _is_call(graph), str),
    ):
        codes, texts = _relabelled(np.where(mask, columns["name"], -1), names, label)
        yield from _by_code(graph, sort, codes, texts, step_ns)
    gaps = np.where(cpu & (columns["gap_ns"] > 0), 0, -1)
    yield from _by_code(graph, "cpu", gaps, ["untraced CPU time"], step_ns, of="gap_ns")
    threads = np.where(cpu, columns["lane"], -1)
    lanes = [f"all of {lane.name}" for lane in graph.lanes]
    yield from _by_code(graph, "cpu", threads, lanes, step_ns, of="both")


def _by_code(
    graph: Graph, sort: str, code: np.ndarray, texts: Sequence[str], step_ns: int, of: str = "duration_ns"
) -> Iterator[_Part]:
    """Yield the parts that a code cuts the tasks into, those that take longest first; -1 is none of them."""
    columns = graph.columns
    covered = np.array([bool(step.get("covered")) for step in graph.steps] + [False])
    cost = columns["duration_ns"] + columns["gap_ns"] if of == "both" else columns[of]
    counts = (code >= 0) & covered[columns["step"]]
    total = np.bincount(code[counts], weights=cost[counts], minlength=len(texts)) / max(int(covered.sum()), 1)
    chosen = [
        each
        for each in np.argsort(-total, kind="stable")[:MOST_PARTS]
        if total[each] >= LEAST_SHARE * step_ns
    ]
    for each in chosen:
        ids = np.flatnonzero(code == each)
        yield _Part(
            sort, texts[each], ids, round(total[each]), gaps=of != "duration_ns", durations=of != "gap_ns"
        )


def _relabelled(code: np.ndarray, texts: Sequence[str], label: Any) -> tuple[np.ndarray, list[str]]:
    """Return codes and texts after giving each text another label, the same one to several perhaps."""
    used = np.unique(code[code >= 0]).tolist()
    labels = [label(texts[each]) for each in used]
    new = list(dict.fromkeys(labels))
    place = {text: number for number, text in enumerate(new)}
    table = np.full(len(texts) + 1, -1)
    table[used] = [place[text] for text in labels]
    return table[code], new


def _is_call(graph: Graph) -> np.ndarray:
    """Return a mask of the runtime calls."""
    rows = graph.columns["row"]
    if graph.trace is None or not len(graph.trace):
        return np.zeros(graph.size, bool)
    return graph.trace.is_kind("runtime")[np.maximum(rows, 0)] & (rows >= 0)
