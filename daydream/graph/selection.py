"""Selection: a set of tasks of one graph, with the words that read and change them.

Text columns are matched by value (`kind`, `phase`, `dtype`, `lane`; a tuple means
any of them), by shell pattern (`layer`), or by regular expression (`name`, `op`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError, NoMatchError
from daydream.graph.columns import coded, read_column

if TYPE_CHECKING:
    import pandas as pd

    from daydream.graph.graph import Graph

BY_VALUE = ("kind", "phase", "dtype", "lane", "collective", "group")
BY_GLOB = ("layer",)
BY_REGEX = ("name", "op", "shapes")
LONGEST_NS = 2**52  # 52 days; sums over a trace stay exact
SETTABLE = ("duration_ns", "gap_ns", "latency_ns", "release_ns", "step")


class Selection:
    """Tasks of a graph, in program order. Attributes are columns: `kernels.duration_ns` is an array."""

    def __init__(self, graph: Graph, ids: np.ndarray, words: str = "") -> None:
        self.graph = graph
        self.ids = ids
        self.words = words  # how it was selected, for error messages

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Selection]:
        for task in self.ids.tolist():
            yield Selection(self.graph, np.array([task]), self.words)

    def __repr__(self) -> str:
        return f"<Selection of {len(self):,} tasks{': ' + self.words if self.words else ''}>"

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return read_column(self.graph, name, self.ids)
        except GraphError as error:
            raise AttributeError(str(error)) from None

    def __or__(self, other: Selection) -> Selection:
        self._same_graph(other)
        return self._with(np.union1d(self.ids, other.ids), f"({self.words} or {other.words})")

    def __and__(self, other: Selection) -> Selection:
        self._same_graph(other)
        return self._with(self.ids[np.isin(self.ids, other.ids)], f"{self.words}, {other.words}")

    def __sub__(self, other: Selection) -> Selection:
        self._same_graph(other)
        return self._with(self.ids[~np.isin(self.ids, other.ids)], f"{self.words} without ({other.words})")

    def _same_graph(self, other: Selection) -> None:
        if other.graph is not self.graph:
            raise GraphError("selections of two graphs have nothing in common; select from one of them")

    def _with(self, ids: np.ndarray, words: str) -> Selection:
        order = self.graph.columns["order"][ids]
        return Selection(self.graph, ids[np.argsort(order, kind="stable")], words)

    def where(self, test: Callable[[Selection], np.ndarray] | None = None, **where: Any) -> Selection:
        """Return the tasks that match the words and pass `test`, a function from this selection to a mask."""
        chosen = self
        if test is not None:
            mask = np.asarray(test(self), bool)
            chosen = Selection(self.graph, self.ids[mask], f"{self.words}, a test".strip(", "))
        return select(self.graph, chosen.ids, where, chosen.words)

    # reading

    def first(self) -> Selection:
        """Return the first task in program order."""
        return self.head(1)

    def last(self) -> Selection:
        """Return the last task in program order."""
        self._need()
        return Selection(self.graph, self.ids[-1:], f"last of {self.words}")

    def head(self, count: int) -> Selection:
        """Return the first tasks in program order."""
        self._need()
        return Selection(self.graph, self.ids[:count], f"first {count} of {self.words}")

    def total(self, column: str) -> int:
        """Return the sum of a column over the tasks where it is known."""
        values = getattr(self, column)
        return int(values[values > 0].sum())

    def to_pandas(self) -> pd.DataFrame:
        """Return the tasks as a data frame indexed by id."""
        import pandas as pd

        names = ("name", "kind", "lane", "phase", "layer", "op", "step", "duration_ns", "gap_ns")
        return pd.DataFrame(
            {name: getattr(self, name) for name in names}, index=pd.Index(self.ids, name="task")
        )

    def split(self, column: str) -> list[Selection]:
        """Return one selection per known value of an integer column, such as `step`, least first."""
        values = getattr(self, column)
        return [
            Selection(self.graph, self.ids[values == value], f"{self.words}, {column}={value}")
            for value in np.unique(values[values >= 0]).tolist()
        ]

    def launches(self) -> Selection:
        """Return the calls that launched these device tasks."""
        launch = self.graph.columns["launch"][self.ids]
        return self._with(np.unique(launch[launch >= 0]), f"launches of {self.words}")

    def need(self, what: str) -> Selection:
        """Return the selection, or raise `NoMatchError` saying that the trace has no such thing."""
        if not len(self.ids):
            raise NoMatchError(f"this trace has no {what}")
        return self

    # changing

    def scale(self, factor: float, *, gaps: bool = False) -> Selection:
        """Multiply durations (with `gaps`, the untraced time after them too), rounding half up."""
        self._need()
        if not factor >= 0 or factor == float("inf"):
            raise GraphError(f"a factor must be 0 or more, not {factor}")
        columns = self.graph.columns
        longest = int(columns["duration_ns"][self.ids].max())
        if gaps:
            longest = max(longest, int(columns["gap_ns"][self.ids].max()))
        if longest * factor >= LONGEST_NS:
            raise GraphError(f"a factor of {factor:g} makes tasks longer than can be counted in nanoseconds")
        for name in ("duration_ns", "gap_ns") if gaps else ("duration_ns",):
            columns[name][self.ids] = np.floor(columns[name][self.ids] * factor + 0.5).astype(np.int64)
        return self

    def set(self, **columns: Any) -> Selection:
        """Give the tasks new values: durations, gaps, latencies and releases in ns, or a step."""
        self._need()
        for name, value in columns.items():
            if name not in SETTABLE:
                raise GraphError(f"cannot set {name!r}; settable are {', '.join(SETTABLE)}")
            values = np.floor(np.asarray(value, np.float64) + 0.5).astype(np.int64)
            if name != "step" and (values < 0).any():
                raise GraphError(f"{name} cannot be negative")
            self.graph.columns[name][self.ids] = values
            if name in ("latency_ns", "release_ns", "step"):
                self.graph.touch()
        return self

    def remove(self) -> None:
        """Take the tasks out; calls whose device work is all gone go with it."""
        self._need()
        self.graph.remove(self.ids)

    def replace(self, name: str, *, duration_ns: float, **columns: Any) -> Selection:
        """Put one task in the place of all of these: same lane, kind and launch as the first."""
        first = self.first()
        kept = first.ids
        self.graph.columns["name"][kept] = self.graph.code("name", name)
        self.graph.columns["row"][kept] = -1
        first.set(duration_ns=duration_ns, **columns)
        rest = self - first
        if len(rest):
            rest.remove()
        return first

    def _need(self) -> None:
        if not len(self.ids):
            raise NoMatchError(no_match(self.graph, self.words))


def select(graph: Graph, ids: np.ndarray, where: dict[str, Any], words: str = "") -> Selection:
    """Return those of `ids` that match every word of `where` (words with value None are left out)."""
    mask = np.ones(len(ids), bool)
    said = [words] if words else []
    for name, wanted in where.items():
        if wanted is None:
            continue
        said.append(f"{name}={wanted!r}")
        mask &= _matches(graph, ids, name, wanted)
    return Selection(graph, ids[mask], ", ".join(said))


def _matches(graph: Graph, ids: np.ndarray, name: str, wanted: Any) -> np.ndarray:
    if name == "on":
        if wanted not in ("cpu", "gpu"):
            raise GraphError(f"on={wanted!r}; choose cpu or gpu")
        on_device = graph.columns["kind"][ids] != 0
        return on_device if wanted == "gpu" else ~on_device
    options: list[Any] = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    if name in BY_VALUE + BY_GLOB + BY_REGEX:
        codes, texts = coded(graph, name, ids)
        _known(name, options)
        hits = [code for code, text in enumerate(texts) if _fits(name, text, options)]
        return np.isin(codes, hits)
    values = read_column(graph, name, ids)
    return np.isin(values, options)


def _fits(name: str, text: str, options: Iterable[str]) -> bool:
    if name in BY_REGEX:
        try:
            return any(re.search(option, text) for option in options)
        except re.error as error:
            raise GraphError(f"{name}: not a regular expression ({error})") from None
    if name in BY_GLOB:
        return any(fnmatch.fnmatchcase(text, option) for option in options)
    return text in options


def _known(name: str, options: Iterable[str]) -> None:
    from daydream.graph.graph import KINDS
    from daydream.trace import PHASES

    vocabulary = {"kind": KINDS, "phase": PHASES}.get(name)
    if vocabulary:
        for option in options:
            if option not in vocabulary:
                raise GraphError(f"unknown {name} {option!r}; choose from {', '.join(vocabulary)}")


def no_match(graph: Graph, words: str) -> str:
    """Return what to say when nothing matched: what is missing from the trace, and what to do."""
    lines = [f"no task matched {words or 'the selection'}."]
    columns = graph.columns
    if "phase=" in words and not (columns["phase"][graph.alive] >= 0).any():
        lines.append(
            "This trace has no phases: it has no optimizer or autograd ranges. Select by name or op."
        )
    if "layer=" in words and not (columns["layer"][graph.alive] >= 0).any():
        lines.append("This trace has no layers. Record it with `daydream collect`, or select by name or op.")
    if ("kernel" in words or "gpu" in words) and not (columns["kind"][graph.alive] > 0).any():
        lines.append("This trace holds no device work; it was recorded on the CPU only.")
    return "\n       ".join(lines)
