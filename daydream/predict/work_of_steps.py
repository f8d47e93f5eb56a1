"""The work of a step, counted and added up by layer, operator and name; and how two steps' work match."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from daydream.display import as_json
from daydream.graph.query.numbering import distinct_rows
from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


# Of its time: kernels of ResNet-50 recorded twice on a V100 differ by 0.3 % in the median, nine of ten by up
# to 2.5 %.
SAME = 0.05


@dataclass(frozen=True)
class Key:
    """Where work belongs: its layer and operator, where known, and its name (of a kernel, a copy, a call)."""

    layer: str | None
    operator: str | None
    name: str


@dataclass(frozen=True)
class Amount:
    """How often work is done in a step, and how long it takes, in ns; means over the covered steps."""

    count: float = 0.0
    ns: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.ns + other.ns)


Work: TypeAlias = Mapping[Key, Amount]
Label: TypeAlias = Callable[[Key], object]
_Place: TypeAlias = "Callable[[Key], tuple[str | None, str | None]]"


@dataclass(frozen=True)
class Change:
    """Some work of a step before and after, times in ns; `before` and `after` are the names it went by.

    Of several names those come first that take longest; none means that there is no such
    work on that side.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    before_count: float
    after_count: float
    before_ns: int
    after_ns: int
    layer: str | None = None
    operator: str | None = None

    @property
    def change_ns(self) -> int:
        """How much longer it takes after."""
        return self.after_ns - self.before_ns

    @property
    def state(self) -> str:
        """One of new, vanished, replaced (by other names), changed, same."""
        if not self.before or not self.after:
            return "vanished" if self.before else "new"
        if set(self.before) != set(self.after):
            return "replaced"
        often = round(self.before_count, 6) == round(self.after_count, 6)
        near = abs(self.change_ns) <= SAME * max(self.before_ns, self.after_ns)
        return "same" if often and near else "changed"

    def to_json(self) -> dict[str, object]:
        """Return the change as `compare --json` prints it."""
        return as_json(
            self,
            "before after layer operator state before_count after_count before_ns after_ns change_ns",
        )


def device_work(graph: Graph) -> dict[Key, Amount]:
    """Return the device work of a step: kernels, copies, collectives."""
    tasks = _of_covered_steps(graph, graph.columns["kind"] != CPU)
    return _added_up(graph, tasks, np.arange(len(tasks)))


def cpu_work(graph: Graph) -> dict[Key, Amount]:
    """Return the CPU work of a step by operator, waits not counted; what belongs to none has its own name.

    A call of an operator counts once, in however many pieces it was recorded.
    """
    background = np.array([lane.background for lane in graph.lanes] + [False])
    columns = graph.columns
    tasks = _of_covered_steps(graph, (columns["kind"] == CPU) & ~background[columns["lane"]])
    call = graph.column("call", tasks)
    row = columns["row"][tasks].astype(np.int64)
    rows = 0 if graph.trace is None else len(graph.trace)
    alone = np.where(row >= 0, row, rows + tasks)  # what an edit inserted is a piece of nothing else
    piece_of = np.where(call >= 0, call, -1 - alone)
    return _added_up(graph, tasks, piece_of, by_operator=True)


def _of_covered_steps(graph: Graph, mask: np.ndarray) -> np.ndarray:
    columns = graph.columns
    covered = np.array([bool(step.get("covered")) for step in graph.steps] + [False])
    # Where ranks meet, an arrival stands in the graph that takes no time and is no work.
    works = (columns["row"] >= 0) | (columns["duration_ns"] > 0)
    return np.flatnonzero(mask & graph.alive & works & covered[columns["step"]])


def _added_up(
    graph: Graph, tasks: np.ndarray, piece_of: np.ndarray, *, by_operator: bool = False
) -> dict[Key, Amount]:
    """Return count and time a step; tasks with the same `piece_of` and key count once."""
    columns = graph.columns
    steps = sum(bool(step.get("covered")) for step in graph.steps)
    name, op = columns["name"][tasks], columns["op"][tasks]
    if by_operator:
        name = np.where(op >= 0, -1, name)
    first, group = distinct_rows([columns["layer"][tasks], op, name])
    ns = np.bincount(group, weights=columns["duration_ns"][tasks], minlength=len(first))
    single, _ = distinct_rows([group, piece_of])
    count = np.bincount(group[single], minlength=len(first))
    texts = [graph.column(column, tasks[first]).tolist() for column in ("layer", "op", "name")]
    found: dict[Key, Amount] = {}
    for layer, operator, text, often, time in zip(*texts, count.tolist(), ns.tolist(), strict=True):
        own = operator or text or "unnamed"
        key = Key(layer, own, own) if by_operator else Key(layer, operator, text or "unnamed")
        found[key] = found.get(key, Amount()) + Amount(often / steps, time / steps)
    return found


