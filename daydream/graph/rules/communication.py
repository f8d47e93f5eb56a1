"""Rule 5, communication: a collective transfers only when the last member has arrived.

What feeds a collective and what waits for it is found with the event waits, its
order on the channel is its stream's. With the traces of several ranks, the time a
member stood in the collective waiting for the others is a wait too: each member
gets an arrival, and the transfer begins with the last of them.

How long the transfer took is read off the members: where their ends agree, from the last
arrival to each one's end. Where they do not (hosts whose clocks drift apart in the
recording), the time from an arrival on one clock to an end on another means nothing; the least
duration of a member is then the transfer, as the last to arrive waits for nobody.

On threads of the CPU (gloo) members end when they get the processor, not together: there, on one
host's clock, each transfer lasts from the last arrival to the member's own end.

The members that were not recorded may have come later still; then both are upper bounds.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from daydream.collect.derive.collective_matching import (
    ENDS_AGREE_NS,
    HANDED_ON,
    MatchedCollectives,
    match_collectives,
)
from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import Graph, Lane
from daydream.graph.plan import Cause
from daydream.graph.tables import COLLECTIVE
from daydream.text import counted

ARRIVAL = "arrival"
LAST_ARRIVAL = "last arrival"  # what joins the arrivals of a collective


def meet(builder: GraphBuilder) -> None:
    """Match the collectives of several ranks and let each transfer begin with the last arrival."""
    graph = builder.graph
    lanes = {
        graph.lanes[lane].rank for lane in np.unique(graph.columns["lane"][_collectives(builder)]).tolist()
    }
    if len(lanes) < 2:
        return
    matched = match_collectives(builder.trace)
    if not len(matched):
        graph.note("The ranks run different collectives; each rank is simulated by itself.")
        return
    apart = max((abs(offset) for offset in matched.offset_ns.values()), default=0)
    if apart > ENDS_AGREE_NS:
        graph.note(
            f"Collectives of different ranks end up to {apart / 1e3:,.0f} us apart: their clocks are not "
            "aligned, so each rank is simulated by itself."
        )
        return
    _say_what_is_missing(builder, matched)
    members, collective = _members(builder, matched)
    if len(members):
        _hold(builder, members, collective)


def _collectives(builder: GraphBuilder) -> np.ndarray:
    return np.flatnonzero(builder.graph.columns["kind"] == COLLECTIVE)


def _members(builder: GraphBuilder, matched: MatchedCollectives) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks that met, in the order of their collectives, and which collective each is of."""
    tasks = _collectives(builder)
    task_of = np.full(len(builder.trace), -1, np.int64)
    task_of[builder.graph.columns["row"][tasks]] = tasks
    members = task_of[np.concatenate(matched.rows)]
    collective = np.repeat(np.arange(len(matched)), [len(rows) for rows in matched.rows])
    there = (members >= 0) & (np.bincount(collective[members >= 0], minlength=len(matched))[collective] > 1)
    _, collective = np.unique(collective[there], return_inverse=True)
    return members[there], collective.reshape(-1)


