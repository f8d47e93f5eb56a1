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

from daydream.collect.derive.collective_matching import ENDS_AGREE_NS, Meetings, find_meetings
from daydream.graph.builder import Draft
from daydream.graph.graph import Graph, Lane
from daydream.graph.plan import Cause
from daydream.graph.tables import COLLECTIVE
from daydream.text import counted

ARRIVAL = "arrival"
HANDED_ON = ("broadcast", "scatter", "reduce", "gather")


def meet(draft: Draft) -> None:
    """Match the collectives of several ranks and let each transfer begin with the last arrival."""
    graph = draft.graph
    lanes = {
        graph.lanes[lane].rank for lane in np.unique(graph.columns["lane"][_collectives(draft)]).tolist()
    }
    if len(lanes) < 2:
        return
    meetings = find_meetings(draft.trace)
    if not len(meetings):
        graph.note("The ranks run different collectives; each rank is simulated by itself.")
        return
    apart = max((abs(offset) for offset in meetings.offset_ns.values()), default=0)
    if apart > ENDS_AGREE_NS:
        graph.note(
            f"Collectives of different ranks end up to {apart / 1e3:,.0f} us apart: their clocks are not "
            "aligned, so each rank is simulated by itself."
        )
        return
    _say_what_is_missing(draft, meetings)
    members, meeting = _members(draft, meetings)
    if len(members):
        _hold(draft, members, meeting)


def _collectives(draft: Draft) -> np.ndarray:
    return np.flatnonzero(draft.graph.columns["kind"] == COLLECTIVE)


def _members(draft: Draft, meetings: Meetings) -> tuple[np.ndarray, np.ndarray]:
    """Return the tasks that met, in order of their meetings, and which meeting each is of."""
    tasks = _collectives(draft)
    task_of = np.full(len(draft.trace), -1, np.int64)
    task_of[draft.graph.columns["row"][tasks]] = tasks
    members = task_of[np.concatenate(meetings.rows)]
    meeting = np.repeat(np.arange(len(meetings)), [len(rows) for rows in meetings.rows])
    there = (members >= 0) & (np.bincount(meeting[members >= 0], minlength=len(meetings))[meeting] > 1)
    _, meeting = np.unique(meeting[there], return_inverse=True)
    return members[there], meeting.reshape(-1)


def _hold(draft: Draft, members: np.ndarray, meeting: np.ndarray) -> None:
    """Split each member into its arrival and its transfer, which the last arrival of the meeting begins."""
    graph = draft.graph
    columns = graph.columns
    count = int(meeting.max()) + 1
    starts, ends = draft.start_ns[members], draft.end_ns[members]
    last, first_end, last_end = (np.full(count, fill, np.int64) for fill in (-(2**62), 2**62, -(2**62)))
    least = np.full(count, 2**62, np.int64)
    np.maximum.at(last, meeting, starts)
    on_host = np.isin(columns["lane"][members], list(draft.host_lanes))
    # A root that gives away its data does not wait for those that take it.
    free = np.where(on_host, ends < last[meeting], _gives_away(draft, members, ends, last[meeting]))
    np.minimum.at(first_end, meeting[~free], ends[~free])
    np.maximum.at(last_end, meeting[~free], ends[~free])
    np.minimum.at(least, meeting, ends - starts)
    agree = (last_end - first_end <= ENDS_AGREE_NS)[meeting] | on_host
    transfer = np.where(agree, np.maximum(ends - last[meeting], 0), least[meeting])
    transfer = np.where(free, ends - starts, transfer)
    begun = np.where(free, starts, last[meeting])

    arrivals = graph.add(
        len(members), lane=columns["lane"][members], kind=COLLECTIVE, name=graph.code("name", ARRIVAL),
        order=columns["order"][members] - 1, launch=columns["launch"][members], step=columns["step"][members],
        phase=columns["phase"][members], measured_start_ns=columns["measured_start_ns"][members],
        release_ns=columns["release_ns"][members], latency_ns=columns["latency_ns"][members],
    )  # fmt: skip
    columns = graph.columns
    draft.extend(begun)  # in the recording the kernel goes straight on to transfer: there is no start-up
    first = np.full(count, len(columns["lane"]))
    np.minimum.at(first, meeting, np.arange(len(members)))
    hubs = graph.add(
        count, lane=_hub_lanes(graph, columns["lane"][members], meeting), kind=0,
        name=graph.code("name", "last arrival"), measured_start_ns=last,
        order=columns["order"][members[first]],
    )  # fmt: skip
    columns = graph.columns
    draft.extend(last)
    columns["release_ns"][members] = 0
    columns["latency_ns"][members] = 0
    columns["measured_start_ns"][members] = begun
    columns["duration_ns"][members] = transfer
    graph.link(arrivals, hubs[meeting], cause=Cause.COMMUNICATION)
    held, hub = members[~free], hubs[meeting[~free]]
    graph.link(hub, held, cause=Cause.COMMUNICATION)
    draft.meetings += zip(held.tolist(), hub.tolist(), strict=True)