def layer_changes(before: Work, after: Work) -> list[Change]:
    """Return the change of each layer, the largest first; `no layer` is what belongs to none."""

    def layer(key: Key) -> Key:
        return Key(key.layer, None, key.layer or "no layer")

    return _matched(_added(before, layer), _added(after, layer), [layer], lambda key: (key.layer, None))


def operator_changes(before: Work, after: Work) -> list[Change]:
    """Return the change of each operator of each layer, the largest first.

    What is left over is matched by operator alone, as layers may go by other names, and
    then by layer: there another operator does the work.
    """

    def operator(key: Key) -> Key:
        return Key(key.layer, key.operator, key.operator or "no operator")

    labels: list[Label] = [lambda key: key, lambda key: key.operator, lambda key: key.layer]
    return _matched(
        _added(before, operator), _added(after, operator), labels, lambda key: (key.layer, key.operator)
    )


def name_changes(before: Work, after: Work) -> list[Change]:
    """Return what became of the kernels (copies, collectives), the largest change first.

    A name in a layer and operator is the same work as that name there; what is left over in
    a layer and operator on both sides has replaced each other. Then the layers, which may be
    called otherwise, are set aside, and at last the operators. What still has no match is
    new or vanished.
    """
    labels: list[Label] = [
        lambda key: key,
        lambda key: key.operator and (key.layer, key.operator),
        lambda key: (key.operator, key.name),
        lambda key: key.operator,
        lambda key: key.name,
        lambda key: key.layer,
    ]
    return _matched(before, after, labels, lambda key: (None, key.operator))


def _added(work: Work, label: Callable[[Key], Key]) -> dict[Key, Amount]:
    found: dict[Key, Amount] = defaultdict(Amount)
    for key, amount in work.items():
        found[label(key)] += amount
    return dict(found)


def _matched(before: Work, after: Work, labels: Sequence[Label], place: _Place) -> list[Change]:
    """Return the changes when what has the same label is one, by the first of the labels where both have it.

    Those with the same place and names on both sides are added up.
    """
    left, right = dict(before), dict(after)
    pairs: list[tuple[list[Key], list[Key]]] = []
    for label in labels:
        old, new = _together(left, label), _together(right, label)
        for each in [each for each in old if each in new]:
            pairs.append((old[each], new[each]))
            for key in old[each]:
                del left[key]
            for key in new[each]:
                del right[key]
    pairs += [([key], []) for key in left] + [([], [key]) for key in right]
    found: dict[Any, tuple[Counter[str], Counter[str], list[Amount]]] = {}
    for keys in pairs:
        names = tuple(frozenset(key.name for key in side) for side in keys)
        each = place((keys[0] or keys[1])[0]), names
        *times, amounts = found.setdefault(each, (Counter(), Counter(), [Amount(), Amount()]))
        for side, work in enumerate((before, after)):
            for key in keys[side]:
                amounts[side] += work[key]
                times[side][key.name] += round(work[key].ns)
    made = [
        Change(_names(one), _names(two), old.count, new.count, round(old.ns), round(new.ns), *where)
        for (where, _), (one, two, (old, new)) in found.items()
    ]
    return sorted(made, key=lambda each: (-abs(each.change_ns), each.before, each.after, each.layer or ""))


def _names(times: Counter[str]) -> tuple[str, ...]:
    """Return the names, those first that take longest."""
    return tuple(sorted(times, key=lambda name: (-times[name], name)))


def _together(work: Work, label: Label) -> dict[object, list[Key]]:
    """Return the keys with the same label; those without one are left out."""
    found: dict[object, list[Key]] = {}
    for key in work:
        if label(key) is not None:
            found.setdefault(label(key), []).append(key)
    return found
