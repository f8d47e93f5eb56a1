"""Rule 5, communication: a collective transfers only when the last member has arrived.

What feeds a collective and what waits for it is found with the event waits, its
order on the channel is its stream's. With the traces of several ranks, the time a
member stood in the collective waiting for the others is a wait too: each member
gets an arrival, and the transfer begins with the last of them. The members not
recorded may have come later still; then the transfer is an upper bound.

Collectives are matched by their order on each rank, if all ranks run the same ones
and the recorded ends agree; ranks with clocks that differ are left apart, and said.
"""

from __future__ import annotations

import re

import numpy as np

from daydream.graph.draft import Draft
from daydream.graph.graph import KINDS, Lane
from daydream.graph.plan import Cause

COLLECTIVE = KINDS.index("collective")
ENDS_AGREE_NS = 100_000  # members of one collective end within 1 to 7 us of each other on aligned clocks
ARRIVAL = "arrival"
SHORT = re.compile(r"^(\w+?)(_\w*?RING|_\w*?TREE|\()")


def meet(draft: Draft) -> None:
    """Match the collectives of several ranks and let each transfer begin with the last arrival."""
    matched = _match(draft)
    if matched is None or not matched.shape[1]:
        return
    graph = draft.graph
    columns = graph.columns
    starts, ends = draft.start_ns[matched], draft.end_ns[matched]
    apart = int(np.ptp(ends, axis=0).max())
    if apart > ENDS_AGREE_NS:
        graph.note(
            f"Collectives of different ranks end up to {apart / 1e3:,.0f} us apart: their clocks are not "
            "aligned, so each rank is simulated by itself."
        )
        return
    last = starts.max(axis=0)
    members = matched.reshape(-1)
    arrivals = graph.add(
        len(members), lane=columns["lane"][members], kind=COLLECTIVE, name=graph.code("name", ARRIVAL),
        order=columns["order"][members] - 1, launch=columns["launch"][members], step=columns["step"][members],
        phase=columns["phase"][members], measured_start_ns=columns["measured_start_ns"][members],
        release_ns=columns["release_ns"][members],
    )  # fmt: skip
    columns = graph.columns
    draft.extend(draft.start_ns[arrivals])
    lane = graph.add_lane(Lane("meetings of the ranks", on_device=False, background=True))
    meetings = graph.add(
        matched.shape[1], lane=lane, kind=0, name=graph.code("name", "last arrival"), measured_start_ns=last,
        order=columns["order"][arrivals].reshape(matched.shape).max(axis=0) + 1,
    )  # fmt: skip
    columns = graph.columns
    draft.extend(last)
    columns["release_ns"][members] = 0
    columns["measured_start_ns"][members] = np.broadcast_to(last, matched.shape).reshape(-1)
    columns["duration_ns"][members] = np.maximum(ends - last, 0).reshape(-1)
    hubs = np.broadcast_to(meetings, matched.shape).reshape(-1)
    graph.link(arrivals, hubs, cause=Cause.COMMUNICATION)
    graph.link(hubs, members, cause=Cause.COMMUNICATION)
    draft.meetings += zip(members.tolist(), hubs.tolist(), strict=True)


def _match(draft: Draft) -> np.ndarray | None:
    """Return collectives as (rank, place) task ids, or None if there is one rank or they do not match."""
    graph = draft.graph
    columns = graph.columns
    tasks = np.flatnonzero(columns["kind"] == COLLECTIVE)
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)[columns["lane"][tasks]]
    present = np.unique(ranks)
    if len(present) < 2:
        return None
    # Collectives launched before the window are the head of some ranks' sequences only: match from the end.
    runs = [
        tasks[ranks == rank][np.argsort(columns["order"][tasks[ranks == rank]], kind="stable")]
        for rank in present
    ]
    length = min(len(run) for run in runs)
    matched = np.stack([run[len(run) - length :] for run in runs])
    names = [[_short(graph.texts["name"][code]) for code in columns["name"][run]] for run in matched]
    if any(name != names[0] for name in names):
        graph.note("The ranks run different collectives; each rank is simulated by itself.")
        return None
    return matched


def _short(name: str) -> str:
    found = SHORT.match(name)
    return found.group(1) if found else name