def _hold(builder: GraphBuilder, members: np.ndarray, collective: np.ndarray) -> None:
    """Split each member into its arrival and its transfer, which the last arrival begins."""
    graph = builder.graph
    columns = graph.columns
    count = int(collective.max()) + 1
    starts, ends = builder.start_ns[members], builder.end_ns[members]
    last, first_end, last_end = (np.full(count, fill, np.int64) for fill in (-(2**62), 2**62, -(2**62)))
    least = np.full(count, 2**62, np.int64)
    np.maximum.at(last, collective, starts)
    on_host = np.isin(columns["lane"][members], list(builder.host_lanes))
    # A root that gives away its data does not wait for those that take it.
    free = np.where(on_host, ends < last[collective], _gives_away(builder, members, ends, last[collective]))
    np.minimum.at(first_end, collective[~free], ends[~free])
    np.maximum.at(last_end, collective[~free], ends[~free])
    np.minimum.at(least, collective, ends - starts)
    agree = (last_end - first_end <= ENDS_AGREE_NS)[collective] | on_host
    transfer = np.where(agree, np.maximum(ends - last[collective], 0), least[collective])
    transfer = np.where(free, ends - starts, transfer)
    begun = np.where(free, starts, last[collective])

    arrivals = graph.add(
        len(members), lane=columns["lane"][members], kind=COLLECTIVE, name=graph.code("name", ARRIVAL),
        order=columns["order"][members] - 1, launch=columns["launch"][members], step=columns["step"][members],
        phase=columns["phase"][members], measured_start_ns=columns["measured_start_ns"][members],
        release_ns=columns["release_ns"][members], latency_ns=columns["latency_ns"][members],
    )  # fmt: skip
    columns = graph.columns
    builder.extend(begun)  # in the recording the kernel goes straight on to transfer: there is no start-up
    first = np.full(count, len(columns["lane"]))
    np.minimum.at(first, collective, np.arange(len(members)))
    hubs = graph.add(
        count, lane=_hub_lanes(graph, columns["lane"][members], collective), kind=0,
        name=graph.code("name", LAST_ARRIVAL), measured_start_ns=last,
        order=columns["order"][members[first]],
    )  # fmt: skip
    columns = graph.columns
    builder.extend(last)
    columns["release_ns"][members] = 0
    columns["latency_ns"][members] = 0
    columns["measured_start_ns"][members] = begun
    columns["duration_ns"][members] = transfer
    graph.link(arrivals, hubs[collective], cause=Cause.COMMUNICATION)
    held, hub = members[~free], hubs[collective[~free]]
    graph.link(hub, held, cause=Cause.COMMUNICATION)
    builder.matched += zip(held.tolist(), hub.tolist(), strict=True)


def _gives_away(builder: GraphBuilder, members: np.ndarray, ends: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Tell which members on a device gave their data away and had ended before the last one began.

    NCCL's and RCCL's kernels hand a small message on through buffers: the root of a broadcast ends at
    once. Where each needs the data of all no member can, so that there the clocks are apart.
    """
    rows = builder.graph.columns["row"][members]
    operation = np.array([*builder.trace.text("collective"), ""], dtype=object)[
        builder.trace["collective"][rows]
    ]
    return np.isin(operation.astype(str), HANDED_ON) & (ends < last - ENDS_AGREE_NS)


def _hub_lanes(graph: Graph, lanes: np.ndarray, collective: np.ndarray) -> np.ndarray:
    """Return a lane for what each collective waits for: one for those that the same streams take part in.

    These follow each other on their streams; matched collectives of other streams must not wait for them. The
    lane is of the rank whose order in the program the hubs have, that of the first member.
    """
    found: dict[tuple[int, ...], int] = {}
    by_meeting = np.argsort(collective, kind="stable")
    cuts = np.searchsorted(collective[by_meeting], np.arange(int(collective.max()) + 2)).tolist()
    hub_lanes = []
    for begin, end in pairwise(cuts):
        members = tuple(lanes[by_meeting[begin:end]].tolist())
        if members not in found:
            rank, number = graph.lanes[members[0]].rank, f" {len(found) + 1}" if found else ""
            found[members] = graph.add_lane(Lane(f"collectives of the ranks{number}", rank, background=True))
        hub_lanes.append(found[members])
    return np.array(hub_lanes)


def _say_what_is_missing(builder: GraphBuilder, matched: MatchedCollectives) -> None:
    graph, metadata = builder.graph, builder.trace.metadata
    ranks, world_size = len(matched.offset_ns), metadata.get("world_size", 0)
    if isinstance(world_size, int) and world_size > ranks:
        graph.note(
            f"{ranks} of {world_size} ranks took part in {counted(len(matched), 'collective')}; the last "
            "to arrive may be one that is not in the trace, so their transfers are upper bounds."
        )
    drifting = int((matched.spread_ns > ENDS_AGREE_NS).sum())
    if drifting and not matched.on_host:
        graph.note(
            f"{counted(drifting, 'collective')} end up to {matched.residual_ns / 1e3:,.0f} us apart on "
            "different ranks; their transfer is assumed to be the shortest member's duration."
        )
    if matched.alone and "alignment" not in metadata:
        graph.note(_alone(matched))


def _alone(matched: MatchedCollectives) -> str:
    whose = ", ".join(f"{count:,} of rank {rank}" for rank, count in sorted(matched.alone.items()))
    return f"Collectives that match none of another rank and are kept as recorded: {whose}."
