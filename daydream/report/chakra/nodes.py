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
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.network.simulated_times import node_of
from daydream.graph.plan import Cause
from daydream.graph.tables import COLLECTIVE, CPU, KINDS
from daydream.report.chakra.causes import Causes, Dependency, causes_of
from daydream.report.chakra.schema import add_attributes, message_class, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daydream.simulate.timeline import Timeline

COMP_NODE, COMM_COLL_NODE = 4, 7  # of `NodeType`
COMM_TYPES = {  # of `CollectiveCommType`
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
GAP_NAME = "untraced time"


@dataclass
class Nodes:
    """The nodes of all ranks, and what cannot be said in a Chakra file."""

    timeline: Timeline
    causes: Causes
    communication: dict[
        int, dict[str, Any]
    ]  #: by entry of a collective, what Chakra needs to know of it
    groups: dict[
        int, list[int]
    ]  #: ranks by number of the group, 0 aside; empty where they are not known
    unsized: int = 0  #: collectives whose bytes are not known
    unknown: int = 0  #: sends, receives, and what Chakra has no type for
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
    operation = graph.column("collective", tasks).tolist()
    nbytes = graph.column("bytes", tasks).tolist()
    for entry, name, size in zip(collectives.tolist(), operation, nbytes, strict=True):
        if name not in COMM_TYPES:
            found.unknown += 1
            continue
        found.unsized += size < 0
        known = {"comm_size": size} if size >= 0 else {}
        group = {"pg_name": str(group_of[entry])} if group_of[entry] else {}
        found.communication[entry] = {"comm_type": COMM_TYPES[name], **known, **group}
    return found


def _groups(found: Nodes, collectives: np.ndarray) -> dict[int, int]:
    """Number the groups of collectives: by who met, in a trace of one rank by the groups' names."""
    timeline = found.timeline
    graph = found.timeline.graph
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
    numbers = {
        key: place for place, key in enumerate(sorted((key for key in named if key), key=str), 1)
    }
    found.groups = {
        number: list(key) if isinstance(key, tuple) else [] for key, number in numbers.items()
    }
    return {entry: numbers.get(key, 0) for key, entries in named.items() for entry in entries}


def messages(nodes: Nodes, rank: int) -> Iterator[Any]:
    """Yield a rank's nodes as messages of the schema, causes before what they cause."""
    timeline = nodes.timeline
    graph = nodes.timeline.graph
    plan = nodes.timeline.plan
    entries = nodes.causes.entries
    entries = entries[np.array([lane.rank for lane in graph.lanes])[plan.lane[entries]] == rank]
    task = timeline.task[entries]
    origin = int(timeline.start_ns.min()) if len(timeline.start_ns) else 0
    columns = [
        entries,
        task,
        plan.gap_ns[entries],
        plan.lane[entries],
        timeline.start_ns[entries] - origin,
        timeline.end_ns[entries] - origin,
        *(graph.columns[name][task] for name in ("kind", "step")),
        *(graph.column(name, task) for name in ("name", "phase", "op", "layer")),
    ]
    for row in zip(*(column.tolist() for column in columns), strict=True):
        entry, of, gap, lane, start, end, kind, step, name, phase, op, layer = row
        about = {"is_cpu_op": kind == CPU, "lane": graph.lanes[lane].name}
        steps = {"step": graph.steps[step]["name"]} if 0 <= step < len(graph.steps) else {}
        of_task = {
            "kind": KINDS[kind],
            "op": op,
            "layer": layer,
            "phase": phase,
            **steps,
        }
        sort = COMM_COLL_NODE if entry in nodes.communication else COMP_NODE
        after = [_number(nodes, each) for each in nodes.causes.dependencies[entry]]
        own = {
            **about,
            **of_task,
            **_waits(nodes, entry, origin),
            **nodes.communication.get(entry, {}),
        }
        yield _node(node_of(of), name, sort, after, start, end, own)
        if gap > 0:
            own = {**about, "kind": "gap", "phase": phase, **steps}
            yield _node(node_of(of) + 1, GAP_NAME, COMP_NODE, [node_of(of)], end, end + gap, own)


def _node(
    number: int,
    name: str,
    sort: int,
    after: list[int],
    start: int,
    end: int,
    about: dict[str, Any],
) -> Any:
    begin = (start + 500) // 1000
    times = {"start_time_micros": begin, "duration_micros": (end + 500) // 1000 - begin}
    node = message_class("Node")(
        id=number, name=one_line(name), type=sort, data_deps=after, **times
    )
    known = {name: value for name, value in about.items() if value not in (None, "")}
    add_attributes(node, {**known, "start_ns": start, "duration_ns": end - start})
    return node


def _number(nodes: Nodes, cause: Dependency) -> int:
    """Return the node that a cause is about: in the order of a lane the gap, where there is one."""
    timeline = nodes.timeline
    behind = cause.cause == Cause.LANE and int(timeline.plan.gap_ns[cause.source]) > 0
    return node_of(int(timeline.task[cause.source])) + behind


def _waits(nodes: Nodes, entry: int, origin: int) -> dict[str, Any]:
    """Return what tells how an entry's causes count, where that is not the end of each."""
    causes = nodes.causes.dependencies[entry]
    found = dict[str, Any]()
    if any(each.latency_ns for each in causes):
        found["dep_latency_ns"] = [each.latency_ns for each in causes]
    if any(each.from_start for each in causes):
        found["dep_from_start"] = [each.from_start for each in causes]
    if causes:
        found["dep_cause"] = [Cause(each.cause).label for each in causes]
    if entry in nodes.causes.release_ns:
        found["release_ns"] = max(nodes.causes.release_ns[entry] - origin, 0)
    if entry in nodes.causes.collective:
        found["collective_id"] = nodes.causes.collective[entry]
        found["waits_for_peers"] = entry in nodes.causes.waits_for_peers
    return found
