"""What each task of a timeline waits for, in the terms of Chakra: after which nodes of its own rank.

A graph of several ranks has joints: each member of a collective arrives, and the last arrival begins
the transfer. Chakra says the same by the collective itself, which all ranks must reach. So joints, which
take no time, are left out: what an arrival waited for, its transfer waits for, and transfers of one
collective have its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from daydream.graph.plan import Cause
from daydream.graph.rules.communication import ARRIVAL, LAST_ARRIVAL
from daydream.graph.tables import COLLECTIVE, CPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daydream.simulate.timeline import Timeline


class Dependency(NamedTuple):
    """One cause of a task: the entry of the timeline it follows, and how."""

    source: int  #: entry of the timeline; of the lane's order, the one before
    latency_ns: int
    from_start: bool  #: counts from the start of the source, not from its end
    cause: int  #: a `Cause`; `LANE` follows the source's gap too


@dataclass
class Causes:
    """The causes of the entries of a timeline's recorded window."""

    entries: np.ndarray  #: entries that become nodes, int64, in the order of ids
    dependencies: dict[int, list[Dependency]]
    release_ns: dict[int, int]  #: earliest start, where it is above 0
    collective: dict[int, int]  #: by member of a matched collective, the task that joined it
    waits_for_peers: set[int] = field(
        default_factory=set
    )  #: members that begin with the last arrival
    left_out: int = 0  #: causes between ranks that no collective expresses


def causes_of(timeline: Timeline) -> Causes:
    """Return what each task of the recorded window waits for; joints between ranks are resolved."""
    chosen = np.flatnonzero(timeline.copy == 0)
    arrivals, hubs = _joints(timeline, chosen)
    found = Causes(chosen, {}, {}, {})
    hub_of: dict[int, int] = {}  # arrival -> the task that joins it with others
    arrival_of: dict[int, int] = {}  # transfer -> its arrival
    rank = np.array([lane.rank for lane in timeline.graph.lanes], np.int64)[
        timeline.plan.lane
    ].tolist()
    for entry, release, given in _given(timeline, chosen):
        kept: dict[tuple[int, bool, int], Dependency] = {}
        earliest = release
        for each in given:
            source = each.source
            if entry in hubs:
                hub_of[source] = int(timeline.task[entry])
                found.left_out += source not in arrivals and source not in hubs
            elif source in hubs:
                found.collective[entry] = int(timeline.task[source])
                found.waits_for_peers.add(entry)
            elif rank[source] != rank[entry]:
                found.left_out += 1
            elif source in arrivals:
                arrival_of[entry] = source
                earliest = max(earliest, found.release_ns.get(source, 0) + each.latency_ns)
                for one in found.dependencies[source]:
                    _keep_latest(kept, one._replace(latency_ns=one.latency_ns + each.latency_ns))
            else:
                _keep_latest(kept, each)
        found.dependencies[entry] = list(kept.values())
        if earliest > 0:
            found.release_ns[entry] = earliest
    for (
        entry,
        arrival,
    ) in arrival_of.items():  # one that gives its data away does not wait, and is a member
        if arrival in hub_of and timeline.graph.columns["kind"][timeline.task[entry]] == COLLECTIVE:
            found.collective.setdefault(entry, hub_of[arrival])
    found.entries = np.array(
        [each for each in chosen.tolist() if each not in arrivals and each not in hubs]
    )
    return found


def _given(timeline: Timeline, chosen: np.ndarray) -> Iterator[tuple[int, int, list[Dependency]]]:
    """Yield each entry with its earliest start and its causes as simulated, the lane's order last."""
    plan = timeline.plan
    order = chosen[np.lexsort((chosen, timeline.start_ns[chosen], timeline.plan.lane[chosen]))]
    before = timeline.plan.before_on_lane(order).tolist()
    pointers = plan.edge_ptr.tolist()
    sources = plan.edge_src.tolist()
    latencies = plan.edge_latency_ns.tolist()
    starts = plan.edge_from_start.tolist()
    causes = plan.edge_cause.tolist()
    releases = plan.release_ns.tolist()
    for entry in chosen.tolist():
        given = [
            Dependency(sources[edge], latencies[edge], starts[edge], causes[edge])
            for edge in range(pointers[entry], pointers[entry + 1])
        ]
        if before[entry] >= 0:
            given.append(Dependency(before[entry], 0, False, int(Cause.LANE)))
        yield entry, releases[entry], given


def _keep_latest(own: dict[tuple[int, bool, int], Dependency], one: Dependency) -> None:
    """Keep one dependency on each source and way, the one with the longest latency."""
    key = (one.source, one.from_start, int(one.cause == Cause.LANE))
    if key not in own or own[key].latency_ns < one.latency_ns:
        own[key] = one


def _joints(timeline: Timeline, chosen: np.ndarray) -> tuple[set[int], set[int]]:
    """Return the arrivals, and what joins them, among entries: those that take no time."""
    graph = timeline.graph
    plan = timeline.plan
    texts = graph.texts["name"]
    task = timeline.task[chosen]
    name = graph.columns["name"][task]
    kind = graph.columns["kind"][task]
    idle = (
        (plan.duration_ns[chosen] == 0)
        & (plan.gap_ns[chosen] == 0)
        & (graph.columns["row"][task] < 0)
    )

    def of(text: str, code: int) -> set[int]:
        named = name == texts.index(text) if text in texts else np.zeros(len(task), bool)
        return set(chosen[idle & named & (kind == code)].tolist())

    return of(ARRIVAL, COLLECTIVE), of(LAST_ARRIVAL, CPU)
