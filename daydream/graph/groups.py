"""Groups: the tasks of a selection by a key, with reductions and edits for all groups at once.

Their work can be done again, and they can be arranged one after another, each on the lanes of a rank of its
own: order on a lane is program order, so giving groups new keys of it says what every rank does first. The
order must be one in which the work can be done: what a group needs comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from daydream.arrays import distinct_rows, first_of
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import pieces_of
from daydream.graph.insert import place_next_to
from daydream.graph.lower import keep_waits
from daydream.graph.plan import stable_order
from daydream.graph.tables import CPU
from daydream.lazy import NotebookTables

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

NEW = ("order", "launch", "release_ns", "measured_start_ns", "repeat", "lane", "gap_ns", "alive")


class Groups(NotebookTables):
    """Selections of one graph, in the order of their first tasks.

    Iterating gives a Selection each; `items()` gives (key, Selection). `sizes`, `total(...)`
    and `first()`, `last()` give one value or one task per group, in the same order. `number` is
    the place of its group for each task that was grouped, -1 for none.

    Example::

        graph = daydream.build(daydream.load("examples/synthetic_gpt_gpu.json.gz"))
        layers = graph.select(kind="kernel", phase="forward").group_by("layer")
        for layer, kernels in layers.items():
            print(layer, kernels.total("duration_ns"))

    """

    def __init__(self, tasks: Selection, number: ndarray, keys: list[Any]) -> None:
        """Group tasks: `number[i]` is the place in `keys` of task i's group, -1 for none."""
        known = np.flatnonzero(number >= 0)
        first = first_of(number[known], len(keys))
        used = np.argsort(first)[np.count_nonzero(first < 0) :]
        place = np.full(len(keys) + 1, -1)
        place[used] = np.arange(len(used))
        self.number = place[number]
        group = self.number[known]
        order = stable_order(group, len(used))
        self.selection = tasks
        self.keys = [keys[number] for number in used.tolist()]
        self.sizes = np.bincount(group, minlength=len(used))
        self._ids = tasks.ids[known][order]
        self._number = group[order]  # of each task's group
        self._starts = np.append(0, np.cumsum(self.sizes))

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Selection]:
        return map(self._group, range(len(self)))

    def __getitem__(self, key: Any) -> Selection:
        if key not in self.keys:
            raise GraphError(
                f"unknown group {key!r}; the groups are {', '.join(map(repr, self.keys[:20]))}"
            )
        return self._group(self.keys.index(key))

    def __repr__(self) -> str:
        return f"<{len(self):,} groups of {self.sizes.sum():,} tasks>"

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

    def total(self, column: str | Sequence[float] | ndarray) -> ndarray:
        """Return the sum of a column over each group, where it is known: shape (groups,), in its unit.

        Numbers of your own, one for each task that was grouped, are summed alike.
        """
        if not isinstance(column, str):
            return np.bincount(self.number + 1, column, len(self) + 1)[1:]
        values = self.selection.graph.column(column, self._ids)
        if values.dtype.kind not in "iu":
            raise GraphError(f"{column!r} is a column of texts; there is nothing to sum")
        return np.add.reduceat(np.maximum(values, 0), self._starts[:-1])

    def first(self) -> Selection:
        """Return the first task of each group, one a group."""
        return self.by_group[self._starts[:-1]]

    def last(self) -> Selection:
        """Return the last task of each group, one a group."""
        return self.by_group[self._starts[1:] - 1]

    def where(self, test: Sequence[bool] | ndarray | Callable[[Groups], ndarray]) -> Groups:
        """Return the groups a mask keeps: one value a group, or a function of these groups to one."""
        mask = np.asarray(test(self) if callable(test) else test, bool)
        return Groups(self.by_group, np.where(mask[self._number], self._number, -1), self.keys)

    def span(self, ends: Selection) -> Groups:
        """Return each group from its first to its last task that is in `ends`; without one, nothing of it."""
        seen = np.append(0, np.cumsum(np.isin(self._ids, ends.ids)))
        before = seen[self._starts[self._number]]
        through = seen[self._starts[self._number + 1]]
        within = (seen[1:] > before) & (seen[:-1] < through)
        return Groups(self.by_group, np.where(within, self._number, -1), self.keys)

    def take(self, places: Sequence[int] | ndarray) -> Groups:
        """Return the groups at these places, in that order."""
        ids = np.concatenate([self._ids[:0], *(self._group(place).ids for place in places)])
        tasks = self.selection.of(ids, self.selection.words, ordered=True)
        number = np.repeat(np.arange(len(places)), self.sizes[places])
        return Groups(tasks, number, [self.keys[place] for place in places])

    def match(self, keys: Iterable[Any]) -> Groups:
        """Return the groups that have these keys, in their order; what no group has is left out."""
        place = {key: number for number, key in enumerate(self.keys)}
        return self.take([place[key] for key in keys if key in place])

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
        ids = self._ids
        if (graph.kind[ids] == CPU).any():
            raise GraphError("only device work is launched; select kernels or copies")
        call = graph.launch[self.first().ids].astype(np.int64)
        if (call < 0).any():
            raise NotApplicableError(
                "some of this work was launched before the window, no call to share"
            )
        if len(np.unique(call)) < len(call):
            raise GraphError("two groups share a call already; put them in one group")
        keep_waits(graph, ids)
        old = graph.launch[ids]
        graph.write("launch", ids, np.repeat(call, self.sizes))
        graph.write("name", call, graph.code("name", name))
        graph.write("alive", np.setdiff1d(old[old >= 0], graph.launch[graph.alive]), False)
        # The calls' own places stay; the work goes right behind them, in its own order.
        graph.write("order", ids, place_next_to(graph, np.repeat(call, self.sizes), behind=True))
        return self.tasks.of(call, "shared launches", ordered=True)

    def repeat(
        self, times: int = 1, *, before: Selection | None = None, stay: bool = False
    ) -> Selection:
        """Do the work of each group again: `times` copies right behind its last task; return the copies.

        Device work brings its launches along, calls bring their waits, and links among the
        tasks of a group are copied with them, those too that may be none. With `before` (one task
        a group) the copies come right before that task in program order, and their CPU work runs on its thread
        unless it is to `stay` on those it was recorded on. Another thread's idle time behind its
        last task of a group is not copied.
        """
        tasks = self.tasks.to_edit().need_all()
        graph = tasks.graph
        if not isinstance(times, int | np.integer) or times < 0:
            raise GraphError(f"work is repeated 0 or more times, not {times!r}")
        if times == 0:
            graph.write("repeat", tasks.ids, graph.repeat[tasks.ids])  # counts as an edit
            return tasks[:0]
        if before is not None and (before.graph is not graph or len(before) != len(self)):
            raise GraphError(
                f"{len(self)} groups need as many tasks to come before, not {len(before)}"
            )
        ids, group = self._with_launches(apart=before is not None)
        lane, gap, launch = (graph.columns[name][ids] for name in ("lane", "gap_ns", "launch"))
        if before is None:
            anchor = np.zeros(len(self), np.int64)
            anchor[group] = ids  # of what is assigned to one group, the last stays
        else:
            anchor = before.ids  # or what launches it: the CPU task on whose thread the copies run
            calls = graph.launch[anchor]
            anchor = np.where((graph.kind[anchor] != CPU) & (calls >= 0), calls, anchor)
            thread = graph.lane[anchor[group]]
            other = (graph.kind[ids] == CPU) & (lane != thread)
            # Behind a thread's last task of the group it idles, and that is not part of the work.
            from_end, _ = distinct_rows([group[::-1], lane[::-1]])
            idles = len(ids) - 1 - from_end
            gap[idles[other[idles]]] = 0
            lane = lane if stay else np.where(other, thread, lane)
        # Where the call of each is among them: that of its own group, if several have it.
        both = np.append(ids, launch)
        first, place = distinct_rows([both] if before is None else [np.tile(group, 2), both])
        call = np.where(launch >= 0, first[place[len(ids) :]], 0)

        number, entry = np.divmod(np.arange(times * len(ids)), len(ids))
        sequence = np.argsort(group[entry], kind="stable")  # pass after pass of each group
        number = number[sequence]
        entry = entry[sequence]
        copies = np.empty((times, len(ids)), np.int64)
        copies[number, entry] = graph.size + np.arange(len(entry))
        order = place_next_to(graph, anchor[group[entry]], behind=before is None)
        source = ids[entry]
        given = {name: graph.columns[name][source] for name in graph.columns if name not in NEW}
        highest = graph.repeat[graph.alive].max(initial=0)
        new = graph.add(
            len(source),
            order=order,
            repeat=highest + 1 + number,
            measured_start_ns=-1,
            lane=lane[entry],
            gap_ns=gap[entry],
            launch=np.where(launch[entry] >= 0, copies[number, call[entry]], -1),
            **given,
        )
        # Rows of tables whose tasks were all copied; links, and what may be one, within a group only. Of a task
        # that several groups have, its copies in the first one count.
        place = first_of(ids, graph.size)
        for table, *names in (
            (graph.syncs, "task", "point"),
            (graph.waits, "record", "wait"),
            (graph.links, "src", "dst"),
            (graph.doubtful, "src", "dst"),
        ):
            one, other = (place[table[name]] for name in names)
            both = (one >= 0) & (other >= 0)
            if "src" in names:
                both &= group[one] == group[other]
            rows = {name: np.tile(table[name][both], times) for name in table}
            ends = (copies[:, end[both]].reshape(-1) for end in (one, other))
            table.add(**rows | dict(zip(names, ends, strict=True)))
        return tasks.of(new, "repetitions", ordered=True)

    def with_copies(self, times: int) -> Groups:
        """Repeat the groups; return them and their copies as groups with keys (key, number), from 0.

        Copies run on the lanes of what they copy. Raises `NotApplicableError` where some device work was
        launched by a call outside of its group.
        """
        own = self.by_group
        copies = self.repeat(times, stay=True)
        if len(copies) != len(own) * times:
            raise NotApplicableError(
                "some of the work to be copied was launched by calls outside of it"
            )
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
        tasks = self.by_group.to_edit().need_all()
        graph = tasks.graph
        rank = np.asarray(ranks, np.int64)
        if rank.shape != (len(self),) or (rank < 0).any():
            raise GraphError(f"{len(self)} groups need as many ranks, each 0 or more, not {ranks}")
        if (tasks.rank != 0).any():
            raise GraphError("the tasks are of several ranks already; one rank's work is arranged")
        order = graph.order.copy()
        steps = tasks.step
        for step in np.unique(steps).tolist():
            ids = tasks.ids[steps == step]
            begin = order[ids].min()
            end = order[ids].max()
            if end - begin < len(ids):
                order[order > end] += len(ids) - (end - begin)
                end = begin + len(ids)
            order[ids] = begin + np.arange(len(ids)) * ((end - begin) // len(ids))
        graph.columns.put("order", order)
        # What the tasks wait for is on the lanes of their rank, too.
        rank_of = np.full(graph.size, -1)
        rank_of[tasks.ids] = np.repeat(rank, self.sizes)
        lanes = _lanes(graph, tasks, rank.max())
        graph.write("lane", tasks.ids, lanes[rank_of[tasks.ids], graph.lane[tasks.ids]])
        for table, task, lane in (
            (graph.syncs, "task", "lane"),
            (graph.waits, "record", "source"),
            (graph.waits, "wait", "target"),
        ):
            rank = rank_of[table[task]]
            named = table[lane]
            table.put(lane, np.where((rank >= 0) & (named >= 0), lanes[rank, named], named))
        return tasks

    def _group(self, number: int) -> Selection:
        ids = self._ids[self._starts[number] : self._starts[number + 1]]
        words = f"{self.selection.words}, {self.keys[number]!r}".strip(", ")
        return self.selection.of(ids, words, ordered=True)

    def _with_launches(self, *, apart: bool) -> tuple[ndarray, ndarray]:
        """Return the tasks and their groups, with the calls that launch them (and the pieces of these calls).

        Group by group in program order. Groups that go `apart` from their places each need a call of their
        own: one call launches all parts of a fused kernel, which may be of several groups.
        """
        graph = self.selection.graph
        ids = self._ids
        group = self._number
        launch = graph.launch[ids]
        launched = launch >= 0
        # What was launched before the window cannot be launched again.
        kept = (graph.kind[ids] == CPU) | launched | (graph.row[ids] < 0)
        calls = launch[launched]
        owner = group[launched]
        pieces, of = pieces_of(graph, calls)
        ids = np.concatenate([ids[kept], calls, pieces])
        group = np.concatenate([group[kept], owner, owner[of]])
        once, _ = distinct_rows([group, ids] if apart else [ids])
        ids = ids[once]
        group = group[once]
        by_group = np.lexsort((ids, graph.order[ids], group))
        return ids[by_group], group[by_group]


def _lanes(graph: Graph, tasks: Selection, highest: int) -> ndarray:
    """Return the lane of each rank (rows) for each lane (columns); CPU work goes to the first one's.

    Lanes of other ranks are like those of rank 0, and made if they are new.
    """
    lanes = graph.lane[tasks.ids].tolist()
    used = sorted(set(lanes), key=lambda lane: (graph.lanes[lane].on_device, lane))  # threads first
    thread = next((lane for lane in lanes if not graph.lanes[lane].on_device), -1)
    numbers = {lane.name: number for number, lane in enumerate(graph.lanes)}
    table = np.tile(np.arange(len(graph.lanes)), (highest + 1, 1))
    for rank in range(highest + 1):
        for lane in used:
            like = lane if graph.lanes[lane].on_device else thread
            old = graph.lanes[like]
            name = f"rank {rank} {old.name.removeprefix('rank 0 ')}" if rank else old.name
            if name not in numbers:
                new = numbers[name] = graph.add_lane(old._replace(name=name, rank=rank))
                if like in graph.queue_depth:
                    graph.queue_depth[new] = graph.queue_depth[like]
            table[rank, lane] = numbers[name]
    return table
