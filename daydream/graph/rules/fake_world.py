"""Collectives of a fake world: who begins them, in which order they transfer, who waits for them.

Each becomes a task on a lane of its group, launched by its call, as a communicator runs its collectives one
after the other; messages between two ranks have a lane for each peer and direction. What the program waits for
goes on when it is over.

    caller   |call|backward ...........|wait|copy back
    group      `->|all-reduce ---------------'

In the recording they took no time; how long they take is decided at the replay (`costs.network.networks`).
"""

from __future__ import annotations

import numpy as np

from daydream.graph.draft import Draft
from daydream.graph.plan import Cause
from daydream.graph.rules.streams import DEVICE_PLACE
from daydream.graph.tables import COLLECTIVE, Lane


def transfer_in_fake_world(draft: Draft) -> None:
    """Add a task for each collective of a fake world, which its call launches and its wait waits for."""
    trace = draft.trace
    if "fake_world" not in trace.metadata:
        return
    rows = np.flatnonzero(trace.is_kind("annotation") & (trace["correlation"] >= 0))
    is_call = trace["collective"][rows] >= 0
    calls = rows[is_call]
    tasks = draft.task_of_row[calls]
    described = {group["name"]: group["description"] for group in trace.metadata["groups"]}
    rank = int(trace.metadata["fake_world"]["rank"])
    lanes: dict[str, int] = {}
    lane, names = [], []
    columns = (trace.values(name, calls) for name in ("group", "collective", "peer"))
    for group, operation, peer in zip(*columns, strict=True):
        where = described.get(group) or f"group {group}"
        name = f"{where} {operation} {peer}" if operation in ("send", "recv") else where
        if name not in lanes:
            lanes[name] = draft.add_lane(Lane(name, rank, on_device=True, host=True))
        lane.append(lanes[name])
        names.append(draft.code("name", f"{operation} {where}"))
    transfers = draft.add(
        len(calls), kind=COLLECTIVE, lane=lane, name=names, row=calls, launch=tasks, end_ns=draft.start_ns[tasks],
        order=draft.order[tasks] + DEVICE_PLACE,
        **draft.values(tasks, "op", "layer", "phase", "step", "start_ns"),
    )  # fmt: skip
    transfer_of = dict(zip(trace["correlation"][calls].tolist(), transfers.tolist(), strict=True))
    for wait in rows[~is_call].tolist():
        transfer = transfer_of.get(int(trace["correlation"][wait]))
        if transfer is not None:  # else it was asked for before the recording
            draft.link(transfer, draft.task_of_row[wait], cause=Cause.COMMUNICATION)