def _gives_away(draft: Draft, members: np.ndarray, ends: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Tell which members on a device gave their data away and had ended before the last one began.

    NCCL's and RCCL's kernels hand a small message on through buffers: the root of a broadcast ends at
    once. Where each needs the data of all no member can, so that there the clocks are apart.
    """
    rows = draft.graph.columns["row"][members]
    operation = np.array([*draft.trace.text("collective"), ""], dtype=object)[draft.trace["collective"][rows]]
    return np.isin(operation.astype(str), HANDED_ON) & (ends < last - ENDS_AGREE_NS)


def _hub_lanes(graph: Graph, lanes: np.ndarray, meeting: np.ndarray) -> np.ndarray:
    """Return a lane for what each meeting waits for: one for those that the same streams take part in.

    These follow each other on their streams; meetings of other streams must not wait for them. The
    lane is of the rank whose order in the program the hubs have, that of the first member.
    """
    found: dict[tuple[int, ...], int] = {}
    by_meeting = np.argsort(meeting, kind="stable")
    cuts = np.searchsorted(meeting[by_meeting], np.arange(int(meeting.max()) + 2)).tolist()
    hub_lanes = []
    for begin, end in pairwise(cuts):
        members = tuple(lanes[by_meeting[begin:end]].tolist())
        if members not in found:
            rank, number = graph.lanes[members[0]].rank, f" {len(found) + 1}" if found else ""
            found[members] = graph.add_lane(Lane(f"collectives of the ranks{number}", rank, background=True))
        hub_lanes.append(found[members])
    return np.array(hub_lanes)


def _say_what_is_missing(draft: Draft, meetings: Meetings) -> None:
    graph, metadata = draft.graph, draft.trace.metadata
    ranks, world_size = len(meetings.offset_ns), metadata.get("world_size", 0)
    if isinstance(world_size, int) and world_size > ranks:
        graph.note(
            f"{ranks} of {world_size} ranks took part in {counted(len(meetings), 'collective')}; the last to "
            "arrive may be one that is not in the trace, so their transfers are upper bounds."
        )
    drifting = int((meetings.spread_ns > ENDS_AGREE_NS).sum())
    if drifting and not meetings.on_host:
        graph.note(
            f"{counted(drifting, 'collective')} end up to {meetings.residual_ns / 1e3:,.0f} us apart on "
            "different ranks; their transfer is assumed to be the shortest member's duration."
        )
    if meetings.alone and "alignment" not in metadata:
        graph.note(_alone(meetings))


def _alone(meetings: Meetings) -> str:
    whose = ", ".join(f"{count:,} of rank {rank}" for rank, count in sorted(meetings.alone.items()))
    return f"Collectives that match none of another rank and are kept as recorded: {whose}."
