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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

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


@dataclass
class SimulatedTimes:
    """When ranks reached and left collectives in a network simulator, by (rank, node).

    Example::

        times = read_simulated_times("astra.log")
        print(len(times.issued_ns), "collectives of all ranks")

    """

    path: str
    issued_ns: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  #: 0 where only durations are known
    done_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  #: by node, where the file has them

    def by_node(self) -> dict[int, tuple[int, int]]:
        """Return when the last rank issued each node, and when the last was done, in ns."""
        found: dict[int, tuple[int, int]] = {}
        for (rank, node), done in self.done_ns.items():
            issued, end = found.get(node, (0, 0))
            found[node] = max(issued, self.issued_ns[rank, node]), max(end, done)
        return found


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
    times = read_simulated_times(path)
    names = dict(zip(transfers.ids.tolist(), transfers.name.tolist(), strict=True))
    of = times.by_node()
    for node in sorted(of):
        logged, task = times.names.get(node), task_of(node)
        named = " ".join(names.get(task, "").split())
        if task not in names or node != node_of(task) or logged not in {None, named}:
            called = f" ({logged[:40]})" if logged else ""
            raise GraphError(
                f"{path}: node {node}{called} is no collective of this graph: the file is of another trace "
                "or change. Write the Chakra files anew with -o job.et"
            )
    last_issued = {task_of(node): issued for node, (issued, _) in of.items()}
    for joined in _together(graph):
        issued = [last_issued[task] for task in joined if task in last_issued]
        last_issued.update(
            dict.fromkeys((task for task in joined if task in last_issued), max(issued, default=0))
        )
    found = {
        task_of(node): max(done - last_issued[task_of(node)], 0) for node, (_, done) in of.items()
    }
    return np.array(list(found), np.int64), np.array(list(found.values()), np.int64)


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


def read_simulated_times(path: str | os.PathLike[str]) -> SimulatedTimes:
    """Return the times of collectives from ASTRA-sim's log or a table.

    Raises `FileError` in a line for a file that is neither, that names a node twice, or whose times are none.
    """
    found = SimulatedTimes(os.fspath(path))
    lines = _lines(path)
    first = next((line for line in lines if line.strip()), "")
    if _words(first) == HEADER:
        _read_table(found, lines)
    else:
        _read_log(found, itertools.chain([first], lines))
    if not found.done_ns:
        raise FileError(
            f"{path}: no times of collectives. Needed is ASTRA-sim's log of the workload (lines such as "
            "'issue,sys->id=0, tick=...', at the level debug with tracing on), or a table with the header "
            f"{','.join(HEADER)}"
        )
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


def _read_log(found: SimulatedTimes, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines, 1):
        match = LOGGED.search(line.rstrip())
        if match is None:
            continue
        what, rank, tick, node = match[1], int(match[2]), int(match[3]), int(match[4])
        times = found.issued_ns if what == "issue" else found.done_ns
        if (rank, node) in times:
            raise FileError(
                f"{found.path}, line {number}: node {node} of rank {rank} is logged twice"
            )
        if what == "callback" and (rank, node) not in found.issued_ns:
            raise FileError(
                f"{found.path}, line {number}: node {node} of rank {rank} was not issued"
            )
        times[rank, node] = _time(found, number, tick)
        found.names[node] = match[5]
    unfinished = len(found.issued_ns) - len(found.done_ns)
    if unfinished:
        raise FileError(f"{found.path}: {unfinished} collectives do not end; the log is cut off")


def _read_table(found: SimulatedTimes, lines: Iterable[str]) -> None:
    for number, line in enumerate(lines, 2):
        row = _words(line)
        if row == [""]:
            continue
        if len(row) != len(HEADER) or not all(re.fullmatch(r"[0-9]{1,18}", word) for word in row):
            raise FileError(
                f"{found.path}, line {number}: three whole numbers are needed, rank,node,duration_ns, not "
                f"{line.strip()[:60]!r}"
            )
        rank, node, duration = map(int, row)
        if (rank, node) in found.done_ns:
            raise FileError(
                f"{found.path}, line {number}: node {node} of rank {rank} is there twice"
            )
        found.issued_ns[rank, node] = 0
        found.done_ns[rank, node] = _time(found, number, duration)


def _time(found: SimulatedTimes, line: int, value: int) -> int:
    if value >= LONGEST_NS:
        raise FileError(f"{found.path}, line {line}: {value} ns is too long to be simulated")
    return value
