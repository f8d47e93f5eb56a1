"""Groups: the tasks of a selection by a key, with reductions and edits for all groups at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import first_of
from daydream.display import NotebookTables
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.edits import arrange, keep_waits, repeat
from daydream.graph.insert import place_next_to
from daydream.graph.plan import stable_order
from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.selection import Selection


class Groups(NotebookTables):
    """Selections of one graph, in the order of their first tasks.

    Iterating gives a Selection each; `items()` gives (key, Selection). `sizes`, `total(...)`
    and `first()`, `last()` give one value or one task per group, in the same order.

    Example::

        graph = daydream.build(daydream.load("examples/synthetic_gpt_gpu.json.gz"))
        layers = graph.select(kind="kernel", phase="forward").group_by("layer")
        for layer, kernels in layers.items():
            print(layer, kernels.total("duration_ns"))

    """

    def __init__(self, tasks: Selection, number: np.ndarray, keys: list[Any]) -> None:
        """Group tasks: `number[i]` is the place in `keys` of task i's group, -1 for none."""
        known = np.flatnonzero(number >= 0)
        first = first_of(number[known], len(keys))
        used = np.argsort(first)[np.count_nonzero(first < 0) :]
        place = np.empty(len(keys), np.int64)
        place[used] = np.arange(len(used))
        group = place[number[known]]
        order = stable_order(group, len(used))
        self.selection = tasks
        self.keys = [keys[number] for number in used.tolist()]
        self.sizes = np.bincount(group, minlength=len(used)).astype(np.int64)
        self._ids = tasks.ids[known][order]
        self._starts = np.append(0, np.cumsum(self.sizes))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Selection]:
        for number in range(len(self)):
            yield self._group(number)

    def __getitem__(self, key: Any) -> Selection:
        if key not in self.keys:
            raise GraphError(f"unknown group {key!r}; the groups are {', '.join(map(repr, self.keys[:20]))}")
        return self._group(self.keys.index(key))

    def __repr__(self) -> str:
        return f"<{len(self):,} groups of {int(self.sizes.sum()):,} tasks>"

    def items(self) -> Iterator[tuple[Any, Selection]]:
        """Return (key, Selection) of each group."""
        return zip(self.keys, self, strict=True)

    @property
    def tasks(self) -> Selection:
        """The tasks of all groups."""
        return self.selection.of(self._ids, self.selection.words)

    @property
    def by_group(self) -> Selection:
        """The tasks of all groups, those of one group behind one another."""
        return self.selection.of(self._ids, self.selection.words, ordered=True)

    def total(self, column: str) -> np.ndarray:
        """Return the sum of a column over each group, where it is known: shape (groups,), in its unit."""
        values = self.selection.graph.column(column, self._ids)
        if values.dtype.kind not in "iu":
            raise GraphError(f"{column!r} is a column of texts; there is nothing to sum")
        return np.add.reduceat(np.maximum(values, 0), self._starts[:-1])

    def first(self) -> Selection:
        """Return the first task of each group, one a group."""
        return self.selection.of(self._ids[self._starts[:-1]], f"first of {self!r}", ordered=True)

    def last(self) -> Selection:
        """Return the last task of each group, one a group."""
        return self.selection.of(self._ids[self._starts[1:] - 1], f"last of {self!r}", ordered=True)

    def where(self, test: np.ndarray | Callable[[Groups], np.ndarray]) -> Groups:
        """Return the groups a mask keeps: one value a group, or a function of these groups to one."""
        mask = np.asarray(test(self) if callable(test) else test, bool)
        kept = np.repeat(np.where(mask, np.arange(len(self)), -1), self.sizes)
        return Groups(self.by_group, kept, self.keys)

    def span(self, ends: Selection) -> Groups:
        """Return each group from its first to its last task that is in `ends`; without one, nothing of it."""
        seen = np.append(0, np.cumsum(np.isin(self._ids, ends.ids)))
        before = np.repeat(seen[self._starts[:-1]], self.sizes)
        through = np.repeat(seen[self._starts[1:]], self.sizes)
        within = (seen[1:] > before) & (seen[:-1] < through)
        number = np.repeat(np.arange(len(self)), self.sizes)
        return Groups(self.by_group, np.where(within, number, -1), self.keys)

    def take(self, places: np.ndarray) -> Groups:
        """Return the groups at these places, in that order."""
        chosen = places.tolist()
        ids = np.concatenate([self._ids[:0], *(self._group(place).ids for place in chosen)])
        tasks = self.selection.of(ids, self.selection.words, ordered=True)
        number = np.repeat(np.arange(len(chosen)), self.sizes[places])
        return Groups(tasks, number, [self.keys[place] for place in chosen])

    def fuse(self, name: str, *, duration_ns: Any = None, **columns: Any) -> Selection:
        """Put one task in the place of each group, with lane, kind and launch of its first; return them.

        It takes the group's time together unless `duration_ns` gives another, one value or
        one a group. The rest of each group goes, its launches too.
        """
        time = self.total("duration_ns") if duration_ns is None else duration_ns
        tasks = self.tasks.to_edit().need_all()
        graph = tasks.graph
        first = self.first()
        first.set(duration_ns=time, name=name, **columns)
        graph.remove((tasks - first).ids)
        return first

    def share_launch(self, name: str = "launch") -> Selection:
        """Let one call launch all the device work of each group, as a CUDA graph does; return those calls.

        It is the call of the group's first task, renamed; the others go. In program order the
        work comes right behind it; what ran between on its lane comes after.
        """
        graph = self.tasks.to_edit().need_all().graph
        columns = graph.columns
        ids = self._ids
        if (columns["kind"][ids] == CPU).any():
            raise GraphError("only device work is launched; select kernels or copies")
        call = columns["launch"][self.first().ids].astype(np.int64)
        if (call < 0).any():
            raise NotApplicableError("some of this work was launched before the window, no call to share")
        if len(np.unique(call)) < len(call):
            raise GraphError("two groups share a call already; put them in one group")
        keep_waits(graph, ids)
        old = columns["launch"][ids]
        graph.write("launch", ids, np.repeat(call, self.sizes))
        graph.write("name", call, graph.code("name", name))
        graph.write("alive", np.setdiff1d(old[old >= 0], columns["launch"][graph.alive]), False)
        # The calls' own places stay; the work goes right behind them, in its own order.
        graph.write("order", ids, place_next_to(graph, np.repeat(call, self.sizes), behind=True))
        return self.tasks.of(call, "shared launches", ordered=True)

    def repeat(self, times: int = 1, *, before: Selection | None = None, stay: bool = False) -> Selection:
        """Do the work of each group again: `times` copies right behind its last task; return the copies.

        Device work brings its launches along, calls bring their waits, and links among the
        tasks of a group are copied with them. With `before` (one task a group) the copies
        come right before that task in program order, and their CPU work runs on its thread
        unless it is to `stay` on those it was recorded on. Another thread's idle time behind its
        last task of a group is not copied.
        """
        return repeat(self, times, before, stay=stay)

    def with_copies(self, times: int) -> Groups:
        """Repeat the groups; return them and their copies as groups with keys (key, number), from 0.

        Copies run on the lanes of what they copy. Raises `NotApplicableError` where some device work was
        launched by a call outside of its group.
        """
        own, copies = self.by_group, self.repeat(times, stay=True)
        if len(copies) != len(own) * times:
            raise NotApplicableError("some of the work to be copied was launched by calls outside of it")
        keys = [(key, 0) for key in self.keys]
        keys += product(self.keys, range(1, times + 1))
        sizes = np.append(self.sizes, np.repeat(self.sizes, times))
        tasks = own.of(np.append(own.ids, copies.ids), own.words, ordered=True)
        return Groups(tasks, np.repeat(np.arange(len(keys)), sizes), keys)

    def arrange(self, ranks: Any) -> Selection:
        """Let the groups come one behind another in this order, each on the lanes of a rank (one a group).

        In each step they take the place in program order that they have together; what each needs must
        come before it. Rank 0 stays on its lanes; rank 1 gets lanes like them (`rank 1 stream 7`), with all
        CPU work of a rank on one thread. Waits keep to the rank, links stay as they are.
        """
        return arrange(self, ranks)

    def _group(self, number: int) -> Selection:
        ids = self._ids[self._starts[number] : self._starts[number + 1]]
        words = f"{self.selection.words}, {self.keys[number]!r}".strip(", ")
        return self.selection.of(ids, words, ordered=True)
