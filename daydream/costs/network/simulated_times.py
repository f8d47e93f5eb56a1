"""Times of collectives from a network simulator, for the nodes of a Chakra file that daydream wrote.

Read are ASTRA-sim's log and a table of one's own. ASTRA-sim (`astra-sim/workload/Workload.cc`) logs for each
node when it is issued and when it is done, in ns::

    issue,sys->id=0, tick=1200, node->id=41, node->name=all-reduce, node->type=7
    callback,sys->id=0, tick=4900, node->id=41, node->name=all-reduce, node->type=7

A table is CSV with the header `rank,node,duration_ns`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from daydream.errors import FileError, GraphError
from daydream.files.input_files import check_regular
from daydream.graph.rules.communication import LAST_ARRIVAL
from daydream.graph.tables import LONGEST_NS
from daydream.lazy import regex

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

LOGGED = regex(
    r"(issue|callback),sys->id=([0-9]{1,9}), tick=([0-9]{1,18}), node->id=([0-9]{1,18}), "
    r"node->name=(.*), node->type=7$"
)
HEADER = ["rank", "node", "duration_ns"]
LONGEST_LINE = 1 << 16


def node_of(task: int) -> int:
    """Return the number of a task's node in a Chakra file: odd; the one behind it is its gap's."""
    return 2 * task + 1


def task_of(node: int) -> int:
    """Return the task whose node (or gap's node) has this number."""
    return (node - 1) // 2


class SimulatedTime(NamedTuple):
    """When the last rank issued a node and when the last was done, ns; its name where the file has one."""

    issued_ns: int
    done_ns: int
    name: str | None


def simulated_times(
    graph: Graph, transfers: Selection, path: str | os.PathLike[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which transfers a network simulator's file has, and how long each takes there.

    A transfer takes from the moment when the last rank issued its collective until its own rank is done;
    where one rank was recorded and its file was used for all, until the last one is.

    Args:
        graph: the graph that the Chakra files were written of.
        transfers: collectives, without what only waits for peers.
        path: ASTRA-sim's log, or a table with the header `rank,node,duration_ns`.

    Returns:
        Ids and durations in ns, int64, shape (transfers in the file,).

    Raises:
        FileError: the file cannot be read as either.
        GraphError: it has nodes that are no collectives of this graph.

    """
    names = dict(zip(transfers.ids.tolist(), transfers.name.tolist(), strict=True))
    times = {}
    for node, time in sorted(read_simulated_times(path).items()):
        task = task_of(node)
        known = " ".join(names.get(task, "").split())
        if task not in names or node != node_of(task) or time.name not in {None, known}:
            called = f" ({time.name[:40]})" if time.name else ""
            raise GraphError(
                f"{path}: node {node}{called} is no collective of this graph: the file is of another trace "
                "or change. Write the Chakra files anew with -o job.et"
            )
        times[task] = time
    last_issued = {task: time.issued_ns for task, time in times.items()}
    for joined in _together(graph):
        there = [task for task in joined if task in times]
        last_issued |= dict.fromkeys(there, max((last_issued[task] for task in there), default=0))
    durations = [max(time.done_ns - last_issued[task], 0) for task, time in times.items()]
    return np.array([*times], np.int64), np.array(durations, np.int64)


def _together(graph: Graph) -> list[list[int]]:
    """Return the members of each collective that the trace shows on several ranks."""
    hubs = set(graph.select(name=f"^{LAST_ARRIVAL}$").ids.tolist())
    found: dict[int, list[int]] = {}
    for source, member in zip(
        graph.links["src"].tolist(), graph.links["dst"].tolist(), strict=True
    ):
        if source in hubs:
            found.setdefault(source, []).append(member)
    return list(found.values())


def read_simulated_times(path: str | os.PathLike[str]) -> dict[int, SimulatedTime]:
    """Return the time of each node from ASTRA-sim's log or a table.

    Raises `FileError` in a line for a file that is neither, that names a node twice, or whose times are none.
    """
    lines = _lines(path)
    first = next((line for line in lines if line.strip()), "")
    read = _read_table if _words(first) == HEADER else _read_log
    issued, done = dict[tuple[int, int], int](), dict[tuple[int, int], int]()  # by rank and node
    names = dict[int, str]()
    for number, what, at, time, name in read(path, itertools.chain([first], lines)):
        where = f"{path}, line {number}: node {at[1]} of rank {at[0]}"
        if at in (issued if what == "issue" else done):
            twice = "is logged twice" if name is not None else "is there twice"
            raise FileError(f"{where} {twice}")
        if what == "callback" and at not in issued:
            raise FileError(f"{where} was not issued")
        if time >= LONGEST_NS:
            raise FileError(f"{path}, line {number}: {time} ns is too long to be simulated")
        if what == "issue":
            issued[at] = time
        else:
            done[at] = time
        if name is not None:
            names[at[1]] = name
    if issued.keys() - done.keys():
        unfinished = len(issued.keys() - done.keys())
        raise FileError(f"{path}: {unfinished} collectives do not end; the log is cut off")
    if not done:
        raise FileError(
            f"{path}: no times of collectives. Needed is ASTRA-sim's log of the workload (lines such as "
            "'issue,sys->id=0, tick=...', at the level debug with tracing on), or a table with the header "
            f"{','.join(HEADER)}"
        )
    found: dict[int, SimulatedTime] = {}
    for at, time in done.items():
        known = found.get(at[1], (0, 0))
        begun, end = max(known[0], issued.get(at, 0)), max(known[1], time)
        found[at[1]] = SimulatedTime(begun, end, names.get(at[1]))
    return found


def _lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a file, one at a time: logs are long. One that is too long comes in parts."""
    check_regular(path)
    try:
        with open(path, encoding="utf-8") as file:
            yield from iter(partial(file.readline, LONGEST_LINE), "")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as times of collectives ({error})") from None


def _words(line: str) -> list[str]:
    return [word.strip().lower() for word in line.split(",")]


Logged: TypeAlias = tuple[
    int, str, tuple[int, int], int, str | None
]  # line, what, (rank, node), ns, name


def _read_log(_: str | os.PathLike[str], lines: Iterable[str]) -> Iterator[Logged]:
    for number, line in enumerate(lines, 1):
        if (match := LOGGED.search(line.rstrip())) is not None:
            rank, tick, node = map(int, match.groups()[1:4])
            yield number, match[1], (rank, node), tick, match[5]


def _read_table(path: str | os.PathLike[str], lines: Iterable[str]) -> Iterator[Logged]:
    for number, line in enumerate(lines, 1):
        row = _words(line)
        if row in (HEADER, [""]):
            continue
        if len(row) != len(HEADER) or not all(re.fullmatch(r"[0-9]{1,18}", word) for word in row):
            raise FileError(
                f"{path}, line {number}: three whole numbers are needed, rank,node,duration_ns, not "
                f"{line.strip()[:60]!r}"
            )
        rank, node, duration = map(int, row)
        yield number, "done", (rank, node), duration, None
