"""The nodes of a Chakra file: a task each, and one for the untraced time behind a task.

| in the schema | what stands there |
|---|---|
| `id` | from the task's id in the graph, so that times of collectives can be read back |
| `type` | `COMM_COLL_NODE` for collectives that Chakra knows, else `COMP_NODE` |
| `data_deps` | the order of the lane, and every cause: launches, event waits, synchronization, ... |
| `start_time_micros`, `duration_micros` | of the simulation; ends are rounded, so that no error adds up |

What the schema has no field for are attributes: the same in ns (`start_ns`, `duration_ns`), `lane`, `kind`,
`op`, `layer`, `phase`, `step`, and of each of `data_deps` in turn `dep_latency_ns`, `dep_from_start`,
`dep_cause`.

Members of a collective that the trace shows on several ranks have one `collective_id`, and say whether they
begin with the last of them (`waits_for_peers`); a root that gives its data away does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.costs.network.simulated_times import node_of
from daydream.graph.plan import Cause
from daydream.graph.tables import COLLECTIVE, CPU, KINDS
from daydream.report.chakra import wire
from daydream.report.chakra.causes import Causes, Dependency, causes_of
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daydream.simulate.timeline import Timeline

COMP_NODE, COMM_COLL_NODE = 4, 7  # of `NodeType`
COMM_TYPES = {  # of `CollectiveCommType`
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5,
    "all_to_all": 6, "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
GAP_NAME = "untraced time"


class Communication(NamedTuple):
    """What Chakra needs to know of a collective."""

    type: int
    nbytes: int  #: -1 where it is not known
    group: int  #: 0 for all ranks


@dataclass
class Nodes:
    """The nodes of all ranks, and what cannot be said in a Chakra file."""

    timeline: Timeline
    causes: Causes
    communication: dict[int, Communication]  #: by entry
    groups: dict[int, list[int]]  #: ranks by number of the group, 0 aside; empty where they are not known
    unsized: int = 0  #: collectives whose bytes are not known
    unknown: int = (
        0  #: sends, receives and others that Chakra has no type for, or that have no peer in a trace
    )
    ranks: list[int] = field(default_factory=list)


def nodes_of(timeline: Timeline) -> Nodes:
    """Return the nodes of a timeline's recorded window."""
    graph = timeline.graph
    causes = causes_of(timeline)
    ranks = sorted(
        {graph.lanes[lane].rank for lane in np.unique(timeline.plan.lane[causes.entries]).tolist()}
    )
    found = Nodes(timeline, causes, {}, {}, ranks=ranks or [0])
    task = timeline.task[causes.entries]
    collectives = causes.entries[graph.columns["kind"][task] == COLLECTIVE]
    group_of = _groups(found, collectives)
    tasks = timeline.task[collectives]
    operation, nbytes = graph.column("collective", tasks).tolist(), graph.column("bytes", tasks).tolist()
    for entry, name, size in zip(collectives.tolist(), operation, nbytes, strict=True):
        if name not in COMM_TYPES:
            found.unknown += 1
            continue
        found.unsized += size < 0
        found.communication[entry] = Communication(COMM_TYPES[name], size, group_of[entry])
    return found


def _groups(found: Nodes, collectives: np.ndarray) -> dict[int, int]:
    """Number the groups of collectives: by who met, in a trace of one rank by the groups' names."""
    timeline, graph = found.timeline, found.timeline.graph
    rank = [lane.rank for lane in graph.lanes]
    together: dict[int, set[int]] = {}
    for entry, joined in found.causes.collective.items():
        together.setdefault(joined, set()).add(rank[timeline.plan.lane[entry]])
    texts = graph.column("group", timeline.task[collectives]).tolist()
    only = len({text for text in texts if text is not None}) < 2
    named: dict[tuple[int, ...] | str, list[int]] = {}
    for entry, text in zip(collectives.tolist(), texts, strict=True):
        members = tuple(sorted(together.get(found.causes.collective.get(entry, -1), ())))
        of_all = members == tuple(found.ranks) or (not members and only)
        key: tuple[int, ...] | str = "" if of_all else members or text or ""
        named.setdefault(key, []).append(entry)
    numbers = {key: place for place, key in enumerate(sorted((key for key in named if key), key=str), 1)}
    found.groups = {number: list(key) if isinstance(key, tuple) else [] for key, number in numbers.items()}
    return {entry: numbers.get(key, 0) for key, entries in named.items() for entry in entries}


