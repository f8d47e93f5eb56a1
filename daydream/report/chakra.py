"""Chakra execution traces: what was simulated, for network simulators such as ASTRA-sim.

One file a rank (`job.et` becomes `job.0.et`, `job.1.et`, ..., and `job.groups.json`), in the protobuf schema of
MLCommons (`assets/et_def.textproto`): each message has its length before it, the first is `GlobalMetadata`, the
others are `Node`s, one for a task and one for the untraced time behind it.

| in the schema | what stands there |
|---|---|
| `id` | from the task's id in the graph, so that times of collectives can be read back |
| `type` | `COMM_COLL_NODE` for collectives that Chakra knows, else `COMP_NODE` |
| `data_deps` | the order of the lane, and every cause: launches, event waits, synchronization, ... |
| `start_time_micros`, `duration_micros` | of the simulation; ends are rounded, so that no error adds up |

The schema knows one kind of cause, "after the end of", and whole microseconds. What it has no field for are
attributes, so that the exact graph can be read back: the same in ns (`start_ns`, `duration_ns`), `lane`, `kind`,
`op`, `layer`, `phase`, `step`, and of each of `data_deps` in turn `dep_latency_ns`, `dep_from_start`, `dep_cause`.

A graph of several ranks has joints: each member of a collective arrives, and the last arrival begins the
transfer. Chakra says the same by the collective itself, which all ranks must reach. So joints, which take no
time, are left out: what an arrival waited for, its transfer waits for. Members of a collective that the trace
shows on several ranks have one `collective_id`, and say whether they begin with the last of them
(`waits_for_peers`); a root that gives its data away does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daydream.costs.network.simulated_times import node_of
from daydream.errors import MissingPackageError
from daydream.files.atomic import refuse_to_replace, write_whole
from daydream.graph.plan import Cause
from daydream.graph.rules.communication import ARRIVAL, LAST_ARRIVAL
from daydream.graph.tables import COLLECTIVE, CPU, KINDS
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.simulate.timeline import Timeline

SUFFIX = ".et"
SCHEMA = "0.0.4"  # the version that Chakra's own converters write
# Of `NodeType`
COMP_NODE = 4
COMM_COLL_NODE = 7
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
FIELDS = {
    bool: "bool",
    int: "int64",
    str: "string",
}  # of an attribute's value; lists by their first
COLUMNS = "name", "phase", "op", "layer", "collective", "bytes", "group"


@dataclass(frozen=True)
class Written:
    """The files of a Chakra export, and what they leave out."""

    files: list[Path]
    notes: list[str]


class Dependency(NamedTuple):
    """A cause of a task: the timeline's entry it follows, from its start or its end, and the `Cause`."""

    source: int
    from_start: bool
    cause: int
    latency_ns: int


Kept = dict[tuple[int, bool, bool], Dependency]


def write_chakra(
    path: str | os.PathLike[str],
    timeline: Timeline,
    *,
    force: bool = False,
) -> Written:
    """Write the recorded window of a timeline, one file a rank, each whole or not at all.

    Args:
        path: ends in `.et`; ranks are numbered before that (`job.et` gives `job.0.et`).
        timeline: of a replay, or of a prediction.
        force: replace files that are there.

    Raises:
        OutputError: a file exists and `force` is not given, or cannot be written.
        DaydreamError: protobuf is not installed.

    """
    message_class("Node")  # before a file is begun
    nodes = _Nodes(timeline)
    stem = Path(path).with_suffix("")
    names = [stem.with_name(f"{stem.name}.{place}{SUFFIX}") for place in range(len(nodes.ranks))]
    known = {str(number): list(ranks) for number, ranks in nodes.groups.items() if ranks}
    groups = [stem.with_name(f"{stem.name}.groups.json")] if known else []
    for file in (*names, *groups):
        refuse_to_replace(file, force=force)

    def fill(temporary: str, rank: int) -> None:
        from google.protobuf.proto import serialize_length_prefixed

        with open(temporary, "wb") as file:
            for message in chain([head], nodes.messages(rank)):
                serialize_length_prefixed(message, file)

    head = message_class("GlobalMetadata")(version=SCHEMA)
    _add_attributes(head, {"generator": "daydream", "makespan_ns": nodes.span_ns})
    for rank, file in zip(nodes.ranks, names, strict=True):
        write_whole(file, partial(fill, rank=rank), force=force)
    table = {number: list(map(nodes.ranks.index, ranks)) for number, ranks in known.items()}
    for file in groups:
        write_whole(file, lambda at: Path(at).write_text(json.dumps(table)), force=force)
    return Written([*names, *groups], nodes.notes())


