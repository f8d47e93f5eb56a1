"""Repetition: work done again, with its launches, its waits and the links among its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.errors import GraphError
from daydream.graph.edit.place import place_next_to
from daydream.graph.query.calls import pieces_of
from daydream.graph.query.numbering import distinct_rows
from daydream.graph.tables import COLUMNS, CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.groups import Groups
    from daydream.graph.selection import Selection

NEW = ("order", "launch", "release_ns", "measured_start_ns", "repeat", "lane")


def repeat(groups: Groups, times: int, before: Selection | None, *, stay: bool = False) -> Selection:
    """Copy the work of each group; see `Groups.repeat`."""
    tasks = groups.tasks.need_some().need_all()
    graph = tasks.graph
    if not isinstance(times, int | np.integer) or times < 0:
        raise GraphError(f"work is repeated 0 or more times, not {times!r}")
    graph.edits += 1
    if times == 0:
        return tasks.of(tasks.ids[:0], "repetitions")
    ids, group = _with_launches(graph, groups, apart=before is not None)
    columns = graph.columns
    by_group = np.lexsort((np.arange(graph.size)[ids], columns["order"][ids], group))
    ids, group = ids[by_group], group[by_group]
    ends = np.append(np.flatnonzero(group[1:] != group[:-1]), len(group) - 1)
    if before is None:
        anchor = ids[ends]
    else:
        if before.graph is not graph or len(before) != len(groups):
            raise GraphError(f"{len(groups)} groups need as many tasks to come before, not {len(before)}")
        anchor = _thread_of(graph, before.ids)
    count = len(ids)
    number = np.repeat(np.arange(times), count)  # pass after pass
    source = np.tile(ids, times)
    where = np.tile(group, times)
    sequence = np.lexsort((np.tile(np.arange(count), times), number, where))
    number, source, where = number[sequence], source[sequence], where[sequence]
    order = place_next_to(graph, anchor[where], behind=before is None)
    given = {name: graph.columns[name][source] for name in COLUMNS if name not in NEW}
    given |= {name: graph.override(name)[source] for name in graph.overrides}
    highest = graph.columns["repeat"][graph.alive].astype(np.int64).max(initial=0)
    lane = columns["lane"][source].astype(np.int64)
    if before is not None:
        other = (columns["kind"][source] == CPU) & (lane != columns["lane"][anchor][where])
        # Behind a thread's last task of the group it idles, and that is not part of the work.
        given["gap_ns"] = np.where(other & _last_on_lane(number, where, lane), 0, given["gap_ns"])
        lane = lane if stay else np.where(other, columns["lane"][anchor][where], lane)
    new = graph.add(
        len(source), order=order, repeat=highest + 1 + number, measured_start_ns=-1, lane=lane, **given
    )
    owner = np.full(graph.size, -1)
    owner[ids[::-1]] = group[::-1]  # of a call that several groups have, the first
    copies = np.full((times, graph.size), -1)
    copies[number[::-1], source[::-1]] = new[::-1]
    graph.columns.own("launch")[new] = _launches(graph, copies, number, where, source, new)
    _copy_tables(graph, copies, owner)
    graph.touch()
    return tasks.of(new, "repetitions", ordered=True)


def _with_launches(graph: Graph, groups: Groups, *, apart: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks and their groups, with the calls that launch them (and the pieces of these calls).

    Groups that go `apart` from their places each need a call of their own: one call launches all parts of a
    fused kernel, which may be of several groups.
    """
    columns = graph.columns
    ids, group = groups._ids, np.repeat(np.arange(len(groups)), groups.sizes)
    launch = columns["launch"][ids].astype(np.int64)
    # What was launched before the window cannot be launched again.
    lost = (columns["kind"][ids] != CPU) & (launch < 0) & (columns["row"][ids] >= 0)
    if lost.any():
        ids, group, launch = ids[~lost], group[~lost], launch[~lost]
    calls, owner = launch[launch >= 0], group[launch >= 0]
    first, _ = distinct_rows([owner, calls] if apart else [calls])
    calls, owner = calls[first], owner[first]
    pieces, of = pieces_of(graph, calls)
    pieces, owner = np.append(calls, pieces), np.append(owner, owner[of])
    there = group * graph.size + ids if apart else ids
    missing = ~np.isin(owner * graph.size + pieces if apart else pieces, there)
    return np.concatenate([ids, pieces[missing]]), np.concatenate([group, owner[missing]])


def _launches(
    graph: Graph,
    copies: np.ndarray,
    number: np.ndarray,
    group: np.ndarray,
    source: np.ndarray,
    new: np.ndarray,
) -> np.ndarray:
    """Return what launches each copy: the copy of the call in its own group, else in another one."""
    launch = graph.columns["launch"][source].astype(np.int64)
    pass_of_group = (number * (int(group.max()) + 1) + group) * graph.size
    own = pass_of_group + source
    by_place = np.argsort(own)
    place = np.minimum(np.searchsorted(own[by_place], pass_of_group + launch), len(own) - 1)
    found = by_place[place]
    there = (group[found] == group) & (number[found] == number) & (source[found] == launch)
    return np.where(launch < 0, -1, np.where(there, new[found], copies[number, launch]))


def _last_on_lane(*keys: np.ndarray) -> np.ndarray:
    """Return a mask of the last entry of each combination of keys."""
    first, _ = distinct_rows([key[::-1] for key in keys])
    mask = np.zeros(len(keys[0]), bool)
    mask[len(mask) - 1 - first] = True
    return mask


def _thread_of(graph: Graph, anchor: np.ndarray) -> np.ndarray:
    """Return the CPU task on whose thread the work before each anchor runs: its launch, or itself."""
    launch = graph.columns["launch"][anchor]
    found: np.ndarray = np.where((graph.columns["kind"][anchor] != CPU) & (launch >= 0), launch, anchor)
    return found


def _copy_tables(graph: Graph, copies: np.ndarray, group: np.ndarray) -> None:
    """Copy the rows of each table whose tasks were all copied; links only within a group."""
    for table, names in (
        (graph.syncs, ("task", "point")), (graph.waits, ("record", "wait")), (graph.links, ("src", "dst")),
    ):  # fmt: skip
        for copy in copies:
            ends = [copy[table[name]] for name in names]
            both = np.all([end >= 0 for end in ends], axis=0) if len(table) else np.zeros(0, bool)
            if table is graph.links:
                both &= group[table["src"]] == group[table["dst"]]
            if both.any():
                rows = {name: column[both] for name, column in table.columns.items()}
                table.add(**{**rows, **{name: end[both] for name, end in zip(names, ends, strict=True)}})