def messages(nodes: Nodes, rank: int) -> Iterator[bytes]:
    """Yield a rank's nodes as messages of the schema, causes before what they cause."""
    timeline, causes = nodes.timeline, nodes.causes
    graph, plan = timeline.graph, timeline.plan
    entries = causes.entries
    entries = entries[np.array([lane.rank for lane in graph.lanes])[plan.lane[entries]] == rank]
    task = timeline.task[entries]
    about = _attributes(nodes, entries)
    origin = int(timeline.start_ns.min()) if len(timeline.start_ns) else 0
    columns = [
        entries, task, plan.gap_ns[entries],
        timeline.start_ns[entries] - origin, timeline.end_ns[entries] - origin,
        graph.columns["kind"][task], graph.columns["name"][task],
    ]  # fmt: skip
    names = graph.texts["name"]
    for entry, of, gap, start, end, kind, name in zip(*(column.tolist() for column in columns), strict=True):
        communication = nodes.communication.get(entry)
        sort = COMP_NODE if communication is None else COMM_COLL_NODE
        own = about(entry, kind) + _waits(nodes, entry)
        own += b"" if communication is None else _communication(communication)
        yield _node(node_of(of), names[name], sort, _sources(nodes, entry), start, end, own)
        if gap > 0:
            own = about(entry, kind, gap=True)
            yield _node(node_of(of) + 1, GAP_NAME, COMP_NODE, [node_of(of)], end, end + gap, own)


def _node(
    number: int, name: str, sort: int, after: list[int], start: int, end: int, attributes: bytes
) -> bytes:
    begin = (start + 500) // 1000
    times = ((6, begin), (7, (end + 500) // 1000 - begin))
    return b"".join((
        wire.number(1, number), wire.block(2, wire.text_of(" ".join(name.split()))), wire.number(3, sort),
        wire.packed(5, after) if after else b"",
        *(wire.number(field, time) for field, time in times if time),  # zero is what is not written
        attributes, wire.whole("start_ns", start), wire.whole("duration_ns", end - start),
    ))  # fmt: skip


def _sources(nodes: Nodes, entry: int) -> list[int]:
    return [_number(nodes, each) for each in nodes.causes.dependencies[entry]]


def _number(nodes: Nodes, cause: Dependency) -> int:
    """Return the node that a cause is about: in the order of a lane the gap, where there is one."""
    timeline = nodes.timeline
    behind = cause.cause == Cause.LANE and int(timeline.plan.gap_ns[cause.source]) > 0
    return node_of(int(timeline.task[cause.source])) + behind


def _waits(nodes: Nodes, entry: int) -> bytes:
    """Return what tells how an entry's causes count, where that is not the end of each."""
    causes = nodes.causes.dependencies[entry]
    found = b""
    if any(each.latency_ns for each in causes):
        found += wire.signed_list("dep_latency_ns", [each.latency_ns for each in causes])
    if any(each.from_start for each in causes):
        found += wire.flag_list("dep_from_start", [each.from_start for each in causes])
    if causes:
        found += wire.text_list("dep_cause", [Cause(each.cause).label for each in causes])
    if entry in nodes.causes.release_ns:
        timeline = nodes.timeline
        origin = int(timeline.start_ns.min())
        found += wire.whole("release_ns", max(nodes.causes.release_ns[entry] - origin, 0))
    joined = nodes.causes.collective.get(entry)
    if joined is not None:
        found += wire.whole("collective_id", joined)
        found += wire.flag("waits_for_peers", value=entry in nodes.causes.waits_for_peers)
    return found


def _communication(it: Communication) -> bytes:
    found = wire.whole("comm_type", it.type)
    if it.nbytes >= 0:
        found += wire.whole("comm_size", it.nbytes)
    if it.group:
        found += wire.text("pg_name", str(it.group))
    return found


class _attributes:  # noqa: N801 - called like a function, and keeps what it made
    """What a task is, as attributes; made once for each combination."""

    def __init__(self, nodes: Nodes, entries: np.ndarray) -> None:
        timeline, graph = nodes.timeline, nodes.timeline.graph
        task = timeline.task[entries]
        parts = (*(graph.columns[name][task].tolist() for name in ("op", "layer", "phase", "step")),)
        self.lane = timeline.plan.lane
        self.of = dict(zip(entries.tolist(), zip(*parts, strict=True), strict=True))
        self.graph = graph
        self.made: dict[tuple[int, ...], bytes] = {}

    def __call__(self, entry: int, kind: int, *, gap: bool = False) -> bytes:
        lane, of = int(self.lane[entry]), self.of[entry]
        key = (lane, kind, gap, *of)
        if key not in self.made:
            self.made[key] = self._make(lane, kind, of, gap=gap)
        return self.made[key]

    def _make(self, lane: int, kind: int, of: tuple[int, ...], *, gap: bool) -> bytes:
        graph, (op, layer, phase, step) = self.graph, of
        found = wire.flag("is_cpu_op", value=kind == CPU) + wire.text("lane", graph.lanes[lane].name)
        found += wire.text("kind", "gap" if gap else KINDS[kind])
        named = {
            "op": graph.texts["op"][op] if op >= 0 and not gap else None,
            "layer": graph.texts["layer"][layer] if layer >= 0 and not gap else None,
            "phase": PHASES[phase] if phase >= 0 else None,
            "step": graph.steps[step]["name"] if 0 <= step < len(graph.steps) else None,
        }
        return found + b"".join(wire.text(name, text) for name, text in named.items() if text)