class _Nodes:
    """The nodes of all ranks, and what cannot be said in a Chakra file."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.lanes = timeline.graph.lanes
        self.lane = timeline.plan.lane.tolist()
        self.rank = [self.lanes[lane].rank for lane in self.lane]
        self.task = timeline.task.tolist()
        self.after: dict[int, list[Dependency]] = {}
        self.release_ns: dict[int, int] = {}  # earliest start, where it is above 0
        self.collective: dict[int, int] = {}  # by member: the task that joined it with others
        self.peers = set[int]()  # members that begin with the last arrival
        self.left_out = 0  # causes between ranks that no collective expresses
        chosen = np.flatnonzero(timeline.copy == 0)
        arrivals = self._joints(chosen, ARRIVAL, COLLECTIVE)
        hubs = self._joints(chosen, LAST_ARRIVAL, CPU)
        self._resolve(chosen, arrivals, hubs)
        self.entries = [each for each in chosen.tolist() if each not in arrivals | hubs]
        self.origin = int(timeline.start_ns.min()) if len(timeline.start_ns) else 0
        ends = timeline.end_ns[self.entries]
        self.span_ns = int(ends.max()) - self.origin if len(ends) else 0
        self.ranks = sorted({self.rank[entry] for entry in self.entries}) or [0]
        tasks = timeline.task[self.entries]
        texts = [timeline.graph.column(name, tasks).tolist() for name in COLUMNS]
        self.about = dict(zip(self.entries, zip(*texts, strict=True), strict=True))
        kind = timeline.graph.columns["kind"][tasks] == COLLECTIVE
        members = np.array(self.entries, np.int64)[kind].tolist()
        self.group = self._groups(members)
        self.known = {each for each in members if self.about[each][4] in COMM_TYPES}
        self.unknown = len(members) - len(self.known)
        self.unsized = sum(self.about[each][5] < 0 for each in self.known)

    def _joints(self, chosen: np.ndarray, name: str, kind: int) -> set[int]:
        """Return the entries of that name and kind that take no time."""
        graph = self.timeline.graph
        plan = self.timeline.plan
        task = self.timeline.task[chosen]
        columns = graph.columns
        idle = (plan.duration_ns[chosen] == 0) & (plan.gap_ns[chosen] == 0)
        idle &= (columns["row"][task] < 0) & (columns["kind"][task] == kind)
        return set(chosen[idle][graph.column("name", task[idle]) == name].tolist())

    def _resolve(self, chosen: np.ndarray, arrivals: set[int], hubs: set[int]) -> None:
        """Find what each entry waits for on its own rank; of causes of one kind the longest latency counts."""
        plan = self.timeline.plan
        order = chosen[np.lexsort((chosen, self.timeline.start_ns[chosen], plan.lane[chosen]))]
        before = plan.before_on_lane(order).tolist()
        pointers = plan.edge_ptr.tolist()
        releases = plan.release_ns.tolist()
        columns = plan.edge_src, plan.edge_from_start, plan.edge_cause, plan.edge_latency_ns
        edges = list(map(Dependency, *(column.tolist() for column in columns)))
        kind = self.timeline.graph.columns["kind"]
        hub_of: dict[int, int] = {}  # arrival -> the task that joins it with others
        arrival_of: dict[int, int] = {}  # transfer -> its arrival
        for entry in chosen.tolist():
            given = edges[pointers[entry] : pointers[entry + 1]]
            if before[entry] >= 0:  # the lane's order comes last
                given.append(Dependency(before[entry], False, int(Cause.LANE), 0))
            kept: Kept = {}
            earliest = releases[entry]
            for each in given:
                source = each.source
                waits: list[Dependency] = []
                if entry in hubs:
                    hub_of[source] = self.task[entry]
                    self.left_out += source not in arrivals | hubs
                elif source in hubs:
                    self.collective[entry] = self.task[source]
                    self.peers.add(entry)
                elif self.rank[source] != self.rank[entry]:
                    self.left_out += 1
                elif source in arrivals:
                    arrival_of[entry] = source
                    later = each.latency_ns
                    earliest = max(earliest, self.release_ns.get(source, 0) + later)
                    waits = [
                        one._replace(latency_ns=one.latency_ns + later)
                        for one in self.after[source]
                    ]
                else:
                    waits = [each]
                for one in waits:
                    key = one.source, one.from_start, one.cause == Cause.LANE
                    kept[key] = max(kept.get(key, one), one, key=attrgetter("latency_ns"))
            self.after[entry] = list(kept.values())
            if earliest > 0:
                self.release_ns[entry] = earliest
        for entry, arrival in arrival_of.items():  # one that gives its data away is a member, too
            if arrival in hub_of and kind[self.task[entry]] == COLLECTIVE:
                self.collective.setdefault(entry, hub_of[arrival])

    def _groups(self, members: list[int]) -> dict[int, int]:
        """Number the groups of collectives: by who met, in a trace of one rank by the groups' names."""
        together: dict[int, set[int]] = {}
        for entry, joined in self.collective.items():
            together.setdefault(joined, set()).add(self.rank[entry])
        texts = {entry: self.about[entry][6] for entry in members}
        only = len({text for text in texts.values() if text is not None}) < 2
        keys: dict[int, tuple[int, ...] | str] = {}
        for entry, text in texts.items():
            met = tuple(sorted(together.get(self.collective.get(entry, -1), ())))
            of_all = met == tuple(self.ranks) or (not met and only)
            keys[entry] = "" if of_all else met or text or ""
        numbers = {
            key: number for number, key in enumerate(sorted({*keys.values()} - {""}, key=str), 1)
        }
        self.groups = {
            number: key if isinstance(key, tuple) else () for key, number in numbers.items()
        }
        return {entry: numbers.get(key, 0) for entry, key in keys.items()}

    def messages(self, rank: int) -> Iterator[Any]:
        """Yield a rank's nodes as messages of the schema, causes before what they cause."""
        graph = self.timeline.graph
        gaps = self.timeline.plan.gap_ns
        columns = graph.columns
        for entry in self.entries:
            if self.rank[entry] != rank:
                continue
            of = self.task[entry]
            name, phase, op, layer, *_ = self.about[entry]
            step = int(columns["step"][of])
            kind = int(columns["kind"][of])
            about = {
                "is_cpu_op": kind == CPU,
                "lane": self.lanes[self.lane[entry]].name,
                "phase": phase,
                "step": graph.steps[step]["name"] if 0 <= step < len(graph.steps) else None,
            }
            start = int(self.timeline.start_ns[entry]) - self.origin
            end = int(self.timeline.end_ns[entry]) - self.origin
            sort = COMM_COLL_NODE if entry in self.known else COMP_NODE
            after = []
            for each in self.after[entry]:
                # In the order of a lane it is the gap, where there is one.
                behind = each.cause == Cause.LANE and gaps[each.source] > 0
                after.append(node_of(self.task[each.source]) + int(behind))
            own = {**about, "kind": KINDS[kind], "op": op, "layer": layer, **self._waits(entry)}
            yield _node(node_of(of), name, sort, after, start, end, own)
            if gaps[entry] > 0:
                number = node_of(of)
                until = end + int(gaps[entry])
                own = {**about, "kind": "gap"}
                yield _node(number + 1, GAP_NAME, COMP_NODE, [number], end, until, own)

    def _waits(self, entry: int) -> dict[str, Any]:
        """Return what tells how an entry's causes count, and what its collective is."""
        causes = self.after[entry]
        found: dict[str, Any] = {"dep_cause": [Cause(each.cause).label for each in causes]}
        for name in ("latency_ns", "from_start"):
            values = [getattr(each, name) for each in causes]
            found[f"dep_{name}"] = values if any(values) else []
        if entry in self.release_ns:
            found["release_ns"] = max(self.release_ns[entry] - self.origin, 0)
        if entry in self.collective:
            found["collective_id"] = self.collective[entry]
            found["waits_for_peers"] = entry in self.peers
        if entry in self.known:
            *_, operation, size, _ = self.about[entry]
            found |= {"comm_type": COMM_TYPES[operation], "comm_size": size if size >= 0 else None}
            found["pg_name"] = str(self.group[entry] or "")
        return found

    def notes(self) -> list[str]:
        """Return what the files leave out."""
        alone = len(self.ranks) == 1
        nobody = sum(not ranks for ranks in self.groups.values())
        unknown = counted(nobody, "process group")
        said = {
            f"{counted(self.unsized, 'collective')} of unknown size have no comm_size": self.unsized,
            f"{counted(self.unknown, 'transfer')} (sends, receives, unknown collectives) have no peer in a "
            "trace and are written as computation of their recorded time": self.unknown,
            f"{counted(self.left_out, 'cause')} between ranks, other than collectives, are left out": self.left_out,
            f"one rank was recorded: the members of {unknown} are not known": nobody,
            "one rank was recorded: copy its file for the other ranks (.1.et, .2.et, ...)": alone
            and self.known,
        }
        return [text for text, holds in said.items() if holds]


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
    # On one line; what is no Unicode (half of a surrogate pair) becomes `?`.
    bare = " ".join(name.split()).encode("utf-8", "replace").decode()
    node = message_class("Node")(id=number, name=bare, type=sort, data_deps=after, **times)
    _add_attributes(node, {**about, "start_ns": start, "duration_ns": end - start})
    return node


def _add_attributes(message: Any, values: dict[str, Any]) -> None:
    """Add what is known to a node or to the metadata: flags, whole numbers, texts, or lists of one of them."""
    for name, value in values.items():
        if isinstance(value, list) and value:
            field = FIELDS[type(value[0])].replace("int64", "sint64")
            getattr(message.attr.add(name=name), f"{field}_list").values.extend(value)
        elif value not in (None, "", []):
            setattr(message.attr.add(name=name), f"{FIELDS[type(value)]}_val", value)


@cache
def message_class(name: str) -> Any:
    """Return the class of a message. Raises `DaydreamError` if protobuf is not installed."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
    except ImportError:
        raise MissingPackageError("protobuf", "chakra") from None
    schema = (files("daydream.report") / "assets" / "et_def.textproto").read_text("utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(schema, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
