"""Communication: a collective transfers only when the last member has arrived.

What feeds a collective and what waits for it is found with the event waits, its
order on the channel is its stream's. With the traces of several ranks, the time a
member spent in the collective waiting for the others is a wait too: each member
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

import numpy as np

from daydream.arrays import distinct, unique
from daydream.collect.derive.collectives import (
    ENDS_AGREE_NS,
    HANDED_ON,
    match_collectives,
)
from daydream.graph.calls import device_work
from daydream.graph.draft import Draft
from daydream.graph.plan import Cause
from daydream.graph.tables import COLLECTIVE, Lane
from daydream.text import counted

ARRIVAL = "arrival"
LAST_ARRIVAL = "last arrival"  # what joins the arrivals of a collective


def match_ranks(draft: Draft) -> None:
    """Match the collectives of several ranks and let each transfer begin with the last arrival."""
    tasks = np.flatnonzero(draft.kind == COLLECTIVE)
    if len(unique(draft.ranks[draft.lane[tasks]])) < 2:
        return
    matched = match_collectives(draft.trace)
    if not len(matched):
        draft.note("The ranks run different collectives; each rank is simulated by itself.")
        return
    apart = max((abs(offset) for offset in matched.offset_ns.values()), default=0)
    if apart > ENDS_AGREE_NS:
        draft.note(
            f"Collectives of different ranks end up to {apart / 1e3:,.0f} us apart: their clocks are not "
            "aligned, so each rank is simulated by itself."
        )
        return
    metadata = draft.trace.metadata
    ranks = len(matched.offset_ns)
    world_size = metadata.get("world_size", 0)
    if isinstance(world_size, int) and world_size > ranks:
        draft.note(
            f"{ranks} of {world_size} ranks took part in {counted(len(matched), 'collective')}; the last "
            "to arrive may be one that is not in the trace, so their transfers are upper bounds."
        )
    drifting = int((matched.spread_ns > ENDS_AGREE_NS).sum())
    if drifting and not matched.on_host:
        draft.note(
            f"{counted(drifting, 'collective')} end up to {matched.residual_ns / 1e3:,.0f} us apart on "
            "different ranks; their transfer is assumed to be the shortest member's duration."
        )
    if matched.alone and "alignment" not in metadata:
        whose = ", ".join(
            f"{count:,} of rank {rank}" for rank, count in sorted(matched.alone.items())
        )
        draft.note(
            f"Collectives that match none of another rank and are kept as recorded: {whose}."
        )
    task_of = np.full(len(draft.trace), -1, np.int64)
    task_of[draft.row[tasks]] = tasks
    members = task_of[np.concatenate(matched.rows)]
    collective = np.repeat(np.arange(len(matched)), [len(rows) for rows in matched.rows])
    there = (members >= 0) & (
        np.bincount(collective[members >= 0], minlength=len(matched))[collective] > 1
    )
    if there.any():
        _wait_for_members(draft, members[there], distinct(collective[there])[1])


def _wait_for_members(draft: Draft, members: np.ndarray, collective: np.ndarray) -> None:
    """Split each member into its arrival and its transfer, which the last arrival begins."""
    starts = draft.start_ns[members]
    ends = draft.end_ns[members]
    first = np.flatnonzero(np.diff(collective, prepend=-1))
    last = np.maximum.reduceat(starts, first)
    least = np.minimum.reduceat(ends - starts, first)
    on_host = ~device_work(draft)[members]
    # A root that gives away its data does not wait for those that take it: NCCL's and RCCL's kernels hand a
    # small message on through buffers, and the root of a broadcast ends at once. Where each needs the data of
    # all no member can, so that there the clocks are apart.
    operation = np.array([*draft.trace.text("collective"), ""])[
        draft.trace["collective"][draft.row[members]]
    ]
    arrived = last[collective]
    gives_away = np.isin(operation, HANDED_ON) & (ends < arrived - ENDS_AGREE_NS)
    free = np.where(on_host, ends < arrived, gives_away)
    first_end = np.minimum.reduceat(np.where(free, 2**62, ends), first)
    last_end = np.maximum.reduceat(np.where(free, -(2**62), ends), first)
    agree = (last_end - first_end <= ENDS_AGREE_NS)[collective] | on_host
    transfer = np.where(agree, np.maximum(ends - arrived, 0), least[collective])
    begun = np.where(free, starts, arrived)
    same = ("lane", "launch", "step", "phase", "start_ns", "release_ns", "latency_ns")
    arrivals = draft.add(
        len(members), kind=COLLECTIVE, name=draft.code("name", ARRIVAL), order=draft.order[members] - 1,
        end_ns=begun,  # in the recording the kernel goes straight on to transfer: there is no start-up
        **draft.values(members, *same),
    )  # fmt: skip
    # Collectives that the same streams take part in follow each other there: what they wait for has one lane.
    # Those of other streams must not wait for them. The lane is of the rank whose order in the program the
    # hubs have, that of the first member.
    lanes = []
    hub_lane: dict[tuple[int, ...], int] = {}
    for lanes_of_members in np.split(draft.lane[members], first[1:]):
        streams = tuple(lanes_of_members.tolist())
        if streams not in hub_lane:
            rank = draft.lanes[streams[0]].rank
            hub_lane[streams] = draft.add_lane(
                Lane("collectives of the ranks", rank, background=True)
            )
        lanes.append(hub_lane[streams])
    name = draft.code("name", LAST_ARRIVAL)
    hubs = draft.add(
        len(first), lane=lanes, name=name, order=draft.order[members[first]], start_ns=last
    )
    draft.release_ns[members] = 0
    draft.latency_ns[members] = 0
    draft.start_ns[members] = begun
    draft.duration_ns[members] = np.where(free, ends - starts, transfer)
    draft.link(arrivals, hubs[collective], cause=Cause.COMMUNICATION)
    draft.link(hubs[collective[~free]], members[~free], cause=Cause.COMMUNICATION)
